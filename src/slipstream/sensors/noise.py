"""Gaussian measurement noise."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.geometry import Vec3
from ..core.rng import Rng

if TYPE_CHECKING:
    from ..dynamics.quadrotor import QuadrotorState


def noise_vector(rng: Rng, std: float) -> tuple[Vec3, Rng]:
    """Three independent Gaussian numbers."""
    parts = []
    for _ in range(3):
        part, rng = rng.normal(std)
        parts.append(part)
    return Vec3(*parts), rng


@dataclass(frozen=True)
class SensorNoise:
    """Standard deviations of the noise in a quadrotor's measurement of its own state."""

    position: float = 0.0
    """m, along each axis"""
    velocity: float = 0.0
    """m/s, along each axis"""
    attitude: float = 0.0
    """rad, about each axis"""
    body_rates: float = 0.0
    """rad/s, about each axis"""

    def __post_init__(self) -> None:
        if min(self.position, self.velocity, self.attitude, self.body_rates) < 0.0:
            raise ValueError("sensor noise must not be negative")

    def measure(self, state: "QuadrotorState", rng: Rng) -> "QuadrotorState":
        """The state as noisy instruments show it."""
        if self.position:
            noise, rng = noise_vector(rng, self.position)
            state = replace(state, position=state.position + noise)
        if self.velocity:
            noise, rng = noise_vector(rng, self.velocity)
            state = replace(state, velocity=state.velocity + noise)
        if self.attitude:
            noise, rng = noise_vector(rng, self.attitude)
            state = replace(state, attitude=state.attitude.spun(noise, 1.0))
        if self.body_rates:
            noise, rng = noise_vector(rng, self.body_rates)
            state = replace(state, rates=state.rates + noise)
        return state
