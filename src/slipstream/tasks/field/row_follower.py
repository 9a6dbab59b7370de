"""A script that follows rows by what a robot measures: its lidar, its wheels, the command shown, and its memory.

In a lane it steers for the middle of two lines, fitted to the plants on either side. Where the rows end it drives out
into the headland, crosses sideways from lane to lane by odometry and row ends, and advances the queue at each lane.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.geometry import Flag, Scalar, Vec2
from . import sensing
from .state import FieldState

if TYPE_CHECKING:
    from .task import Field

OUT = 0.85
"""How far beyond the last plants in sight the robot crosses to another lane, m."""
BACK, INWARD = 0.2, 0.4
"""How far toward rows it steers while they are out of sight, and goes by its wheels at most in crossing one lane, m."""
STRIDE, CORRECTION = 0.6, 0.3
"""How far aside, and how far out or in, the point lies at most that it steers for in the headland, m."""
LOOK_AHEAD = 0.25
"""How far ahead lies the point of the lane that the robot steers for, m."""
KERNEL = 0.3
"""Plants this far from that point, along the lane, weigh 0.6 of those beside it, m."""
PLANT, SLOPE, WIDTH = 0.1, 0.5, 0.1
"""Standard deviations: of a measured plant from its line, m, and, before any is seen, of the direction of a lane
(tangent) and of half its width, m."""
WIDEST = 0.1
"""How much wider than expected half a lane may be so that it can be remembered, m."""
ARRIVED = 0.06
"""Distance from the middle of a lane at which the robot turns into it, m."""
CELLS = 4
"""Memory cells that are used: three for bits, one for the width of the lanes."""


class Bits(NamedTuple):
    """What the robot remembers of what it does."""

    headland: Array  # whether it is between two lanes
    left: Array  # whether it crosses to its left
    last: Array  # whether the lane that it crosses to is the one to drive


class Plants(NamedTuple):
    """Where beams have hit plants, away from the rows or along the lane, and to the left, m."""

    x: Float[Array, "beams"]
    y: Float[Array, "beams"]
    hit: Float[Array, "beams"]  # 1 or 0

    @property
    def end(self) -> Scalar:
        """The farthest x."""
        return jnp.max(jnp.where(self.hit > 0.0, self.x, -jnp.inf), initial=-1e3)


def row_follower(task: "Field", state: FieldState) -> tuple[Vec2, Flag, list[Array]]:
    """The point to drive to in the frame of the body, whether to press the button, and the changes of memory cells."""
    rows, side, parity = sensing.command(task, state)
    *cells, width_cell = state.progress.memory[:CELLS]
    bits = Bits(*(jnp.asarray(cell > 0.5 * task.memory_step) for cell in cells))
    half_width = expected_half_width(task) + WIDEST * width_cell
    # Away from the rows: ahead in a lane, and behind once the command shown is that of the lane to turn into.
    out = jnp.where(bits.headland & bits.last, -parity, parity)
    plants, odometry = find_plants(task, state, out), driven(task, state, out)

    remaining = distance_to_lane(plants, half_width, jnp.where(bits.left, 1.0, -1.0), odometry.y)
    offset, measured_width, both_sides = fit_lane(plants, half_width)

    arrived = bits.headland & (jnp.where(bits.left, remaining, -remaining) < ARRIVED)
    # No lane is shorter than the shortest row: that much has to be driven before plants that are missing are its end.
    at_end = ~bits.headland & (plants.end < -OUT) & (odometry.x > task.crop.row_length[0])
    wanted = next_bits(bits, at_end, arrived, side * parity > 0.0, rows[0] > 0.5)
    changes, after = write_bits(task, cells, wanted)
    # The button is pressed in the very step in which the bits change: from then on the next command is shown.
    pressed = (after.headland & ~bits.headland) | (arrived & ~bits.last & (after.last == wanted.last))
    wider = (measured_width - expected_half_width(task)) / WIDEST
    changes.append(track(width_cell, wider, both_sides & ~bits.headland, task.memory_step))

    across = Vec2(distance_out(plants, odometry.x), jnp.clip(remaining, -STRIDE, STRIDE))
    ahead = jnp.where(bits.headland, across.x, LOOK_AHEAD)
    return Vec2(out * ahead, jnp.where(bits.headland, across.y, offset)), pressed, changes


def next_bits(bits: Bits, at_end: Array, arrived: Array, left: Array, single: Array) -> Bits:
    """The state machine: from a lane into the headland at its end, and into a lane on arriving at the last one.

    In a lane, side and count are those of the command shown; in the headland they stay.
    """
    return Bits(
        headland=at_end | (bits.headland & ~(arrived & bits.last)),
        left=jnp.where(bits.headland, bits.left, left),
        last=jnp.where(bits.headland, bits.last | (arrived & single), single),
    )


def distance_out(plants: Plants, out: Scalar) -> Array:
    """How much farther out the robot should be in the headland, where `out` is how far it went since the last press."""
    further = jnp.where(jnp.any(plants.hit > 0.0), OUT + plants.end, -BACK)
    return jnp.clip(jnp.maximum(further, -INWARD - out), -CORRECTION, CORRECTION)


def find_plants(task: "Field", state: FieldState, direction: Scalar) -> Plants:
    """The middles of plants that beams have hit, with x along the body's axis in that direction, 1 or −1."""
    ranges, lidar = sensing.measured_ranges(task, state), task.lidar
    # On the mean over a plant's width a beam meets it 0.8 radii before its middle.
    middle = ranges + 0.8 * task.crop.plant_radius
    cos, sin = (jnp.asarray(f(lidar.angles), jnp.float32) for f in (jnp.cos, jnp.sin))
    return Plants(direction * middle * cos, middle * sin, jnp.where(ranges < 0.999 * lidar.max_range, 1.0, 0.0))


