"""What off-policy actor-critics share: critics in the networks' precision, and the deterministic actor."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..core.errors import require_choice
from ..core.rng import Rng
from ..core.spaces import Box
from ..core.task import Spec
from ..policy.continuous import Actor, Critic, DeterministicPolicy, init_critics
from ..policy.encoder import Precision, cast_to, join_features, spec_of_inputs
from ..policy.image_encoders import IMAGE_ENCODERS, ImageEncoder
from ..policy.nets import Normalizer
from ..policy.policy import ImagePolicy, TrainablePolicy
from .augmentation import random_shift
from .exploration import Noise, OrnsteinUhlenbeck, explore_gaussian
from .losses import weighted_mean
from .off_policy import OffPolicy
from .replay import Batch

MAX_TARGET_NOISE = 0.5
"""Bound of the noise on target actions, as in TD3."""
SATURATED = 2.0
"""Actor outputs beyond this saturate tanh."""
P = TypeVar("P", bound=TrainablePolicy)


@dataclass(frozen=True)
class ContinuousOffPolicy(OffPolicy[P]):
    """Settings that every learner with a replay buffer and continuous actions has."""

    noise_correlation_time: float = 0.0
    """correlation time of the exploration noise, in seconds (an Ornstein-Uhlenbeck process); 0 is white noise"""
    image_encoder: Literal["patches", "cnn"] = "patches"
    """network that reads images, trained by the critics' losses only: matrix products on patches, for CPUs, or
    convolutions, for accelerators"""
    random_shift: int = 0
    """pixels by which images are shifted at random whenever they are learned from (DrQ's augmentation); 0 is none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("image encoder", self.image_encoder, IMAGE_ENCODERS)
        for name in ("noise_correlation_time", "random_shift"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    def check_images(self, spec: Spec) -> None:
        if self.rollout_length % spec.image_interval:
            raise ValueError(
                f"a rollout of {self.rollout_length} steps is not a whole number of images, one every "
                f"{spec.image_interval} steps; change learner.rollout-length"
            )
        jax.eval_shape(lambda: self.init_encoder(spec, None))  # refuses an image that it cannot read

    def init_encoder(self, spec: Spec, key: PRNGKeyArray | None) -> ImageEncoder | None:
        """The image encoder with initial weights; None for a task without cameras."""
        if not spec.image_shape:
            return None
        key = jax.random.fold_in(jax.random.key(0) if key is None else key, 1)
        return IMAGE_ENCODERS[self.image_encoder].init(key, spec.image_shape)

    def inputs(self, policy: P, batch: Batch, key: PRNGKeyArray) -> Batch:
        """With images, the features of both come before the observations; no gradient flows through the next one's."""
        if batch.image is None or batch.next_image is None or not isinstance(policy, ImagePolicy):
            return super().inputs(policy, batch, key)
        keys = jax.random.split(jax.random.fold_in(key, 1))
        images = [random_shift(x, self.random_shift, k) for x, k in zip((batch.image, batch.next_image), keys)]
        now, after = (policy.encode(image) for image in images)
        batch = replace(
            batch,
            observation=join_features(now, batch.observation),
            next_observation=jax.lax.stop_gradient(join_features(after, batch.next_observation)),
        )
        return super().inputs(policy, batch, key)

    def init_noise(self, spec: Spec, rngs: Rng) -> tuple[OrnsteinUhlenbeck | None, Rng]:
        return OrnsteinUhlenbeck.init(spec, self.noise_correlation_time, rngs)


def require_continuous(spec: Spec, learner: str) -> None:
    """Refuse a discrete action space."""
    if not isinstance(spec.action, Box):
        raise ValueError(
            f"{learner} needs continuous actions; for discrete actions choose pqn, iqn, rainbow, dqn or ppo"
        )


def q_value(
    critic: Critic, observation: Array, action: Array, precision: Precision, taus: Float[Array, "k"] | None = None
) -> Float[Array, "..."]:
    """A critic's value of actions at normalized observations, in float32."""
    # Quantile levels are not cast: their cosines need the digits.
    critic, observation, action = cast_to((critic, observation, action), precision)
    return critic(observation, action, taus).astype(jnp.float32)


@dataclass(frozen=True)
class DeterministicActor:
    """The actor of DDPG, TD3 and AC-IQN: how it explores, how it is smoothed in targets, and when it learns."""

    exploration_noise: float
    target_policy_noise: float
    policy_delay: int
    saturation_coef: float
    precision: Precision

    def __post_init__(self) -> None:
        if min(self.exploration_noise, self.target_policy_noise, self.saturation_coef) < 0.0 or self.policy_delay < 1:
            raise ValueError(
                "exploration_noise, target_policy_noise and saturation_coef must not be negative, "
                "and policy_delay at least 1"
            )

    def action(self, policy: DeterministicPolicy, observation: Float[Array, "*b d"]) -> Float[Array, "*b a"]:
        """Actions for normalized observations, in float32."""
        policy, observation = cast_to((policy, observation), self.precision)
        return policy.action(observation).astype(jnp.float32)

    def explore(
        self,
        policy: DeterministicPolicy,
        observation: Float[Array, "*b d"],
        rngs: Rng,
        epsilon: Float[Array, ""],
        std: Float[Array, ""] | float,
        noise: Noise,
    ) -> tuple[Float[Array, "*b a"], Rng]:
        """Actions with Gaussian noise, and the generators after them."""
        action = self.action(policy, policy.normalizer(observation))
        clip = partial(jnp.clip, min=-1.0, max=1.0)
        return explore_gaussian(action, std, rngs, epsilon, clip, noise)

    def target_action(self, target: DeterministicPolicy, batch: Batch, key: PRNGKeyArray) -> Float[Array, "b a"]:
        """The target policy's next actions, with noise if targets are smoothed."""
        action = self.action(target, batch.next_observation)
        if self.target_policy_noise:
            noise = self.target_policy_noise * jax.random.normal(key, action.shape)
            action = jnp.clip(action + jnp.clip(noise, -MAX_TARGET_NOISE, MAX_TARGET_NOISE), -1.0, 1.0)
        return jax.lax.stop_gradient(action)

    def action_and_saturation(
        self, policy: DeterministicPolicy, batch: Batch
    ) -> tuple[Float[Array, "b a"], Float[Array, ""]]:
        """The actor's actions, and the mean square by which its outputs saturate tanh."""
        raw = policy.actor(batch.observation)
        action = jnp.tanh(raw)
        beyond = jnp.mean(jnp.square(jnp.maximum(jnp.abs(raw) - SATURATED, 0.0)), -1)
        return action, weighted_mean(beyond, batch.weight)

    def mask_updates(self, updates: PyTree, count: Int[Array, ""]) -> Any:
        """Updates of the actor only in every `policy_delay`-th gradient step."""
        if self.policy_delay == 1:
            return updates
        actor, *rest = updates
        return jax.tree.map(lambda x: jnp.where(count % self.policy_delay == 0, x, 0.0), actor), *rest


@dataclass(frozen=True)
class DeterministicArchitecture:
    """The networks of a deterministic policy."""

    critics: int
    hidden_sizes: tuple[int, ...]
    layer_norm: bool
    distributional: bool = False


def init_deterministic_policy(
    spec: Spec, key: PRNGKeyArray | None, architecture: DeterministicArchitecture, encoder: ImageEncoder | None
) -> DeterministicPolicy:
    """A deterministic policy with its critics."""
    key = jax.random.key(0) if key is None else key
    actor_key, critic_key = jax.random.split(key)
    hidden_sizes, layer_norm = architecture.hidden_sizes, architecture.layer_norm
    spec = spec_of_inputs(spec, encoder)
    return DeterministicPolicy(
        Normalizer.of(spec.observation),
        Actor.init(actor_key, spec, hidden_sizes, spec.action.size, layer_norm),
        init_critics(critic_key, architecture.critics, spec, hidden_sizes, layer_norm, architecture.distributional),
        image_encoder=encoder,
    )
