"""What learners share whose actor is judged by critics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..core.rng import Chance
from ..core.task import Box, Spec
from ..policy.continuous import Critic
from .off_policy import OffPolicy


@dataclass(frozen=True)
class Judged(OffPolicy):
    """Settings of learners whose actions are numbers."""

    twin: bool = True
    """two critics, of which the lower one is believed"""

    def check_action(self, spec: Spec) -> None:
        if not isinstance(spec.action, Box):
            name = type(self).__name__.lower()
            raise ValueError(f"{name} acts by numbers; for choices take pqn, iqn, rainbow, dqn or ppo")

    def _worth(self, critic: Critic, observation: Array, action: Array, shares: Array | None = None) -> Array:
        # Shares stay as they are: their cosines are fine waves.
        critic, observation, action = self.computed((critic, observation, action))
        return critic(observation, action, shares).astype(jnp.float32)


def scattered(
    action: Array, spread: Any, chances: Chance, explore: Array, bound: Callable[[Array], Array]
) -> tuple[Array, Chance]:
    """Bounded actions with Gaussian noise, and of a share of agents any action; for all worlds and agents."""

    def one(action: Array, spread: Array, chance: Chance) -> tuple[Array, Chance]:
        dice, chance = chance.uniform()
        parts = []
        for k in range(action.shape[-1]):
            shift, chance = chance.normal()
            other, chance = chance.uniform(-1.0, 1.0)
            parts.append(jnp.where(dice < explore, other, bound(action[k] + spread[k] * shift)))
        return jnp.stack(parts), chance

    for _ in range(action.ndim - 1):
        one = jax.vmap(one)
    return one(action, jnp.broadcast_to(spread, action.shape), chances)
