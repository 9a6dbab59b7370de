"""Soft actor-critic: numbers drawn from a distribution that is kept as wide as its reward allows."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..core.rng import Rng
from ..core.spaces import Box
from ..core.task import Spec
from ..policy.continuous import Actor, SquashedGaussianPolicy, critics, sample_squashed_gaussian
from ..policy.nets import Normalizer
from .actor_critic import OffPolicyActorCritic, explore_gaussian
from .off_policy import huber, weighted_mean
from .replay import Batch


@dataclass(frozen=True)
class Sac(OffPolicyActorCritic):
    """Settings of soft actor-critic."""

    epsilon_start: float = 0.0
    epsilon_end: float = 0.0
    alpha: float = 0.1
    """what a nat of entropy is worth at the start"""
    target_entropy_per_dim: float = -0.5
    """entropy aimed at, for each number of an action; the heat is tuned for it"""
    autotune_alpha: bool = True
    """whether the heat is tuned"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha <= 0.0:
            raise ValueError("heat must be positive")

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> SquashedGaussianPolicy:
        key = jax.random.key(0) if key is None else key
        assert isinstance(spec.action, Box)
        first, second = jax.random.split(key)
        return SquashedGaussianPolicy(
            Normalizer.of(spec.observation),
            Actor.init(first, spec, self.hidden_sizes, 2 * spec.action.size, self.layer_norm),
            critics(second, 1 + self.twin_critics, spec, self.hidden_sizes, self.layer_norm),
            jnp.float32(math.log(self.alpha)),
        )

    def choose(self, policy: Any, observation: Array, rngs: Rng, explore: Array, noise: PRNGKeyArray) -> Any:
        mean, log_std = self._spread(policy, policy.normalizer(observation))
        return explore_gaussian(mean, jnp.exp(log_std), rngs, explore, jnp.tanh)

    def _spread(self, policy: SquashedGaussianPolicy, observation: Array) -> tuple[Array, Array]:
        policy, observation = self.cast((policy, observation))
        return jax.tree.map(lambda x: x.astype(jnp.float32), policy.spread(observation))

    @property
    def between(self) -> bool:
        return self.n_step > 1

    def wanted(self, policy: Any, target: Any, rows: Batch, heat: Array, key: PRNGKeyArray) -> Array:
        """Soft returns over n steps: the entropy of the steps between counts like a reward.

            r₀ + Σ γᵏ (rₖ + α H(sₖ)) + γⁿ (Q(sₙ, a) − α log π(a | sₙ)),   0 < k < n

        Entropies are those of the policy as it is now, by one action drawn for each (decision 0012).
        """
        last, middle = jax.random.split(key)
        following, log_prob = sample_squashed_gaussian(*self._spread(policy, rows.following), last)
        values = [self._q(critic, rows.following, following) for critic in target.critics]
        wanted = rows.reward + rows.discount * (jnp.min(jnp.stack(values), 0) - heat * log_prob)
        if rows.between is not None and rows.between_discount is not None:
            _, log_probs = sample_squashed_gaussian(*self._spread(policy, rows.between), middle)
            wanted = wanted - heat * jnp.sum(rows.between_discount * log_probs, -1)
        return jax.lax.stop_gradient(wanted)

    def loss(self, policy: Any, target: Any, rows: Batch, key: PRNGKeyArray, progress: Array) -> tuple[Array, Any]:
        first, second = jax.random.split(key)
        heat = jax.lax.stop_gradient(jnp.exp(policy.log_alpha))
        wanted = self.wanted(policy, target, rows, heat, first)
        off = [self._q(critic, rows.observation, rows.action) - wanted for critic in policy.critics]
        critic_loss = weighted_mean(sum(huber(error, self.huber_delta) for error in off), rows)  # pyright: ignore[reportArgumentType]
        action, log_prob = sample_squashed_gaussian(*self._spread(policy, rows.observation), second)
        still = jax.lax.stop_gradient(policy.critics)
        worth = jnp.min(jnp.stack([self._q(critic, rows.observation, action) for critic in still]), 0)
        actor_loss = weighted_mean(heat * log_prob - worth, rows)
        wide = jax.lax.stop_gradient(log_prob + self.target_entropy_per_dim * action.shape[-1])
        heat_loss = -weighted_mean(policy.log_alpha * wide, rows) if self.autotune_alpha else 0.0
        metrics = {
            "loss": critic_loss,
            "q_mean": weighted_mean(worth, rows),
            "alpha": heat,
            "entropy": -weighted_mean(log_prob, rows),
        }
        return critic_loss + actor_loss + heat_loss, (off[0], metrics)
