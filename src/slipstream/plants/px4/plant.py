"""Many PX4s, each with a MuJoCo vehicle: woken, flown in lockstep, watched, and ended."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.geometry import Vec3
from ...dynamics.control_modes import PositionSetpoint, RateSetpoint, VelocitySetpoint
from ...dynamics.px4_controller import Px4Controller
from ...dynamics.quadrotor import QuadrotorState, Rotors
from .. import mavlink
from ..mujoco import Bodies, MujocoVehicles, flights_of
from ..plant import AnyTask, flat, require_quadrotors, zero_actions
from ..sitl import MOTORS
from .autopilot import ARM, OFFBOARD_MODE, SET_MODE, Autopilot, Px4, Station, parameters
from .frames import attitude_ned, flipped, turned
from .sensors import BAROMETER, HOME, IMU, MAGNETOMETER, RATE, Sensors, fix_of, pressure_at, state_of

BOOT, REST, ARMED, CLIMB = 30.0, 3.0, 45.0, 90.0
"""Seconds a PX4 has: to answer (of the wall), to rest, to arm, and to reach its start (simulated)."""
HIGH = 3.0
"""Metres above its ground where a racer goes first: at 1.5 PX4 finds its heading anew, at a bad time in a race."""
SETTLE, SWITCH = 0.5, 0.6
"""Seconds at the start before an episode begins; and for how long rates are mixed with what PX4 did before."""


@dataclass
class StartupState:
    """How far a PX4 is on its way to the start of its episode; times are its own, but for the first."""

    started: float
    been_high: bool
    """above its start, if it has to"""
    answered: float = 0.0
    asked: float = 0.0
    there: float = 0.0
    switched: bool = False
    ready: bool = False


@dataclass
class LinkStats:
    """What an evaluation on PX4 was like."""

    steps: int = 0
    seconds: float = 0.0
    missed: int = 0
    restarts: int = 0
    failures: list[str] = field(default_factory=list)
    arming: list[float] = field(default_factory=list)
    version: str = ""
    together: int = 0
    """PX4s that flew at once"""


class Px4Plant:
    """PX4s in lockstep, each with a MuJoCo vehicle."""

    name = "px4"
    keeps_time = True

    def __init__(
        self,
        px4: str = "",
        instances: int = 2,
        first: int = 0,
        physics_rate: int = 500,
        patience: float = 0.2,
        seed: int = 0,
        sensors: Sensors = Sensors(),
        by_estimate: bool = True,
    ) -> None:
        self.sensors, self.by_estimate = sensors, by_estimate
        self.px4 = Px4.find(px4)
        self.px4.check()
        if instances < 1 or first < 0:
            raise ValueError("at least 1 instance is needed, and the first is not negative")
        self.instances, self.first, self.rate, self.patience, self.seed = instances, first, physics_rate, patience, seed
        self.max_worlds = 1
        self.pilots: list[Autopilot] = []
        self.bodies: Bodies | None = None
        self.counts = LinkStats(version=self.px4.version)
        self._task: Any = None
        self.failed: np.ndarray | None = None

    def adapt(self, task: AnyTask) -> AnyTask:
        self.max_worlds = max(1, self.instances // task.spec.agents)
        return require_quadrotors(task, self.name)

    def _compile(self, task: Any) -> None:
        if task is self._task:
            return
        self._task, self.vehicle, self.vehicles = task, task.airframe, MujocoVehicles(task, self.rate)
        self.controller = Px4Controller().tuned_for(self.vehicle)
        self._told = jax.jit(lambda s, c: (flat(jax.vmap(task.setpoints)(s, c)), flat(jax.vmap(task.wind_at)(s))))

        def feel(columns: Any, before: Any, noise: Any) -> Any:
            flight = replace(flights_of(columns, Rotors(*columns[:4])), rotors=None)  # rotors are not felt
            return jnp.stack(jax.vmap(self.sensors.feel)(flight, Vec3(*before), noise), -1)

        def hover(columns: Any, places: Any, yaws: Any) -> Any:
            """The share of thrust and the rates that keep vehicles at places."""

            def one(flight: QuadrotorState, place: Vec3, yaw: Any) -> Any:
                goal = PositionSetpoint(place, place * 0.0, yaw)
                signal, rates, _ = self.controller.outer_loops(
                    self.vehicle, flight, self.controller.start(self.vehicle, flight), goal
                )
                return signal, jnp.stack(rates.parts)

            return jax.vmap(one)(flights_of(columns, Rotors(*columns[:4])), Vec3(*places), yaws)

        self._feel, self._hover = jax.jit(feel), jax.jit(hover)

    # Flying

    def start(self, task: Any, states: Any) -> Any:
        """Boot, arm and bring every vehicle to its start; those that start on the ground stay there, armed."""
        began = time.perf_counter()
        self._compile(task)
        self.close()
        self.bodies, flights, self.variation = self.vehicles.start(states)
        flights, count = jax.device_get(flights), flights.position.x.shape[0]
        self._held: Any = states, jax.vmap(task.command)(states, zero_actions(task, len(states.step)))[1]
        self.by_rates = isinstance(jax.eval_shape(self._told, *self._held)[0], RateSetpoint)
        # A racer is taken up and down again before its flight, through whatever stands there.
        self.bodies.solid(not self.by_rates)
        self.starts = np.stack(flights.position.parts, -1).astype(float)
        nose = flights.attitude.forward
        self.yaws = np.arctan2(nose.y, nose.x)
        ground = self.bodies.ground_below(self.starts + np.array([0.0, 0.0, 0.5]))
        self.origins = np.stack([self.starts[:, 0], self.starts[:, 1], ground + self.vehicle.foot_drop], -1)
        self.grounded = (self.starts[:, 2] - ground < 1.0) & (not self.by_rates)
        self.rotors, self.wind_at = np.zeros((4, count), np.float32), np.zeros((3, count), np.float32)
        self.generator = np.random.default_rng(self.seed)
        self.tick = self.tick_physics = 0
        self.bodies.put(self._resting(np.arange(count)))
        self.before = self.bodies.get()[7:10]
        told = parameters(self.vehicle, self.controller)
        stations: dict[int, Station] = {}
        self.pilots = [Autopilot(self.px4, self.first + k, told, stations) for k in range(count)]
        self.counts.together = max(self.counts.together, count)
        for pilot in self.pilots:
            pilot.start()
        self._prepare()
        self.bodies.solid(True)
        self.failed = np.zeros(states.ended.shape, np.bool_)
        self._note_losses()
        self.counts.seconds += time.perf_counter() - began
        return self.truth()

    def _resting(self, which: np.ndarray) -> QuadrotorState:
        """Those vehicles, standing where their PX4s wake up."""
        columns = np.zeros((13, len(which)))
        columns[:3] = self.origins[which].T
        columns[3], columns[6] = np.cos(0.5 * self.yaws[which]), np.sin(0.5 * self.yaws[which])
        return flights_of(columns, Rotors(*np.zeros((4, len(which)))))  # pyright: ignore[reportArgumentType]

    def _prepare(self) -> None:
        """Every PX4 booted, armed, in offboard and where its episode begins; what fails is started again, twice."""
        anew = lambda: StartupState(time.perf_counter(), been_high=not self.by_rates)  # noqa: E731
        wakings = [anew() for _ in self.pilots]
        while not all(w.ready if p.up else p.restarts >= 2 for w, p in zip(wakings, self.pilots, strict=True)):
            self._advance()
            where = self.bodies.get()  # pyright: ignore[reportOptionalMemberAccess]
            if self.by_rates and any(waking.switched for waking in wakings):
                self.hovers = jax.device_get(self._hover(where, self.starts.T, self.yaws))
            for k, (pilot, waking) in enumerate(zip(self.pilots, wakings, strict=True)):
                if pilot.up:
                    self._wake(k, pilot, waking, where[:, k])
                elif pilot.restarts < 2:
                    self._again(k)
                    wakings[k] = anew()

    def _wake(self, k: int, pilot: Autopilot, waking: StartupState, where: np.ndarray) -> None:
        """One look at a PX4 on its way to the start of its episode."""
        now = 1e-6 * pilot.time_us
        if not pilot.replies:
            if time.perf_counter() - waking.started > BOOT:
                pilot.fail(f"PX4 {pilot.instance} did not answer within {BOOT:g} s of its start")
            return
        waking.answered = waking.answered or now
        since = now - waking.answered
        if waking.switched:
            pilot.turn(self.hovers[1][k], float(self.hovers[0][k]))
        elif self.tick % 5 == 0:
            self._hold(k, waking)
        if since <= REST:
            return
        if pilot.armed and pilot.offboard:
            waking.been_high = waking.been_high or where[2] > self.origins[k, 2] + HIGH - 0.8
            off = np.linalg.norm(where[:3] - self._goal(k, waking))
            near = self.grounded[k] or (waking.been_high and off < 0.4 and np.linalg.norm(where[7:10]) < 0.4)
            waking.there = (waking.there or now) if near else 0.0
            settled = now - waking.there if near else 0.0
            waking.switched = self.by_rates and (waking.switched or settled > SETTLE)
            if settled > SETTLE + (SWITCH if self.by_rates else 0.0) and not waking.ready:
                waking.ready = True
                self.counts.arming.append(since)
            elif since > REST + ARMED + CLIMB:
                pilot.fail(f"PX4 {pilot.instance} did not reach its start: {off:.1f} m short")
            return
        waking.ready, waking.switched, waking.there = False, False, 0.0
        if since > REST + ARMED:
            why = "; ".join(pilot.texts[-3:]) or "it gave no reason"
            pilot.fail(f"PX4 {pilot.instance} did not arm within {ARMED:g} s: {why}")
        elif pilot.position is not None and now - waking.asked >= 1.0:
            waking.asked = now
            pilot.order(SET_MODE, 1.0, float(OFFBOARD_MODE))
            if pilot.offboard:
                pilot.order(ARM, 1.0)

    def _again(self, k: int) -> None:
        """Start a PX4 anew before its flight, with its vehicle at rest; after the second time it stays lost."""
        pilot = self.pilots[k]
        pilot.restarts += 1
        self.counts.restarts += 1
        self.counts.failures.append(pilot.trouble)
        self.bodies.put_one(k, self._resting(np.array([k])))  # pyright: ignore[reportOptionalMemberAccess]
        self.rotors[:, k] = 0.0
        pilot.start()

    def _goal(self, k: int, waking: StartupState) -> np.ndarray:
        """Where a vehicle goes before its flight: to its start, a racer by way of a place above it."""
        if waking.been_high:
            return self.starts[k]
        return np.maximum(self.starts[k], self.origins[k] + np.array([0.0, 0.0, HIGH]))

    def _hold(self, k: int, waking: StartupState) -> None:
        """Before the flight: stay at the start."""
        pilot = self.pilots[k]
        if self.grounded[k]:
            pilot.target(VelocitySetpoint(Vec3(0.0, 0.0, 0.0), 0.0), self.vehicle, self.controller, self.origins[k])
            return
        goal = PositionSetpoint(Vec3(*self._goal(k, waking)), Vec3(0.0, 0.0, 0.0), self.yaws[k])
        pilot.target(goal, self.vehicle, self.controller, self.origins[k])

    def command(self, states: Any, commands: Any) -> None:
        began = time.perf_counter()
        setpoint, air = jax.device_get(self._told(states, commands))
        self._held = states, commands
        self.wind_at = np.stack(air.parts).astype(np.float32)
        rows = [jax.tree.map(lambda x, k=k: x[k], setpoint) for k in range(len(self.pilots))]
        due = self.tick_physics + round(self._task.spec.control_dt * self.rate)
        first = True
        while self.tick_physics < due:
            if first or self.tick % 5 == 0:
                for pilot, row, origin in zip(self.pilots, rows, self.origins, strict=True):
                    if pilot.up:
                        pilot.target(row, self.vehicle, self.controller, origin)
                first = False
            self._advance(due)
        self._note_losses()
        self.counts.seconds += time.perf_counter() - began

    def _advance(self, due: int | None = None) -> None:
        """Physics until a sensor message has gone out, or the step `due` is reached."""
        bodies, per = self.bodies, self.rate // RATE
        assert bodies is not None
        while self.tick_physics != due:
            signals = np.empty((4, len(self.pilots)), np.float32)
            signals[MOTORS, :] = np.array([pilot.signals for pilot in self.pilots]).T
            rotors, thrusts, wrench = self.vehicles.push(
                bodies.get(), self.rotors, signals, self.wind_at, self.variation
            )
            self.rotors = np.array(rotors)
            bodies.step(np.asarray(thrusts), np.asarray(wrench))
            self.tick_physics += 1
            if self.tick_physics % per == 0:
                self._exchange()
                return

    def _exchange(self) -> None:
        """One sensor message to every PX4, and its answer."""
        assert self.bodies is not None
        columns, count, sensors = self.bodies.get(), len(self.pilots), self.sensors
        noise = self.generator.standard_normal((count, 16), np.float32)
        felt = np.asarray(self._feel(columns, self.before, noise[:, :9])).tolist()
        self.before = columns[7:10]
        slow, fix = self.tick % 5 == 0, self.tick % 25 == 0  # 50 and 10 Hz
        fields = IMU | (MAGNETOMETER | BAROMETER if slow else 0)
        place, velocity = turned(columns[:3].T.astype(float)), turned(columns[7:10].T.astype(float))
        truth, rates = attitude_ned(columns[3:7].T), flipped(columns[10:13].T)
        heights = HOME[2] - place[:, 2] + sensors.height_noise * noise[:, 9]
        for k, pilot in enumerate(self.pilots):
            if not pilot.up:
                continue
            pilot.time_us += 1_000_000 // RATE
            data = b""
            if fix:
                at = place[k] + sensors.place_noise * noise[k, 10:13]
                speed = velocity[k] + sensors.speed_noise * noise[k, 13:]
                data = pilot.sent.pack(mavlink.HIL_GPS, *fix_of(pilot.time_us, at, speed))
            if slow:
                now = state_of(pilot.time_us, truth[k], rates[k], place[k], velocity[k])
                data += pilot.sent.pack(mavlink.HIL_STATE, *now)
            height = float(heights[k])
            data += pilot.sent.pack(
                mavlink.HIL_SENSOR, pilot.time_us, *felt[k],
                pressure_at(height), 0.0, height, 20.0, fields, 0,
            )  # fmt: skip
            pilot.send(data)
        booted = False
        for pilot in self.pilots:
            if not pilot.up:
                continue
            if not pilot.replies:
                pilot.wait(0.002)
                continue
            booted = True
            if pilot.wait(self.patience):
                pilot.silent = 0
            elif pilot.up:
                self.counts.missed += 1
                pilot.silent += 1
                if pilot.silent * self.patience > 5.0:
                    pilot.fail(f"PX4 {pilot.instance} has not answered for {pilot.silent * self.patience:.0f} s")
            pilot.station.hear()
            if self.tick % RATE == 0:
                pilot.greet()
        self.tick += 1
        self.counts.steps += booted

    def _note_losses(self) -> None:
        assert self.failed is not None
        down = np.array([not pilot.up for pilot in self.pilots]).reshape(self.failed.shape)
        for k, pilot in enumerate(self.pilots):
            if not pilot.up and not self.failed.reshape(-1)[k]:
                self.counts.failures.append(pilot.trouble)
            elif pilot.up:
                self.counts.version = pilot.px4.version
        self.failed = self.failed | down

    def truth(self) -> Any:
        assert self.bodies is not None
        return self.vehicles.body_from_vehicles(*self._held, self.bodies.get(), self.rotors)

    def estimate(self) -> Any:
        """What PX4's own estimators say, unless the policy is to fly by the truth."""
        if not self.by_estimate:
            return self.truth()
        for pilot in self.pilots:
            if pilot.up:
                pilot.station.hear()
        rows = []
        for pilot, origin in zip(self.pilots, self.origins, strict=True):
            place = np.zeros(3) if pilot.position is None else pilot.position
            q = attitude_ned(pilot.attitude)
            q = q if q[0] >= 0.0 else -q
            rows.append([*(turned(place) + origin), *q, *turned(pilot.velocity), *flipped(pilot.rates)])
        return self.vehicles.body_from_vehicles(*self._held, np.array(rows, np.float32).T, self.rotors)

    def diagnostics(self) -> dict[str, Any]:
        c = self.counts
        flown = max(c.seconds, 1e-9)
        return {
            "px4": {
                "version": c.version,
                "instances": c.together,
                "steps_per_second": round(c.steps / flown, 1),
                "times_real_time": round(c.steps / RATE / flown, 2),
                "missed_replies": c.missed,
                "restarts": c.restarts,
                "failures": c.failures,
                "ready_after": round(float(np.mean(c.arming)), 2) if c.arming else None,
            }
        }

    def close(self) -> None:
        for pilot in self.pilots:
            pilot.end()
        self.pilots = []
        if self.bodies is not None:
            self.bodies.close()
            self.bodies = None
