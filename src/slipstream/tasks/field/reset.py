"""How a world starts: a field of its own, commands, and a robot at the first lane or somewhere along the way."""

from typing import TYPE_CHECKING

import jax.numpy as jnp

from ...core.geometry import Scalar, Vec2, sin_cos
from ...core.rng import Rng
from ...core.task import State
from ...dynamics.rover import CRAB, Ground, RoverState
from .course import MARGIN, along, legs, waypoint
from .rows import draw_rows, lane_center
from .state import Controls, Count, FieldProgress, FieldState, FieldWorld, Queue

if TYPE_CHECKING:
    from .task import Field

OFFSET, TURN = 0.04, 0.1
"""Largest distance from the middle of the lane at the start, m, and largest angle to it, rad."""


def reset(task: "Field", rng: Rng) -> FieldState:
    """A world at its start. In training most robots start in a lane on the way, as if they had driven there."""
    rows, rng = draw_rows(task.crop, rng)
    queue, rng = draw_queue(task, rng)
    ground, rng = draw_ground(task, rng)
    world = FieldWorld(rows, queue, ground)
    turns, distance = jnp.int32(0), -MARGIN
    if task.training and task.midway_starts:
        unit, rng = rng.uniform()
        midway = unit < task.midway_starts
        lane, rng = rng.integer(task.lanes)
        on_the_way, rng = rng.uniform(-MARGIN, rows.length)
        turns, distance = jnp.where(midway, lane, 0), jnp.where(midway, on_the_way, distance)
    lane = due = jnp.int32(0)
    for turn in range(task.lanes - 1):
        made = turn < turns
        lane = lane + jnp.where(made, queue.lane_change(jnp.int32(turn)), 0)
        due = due + jnp.where(made, queue.rows_of(jnp.int32(turn)), 0)
    body, rng = draw_body(task, world, rng, turns, lane, distance)
    stage = jnp.maximum(jnp.floor(distance * legs(world) / rows.length).astype(jnp.int32) + 1, 0)
    leg = (waypoint(task, world, turns, stage, lane) - body.position).norm()
    zero, no = 0.0 * body.yaw, jnp.bool_(False)
    controls = Controls(zero, zero, jnp.int32(CRAB), no, (zero,) * task.memory_cells)
    progress = FieldProgress(
        turns=turns,
        stage=stage,
        lane=lane,
        leg=leg,
        distance=leg,
        due=due,
        advanced=due,
        command=turns,
        rows_left=queue.rows_of(turns),
        memory=(zero,) * task.memory_cells,
        controls=controls,
        # As if the button had been pressed at the entrance of the lane.
        odometry=Vec2(jnp.where(turns % 2 == 0, 1.0, -1.0) * (distance + MARGIN), zero),
        touched=no,
        lost=no,
        finished=no,
        episode_return=zero,
    )
    return State(world, body, progress, rng, jnp.int32(0), jnp.asarray(zero), no, no)


def draw_queue(task: "Field", rng: Rng) -> tuple[Queue, Rng]:
    """To either side alike, and every number of rows alike."""
    right, rng = rng.bits()
    rows = jnp.uint32(0)
    if task.max_rows > 1:
        for turn in range(task.lanes - 1):
            more, rng = rng.integer(task.max_rows)
            rows = rows | (more.astype(jnp.uint32) << (2 * turn))
    return Queue(right, rows), rng


def draw_ground(task: "Field", rng: Rng) -> tuple[Ground, Rng]:
    """Slip, and a slope in any direction."""
    slip, rng = rng.uniform(*task.terrain.slip)
    slope, rng = rng.uniform(*task.terrain.slope)
    angle, rng = rng.uniform(-jnp.pi, jnp.pi)
    sin, cos = sin_cos(angle)
    return Ground(slip, Vec2(slope * cos, slope * sin)), rng


def draw_body(
    task: "Field", world: FieldWorld, rng: Rng, turns: Count, lane: Count, distance: Scalar
) -> tuple[RoverState, Rng]:
    """At rest in the lane. A robot that can turn looks ahead; in crab mode it drives every second lane backward."""
    x = along(world, turns, distance)
    offset, rng = rng.uniform(-OFFSET, OFFSET)
    yaw, rng = rng.uniform(-TURN, TURN)
    if task.steering != "crab":
        yaw = yaw + jnp.where(turns % 2 == 0, 0.0, jnp.pi)
    return RoverState.at(Vec2(x, lane_center(task.crop, world.rows, lane, x) + offset), yaw), rng
