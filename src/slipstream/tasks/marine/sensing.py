"""What a vessel knows of what is around it: the nearest things, or where the beams of a sonar end."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from ...core.geometry import Scalar, Vec2, sin_cos
from ...core.rng import Rng
from ...dynamics.vessel import VesselState, wrapped
from .state import Obstacle

ROUND = 1.27
"""Standard deviation of a wrapped Gaussian that is spread like a von Mises distribution of concentration 1."""


SEEN = 0.8
"""Share of a thing's radius that sensors see on average."""


def nearest(things: list[Obstacle], slots: int, reach: float) -> list[Obstacle]:
    """The nearest things within reach by their surfaces, nearest first; empty places have nothing there.

    By ranks and selection instead of a sort, which would be a loop of its own for every vessel.
    """
    far = 1e6
    gaps = [jnp.where(t.there, t.gap.norm() - t.radius, far) for t in things]
    things, gaps = jax.lax.optimization_barrier((things, [jnp.where(gap < reach, gap, far) for gap in gaps]))
    ranks = []
    for k, gap in enumerate(gaps):
        before = [jnp.where(other <= gap if j < k else other < gap, 1, 0) for j, other in enumerate(gaps) if j != k]
        ranks.append(sum(before, jnp.zeros(jnp.shape(gap), jnp.int32)))
    ranks = jax.lax.optimization_barrier(ranks)
    found = []
    for slot in range(slots):
        parts = [jnp.float32(0.0)] * 5
        there = jnp.bool_(False)
        for thing, rank, gap in zip(things, ranks, gaps, strict=True):
            mine = (rank == slot) & (gap < far)
            values = (thing.gap.x, thing.gap.y, thing.course.x, thing.course.y, thing.radius)
            parts = [jnp.where(mine, value, part) for value, part in zip(values, parts, strict=True)]
            there = there | mine
        x, y, vx, vy, radius = parts
        found.append(Obstacle(Vec2(x, y), Vec2(vx, vy), radius, there))
    return jax.lax.optimization_barrier(found)


def blurred(thing: Obstacle, rng: Rng, noise: float) -> tuple[Obstacle, Rng]:
    """A thing as it is measured."""
    if not noise:
        return thing, rng
    parts = []
    for _ in range(4):
        part, rng = rng.approx_normal(noise)
        parts.append(part)
    x, y, vx, vy = parts
    spread, rng = rng.approx_normal(ROUND)
    spread = wrapped(spread) * (1.0 / math.pi)
    radius = thing.radius * (SEEN + (1.0 - SEEN) * spread)
    return Obstacle(thing.gap + Vec2(x, y), thing.course + Vec2(vx, vy), radius, thing.there), rng


WIDTH = 9


def told(thing: Obstacle, boat: VesselState, radius: float, sin: Scalar, cos: Scalar) -> list[Scalar]:
    """A thing as a vessel is told of it: place and velocity as seen from the vessel, size, and whether there is one.

    Between them stands what follows if both keep their velocities, as a navigator's plotter shows it: how near they
    come, surface to surface, and how soon.
    """
    there = jnp.where(thing.there, 1.0, 0.0)
    gap, course = thing.gap.rotated(-sin, cos), thing.course.rotated(-sin, cos)
    closing = course - boat.velocity
    speed = jnp.maximum(closing.dot(closing), 1e-3)
    soon = jnp.clip(-gap.dot(closing) / speed, 0.0, 20.0)
    room = thing.radius + radius
    miss = (gap + closing * soon).norm() - room
    parts = [
        gap.x * 0.05,
        gap.y * 0.05,
        course.x * 0.5,
        course.y * 0.5,
        thing.radius * 0.3,
        (gap.norm() - room) * 0.1,
        jnp.clip(miss * 0.2, -1.0, 2.0),
        jnp.where(soon > 0.0, jnp.exp(-0.2 * soon), 0.0),
    ]
    return [part * there for part in parts] + [there]


def sonar(things: list[Obstacle], yaw: Scalar, beams: int, width: float, reach: float) -> list[Scalar]:
    """Where each beam meets something, ahead and left, and whether it does; beams run from right to left."""
    seen: list[Scalar] = []
    for angle in np.linspace(-0.5 * width, 0.5 * width, beams):
        s, c = sin_cos(yaw + angle)
        best = jnp.full(jnp.shape(yaw), reach)
        for thing in things:
            along = thing.gap.x * c + thing.gap.y * s
            aside = thing.gap.x * s - thing.gap.y * c
            under = thing.radius**2 - aside**2
            hit = along - jnp.sqrt(jnp.maximum(under, 0.0))
            meets = thing.there & (under > 0.0) & (hit > 0.0)
            best = jnp.where(meets & (hit < best), hit, best)
        met = jnp.where(best < reach, 1.0, 0.0)
        seen += [best * met * (math.cos(angle) / reach), best * met * (math.sin(angle) / reach), met]
    return seen