def driven(task: "Field", state: FieldState, direction: Scalar) -> Vec2:
    """Driven since the button was pressed last, by wheels that slip as much as they do on average."""
    grip = 1.0 - 0.5 * sum(task.terrain.slip)
    x, y = state.progress.odometry.parts
    return Vec2(direction * x * grip, y * grip)


def expected_half_width(task: "Field") -> float:
    """Half of the distance between rows, as far as it is known before any is seen."""
    return 0.25 * sum(task.crop.row_spacing)


def fit_lane(plants: Plants, half_width: Scalar) -> tuple[Array, Array, Array]:
    """How far to the left the middle of the lane lies at the point ahead, half its width, and if both rows are seen.

    Least squares over the plants near that point, of both rows at once, for the offset, the direction and the half
    width w of the lane:  y = offset + slope (x − x₀) ± w, where direction and width have a normal prior.
    """
    x, side = plants.x - LOOK_AHEAD, jnp.sign(plants.y)
    weight = plants.hit * (jnp.exp(-0.5 * (x / KERNEL) ** 2) + 1e-3)
    columns = jnp.stack([jnp.ones_like(x), x, side])
    prior = jnp.asarray([1e-2, (PLANT / SLOPE) ** 2, (PLANT / WIDTH) ** 2])
    normal = (columns * weight) @ columns.T + jnp.diag(prior)
    offset, _, wider = jnp.linalg.solve(normal, (columns * weight) @ (plants.y - side * half_width))
    left, right = (jnp.sum(weight * (side == sign)) for sign in (1.0, -1.0))
    return offset, half_width + wider, jnp.minimum(left, right) > 1.0


def distance_to_lane(plants: Plants, half_width: Scalar, to_left: Scalar, crossed: Scalar) -> Array:
    """How far to the left the middle of the next lane lies.

    Odometry tells which lane that is, and the row ends in sight where its middle is: they are an odd number of half
    widths away from it, so the angle of their mean on a circle as long as a lane is wide tells it.
    """
    spacing = 2.0 * half_width
    expected = to_left * spacing - crossed
    angle = (2.0 * math.pi / spacing) * plants.y + math.pi
    weight = plants.hit * jnp.exp(-jnp.abs(plants.x - plants.end) / KERNEL)
    cos, sin = jnp.sum(weight * jnp.cos(angle)), jnp.sum(weight * jnp.sin(angle))
    seen = jnp.arctan2(sin, cos) * (spacing / (2.0 * math.pi))
    seen = seen + spacing * jnp.round((expected - seen) / spacing)
    return jnp.where(jnp.any(plants.hit > 0.0), seen, expected)


def write_bits(task: "Field", cells: list[Scalar], wanted: Bits) -> tuple[list[Array], Bits]:
    """The changes of memory cells that lead to these bits, and the bits after them.

    A cell always changes, so each bit swings between two values: 0 and −1 steps for false, 1 and 2 for true.
    """
    step, changes, after = task.memory_step, [], []
    for cell, bit in zip(cells, wanted, strict=True):
        up = jnp.where(bit, cell < 1.5 * step, cell < -0.5 * step)
        changes.append(jnp.where(up, 1.0, -1.0))
        after.append(jnp.asarray(cell + step * changes[-1] > 0.5 * step))
    return changes, Bits(*after)


def track(cell: Scalar, value: Scalar, known: Flag, step: float) -> Array:
    """The change of a memory cell that follows a value, step by step; where the value is not known, up and down."""
    even = jnp.round(cell / step) % 2 == 0
    return jnp.where(jnp.where(known, value > cell, even), 1.0, -1.0)
