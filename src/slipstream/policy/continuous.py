"""Actors and critics for continuous actions, and the policies made of them."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.struct import static, struct
from ..core.task import ObstacleDistance, PackedImage, Spec
from .cvar import Risk
from .encoder import Torso, join_features
from .image_encoders import ImageEncoder
from .memory import Memory
from .nets import Linear, Normalizer
from .policy import ImageFeatures
from .quantile import RETURN_QUANTILES, QuantileEmbedding, quantile_linear, tau_midpoints

LOG_STD_MIN, LOG_STD_MAX = -5.0, 1.0
"""Bounds of the log standard deviation of a squashed Gaussian."""


@struct
class Actor:
    """From an observation to the parameters of an action, before they are squashed."""

    torso: Torso
    output: Linear

    @classmethod
    def init(
        cls, key: PRNGKeyArray, spec: Spec, hidden_sizes: tuple[int, ...], outputs: int, layer_norm: bool = False
    ) -> "Actor":
        torso_key, output_key = jax.random.split(key)
        torso = Torso.init(torso_key, spec, hidden_sizes, layer_norm)
        return cls(torso, Linear.init(output_key, hidden_sizes[-1], outputs, 0.01))

    def __call__(self, observation: Float[Array, "*b d"]) -> Float[Array, "*b o"]:
        return self.output(self.torso(observation))


@struct
class Critic:
    """Q(s, a); with an `embedding`, the quantiles of the return at given levels."""

    torso: Torso
    hidden: Linear
    output: Linear
    embedding: QuantileEmbedding | None

    @classmethod
    def init(
        cls,
        key: PRNGKeyArray,
        spec: Spec,
        hidden_sizes: tuple[int, ...],
        layer_norm: bool = False,
        distributional: bool = False,
    ) -> "Critic":
        keys = jax.random.split(key, 4)
        before = hidden_sizes[:-1] or hidden_sizes
        size = hidden_sizes[-1]
        return cls(
            Torso.init(keys[0], spec, before, layer_norm),
            Linear.init(keys[1], before[-1] + spec.action.size, size, 2.0**0.5),
            Linear.init(keys[2], size, 1, 0.1),
            QuantileEmbedding.init(keys[3], size) if distributional else None,
        )

    def __call__(
        self, observation: Float[Array, "*b d"], action: Float[Array, "*b a"], taus: Float[Array, "k"] | None = None
    ) -> Float[Array, "..."]:
        """The value of each action; of a distributional critic, at each quantile level."""
        features = jnp.concatenate([self.torso(observation), action], -1)
        features = self.torso.activate(self.hidden(features))
        if self.embedding is None:
            return self.output(features)[..., 0]
        assert taus is not None
        return quantile_linear(self.output, features, self.embedding(taus))[..., 0]


def init_critics(
    key: PRNGKeyArray,
    count: int,
    spec: Spec,
    hidden_sizes: tuple[int, ...],
    layer_norm: bool = False,
    distributional: bool = False,
) -> tuple[Critic, ...]:
    """Critics with different initial weights."""
    keys = jax.random.split(key, count)
    return tuple(Critic.init(part, spec, hidden_sizes, layer_norm, distributional) for part in keys)


@struct
class DeterministicPolicy:
    """a = tanh(actor(s)), with the critics that train it."""

    normalizer: Normalizer
    actor: Actor
    critics: tuple[Critic, ...]
    risk: Risk | None = None  # the CVaR that the actor maximizes; None is the mean
    image_encoder: ImageEncoder | None = None  # of actor and critics; only the critics' losses train it
    obstacle_distance: ObstacleDistance | None = static(default=None)  # for a risk that depends on it

    @property
    def params(self) -> tuple[Any, ...]:
        return self.actor, self.critics, self.image_encoder

    def with_params(self, params: tuple[Any, ...]) -> "DeterministicPolicy":
        return replace(self, actor=params[0], critics=params[1], image_encoder=params[2])

    def encode(self, image: PackedImage) -> ImageFeatures:
        """Features of an image; None for a policy without a camera."""
        return None if self.image_encoder is None else self.image_encoder(image)

    def action(self, observation: Float[Array, "*b d"]) -> Float[Array, "*b a"]:
        """The action for a normalized observation."""
        return jnp.tanh(self.actor(observation))

    def start(self, *batch: int) -> None:
        """No memory."""

    def act(
        self, observation: Float[Array, "*b d"], memory: Memory = None, image_features: ImageFeatures = None
    ) -> tuple[Array, Memory]:
        return self.action(self.normalizer(join_features(image_features, observation))), memory

    def return_quantiles(self, observation: Float[Array, "*b d"], action: Array) -> Float[Array, "*b k"] | None:
        """Quantiles of an action's return, lowest first; None if the critics are not distributional, or see images."""
        if self.critics[0].embedding is None or self.image_encoder is not None:
            return None
        return self.critics[0](self.normalizer(observation), action, tau_midpoints(RETURN_QUANTILES))


@struct
class SquashedGaussianPolicy:
    """a = tanh(x),  x ~ N(μ(s), σ(s)²),  with the critics that train it; without exploration a = tanh(μ)."""

    normalizer: Normalizer
    actor: Actor
    critics: tuple[Critic, ...]
    log_alpha: Float[Array, ""]  # log of the entropy temperature
    image_encoder: ImageEncoder | None = None  # of actor and critics; only the critics' losses train it

    @property
    def params(self) -> tuple[Any, ...]:
        return self.actor, self.critics, self.log_alpha, self.image_encoder

    def with_params(self, params: tuple[Any, ...]) -> "SquashedGaussianPolicy":
        return replace(self, actor=params[0], critics=params[1], log_alpha=params[2], image_encoder=params[3])

    def encode(self, image: PackedImage) -> ImageFeatures:
        """Features of an image; None for a policy without a camera."""
        return None if self.image_encoder is None else self.image_encoder(image)

    def mean_and_log_std(self, observation: Float[Array, "*b d"]) -> tuple[Float[Array, "*b a"], Float[Array, "*b a"]]:
        """Mean and log standard deviation before squashing, for a normalized observation."""
        mean, log_std = jnp.split(self.actor(observation), 2, -1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (jnp.tanh(log_std) + 1.0)

    def start(self, *batch: int) -> None:
        """No memory."""

    def act(
        self, observation: Float[Array, "*b d"], memory: Memory = None, image_features: ImageFeatures = None
    ) -> tuple[Array, Memory]:
        observation = self.normalizer(join_features(image_features, observation))
        return jnp.tanh(self.mean_and_log_std(observation)[0]), memory


def sample_squashed_gaussian(
    mean: Float[Array, "*b a"], log_std: Float[Array, "*b a"], key: PRNGKeyArray
) -> tuple[Float[Array, "*b a"], Float[Array, "*b"]]:
    """Squashed actions and the log of their density."""
    noise = jax.random.normal(key, mean.shape)
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    # log(1 − tanh²) in a form that keeps its digits far from zero.
    squash = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(log_prob - squash, -1)
