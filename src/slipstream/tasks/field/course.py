"""The course through a field: waypoints along each lane and in the headlands, and the queue that tells of turns."""

from dataclasses import replace
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ...core.geometry import Flag, Scalar, Vec2
from ...dynamics.rover import RoverState
from .rows import lane_center
from .state import Controls, Count, FieldProgress, FieldState, FieldWorld

if TYPE_CHECKING:
    from .task import Field

MARGIN, HEADLAND = 0.4, 0.8
"""How far before its first lane a robot starts, and how far beyond the rows the waypoint of a turn lies, m."""
NEAR = 1e-4
"""What rounding may make of a line that is reached, m."""
SPACING = 1.9
"""Largest distance between two waypoints of a lane, m."""


def legs(world: FieldWorld) -> Count:
    """Waypoints of a lane, less one."""
    return jnp.ceil(world.rows.length / SPACING - 1e-3).astype(jnp.int32)


def is_turning(world: FieldWorld, progress: FieldProgress) -> Flag:
    """Whether the robot has left its lane and has not come half-way to the next one."""
    return progress.stage > legs(world)


def rows_end(task: "Field", world: FieldWorld) -> Scalar:
    """How far along a lane its rows have surely begun to end, m: with ragged ends nobody can see where they should."""
    return world.rows.length - task.crop.ragged_ends * task.crop.plant_spacing


def along(world: FieldWorld, turns: Count, distance: Scalar) -> Scalar:
    """The x coordinate that far along a lane, counted from its entrance: every second lane is driven backward."""
    return jnp.where(turns % 2 == 0, distance, world.rows.length - distance)


def waypoint(task: "Field", world: FieldWorld, turns: Count, stage: Count, lane: Count) -> Vec2:
    """Where the robot has to go next: along its lane from end to end, and half-way to the next one."""
    length, count = world.rows.length, legs(world)
    turning = stage > count
    x = along(world, turns, jnp.where(turning, length + HEADLAND, stage * (length / count)))
    aside = jnp.where(turning, 0.5 * world.queue.lane_change(turns), 0.0)
    return Vec2(x, lane_center(task.crop, world.rows, lane + aside, x))


def follow(task: "Field", state: FieldState, body: RoverState) -> tuple[FieldProgress, Flag, Scalar]:
    """The progress once the robot is there, whether it has reached its waypoint, and how much nearer it has come.

    A waypoint stands for a line across the lane, and in a headland for one along the rows: where a robot crosses it is
    its own affair.
    """
    world, was = state.world, state.progress
    goal = waypoint(task, world, was.turns, was.stage, was.lane)
    distance = (goal - body.position).norm()
    count = legs(world)
    turning = is_turning(world, was)
    end, done = rows_end(task, world), along(world, was.turns, body.position.x)
    line = jnp.minimum(was.stage * (world.rows.length / count), end)
    aside = body.position.y - lane_center(task.crop, world.rows, was.lane, body.position.x)
    in_lane = (jnp.abs(aside) < 0.5 * world.rows.spacing) & (done > line - NEAR)
    half_way = (done > end) & ((body.position.y - goal.y) * world.queue.lane_change(was.turns) > -NEAR)
    reached = jnp.where(turning, half_way, in_lane)
    turned = reached & turning
    finished = reached & (was.stage == count) & (was.turns == task.lanes - 1)
    turns = was.turns + turned
    stage = jnp.where(turned, 0, was.stage + reached)
    lane = was.lane + jnp.where(turned, world.queue.lane_change(was.turns), 0)
    next_distance = (waypoint(task, world, turns, stage, lane) - body.position).norm()
    progress = replace(
        was,
        turns=turns,
        stage=stage,
        lane=lane,
        leg=jnp.where(reached, next_distance, was.leg),
        distance=jnp.where(reached & ~finished, next_distance, distance),
        due=was.due + jnp.where(turned, world.queue.rows_of(was.turns), 0),
        lost=was.lost | (distance > was.leg + task.lost_distance),
        finished=was.finished | finished,
    )
    return progress, reached, was.distance - distance


def queue_error(world: FieldWorld, progress: FieldProgress) -> Count:
    """How often the queue was advanced too often, or too little. In a headland the row being passed may count."""
    turning = is_turning(world, progress)
    entering = (progress.stage == 0) & (progress.turns > 0)
    most = progress.due + jnp.where(turning, world.queue.rows_of(progress.turns), 0)
    least = progress.due - jnp.where(entering, world.queue.rows_of(progress.turns - 1), 0)
    return jnp.maximum(jnp.maximum(least - progress.advanced, progress.advanced - most), 0)


def press(task: "Field", state: FieldState, controls: Controls) -> FieldProgress:
    """The progress once the controls are set: the queue, which advances when the button goes down, and the memory."""
    was, queue = state.progress, state.world.queue
    pressed = controls.advance & ~was.controls.advance & (was.command < task.lanes - 1)
    through = pressed & (was.rows_left == 1)
    command = was.command + through
    rows_left = jnp.where(through, queue.rows_of(command), was.rows_left - pressed)
    cells = zip(was.memory, controls.memory, strict=True)
    return replace(
        was,
        advanced=was.advanced + pressed,
        command=command,
        rows_left=rows_left,
        memory=tuple(jnp.clip(cell + task.memory_step * change, -1.0, 1.0) for cell, change in cells),
        controls=controls,
        odometry=Vec2(*(jnp.where(pressed, 0.0, part) for part in was.odometry.parts)),
    )
