"""Deterministic policy gradients for actions that are numbers: DDPG, and TD3 with its three remedies as switches."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..core.rng import Rng
from ..core.spaces import Box
from ..core.task import Spec
from ..policy.continuous import Actor, DeterministicPolicy, critics
from ..policy.nets import Normalizer
from .actor_critic import OffPolicyActorCritic, explore_gaussian
from .off_policy import huber, weighted_mean
from .replay import Batch


@dataclass(frozen=True)
class Ddpg(OffPolicyActorCritic):
    """Settings of DDPG."""

    epsilon_start: float = 0.2
    epsilon_end: float = 0.02
    exploration_noise: float = 0.2
    """standard deviation of what is added to actions to explore"""
    twin_critics: bool = False
    target_policy_noise: float = 0.0
    """noise on the action that is valued next"""
    policy_delay: int = 1
    """batches for each step of the actor"""
    saturation_coef: float = 0.01
    """weight of how far the actor's numbers are beyond what tanh can tell apart"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.exploration_noise < 0.0
            or self.target_policy_noise < 0.0
            or self.policy_delay < 1
            or self.saturation_coef < 0.0
        ):
            raise ValueError("noise, smooth and bound are not negative, delay is at least 1")

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> DeterministicPolicy:
        key = jax.random.key(0) if key is None else key
        assert isinstance(spec.action, Box)
        first, second = jax.random.split(key)
        return DeterministicPolicy(
            Normalizer.of(spec.observation),
            Actor.init(first, spec, self.hidden_sizes, spec.action.size, self.layer_norm),
            critics(second, 1 + self.twin_critics, spec, self.hidden_sizes, self.layer_norm, self.distributional),
        )

    @property
    def distributional(self) -> bool:
        return False

    def choose(
        self, policy: DeterministicPolicy, observation: Array, rngs: Rng, explore: Array, noise: PRNGKeyArray
    ) -> Any:
        point = self._action(policy, policy.normalizer(observation))
        return explore_gaussian(point, self.exploration_noise, rngs, explore, partial(jnp.clip, min=-1.0, max=1.0))

    def _action(self, policy: DeterministicPolicy, observation: Array) -> Array:
        policy, observation = self.cast((policy, observation))
        return policy.point(observation).astype(jnp.float32)

    def loss(
        self, policy: DeterministicPolicy, target: DeterministicPolicy, rows: Batch, key: PRNGKeyArray, progress: Array
    ) -> tuple[Array, Any]:
        following = self._target_action(target, rows, key)
        values = [self._q(critic, rows.following, following) for critic in target.critics]
        wanted = jax.lax.stop_gradient(rows.reward + rows.discount * jnp.min(jnp.stack(values), 0))
        off = [self._q(critic, rows.observation, rows.action) - wanted for critic in policy.critics]
        critic_loss = weighted_mean(sum(huber(error, self.huber_delta) for error in off), rows)  # pyright: ignore[reportArgumentType]
        action, beyond = self._actor_action(policy, rows)
        worth = self._q(jax.lax.stop_gradient(policy.critics[0]), rows.observation, action)
        actor_loss = -weighted_mean(worth, rows) + self.saturation_coef * beyond
        return critic_loss + actor_loss, (off[0], {"loss": critic_loss, "q_mean": -actor_loss})

    def _target_action(self, target: DeterministicPolicy, rows: Batch, key: PRNGKeyArray) -> Array:
        """What would be done next."""
        action = self._action(target, rows.following)
        if self.target_policy_noise:
            noise = jnp.clip(self.target_policy_noise * jax.random.normal(key, action.shape), -0.5, 0.5)
            action = jnp.clip(action + noise, -1.0, 1.0)
        return jax.lax.stop_gradient(action)

    def _actor_action(self, policy: DeterministicPolicy, rows: Batch) -> tuple[Array, Array]:
        """The actor's actions, and how far its numbers are beyond what tanh can tell apart."""
        raw = policy.actor(rows.observation)
        return jnp.tanh(raw), weighted_mean(jnp.mean(jnp.square(jnp.maximum(jnp.abs(raw) - 2.0, 0.0)), -1), rows)

    @property
    def period(self) -> int:
        return self.policy_delay

    def passed(self, step: Any, count: Array) -> Any:
        if self.policy_delay == 1:
            return step
        actor, critic = step
        return jax.tree.map(lambda x: jnp.where(count % self.policy_delay == 0, x, 0.0), actor), critic


@dataclass(frozen=True)
class Td3(Ddpg):
    """Settings of TD3: DDPG with two critics, smoothed targets and an actor that waits."""

    twin_critics: bool = True
    target_policy_noise: float = 0.2
    policy_delay: int = 2
