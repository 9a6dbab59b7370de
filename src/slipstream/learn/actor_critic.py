"""What learners share whose actor is judged by critics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..core.rng import Rng
from ..core.spaces import Box
from ..core.task import Spec
from ..policy.continuous import Critic
from .off_policy import OffPolicy


@dataclass(frozen=True)
class OffPolicyActorCritic(OffPolicy):
    """Settings of learners whose actions are numbers."""

    twin_critics: bool = True
    """two critics, of which the lower one is believed"""

    def check_action(self, spec: Spec) -> None:
        if not isinstance(spec.action, Box):
            name = type(self).__name__.lower()
            raise ValueError(f"{name} acts by numbers; for choices take pqn, iqn, rainbow, dqn or ppo")

    def _q(self, critic: Critic, observation: Array, action: Array, shares: Array | None = None) -> Array:
        # Shares stay as they are: their cosines are fine waves.
        critic, observation, action = self.cast((critic, observation, action))
        return critic(observation, action, shares).astype(jnp.float32)


def explore_gaussian(
    action: Array, spread: Any, rngs: Rng, explore: Array, bound: Callable[[Array], Array]
) -> tuple[Array, Rng]:
    """Bounded actions with Gaussian noise, and of a share of agents any action; for all worlds and agents."""

    def one(action: Array, spread: Array, rng: Rng) -> tuple[Array, Rng]:
        dice, rng = rng.uniform()
        parts = []
        for k in range(action.shape[-1]):
            shift, rng = rng.normal()
            other, rng = rng.uniform(-1.0, 1.0)
            parts.append(jnp.where(dice < explore, other, bound(action[k] + spread[k] * shift)))
        return jnp.stack(parts), rng

    for _ in range(action.ndim - 1):
        one = jax.vmap(one)
    return one(action, jnp.broadcast_to(spread, action.shape), rngs)
