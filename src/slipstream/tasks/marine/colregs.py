"""Who gives way: the rules of the road at sea, as far as they say when to turn right.

Two vessels under way meet head on, or one crosses from the other's right. In both cases the one that must give way
turns right, until its own course leads past the other at a distance.
"""

import math

import jax
import jax.numpy as jnp

from ...core.geometry import Flag, Scalar, Vec2, angle_of
from .state import Obstacle

AHEAD, ASIDE = 17.0, 4.5
"""The zone of a vessel in which another meets it head on: metres ahead, and to either side."""
CROSSING = (-9.0, 12.0, 17.0)
"""The zone in which a vessel on its left gives way to it: from and to along its course, and how far to the left."""
BOW = 7.0 / 12.0
"""Ahead of the other, only vessels at least so far to its left, for each metre ahead, are in that zone."""
SLOW = 0.5
"""Below this speed a vessel is not under way."""
MARGIN = 1.0
FAR = 1e9


def situation(course: Vec2, thing: Obstacle) -> Flag:
    """Whether a vessel of that course must give way to another one."""
    own, other = course.dot(course), thing.course.dot(thing.course)
    ahead = thing.course * jax.lax.rsqrt(jnp.maximum(other, 1e-6))
    # Where the vessel is, as the other one sees it: along its course, and to its left.
    x, y = -thing.gap.dot(ahead), thing.gap.cross(ahead)
    scale = jax.lax.rsqrt(jnp.maximum(own, 1e-6))
    cos, sin = course.dot(ahead) * scale, ahead.cross(course) * scale
    half = math.sqrt(0.5)
    head_on = (x > 0.0) & (x < AHEAD) & (jnp.abs(y) < ASIDE) & (cos < -half)
    back, front, left = CROSSING
    inside = (x > back) & (x < front) & (y > 0.0) & (y < left) & (y > BOW * x)
    crossing = inside & (jnp.abs(cos) < half) & (sin < 0.0)
    return thing.there & (own >= SLOW**2) & (other >= SLOW**2) & (head_on | crossing)


def duty(course: Vec2, radius: float, things: list[Obstacle]) -> Scalar:
    """How far to the right a vessel must turn for the nearest of the others that ask for it, in radians; 0 for none.

    So far that its course is a tangent, on the right, of the other's circle and a margin, and its own circle fits
    beside. Cosines are compared, since an arc costs more than all the rest.
    """
    asked: list[tuple[Scalar, Scalar]] = []
    for thing in things:
        away = jnp.maximum(thing.gap.dot(thing.gap), 1e-6)
        sin = jnp.minimum((thing.radius + MARGIN) * jax.lax.rsqrt(away), 1.0)
        cos = jnp.sqrt(1.0 - sin * sin)
        tangent = thing.gap.rotated(-sin, cos) * cos + thing.gap.rotated(-cos, -sin) * (radius * jax.lax.rsqrt(away))
        edge = tangent * jax.lax.rsqrt(jnp.maximum(tangent.dot(tangent), 1e-6))
        must = situation(course, thing) & (edge.cross(course) > 0.0)
        cosine = edge.dot(course) * jax.lax.rsqrt(jnp.maximum(course.dot(course), 1e-6))
        asked.append((jnp.where(must, away, FAR), cosine))
    asked = jax.lax.optimization_barrier(asked)
    nearest = jnp.full(jnp.shape(course.x), FAR)
    for away, _ in asked:
        nearest = jnp.minimum(nearest, away)
    cosine = jnp.ones(jnp.shape(course.x))
    for away, this in asked:
        cosine = jnp.where((away == nearest) & (away < FAR), this, cosine)
    return jnp.where(nearest < FAR, angle_of(jnp.clip(cosine, -1.0, 1.0)), 0.0)
