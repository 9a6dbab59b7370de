"""What a vehicle feels: accelerometer, gyroscope, and whether it touches something."""

from dataclasses import dataclass

from ..core.geometry import Flag, Scalar, Vec3
from ..core.rng import Chance
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

    def draw_bias(self, chance: Chance) -> tuple[ImuBias, Chance]:
        force, chance = normal3(chance, self.force_bias)
        rates, chance = normal3(chance, self.rates_bias)
        return ImuBias(force, rates), chance

    def read(self, specific_force: Vec3, rates: Vec3, bias: ImuBias, chance: Chance) -> tuple[ImuReading, Chance]:
        """What the unit says of the truth."""
        force_noise, chance = normal3(chance, self.force_noise)
        rates_noise, chance = normal3(chance, self.rates_noise)
        return ImuReading(
            specific_force + bias.accelerometer + force_noise, rates + bias.gyroscope + rates_noise
        ), chance


@dataclass(frozen=True)
class Touch:
    """A contact switch: it closes when it is pushed hard enough."""

    threshold: float = 0.01
    """N"""

    def read(self, force: Vec3) -> Flag:
        return force.dot(force) > self.threshold**2


def normal3(chance: Chance, scale: Scalar) -> tuple[Vec3, Chance]:
    """Three Gaussian numbers."""
    x, chance = chance.normal(scale)
    y, chance = chance.normal(scale)
    z, chance = chance.normal(scale)
    return Vec3(x, y, z), chance
