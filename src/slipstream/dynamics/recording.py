"""Recorded flights, from a plant or from a flight log."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Recording:
    """Flights of equal length: the command of every step, and the vehicle before the first and after every step."""

    commands: Float[np.ndarray, "flights steps 4"]
    position: Float[np.ndarray, "flights moments 3"]
    velocity: Float[np.ndarray, "flights moments 3"]
    attitude: Float[np.ndarray, "flights moments 4"]
    rates: Float[np.ndarray, "flights moments 3"]
    rotors: Float[np.ndarray, "flights moments 4"]
    dt: float
    """seconds of a step"""
    source: str
    """plant or log file that the flights come from"""

    def select(self, which: slice) -> "Recording":
        """Some of the flights."""
        fields = ("commands", "position", "velocity", "attitude", "rates", "rotors")
        return replace(self, **{name: getattr(self, name)[which] for name in fields})

    @property
    def flights(self) -> int:
        """Number of flights."""
        return len(self.commands)

    @property
    def yaw_rate(self) -> np.ndarray:
        """Rate about the body's z axis, rad/s."""
        return self.rates[..., 2]
