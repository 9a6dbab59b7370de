"""Policies whose actions are numbers: actors, and the critics that judge them."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.spaces import Box
from ..core.struct import static, struct
from ..core.task import ObstacleDistance, Spec
from .nets import Linear, Normalizer
from .values import QUANTILES, QuantileEmbedding, Risk, Torso, layer_norm, quantile_linear, tau_midpoints

LOW, HIGH = -5.0, 1.0
"""Between which the logarithm of a spread stays."""


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
    quantiles: QuantileEmbedding | None

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
            QuantileEmbedding.init(keys[3], size) if distributional else None,
        )

    def __call__(self, observation: Array, action: Array, shares: Array | None = None) -> Array:
        features = jnp.concatenate([self.torso(observation), action], -1)
        features = self.joined(features)
        features = jax.nn.relu(layer_norm(features) if self.torso.norm else features)
        if self.quantiles is not None:
            assert shares is not None
            return quantile_linear(self.last, features, self.quantiles(shares))[..., 0]
        return self.last(features)[..., 0]


def critics(key: PRNGKeyArray, count: int, *rest: Any) -> tuple[Critic, ...]:
    """Several that begin differently."""
    return tuple(Critic.init(part, *rest) for part in jax.random.split(key, count))


@struct
class DeterministicPolicy:
    """One action for what is seen, between −1 and 1."""

    normalizer: Normalizer
    actor: Actor
    critics: tuple[Critic, ...]
    risk: Risk | None = None  # which part of the returns the actor was to improve
    obstacle_distance: ObstacleDistance | None = static(default=None)  # for a risk that adapts

    @property
    def params(self) -> Any:
        return self.actor, self.critics

    def with_params(self, weights: Any) -> "DeterministicPolicy":
        return replace(self, actor=weights[0], critics=weights[1])

    def point(self, observation: Array) -> Array:
        """Of normalised observations."""
        return jnp.tanh(self.actor(observation))

    def start(self) -> None:
        """No memory."""

    def act(self, observation: Array, memory: None = None, image_features: Any = None) -> tuple[Array, None]:
        return self.point(self.normalizer(observation)), memory

    def return_quantiles(self, observation: Array, action: Array) -> Float[Array, "*b k"] | None:
        """Quantiles of the returns expected of an action, the lowest first."""
        if self.critics[0].quantiles is None:
            return None
        return self.critics[0](self.normalizer(observation), action, tau_midpoints(QUANTILES))


@struct
class SquashedGaussianPolicy:
    """A squashed Gaussian; its middle is taken when it does not explore."""

    normalizer: Normalizer
    actor: Actor
    critics: tuple[Critic, ...]
    log_alpha: Float[Array, ""]  # what a nat of entropy is worth

    @property
    def params(self) -> Any:
        return self.actor, self.critics, self.log_alpha

    def with_params(self, weights: Any) -> "SquashedGaussianPolicy":
        return replace(self, actor=weights[0], critics=weights[1], log_alpha=weights[2])

    def spread(self, observation: Array) -> tuple[Array, Array]:
        """Of normalised observations, mean and logarithm of the spread before squashing."""
        mean, log_std = jnp.split(self.actor(observation), 2, -1)
        return mean, LOW + 0.5 * (HIGH - LOW) * (jnp.tanh(log_std) + 1.0)

    def start(self) -> None:
        """No memory."""

    def act(self, observation: Array, memory: None = None, image_features: Any = None) -> tuple[Array, None]:
        return jnp.tanh(self.spread(self.normalizer(observation))[0]), memory


def sample_squashed_gaussian(
    mean: Array, log_std: Array, key: PRNGKeyArray
) -> tuple[Float[Array, "b a"], Float[Array, "b"]]:
    """Squashed actions, and the logarithm of their density."""
    noise = jax.random.normal(key, mean.shape)
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    # log(1 − tanh²) in the form that does not lose its digits far out.
    squash = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(log_prob - squash, -1)
