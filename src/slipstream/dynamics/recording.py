"""Flights as they were recorded, by a plant or by a real vehicle's log."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Recording:
    """Flights: what was commanded at each step, and how the vehicle flew before the first and after every step."""

    commands: Float[np.ndarray, "flights steps 4"]
    position: Float[np.ndarray, "flights moments 3"]
    velocity: Float[np.ndarray, "flights moments 3"]
    attitude: Float[np.ndarray, "flights moments 4"]
    rates: Float[np.ndarray, "flights moments 3"]
    rotors: Float[np.ndarray, "flights moments 4"]
    dt: float
    source: str

    def part(self, which: slice) -> "Recording":
        fields = ("commands", "position", "velocity", "attitude", "rates", "rotors")
        return replace(self, **{name: getattr(self, name)[which] for name in fields})

    @property
    def flights(self) -> int:
        return len(self.commands)

    @property
    def yaw_rate(self) -> np.ndarray:
        return self.rates[..., 2]
