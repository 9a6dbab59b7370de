"""The PX4 plant: many PX4 instances in lockstep, each with a MuJoCo vehicle."""

import time
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.geometry import Scalar, Vec3
from ...dynamics.control_modes import PositionSetpoint, RateSetpoint, Setpoint, VelocitySetpoint
from ...dynamics.px4_controller import Px4Controller
from ...dynamics.quadrotor import QuadrotorState, Rotors
from .. import mavlink
from ..mujoco import Bodies, Columns, MujocoVehicles, Rows, states_from_columns
from ..plant import (
    AnyState,
    AnyTask,
    VehicleTask,
    flatten_agents,
    require_quadrotors,
    unstack,
    vehicle_task,
    zero_actions,
)
from ..sitl import MOTORS
from .autopilot import ARM, OFFBOARD_MODE, SET_MODE, Autopilot, OffboardSocket, Px4, parameters
from .frames import attitude_to_ned, enu_to_ned, flu_to_frd
from .sensors import (
    BAROMETER,
    HOME,
    IMU,
    MAGNETOMETER,
    SENSOR_RATE,
    HilSensors,
    gps_values,
    pressure_at,
    state_values,
)

BOOT_TIMEOUT = 30.0
"""Seconds of wall time for the first answer of a PX4; the following are simulated seconds."""
REST_TIME, ARM_TIMEOUT, CLIMB_TIMEOUT = 3.0, 45.0, 90.0
"""Seconds at rest before arming, at most until armed, and at most until at the start."""
CLIMB_HEIGHT = 3.0
"""Meters above ground that a racer climbs before its start: above 1.5 m PX4 resets its heading, best before a race."""
SETTLE_TIME, MODE_SWITCH_TIME = 0.5, 0.6
"""Seconds at the start before an episode begins, and seconds for which PX4 still mixes position control into rates."""
MAX_RESTARTS = 2
"""How often a PX4 that fails before its flight is started again."""
SILENCE_LIMIT = 5.0
"""Seconds of wall time without an answer after which a PX4 counts as failed."""


@dataclass
class StartupState:
    """Progress of one PX4 towards the start of its episode. Times are simulated, except `started`."""

    started: float
    climbed: bool
    """whether it has been above its start, if it must"""
    first_answer: float = 0.0
    last_request: float = 0.0
    arrived: float = 0.0
    sending_rates: bool = False
    ready: bool = False


@dataclass
class LinkStats:
    """Counters of an evaluation on PX4."""

    steps: int = 0
    seconds: float = 0.0
    missed_replies: int = 0
    restarts: int = 0
    failures: list[str] = field(default_factory=list)
    startup_times: list[float] = field(default_factory=list)
    version: str = ""
    instances: int = 0
    """largest number of PX4s that flew at the same time"""


