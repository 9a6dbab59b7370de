"""AC-IQN: an actor for numbers, judged by implicit quantiles of the distribution of returns."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.task import Env
from ..policy.continuous import PointPolicy
from ..policy.values import Risk, spread_shares, telling
from .ddpg import Ddpg
from .off_policy import quantile_loss, weighted
from .replay import Rows


@dataclass(frozen=True)
class AcIqn(Ddpg):
    """Settings of AC-IQN."""

    twin: bool = True
    shares: int = 8
    """of the distribution, looked at for each row; and as many of its target's"""
    cvar: float = 1.0
    """the worst share of the distribution that the actor is to improve; 1 is all of it"""
    adaptive: float = 0.0
    """metres within which that share falls with the distance to the nearest thing; 0 is never"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares < 1 or not 0.0 < self.cvar <= 1.0 or self.adaptive < 0.0:
            raise ValueError("shares are at least 1, cvar lies in (0, 1], adaptive is not negative")

    def build(self, key: PRNGKeyArray, env: Env[Any]) -> PointPolicy:
        task = telling(env) if self.adaptive else None
        return replace(super().build(key, env), risk=Risk(self.cvar, self.adaptive), task=task)

    @property
    def distributional(self) -> bool:
        return True

    def loss(
        self, policy: PointPolicy, target: PointPolicy, rows: Rows, key: PRNGKeyArray, share: Array
    ) -> tuple[Array, Any]:
        first, second, third, smoothing = jax.random.split(key, 4)
        shares, others, looked = (spread_shares(k, self.shares) for k in (first, second, third))
        following = self._following(target, rows, smoothing)
        values = jnp.stack([self._worth(critic, rows.following, following, others) for critic in target.critics])
        # Of two critics the one that expects less is believed, as a whole distribution.
        lower = jnp.argmin(jnp.mean(values, -1), 0)
        values = jnp.take_along_axis(values, lower[None, :, None], 0)[0]
        wanted = jax.lax.stop_gradient(rows.reward[:, None] + rows.discount[:, None] * values)
        mine = [self._worth(critic, rows.observation, rows.action, shares) for critic in policy.critics]
        critic_loss = weighted(sum(quantile_loss(own, shares, wanted, self.width) for own in mine), rows)  # pyright: ignore[reportArgumentType]
        action, beyond = self._bounded(policy, rows)
        worth = self._worth(jax.lax.stop_gradient(policy.critics[0]), rows.observation, action, looked)
        actor_loss = -weighted(jnp.sum(worth * self._counting(policy, rows), -1), rows) + self.bound * beyond
        error = jnp.mean(mine[0], -1) - jnp.mean(wanted, -1)
        return critic_loss + actor_loss, (error, {"loss": critic_loss, "value": -actor_loss})

    def _counting(self, policy: PointPolicy, rows: Rows) -> Float[Array, "b k"]:
        """How much each part of the distribution counts for the actor, row by row."""
        assert policy.risk is not None
        near = policy.task.nearness(policy.normaliser.undone(rows.observation)) if self.adaptive else None
        return policy.risk.weights(near, rows.reward.shape, self.shares)
