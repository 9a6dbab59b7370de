"""The sensor messages that PX4 gets in hardware-in-the-loop mode: HIL_SENSOR, HIL_GPS and HIL_STATE_QUATERNION."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.geometry import Scalar, Vec3
from ...dynamics.quadrotor import GRAVITY, QuadrotorState
from .. import mavlink
from .frames import enu_to_ned

HOME = (47.397742, 8.545594, 488.0)
"""Latitude and longitude (degrees) and altitude (m) of the world's origin; the magnetic field belongs to this place."""
MAGNETIC_FIELD_NED = np.array([0.2151, 0.0102, 0.4297])
"""Gauss."""
EARTH_RADIUS = 6_371_000.0
SENSOR_RATE = 250
"""HIL_SENSOR messages a second: at 500 a PX4 with default parameters answers only every other one."""
IMU, MAGNETOMETER, BAROMETER = 0x03F, 0x1C0, 0x1A00
"""Bits of HIL_SENSOR's fields_updated; PX4 uses a sensor only if all of its bits are set."""


@dataclass(frozen=True)
class HilSensors:
    """Noise and ranges of the simulated sensors. PX4 rejects a sensor without noise as stale."""

    accelerometer_noise: float = 0.05
    """standard deviation, m/s²"""
    gyroscope_noise: float = 0.004
    """standard deviation, rad/s"""
    magnetometer_noise: float = 0.003
    """standard deviation, gauss"""
    barometer_noise: float = 0.15
    """standard deviation, m"""
    gps_position_noise: float = 0.1
    """standard deviation, m"""
    gps_velocity_noise: float = 0.02
    """standard deviation, m/s"""
    accelerometer_range: float = 15.5 * GRAVITY
    """m/s²; PX4 stores accelerations up to 16 g"""
    gyroscope_range: float = math.radians(1990.0)
    """rad/s; PX4 stores rates up to 2000°/s"""

    def read_sensors(self, state: QuadrotorState, previous: Vec3, noise: Float[Array, "9"]) -> list[Scalar]:
        """Specific force, body rates and magnetic field of one vehicle, in the FRD frame.

        `previous` is the velocity one message ago, so that contact forces are measured too; `noise` are nine standard
        Gaussian numbers.
        """
        acceleration = (state.velocity - previous) * float(SENSOR_RATE) + Vec3(0.0, 0.0, GRAVITY)
        force = state.attitude.unrotate(acceleration).parts
        field = state.attitude.unrotate(Vec3(*(float(x) for x in enu_to_ned(MAGNETIC_FIELD_NED)))).parts
        signs = (1.0, -1.0, -1.0)
        accelerometer = [s * f + self.accelerometer_noise * n for s, f, n in zip(signs, force, noise[:3], strict=True)]
        gyroscope = [
            s * r + self.gyroscope_noise * n for s, r, n in zip(signs, state.rates.parts, noise[3:6], strict=True)
        ]
        magnetometer = [s * m + self.magnetometer_noise * n for s, m, n in zip(signs, field, noise[6:], strict=True)]
        return [
            *(jnp.clip(x, -self.accelerometer_range, self.accelerometer_range) for x in accelerometer),
            *(jnp.clip(x, -self.gyroscope_range, self.gyroscope_range) for x in gyroscope),
            *magnetometer,
        ]


def pressure_at(altitude: float) -> float:
    """Pressure of the standard atmosphere, hPa."""
    return 1013.25 * (1.0 - 2.25577e-5 * altitude) ** 5.25588


def geodetic(position: Float[np.ndarray, "3"]) -> tuple[int, int, int]:
    """Latitude and longitude in 1e-7 degrees and altitude in mm, of a position in NED from home."""
    north, east, down = position
    lat = HOME[0] + math.degrees(north / EARTH_RADIUS)
    lon = HOME[1] + math.degrees(east / (EARTH_RADIUS * math.cos(math.radians(HOME[0]))))
    return round(lat * 1e7), round(lon * 1e7), round(1000.0 * (HOME[2] - down))


def to_centimeters(velocity: Float[np.ndarray, "3"]) -> list[int]:
    """Velocities in cm/s, clipped to 16 bits."""
    return [max(min(round(100.0 * part), 32767), -32768) for part in velocity]


def gps_values(time_us: int, position: Float[np.ndarray, "3"], velocity: Float[np.ndarray, "3"]) -> tuple[int, ...]:
    """The fields of HIL_GPS, in order, for a measured position and velocity in NED."""
    ground_speed = min(round(100.0 * math.hypot(velocity[0], velocity[1])), 65534)
    return time_us, 3, *geodetic(position), 90, 140, ground_speed, *to_centimeters(velocity), 65535, 12


def state_values(
    time_us: int,
    q: Float[np.ndarray, "4"],
    rates: Float[np.ndarray, "3"],
    position: Float[np.ndarray, "3"],
    velocity: Float[np.ndarray, "3"],
) -> tuple[mavlink.Value, ...]:
    """The fields of HIL_STATE_QUATERNION, in order: the true state, which PX4 only logs."""
    return time_us, q.tolist(), *rates, *geodetic(position), *to_centimeters(velocity), 0, 0, 0, 0, 0
