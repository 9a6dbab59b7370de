"""COLREGs, the rules of the road at sea, as far as they say when to turn right.

Two vessels under way meet head on, or one crosses from the other's right. In both cases the give-way vessel turns right
until its own course leads past the other at a distance.
"""

import math

import jax
import jax.numpy as jnp

from ...core.geometry import Flag, Scalar, Vec2, angle_of
from .state import Obstacle

HEAD_ON_LENGTH, HEAD_ON_WIDTH = 17.0, 4.5
"""Zone of a vessel in which another meets it head on: meters ahead, and to either side."""
CROSSING = (-9.0, 12.0, 17.0)
"""Zone in which a vessel on the left gives way: from and to along the course, and how far to the left, m."""
CROSSING_SLOPE = 7.0 / 12.0
"""Ahead of the other vessel, the crossing zone starts this far to its left for each meter ahead."""
MIN_SPEED = 0.5
"""Speed from which on a vessel is under way, m/s."""
MARGIN = 1.0
"""Meters added to the other vessel's radius."""
NEVER = 1e9


def must_give_way(velocity: Vec2, other: Obstacle) -> Flag:
    """Whether a vessel with that velocity is the give-way vessel towards another one."""
    own_square, other_square = velocity.dot(velocity), other.velocity.dot(other.velocity)
    ahead = other.velocity * jax.lax.rsqrt(jnp.maximum(other_square, 1e-6))
    # The own position in the other's frame: along its course, and to its left.
    x, y = -other.offset.dot(ahead), other.offset.cross(ahead)
    scale = jax.lax.rsqrt(jnp.maximum(own_square, 1e-6))
    cos, sin = velocity.dot(ahead) * scale, ahead.cross(velocity) * scale
    half = math.sqrt(0.5)
    head_on = (x > 0.0) & (x < HEAD_ON_LENGTH) & (jnp.abs(y) < HEAD_ON_WIDTH) & (cos < -half)
    back, front, left = CROSSING
    inside = (x > back) & (x < front) & (y > 0.0) & (y < left) & (y > CROSSING_SLOPE * x)
    crossing = inside & (jnp.abs(cos) < half) & (sin < 0.0)
    under_way = (own_square >= MIN_SPEED**2) & (other_square >= MIN_SPEED**2)
    return other.exists & under_way & (head_on | crossing)


def required_turn(velocity: Vec2, radius: float, others: list[Obstacle]) -> Scalar:
    """The turn to the right that the nearest vessel with right of way requires, rad; 0 if there is none.

    After it the course is a tangent, on the right, of the other's circle with a margin, and the own circle fits beside.
    Cosines are compared, since an arc cosine costs more than all the rest.
    """
    turns: list[tuple[Scalar, Scalar]] = []
    for other in others:
        square = jnp.maximum(other.offset.dot(other.offset), 1e-6)
        sin = jnp.minimum((other.radius + MARGIN) * jax.lax.rsqrt(square), 1.0)
        cos = jnp.sqrt(jnp.maximum(1.0 - sin * sin, 1e-12))
        beside = other.offset.rotated(-cos, -sin) * (radius * jax.lax.rsqrt(square))
        tangent = other.offset.rotated(-sin, cos) * cos + beside
        edge = tangent * jax.lax.rsqrt(jnp.maximum(tangent.dot(tangent), 1e-6))
        must = must_give_way(velocity, other) & (edge.cross(velocity) > 0.0)
        cosine = edge.dot(velocity) * jax.lax.rsqrt(jnp.maximum(velocity.dot(velocity), 1e-6))
        turns.append((jnp.where(must, square, NEVER), cosine))
    turns = jax.lax.optimization_barrier(turns)
    nearest = jnp.full(jnp.shape(velocity.x), NEVER)
    for square, _ in turns:
        nearest = jnp.minimum(nearest, square)
    cosine = jnp.ones(jnp.shape(velocity.x))
    for square, this in turns:
        cosine = jnp.where((square == nearest) & (square < NEVER), this, cosine)
    return jnp.where(nearest < NEVER, angle_of(jnp.clip(cosine, -1.0, 1.0)), 0.0)
