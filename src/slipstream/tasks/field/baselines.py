"""Scripts: one that knows where everything is, and one that follows rows by what its lidar measures."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array

from ...core.geometry import Flag, Vec2, wrap_angle
from ...dynamics.rover import ACKERMANN, CRAB
from . import course
from .row_follower import CELLS, row_follower
from .rows import lane_center
from .state import FieldState

if TYPE_CHECKING:
    from .task import Field

CLEAR = 0.62
"""How far beyond the ends of rows a robot drives along them, m."""
LOOK_AHEAD = 0.25
"""How far ahead along the lane the point lies for which the one that knows the truth steers, m."""
STRIDE = 0.4
"""How far to the side that point lies at most, m."""
SLACK = 0.15
"""Angle by which wheels may fall short of a direction before they turn round to drive the other way, rad."""
AIM = math.radians(20.0)
"""A robot drives when its wheels point to within this angle of where they should, rad."""


def truth(task: "Field", state: FieldState) -> Array:
    """Along the middle of the lane and around the ends of rows, by the true positions of robot and plants."""
    world, progress, body = state.world, state.progress, state.body
    length = world.rows.length
    turning = progress.stage > course.legs(world)
    # How far the robot is along the lane, counted from its entrance, and how far beside its middle.
    done = course.along(world, progress.turns, body.position.x)
    aside = body.position.y - lane_center(task.crop, world.rows, progress.lane, body.position.x)
    leaving = turning & (done < length + CLEAR - 0.1) & (jnp.abs(aside) < 0.3)
    crossing = turning & ~leaving
    arriving = ~turning & (done < -0.1) & (jnp.abs(aside) > 0.1)
    ahead = jnp.where(turning, length + CLEAR, jnp.where(arriving, -CLEAR, done + LOOK_AHEAD))
    x = course.along(world, progress.turns, ahead)
    lane = progress.lane + jnp.where(crossing, world.queue.lane_change(progress.turns), 0)
    # Toward a point nearby, so that a slope that pulls the robot back to the rows is noticed.
    step = jnp.clip(lane_center(task.crop, world.rows, lane, x) - body.position.y, -STRIDE, STRIDE)
    goal = Vec2(x, body.position.y + step)
    due = progress.due + jnp.where(turning, world.queue.rows_of(progress.turns), 0)
    return drive(task, state, (goal - body.position).turned(-body.yaw), progress.advanced < due)


def follow_rows(task: "Field", state: FieldState) -> Array:
    """By line fit and a state machine, without knowing any true position."""
    return drive(task, state, *row_follower(task, state))


def drive(task: "Field", state: FieldState, way: Vec2, advance: Flag, memory: Sequence[Array] = ()) -> Array:
    """The action that drives toward a point in the frame of the body, and changes queue and memory as told."""
    body, rover = state.body, task.rover
    bearing = jnp.arctan2(way.y, way.x)
    if task.steering == "ackermann":
        # Pure pursuit: the circle through the point. Behind the robot, the tightest one.
        curvature = 2.0 * jnp.sin(bearing) / jnp.maximum(way.norm(), 0.1)
        wheel = jnp.where(
            jnp.abs(bearing) > 0.5 * math.pi, jnp.sign(bearing) * 2.0, jnp.arctan(rover.half_length * curvature)
        )
        target = jnp.clip(wheel / rover.max_curve_steering, -1.0, 1.0) * rover.max_steering
        forward = 1.0
    else:
        # Wheels turn by a quarter to either side: sideways, whichever of forward and backward needs less of a turn.
        astern = wrap_angle(bearing + math.pi)
        costs = [
            jnp.abs(wheel - body.steering) + jnp.where(jnp.abs(wheel) > rover.max_steering + SLACK, 10.0, 0.0)
            for wheel in (bearing, astern)
        ]
        forward = jnp.where(costs[0] <= costs[1], 1.0, -1.0)
        target = jnp.where(costs[0] <= costs[1], bearing, astern)
    error = jnp.clip(target, -rover.max_steering, rover.max_steering) - body.steering
    steer = jnp.clip(jnp.round(error / task.steering_step), -1.0, 1.0)
    throttle = jnp.where(jnp.abs(error) < AIM, forward, 0.0)
    pressed = jnp.where(advance & ~state.progress.controls.advance, 1.0, -1.0)
    mode = [jnp.float32((ACKERMANN if task.steering == "ackermann" else CRAB) - 1)] if task.steering == "all" else []
    idle = [jnp.zeros_like(error)] * (task.memory_cells - len(memory))
    return task.spec.action.encode([steer, throttle, *mode, pressed, *memory, *idle], task.levels)


def baselines(task: "Field") -> dict[str, Callable[["Field", FieldState], Array]]:
    """The scripts that can drive this robot. The row follower needs memory, and wheels that can be parallel."""
    able = task.steering != "ackermann" and task.memory_cells >= CELLS and task.memory_step > 0.0
    return {"truth": truth} | ({"row follower": follow_rows} if able else {})
