"""Soft actor-critic: a squashed Gaussian policy that maximizes return and entropy."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.rng import Rng
from ..core.task import Spec
from ..policy.continuous import Actor, SquashedGaussianPolicy, init_critics, sample_squashed_gaussian
from ..policy.encoder import spec_of_inputs
from ..policy.nets import Normalizer
from .actor_critic import ContinuousOffPolicy, q_value, require_continuous
from .exploration import Noise, explore_gaussian
from .learner import Metrics
from .losses import huber, weighted_mean
from .replay import Batch


@dataclass(frozen=True)
class Sac(ContinuousOffPolicy[SquashedGaussianPolicy]):
    """Settings of soft actor-critic."""

    epsilon_start: float = 0.0
    """probability of a uniformly random action at the start, decaying linearly"""
    epsilon_end: float = 0.0
    """probability of a uniformly random action after the decay"""
    twin_critics: bool = True
    """train two critics and use the lower value (clipped double Q-learning)"""
    alpha: float = 0.1
    """entropy temperature at the start"""
    target_entropy_per_dim: float = -0.5
    """entropy that autotuning aims at, per action dimension, in nats"""
    autotune_alpha: bool = True
    """learn the entropy temperature"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha <= 0.0:
            raise ValueError("alpha must be positive")

    def check_action(self, spec: Spec) -> None:
        require_continuous(spec, "sac")
        if spec.image_shape and self.uses_intermediate:
            raise ValueError(
                "sac learns from images by one-step returns: set learner.n-step to 1, or choose td3 or ddpg"
            )

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> SquashedGaussianPolicy:
        key = jax.random.key(0) if key is None else key
        actor_key, critic_key = jax.random.split(key)
        encoder = self.init_encoder(spec, key)
        spec = spec_of_inputs(spec, encoder)
        return SquashedGaussianPolicy(
            Normalizer.of(spec.observation),
            Actor.init(actor_key, spec, self.hidden_sizes, 2 * spec.action.size, self.layer_norm),
            init_critics(critic_key, 1 + self.twin_critics, spec, self.hidden_sizes, self.layer_norm),
            jnp.float32(math.log(self.alpha)),
            encoder,
        )

    def explore(
        self,
        policy: SquashedGaussianPolicy,
        observation: Float[Array, "*b d"],
        rngs: Rng,
        progress: Float[Array, ""],
        key: PRNGKeyArray,
        noise: Noise = None,
    ) -> tuple[Array, Rng]:
        mean, log_std = self._mean_and_log_std(policy, policy.normalizer(observation))
        return explore_gaussian(mean, jnp.exp(log_std), rngs, self.epsilon(progress), jnp.tanh, noise)

    def _mean_and_log_std(self, policy: SquashedGaussianPolicy, observation: Array) -> tuple[Array, Array]:
        policy, observation = self.cast((policy, observation))
        return jax.tree.map(lambda x: x.astype(jnp.float32), policy.mean_and_log_std(observation))

    @property
    def uses_intermediate(self) -> bool:
        return self.n_step > 1

    def soft_targets(
        self,
        policy: SquashedGaussianPolicy,
        target: SquashedGaussianPolicy,
        batch: Batch,
        alpha: Float[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "b"]:
        """Soft n-step returns: the entropy of the intermediate steps counts like a reward.

            r₀ + Σ γᵏ (rₖ + α H(sₖ)) + γⁿ (Q(sₙ, a) − α log π(a | sₙ)),   0 < k < n

        Entropies are those of the current policy, by one sampled action each (decision 0012).
        """
        last_key, intermediate_key = jax.random.split(key)
        next_parameters = self._mean_and_log_std(policy, batch.next_observation)
        next_action, log_prob = sample_squashed_gaussian(*next_parameters, last_key)
        values = [q_value(c, batch.next_observation, next_action, self.precision) for c in target.critics]
        targets = batch.reward + batch.discount * (jnp.min(jnp.stack(values), 0) - alpha * log_prob)
        if batch.intermediate_observation is not None and batch.intermediate_discount is not None:
            parameters = self._mean_and_log_std(policy, batch.intermediate_observation)
            _, log_probs = sample_squashed_gaussian(*parameters, intermediate_key)
            targets = targets - alpha * jnp.sum(batch.intermediate_discount * log_probs, -1)
        return jax.lax.stop_gradient(targets)

    def loss(
        self, policy: SquashedGaussianPolicy, target: SquashedGaussianPolicy, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Array, tuple[Array, Metrics]]:
        target_key, action_key = jax.random.split(key)
        alpha = jax.lax.stop_gradient(jnp.exp(policy.log_alpha))
        targets = self.soft_targets(policy, target, batch, alpha, target_key)
        errors = [q_value(c, batch.observation, batch.action, self.precision) - targets for c in policy.critics]
        losses = sum((huber(error, self.huber_delta) for error in errors), jnp.float32(0.0))
        critic_loss = weighted_mean(losses, batch.weight)
        batch = jax.lax.stop_gradient(batch)
        action, log_prob = sample_squashed_gaussian(*self._mean_and_log_std(policy, batch.observation), action_key)
        critics = jax.lax.stop_gradient(policy.critics)
        values = [q_value(c, batch.observation, action, self.precision) for c in critics]
        value = jnp.min(jnp.stack(values), 0)
        actor_loss = weighted_mean(alpha * log_prob - value, batch.weight)
        # Minus the entropy in excess of its target: alpha rises while there is too little entropy.
        lack = jax.lax.stop_gradient(log_prob + self.target_entropy_per_dim * action.shape[-1])
        alpha_loss = -weighted_mean(policy.log_alpha * lack, batch.weight) if self.autotune_alpha else 0.0
        metrics = {
            "loss": critic_loss,
            "q_mean": weighted_mean(value, batch.weight),
            "alpha": alpha,
            "entropy": -weighted_mean(log_prob, batch.weight),
        }
        return critic_loss + actor_loss + alpha_loss, (errors[0], metrics)
