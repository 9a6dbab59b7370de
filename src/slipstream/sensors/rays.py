"""Intersections of a camera's rays with shapes.

All is computed in inverse depth s = 1/t. A pixel's ray d(u, v) has a forward component of one and is affine in u and v,
so its intersection with a plane is affine, too: a pixel needs no division. With g the signed distance of the camera
inside a half-space, s ≤ (n·d)/g where the camera is outside (g < 0: a front) and s ≥ (n·d)/g where it is inside
(a back). A ray hits a convex body if its smallest front is not below its largest back. The nearest body has the
largest s.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from ..core.geometry import Flag, Scalar, Vec3
from ..core.struct import struct
from .scene import Color, Hulls, Light, Shapes

NO_FRONT = 1e9
"""Inverse depth of a front that does not exist."""
PackedPixels = UInt32[Array, "*b"]
Intersection = tuple[Array, PackedPixels]
"""Inverse depth and packed color; the depth is 0 where a ray misses."""
AnyShapes = TypeVar("AnyShapes")
Prepared = TypeVar("Prepared")


@struct
class Affine:
    """The function c + a u + b v over the image."""

    c: Scalar
    a: Scalar
    b: Scalar

    def at(self, u: Array, v: Array) -> Array:
        return self.c + self.a * u + self.b * v

    def __mul__(self, factor: Scalar) -> "Affine":
        return Affine(self.c * factor, self.a * factor, self.b * factor)

    def where(self, flag: Flag, other: "Affine | float") -> "Affine":
        """This function where the flag is set; elsewhere the other function or constant."""
        other = other if isinstance(other, Affine) else Affine(other, 0.0, 0.0)
        return jax.tree.map(lambda x, y: jnp.where(flag, x, y), self, other)


@struct
class Rays:
    """The rays of a camera: from one point, d = forward + u right + v up."""

    origin: Vec3
    forward: Vec3
    right: Vec3
    up: Vec3

    def component(self, direction: Vec3) -> Affine:
        """The component of every ray along a direction."""
        return Affine(direction.dot(self.forward), direction.dot(self.right), direction.dot(self.up))


@struct
class LocalRays:
    """Rays in the frame of a shape, component by component."""

    x: Affine
    y: Affine
    z: Affine

    def at(self, u: Array, v: Array) -> Vec3:
        return Vec3(self.x.at(u, v), self.y.at(u, v), self.z.at(u, v))


@struct
class Slab:
    """The space between two parallel planes: at most one front, at most two backs."""

    front: Affine
    upper_back: Affine
    lower_back: Affine

    @classmethod
    def seen_from(cls, origin: Scalar, ray: Affine, half: Scalar) -> "Slab":
        """The slab −half ≤ x ≤ half, for rays that start at x = `origin`."""
        above, below = nonzero(half - origin), nonzero(half + origin)
        over, under = above < 0.0, below < 0.0
        up, down = ray * (1.0 / above), ray * (-1.0 / below)
        return cls(up.where(over, down).where(over | under, NO_FRONT), up.where(~over, 0.0), down.where(~under, 0.0))

    def back(self, u: Array, v: Array) -> Array:
        """The larger back."""
        return jnp.maximum(self.upper_back.at(u, v), self.lower_back.at(u, v))


def nonzero(x: Scalar) -> Array:
    """The number, replaced by 1e-6 where it is too near to zero to divide by."""
    return jnp.where(jnp.abs(x) < 1e-6, 1e-6, x)


@dataclass(frozen=True)
class Kind(Generic[AnyShapes, Prepared]):
    """A kind of shape: how a camera prepares its shapes once an image, and intersects its rays with one of them."""

    prepare: Callable[[AnyShapes, Light, Rays], Prepared]
    intersect: Callable[[Prepared, Array, Array], Intersection]
    bounding_radius: Callable[[AnyShapes], Scalar]
    """Radius of a sphere around its position that holds a shape."""


# Colors


def illumination(light: Light, cosine: Scalar) -> Array:
    """Brightness of a surface at that cosine to the sun."""
    return light.ambient + light.sun * jnp.maximum(cosine, 0.0)


def pack(color: Color, label: Array | int) -> PackedPixels:
    """Color and label as the four bytes of a word."""
    r, g, b = (jnp.clip(x * 255.0 + 0.5, 0.0, 255.0).astype(jnp.int32) for x in color.parts)
    return (r | (g << 8) | (b << 16) | (jnp.asarray(label, jnp.int32) << 24)).astype(jnp.uint32)


def shade(color: Color, brightness: Array, label: Array) -> PackedPixels:
    """The packed color of a surface of that brightness."""
    return pack(color * brightness, label)


# Flat shapes


@struct
class PreparedBox:
    """A box for one camera: a slab along each of its axes, and the colors of the faces turned to the camera."""

    slabs: tuple[Slab, Slab, Slab]
    faces: tuple[Array, Array, Array]


def prepare_boxes(boxes: Shapes, light: Light, rays: Rays) -> PreparedBox:
    slabs, faces = [], []
    inside: Flag = True
    axes = boxes.attitude.axes
    offset = rays.origin - boxes.position
    for axis, half in zip((axes.forward, axes.left, axes.up), boxes.size.parts, strict=True):
        origin = axis.dot(offset)
        inside = inside & (jnp.abs(origin) <= half)
        slabs.append(Slab.seen_from(origin, rays.component(axis), half))
        to_sun = axis.dot(light.towards_sun)
        faces.append(shade(boxes.color, illumination(light, jnp.where(origin > 0.0, to_sun, -to_sun)), boxes.label))
    first, second, third = slabs
    # A camera inside a box does not see it: a front below every back.
    first = Slab(first.front.where(~jnp.asarray(inside), -1.0), first.upper_back, first.lower_back)
    return PreparedBox((first, second, third), (faces[0], faces[1], faces[2]))


def intersect_box(box: PreparedBox, u: Array, v: Array) -> Intersection:
    front, color = box.slabs[0].front.at(u, v), box.faces[0]
    back = jnp.maximum(box.slabs[0].back(u, v), 0.0)
    for slab, face in zip(box.slabs[1:], box.faces[1:], strict=True):
        other = slab.front.at(u, v)
        color = jnp.where(other < front, face, color)
        front = jnp.minimum(front, other)
        back = jnp.maximum(back, slab.back(u, v))
    return jnp.where(front >= back, front, 0.0), color


@struct
class PreparedHull:
    """A convex hull for one camera: each face is a front or a back."""

    fronts: tuple[Affine, ...]
    backs: tuple[Affine, ...]
    faces: tuple[Array, ...]


def prepare_hulls(hulls: Hulls, light: Light, rays: Rays) -> PreparedHull:
    offset = hulls.attitude.unrotate(rays.origin - hulls.position)
    fronts, backs, faces = [], [], []
    inside: Flag = True
    for plane in hulls.planes:
        gap = plane.offset - plane.normal.dot(offset)
        normal = hulls.attitude.rotate(plane.normal)
        outside = jnp.asarray(gap < 0.0)
        inside = inside & ~outside
        ray = rays.component(normal) * (1.0 / nonzero(gap))
        fronts.append(ray.where(outside, NO_FRONT))
        backs.append(ray.where(~outside, 0.0))
        faces.append(shade(hulls.color, illumination(light, normal.dot(light.towards_sun)), hulls.label))
    fronts[0] = fronts[0].where(~jnp.asarray(inside), -1.0)
    return PreparedHull(tuple(fronts), tuple(backs), tuple(faces))


def intersect_hull(hull: PreparedHull, u: Array, v: Array) -> Intersection:
    front, back, color = hull.fronts[0].at(u, v), jnp.maximum(hull.backs[0].at(u, v), 0.0), hull.faces[0]
    for next_front, next_back, face in zip(hull.fronts[1:], hull.backs[1:], hull.faces[1:], strict=True):
        other = next_front.at(u, v)
        color = jnp.where(other < front, face, color)
        front = jnp.minimum(front, other)
        back = jnp.maximum(back, next_back.at(u, v))
    return jnp.where(front >= back, front, 0.0), color


# Round shapes


@struct
class PreparedRound:
    """A round shape for one camera, in a frame scaled so that its radius is one."""

    origin: Vec3  # of the rays
    rays: LocalRays
    inverse_radii: Vec3
    half: Scalar  # half the length of the straight part, scaled
    towards_sun: Vec3
    light: Light
    color: Color
    label: Array

    def shade(self, normal: Vec3) -> PackedPixels:
        """The color of a surface with that normal, which need not have unit length."""
        cosine = normal.dot(self.towards_sun) * jax.lax.rsqrt(jnp.maximum(normal.dot(normal), 1e-20))
        return shade(self.color, illumination(self.light, cosine), self.label)


def prepare_round(shapes: Shapes, light: Light, rays: Rays, radii: Vec3, half: Scalar) -> PreparedRound:
    axes = shapes.attitude.axes
    inverse = Vec3(1.0 / radii.x, 1.0 / radii.y, 1.0 / radii.z)
    origin = axes.unrotate(rays.origin - shapes.position) * inverse
    zeros = jnp.zeros_like(origin.x)
    return PreparedRound(
        origin=origin,
        rays=LocalRays(
            rays.component(axes.forward) * inverse.x,
            rays.component(axes.left) * inverse.y,
            rays.component(axes.up) * inverse.z,
        ),
        inverse_radii=inverse,
        half=half + zeros,
        towards_sun=axes.unrotate(light.towards_sun),
        light=jax.tree.map(lambda x: x + zeros, light),
        color=shapes.color,
        label=shapes.label,
    )


def prepare_ellipsoids(shapes: Shapes, light: Light, rays: Rays) -> PreparedRound:
    return prepare_round(shapes, light, rays, shapes.size, 0.0)


def prepare_tubes(shapes: Shapes, light: Light, rays: Rays) -> PreparedRound:
    """Cylinders or capsules."""
    radius = shapes.size.x
    return prepare_round(shapes, light, rays, Vec3(radius, radius, radius), shapes.size.z / radius)


def intersect_unit_ball(origin: Vec3, ray: Vec3) -> Array:
    """Inverse depth of the unit ball around zero; 0 where a ray misses it or starts inside."""
    gap = origin.dot(origin) - 1.0
    towards = -origin.dot(ray)
    cross = origin.cross(ray)
    # |q|² − |p × q|², which is (p·q)² − (|p|² − 1) |q|² without its cancellation.
    discriminant = ray.dot(ray) - cross.dot(cross)
    s = (towards + jnp.sqrt(jnp.maximum(discriminant, 0.0))) / nonzero(gap)
    return jnp.where((discriminant >= 0.0) & (towards > 0.0) & (gap > 0.0), s, 0.0)


def intersect_unit_cylinder(origin: Vec3, ray: Vec3) -> tuple[Array, Array, Array]:
    """Front, back and whether there is one, of the infinite cylinder of radius one around z."""
    gap = nonzero(origin.x * origin.x + origin.y * origin.y - 1.0)
    towards = -(origin.x * ray.x + origin.y * ray.y)
    cross = origin.x * ray.y - origin.y * ray.x
    discriminant = ray.x * ray.x + ray.y * ray.y - cross * cross
    root = jnp.sqrt(jnp.maximum(discriminant, 0.0))
    front = jnp.where(gap > 0.0, (towards + root) / gap, NO_FRONT)
    return front, (towards - root) / gap, jnp.asarray(discriminant >= 0.0)


def point_at(origin: Vec3, ray: Vec3, s: Array) -> Vec3:
    """The point of a ray at that inverse depth."""
    return origin + ray * (1.0 / jnp.maximum(s, 1e-9))


def intersect_ellipsoid(shape: PreparedRound, u: Array, v: Array) -> Intersection:
    ray = shape.rays.at(u, v)
    s = intersect_unit_ball(shape.origin, ray)
    return s, shape.shade(point_at(shape.origin, ray, s) * shape.inverse_radii)


def intersect_cylinder(shape: PreparedRound, u: Array, v: Array) -> Intersection:
    ray = shape.rays.at(u, v)
    side, back, meets = intersect_unit_cylinder(shape.origin, ray)
    caps = Slab.seen_from(shape.origin.z, shape.rays.z, shape.half)
    cap = caps.front.at(u, v)
    front = jnp.minimum(side, cap)
    back = jnp.maximum(jnp.maximum(back, 0.0), caps.back(u, v))
    s = jnp.where(meets & (front >= back) & (front < NO_FRONT), front, 0.0)
    at, flat = point_at(shape.origin, ray, s), cap < side
    end = jnp.sign(shape.origin.z)
    return s, shape.shade(Vec3(jnp.where(flat, 0.0, at.x), jnp.where(flat, 0.0, at.y), jnp.where(flat, end, 0.0)))


def intersect_capsule(shape: PreparedRound, u: Array, v: Array) -> Intersection:
    ray, origin, half = shape.rays.at(u, v), shape.origin, shape.half
    side, _, meets = intersect_unit_cylinder(origin, ray)
    straight = jnp.abs(point_at(origin, ray, side).z) <= half
    s = jnp.where(meets & (side > 0.0) & (side < NO_FRONT) & straight, side, 0.0)
    for end in (half, -half):
        s = jnp.maximum(s, intersect_unit_ball(Vec3(origin.x, origin.y, origin.z - end), ray))
    beyond = jnp.maximum(jnp.abs(origin.z) - half, 0.0)
    s = jnp.where(origin.x * origin.x + origin.y * origin.y + beyond * beyond < 1.0, 0.0, s)
    at = point_at(origin, ray, s)
    return s, shape.shade(Vec3(at.x, at.y, at.z - jnp.clip(at.z, -half, half)))


def _box_radius(boxes: Shapes) -> Scalar:
    return boxes.size.norm()


def _ellipsoid_radius(ellipsoids: Shapes) -> Scalar:
    return jnp.max(jnp.stack(ellipsoids.size.parts), axis=0)


def _cylinder_radius(cylinders: Shapes) -> Scalar:
    return jnp.sqrt(cylinders.size.x**2 + cylinders.size.z**2)


def _capsule_radius(capsules: Shapes) -> Scalar:
    return capsules.size.x + capsules.size.z


def _hull_radius(hulls: Hulls) -> Scalar:
    return hulls.bounding_radius


KINDS: dict[str, Kind[Any, Any]] = {
    "boxes": Kind(prepare_boxes, intersect_box, _box_radius),
    "ellipsoids": Kind(prepare_ellipsoids, intersect_ellipsoid, _ellipsoid_radius),
    "cylinders": Kind(prepare_tubes, intersect_cylinder, _cylinder_radius),
    "capsules": Kind(prepare_tubes, intersect_capsule, _capsule_radius),
    "hulls": Kind(prepare_hulls, intersect_hull, _hull_radius),
}
"""By the field of `Scene` that holds such shapes."""
