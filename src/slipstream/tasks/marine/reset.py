"""Where vessels start and where they go, where buoys float and where the water whirls."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.geometry import Scalar, Vec2
from ...core.rng import Rng
from ...dynamics.vessel import CORE, Vortices
from .state import NOWHERE

TRIES = 128


def drawn(rng: Rng, low: float, high: float, tries: int = TRIES) -> tuple[Vec2, Rng]:
    """So many places in a square."""

    def one(branch: Any) -> tuple[Scalar, Scalar]:
        own = rng.fork(branch)
        x, own = own.uniform(low, high)
        y, _ = own.uniform(low, high)
        return x, y

    x, y = jax.vmap(one)(jnp.arange(tries, dtype=jnp.uint32))
    return Vec2(x, y), rng.bits()[1]


def first(margin: Float[Array, "tries"], *values: Any) -> list[Scalar]:
    """The values of the first try whose margin is not negative; if there is none, of the one that misses least."""
    tries = jnp.arange(margin.shape[0])
    order = jnp.where(margin >= 0.0, (margin.shape[0] - tries).astype(jnp.float32), margin)
    # Not by `argmax`, whose two results in one loop XLA's CPU compiler cannot always build.
    best = jnp.min(jnp.where(order == jnp.max(order), tries, margin.shape[0] - 1))
    return [value[best] for value in values]


def clear(places: Vec2, others: list[Vec2], apart: Scalar) -> Float[Array, "tries"]:
    """By how much each place is farther than `apart` from the nearest of the others."""
    margin = jnp.full(places.x.shape, jnp.inf)
    for other in others:
        margin = jnp.minimum(margin, (places - other).norm() - apart)
    return margin


def journeys(rng: Rng, count: int, size: float, distance: Scalar, apart: float) -> tuple[list[Vec2], list[Vec2], Rng]:
    """Starts and goals of vessels: each far enough from the other, and from those of the other vessels."""
    starts: list[Vec2] = []
    goals: list[Vec2] = []
    for _ in range(count):
        start, rng = drawn(rng, 2.0, size - 2.0)
        goal, rng = drawn(rng, 2.0, size - 2.0)
        margin = jnp.minimum((goal - start).norm() - distance, clear(start, starts, apart))
        margin = jnp.minimum(margin, clear(goal, goals, apart))
        x, y, gx, gy = first(margin, start.x, start.y, goal.x, goal.y)
        starts.append(Vec2(x, y))
        goals.append(Vec2(gx, gy))
    return starts, goals, rng


def floating(
    rng: Rng, count: int, number: Scalar, size: float, radii: tuple[float, float], taken: list[Vec2], apart: float
) -> tuple[Vec2, Array, Rng]:
    """Buoys of those radii, away from what is taken and from each other; those beyond `number` are nowhere."""
    placed: list[Vec2] = []
    sizes: list[Scalar] = []
    for k in range(count):
        place, rng = drawn(rng, 5.0, size - 5.0)
        margin = jnp.minimum(clear(place, taken, apart), clear(place, placed, 2.0 * radii[1]))
        x, y = first(margin, place.x, place.y)
        radius, rng = rng.uniform(*radii)
        there = k < number
        placed.append(Vec2(jnp.where(there, x, NOWHERE), jnp.where(there, y, NOWHERE)))
        sizes.append(jnp.where(there, radius, 0.0))
    stack = lambda parts: jnp.stack([jnp.asarray(p, jnp.float32) for p in parts]) if parts else jnp.zeros(0)  # noqa: E731
    return Vec2(stack([p.x for p in placed]), stack([p.y for p in placed])), stack(sizes), rng


def whirling(rng: Rng, count: int, size: float, edge: tuple[float, float], taken: list[Vec2]) -> tuple[Vortices, Rng]:
    """Whirls that leave each other room: equal ones do not merge, a strong one does not drown a weak one."""
    places: list[Vec2] = []
    strengths: list[Scalar] = []
    for _ in range(count):
        place, rng = drawn(rng, 0.0, size)
        speed, rng = rng.uniform(*edge)
        side, rng = rng.uniform()
        strength = speed * CORE
        margin = clear(place, taken, 5.0)
        for other, known in zip(places, strengths, strict=True):
            same = (known > 0.0) == (side < 0.5)
            stronger, weaker = jnp.maximum(jnp.abs(known), strength), jnp.minimum(jnp.abs(known), strength)
            room = jnp.where(same, jnp.abs(known) + strength, stronger / (0.8 * weaker / CORE) + 2.0 * CORE)
            margin = jnp.minimum(margin, (place - other).norm() - room)
        x, y = first(margin, place.x, place.y)
        places.append(Vec2(x, y))
        strengths.append(jnp.where(side < 0.5, strength, -strength))
    stack = lambda parts: jnp.stack([jnp.asarray(p, jnp.float32) for p in parts])  # noqa: E731
    return Vortices(stack([p.x for p in places]), stack([p.y for p in places]), stack(strengths)), rng
