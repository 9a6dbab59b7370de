"""Where the rays of a camera meet shapes.

Everything is done in inverse depth s = 1/t. A pixel's ray d(u, v) has a forward part of one and is affine in u and v,
so where it meets a plane is affine, too: no division in a pixel. With g the distance of the camera inside a half-space,
s ≤ (n·d)/g where the camera is outside (g < 0: a front) and s ≥ (n·d)/g where it is inside (a back). A ray hits
a convex body if its smallest front is not below its largest back, and the nearest body has the largest s.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from ..core.geometry import Flag, Scalar, Vec3
from ..core.struct import struct
from .scene import Color, Hulls, Light, Shapes

NONE = 1e9  # a front that is not there
PackedWords = UInt32[Array, "*b"]


@struct
class Affine:
    """c + a u + b v over the picture."""

    c: Scalar
    a: Scalar
    b: Scalar

    def at(self, u: Array, v: Array) -> Array:
        return self.c + self.a * u + self.b * v

    def __mul__(self, factor: Scalar) -> "Affine":
        return Affine(self.c * factor, self.a * factor, self.b * factor)

    def where(self, flag: Flag, other: "Affine | float") -> "Affine":
        """This where the flag is set; else the other, or that number everywhere."""
        other = other if isinstance(other, Affine) else Affine(other, 0.0, 0.0)
        return jax.tree.map(lambda x, y: jnp.where(flag, x, y), self, other)


@struct
class Rays:
    """The rays of a camera: from one point, d = forward + u right + v up."""

    origin: Vec3
    forward: Vec3
    right: Vec3
    up: Vec3

    def along(self, direction: Vec3) -> Affine:
        """The part of every ray along a direction."""
        return Affine(direction.dot(self.forward), direction.dot(self.right), direction.dot(self.up))


@struct
class Bundle:
    """Rays in the frame of a shape, part by part."""

    x: Affine
    y: Affine
    z: Affine

    def at(self, u: Array, v: Array) -> Vec3:
        return Vec3(self.x.at(u, v), self.y.at(u, v), self.z.at(u, v))


@struct
class Slab:
    """The space between two parallel planes: at most one front, at most two backs."""

    front: Affine
    back: Affine
    other: Affine

    @classmethod
    def of(cls, place: Scalar, ray: Affine, half: Scalar) -> "Slab":
        """Of half a thickness, seen from `place` along its normal."""
        above, below = apart(half - place), apart(half + place)
        over, under = above < 0.0, below < 0.0
        up, down = ray * (1.0 / above), ray * (-1.0 / below)
        return cls(up.where(over, down).where(over | under, NONE), up.where(~over, 0.0), down.where(~under, 0.0))

    def behind(self, u: Array, v: Array) -> Array:
        """The larger back."""
        return jnp.maximum(self.back.at(u, v), self.other.at(u, v))


def apart(x: Scalar) -> Array:
    """The number, but not too near to zero to divide by."""
    return jnp.where(jnp.abs(x) < 1e-6, 1e-6, x)


@dataclass(frozen=True)
class Kind:
    """A kind of shape: what a camera works out for each beforehand, and what then gives inverse depth and colour."""

    draw_restart: Callable[[Any, Light, Rays], Any]
    hit: Callable[[Any, Array, Array], tuple[Array, Array]]
    reach: Callable[[Any], Scalar]
    """Radius of a ball around its position that holds a shape."""


# Colours


def lit(light: Light, cosine: Scalar) -> Array:
    """Brightness of a surface at that cosine to the sun."""
    return light.ambient + light.sun * jnp.maximum(cosine, 0.0)


def pack(red: Scalar, green: Scalar, blue: Scalar, label: Any) -> PackedWords:
    """A word of four bytes, from colours of 0 to 1."""
    r, g, b = (jnp.clip(x * 255.0 + 0.5, 0.0, 255.0).astype(jnp.int32) for x in (red, green, blue))
    return (r | (g << 8) | (b << 16) | (label << 24)).astype(jnp.uint32)


def tinted(color: Color, brightness: Array, label: Array) -> PackedWords:
    red, green, blue = (part * brightness for part in color.parts)
    return pack(red, green, blue, label)


# Flat shapes


@struct
class BoxSeen:
    """A box from one camera: a slab along each of its axes, and the colours of the faces turned to it."""

    slabs: tuple[Slab, Slab, Slab]
    faces: tuple[Array, Array, Array]


def see_boxes(some: Shapes, light: Light, rays: Rays) -> BoxSeen:
    slabs, faces = [], []
    inside: Flag = True
    local = some.attitude.axes
    offset = rays.origin - some.position
    for axis, half in zip((local.forward, local.left, local.up), some.size.parts, strict=True):
        place = axis.dot(offset)
        inside = inside & (jnp.abs(place) <= half)
        slabs.append(Slab.of(place, rays.along(axis), half))
        towards = axis.dot(light.towards_sun)
        faces.append(tinted(some.color, lit(light, jnp.where(place > 0.0, towards, -towards)), some.label))
    first, second, third = slabs
    # From inside nothing is seen: a front below every back.
    first = Slab(first.front.where(~jnp.asarray(inside), -1.0), first.back, first.other)
    return BoxSeen((first, second, third), (faces[0], faces[1], faces[2]))


def hit_box(box: BoxSeen, u: Array, v: Array) -> tuple[Array, Array]:
    front, color = box.slabs[0].front.at(u, v), box.faces[0]
    back = jnp.maximum(box.slabs[0].behind(u, v), 0.0)
    for slab, face in zip(box.slabs[1:], box.faces[1:], strict=True):
        other = slab.front.at(u, v)
        color = jnp.where(other < front, face, color)
        front = jnp.minimum(front, other)
        back = jnp.maximum(back, slab.behind(u, v))
    return jnp.where(front >= back, front, 0.0), color


@struct
class HullSeen:
    """A convex hull from one camera: each face is a front or a back."""

    fronts: tuple[Affine, ...]
    backs: tuple[Affine, ...]
    faces: tuple[Array, ...]


def see_hulls(some: Hulls, light: Light, rays: Rays) -> HullSeen:
    offset = some.attitude.unrotate(rays.origin - some.position)
    fronts, backs, faces = [], [], []
    inside: Flag = True
    for plane in some.planes:
        gap = plane.offset - plane.normal.dot(offset)
        normal = some.attitude.rotate(plane.normal)
        outside = jnp.asarray(gap < 0.0)
        inside = inside & ~outside
        ray = rays.along(normal) * (1.0 / apart(gap))
        fronts.append(ray.where(outside, NONE))
        backs.append(ray.where(~outside, 0.0))
        faces.append(tinted(some.color, lit(light, normal.dot(light.towards_sun)), some.label))
    fronts[0] = fronts[0].where(~jnp.asarray(inside), -1.0)
    return HullSeen(tuple(fronts), tuple(backs), tuple(faces))


def hit_hull(hull: HullSeen, u: Array, v: Array) -> tuple[Array, Array]:
    front, back, color = hull.fronts[0].at(u, v), jnp.maximum(hull.backs[0].at(u, v), 0.0), hull.faces[0]
    for other, behind, face in zip(hull.fronts[1:], hull.backs[1:], hull.faces[1:], strict=True):
        other = other.at(u, v)
        color = jnp.where(other < front, face, color)
        front = jnp.minimum(front, other)
        back = jnp.maximum(back, behind.at(u, v))
    return jnp.where(front >= back, front, 0.0), color


# Round shapes


@struct
class RoundSeen:
    """A round shape from one camera, in a frame scaled so that its radius is one."""

    place: Vec3  # of the camera
    rays: Bundle
    shrink: Vec3  # 1 / radius along each axis
    half: Scalar  # of the straight part, scaled
    sun: Vec3  # towards it
    light: Light
    color: Color
    label: Array

    def shaded(self, normal: Vec3) -> PackedWords:
        """The colour of a surface with that normal, of any length."""
        cosine = normal.dot(self.sun) * jax.lax.rsqrt(jnp.maximum(normal.dot(normal), 1e-20))
        return tinted(self.color, lit(self.light, cosine), self.label)


def see_round(some: Shapes, light: Light, rays: Rays, radii: Vec3, half: Scalar) -> RoundSeen:
    local = some.attitude.axes
    shrink = Vec3(1.0 / radii.x, 1.0 / radii.y, 1.0 / radii.z)
    place = local.unrotate(rays.origin - some.position) * shrink
    like = jnp.zeros_like(place.x)
    return RoundSeen(
        place=place,
        rays=Bundle(
            rays.along(local.forward) * shrink.x, rays.along(local.left) * shrink.y, rays.along(local.up) * shrink.z
        ),
        shrink=shrink,
        half=half + like,
        sun=local.unrotate(light.towards_sun),
        light=jax.tree.map(lambda x: x + like, light),
        color=some.color,
        label=some.label,
    )


def see_ellipsoids(some: Shapes, light: Light, rays: Rays) -> RoundSeen:
    return see_round(some, light, rays, some.size, 0.0)


def see_tubes(some: Shapes, light: Light, rays: Rays) -> RoundSeen:
    radius = some.size.x
    return see_round(some, light, rays, Vec3(radius, radius, radius), some.size.z / radius)


def ball(place: Vec3, ray: Vec3) -> Array:
    """Inverse depth of the unit ball around the origin; 0 where it is missed, or seen from inside."""
    gap = place.dot(place) - 1.0
    towards = -place.dot(ray)
    cross = place.cross(ray)
    # |q|² − |p × q|², which is (p·q)² − (|p|² − 1) |q|² without its cancellation.
    room = ray.dot(ray) - cross.dot(cross)
    s = (towards + jnp.sqrt(jnp.maximum(room, 0.0))) / apart(gap)
    return jnp.where((room >= 0.0) & (towards > 0.0) & (gap > 0.0), s, 0.0)


def tube(place: Vec3, ray: Vec3) -> tuple[Array, Array, Array]:
    """Where rays meet the endless cylinder of radius one: front, back, and whether they do."""
    gap = apart(place.x * place.x + place.y * place.y - 1.0)
    towards = -(place.x * ray.x + place.y * ray.y)
    cross = place.x * ray.y - place.y * ray.x
    room = ray.x * ray.x + ray.y * ray.y - cross * cross
    root = jnp.sqrt(jnp.maximum(room, 0.0))
    return jnp.where(gap > 0.0, (towards + root) / gap, NONE), (towards - root) / gap, jnp.asarray(room >= 0.0)


def point(place: Vec3, ray: Vec3, s: Array) -> Vec3:
    """Where a ray is at that inverse depth."""
    return place + ray * (1.0 / jnp.maximum(s, 1e-9))


def hit_ellipsoid(shape: RoundSeen, u: Array, v: Array) -> tuple[Array, Array]:
    ray = shape.rays.at(u, v)
    s = ball(shape.place, ray)
    return s, shape.shaded(point(shape.place, ray, s) * shape.shrink)


def hit_cylinder(shape: RoundSeen, u: Array, v: Array) -> tuple[Array, Array]:
    ray = shape.rays.at(u, v)
    side, back, meets = tube(shape.place, ray)
    caps = Slab.of(shape.place.z, shape.rays.z, shape.half)
    cap = caps.front.at(u, v)
    front = jnp.minimum(side, cap)
    back = jnp.maximum(jnp.maximum(back, 0.0), caps.behind(u, v))
    s = jnp.where(meets & (front >= back) & (front < NONE), front, 0.0)
    at, flat = point(shape.place, ray, s), cap < side
    end = jnp.sign(shape.place.z)
    return s, shape.shaded(Vec3(jnp.where(flat, 0.0, at.x), jnp.where(flat, 0.0, at.y), jnp.where(flat, end, 0.0)))


def hit_capsule(shape: RoundSeen, u: Array, v: Array) -> tuple[Array, Array]:
    ray, place, half = shape.rays.at(u, v), shape.place, shape.half
    side, _, meets = tube(place, ray)
    straight = jnp.abs(point(place, ray, side).z) <= half
    s = jnp.where(meets & (side > 0.0) & (side < NONE) & straight, side, 0.0)
    for end in (half, -half):
        s = jnp.maximum(s, ball(Vec3(place.x, place.y, place.z - end), ray))
    beyond = jnp.maximum(jnp.abs(place.z) - half, 0.0)
    s = jnp.where(place.x * place.x + place.y * place.y + beyond * beyond < 1.0, 0.0, s)
    at = point(place, ray, s)
    return s, shape.shaded(Vec3(at.x, at.y, at.z - jnp.clip(at.z, -half, half)))


KINDS: dict[str, Kind] = {
    "boxes": Kind(see_boxes, hit_box, lambda some: some.size.norm()),
    "ellipsoids": Kind(see_ellipsoids, hit_ellipsoid, lambda some: jnp.max(jnp.stack(some.size.parts), axis=0)),
    "cylinders": Kind(see_tubes, hit_cylinder, lambda some: jnp.sqrt(some.size.x**2 + some.size.z**2)),
    "capsules": Kind(see_tubes, hit_capsule, lambda some: some.size.x + some.size.z),
    "hulls": Kind(see_hulls, hit_hull, lambda some: some.reach),
}
