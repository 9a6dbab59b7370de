"""Crop rows: where plants stand and how the lanes between them run, as hashes of a word, so that nothing is stored.

Row r follows the line y = (r − ½) · spacing + curve(x) from x = 0 on; lane l lies between the rows l and l + 1.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.geometry import Flag, Scalar, Vec2
from ...core.rng import Rng, approx_gaussian, mix
from .settings import Crop
from .state import Count, Rows, Word

FAR_AWAY = 1e4
"""Coordinate of a plant that is missing, m."""
GAP = 3
"""Plants of a stretch that is missing as a whole."""
TAIL = 3.47
"""Standard deviations beyond which no noise of a plant lies."""
CURVE, GAPS, START, END = 0xC0, 0x6A, 0x57, 0xED
"""What a hash is for, where it is not for a plant."""


class Plant(NamedTuple):
    """A plant of a row."""

    center: Vec2
    exists: Flag


def draw_rows(crop: Crop, rng: Rng) -> tuple[Rows, Rng]:
    """A field of its own."""
    salt, rng = rng.bits()
    parts = []
    for low_high in (crop.row_spacing, crop.row_length, crop.bend, crop.curvature, crop.missing, crop.gaps):
        part, rng = rng.uniform(*low_high)
        parts.append(part)
    side, rng = rng.uniform()
    spacing, length, bend, curvature, missing, gaps = parts
    length = jnp.round(length / crop.plant_spacing) * crop.plant_spacing
    return Rows(salt, spacing, length, bend, jnp.where(side < 0.5, -curvature, curvature), missing, gaps), rng


def curve(crop: Crop, rows: Rows, x: Scalar) -> Scalar:
    """The sideways offset of all rows at `x`: a cubic Catmull-Rom spline through random points, and an arc."""
    x = jnp.clip(x, 0.0, rows.length)
    place = x * (1.0 / crop.bend_spacing)
    first = jnp.floor(place)
    t, number = place - first, first.astype(jnp.int32)
    before, start, end, after = (_signed(_hash(rows.salt, number + k, CURVE)) for k in (-1, 0, 1, 2))
    spline = start + 0.5 * t * (
        end - before + t * (2.0 * before - 5.0 * start + 4.0 * end - after + t * (3.0 * (start - end) + after - before))
    )
    middle = x - 0.5 * rows.length
    return rows.bend * spline + 0.5 * rows.curvature * (middle * middle - 0.25 * rows.length * rows.length)


def lane_center(crop: Crop, rows: Rows, lane: Count | Scalar, x: Scalar) -> Scalar:
    """Where the middle of a lane is at `x`."""
    return lane * rows.spacing + curve(crop, rows, x)


def plant(crop: Crop, rows: Rows, row: Count, number: Count, offset: Scalar) -> Plant:
    """Plant `number` of a row, where the rows are `offset` aside there."""
    own = _hash(rows.salt, row, number)
    noise_x, noise_y = (approx_gaussian(mix(own + jnp.uint32(k))) * crop.plant_noise for k in (1, 2))
    center = Vec2(
        number.astype(jnp.float32) * crop.plant_spacing + noise_x,
        (row.astype(jnp.float32) - 0.5) * rows.spacing + offset + noise_y,
    )
    return Plant(center, _exists(crop, rows, row, number, own))


def _exists(crop: Crop, rows: Rows, row: Count, number: Count, own: Word) -> Flag:
    count = jnp.round(rows.length * (1.0 / crop.plant_spacing)).astype(jnp.int32) + 1
    first, last = jnp.int32(0), count - 1
    if crop.ragged_ends:
        first = first + _choice(_hash(rows.salt, row, START), crop.ragged_ends + 1)
        last = last - _choice(_hash(rows.salt, row, END), crop.ragged_ends + 1)
    exists = (number >= first) & (number <= last)
    if crop.missing[1]:
        exists &= _unit(mix(own + jnp.uint32(3))) >= rows.missing
    if crop.gaps[1]:
        exists &= _unit(mix(_hash(rows.salt, row, GAPS) + _word(number // GAP))) >= rows.gaps
    return exists


def plants_near(crop: Crop, rows: Rows, position: Vec2, reach: float) -> list[Vec2]:
    """The centers of all plants that a circle of radius `reach` around a position can touch; missing ones far away."""
    columns, lines = window(crop, reach)
    here = jnp.round(position.x * (1.0 / crop.plant_spacing)).astype(jnp.int32)
    line = (position.y - curve(crop, rows, position.x)) / rows.spacing + 0.5
    row = jnp.round(line).astype(jnp.int32)
    found = []
    for k in range(-columns, columns + 1):
        number = here + k
        offset = curve(crop, rows, number.astype(jnp.float32) * crop.plant_spacing)
        for r in range(-lines, lines + 1):
            center, exists = plant(crop, rows, row + r, number, offset)
            found.append(Vec2(jnp.where(exists, center.x, FAR_AWAY), center.y))
    return found


def all_plants(crop: Crop, rows: Rows, lanes: int) -> Float[Array, "plants 3"]:
    """Every plant along the lanes from −lanes to lanes: x, y, and 1 if there is one."""
    most = round(crop.row_length[1] / crop.plant_spacing) + 1
    row, number = (
        part.ravel() for part in jnp.meshgrid(jnp.arange(-lanes, lanes + 2), jnp.arange(most), indexing="ij")
    )

    def one(row: Count, number: Count) -> Array:
        offset = curve(crop, rows, number.astype(jnp.float32) * crop.plant_spacing)
        center, exists = plant(crop, rows, row, number, offset)
        return jnp.stack([center.x, center.y, jnp.asarray(exists, jnp.float32)])

    return jax.vmap(one)(row, number)


def window(crop: Crop, reach: float) -> tuple[int, int]:
    """How many plants along the rows and how many rows, to either side, can be within reach of a robot."""
    reach += crop.plant_radius + TAIL * crop.plant_noise
    # The rows are counted from where the spline is at the robot; at the rim of the circle it is elsewhere.
    sway = 2.0 * crop.bend[1] + reach * crop.curvature[1] * crop.row_length[1]
    along = math.ceil(reach / crop.plant_spacing - 0.5)
    return max(along, 1), max(math.ceil((reach + sway) / crop.row_spacing[0] - 0.5), 1)


def _word(number: Count | int) -> Word:
    return jnp.asarray(number).astype(jnp.uint32)


def _hash(salt: Word, a: Count, b: Count | int) -> Word:
    """32 random bits that depend on two whole numbers."""
    return mix(mix(salt + _word(a) * jnp.uint32(0x9E3779B9)) + _word(b) * jnp.uint32(0x85EBCA6B))


def _unit(bits: Word) -> Array:
    """A number in [0, 1)."""
    return (bits >> 8).astype(jnp.int32).astype(jnp.float32) * 2.0**-24


def _signed(bits: Word) -> Array:
    """A number in [−1, 1)."""
    return 2.0 * _unit(bits) - 1.0


def _choice(bits: Word, count: int) -> Count:
    """A whole number in [0, count)."""
    return jnp.minimum((_unit(bits) * count).astype(jnp.int32), count - 1)
