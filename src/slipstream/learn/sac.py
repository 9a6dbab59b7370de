"""Soft actor-critic: numbers drawn from a distribution that is kept as wide as its reward allows."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..core.rng import Chance
from ..core.task import Box, Env
from ..policy.continuous import Actor, SoftPolicy, critics, drawn
from ..policy.nets import Normaliser
from .actor_critic import Judged, scattered
from .off_policy import huber, weighted
from .replay import Rows


@dataclass(frozen=True)
class Sac(Judged):
    """Settings of soft actor-critic."""

    explore: float = 0.0
    explore_end: float = 0.0
    heat: float = 0.1
    """what a nat of entropy is worth at the start"""
    entropy: float = -0.5
    """entropy aimed at, for each number of an action; the heat is tuned for it"""
    tune: bool = True
    """whether the heat is tuned"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heat <= 0.0:
            raise ValueError("heat must be positive")

    def build(self, key: PRNGKeyArray, env: Env[Any]) -> SoftPolicy:
        spec = env.spec
        assert isinstance(spec.action, Box)
        first, second = jax.random.split(key)
        return SoftPolicy(
            Normaliser.of(spec.observation),
            Actor.init(first, spec, self.hidden, 2 * spec.action.size, self.norm),
            critics(second, 1 + self.twin, spec, self.hidden, self.norm),
            jnp.float32(math.log(self.heat)),
        )

    def choose(self, policy: Any, observation: Array, chances: Chance, explore: Array, noise: PRNGKeyArray) -> Any:
        mean, log_std = self._spread(policy, policy.normaliser(observation))
        return scattered(mean, jnp.exp(log_std), chances, explore, jnp.tanh)

    def _spread(self, policy: SoftPolicy, observation: Array) -> tuple[Array, Array]:
        policy, observation = self.computed((policy, observation))
        return jax.tree.map(lambda x: x.astype(jnp.float32), policy.spread(observation))

    @property
    def between(self) -> bool:
        return self.steps > 1

    def wanted(self, policy: Any, target: Any, rows: Rows, heat: Array, key: PRNGKeyArray) -> Array:
        """Soft returns over n steps: the entropy of the steps between counts like a reward.

            r₀ + Σ γᵏ (rₖ + α H(sₖ)) + γⁿ (Q(sₙ, a) − α log π(a | sₙ)),   0 < k < n

        Entropies are those of the policy as it is now, by one action drawn for each (decision 0012).
        """
        last, middle = jax.random.split(key)
        following, log_prob = drawn(*self._spread(policy, rows.following), last)
        values = [self._worth(critic, rows.following, following) for critic in target.critics]
        wanted = rows.reward + rows.discount * (jnp.min(jnp.stack(values), 0) - heat * log_prob)
        if rows.between is not None and rows.between_discount is not None:
            _, log_probs = drawn(*self._spread(policy, rows.between), middle)
            wanted = wanted - heat * jnp.sum(rows.between_discount * log_probs, -1)
        return jax.lax.stop_gradient(wanted)

    def loss(self, policy: Any, target: Any, rows: Rows, key: PRNGKeyArray, share: Array) -> tuple[Array, Any]:
        first, second = jax.random.split(key)
        heat = jax.lax.stop_gradient(jnp.exp(policy.log_heat))
        wanted = self.wanted(policy, target, rows, heat, first)
        off = [self._worth(critic, rows.observation, rows.action) - wanted for critic in policy.critics]
        critic_loss = weighted(sum(huber(error, self.width) for error in off), rows)  # pyright: ignore[reportArgumentType]
        action, log_prob = drawn(*self._spread(policy, rows.observation), second)
        still = jax.lax.stop_gradient(policy.critics)
        worth = jnp.min(jnp.stack([self._worth(critic, rows.observation, action) for critic in still]), 0)
        actor_loss = weighted(heat * log_prob - worth, rows)
        wide = jax.lax.stop_gradient(log_prob + self.entropy * action.shape[-1])
        heat_loss = -weighted(policy.log_heat * wide, rows) if self.tune else 0.0
        metrics = {
            "loss": critic_loss,
            "value": weighted(worth, rows),
            "heat": heat,
            "entropy": -weighted(log_prob, rows),
        }
        return critic_loss + actor_loss + heat_loss, (off[0], metrics)
