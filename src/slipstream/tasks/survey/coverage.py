"""A coverage map of a square: one bit per cell and one word per row, so that a whole map is twenty numbers."""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from ...core.geometry import Axes, Flag, Scalar, Vec2, Vec3
from ...sensors.detection import Lens

SIDE = 20
"""Rows and columns of the map."""
FULL = 2**SIDE - 1
"""A row whose cells are all covered."""
BANDS = (-6, -2, 2, 6)
"""Offsets from the drone's cell at which the bands of the observed map begin: far, near, here, near, far."""
Rows = tuple[UInt32[Array, ""], ...]


def bits_between(low: Scalar, high: Scalar) -> UInt32[Array, ""]:
    """A word with the bits `low` to `high` set, both included; zero if that is empty."""
    first = jnp.clip(low, 0.0, SIDE).astype(jnp.uint32)
    end = jnp.clip(high + 1.0, 0.0, SIDE).astype(jnp.uint32)
    one = jnp.uint32(1)
    return jnp.where(end > first, ((one << end) - one) & ~((one << first) - one), jnp.uint32(0))


def footprint(eye: Vec3, axes: Axes, ground: Scalar, half_extent: float, lens: Lens) -> Rows:
    """The cells of a square around the origin whose centers are in the image.

    A point (x, y) of the ground is in the image where four functions linear in x and y are not negative. So the image
    covers an interval of each row, for any direction of the camera.
    """
    cell = 2.0 * half_extent / SIDE
    drop = ground - eye.z
    edges = []
    for across, half in ((axes.left, lens.half_width), (axes.up, lens.half_height)):
        for sign in (1.0, -1.0):
            normal = axes.forward * half + across * sign
            # An edge parallel to the rows bounds none of them or all.
            slant = jnp.where(jnp.abs(normal.x) < 1e-6, 1e-6, normal.x)
            edges.append((slant, normal.y, normal.z * drop - normal.x * eye.x - normal.y * eye.y))
    rows = []
    for number in range(SIDE):
        y = -half_extent + (number + 0.5) * cell
        low, high = jnp.float32(-jnp.inf), jnp.float32(jnp.inf)
        for a, b, c in edges:
            crossing = -(b * y + c) / a
            low = jnp.where(a > 0.0, jnp.maximum(low, crossing), low)
            high = jnp.where(a > 0.0, high, jnp.minimum(high, crossing))
        first, last = jnp.ceil((low + half_extent) / cell - 0.5), jnp.floor((high + half_extent) / cell - 0.5)
        rows.append(bits_between(first, last))
    return tuple(rows)


def count_cells(rows: Rows) -> Scalar:
    """The number of covered cells."""
    return sum((jax.lax.population_count(row).astype(jnp.int32) for row in rows), jnp.int32(0)).astype(jnp.float32)


def covered_fraction(rows: Rows) -> Scalar:
    return count_cells(rows) * (1.0 / SIDE**2)


def cell_at(position: Vec2, half_extent: float) -> tuple[Array, Array]:
    """Column and row of the cell at a position, or of the nearest cell."""
    scale = SIDE / (2.0 * half_extent)
    column, row = (jnp.clip(jnp.floor((x + half_extent) * scale), 0.0, SIDE - 1.0) for x in (position.x, position.y))
    return column, row


def uncovered_windows(rows: Rows, position: Vec2, half_extent: float) -> list[Scalar]:
    """The uncovered fraction of each of 25 windows around a position: five bands east-west times five north-south."""
    column, line = cell_at(position, half_extent)
    edges = (-float(SIDE), *BANDS, float(SIDE))
    masks = [bits_between(column + low + 1.0, column + high) for low, high in itertools.pairwise(edges)]
    sums = [[jnp.int32(0)] * 5 for _ in range(5)]
    for number, row in enumerate(rows):
        left = ~row & FULL
        offset = number - line
        for band, (low, high) in enumerate(itertools.pairwise(edges)):
            inside = (offset > low) & (offset <= high)
            uncovered = jnp.where(inside, left, jnp.uint32(0))
            for k, mask in enumerate(masks):
                sums[band][k] = sums[band][k] + jax.lax.population_count(uncovered & mask).astype(jnp.int32)
    widths = (10.0, 4.0, 4.0, 4.0, 10.0)
    capacity = [a * b for a in widths for b in widths]
    flat = [cells for line in sums for cells in line]
    return [cells.astype(jnp.float32) * (1.0 / most) for cells, most in zip(flat, capacity, strict=True)]


def nearest_uncovered(rows: Rows, position: Vec2, half_extent: float) -> tuple[Vec2, Flag]:
    """The way to the nearest uncovered cell, and whether there is one."""
    cell = 2.0 * half_extent / SIDE
    column, _ = cell_at(position, half_extent)
    here = column.astype(jnp.uint32)
    best, way = jnp.float32(jnp.inf), Vec2(0.0 * position.x, 0.0 * position.y)
    for number, row in enumerate(rows):
        left = ~row & FULL
        right = left >> here
        # The lowest bit at or after this column, and the highest before it.
        after = jax.lax.population_count((right & (~right + 1)) - 1).astype(jnp.int32).astype(jnp.float32)
        before = left & ((jnp.uint32(1) << here) - 1)
        top = 31 - jax.lax.clz(before).astype(jnp.int32)
        y = -half_extent + (number + 0.5) * cell - position.y
        for exists, x in (
            (right != 0, -half_extent + (column + after + 0.5) * cell - position.x),
            (before != 0, -half_extent + (top.astype(jnp.float32) + 0.5) * cell - position.x),
        ):
            gap = jnp.where(exists, x * x + y * y, jnp.inf)
            nearer = gap < best
            way = Vec2(jnp.where(nearer, x, way.x), jnp.where(nearer, y, way.y))
            best = jnp.minimum(best, gap)
    return way, jnp.isfinite(best)
