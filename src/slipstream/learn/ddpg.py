"""Deterministic policy gradients for actions that are numbers: DDPG, and TD3 with its three remedies as switches."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..core.rng import Chance
from ..core.task import Box, Env
from ..policy.continuous import Actor, PointPolicy, critics
from ..policy.nets import Normaliser
from .actor_critic import Judged, scattered
from .off_policy import huber, weighted
from .replay import Rows


@dataclass(frozen=True)
class Ddpg(Judged):
    """Settings of DDPG."""

    explore: float = 0.2
    explore_end: float = 0.02
    noise: float = 0.2
    """standard deviation of what is added to actions to explore"""
    twin: bool = False
    smooth: float = 0.0
    """noise on the action that is valued next"""
    delay: int = 1
    """batches for each step of the actor"""
    bound: float = 0.01
    """weight of how far the actor's numbers are beyond what tanh can tell apart"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise < 0.0 or self.smooth < 0.0 or self.delay < 1 or self.bound < 0.0:
            raise ValueError("noise, smooth and bound are not negative, delay is at least 1")

    def build(self, key: PRNGKeyArray, env: Env[Any]) -> PointPolicy:
        spec = env.spec
        assert isinstance(spec.action, Box)
        first, second = jax.random.split(key)
        return PointPolicy(
            Normaliser.of(spec.observation),
            Actor.init(first, spec, self.hidden, spec.action.size, self.norm),
            critics(second, 1 + self.twin, spec, self.hidden, self.norm, self.distributional),
        )

    @property
    def distributional(self) -> bool:
        return False

    def choose(
        self, policy: PointPolicy, observation: Array, chances: Chance, explore: Array, noise: PRNGKeyArray
    ) -> Any:
        point = self._point(policy, policy.normaliser(observation))
        return scattered(point, self.noise, chances, explore, partial(jnp.clip, min=-1.0, max=1.0))

    def _point(self, policy: PointPolicy, observation: Array) -> Array:
        policy, observation = self.computed((policy, observation))
        return policy.point(observation).astype(jnp.float32)

    def loss(
        self, policy: PointPolicy, target: PointPolicy, rows: Rows, key: PRNGKeyArray, share: Array
    ) -> tuple[Array, Any]:
        following = self._following(target, rows, key)
        values = [self._worth(critic, rows.following, following) for critic in target.critics]
        wanted = jax.lax.stop_gradient(rows.reward + rows.discount * jnp.min(jnp.stack(values), 0))
        off = [self._worth(critic, rows.observation, rows.action) - wanted for critic in policy.critics]
        critic_loss = weighted(sum(huber(error, self.width) for error in off), rows)  # pyright: ignore[reportArgumentType]
        action, beyond = self._bounded(policy, rows)
        worth = self._worth(jax.lax.stop_gradient(policy.critics[0]), rows.observation, action)
        actor_loss = -weighted(worth, rows) + self.bound * beyond
        return critic_loss + actor_loss, (off[0], {"loss": critic_loss, "value": -actor_loss})

    def _following(self, target: PointPolicy, rows: Rows, key: PRNGKeyArray) -> Array:
        """What would be done next."""
        action = self._point(target, rows.following)
        if self.smooth:
            noise = jnp.clip(self.smooth * jax.random.normal(key, action.shape), -0.5, 0.5)
            action = jnp.clip(action + noise, -1.0, 1.0)
        return jax.lax.stop_gradient(action)

    def _bounded(self, policy: PointPolicy, rows: Rows) -> tuple[Array, Array]:
        """The actor's actions, and how far its numbers are beyond what tanh can tell apart."""
        raw = policy.actor(rows.observation)
        return jnp.tanh(raw), weighted(jnp.mean(jnp.square(jnp.maximum(jnp.abs(raw) - 2.0, 0.0)), -1), rows)

    @property
    def period(self) -> int:
        return self.delay

    def passed(self, step: Any, count: Array) -> Any:
        if self.delay == 1:
            return step
        actor, critic = step
        return jax.tree.map(lambda x: jnp.where(count % self.delay == 0, x, 0.0), actor), critic


@dataclass(frozen=True)
class Td3(Ddpg):
    """Settings of TD3: DDPG with two critics, smoothed targets and an actor that waits."""

    twin: bool = True
    smooth: float = 0.2
    delay: int = 2
