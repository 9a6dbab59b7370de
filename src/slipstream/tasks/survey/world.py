"""The world of a survey: hills, buildings, trees, people, targets and zones."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from ...core.geometry import Flag, Scalar, Vec2, Vec3, sin_cos
from ...core.struct import struct
from ...sensors.detection import box_occludes, sphere_occludes
from .stacked import fold

MEDIUM, HIGH, NO_FLY = 1, 2, 3
"""Levels of a zone: a threat with a small penalty, a threat that ends the sortie, and a no-fly zone."""
PERSON, VEHICLE = 0, 1
"""Kinds of target; any other kind is an object."""


@struct
class Hill:
    """The cap of a sphere whose center lies below the ground: convex, and nowhere steep."""

    center: Vec3
    radius: Scalar


@struct
class Building:
    """An upright box, with the cosine and sine of its heading."""

    center: Vec2
    half: Vec2
    height: Scalar
    cos: Scalar
    sin: Scalar

    def to_local(self, v: Vec2) -> Vec2:
        """A world vector in the frame of the building."""
        return Vec2(self.cos * v.x + self.sin * v.y, self.cos * v.y - self.sin * v.x)

    def outward(self, point: Vec3) -> Vec3:
        """The vector from the nearest point of the building to `point`; zero inside."""
        offset = self.to_local(Vec2(point.x, point.y) - self.center)
        x = offset.x - jnp.clip(offset.x, -self.half.x, self.half.x)
        y = offset.y - jnp.clip(offset.y, -self.half.y, self.half.y)
        return Vec3(self.cos * x - self.sin * y, self.sin * x + self.cos * y, jnp.maximum(point.z - self.height, 0.0))

    def occludes(self, eye: Vec3, point: Vec3) -> Flag:
        """Whether the building hides a point."""
        start, end = (self.to_local(Vec2(p.x, p.y) - self.center) for p in (eye, point))
        middle = 0.5 * self.height
        ray = Vec3(end.x - start.x, end.y - start.y, point.z - eye.z)
        return box_occludes(Vec3(start.x, start.y, eye.z - middle), ray, Vec3(self.half.x, self.half.y, middle))


@struct
class Tree:
    """A trunk and a round crown."""

    position: Vec2
    height: Scalar
    crown: Scalar  # radius, m


@struct
class OscillatingMover:
    """An object that oscillates along a line about its center; without amplitude it stands still."""

    center: Vec2
    amplitude: Vec2
    angular_frequency: Scalar  # rad/s

    def position_at(self, clock: Scalar) -> Vec2:
        return self.center + self.amplitude * sin_cos(self.angular_frequency * clock)[0]

    def velocity_at(self, clock: Scalar) -> Vec2:
        return self.amplitude * (self.angular_frequency * sin_cos(self.angular_frequency * clock)[1])


@struct
class Target:
    """An object to be found."""

    mover: OscillatingMover
    kind: Int[Array, ""]
    size: Scalar  # m
    value: Scalar
    weight: Scalar  # by the priority of its area


@struct
class Area:
    """An area of interest, where targets are expected."""

    center: Vec2
    radius: Scalar
    priority: Int[Array, ""]  # 0 is the highest


@struct
class Zone:
    """An upright cylinder that drones must avoid while it is active."""

    center: Vec2
    radius: Scalar
    announced_at: Scalar  # time from which drones know of it, s
    starts_at: Scalar
    ends_at: Scalar
    level: Int[Array, ""]

    def announced(self, clock: Scalar) -> Flag:
        """Whether drones know of the zone."""
        return (clock >= self.announced_at) & (clock < self.ends_at)

    def active(self, clock: Scalar) -> Flag:
        return (clock >= self.starts_at) & (clock < self.ends_at)

    def depth(self, point: Vec3) -> Scalar:
        """Distance of a point from the edge, positive inside."""
        return self.radius - (Vec2(point.x, point.y) - self.center).norm()


@struct
class Weather:
    """Wind and light."""

    wind: Vec3
    sun: Vec3  # unit vector towards it
    haze: Scalar  # distance at which half of a color is lost, m
    grain: Scalar  # standard deviation of pixel noise
    tint: Scalar  # dryness of the ground's color, from 0 to 1


@struct
class SurveyWorld:
    """One world. Each of the plural leaves has an axis of its objects."""

    hills: Hill
    buildings: Building
    trees: Tree
    people: OscillatingMover
    targets: Target
    areas: Area
    zones: Zone
    pads: Vec2  # where drones start and land
    weather: Weather
    drain: Scalar  # battery drain, relative to the nominal one
    lifetime: Scalar  # time until the world is replaced, relative to the mean

    def terrain(self, x: Scalar, y: Scalar) -> Scalar:
        """Height of the ground."""

        def higher(top: Scalar, hill: Hill) -> Scalar:
            offset = Vec2(x - hill.center.x, y - hill.center.y)
            room = hill.radius**2 - offset.dot(offset)
            return jnp.maximum(top, hill.center.z + jnp.sqrt(jnp.maximum(room, 1e-6)))

        return fold(higher, 0.0 * jnp.asarray(x), self.hills)

    def occluded(self, eye: Vec3, point: Vec3) -> Flag:
        """Whether a hill or a building hides a point."""
        hidden = fold(lambda h, b: h | b.occludes(eye, point), eye.x != eye.x, self.buildings)
        return fold(lambda h, hill: h | sphere_occludes(eye, point, hill.center, hill.radius), hidden, self.hills)
