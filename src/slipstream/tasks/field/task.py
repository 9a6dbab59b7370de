"""The field robot: its settings, and how it drives through crop rows in the order that its queue of commands asks."""

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
from ...core.geometry import Scalar
from ...core.rng import Rng
from ...core.spaces import Levels, action_space
from ...core.task import Spec, Task, derive
from ...dynamics.rover import ACKERMANN, CRAB, Rover, RoverState
from ...sensors.lidar import Lidar
from . import course, reset, rewards, sensing
from .baselines import baselines
from .rows import all_plants
from .settings import Crop, FieldReward, Terrain
from .state import Controls, FieldState

THREE, TWO = (-1.0, 0.0, 1.0), (-1.0, 1.0)
"""Values that a component of a discrete action chooses from."""
GROWTH = 0.3, 0.6
"""Fractions of a training between which penalties grow."""


@dataclass(frozen=True)
class Field(Task[FieldState]):
    """Drive through crop rows without touching a plant. At the end of each lane a command tells where to turn in."""

    report: ClassVar[str] = "slipstream.tasks.field.report"
    progress_bar: ClassVar[Mapping[str, str]] = {"success": "success {:.0%}", "lanes": "{:.1f} lanes"}

    lanes: int = 8
    """lanes to drive, 1 to 16"""
    max_rows: int = 1
    """most rows that a command goes on, 1 to 4"""
    steering: Literal["crab", "ackermann", "all"] = "crab"
    """crab: all wheels parallel; ackermann: along curves; all: each action also chooses between crab, ackermann and
    turning on the spot"""
    action_space: Literal["multidiscrete", "discrete", "box"] = "multidiscrete"
    """actions as one choice for each component, as one choice, or as real numbers"""
    memory_cells: int = 4
    """numbers that the robot writes and observes, for policies without a memory of their own"""
    odometry: bool = False
    """observe how far the wheels have driven since the button was pressed last, forward and to the left: what the
    script that follows rows goes by"""
    privileged: bool = False
    """observe what otherwise only a critic observes, too; for teachers of robots that do not"""
    crop: Crop = Crop()
    """how plants stand"""
    terrain: Terrain = Terrain()
    """how the ground differs between worlds"""
    lidar: Lidar = Lidar()
    """the sensor"""
    rover: Rover = Rover()
    """the robot"""
    control_rate: int = 10
    """actions a second"""
    substeps: int = 4
    """physics steps for each action"""
    steering_step: float = math.radians(15.0)
    """change of the steering angle by one action, rad"""
    memory_step: float = 0.1
    """change of a memory cell by one action"""
    time_limit: float = 150.0
    """seconds of an episode"""
    lost_distance: float = 1.0
    """how much farther from its waypoint than at first a robot has lost its way, m"""
    midway_starts: float = 0.75
    """fraction of worlds that start somewhere along the way, in training"""
    reward: FieldReward = FieldReward()
    """weights of the reward's terms"""
    # Not a setting: `for_evaluation` sets it.
    training: bool = field(init=False, default=True)
    """whether worlds may start along the way"""
    # Not a setting: `at_progress` sets it.
    penalty: Scalar = field(init=False, default=1.0)
    """factor on the penalties"""

    def __post_init__(self) -> None:
        require_choice("steering", self.steering, ("crab", "ackermann", "all"))
        require_choice("action space", self.action_space, ("multidiscrete", "discrete", "box"))
        if not 1 <= self.lanes <= 16 or not 1 <= self.max_rows <= 4:
            raise ValueError(f"a robot drives 1 to 16 lanes, 1 to 4 rows apart, not {self.lanes} and {self.max_rows}")
        if not 0 <= self.memory_cells <= 8:
            raise ValueError(f"there are up to 8 memory cells, not {self.memory_cells}")
        if min(self.control_rate, self.substeps) < 1 or not self.time_limit > 0.0:
            raise ValueError("control_rate and substeps must be at least 1, and time_limit positive")
        if not min(self.lost_distance, self.steering_step) > 0.0 or self.memory_step < 0.0:
            raise ValueError("lost_distance and steering_step must be positive, memory_step not negative")
        if not 0.0 <= self.midway_starts <= 1.0:
            raise ValueError(f"midway_starts is a fraction, not {self.midway_starts:g}")

    # Parts

    @property
    def description(self) -> str:
        return f"a rover in crop rows, {self.lanes} lanes by commands"

    @property
    def control_dt(self) -> float:
        return 1.0 / self.control_rate

    @property
    def levels(self) -> Levels:
        """Values that a discrete action chooses from."""
        modes = (THREE,) if self.steering == "all" else ()
        return (THREE, THREE, *modes, TWO, *(TWO,) * self.memory_cells)

    @cached_property
    def spec(self) -> Spec:
        told = sensing.PRIVILEGED_SIZE
        own, critic = (told, 0) if self.privileged else (0, told)
        space = action_space(self.action_space, self.levels)
        return Spec(sensing.size(self) + own, space, self.control_dt, privileged_size=critic)

    def for_evaluation(self) -> "Field":
        """Every world from the beginning."""
        return derive(self, training=False)

    def at_progress(self, progress: Float[Array, ""]) -> "Field":
        grown = jnp.clip((progress - GROWTH[0]) / (GROWTH[1] - GROWTH[0]), 0.0, 1.0)
        return derive(self, penalty=1.0 + (self.reward.penalty_growth - 1.0) * grown)

    # Driving

    def reset(self, rng: Rng) -> FieldState:
        return reset.reset(self, rng)

    def step(self, state: FieldState, action: Array) -> FieldState:
        state, controls = self.command(state, action)
        return self.judge(state, self.move(state, controls))

    def command(self, state: FieldState, action: Array) -> tuple[FieldState, Controls]:
        """The state in which queue and memory follow the action, and the controls."""
        steer, throttle, *rest = self.spec.action.decode(action, self.levels)
        if self.steering == "all":
            mode, *rest = rest
            mode = jnp.round(mode).astype(jnp.int32) + 1
        else:
            mode = jnp.int32(CRAB if self.steering == "crab" else ACKERMANN)
        controls = Controls(steer, throttle, mode, rest[0] > 0.0, tuple(rest[1:]))
        return replace(state, progress=course.press(self, state, controls)), controls

    def move(self, state: FieldState, command: Controls) -> RoverState:
        """Where the robot is after one control period."""
        dt, ground = self.control_dt / self.substeps, state.world.ground

        @jax.jit
        def substep(body: RoverState) -> RoverState:
            return self.rover.step(body, command.throttle, command.mode, ground, dt)

        body = self.rover.steer(state.body, command.steer * self.steering_step)
        for _ in range(self.substeps):
            body = jax.lax.optimization_barrier(substep(body))
        return body

    def judge(self, state: FieldState, body: RoverState) -> FieldState:
        return rewards.judge(self, state, body)

    # Observing

    def observe(self, state: FieldState) -> Float[Array, "features"]:
        seen = sensing.observe(self, state)
        return jnp.concatenate([seen, self.privileged_observation(state)]) if self.privileged else seen

    def privileged_observation(self, state: FieldState) -> Float[Array, "features"]:
        return sensing.privileged_observation(self, state)

    # Reporting

    def episode_metrics(self, state: FieldState) -> dict[str, Float[Array, ""]]:
        progress, time = state.progress, state.step.astype(jnp.float32) * self.control_dt
        success = progress.finished & ~progress.touched
        return {
            "success": jnp.asarray(success, jnp.float32),
            "episode_return": jnp.asarray(progress.episode_return),
            "lanes": jnp.asarray(progress.turns + progress.finished, jnp.float32),
            "touched": jnp.asarray(progress.touched, jnp.float32),
            "lost": jnp.asarray(progress.lost, jnp.float32),
            "duration": jnp.where(success, time, jnp.nan),
        }

    def record(self, state: FieldState) -> dict[str, Array]:
        body, progress = state.body, state.progress
        goal = course.waypoint(self, state.world, progress.turns, progress.stage, progress.lane)
        return {
            "position": jnp.stack([body.position.x, body.position.y, 0.0 * body.yaw], -1),
            "yaw": jnp.asarray(body.yaw),
            "wheel_angles": jnp.stack(body.angles.parts, -1),
            "speed": jnp.asarray(0.5 * (body.left + body.right)),
            "ranges": sensing.measured_ranges(self, state),
            "waypoint": jnp.stack([goal.x, goal.y], -1),
            "command": jnp.stack([progress.command, progress.rows_left, progress.advanced], -1),
            "memory": jnp.stack(progress.memory, -1) if progress.memory else jnp.zeros(0),
            "touched": jnp.asarray(progress.touched),
            "reward": state.reward,
        }

    def world_record(self, state: FieldState) -> dict[str, Array]:
        """Plants (x, y, whether there is one), the length of rows, and of each command its side and rows."""
        turns = jnp.arange(self.lanes - 1)
        queue = state.world.queue
        return {
            "plants": all_plants(self.crop, state.world.rows, (self.lanes - 1) * self.max_rows),
            "length": jnp.asarray(state.world.rows.length),
            "right": jnp.asarray(jax.vmap(queue.is_right)(turns)),
            "rows": jax.vmap(queue.rows_of)(turns),
        }

    def baselines(self) -> dict[str, Callable[[FieldState], Array]]:
        """Scripts on the same worlds."""
        return {name: partial(script, self) for name, script in baselines(self).items()}

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        duration = metrics["duration"]
        return {
            "touch_rate": float(np.nanmean(metrics["touched"])),
            "lost_rate": float(np.nanmean(metrics["lost"])),
            "lanes_mean": float(np.nanmean(metrics["lanes"])),
            "duration_mean": float(np.nanmean(duration)) if np.isfinite(duration).any() else math.nan,
        }
