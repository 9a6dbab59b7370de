"""Marine navigation: its settings, and how vessels sail to their goals among buoys, vortices and each other."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import require_choice
from ...core.geometry import Scalar, Vec2
from ...core.rng import Rng
from ...core.spaces import Levels, action_space
from ...core.task import ObstacleDistance, Spec, Task, derive
from ...dynamics.vessel import VESSELS, TwinThrusterVessel, VesselModel, VesselState
from . import reset, rewards, sensing
from .baselines import BASELINES
from .sensing import BEAM_SIZE, BEAMS, OBSTACLE_SIZE
from .settings import Curriculum, MarineReward, SmoothMarineReward
from .state import ACTION_LEVELS, THRUST_RATE, MarineState, MarineWorld, Obstacle


@dataclass(frozen=True)
class Marine(Task[MarineState]):
    """Sail to a goal among other vessels, buoys and vortices. By default five WAM-V and four buoys, under COLREGs."""

    report: ClassVar[str] = "slipstream.tasks.marine.report"
    wide_vectors: ClassVar[bool] = False

    vessels: int = 5
    """vessels in each world, 1 to 16"""
    buoys: int = 4
    """buoys in each world, up to 32"""
    vehicle: Literal["wamv", "wamv-original", "point"] = "wamv"
    """wamv: two thrusters and inertia; wamv-original: the same, but turns count twice, as in the original model;
    point: commanded by acceleration and turn rate"""
    action_space: Literal["box", "discrete", "multidiscrete"] = "box"
    """actions as real numbers, as one choice, or as one choice for each component"""
    sensing: Literal["obstacles", "sonar"] = "obstacles"
    """what a vessel observes around it: the nearest obstacles, or eleven sonar beams ahead"""
    max_obstacles: int = 5
    """how many of the nearest obstacles a vessel observes"""
    sensor_range: float = 20.0
    """largest distance at which an obstacle is observed, m"""
    sensor_noise: float = 0.05
    """standard deviation of measured positions (m) and velocities (m/s); if positive, measured radii vary too"""
    colregs: bool = True
    """whether the reward follows the COLREGs, the rules of the road at sea"""
    arena_size: float = 55.0
    """edge of the square in which starts and goals lie, m"""
    min_goal_distance: float = 40.0
    """smallest distance from start to goal, m"""
    min_separation: float = 10.0
    """smallest distance between two starts, and between two goals, m"""
    buoy_radius: tuple[float, float] = (1.0, 1.0)
    """smallest and largest radius of a buoy, m"""
    vortices: int = 0
    """vortices in each world"""
    vortex_speed: tuple[float, float] = (5.0, 10.0)
    """smallest and largest speed of the water at the edge of a vortex core, m/s"""
    time_limit: float = 200.0
    """seconds of an episode"""
    train_time_limit: float = 60.0
    """seconds of an episode in training: a world restarts only when its last vessel has ended"""
    control_dt: float = 0.5
    """seconds between two actions"""
    substeps: int = 10
    """physics steps for each action"""
    goal_radius: float = 2.0
    """distance at which a goal is reached, m"""
    reward: MarineReward = MarineReward()
    """weights of the reward's terms"""
    smooth: SmoothMarineReward = SmoothMarineReward()
    """smooth surrogate of the reward, for learners that differentiate the physics"""
    curriculum: Curriculum = Curriculum()
    """the easier worlds that a training starts with"""
    # Not settings: `derive` sets them, and `dataclasses.replace` resets them. Change settings first, then derive.
    stage: Scalar = field(init=False, default=1.0)
    """how far the curriculum has come, from 0 to 1"""
    training: bool = field(init=False, default=True)
    """whether worlds vary in their numbers of vessels and buoys, and `train_time_limit` applies"""

    def __post_init__(self) -> None:
        require_choice("vehicle", self.vehicle, VESSELS)
        require_choice("action space", self.action_space, ("box", "discrete", "multidiscrete"))
        require_choice("sensing", self.sensing, ("obstacles", "sonar"))
        if not 1 <= self.vessels <= 16 or not 0 <= self.buoys <= 32:
            raise ValueError(f"a world has 1 to 16 vessels and up to 32 buoys, not {self.vessels} and {self.buoys}")
        if not min(self.time_limit, self.train_time_limit, self.control_dt, self.goal_radius) > 0.0:
            raise ValueError("time_limit, train_time_limit, control_dt and goal_radius must be positive")
        if self.sensor_range <= 0.0 or not self.sensor_noise >= 0.0:
            raise ValueError("sensor_range must be positive and sensor_noise not negative")
        if self.max_obstacles < 1 or self.vortices < 0 or self.substeps < 1:
            raise ValueError("max_obstacles and substeps must be at least 1, vortices not negative")
        if self.min_goal_distance > self.arena_size:
            raise ValueError(
                f"a min_goal_distance of {self.min_goal_distance:g} m does not fit into an arena_size of "
                f"{self.arena_size:g} m"
            )

    # Parts

    @property
    def description(self) -> str:
        who = "a vessel on its way to its goal" if self.vessels == 1 else f"{self.vessels} vessels on their way"
        around = [f"{count} {name}" for count, name in ((self.buoys, "buoys"), (self.vortices, "vortices")) if count]
        among = f" among {' and '.join(around)}" if around else ""
        by = ", by sonar" if self.sensing == "sonar" else ""
        return f"{who}{among}{', under the rules of the road' if self.colregs else ''}{by}"

    @property
    def dynamics(self) -> VesselModel:
        """The equations of motion of a vessel."""
        return VESSELS[self.vehicle]

    @property
    def levels(self) -> Levels:
        """Values that a discrete action chooses from."""
        return (ACTION_LEVELS[type(self.dynamics)],) * 2

    @cached_property
    def spec(self) -> Spec:
        space = action_space(self.action_space, self.levels)
        own = 7 if isinstance(self.dynamics, TwinThrusterVessel) else 4
        if self.sensing == "sonar":
            return Spec(
                own + BEAM_SIZE * BEAMS,
                space,
                self.control_dt,
                self.vessels,
                obstacle_distance=ObstacleDistance(BEAMS, BEAM_SIZE, self.sensor_range, self.sensor_range),
            )
        return Spec(
            own + OBSTACLE_SIZE * self.max_obstacles,
            space,
            self.control_dt,
            self.vessels,
            entities=(self.max_obstacles, OBSTACLE_SIZE),
            obstacle_distance=ObstacleDistance(
                self.max_obstacles, OBSTACLE_SIZE, 20.0, self.sensor_range, radius_column=4, radius_unit=0.3
            ),
        )

    def for_evaluation(self) -> "Marine":
        """All vessels and buoys in every world, and the full time limit."""
        return derive(self, training=False, stage=1.0)

    def at_progress(self, progress: Scalar) -> "Marine":
        """The task after that fraction of a training: the curriculum takes its first half."""
        return derive(self, stage=jnp.minimum(2.0 * progress, 1.0))

    # Sailing

    def reset(self, rng: Rng) -> MarineState:
        return reset.reset(self, rng)

    def step(self, state: MarineState, action: Array) -> MarineState:
        """Sail for one control period, then judge it."""
        state, command = self.command(state, action)
        return self.judge(state, self.move(state, command))

    def command(self, state: MarineState, action: Array) -> tuple[MarineState, Vec2]:
        """The state that remembers the command, and the command: two numbers between −1 and 1."""
        command = Vec2(*self.spec.action.decode(action, self.levels))
        return replace(state, progress=replace(state.progress, command=command)), command

    def move(self, state: MarineState, command: Vec2) -> VesselState:
        """Where the vessels are after one control period."""
        boat, dynamics, dt = state.body, self.dynamics, self.control_dt / self.substeps

        @jax.jit
        def substep(boat: VesselState, command: Vec2) -> VesselState:
            current = self._current(state.world, boat.position)
            if isinstance(dynamics, TwinThrusterVessel):
                return dynamics.step(boat, current, dt)
            acceleration, turn_rate = dynamics.max_acceleration * command.x, dynamics.max_turn_rate * command.y
            return dynamics.step(boat, acceleration, turn_rate, current, dt)

        change = THRUST_RATE * self.control_dt
        for k in range(self.substeps):
            # In the original a command reaches the thrusters one substep late.
            if isinstance(dynamics, TwinThrusterVessel) and k == min(dynamics.original_kinematics, self.substeps - 1):
                boat = dynamics.change_thrust(boat, change * command.x, change * command.y)
            boat = jax.lax.optimization_barrier(substep(boat, command))
        return boat

    def _current(self, world: MarineWorld, position: Vec2) -> Vec2:
        return Vec2(0.0, 0.0) if world.vortices is None else world.vortices.velocity(position)

    def judge(self, state: MarineState, body: VesselState) -> MarineState:
        return rewards.judge(self, state, body)

    # Differentiating

    def differentiable_state(self, state: MarineState) -> VesselState:
        return state.body

    def with_differentiable_state(self, state: MarineState, part: VesselState) -> MarineState:
        return replace(state, body=part)

    def smooth_reward(self, before: MarineState, after: MarineState) -> Float[Array, "*agents"]:
        return rewards.smooth_reward(self, before, after)

    # Observing

    def observe(self, state: MarineState) -> Float[Array, "*agents features"]:
        return sensing.observe(self, state)

    def obstacles(self, state: MarineState, boat: VesselState) -> list[Obstacle]:
        return sensing.obstacles(self, state, boat)

    def measured_obstacles(self, state: MarineState) -> list[Obstacle]:
        return sensing.measured_obstacles(self, state)

    # Reporting

    def episode_metrics(self, state: MarineState) -> dict[str, Float[Array, "*agents"]]:
        progress = state.progress
        return {
            "success": jnp.asarray(progress.reached, jnp.float32),
            "episode_return": jnp.asarray(progress.episode_return),
            "crash": jnp.asarray(progress.collided, jnp.float32),
            "duration": jnp.where(progress.reached, progress.time, jnp.nan),
            "energy": jnp.where(progress.reached, progress.energy, jnp.nan),
            "give_way_time": jnp.asarray(progress.give_way_time),
        }

    def record(self, state: MarineState) -> dict[str, Array]:
        boat = state.body
        return {
            "position": jnp.stack([boat.position.x, boat.position.y, 0.0 * boat.yaw], -1),
            "velocity": jnp.stack([boat.velocity_w.x, boat.velocity_w.y, 0.0 * boat.yaw], -1),
            "yaw": jnp.asarray(boat.yaw),
            "thrust": jnp.stack([boat.left, boat.right], -1),
            "required_turn": jnp.asarray(state.progress.required_turn),
            "collided": jnp.asarray(state.progress.collided),
            "reward": state.reward,
            "ended": state.ended,
        }

    def world_record(self, state: MarineState) -> dict[str, Array]:
        """Goals (x, y), buoys (x, y, radius) and vortices (x, y, strength)."""
        world = state.world
        record = {
            "goal": jnp.stack([world.goal.x, world.goal.y], -1),
            "buoys": jnp.stack([world.buoys.x, world.buoys.y, world.buoy_radii], -1),
        }
        if world.vortices is not None:
            record["vortices"] = jnp.stack([world.vortices.x, world.vortices.y, world.vortices.strength], -1)
        return record

    def baselines(self) -> dict[str, Callable[[MarineState], Array]]:
        """Classical planners on the same worlds."""
        return {name: partial(script, self) for name, script in BASELINES.items()}

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Means over all vessels, and the fraction of worlds in which every vessel reached its goal."""
        success = np.asarray(metrics["success"]).reshape(-1, self.vessels)
        return {
            "all_reach": float(np.mean(np.all(success > 0.5, axis=1))),
            "crash_rate": _mean(metrics["crash"]),
            "duration_mean": _mean(metrics["duration"]),
            "energy_mean": _mean(metrics["energy"]),
            "give_way_time_mean": _mean(metrics["give_way_time"]),
        }


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan
