"""AC-IQN: an actor for numbers, judged by implicit quantiles of the distribution of returns."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.task import Spec
from ..policy.continuous import DeterministicPolicy
from ..policy.values import Risk, require_distance, stratified_taus
from .ddpg import Ddpg
from .off_policy import quantile_loss, weighted_mean
from .replay import Batch


@dataclass(frozen=True)
class AcIqn(Ddpg):
    """Settings of AC-IQN."""

    twin_critics: bool = True
    quantiles: int = 8
    """of the distribution, looked at for each row; and as many of its target's"""
    cvar_alpha: float = 1.0
    """the worst share of the distribution that the actor is to improve; 1 is all of it"""
    cvar_distance: float = 0.0
    """metres within which that share falls with the distance to the nearest thing; 0 is never"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles < 1 or not 0.0 < self.cvar_alpha <= 1.0 or self.cvar_distance < 0.0:
            raise ValueError("shares are at least 1, cvar lies in (0, 1], adaptive is not negative")

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> DeterministicPolicy:
        distance = require_distance(spec) if self.cvar_distance else None
        risk = Risk(self.cvar_alpha, self.cvar_distance)
        return replace(super().policy(spec, key), risk=risk, obstacle_distance=distance)

    @property
    def distributional(self) -> bool:
        return True

    def loss(
        self, policy: DeterministicPolicy, target: DeterministicPolicy, rows: Batch, key: PRNGKeyArray, progress: Array
    ) -> tuple[Array, Any]:
        first, second, third, smoothing = jax.random.split(key, 4)
        shares, others, looked = (stratified_taus(k, self.quantiles) for k in (first, second, third))
        following = self._target_action(target, rows, smoothing)
        values = jnp.stack([self._q(critic, rows.following, following, others) for critic in target.critics])
        # Of two critics the one that expects less is believed, as a whole distribution.
        lower = jnp.argmin(jnp.mean(values, -1), 0)
        values = jnp.take_along_axis(values, lower[None, :, None], 0)[0]
        wanted = jax.lax.stop_gradient(rows.reward[:, None] + rows.discount[:, None] * values)
        mine = [self._q(critic, rows.observation, rows.action, shares) for critic in policy.critics]
        critic_loss = weighted_mean(sum(quantile_loss(own, shares, wanted, self.huber_delta) for own in mine), rows)  # pyright: ignore[reportArgumentType]
        action, beyond = self._actor_action(policy, rows)
        worth = self._q(jax.lax.stop_gradient(policy.critics[0]), rows.observation, action, looked)
        actor_loss = (
            -weighted_mean(jnp.sum(worth * self._cvar_weights(policy, rows), -1), rows) + self.saturation_coef * beyond
        )
        error = jnp.mean(mine[0], -1) - jnp.mean(wanted, -1)
        return critic_loss + actor_loss, (error, {"loss": critic_loss, "q_mean": -actor_loss})

    def _cvar_weights(self, policy: DeterministicPolicy, rows: Batch) -> Float[Array, "b k"]:
        """How much each part of the distribution counts for the actor, row by row."""
        assert policy.risk is not None
        near = None
        if policy.obstacle_distance is not None:
            near = policy.obstacle_distance(policy.normalizer.denormalize(rows.observation))
        return policy.risk.weights(near, rows.reward.shape, self.quantiles)