class Px4Plant:
    """PX4 instances in lockstep, each with a MuJoCo vehicle."""

    name = "px4"
    keeps_time = True

    def __init__(
        self,
        px4: str = "",
        instances: int = 2,
        first_instance: int = 0,
        physics_rate: int = 500,
        reply_timeout: float = 0.2,
        seed: int = 0,
        sensors: HilSensors = HilSensors(),
        state_estimate: Literal["sensors", "truth"] = "sensors",
    ) -> None:
        if instances < 1 or first_instance < 0:
            raise ValueError("instances must be at least 1 and first_instance not negative")
        self.px4 = Px4.find(px4)
        self.px4.check()
        mavlink.load_dialect()
        self.instances, self.first_instance, self.rate = instances, first_instance, physics_rate
        self.reply_timeout, self.seed, self.sensors, self.state_estimate = reply_timeout, seed, sensors, state_estimate
        self.max_worlds = 1
        self.autopilots: list[Autopilot] = []
        self.bodies: Bodies | None = None
        self.stats = LinkStats(version=self.px4.version)
        self._task: AnyTask | None = None
        self.failed: np.ndarray | None = None

    def adapt(self, task: AnyTask) -> AnyTask:
        self.max_worlds = max(1, self.instances // task.spec.agents)
        return require_quadrotors(task, self.name)

    def _compile(self, task: AnyTask) -> VehicleTask:
        flown = vehicle_task(task, self.name)
        if task is self._task:
            return flown
        self._task, self.vehicle, self.vehicles = task, flown.airframe, MujocoVehicles(flown, self.rate)
        self.controller = Px4Controller().tuned_for(self.vehicle)
        self._steps = round(flown.spec.control_dt * self.rate)

        def setpoints(states: AnyState, commands: Any) -> tuple[Setpoint, Vec3]:
            wind = flatten_agents(jax.vmap(flown.wind_at)(states))
            return flatten_agents(jax.vmap(flown.setpoints)(states, commands)), wind

        def read_sensors(columns: Columns, previous: Rows, noise: Array) -> Array:
            # The sensors do not depend on rotor speeds; any four rows stand in for them.
            vehicles = states_from_columns(columns, Rotors(*columns[:4]))
            return jnp.stack(jax.vmap(self.sensors.read_sensors)(vehicles, Vec3(*previous), noise), -1)

        def hold_position(columns: Columns, positions: Rows, yaws: Array) -> tuple[Scalar, Array]:
            """The normalized thrust and the body rates that keep vehicles at their positions."""

            def one(state: QuadrotorState, position: Vec3, yaw: Scalar) -> tuple[Scalar, Array]:
                goal = PositionSetpoint(position, position * 0.0, yaw)
                memory = self.controller.start(self.vehicle, state)
                thrust, rates, _ = self.controller.outer_loops(self.vehicle, state, memory, goal)
                return thrust, jnp.stack(rates.parts)

            return jax.vmap(one)(states_from_columns(columns, Rotors(*columns[:4])), Vec3(*positions), yaws)

        self._setpoints = jax.jit(setpoints)
        self._read_sensors, self._hold_position = jax.jit(read_sensors), jax.jit(hold_position)
        return flown

    # Startup

    def start(self, task: AnyTask, states: AnyState) -> Any:
        """Boot and arm every PX4 and fly its vehicle to its start; one that starts on the ground stays there, armed."""
        began = time.perf_counter()
        flown = self._compile(task)
        self.close()
        self.bodies, vehicles, self.randomization = self.vehicles.start(states)
        vehicles, count = jax.device_get(vehicles), int(jnp.size(vehicles.position.x))
        commands = jax.vmap(flown.command)(states, zero_actions(flown.spec, len(states.step)))[1]
        self._commanded: tuple[AnyState, Any] = states, commands
        self.commands_rates = isinstance(jax.eval_shape(self._setpoints, states, commands)[0], RateSetpoint)
        # A racer climbs and descends again before its flight, through any obstacle there.
        self.bodies.enable_obstacles(not self.commands_rates)
        self.starts = np.stack(vehicles.position.parts, -1).astype(float)
        nose = vehicles.attitude.forward
        self.yaws = np.arctan2(nose.y, nose.x)
        ground = self.bodies.ground_below(self.starts + np.array([0.0, 0.0, 0.5]))
        self.origins = np.stack([self.starts[:, 0], self.starts[:, 1], ground + self.vehicle.foot_drop], -1)
        self.on_ground = (self.starts[:, 2] - ground < 1.0) & (not self.commands_rates)
        self.rotors, self.wind = np.zeros((4, count), np.float32), np.zeros((3, count), np.float32)
        self.generator = np.random.default_rng(self.seed)
        self.tick = self.physics_tick = 0
        self.bodies.set_states(self._resting(np.arange(count)))
        self.previous_velocity = self.bodies.columns()[7:10]
        values = parameters(self.vehicle, self.controller)
        sockets: dict[int, OffboardSocket] = {}
        self.autopilots = [Autopilot(self.px4, self.first_instance + k, values, sockets) for k in range(count)]
        self.stats.instances = max(self.stats.instances, count)
        for autopilot in self.autopilots:
            autopilot.start()
        self._bring_to_start()
        self.bodies.enable_obstacles(True)
        self.failed = np.zeros(states.ended.shape, np.bool_)
        self._note_failures()
        self.stats.seconds += time.perf_counter() - began
        return self.truth()

    def _resting(self, which: np.ndarray) -> QuadrotorState:
        """These vehicles at rest on the ground, where their PX4s boot."""
        columns = np.zeros((13, len(which)))
        columns[:3] = self.origins[which].T
        columns[3], columns[6] = np.cos(0.5 * self.yaws[which]), np.sin(0.5 * self.yaws[which])
        return states_from_columns(columns, Rotors(*np.zeros((4, len(which)))))  # pyright: ignore[reportArgumentType]

    def _bring_to_start(self) -> None:
        """Run until every PX4 is armed, in offboard mode and at its start; one that fails is started again, twice."""
        assert self.bodies is not None
        startups = [self._new_startup() for _ in self.autopilots]
        while not all(map(self._finished, self.autopilots, startups)):
            self._advance()
            columns = self.bodies.columns()
            if self.commands_rates and any(startup.sending_rates for startup in startups):
                thrusts, rates = jax.device_get(self._hold_position(columns, self.starts.T, self.yaws))
                self.hold_thrusts, self.hold_rates = thrusts, rates
            for k, (autopilot, startup) in enumerate(zip(self.autopilots, startups, strict=True)):
                if autopilot.running:
                    self._advance_startup(k, autopilot, startup, columns[:, k])
                elif autopilot.restarts < MAX_RESTARTS:
                    self._restart(k)
                    startups[k] = self._new_startup()

    def _new_startup(self) -> StartupState:
        return StartupState(time.perf_counter(), climbed=not self.commands_rates)

    def _finished(self, autopilot: Autopilot, startup: StartupState) -> bool:
        """Whether a PX4 is at its start, or has failed for good."""
        return startup.ready if autopilot.running else autopilot.restarts >= MAX_RESTARTS

    def _advance_startup(self, k: int, autopilot: Autopilot, startup: StartupState, column: np.ndarray) -> None:
        """One step of a PX4 on its way to the start of its episode."""
        now = 1e-6 * autopilot.time_us
        if not autopilot.replies:
            if time.perf_counter() - startup.started > BOOT_TIMEOUT:
                autopilot.fail(f"PX4 {autopilot.instance} did not answer within {BOOT_TIMEOUT:g} s of its start")
            return
        startup.first_answer = startup.first_answer or now
        elapsed = now - startup.first_answer
        if startup.sending_rates:
            autopilot.send_rates(self.hold_rates[k], float(self.hold_thrusts[k]))
        elif self.tick % 5 == 0:
            self._send_hold(k, startup)
        if elapsed <= REST_TIME:
            return
        if autopilot.armed and autopilot.offboard:
            self._approach_start(k, autopilot, startup, column, elapsed)
            return
        startup.ready, startup.sending_rates, startup.arrived = False, False, 0.0
        if elapsed > REST_TIME + ARM_TIMEOUT:
            reason = "; ".join(autopilot.status_texts[-3:]) or "it gave no reason"
            autopilot.fail(f"PX4 {autopilot.instance} did not arm within {ARM_TIMEOUT:g} s: {reason}")
        elif autopilot.position is not None and now - startup.last_request >= 1.0:
            startup.last_request = now
            autopilot.send_command(SET_MODE, 1.0, float(OFFBOARD_MODE))
            if autopilot.offboard:
                autopilot.send_command(ARM, 1.0)

    def _approach_start(
        self, k: int, autopilot: Autopilot, startup: StartupState, column: np.ndarray, elapsed: float
    ) -> None:
        """One step of an armed vehicle towards its start: note when it has arrived and settled."""
        now = 1e-6 * autopilot.time_us
        startup.climbed = startup.climbed or column[2] > self.origins[k, 2] + CLIMB_HEIGHT - 0.8
        distance = np.linalg.norm(column[:3] - self._goal(k, startup))
        near = self.on_ground[k] or (startup.climbed and distance < 0.4 and np.linalg.norm(column[7:10]) < 0.4)
        startup.arrived = (startup.arrived or now) if near else 0.0
        settled = now - startup.arrived if near else 0.0
        startup.sending_rates = self.commands_rates and (startup.sending_rates or settled > SETTLE_TIME)
        if settled > SETTLE_TIME + (MODE_SWITCH_TIME if self.commands_rates else 0.0) and not startup.ready:
            startup.ready = True
            self.stats.startup_times.append(elapsed)
        elif elapsed > REST_TIME + ARM_TIMEOUT + CLIMB_TIMEOUT:
            autopilot.fail(f"PX4 {autopilot.instance} did not reach its start: {distance:.1f} m short")

    def _restart(self, k: int) -> None:
        """Start a PX4 again before its flight, with its vehicle at rest."""
        assert self.bodies is not None
        autopilot = self.autopilots[k]
        autopilot.restarts += 1
        self.stats.restarts += 1
        self.stats.failures.append(autopilot.failure)
        self.bodies.set_state(k, self._resting(np.array([k])))
        self.rotors[:, k] = 0.0
        autopilot.start()

    def _goal(self, k: int, startup: StartupState) -> np.ndarray:
        """Where a vehicle goes before its flight: to its start; a racer first to a point above it."""
        if startup.climbed:
            return self.starts[k]
        return np.maximum(self.starts[k], self.origins[k] + np.array([0.0, 0.0, CLIMB_HEIGHT]))

    def _send_hold(self, k: int, startup: StartupState) -> None:
        """Send the setpoint before the flight: to stay on the ground, or to hold the goal."""
        if self.on_ground[k]:
            setpoint = VelocitySetpoint(Vec3(0.0, 0.0, 0.0), 0.0)
        else:
            setpoint = PositionSetpoint(Vec3(*self._goal(k, startup)), Vec3(0.0, 0.0, 0.0), self.yaws[k])
        self.autopilots[k].send_setpoint(setpoint, self.vehicle, self.controller, self.origins[k])

    # Flight

    def command(self, states: AnyState, commands: Any) -> None:
        began = time.perf_counter()
        setpoints, wind = jax.device_get(self._setpoints(states, commands))
        self._commanded = states, commands
        self.wind = np.stack(wind.parts).astype(np.float32)
        rows = unstack(setpoints, len(self.autopilots))
        due = self.physics_tick + self._steps
        first = True
        while self.physics_tick < due:
            if first or self.tick % 5 == 0:
                for autopilot, row, origin in zip(self.autopilots, rows, self.origins, strict=True):
                    if autopilot.running:
                        autopilot.send_setpoint(row, self.vehicle, self.controller, origin)
                first = False
            self._advance(due)
        self._note_failures()
        self.stats.seconds += time.perf_counter() - began

    def _advance(self, due: int | None = None) -> None:
        """Step the physics until a sensor message is exchanged, or until the physics step `due`."""
        bodies, interval = self.bodies, self.rate // SENSOR_RATE
        assert bodies is not None
        while self.physics_tick != due:
            signals = np.empty((4, len(self.autopilots)), np.float32)
            signals[MOTORS, :] = np.array([autopilot.motor_signals for autopilot in self.autopilots]).T
            rotors, thrusts, wrench = self.vehicles.apply_signals(
                bodies.columns(), self.rotors, signals, self.wind, self.randomization
            )
            self.rotors = np.array(rotors)
            bodies.step(np.asarray(thrusts), np.asarray(wrench))
            self.physics_tick += 1
            if self.physics_tick % interval == 0:
                self._exchange()
                return

    def _exchange(self) -> None:
        """Send one sensor message to every PX4 and wait for its actuator message: one step of lockstep."""
        self._send_sensors()
        answered = False
        for autopilot in self.autopilots:
            if not autopilot.running:
                continue
            if not autopilot.replies:
                autopilot.wait_for_actuators(0.002)
                continue
            answered = True
            if autopilot.wait_for_actuators(self.reply_timeout):
                autopilot.missed_in_a_row = 0
            elif autopilot.running:
                self.stats.missed_replies += 1
                autopilot.missed_in_a_row += 1
                silence = autopilot.missed_in_a_row * self.reply_timeout
                if silence > SILENCE_LIMIT:
                    autopilot.fail(f"PX4 {autopilot.instance} has not answered for {silence:.0f} s")
            autopilot.offboard_socket.receive()
            if self.tick % SENSOR_RATE == 0:
                autopilot.send_heartbeat()
        self.tick += 1
        self.stats.steps += answered

    def _send_sensors(self) -> None:
        """Send HIL_SENSOR to every PX4, the true state and slow sensors at 50 Hz, and GPS at 10 Hz."""
        assert self.bodies is not None
        columns, sensors = self.bodies.columns(), self.sensors
        noise = self.generator.standard_normal((len(self.autopilots), 16), np.float32)
        readings = np.asarray(self._read_sensors(columns, self.previous_velocity, noise[:, :9])).tolist()
        self.previous_velocity = columns[7:10]
        slow, gps = self.tick % 5 == 0, self.tick % 25 == 0
        fields = IMU | (MAGNETOMETER | BAROMETER if slow else 0)
        position, velocity = enu_to_ned(columns[:3].T.astype(float)), enu_to_ned(columns[7:10].T.astype(float))
        attitude, rates = attitude_to_ned(columns[3:7].T), flu_to_frd(columns[10:13].T)
        altitudes = HOME[2] - position[:, 2] + sensors.barometer_noise * noise[:, 9]
        for k, autopilot in enumerate(self.autopilots):
            if not autopilot.running:
                continue
            autopilot.time_us += 1_000_000 // SENSOR_RATE
            now, encoder, data = autopilot.time_us, autopilot.simulator_encoder, b""
            if gps:
                measured_position = position[k] + sensors.gps_position_noise * noise[k, 10:13]
                measured_velocity = velocity[k] + sensors.gps_velocity_noise * noise[k, 13:]
                data = encoder.pack("HIL_GPS", *gps_values(now, measured_position, measured_velocity))
            if slow:
                truth = state_values(now, attitude[k], rates[k], position[k], velocity[k])
                data += encoder.pack("HIL_STATE_QUATERNION", *truth)
            altitude = float(altitudes[k])
            pressure = pressure_at(altitude)
            data += encoder.pack("HIL_SENSOR", now, *readings[k], pressure, 0.0, altitude, 20.0, fields, 0)
            autopilot.send_sensors(data)

    def _note_failures(self) -> None:
        assert self.failed is not None
        down = np.array([not autopilot.running for autopilot in self.autopilots]).reshape(self.failed.shape)
        for k, autopilot in enumerate(self.autopilots):
            if not autopilot.running and not self.failed.reshape(-1)[k]:
                self.stats.failures.append(autopilot.failure)
            elif autopilot.running:
                self.stats.version = autopilot.px4.version
        self.failed = self.failed | down

    def truth(self) -> Any:
        assert self.bodies is not None
        return self.vehicles.body_from_columns(*self._commanded, self.bodies.columns(), self.rotors)

    def estimate(self) -> Any:
        """The state by PX4's own estimator; with state_estimate=truth, the truth.

        Never None: programs are compiled before the start for an estimate of the body's structure.
        """
        if self.state_estimate == "truth":
            return self.truth()
        for autopilot in self.autopilots:
            if autopilot.running:
                autopilot.offboard_socket.receive()
        rows = []
        for autopilot, origin in zip(self.autopilots, self.origins, strict=True):
            position = np.zeros(3) if autopilot.position is None else autopilot.position
            q = attitude_to_ned(autopilot.attitude)
            q = q if q[0] >= 0.0 else -q
            velocity, rates = enu_to_ned(autopilot.velocity), flu_to_frd(autopilot.rates)
            rows.append([*(enu_to_ned(position) + origin), *q, *velocity, *rates])
        return self.vehicles.body_from_columns(*self._commanded, np.array(rows, np.float32).T, self.rotors)

    def diagnostics(self) -> dict[str, Any]:
        stats = self.stats
        seconds = max(stats.seconds, 1e-9)
        startup = stats.startup_times
        return {
            "px4": {
                "version": stats.version,
                "instances": stats.instances,
                "steps_per_second": round(stats.steps / seconds, 1),
                "times_real_time": round(stats.steps / SENSOR_RATE / seconds, 2),
                "missed_replies": stats.missed_replies,
                "restarts": stats.restarts,
                "failures": stats.failures,
                "startup_time": round(float(np.mean(startup)), 2) if startup else None,
            }
        }

    def close(self) -> None:
        for autopilot in self.autopilots:
            autopilot.stop()
        self.autopilots = []
        if self.bodies is not None:
            self.bodies.close()
            self.bodies = None
