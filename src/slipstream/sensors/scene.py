"""What a camera can see: convex shapes, a ground, a sun and a sky."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int

from ..core.geometry import Quat, Scalar, Vec3
from ..core.struct import struct

SKY = 255
GROUND = 254
"""Labels of the background in segmentation."""
ShapeRow = Mapping[str, npt.ArrayLike]
"""One shape as plain numbers, by the names of the fields of `Shapes`."""


@struct
class Color:
    """Red, green and blue, from 0 to 1; of one thing, or of every pixel."""

    red: Scalar
    green: Scalar
    blue: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar]:
        return self.red, self.green, self.blue

    def __mul__(self, factor: Scalar) -> "Color":
        return Color(self.red * factor, self.green * factor, self.blue * factor)

    def blend(self, other: "Color", fraction: Scalar) -> "Color":
        """This color at fraction 0, the other at 1."""
        return Color(*(a + (b - a) * fraction for a, b in zip(self.parts, other.parts, strict=True)))


@struct
class Shapes:
    """Shapes of one kind; every leaf has a shapes axis.

    `size` holds the half edges of a box or the radii of an ellipsoid. The axis of a cylinder or capsule is its own z:
    `size.x` is the radius, `size.z` half the length of the straight part, and `size.y` is not used.
    """

    position: Vec3
    attitude: Quat
    size: Vec3
    color: Color
    label: Int[Array, "n"]  # 0 to 253, for segmentation


@struct
class Plane:
    """The half-space n · x ≤ offset, in the frame of its hull."""

    normal: Vec3
    offset: Scalar


@struct
class Hulls:
    """Convex hulls, each the intersection of the same number of half-spaces; every leaf has a hulls axis."""

    position: Vec3
    attitude: Quat
    planes: tuple[Plane, ...]
    bounding_radius: Scalar  # distance of the farthest corner from the position
    color: Color
    label: Int[Array, "n"]


@struct
class Ground:
    """The horizontal plane below everything, with a checkerboard that fades to its mean color in the distance."""

    height: Scalar
    tile: Scalar  # edge of a tile, m
    color: Color
    other_color: Color


@struct
class Light:
    """Directional light from the sun, and ambient light."""

    towards_sun: Vec3
    sun: Scalar  # brightness it adds to a surface that faces it, from 0 to 1
    ambient: Scalar


@struct
class Scene:
    """What cameras see of one world. A kind of shape that the world does not contain is `None`."""

    light: Light
    horizon: Color
    zenith: Color
    visibility: Scalar  # distance at which haze replaces half of a color, m
    pixel_noise: Scalar  # standard deviation of the noise of a color from 0 to 1
    ground: Ground | None = None
    boxes: Shapes | None = None
    ellipsoids: Shapes | None = None
    cylinders: Shapes | None = None
    capsules: Shapes | None = None
    hulls: Hulls | None = None


def shapes(rows: Sequence[ShapeRow]) -> Shapes:
    """Shapes from one dictionary each: position, size, color, label, and attitude if it is not the identity."""

    def vec(name: str) -> Vec3:
        return Vec3(*jnp.asarray([row[name] for row in rows], jnp.float32).T)

    attitudes = jnp.asarray([row.get("attitude", (1.0, 0.0, 0.0, 0.0)) for row in rows], jnp.float32)
    return Shapes(
        position=vec("position"),
        attitude=Quat(*attitudes.T),
        size=vec("size"),
        color=Color(*jnp.asarray([row["color"] for row in rows], jnp.float32).T),
        label=jnp.asarray([row["label"] for row in rows], jnp.int32),
    )


def hulls(rows: Sequence[ShapeRow]) -> Hulls:
    """Hulls from one dictionary each: position, color, label, attitude, and `corners` in the hull's own frame.

    All have as many planes as the hull with most faces: the others repeat their last plane.
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
        bounding_radius=jnp.asarray([np.linalg.norm(row["corners"], axis=1).max() for row in rows], jnp.float32),
        color=base.color,
        label=base.label,
    )


def hull_planes(corners: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "p 4"]:
    """Normal and offset of each face of the convex hull of the corners."""
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
        raise ValueError(f"the hull of these {count} corners has no volume")
    return np.stack(planes)


class Surroundings(TypedDict):
    """The arguments of `Scene` that every scene needs."""

    light: Light
    horizon: Color
    zenith: Color
    visibility: Scalar
    pixel_noise: Scalar


def daylight() -> Surroundings:
    """Light, sky and visibility of a clear day."""
    clear_day = Surroundings(
        light=Light(Vec3(0.4, 0.3, 0.87), sun=0.65, ambient=0.35),
        horizon=Color(0.78, 0.85, 0.92),
        zenith=Color(0.35, 0.55, 0.85),
        visibility=1000.0,
        pixel_noise=0.0,
    )
    return jax.tree.map(jnp.float32, clear_day)
