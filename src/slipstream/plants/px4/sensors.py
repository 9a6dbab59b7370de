"""What the sensors of a vehicle tell PX4."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...core.geometry import Vec3
from ...dynamics.quadrotor import GRAVITY, QuadrotorState
from .frames import turned

HOME = (47.397742, 8.545594, 488.0)
"""Latitude, longitude and height of the world's origin: where the magnetic field below is that of the Earth."""
FIELD = np.array([0.2151, 0.0102, 0.4297])
"""Gauss, north-east-down."""
EARTH = 6_371_000.0
RATE = 250
"""HIL_SENSOR a second: at 500 a PX4 with stock parameters answers every other one."""
IMU, MAGNETOMETER, BAROMETER = 0x03F, 0x1C0, 0x1A00
"""Fields of a HIL_SENSOR; PX4 takes a sensor's only if all of them are there."""


@dataclass(frozen=True)
class Sensors:
    """How well the sensors work. Noise is always on: PX4 calls a quiet sensor stale."""

    force_noise: float = 0.05
    rates_noise: float = 0.004
    field_noise: float = 0.003
    height_noise: float = 0.15
    place_noise: float = 0.1
    speed_noise: float = 0.02
    force_limit: float = 15.5 * GRAVITY
    rates_limit: float = math.radians(1990.0)

    def feel(self, flight: QuadrotorState, before: Vec3, noise: Any) -> list[Any]:
        """Of one vehicle, forward-right-down: specific force, rates and magnetic field, within what PX4 can hold.

        `noise` is nine standard Gaussian numbers; `before` the velocity one message ago, so that a contact is felt.
        """
        push = (flight.velocity - before) * float(RATE) + Vec3(0.0, 0.0, GRAVITY)
        force = flight.attitude.unrotate(push).parts
        field = flight.attitude.unrotate(Vec3(*(float(x) for x in turned(FIELD)))).parts
        signs = (1.0, -1.0, -1.0)
        felt = [s * f + self.force_noise * n for s, f, n in zip(signs, force, noise[:3], strict=True)]
        spin = [s * r + self.rates_noise * n for s, r, n in zip(signs, flight.rates.parts, noise[3:6], strict=True)]
        pull = [s * m + self.field_noise * n for s, m, n in zip(signs, field, noise[6:], strict=True)]
        return [
            *(jnp.clip(x, -self.force_limit, self.force_limit) for x in felt),
            *(jnp.clip(x, -self.rates_limit, self.rates_limit) for x in spin),
            *pull,
        ]


def pressure_at(height: float) -> float:
    """Of the standard atmosphere, hPa."""
    return 1013.25 * (1.0 - 2.25577e-5 * height) ** 5.25588


def on_earth(place: np.ndarray) -> tuple[int, int, int]:
    """Latitude and longitude in 1e-7 degrees and height in mm of a place, north-east-down from home."""
    north, east, down = place
    lat = HOME[0] + math.degrees(north / EARTH)
    lon = HOME[1] + math.degrees(east / (EARTH * math.cos(math.radians(HOME[0]))))
    return round(lat * 1e7), round(lon * 1e7), round(1000.0 * (HOME[2] - down))


def centimetres(speed: np.ndarray) -> list[int]:
    """Speeds as two bytes each hold them."""
    return [max(min(round(100.0 * part), 32767), -32768) for part in speed]


def fix_of(time_us: int, place: np.ndarray, speed: np.ndarray) -> tuple[int, ...]:
    """What a satellite receiver says at a place."""
    over_ground = min(round(100.0 * math.hypot(speed[0], speed[1])), 65534)
    return time_us, *on_earth(place), 90, 140, over_ground, *centimetres(speed), 65535, 3, 12


def state_of(time_us: int, q: np.ndarray, rates: np.ndarray, place: np.ndarray, speed: np.ndarray) -> tuple[Any, ...]:
    """The truth, for PX4's log."""
    return time_us, *q, *rates, *on_earth(place), *centimetres(speed), 0, 0, 0, 0, 0
