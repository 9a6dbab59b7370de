"""DDPG: a deterministic actor and its critic. TD3 is DDPG with its three remedies switched on."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..core.rng import Rng
from ..core.task import Spec
from ..policy.continuous import DeterministicPolicy
from .actor_critic import (
    ContinuousOffPolicy,
    DeterministicActor,
    DeterministicArchitecture,
    init_deterministic_policy,
    q_value,
    require_continuous,
)
from .exploration import Noise, linear_schedule
from .learner import Metrics
from .losses import huber, weighted_mean
from .replay import Batch


@dataclass(frozen=True)
class Ddpg(ContinuousOffPolicy[DeterministicPolicy]):
    """Settings of DDPG."""

    epsilon_start: float = 0.2
    """probability of a uniformly random action at the start, decaying linearly"""
    epsilon_end: float = 0.02
    """probability of a uniformly random action after the decay"""
    twin_critics: bool = False
    """train two critics and use the lower value in targets (clipped double Q-learning)"""
    exploration_noise: float = 0.2
    """standard deviation of the Gaussian noise on actions while exploring"""
    exploration_noise_end: float = 0.0
    """if positive, exploration_noise falls linearly to this over exploration_fraction"""
    target_policy_noise: float = 0.0
    """standard deviation of the noise on the target policy's actions (TD3's target smoothing)"""
    policy_delay: int = 1
    """gradient steps of the critics for each of the actor"""
    saturation_coef: float = 0.01
    """weight of the penalty on actor outputs that saturate tanh"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._actor  # refuses what it cannot be
        if self.exploration_noise_end < 0.0:
            raise ValueError("exploration_noise_end must not be negative")

    @property
    def _actor(self) -> DeterministicActor:
        return DeterministicActor(
            self.exploration_noise, self.target_policy_noise, self.policy_delay, self.saturation_coef, self.precision
        )

    def _noise(self, progress: Float[Array, ""]) -> Float[Array, ""]:
        """Standard deviation of the exploration noise after that fraction of the training."""
        last = self.exploration_noise_end or self.exploration_noise
        return linear_schedule(self.exploration_noise, last, progress / self.exploration_fraction)

    def check_action(self, spec: Spec) -> None:
        require_continuous(spec, type(self).__name__.lower())

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> DeterministicPolicy:
        architecture = DeterministicArchitecture(1 + self.twin_critics, self.hidden_sizes, self.layer_norm)
        return init_deterministic_policy(spec, key, architecture, self.init_encoder(spec, key))

    def explore(
        self,
        policy: DeterministicPolicy,
        observation: Float[Array, "*b d"],
        rngs: Rng,
        progress: Float[Array, ""],
        key: PRNGKeyArray,
        noise: Noise = None,
    ) -> tuple[Array, Rng]:
        return self._actor.explore(policy, observation, rngs, self.epsilon(progress), self._noise(progress), noise)

    def loss(
        self, policy: DeterministicPolicy, target: DeterministicPolicy, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Array, tuple[Array, Metrics]]:
        next_action = self._actor.target_action(target, batch, key)
        next_values = [q_value(c, batch.next_observation, next_action, self.precision) for c in target.critics]
        targets = jax.lax.stop_gradient(batch.reward + batch.discount * jnp.min(jnp.stack(next_values), 0))
        errors = [q_value(c, batch.observation, batch.action, self.precision) - targets for c in policy.critics]
        losses = sum((huber(error, self.huber_delta) for error in errors), jnp.float32(0.0))
        critic_loss = weighted_mean(losses, batch.weight)
        batch = jax.lax.stop_gradient(batch)
        action, saturation = self._actor.action_and_saturation(policy, batch)
        critic = jax.lax.stop_gradient(policy.critics[0])
        value = q_value(critic, batch.observation, action, self.precision)
        actor_loss = -weighted_mean(value, batch.weight) + self.saturation_coef * saturation
        return critic_loss + actor_loss, (errors[0], {"loss": critic_loss, "q_mean": -actor_loss})

    @property
    def mask_period(self) -> int:
        return self.policy_delay

    def mask_updates(self, updates: PyTree, count: Int[Array, ""]) -> Any:
        return self._actor.mask_updates(updates, count)


@dataclass(frozen=True)
class Td3(Ddpg):
    """Settings of TD3: DDPG with twin critics, smoothed targets and delayed updates of the actor."""

    twin_critics: bool = True
    target_policy_noise: float = 0.2
    policy_delay: int = 2
