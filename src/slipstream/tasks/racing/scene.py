"""The scene of a race for cameras: gates on posts, other drones and the ground; and the camera in a drone's nose."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...core.geometry import Quat, Scalar, Vec3, heading
from ...sensors.camera import View
from ...sensors.scene import Color, Ground, Scene, Shapes, daylight
from .track import DEPTH, OPENING, OUTER, Gate

TILT = 0.35
"""Upward tilt of the camera, rad: in fast flight the nose points down."""
HORIZONTAL_FOV = 1.9
BAR = (OUTER - OPENING) / 2
"""Width of the bars of a gate's frame, m."""
POST = 0.04
"""Radius of the posts, m."""
COLORS = tuple(
    Color(*rgb)
    for rgb in (
        (0.95, 0.45, 0.10), (0.15, 0.45, 0.85), (0.90, 0.80, 0.20), (0.75, 0.20, 0.45),
        (0.20, 0.75, 0.70), (0.85, 0.15, 0.15), (0.55, 0.35, 0.80), (0.95, 0.95, 0.95),
    )
)  # fmt: skip
"""Colors of the gates in order."""
DRONE_LABEL, POST_LABEL = 100, 101


def race_scene(gates: Sequence[Gate], others: Vec3 | None = None, colors: Sequence[Color] = COLORS) -> Scene:
    """The scene of a track, with other drones at the positions `others`. Gate k has the label k."""
    # Offsets to the left and up, and half edges, of the left, right, upper and lower bar.
    middle = (OPENING + BAR) / 2
    upright, level = (DEPTH / 2, BAR / 2, OPENING / 2), (DEPTH / 2, OUTER / 2, BAR / 2)
    bars = ((middle, 0.0, upright), (-middle, 0.0, upright), (0.0, middle, level), (0.0, -middle, level))
    boxes, posts = [], []
    for number, gate in enumerate(gates):
        color = colors[number % len(colors)]
        attitude = heading(gate.normal)
        left = Vec3(-gate.sin, gate.cos, 0.0)
        up = Vec3(0.0, 0.0, 1.0)
        for side, height, size in bars:
            boxes.append(shape(gate.center + left * side + up * height, attitude, Vec3(*size), color, number))
        # Posts reach from the ground to the lower bar.
        half = jnp.maximum(0.5 * (gate.center.z - OUTER / 2), 1e-3)
        for side in (-1.0, 1.0):
            foot = gate.center + left * (side * (OUTER - BAR) / 2)
            post = Vec3(foot.x, foot.y, half)
            posts.append(shape(post, attitude, Vec3(POST, POST, half), Color(0.4, 0.4, 0.4), POST_LABEL))
    return Scene(
        **daylight(),
        ground=jax.tree.map(jnp.float32, Ground(0.0, 2.0, Color(0.36, 0.45, 0.33), Color(0.42, 0.52, 0.38))),
        boxes=jax.tree.map(lambda *x: jnp.stack(x), *boxes),
        cylinders=jax.tree.map(lambda *x: jnp.stack(x), *posts),
        ellipsoids=None if others is None else drones(others),
    )


def shape(position: Vec3, attitude: Quat, size: Vec3, color: Color, label: int) -> Shapes:
    """One shape, with its numbers as float32 arrays."""
    position, attitude, size, color = jax.tree.map(jnp.float32, (position, attitude, size, color))
    return Shapes(position, attitude, size, color, jnp.int32(label))


def drones(positions: Vec3) -> Shapes:
    """Drones as ellipsoids."""

    def full(number: float) -> Array:
        return jnp.full(jnp.shape(positions.x), number, jnp.float32)

    return Shapes(
        position=positions,
        attitude=Quat(full(1.0), full(0.0), full(0.0), full(0.0)),
        size=Vec3(full(0.15), full(0.15), full(0.06)),
        color=Color(full(0.15), full(0.15), full(0.18)),
        label=jnp.full(jnp.shape(positions.x), DRONE_LABEL, jnp.int32),
    )


def nose_camera(position: Vec3, attitude: Quat, seed: Scalar = 0) -> View:
    """The camera in a drone's nose."""
    up = Quat(math.cos(TILT / 2), 0.0, -math.sin(TILT / 2), 0.0)
    ahead = attitude.forward * 0.05
    return View(position + ahead, attitude * up, jnp.float32(HORIZONTAL_FOV), jnp.asarray(seed, jnp.uint32))
