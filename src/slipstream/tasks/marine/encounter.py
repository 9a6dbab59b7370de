"""Who gives way: the rules of the road at sea, as far as they say when to turn right.

Two vessels under way meet head on, or one crosses from the other's right. In both cases the one that must give way
turns right, so far that it passes behind or beside the other at a distance.
"""

import math

import jax.numpy as jnp

from ...dynamics.vessel import wrapped
from ...geometry import Flag, Scalar, Vec2
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
    own, other = course.norm(), thing.course.norm()
    ahead = thing.course * (1.0 / jnp.maximum(other, 1e-3))
    # Where the vessel is, as the other one sees it: along its course, and to its left.
    x, y = -thing.gap.dot(ahead), -(ahead.x * thing.gap.y - ahead.y * thing.gap.x)
    cos = course.dot(ahead) / jnp.maximum(own, 1e-3)
    sin = (ahead.x * course.y - ahead.y * course.x) / jnp.maximum(own, 1e-3)
    half = math.sqrt(0.5)
    head_on = (x > 0.0) & (x < AHEAD) & (jnp.abs(y) < ASIDE) & (cos < -half)
    back, front, left = CROSSING
    # The far corner behind is clear already.
    inside = (x > back) & (x < front) & (y > 0.0) & (y < left) & (y < left + 1.5 * (x - back) - 8.0)
    crossing = inside & (jnp.abs(cos) < half) & (sin < 0.0)
    return thing.there & (own >= SLOW) & (other >= SLOW) & (head_on | crossing)


def duty(course: Vec2, radius: Scalar, thing: Thing) -> Scalar:
    """How far to the right a vessel must turn for another, in radians; 0 if it need not."""
    relative = course - thing.course
    reach = thing.radius + MARGIN + radius
    distance = thing.gap.norm()
    half = jnp.arcsin(jnp.clip(reach / jnp.maximum(distance, 1e-3), 0.0, 1.0))
    bearing = jnp.arctan2(thing.gap.y, thing.gap.x)
    heading = jnp.arctan2(relative.y, relative.x)
    turn = wrapped(heading - (bearing - half))
    return jnp.where(situation(course, thing), jnp.maximum(turn, 0.0), 0.0)
