"""Who gives way: the rules of the road at sea, as far as they say when to turn right.

Two vessels under way meet head on, or one crosses from the other's right. In both cases the one that must give way
turns right, so far that it passes behind or beside the other at a distance.
"""

import math

import jax
import jax.numpy as jnp

from ...geometry import Flag, Scalar, Vec2, angle_of
from .state import Thing

AHEAD, ASIDE = 17.0, 4.5
"""The zone of a vessel in which another meets it head on: metres ahead, and to either side."""
CROSSING = (-9.0, 12.0, 17.0)
"""The zone in which a vessel on its left gives way to it: from and to along its course, and how far to the left."""
SLOW = 0.5
"""Below this speed a vessel is not under way."""
MARGIN = 1.0


def situation(course: Vec2, thing: Thing) -> Flag:
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
    # The far corner behind is clear already.
    inside = (x > back) & (x < front) & (y > 0.0) & (y < left) & (y < left + 1.5 * (x - back) - 8.0)
    crossing = inside & (jnp.abs(cos) < half) & (sin < 0.0)
    return thing.there & (own >= SLOW**2) & (other >= SLOW**2) & (head_on | crossing)


def duty(course: Vec2, radius: Scalar, things: list[Thing]) -> Scalar:
    """How far to the right a vessel must turn for the others, in radians; 0 if it need not.

    So far that its velocity, seen from the other one, passes right of it. Cosines are compared, since an arc costs more
    than all the rest.
    """
    least = jnp.full(jnp.shape(course.x), 2.0)
    for thing in things:
        relative = course - thing.course
        away = jnp.maximum(thing.gap.dot(thing.gap), 1e-6)
        sin = jnp.minimum((thing.radius + MARGIN + radius) * jax.lax.rsqrt(away), 1.0)
        edge = thing.gap.rotated(-sin, jnp.sqrt(1.0 - sin * sin))
        cos = edge.dot(relative) * jax.lax.rsqrt(away * jnp.maximum(relative.dot(relative), 1e-6))
        must = situation(course, thing) & (edge.cross(relative) > 0.0)
        least = jnp.minimum(least, jnp.where(must, cos, 2.0))
    least = jax.lax.optimization_barrier(least)
    return jnp.where(least <= 1.0, angle_of(jnp.clip(least, -1.0, 1.0)), 0.0)
