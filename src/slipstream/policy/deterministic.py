"""Actors for actions that are numbers, and critics that judge them."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..env import Box, Spec
from ..struct import struct
from .nets import Linear
from .values import Quantiles, Torso, normed


@struct
class Actor:
    """From what an agent sees to numbers, before they are bounded."""

    torso: Torso
    last: Linear

    @classmethod
    def init(cls, key: PRNGKeyArray, spec: Spec, hidden: tuple[int, ...], outputs: int, norm: bool = False) -> "Actor":
        first, second = jax.random.split(key)
        return cls(Torso.init(first, spec, hidden, norm), Linear.init(second, hidden[-1], outputs, 0.01))

    def __call__(self, observation: Array) -> Float[Array, "*b o"]:
        return self.last(self.torso(observation))


@struct
class Critic:
    """What an action is worth where it is taken; with `quantiles`, at shares of the distribution of returns."""

    torso: Torso
    joined: Linear
    last: Linear
    quantiles: Quantiles | None

    @classmethod
    def init(
        cls, key: PRNGKeyArray, spec: Spec, hidden: tuple[int, ...], norm: bool = False, distributional: bool = False
    ) -> "Critic":
        assert isinstance(spec.action, Box)
        keys = jax.random.split(key, 4)
        before = hidden[:-1] or hidden
        size = hidden[-1]
        return cls(
            Torso.init(keys[0], spec, before, norm),
            Linear.init(keys[1], before[-1] + spec.action.size, size, 2.0**0.5),
            Linear.init(keys[2], size, 1, 0.1),
            Quantiles.init(keys[3], size) if distributional else None,
        )

    def __call__(self, observation: Array, action: Array, shares: Array | None = None) -> Array:
        features = jnp.concatenate([self.torso(observation), action], -1)
        features = self.joined(features)
        features = jax.nn.relu(normed(features) if self.torso.norm else features)
        if self.quantiles is not None:
            assert shares is not None
            features = self.quantiles(features, shares)
        return self.last(features)[..., 0]


def critics(key: PRNGKeyArray, count: int, *rest: Any) -> tuple[Critic, ...]:
    """Several that begin differently."""
    return tuple(Critic.init(part, *rest) for part in jax.random.split(key, count))
