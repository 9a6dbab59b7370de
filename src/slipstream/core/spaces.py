"""Action spaces: what an agent may do, how to draw it, hold it, and read it."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .rng import Rng

Levels = tuple[tuple[float, ...], ...]
"""For each component of a command, the values that a discrete action can choose from."""
Bounds = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Box:
    """`size` real numbers, each in [−1, 1]."""

    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action."""
        return (self.size,)

    @property
    def bounds(self) -> Bounds:
        """Lowest and highest action."""
        return -np.ones(self.size, np.float32), np.ones(self.size, np.float32)

    def zeros(self, *batch: int) -> Array:
        """Actions of all zeros, with leading batch axes."""
        return jnp.zeros((*batch, self.size), jnp.float32)

    def sample(self, rng: Rng) -> tuple[Array, Rng]:
        """A uniform action of one agent, each component of 8 bits: a cheap draw for benchmarks and tests."""
        parts: list[Array] = []
        while len(parts) < self.size:
            bits, rng = rng.bits()
            four = [((bits >> shift) & 0xFF).astype(jnp.int32).astype(jnp.float32) for shift in (0, 8, 16, 24)]
            parts += [byte * (2.0 / 255.0) - 1.0 for byte in four]
        return jnp.stack(jax.lax.optimization_barrier(parts[: self.size])), rng

    def decode(self, action: Array, levels: Levels) -> list[Array]:
        """The components of an action, clipped; `levels` are for discrete spaces."""
        return [jnp.clip(action[..., k], -1.0, 1.0) for k in range(self.size)]

    def encode(self, components: list[Array], levels: Levels) -> Array:
        """The action with those components."""
        return jnp.stack([jnp.clip(part, -1.0, 1.0) for part in components], -1)


class _Choices:
    """What `Discrete` and `MultiDiscrete` share."""

    @property
    def components(self) -> tuple[int, ...]:
        raise NotImplementedError

    def _digits(self, action: Array, levels: Levels) -> list[Array]:
        raise NotImplementedError

    def decode(self, action: Array, levels: Levels) -> list[Array]:
        """The value of each component that an action chooses."""
        return [_level(digit, values) for digit, values in zip(self._digits(action, levels), levels, strict=True)]


@dataclass(frozen=True)
class Discrete(_Choices):
    """One of `choices` actions."""

    choices: int

    @property
    def size(self) -> int:
        """Components of an action."""
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def components(self) -> tuple[int, ...]:
        """Choices of each component."""
        return (self.choices,)

    @property
    def bounds(self) -> Bounds:
        return np.zeros((), np.int32), np.asarray(self.choices - 1, np.int32)

    def zeros(self, *batch: int) -> Array:
        return jnp.zeros(batch, jnp.int32)

    def sample(self, rng: Rng) -> tuple[Array, Rng]:
        return rng.integer(self.choices)

    def _digits(self, action: Array, levels: Levels) -> list[Array]:
        """Row-major, as NumPy's `unravel_index`: the last component changes fastest."""
        digits, rest = [], action
        for values in reversed(levels):
            digits.append(rest % len(values))
            rest = rest // len(values)
        return digits[::-1]

    def encode(self, components: list[Array], levels: Levels) -> Array:
        """The choice nearest to those components."""
        number = jnp.int32(0)
        for part, values in zip(components, levels, strict=True):
            number = number * len(values) + _nearest(part, values)
        return number


@dataclass(frozen=True)
class MultiDiscrete(_Choices):
    """Several choices at once, of `choices[i]` each."""

    choices: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.choices)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.choices),)

    @property
    def components(self) -> tuple[int, ...]:
        return self.choices

    @property
    def bounds(self) -> Bounds:
        return np.zeros(self.size, np.int32), np.asarray(self.choices, np.int32) - 1

    def zeros(self, *batch: int) -> Array:
        return jnp.zeros((*batch, len(self.choices)), jnp.int32)

    def sample(self, rng: Rng) -> tuple[Array, Rng]:
        parts = []
        for count in self.choices:
            part, rng = rng.integer(count)
            parts.append(part)
        return jnp.stack(parts), rng

    def _digits(self, action: Array, levels: Levels) -> list[Array]:
        return [action[..., k] for k in range(self.size)]

    def encode(self, components: list[Array], levels: Levels) -> Array:
        """The choices nearest to those components."""
        return jnp.stack([_nearest(part, values) for part, values in zip(components, levels, strict=True)], -1)


ActionSpace = Box | Discrete | MultiDiscrete
SpaceKind = Literal["box", "discrete", "multidiscrete"]


def action_space(kind: SpaceKind, levels: Levels) -> ActionSpace:
    """The space in which a command of several components is given: as numbers, as one choice, or as one for each."""
    if kind == "box":
        return Box(len(levels))
    counts = tuple(len(values) for values in levels)
    return Discrete(math.prod(counts)) if kind == "discrete" else MultiDiscrete(counts)


def _level(digit: Array, values: tuple[float, ...]) -> Array:
    """`values[digit]` as a chain of selects, which vectorizes where a gather would not."""
    level = jnp.zeros(jnp.shape(digit))
    for k, value in enumerate(values):
        level = jnp.where(digit == k, value, level)
    return level


def _nearest(value: Array, values: tuple[float, ...]) -> Array:
    return jnp.argmin(jnp.abs(jnp.asarray(value)[..., None] - jnp.asarray(values)), -1).astype(jnp.int32)
