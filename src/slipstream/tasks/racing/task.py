"""The race: its settings, and how drones fly in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import require_choice
from ...core.geometry import Vec3
from ...core.rng import Rng
from ...core.spaces import Levels, action_space
from ...core.task import PackedImage, Spec, Task, derive, vmap_agents
from ...dynamics.control_modes import CONTROL_MODES, ControlMode, FittedParameters, NormalizedCommand, Setpoint
from ...dynamics.flight import ControlledFlight
from ...dynamics.identification import RateModel
from ...dynamics.px4_controller import Px4Controller
from ...dynamics.quadrotor import VEHICLES, PhysicsRandomization, Quadrotor, QuadrotorState, scaled
from ...sensors.camera import CameraSettings
from ...sensors.noise import SensorNoise
from ...sensors.scene import Scene
from . import observation, reset, rewards
from .observation import CAMERA_SIZE, ISAAC_SIZE, OTHER_SIZE, STATE_SIZE
from .scene import race_scene
from .settings import RaceReward, Randomization, SmoothRaceReward, Start
from .state import RaceState
from .track import OPENING, TRACKS, AnyTrack, Gate, GeneratedTrack, PlacedTrack, Track
from .track_file import check_spacing, read_track

SHORTEST_LAP = 5.0
"""Where episodes in training are shorter than this, s, they are not for laps, and tell nothing of success."""
LONG_ENOUGH = 0.9
"""Fraction of `train_time_limit` that an episode must be allowed for its success to count."""


@dataclass(frozen=True)
class Racing(Task[RaceState]):
    """Fly through the gates of a track in order, as fast as possible, touching nothing."""

    report: ClassVar[str] = "slipstream.tasks.racing.report"
    progress_bar: ClassVar[Mapping[str, str]] = {
        "success": "success {:.0%}", "lap_time": "lap {:.2f} s", "crash": "crashes {:.0%}",
    }  # fmt: skip

    track: Literal["seven", "ring", "eight", "long", "generated"] | str = "seven"
    """name of the track (generated draws a new one for every world), or a JSON file of gates"""
    gates: int = 6
    """gates of a generated track"""
    gate_poses: tuple[tuple[float, float, float, float], ...] = ()
    """gates of a track from a file: x, y and z of the middle of the lower edge, m, and heading, rad"""
    vehicle: Literal["racer", "crazyflie", "iris"] = "racer"
    """the quadrotor: a 5-inch racer, a Crazyflie or an Iris"""
    control_mode: Literal["body_rates", "motor_speeds", "velocity"] = "body_rates"
    """what an action commands: thrust and body rates, motor speeds, or velocity and yaw rate"""
    controller: Literal["simple", "px4"] = "simple"
    """what turns a command into motor speeds: proportional loops, or PX4's controller with its filters and limits"""
    action_space: Literal["box", "discrete", "multidiscrete"] = "box"
    """actions as real numbers, as one choice, or as one choice for each component"""
    action_levels: int = 3
    """choices for each component of a discrete action"""
    observation: Literal["body", "isaac_drone_racer"] = "body"
    """body: the next two gates in the body frame, and the height; isaac_drone_racer: the 20 numbers of that project"""
    camera: CameraSettings = CameraSettings()
    """with a camera the drone knows neither its position nor where the gates are, only which one comes next"""
    fitted: FittedParameters = FittedParameters()
    """what `slipstream fit` found for the fast model"""
    agents: int = 1
    """drones on one track; they see the nearest other one and can hit it"""
    physics_rate: int = 400
    """physics steps a second"""
    control_rate: int = 100
    """actions a second"""
    integrator: Literal["euler", "rk4"] = "euler"
    """semi-implicit Euler or fourth-order Runge-Kutta"""
    time_limit: float = 20.0
    """seconds of an episode"""
    train_time_limit: float = 0.0
    """if positive, an episode in training is cut off at a random time before this, so that starts are practiced more"""
    max_gate_distance: float = 20.0
    """distance from the next gate at which an episode ends, m"""
    start: Start = Start()
    """where and how a drone starts"""
    gate_margin: float = 0.0
    """radius added to the drone at gates in training, so that it keeps clear of their frames, m"""
    terminate_on_miss: bool = True
    """whether passing beside a gate ends the episode"""
    reward: RaceReward = RaceReward()
    """weights of the reward's terms"""
    smooth: SmoothRaceReward = SmoothRaceReward()
    """weights of the smooth surrogate of the reward, for learners that differentiate the physics"""
    randomize: Randomization = Randomization()
    """what differs between worlds"""
    sensor_noise: SensorNoise = SensorNoise()
    """standard deviations of what the drone measures"""
    # No setting: `derive` sets it.
    placed: tuple[Gate, ...] = field(init=False, default=())
    """gates of a track from a file as arguments of a program"""

    def __post_init__(self) -> None:
        if self.gate_poses:
            check_spacing(list(self.gate_poses), self.track)
        elif not self.track.endswith(".json"):
            require_choice("track", self.track, TRACKS)
        require_choice("vehicle", self.vehicle, VEHICLES)
        require_choice("control mode", self.control_mode, CONTROL_MODES)
        require_choice("observation", self.observation, ("body", "isaac_drone_racer"))
        require_choice("action space", self.action_space, ("box", "discrete", "multidiscrete"))
        require_choice("controller", self.controller, ("simple", "px4"))
        require_choice("integrator", self.integrator, ("euler", "rk4"))
        require_choice("start mode", self.start.mode, ("gates", "line", "grid"))
        if min(self.physics_rate, self.control_rate) < 1 or self.physics_rate % self.control_rate:
            raise ValueError(
                f"physics at {self.physics_rate} Hz is not a whole multiple of control at {self.control_rate} Hz"
            )
        if not 1 <= self.agents <= 64:
            raise ValueError(f"a track holds 1 to 64 drones, not {self.agents}")
        if self.action_levels < 2:
            raise ValueError("action_levels must be at least 2")
        if self.camera.on and (self.agents > 1 or self.observation != "body"):
            raise ValueError("a racing drone with a camera flies alone, with observation=body")
        if self.observation != "body" and self.agents > 1:
            raise ValueError(f"{self.observation} observes only one drone; use observation=body for several")
        if self.time_limit <= 0.0 or self.gate_margin < 0.0:
            raise ValueError("time_limit must be positive and gate_margin not negative")
        if self.quadrotor.radius + self.gate_margin >= OPENING / 2:
            with_margin = f" with a margin of {self.gate_margin:g} m" if self.gate_margin else ""
            raise ValueError(f"the {self.vehicle} does not fit through a gate{with_margin}")

    # Parts

    @property
    def course(self) -> AnyTrack:
        if self.placed:
            return PlacedTrack(self.placed)
        if self.gate_poses:
            return Track(self.gate_poses)
        return GeneratedTrack(self.gates) if self.track == "generated" else TRACKS[self.track]

    def with_files(self) -> "Racing":
        """The race with the track of its file."""
        path = Path(self.track)
        if not self.track.endswith(".json") or self.gate_poses:
            return self
        return replace(self, track=path.stem, gate_poses=read_track(path))

    def data(self) -> Float[np.ndarray, "gates 5"] | None:
        """The gates of a track from a file: training for one track after the other then needs one program."""
        if not self.gate_poses:
            return None
        return np.array([[*gate.center.parts, gate.cos, gate.sin] for gate in self.course.gates(())], np.float32)

    def with_data(self, data: Float[Array, "gates 5"] | None) -> "Racing":
        if data is None:
            return self
        return derive(self, placed=tuple(Gate(Vec3(row[0], row[1], row[2]), row[3], row[4]) for row in data))

    @cached_property
    def quadrotor(self) -> Quadrotor:
        """The vehicle of the fast model."""
        return replace(self.fitted.apply(VEHICLES[self.vehicle]), integrator=self.integrator)

    @cached_property
    def control(self) -> ControlMode:
        return self.fitted.rate_control if self.control_mode == "body_rates" else CONTROL_MODES[self.control_mode]

    @cached_property
    def autopilot(self) -> Px4Controller | None:
        """PX4's controller, as the owner of this vehicle would set it up."""
        if self.controller == "simple":
            return None
        return Px4Controller(rate=float(self.physics_rate)).tuned_for(self.airframe)

    @cached_property
    def flight(self) -> ControlledFlight:
        substeps = self.physics_rate // self.control_rate
        return ControlledFlight(self.quadrotor, self.control, self.autopilot, self.physics_rate, substeps)

    @property
    def control_dt(self) -> float:
        return 1.0 / self.control_rate

    @property
    def levels(self) -> Levels:
        """Values that a discrete action chooses from."""
        return (tuple(2.0 * k / (self.action_levels - 1) - 1.0 for k in range(self.action_levels)),) * 4

    @cached_property
    def spec(self) -> Spec:
        space = action_space(self.action_space, self.levels)
        if self.camera.on:
            return Spec(
                CAMERA_SIZE,
                space,
                self.control_dt,
                image_shape=self.camera.image_shape,
                image_interval=self.camera.interval,
                privileged_size=STATE_SIZE,
            )
        size = STATE_SIZE + OTHER_SIZE * (self.agents > 1) if self.observation == "body" else ISAAC_SIZE
        return Spec(size, space, self.control_dt, self.agents)

    @property
    def description(self) -> str:
        camera = f", by a {self.camera.kind} camera" if self.camera.on else ""
        return f"racing on the track ‘{self.track}’{camera}"

    @property
    def commands_kept(self) -> int:
        """How many of the last commands are kept: those that may still be under way, and one to compare with."""
        return max(1 + self.randomize.max_action_delay, 2 if self.reward.action_rate else 1)

    def for_evaluation(self) -> "Racing":
        """Episodes run their full time, and gates are as wide as they are."""
        return replace(self, train_time_limit=0.0, gate_margin=0.0)

    # Flying

    def reset(self, rng: Rng) -> RaceState:
        return reset.reset(self, rng)

    def step(self, state: RaceState, action: Array) -> RaceState:
        """Fly for one control period, then judge it."""
        state, command = self.command(state, action)
        return self.judge(state, self.move(state, command))

    def command(self, state: RaceState, action: Array) -> tuple[RaceState, NormalizedCommand]:
        """The state that remembers the action, and the command the vehicle gets: perhaps an older one."""
        newest = vmap_agents(self.agents, self.decode_action)(action)
        recent = (newest, *state.progress.recent_commands)[: self.commands_kept]
        gust, rng = self._step_gust(state)
        state = replace(state, progress=replace(state.progress, recent_commands=recent, gust=gust), rng=rng)
        late = recent[0]
        if state.world.action_delay is not None:
            for age, command in enumerate(recent):
                late = jax.tree.map(partial(jnp.where, state.world.action_delay == age), command, late)
        return state, late

    def decode_action(self, action: Array) -> NormalizedCommand:
        """The command that an action of the action space stands for."""
        return NormalizedCommand(*self.spec.action.decode(action, self.levels))

    def _step_gust(self, state: RaceState) -> tuple[Vec3 | None, Rng]:
        """Gusts after one more step: an Ornstein-Uhlenbeck process of standard deviation `gust_std`."""
        # The stream goes on even in still air: sensor noise depends on it.
        rng, parts = state.rng.bits()[1], []
        if state.progress.gust is None:
            return None, rng
        keep = math.exp(-self.control_dt / self.randomize.gust_time_constant)
        for old in state.progress.gust.parts:
            kick, rng = rng.normal(self.randomize.gust_std * math.sqrt(1.0 - keep**2))
            parts.append(keep * old + kick)
        return Vec3(*parts), rng

    def move(self, state: RaceState, command: NormalizedCommand) -> QuadrotorState:
        """Where the fast model takes the drones in one control period."""
        fly = partial(self._step_physics, wind=state.world.wind)
        return vmap_agents(self.agents, fly)(state.body, command, state.progress.gust, state.world.randomization)

    def _step_physics(
        self,
        drone: QuadrotorState,
        command: NormalizedCommand,
        gust: Vec3 | None,
        randomization: PhysicsRandomization,
        wind: Vec3 | None,
    ) -> QuadrotorState:
        air = gust if wind is None else wind if gust is None else wind + gust
        if self.fitted.thrust != 1.0:
            randomization = replace(randomization, thrust=scaled(self.fitted.thrust, randomization.thrust))

        return self.flight.step(drone, command, air, randomization)

    def judge(self, state: RaceState, body: QuadrotorState) -> RaceState:
        return rewards.judge(self, state, body)

    # Differentiating

    def differentiable_state(self, state: RaceState) -> tuple[QuadrotorState, tuple[NormalizedCommand, ...]]:
        return state.body, state.progress.recent_commands

    def with_differentiable_state(
        self, state: RaceState, part: tuple[QuadrotorState, tuple[NormalizedCommand, ...]]
    ) -> RaceState:
        body, commands = part
        return replace(state, body=body, progress=replace(state.progress, recent_commands=commands))

    def smooth_reward(self, before: RaceState, after: RaceState) -> Float[Array, "*agents"]:
        return rewards.smooth_reward(self, before, after)

    # Observing

    def observe(self, state: RaceState) -> Float[Array, "*agents features"]:
        return observation.observe(self, state)

    def image(self, state: RaceState) -> PackedImage:
        return observation.image(self, state)

    def privileged_observation(self, state: RaceState) -> Float[Array, "features"]:
        """Where the next gates are: what a drone with a camera does not know, for its critic."""
        return replace(self, camera=CameraSettings()).observe(state)

    # On another plant

    @property
    def airframe(self) -> Quadrotor:
        """The nominal vehicle: what a fit found is about the fast model only."""
        return VEHICLES[self.vehicle]

    @property
    def limit_vehicle(self) -> Quadrotor:
        return self.airframe

    def without_controller(self) -> "Racing":
        return replace(self, controller="simple")

    def vehicle_states(self, state: RaceState) -> QuadrotorState:
        return state.body

    def setpoints(self, state: RaceState, command: NormalizedCommand) -> Setpoint:
        return vmap_agents(self.agents, partial(self.control.setpoint, self.airframe))(state.body, command)

    def wind_at(self, state: RaceState) -> Vec3:
        still = jax.tree.map(jnp.zeros_like, state.body.position)
        parts = [wind for wind in (state.world.wind, state.progress.gust) if wind is not None]
        return jax.tree.map(lambda *x: sum(x[1:], x[0]), still, *parts)

    def randomization(self, state: RaceState) -> PhysicsRandomization:
        return state.world.randomization

    def body_from_vehicles(
        self, state: RaceState, command: NormalizedCommand, vehicles: QuadrotorState
    ) -> QuadrotorState:
        return vehicles

    def collision_scene(self, state: RaceState) -> Scene:
        return race_scene(self.course.gates(state.world.gates))

    def fit_model(self) -> RateModel:
        if self.control_mode != "body_rates":
            raise ValueError("a race is fitted by thrust and body rates: choose a preset with control_mode=body_rates")
        return RateModel(self.airframe, self.control_dt, self.physics_rate // self.control_rate)

    def with_fit(self, parameters: dict[str, float], variation: dict[str, float], limits: dict[str, float]) -> "Racing":
        varied = {name: variation[name] for name in ("thrust", "motor_lag", "drag")}
        return replace(self, fitted=replace(self.fitted, **parameters), randomize=replace(self.randomize, **varied))

    # Reporting

    def episode_metrics(self, state: RaceState) -> dict[str, Float[Array, "*agents"]]:
        race = state.progress
        done = jnp.asarray(race.first_lap > 0.0)
        counts = jnp.bool_(True)
        if state.world.time_limit is not None:
            # Only an episode that may last long enough for a lap counts, whether it ended early or not: crashes
            # always end early.
            counts = state.world.time_limit >= LONG_ENOUGH * max(self.train_time_limit, SHORTEST_LAP)
        return {
            "success": jnp.where(counts, done, jnp.nan),
            "episode_return": jnp.asarray(race.episode_return),
            "lap_time": jnp.where(done, race.first_lap, jnp.nan),
            "flying_lap": jnp.where(race.best_lap > 0.0, race.best_lap, jnp.nan),
            "gates": race.passed.astype(jnp.float32),
            "crash": jnp.asarray(race.crashed, jnp.float32),
            "miss": jnp.asarray(race.missed, jnp.float32),
        }

    def record(self, state: RaceState) -> dict[str, Array]:
        drone, race = state.body, state.progress
        q = drone.attitude
        return {
            "position": jnp.stack(drone.position.parts, -1),
            "attitude": jnp.stack([q.w, q.x, q.y, q.z], -1),
            "velocity": jnp.stack(drone.velocity.parts, -1),
            "rates": jnp.stack(drone.rates.parts, -1),
            "command": jnp.stack(race.recent_commands[0].parts, -1),
            "reward": state.reward,
            "next_gate": race.next_gate,
            "passed": race.passed,
        }

    def world_record(self, state: RaceState) -> dict[str, Array]:
        """The gates of this world: x, y, z of the center, and cosine and sine of the heading."""
        gates = self.course.gates(state.world.gates)
        rows = [jnp.stack([jnp.asarray(x) for x in (*g.center.parts, g.cos, g.sin)]) for g in gates]
        return {"gates": jnp.stack(rows)}

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        laps, flying = metrics["lap_time"], metrics["flying_lap"]
        known, flown = laps[np.isfinite(laps)], flying[np.isfinite(flying)]
        return {
            "lap_time_mean": float(np.mean(known)) if known.size else math.nan,
            "lap_time_std": float(np.std(known)) if known.size else math.nan,
            "lap_time_best": float(np.min(known)) if known.size else math.nan,
            "flying_lap_mean": float(np.mean(flown)) if flown.size else math.nan,
            "gates_per_episode": float(np.mean(metrics["gates"])),
            "crash_rate": float(np.mean(metrics["crash"])),
            "miss_rate": float(np.mean(metrics["miss"])),
        }
