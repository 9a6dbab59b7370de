"""What a detector would find in a picture, told from the truth: frustum, range, occlusion, and chance."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ..core.geometry import Flag, Scalar, Vec3
from ..core.rng import Rng


@dataclass(frozen=True)
class Lens:
    """What a camera can see at all. The defaults are a survey drone's, looking at vehicles and people."""

    width: float = math.radians(90.0)
    """horizontal field of view, rad"""
    height: float = math.radians(60.0)
    reach: float = 200.0
    """farthest distance at which anything is told, m"""
    pixels: int = 640
    """columns of the picture a detector would read"""

    def __post_init__(self) -> None:
        if not (0.0 < self.width < math.pi and 0.0 < self.height < math.pi):
            raise ValueError("the field of view of a lens lies between 0 and π")
        if self.reach <= 0.0 or self.pixels < 1:
            raise ValueError("a lens has a positive reach and at least one pixel")

    @property
    def aside(self) -> float:
        return math.tan(self.width / 2)

    @property
    def above(self) -> float:
        return math.tan(self.height / 2)

    def frames(self, seen: Vec3) -> Flag:
        """Whether a point is in the picture; `seen` is relative to the camera: ahead, left, up."""
        wide = jnp.abs(seen.y) <= self.aside * seen.x
        return (seen.x > 0.0) & wide & (jnp.abs(seen.z) <= self.above * seen.x) & (seen.dot(seen) <= self.reach**2)

    def off_centre(self, seen: Vec3) -> Scalar:
        """How far from the middle of the picture: 0 there, 1 at its nearer edge."""
        ahead = jnp.maximum(seen.x, 1e-3)
        return jnp.maximum(jnp.abs(seen.y) / (self.aside * ahead), jnp.abs(seen.z) / (self.above * ahead))

    def size(self, extent: Scalar, seen: Vec3) -> Scalar:
        """Pixels that something of `extent` metres takes up."""
        return extent * (0.5 * self.pixels / self.aside) / jnp.maximum(seen.x, 1.0)


@dataclass(frozen=True)
class Detector:
    """How well a detector does. A real one, measured on our pictures, can set these."""

    half: float = 10.0
    """pixels at which every second look finds a thing"""
    slope: float = 0.5
    """change of the log-odds with every pixel more"""
    blur: float = 0.01
    """standard deviation of a found position, as a share of the distance"""
    false_alarms: float = 0.01
    """a second"""

    def __post_init__(self) -> None:
        if self.slope <= 0.0 or min(self.half, self.blur, self.false_alarms) < 0.0:
            raise ValueError("a detector's slope is positive, its half, blur and false alarms are not negative")

    def odds(self, size: Scalar) -> Scalar:
        """The probability that one look finds a thing of so many pixels."""
        return jax.nn.sigmoid(self.slope * (size - self.half))

    def finds(self, rng: Rng, size: Scalar) -> tuple[Flag, Rng]:
        drawn, rng = rng.uniform()
        return drawn < self.odds(size), rng


def ball_between(eye: Vec3, point: Vec3, center: Vec3, radius: Scalar) -> Flag:
    """Whether a ball hides the point."""
    way = point - eye
    share = jnp.clip((center - eye).dot(way) / jnp.maximum(way.dot(way), 1e-6), 0.0, 1.0)
    gap = center - (eye + way * share)
    return gap.dot(gap) < radius * radius


def box_between(start: Vec3, way: Vec3, half: Vec3) -> Flag:
    """Whether a box around the origin of its own frame lies on the way from `start` to `start + way`."""
    near, far = jnp.float32(0.0), jnp.float32(1.0)
    for s, w, h in zip(start.parts, way.parts, half.parts, strict=True):
        inverse = 1.0 / jnp.where(jnp.abs(w) < 1e-6, 1e-6, w)
        a, b = (-h - s) * inverse, (h - s) * inverse
        near, far = jnp.maximum(near, jnp.minimum(a, b)), jnp.minimum(far, jnp.maximum(a, b))
    return near < far
