"""A planar lidar among disks: exact ranges, noise and dropouts."""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.geometry import Scalar, Vec2
from ..core.rng import Rng, approx_gaussian, mix


@dataclass(frozen=True)
class Lidar:
    """Beams in the plane, evenly all around, counter-clockwise from straight ahead."""

    beams: int = 40
    """beams of a scan"""
    max_range: float = 1.0
    """largest range, which is also what a beam that hits nothing returns, m"""
    noise: float = 0.0
    """standard deviation of a range, m"""
    dropout: float = 0.0
    """probability that a beam returns nothing"""

    def __post_init__(self) -> None:
        if self.beams < 1 or not self.max_range > 0.0:
            raise ValueError("a lidar has at least 1 beam and a positive max_range")
        if self.noise < 0.0 or not 0.0 <= self.dropout < 1.0:
            raise ValueError("noise must not be negative, and dropout is a probability below 1")

    @cached_property
    def angles(self) -> np.ndarray:
        """Of each beam, from straight ahead."""
        return np.arange(self.beams) * (2.0 * np.pi / self.beams)

    def ranges(self, centers: list[Vec2], radius: float) -> Float[Array, "beams"]:
        """The range of each beam among disks of one radius, whose centers are in the frame of the lidar.

        A beam along the unit vector u meets the disk around c where t = u·c − √((u·c)² − |c|² + r²).
        """
        squares = [center.dot(center) - radius * radius for center in centers]
        # Without the barrier the centers would be computed again for every beam.
        centers, squares = jax.lax.optimization_barrier((centers, squares))

        def beam(direction: tuple[Array, Array]) -> Array:
            cos, sin = direction
            nearest = jnp.float32(self.max_range)
            for center, square in zip(centers, squares, strict=True):
                along = center.x * cos + center.y * sin
                under = along * along - square
                entry = along - jnp.sqrt(jnp.maximum(under, 0.0))
                nearest = jnp.minimum(nearest, jnp.where((under > 0.0) & (entry > 0.0), entry, self.max_range))
            return nearest

        # Beam by beam: a CPU then vectorizes over worlds.
        directions = (np.cos(self.angles), np.sin(self.angles))
        return jax.lax.map(beam, tuple(jnp.asarray(x, jnp.float32) for x in directions))

    def measure(self, ranges: Float[Array, "beams"], rng: Rng) -> Float[Array, "beams"]:
        """The ranges with noise and dropouts."""
        bits, _ = rng.bits()
        own = mix(bits + jnp.arange(self.beams, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9))
        if self.noise:
            hit = ranges < self.max_range
            ranges = jnp.where(hit, ranges + self.noise * approx_gaussian(own), ranges)
        if self.dropout:
            lost = (mix(own + jnp.uint32(1)) >> 8).astype(jnp.int32).astype(jnp.float32) * 2.0**-24 < self.dropout
            ranges = jnp.where(lost, self.max_range, ranges)
        return jnp.clip(ranges, 0.0, self.max_range)


def to_sensor_frame(point: Vec2, origin: Vec2, sin: Scalar, cos: Scalar) -> Vec2:
    """A point relative to a sensor at `origin` that is turned by the angle of that sine and cosine."""
    return (point - origin).rotated(-sin, cos)
