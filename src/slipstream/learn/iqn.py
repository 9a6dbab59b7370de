"""Implicit quantile networks: the whole distribution of returns, and choices by any part of it."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..core.rng import Rng
from ..core.spaces import Box
from ..core.task import Spec
from ..policy.nets import Normalizer
from ..policy.values import (
    DiscreteActions,
    IqnPolicy,
    QHead,
    QuantileEmbedding,
    Risk,
    Torso,
    require_distance,
    stratified_taus,
)
from .off_policy import OffPolicy, explore_epsilon_greedy, quantile_loss, weighted_mean
from .replay import Batch


@dataclass(frozen=True)
class Iqn(OffPolicy):
    """Settings of implicit quantile networks."""

    quantiles: int = 8
    """of the distribution, looked at for each row; and as many of its target's"""
    eval_quantiles: int = 16
    """to act"""
    cvar_alpha: float = 1.0
    """the worst share of the distribution that counts for choosing; 1 is all of it"""
    cvar_distance: float = 0.0
    """metres within which that share falls with the distance to the nearest thing; 0 is never"""
    exploration_repeat: int = 1
    """steps for which a random action is kept"""
    double_q: bool = True
    dueling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            min(self.quantiles, self.eval_quantiles, self.exploration_repeat) < 1
            or not 0.0 < self.cvar_alpha <= 1.0
            or self.cvar_distance < 0.0
        ):
            raise ValueError("shares, looks and hold are at least 1, cvar lies in (0, 1], adaptive is not negative")

    def check_action(self, spec: Spec) -> None:
        if isinstance(spec.action, Box):
            raise ValueError("iqn chooses between actions; for numbers take ac-iqn, sac, td3, ddpg or ppo")

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> IqnPolicy:
        choices = DiscreteActions.of(spec.action)
        key = jax.random.key(0) if key is None else key
        keys, size = jax.random.split(key, 3), self.hidden_sizes[-1]
        return IqnPolicy(
            Normalizer.of(spec.observation),
            Torso.init(keys[0], spec, self.hidden_sizes, self.layer_norm),
            QuantileEmbedding.init(keys[1], size),
            QHead.init(keys[2], size, choices.heads, 1, self.dueling),
            choices,
            Risk(self.cvar_alpha, self.cvar_distance),
            require_distance(spec) if self.cvar_distance else None,
            self.eval_quantiles,
        )

    def choose(self, policy: IqnPolicy, observation: Array, rngs: Rng, explore: Array, noise: PRNGKeyArray) -> Any:
        best = policy.choices.best(policy.values(observation))
        return explore_epsilon_greedy(
            best, rngs, explore, policy.choices.random, observation.ndim - 1, self.exploration_repeat
        )

    def _raw(self, policy: IqnPolicy, observation: Array, shares: Array) -> Array:
        # Shares stay as they are: their cosines are fine waves.
        policy, observation = self.cast((policy, observation))
        return policy.raw(observation, shares).astype(jnp.float32)

    def loss(
        self, policy: IqnPolicy, target: IqnPolicy, rows: Batch, key: PRNGKeyArray, progress: Array
    ) -> tuple[Array, Any]:
        choices = policy.choices
        first, second = (stratified_taus(k, self.quantiles) for k in jax.random.split(key))
        now = self._raw(policy, rows.observation, first)
        then = jax.lax.stop_gradient(self._raw(target, rows.following, second))
        picking = jax.lax.stop_gradient(self._raw(policy, rows.following, second)) if self.double_q else then
        taken = choices.numbers(rows.action)
        # The policy that is valued is the one that acts: by the part of the distribution that counts (decision 0012).
        near = None
        if policy.obstacle_distance is not None:
            near = policy.obstacle_distance(policy.normalizer.denormalize(rows.following))
        counting = policy.risk.weights(near, rows.reward.shape, self.quantiles)
        picked = choices.split(jnp.sum(picking * counting[..., None], -2))
        losses = errors = jnp.zeros_like(rows.reward)
        for own, action, by, after in zip(choices.split(now), taken, picked, choices.split(then), strict=True):
            chosen = jnp.take_along_axis(own, action[:, None, None], -1)[..., 0]
            following = jnp.take_along_axis(after, jnp.argmax(by, -1)[:, None, None], -1)[..., 0]
            wanted = rows.reward[:, None] + rows.discount[:, None] * following
            losses = losses + quantile_loss(chosen, first, wanted, self.huber_delta)
            errors = errors + jnp.abs(jnp.mean(chosen, -1) - jnp.mean(wanted, -1))
        heads = len(choices.heads)
        value = jnp.mean(jnp.stack([jnp.mean(jnp.max(part, -1)) for part in picked]))
        loss = weighted_mean(losses / heads, rows)
        return loss, (errors / heads, {"loss": loss, "q_mean": value})
