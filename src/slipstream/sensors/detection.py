"""What a detector would find in an image, computed from the true scene: frustum, range, occlusion and chance."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ..core.geometry import Flag, Scalar, Vec3
from ..core.rng import Rng


@dataclass(frozen=True)
class Lens:
    """Field of view and range of a camera. The defaults are a survey drone's, looking at vehicles and people."""

    horizontal_fov: float = math.radians(90.0)
    """horizontal field of view, rad"""
    vertical_fov: float = math.radians(60.0)
    """vertical field of view, rad"""
    max_range: float = 200.0
    """largest distance at which anything is detected, m"""
    image_width: int = 640
    """columns of the image that a detector would read, pixels"""

    def __post_init__(self) -> None:
        if not (0.0 < self.horizontal_fov < math.pi and 0.0 < self.vertical_fov < math.pi):
            raise ValueError("horizontal_fov and vertical_fov must lie between 0 and π")
        if self.max_range <= 0.0 or self.image_width < 1:
            raise ValueError("max_range must be positive and image_width at least 1")

    @property
    def half_width(self) -> float:
        """Half the width of the image at unit distance."""
        return math.tan(self.horizontal_fov / 2)

    @property
    def half_height(self) -> float:
        """Half the height of the image at unit distance."""
        return math.tan(self.vertical_fov / 2)

    def in_view(self, point: Vec3) -> Flag:
        """Whether a point is in the image and in range; `point` is relative to the camera: forward, left, up."""
        wide = jnp.abs(point.y) <= self.half_width * point.x
        high = jnp.abs(point.z) <= self.half_height * point.x
        return (point.x > 0.0) & wide & high & (point.dot(point) <= self.max_range**2)

    def center_offset(self, point: Vec3) -> Scalar:
        """Distance of a point from the center of the image: 0 at the center, 1 at the nearest edge."""
        forward = jnp.maximum(point.x, 1e-3)
        return jnp.maximum(
            jnp.abs(point.y) / (self.half_width * forward), jnp.abs(point.z) / (self.half_height * forward)
        )

    def size_in_pixels(self, extent: Scalar, point: Vec3) -> Scalar:
        """Pixels that an object of `extent` meters takes up at a point."""
        return extent * (0.5 * self.image_width / self.half_width) / jnp.maximum(point.x, 1.0)


@dataclass(frozen=True)
class Detector:
    """Error model of a detector; a real one, measured on our images, can set these."""

    pixels_at_half_detection: float = 10.0
    """size of an object that is detected in every second image, pixels"""
    slope: float = 0.5
    """change of the log-odds of a detection with each pixel of size"""
    position_noise_ratio: float = 0.01
    """standard deviation of a detected position, as a fraction of the distance"""
    false_alarm_rate: float = 0.01
    """false detections per second"""

    def __post_init__(self) -> None:
        smallest = min(self.pixels_at_half_detection, self.position_noise_ratio, self.false_alarm_rate)
        if self.slope <= 0.0 or smallest < 0.0:
            raise ValueError(
                "slope must be positive; pixels_at_half_detection, position_noise_ratio and false_alarm_rate "
                "must not be negative"
            )

    def detection_prob(self, size: Scalar) -> Scalar:
        """The probability that an object of so many pixels is detected in one image."""
        return jax.nn.sigmoid(self.slope * (size - self.pixels_at_half_detection))

    def detect(self, rng: Rng, size: Scalar) -> tuple[Flag, Rng]:
        """Whether an object of so many pixels is detected in this image."""
        drawn, rng = rng.uniform()
        return drawn < self.detection_prob(size), rng


def sphere_occludes(eye: Vec3, point: Vec3, center: Vec3, radius: Scalar) -> Flag:
    """Whether a sphere lies on the line from the eye to a point."""
    ray = point - eye
    along = jnp.clip((center - eye).dot(ray) / jnp.maximum(ray.dot(ray), 1e-6), 0.0, 1.0)
    gap = center - (eye + ray * along)
    return gap.dot(gap) < radius * radius


def box_occludes(start: Vec3, ray: Vec3, half: Vec3) -> Flag:
    """Whether a box around the origin of its own frame lies on the line from `start` to `start + ray`."""
    near, far = jnp.float32(0.0), jnp.float32(1.0)
    for s, r, h in zip(start.parts, ray.parts, half.parts, strict=True):
        inverse = 1.0 / jnp.where(jnp.abs(r) < 1e-6, 1e-6, r)
        a, b = (-h - s) * inverse, (h - s) * inverse
        near, far = jnp.maximum(near, jnp.minimum(a, b)), jnp.minimum(far, jnp.maximum(a, b))
    return near < far
