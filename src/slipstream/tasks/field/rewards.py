"""What a step is worth, and when an episode ends."""

from dataclasses import replace
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ...core.geometry import Flag, Vec2
from ...dynamics.rover import RoverState
from .course import follow, queue_error
from .rows import plants_near
from .state import FieldState

if TYPE_CHECKING:
    from .task import Field


def judge(task: "Field", state: FieldState, body: RoverState) -> FieldState:
    """The state once the robot is there."""
    step, reward = state.step + 1, task.reward
    progress, reached, closer = follow(task, state, body)
    touched = touches(task, state, body)
    finished = progress.finished & ~touched
    over = touched | progress.lost | finished
    late = (step.astype(jnp.float32) * task.control_dt >= task.time_limit - 1e-4) & ~over
    earned = (
        reward.step
        + reward.progress * closer
        + reward.waypoint * reached
        + reward.finish * finished
        + task.penalty * reward.touch * touched
        + task.penalty * reward.lost * (progress.lost & ~touched)
        + reward.late * late
        + reward.distance * jnp.maximum(progress.distance - 0.1, 0.0)
        + reward.command * queue_error(state.world, progress)
    )
    velocity, _ = task.rover.twist(body)
    driven = velocity * task.control_dt
    progress = replace(
        progress,
        touched=touched,
        finished=finished,
        odometry=progress.odometry + driven,
        episode_return=progress.episode_return + earned,
    )
    return replace(
        state,
        body=body,
        progress=progress,
        rng=state.rng.bits()[1],
        step=step,
        reward=earned,
        terminated=over,
        truncated=late,
    )


def touches(task: "Field", state: FieldState, body: RoverState) -> Flag:
    """Whether the robot touches a plant."""
    reach = task.rover.radius + task.crop.plant_radius
    touched = jnp.bool_(False)
    for plant in plants_near(task.crop, state.world.rows, body.position, task.rover.radius):
        gap: Vec2 = plant - body.position
        touched = touched | (gap.dot(gap) < reach * reach)
    return touched
