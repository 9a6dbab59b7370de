"""Implicit quantile networks: the whole distribution of returns, and choices by any part of it."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..core.rng import Chance
from ..core.task import Box, Env, Spec
from ..policy.nets import Normaliser
from ..policy.values import Choices, Heads, IqnPolicy, Quantiles, Risk, Torso, spread_shares, telling
from .off_policy import OffPolicy, greedy_or_random, quantile_loss, weighted
from .replay import Rows


@dataclass(frozen=True)
class Iqn(OffPolicy):
    """Settings of implicit quantile networks."""

    shares: int = 8
    """of the distribution, looked at for each row; and as many of its target's"""
    looks: int = 16
    """to act"""
    cvar: float = 1.0
    """the worst share of the distribution that counts for choosing; 1 is all of it"""
    adaptive: float = 0.0
    """metres within which that share falls with the distance to the nearest thing; 0 is never"""
    hold: int = 1
    """steps for which a random action is kept"""
    double: bool = True
    dueling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.shares, self.looks, self.hold) < 1 or not 0.0 < self.cvar <= 1.0 or self.adaptive < 0.0:
            raise ValueError("shares, looks and hold are at least 1, cvar lies in (0, 1], adaptive is not negative")

    def check_action(self, spec: Spec) -> None:
        if isinstance(spec.action, Box):
            raise ValueError("iqn chooses between actions; for numbers take ac-iqn, sac, td3, ddpg or ppo")

    def build(self, key: PRNGKeyArray, env: Env[Any]) -> IqnPolicy:
        spec, choices = env.spec, Choices.of(env.spec.action)
        keys, size = jax.random.split(key, 3), self.hidden[-1]
        return IqnPolicy(
            Normaliser.of(spec.observation),
            Torso.init(keys[0], spec, self.hidden, self.norm),
            Quantiles.init(keys[1], size),
            Heads.init(keys[2], size, choices.heads, 1, self.dueling),
            choices,
            Risk(self.cvar, self.adaptive),
            telling(env) if self.adaptive else None,
            self.looks,
        )

    def choose(
        self, policy: IqnPolicy, observation: Array, chances: Chance, explore: Array, noise: PRNGKeyArray
    ) -> Any:
        best = policy.choices.best(policy.values(observation))
        return greedy_or_random(best, chances, explore, policy.choices.random, observation.ndim - 1, self.hold)

    def _raw(self, policy: IqnPolicy, observation: Array, shares: Array) -> Array:
        # Shares stay as they are: their cosines are fine waves.
        policy, observation = self.computed((policy, observation))
        return policy.raw(observation, shares).astype(jnp.float32)

    def loss(
        self, policy: IqnPolicy, target: IqnPolicy, rows: Rows, key: PRNGKeyArray, share: Array
    ) -> tuple[Array, Any]:
        choices = policy.choices
        first, second = (spread_shares(k, self.shares) for k in jax.random.split(key))
        now = self._raw(policy, rows.observation, first)
        then = jax.lax.stop_gradient(self._raw(target, rows.following, second))
        picking = jax.lax.stop_gradient(self._raw(policy, rows.following, second)) if self.double else then
        taken = choices.numbers(rows.action)
        # The policy that is valued is the one that acts: by the part of the distribution that counts (decision 0012).
        near = policy.task.nearness(policy.normaliser.undone(rows.following)) if self.adaptive else None
        counting = policy.risk.weights(near, rows.reward.shape, self.shares)
        picked = choices.split(jnp.sum(picking * counting[..., None], -2))
        losses = errors = jnp.zeros_like(rows.reward)
        for own, action, by, after in zip(choices.split(now), taken, picked, choices.split(then), strict=True):
            chosen = jnp.take_along_axis(own, action[:, None, None], -1)[..., 0]
            following = jnp.take_along_axis(after, jnp.argmax(by, -1)[:, None, None], -1)[..., 0]
            wanted = rows.reward[:, None] + rows.discount[:, None] * following
            losses = losses + quantile_loss(chosen, first, wanted, self.width)
            errors = errors + jnp.abs(jnp.mean(chosen, -1) - jnp.mean(wanted, -1))
        heads = len(choices.heads)
        value = jnp.mean(jnp.stack([jnp.mean(jnp.max(part, -1)) for part in picked]))
        loss = weighted(losses / heads, rows)
        return loss, (errors / heads, {"loss": loss, "value": value})
