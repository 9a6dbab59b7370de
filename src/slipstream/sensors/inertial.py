"""What a vehicle feels: accelerometer, gyroscope, and whether it touches something."""

from dataclasses import dataclass

from ..core.geometry import Flag, Scalar, Vec3
from ..core.rng import Rng
from ..core.struct import struct


@struct
class ImuBias:
    """What an IMU adds to everything it says, for a whole episode."""

    accelerometer: Vec3
    gyroscope: Vec3


@struct
class ImuReading:
    """Specific force and angular rate in the body, as the IMU says."""

    specific_force: Vec3  # m/s², upward at rest
    rates: Vec3  # rad/s


@dataclass(frozen=True)
class Imu:
    """An inertial measurement unit with a fixed bias and white noise. The defaults are a small MEMS chip."""

    force_noise: float = 0.05
    rates_noise: float = 0.005
    force_bias: float = 0.1
    """standard deviation between units"""
    rates_bias: float = 0.01

    def draw_bias(self, rng: Rng) -> tuple[ImuBias, Rng]:
        force, rng = normal3(rng, self.force_bias)
        rates, rng = normal3(rng, self.rates_bias)
        return ImuBias(force, rates), rng

    def read(self, specific_force: Vec3, rates: Vec3, bias: ImuBias, rng: Rng) -> tuple[ImuReading, Rng]:
        """What the unit says of the truth."""
        force_noise, rng = normal3(rng, self.force_noise)
        rates_noise, rng = normal3(rng, self.rates_noise)
        return ImuReading(specific_force + bias.accelerometer + force_noise, rates + bias.gyroscope + rates_noise), rng


@dataclass(frozen=True)
class Touch:
    """A contact switch: it closes when it is pushed hard enough."""

    threshold: float = 0.01
    """N"""

    def read(self, force: Vec3) -> Flag:
        return force.dot(force) > self.threshold**2


def normal3(rng: Rng, scale: Scalar) -> tuple[Vec3, Rng]:
    """Three Gaussian numbers."""
    x, rng = rng.normal(scale)
    y, rng = rng.normal(scale)
    z, rng = rng.normal(scale)
    return Vec3(x, y, z), rng
