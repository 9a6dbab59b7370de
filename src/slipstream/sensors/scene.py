"""What a camera can see: convex shapes, a ground, a sun and a sky."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..core.geometry import Quat, Scalar, Vec3
from ..core.struct import struct

SKY = 255
GROUND = 254


@struct
class Color:
    """Red, green and blue, from 0 to 1."""

    red: Scalar
    green: Scalar
    blue: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar]:
        return self.red, self.green, self.blue


@struct
class Shapes:
    """Shapes of one kind; every leaf has an axis of shapes.

    `size` holds the half edges of a box or the radii of an ellipsoid (a sphere has three equal ones). A cylinder and a
    capsule stand along their own z axis: x is the radius, z half the length of the straight part, and y is not used.
    """

    position: Vec3
    attitude: Quat
    size: Vec3
    color: Color
    label: Int[Array, "n"]  # 0 to 253: what segmentation shows


@struct
class Plane:
    """The half-space n · x ≤ offset, in the frame of its hull."""

    normal: Vec3
    offset: Scalar


@struct
class Hulls:
    """Convex hulls, each the intersection of as many half-spaces; every leaf has an axis of hulls."""

    position: Vec3
    attitude: Quat
    planes: tuple[Plane, ...]
    reach: Scalar  # distance of the farthest corner from the position
    color: Color
    label: Int[Array, "n"]


@struct
class Ground:
    """The plane below everything, with a pattern of tiles that fades into their mean in the distance."""

    height: Scalar
    tile: Scalar  # edge of a tile, m
    color: Color
    other: Color


@struct
class Light:
    """A sun, and light from everywhere."""

    towards_sun: Vec3
    sun: Scalar
    ambient: Scalar


@struct
class Scene:
    """One world as cameras see it. A kind of shape the world has none of is `None`."""

    light: Light
    horizon: Color
    zenith: Color
    sight: Scalar  # distance at which half of a colour is lost in the haze, m
    grain: Scalar  # standard deviation of the noise of a pixel, of 1
    ground: Ground | None = None
    boxes: Shapes | None = None
    ellipsoids: Shapes | None = None
    cylinders: Shapes | None = None
    capsules: Shapes | None = None
    hulls: Hulls | None = None


def shapes(rows: list[dict[str, Any]]) -> Shapes:
    """Shapes from one dictionary each: position, size, colour, label, and attitude if it is not level."""

    def vec(name: str) -> Vec3:
        return Vec3(*jnp.asarray([row[name] for row in rows], jnp.float32).T)

    attitudes = jnp.asarray([row.get("attitude", (1.0, 0.0, 0.0, 0.0)) for row in rows], jnp.float32)
    return Shapes(
        position=vec("position"),
        attitude=Quat(*attitudes.T),
        size=vec("size"),
        color=Color(*jnp.asarray([row["colour"] for row in rows], jnp.float32).T),
        label=jnp.asarray([row["label"] for row in rows], jnp.int32),
    )


def hulls(rows: list[dict[str, Any]]) -> Hulls:
    """Hulls from one dictionary each: corners in their own frame, position, colour, label, attitude.

    All have as many planes as the one with most; the others repeat their last.
    """
    faces = [hull_planes(np.asarray(row["corners"], float)) for row in rows]
    count = max(len(face) for face in faces)
    padded = np.stack([np.concatenate([face, np.repeat(face[-1:], count - len(face), 0)]) for face in faces])
    planes = jnp.asarray(padded, jnp.float32)
    base = shapes([{"size": (0.0, 0.0, 0.0), **row} for row in rows])
    return Hulls(
        position=base.position,
        attitude=base.attitude,
        planes=tuple(Plane(Vec3(*planes[:, k, :3].T), planes[:, k, 3]) for k in range(count)),
        reach=jnp.asarray([np.linalg.norm(row["corners"], axis=1).max() for row in rows], jnp.float32),
        color=base.color,
        label=base.label,
    )


def hull_planes(corners: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "p 4"]:
    """Normal and offset of each face of the convex hull of some corners."""
    planes: list[np.ndarray] = []
    count = len(corners)
    for i in range(count):
        for j in range(i + 1, count):
            for k in range(j + 1, count):
                normal = np.cross(corners[j] - corners[i], corners[k] - corners[i])
                length = np.linalg.norm(normal)
                if length < 1e-9:
                    continue
                normal = normal / length
                for sign in (1.0, -1.0):
                    offset = sign * normal @ corners[i]
                    plane = np.append(sign * normal, offset)
                    outside = corners @ (sign * normal) - offset
                    if outside.max() < 1e-6 and not any(np.allclose(plane, p, atol=1e-5) for p in planes):
                        planes.append(plane)
    if len(planes) < 4:
        raise ValueError(f"{count} corners that do not span a body have no hull")
    return np.stack(planes)


def daylight() -> dict[str, Any]:
    """Light, sky and sight of a clear day."""
    sun = Vec3(0.4, 0.3, 0.87)
    return jax.tree.map(
        jnp.float32,
        {
            "light": Light(sun, 0.65, 0.35),
            "horizon": Color(0.78, 0.85, 0.92),
            "zenith": Color(0.35, 0.55, 0.85),
            "sight": 1000.0,
            "grain": 0.0,
        },
    )
