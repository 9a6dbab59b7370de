"""What the robot observes: its wheels, the lidar, the command, and its memory. It knows neither place nor heading."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.geometry import sin_cos
from ...core.task import stack_features
from ...sensors.lidar import to_sensor_frame
from .course import is_turning, queue_error, waypoint
from .rows import lane_center, plants_near
from .state import FieldState

if TYPE_CHECKING:
    from .task import Field

PRIVILEGED_SIZE = 15
"""Numbers that only a critic observes."""
LIDAR_STREAM = 0x11DA
"""Branch of a world's generator from which the noise of the lidar is drawn."""


def size(task: "Field") -> int:
    """Numbers that are observed."""
    modes = 3 if task.steering == "all" else 0
    return 3 + task.lidar.beams + task.max_rows + 2 + 3 + modes + task.memory_cells + 2 * task.odometry


def true_ranges(task: "Field", state: FieldState) -> Float[Array, "beams"]:
    """What a lidar without errors measures."""
    body, crop = state.body, task.crop
    sin, cos = sin_cos(body.yaw)
    plants = plants_near(crop, state.world.rows, body.position, task.lidar.max_range)
    return task.lidar.ranges([to_sensor_frame(plant, body.position, sin, cos) for plant in plants], crop.plant_radius)


def measured_ranges(task: "Field", state: FieldState) -> Float[Array, "beams"]:
    return task.lidar.measure(true_ranges(task, state), state.rng.fork(LIDAR_STREAM))


def command(task: "Field", state: FieldState) -> tuple[list[Array], Array, Array]:
    """What the queue shows: rows left, one-hot; −1 to turn right, 1 to turn left; −1 in every second lane.

    After the last command the first two are zero.
    """
    progress, queue = state.progress, state.world.queue
    left = progress.command < task.lanes - 1
    rows = [jnp.where(left & (progress.rows_left == k + 1), 1.0, 0.0) for k in range(task.max_rows)]
    side = jnp.where(left, jnp.where(queue.is_right(progress.command), -1.0, 1.0), 0.0)
    return rows, side, jnp.where(progress.command % 2 == 0, 1.0, -1.0)


def observe(task: "Field", state: FieldState) -> Float[Array, "features"]:
    """All numbers scaled to about one; a range as nearness, which is zero where nothing was hit."""
    body, progress, rover = state.body, state.progress, task.rover
    rows, side, parity = command(task, state)
    controls = progress.controls
    own = [
        body.steering / rover.max_steering,
        body.left / rover.max_speed,
        body.right / rover.max_speed,
        *rows,
        side,
        parity,
        controls.steer,
        controls.throttle,
        jnp.where(controls.advance, 1.0, -1.0),
    ]
    if task.steering == "all":
        own += [jnp.where(controls.mode == mode, 1.0, 0.0) for mode in range(3)]
    if task.odometry:
        own += progress.odometry.parts
    nearness = 1.0 - measured_ranges(task, state) / task.lidar.max_range
    return jnp.concatenate([stack_features([*own, *progress.memory]), nearness])


def privileged_observation(task: "Field", state: FieldState) -> Float[Array, "features"]:
    """Where the robot is in its lane and how far the next one is, and what the ground does to it."""
    body, progress, world = state.body, state.progress, state.world
    sin, cos = sin_cos(body.yaw)
    goal = to_sensor_frame(
        waypoint(task, world, progress.turns, progress.stage, progress.lane), body.position, sin, cos
    )
    offset = body.position.y - lane_center(task.crop, world.rows, progress.lane, body.position.x)
    change = world.queue.lane_change(progress.turns)
    # In a headland, how far it has to cross yet: this does not jump half-way, as its waypoint does.
    to_lane = jnp.where(is_turning(world, progress), change * world.rows.spacing, 0.0) - offset
    slide = world.ground.slide.rotated(-sin, cos)
    last = progress.turns == task.lanes - 1
    side = jnp.where(last, 0.0, 1.0 * jnp.sign(change))
    return stack_features(
        [
            goal.x,
            goal.y,
            offset,
            to_lane,
            body.position.x - 0.5 * world.rows.length,
            jnp.where(progress.turns % 2 == 0, 1.0, -1.0),
            side,
            progress.turns.astype(jnp.float32) / task.lanes,
            jnp.where(progress.stage == 0, 1.0, 0.0),
            1.0 * queue_error(world, progress),
            progress.distance - progress.leg,
            slide.x,
            slide.y,
            world.ground.slip,
            state.step.astype(jnp.float32) * (task.control_dt / task.time_limit),
        ]
    )
