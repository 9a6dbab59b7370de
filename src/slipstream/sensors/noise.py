"""Measurement errors: Gaussian noise in every step, and a bias that stays for an episode."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from ..core.geometry import Vec3
from ..core.rng import Rng
from ..core.struct import struct

if TYPE_CHECKING:
    from ..dynamics.quadrotor import QuadrotorState


def noise_vector(rng: Rng, std: float) -> tuple[Vec3, Rng]:
    """Three independent Gaussian numbers."""
    parts = []
    for _ in range(3):
        part, rng = rng.normal(std)
        parts.append(part)
    return Vec3(*parts), rng


@struct
class StateError:
    """What instruments add to the state that they measure; None where they are exact."""

    position: Vec3 | None = None  # m
    velocity: Vec3 | None = None  # m/s
    attitude: Vec3 | None = None  # rad, about each axis
    body_rates: Vec3 | None = None  # rad/s

    def apply(self, state: "QuadrotorState") -> "QuadrotorState":
        """The state with these errors."""
        if self.position is not None:
            state = replace(state, position=state.position + self.position)
        if self.velocity is not None:
            state = replace(state, velocity=state.velocity + self.velocity)
        if self.attitude is not None:
            state = replace(state, attitude=state.attitude.spun(self.attitude, 1.0))
        if self.body_rates is not None:
            state = replace(state, rates=state.rates + self.body_rates)
        return state


@dataclass(frozen=True)
class SensorNoise:
    """Standard deviations of the errors in a quadrotor's measurement of its own state."""

    position: float = 0.0
    """noise in each step, m, along each axis"""
    velocity: float = 0.0
    """noise in each step, m/s, along each axis"""
    attitude: float = 0.0
    """noise in each step, rad, about each axis"""
    body_rates: float = 0.0
    """noise in each step, rad/s, about each axis"""
    position_bias: float = 0.0
    """bias of an episode, m, along each axis"""
    velocity_bias: float = 0.0
    """bias of an episode, m/s, along each axis"""
    attitude_bias: float = 0.0
    """bias of an episode, rad, about each axis"""
    body_rates_bias: float = 0.0
    """bias of an episode, rad/s, about each axis"""

    def __post_init__(self) -> None:
        if min(getattr(self, field.name) for field in fields(self)) < 0.0:
            raise ValueError("sensor noise and bias must not be negative")

    def draw_bias(self, rng: Rng) -> tuple[StateError | None, Rng]:
        """The bias of an episode; None if there is none."""
        stds = self.position_bias, self.velocity_bias, self.attitude_bias, self.body_rates_bias
        return draw_errors(rng, *stds) if any(stds) else (None, rng)

    def measure(self, state: "QuadrotorState", rng: Rng, bias: StateError | None = None) -> "QuadrotorState":
        """The state as noisy instruments with that bias show it."""
        if bias is not None:
            state = bias.apply(state)
        error, _ = draw_errors(rng, self.position, self.velocity, self.attitude, self.body_rates)
        return error.apply(state)


def draw_errors(
    rng: Rng, position: float, velocity: float, attitude: float, body_rates: float
) -> tuple[StateError, Rng]:
    """Gaussian errors of those standard deviations."""
    drawn = []
    for std in (position, velocity, attitude, body_rates):
        error = None
        if std:
            error, rng = noise_vector(rng, std)
        drawn.append(error)
    return StateError(*drawn), rng
