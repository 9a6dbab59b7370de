"""What of a square was seen: one bit a cell, a word a row, so that a whole map is twenty numbers."""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from ...core.geometry import Axes, Scalar, Vec2, Vec3
from ...sensors.detection import Lens

SIDE = 20
FULL = 2**SIDE - 1
BANDS = (-6, -2, 2, 6)
"""Cells from the drone's at which the bands of its view of the map begin: far, near, here, near, far."""
Rows = tuple[UInt32[Array, ""], ...]


def bits_between(low: Scalar, high: Scalar) -> UInt32[Array, ""]:
    """The bits `low` to `high`, both included; none if that is empty."""
    low = jnp.clip(low, 0.0, SIDE).astype(jnp.uint32)
    high = jnp.clip(high + 1.0, 0.0, SIDE).astype(jnp.uint32)
    one = jnp.uint32(1)
    return jnp.where(high > low, ((one << high) - one) & ~((one << low) - one), jnp.uint32(0))


def footprint(eye: Vec3, axes: Axes, ground: Scalar, half: float, lens: Lens) -> Rows:
    """The cells of a square around the origin, `half` to each side, whose centres are in the picture.

    A point (x, y) of the ground is in it where four functions that are linear in x and y are not negative. So of
    each row it is an interval, whichever way the camera looks.
    """
    cell = 2.0 * half / SIDE
    drop = ground - eye.z
    ahead, left, up = axes.forward, axes.left, axes.up
    sides = []
    for aside, reach in ((left, lens.aside), (up, lens.above)):
        for sign in (1.0, -1.0):
            normal = ahead * reach + aside * sign
            # A side that runs along the rows bounds none of them, or all.
            slant = jnp.where(jnp.abs(normal.x) < 1e-6, 1e-6, normal.x)
            sides.append((slant, normal.y, normal.z * drop - normal.x * eye.x - normal.y * eye.y))
    rows = []
    for number in range(SIDE):
        y = -half + (number + 0.5) * cell
        low, high = jnp.float32(-jnp.inf), jnp.float32(jnp.inf)
        for a, b, c in sides:
            meets = -(b * y + c) / a
            low = jnp.where(a > 0.0, jnp.maximum(low, meets), low)
            high = jnp.where(a > 0.0, high, jnp.minimum(high, meets))
        rows.append(bits_between(jnp.ceil((low + half) / cell - 0.5), jnp.floor((high + half) / cell - 0.5)))
    return tuple(rows)


def counted(rows: Rows) -> Scalar:
    """How many cells."""
    return sum((jax.lax.population_count(row).astype(jnp.int32) for row in rows), jnp.int32(0)).astype(jnp.float32)


def share_of(rows: Rows) -> Scalar:
    return counted(rows) * (1.0 / SIDE**2)


def cell_of(place: Vec2, half: float) -> tuple[Scalar, Scalar]:
    """Column and row a place is in, or the nearest."""
    scale = SIDE / (2.0 * half)
    column, row = (jnp.clip(jnp.floor((x + half) * scale), 0.0, SIDE - 1.0) for x in (place.x, place.y))
    return column, row


def windows(rows: Rows, place: Vec2, half: float) -> list[Scalar]:
    """How much is left to see: here, near and far, in each of 25 directions, as shares of what such a window holds."""
    column, line = cell_of(place, half)
    edges = (-float(SIDE), *BANDS, float(SIDE))
    masks = [bits_between(column + low + 1.0, column + high) for low, high in itertools.pairwise(edges)]
    sums = [[jnp.int32(0)] * 5 for _ in range(5)]
    for number, row in enumerate(rows):
        left = ~row & FULL
        off = number - line
        for band, (low, high) in enumerate(itertools.pairwise(edges)):
            inside = (off > low) & (off <= high)
            open_ = jnp.where(inside, left, jnp.uint32(0))
            for k, mask in enumerate(masks):
                sums[band][k] = sums[band][k] + jax.lax.population_count(open_ & mask).astype(jnp.int32)
    wide = (10.0, 4.0, 4.0, 4.0, 10.0)
    capacity = [a * b for a in wide for b in wide]
    flat = [cell for line in sums for cell in line]
    return [cell.astype(jnp.float32) * (1.0 / most) for cell, most in zip(flat, capacity, strict=True)]


def nearest_open(rows: Rows, place: Vec2, half: float) -> tuple[Vec2, Scalar]:
    """The way to the nearest cell not yet seen, and whether there is one."""
    cell = 2.0 * half / SIDE
    column, _ = cell_of(place, half)
    here = column.astype(jnp.uint32)
    best, way = jnp.float32(jnp.inf), Vec2(0.0 * place.x, 0.0 * place.y)
    for number, row in enumerate(rows):
        left = ~row & FULL
        right = left >> here
        # The lowest bit at or after this column, and the highest before it.
        after = jax.lax.population_count((right & (~right + 1)) - 1).astype(jnp.int32).astype(jnp.float32)
        before = left & ((jnp.uint32(1) << here) - 1)
        top = 31 - jax.lax.clz(before).astype(jnp.int32)
        y = -half + (number + 0.5) * cell - place.y
        for there, x in (
            (right != 0, -half + (column + after + 0.5) * cell - place.x),
            (before != 0, -half + (top.astype(jnp.float32) + 0.5) * cell - place.x),
        ):
            gap = jnp.where(there, x * x + y * y, jnp.inf)
            nearer = gap < best
            way = Vec2(jnp.where(nearer, x, way.x), jnp.where(nearer, y, way.y))
            best = jnp.minimum(best, gap)
    return way, jnp.isfinite(best)
