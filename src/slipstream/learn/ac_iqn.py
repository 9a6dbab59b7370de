"""AC-IQN: a deterministic actor whose critics are implicit quantile networks."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..core.rng import Rng
from ..core.task import Spec
from ..policy.continuous import DeterministicPolicy
from ..policy.cvar import Risk, require_distance
from ..policy.quantile import stratified_taus
from .actor_critic import (
    ContinuousOffPolicy,
    DeterministicActor,
    DeterministicArchitecture,
    init_deterministic_policy,
    q_value,
    require_continuous,
)
from .exploration import Noise
from .learner import Metrics
from .losses import quantile_loss, weighted_mean
from .replay import Batch


@dataclass(frozen=True)
class AcIqn(ContinuousOffPolicy[DeterministicPolicy]):
    """Settings of AC-IQN."""

    epsilon_start: float = 0.2
    """probability of a uniformly random action at the start, decaying linearly"""
    epsilon_end: float = 0.02
    """probability of a uniformly random action after the decay"""
    twin_critics: bool = True
    """train two critics and use the one with the lower mean in targets (clipped double Q-learning)"""
    exploration_noise: float = 0.2
    """standard deviation of the Gaussian noise on actions while exploring"""
    target_policy_noise: float = 0.0
    """standard deviation of the noise on the target policy's actions (TD3's target smoothing)"""
    policy_delay: int = 1
    """gradient steps of the critics for each of the actor"""
    saturation_coef: float = 0.01
    """weight of the penalty on actor outputs that saturate tanh"""
    quantiles: int = 8
    """quantile samples per transition (IQN's N and N′)"""
    cvar_alpha: float = 1.0
    """the actor maximizes the mean of this worst fraction of the return distribution (CVaR); 1 is the whole mean"""
    cvar_distance: float = 0.0
    """distance to the nearest obstacle, in meters, within which cvar_alpha shrinks in proportion to it; 0 is never"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._actor  # refuses what it cannot be
        if self.quantiles < 1 or not 0.0 < self.cvar_alpha <= 1.0 or self.cvar_distance < 0.0:
            raise ValueError("quantiles must be at least 1, cvar_alpha in (0, 1], cvar_distance not negative")

    @property
    def _actor(self) -> DeterministicActor:
        return DeterministicActor(
            self.exploration_noise, self.target_policy_noise, self.policy_delay, self.saturation_coef, self.precision
        )

    def check_action(self, spec: Spec) -> None:
        require_continuous(spec, "ac-iqn")

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> DeterministicPolicy:
        distance = require_distance(spec) if self.cvar_distance else None
        critics = 1 + self.twin_critics
        architecture = DeterministicArchitecture(critics, self.hidden_sizes, self.layer_norm, distributional=True)
        policy = init_deterministic_policy(spec, key, architecture, self.init_encoder(spec, key))
        return replace(policy, risk=Risk(self.cvar_alpha, self.cvar_distance), obstacle_distance=distance)

    def explore(
        self,
        policy: DeterministicPolicy,
        observation: Float[Array, "*b d"],
        rngs: Rng,
        progress: Float[Array, ""],
        key: PRNGKeyArray,
        noise: Noise = None,
    ) -> tuple[Array, Rng]:
        return self._actor.explore(policy, observation, rngs, self.epsilon(progress), self.exploration_noise, noise)

    def loss(
        self, policy: DeterministicPolicy, target: DeterministicPolicy, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Array, tuple[Array, Metrics]]:
        tau_key, target_key, actor_key, noise_key = jax.random.split(key, 4)
        taus, target_taus, actor_taus = (stratified_taus(k, self.quantiles) for k in (tau_key, target_key, actor_key))
        next_action = self._actor.target_action(target, batch, noise_key)
        next_values = jnp.stack(
            [q_value(c, batch.next_observation, next_action, self.precision, target_taus) for c in target.critics]
        )
        # Clipped double Q-learning takes the whole distribution of the critic with the lower mean.
        lower = jnp.argmin(jnp.mean(next_values, -1), 0)
        next_values = jnp.take_along_axis(next_values, lower[None, :, None], 0)[0]
        targets = jax.lax.stop_gradient(batch.reward[:, None] + batch.discount[:, None] * next_values)
        values = [q_value(c, batch.observation, batch.action, self.precision, taus) for c in policy.critics]
        losses = sum((quantile_loss(v, taus, targets, self.huber_delta) for v in values), jnp.float32(0.0))
        critic_loss = weighted_mean(losses, batch.weight)
        batch = jax.lax.stop_gradient(batch)
        action, saturation = self._actor.action_and_saturation(policy, batch)
        critic = jax.lax.stop_gradient(policy.critics[0])
        value = q_value(critic, batch.observation, action, self.precision, actor_taus)
        cvar = jnp.sum(value * self._cvar_weights(policy, batch), -1)
        actor_loss = -weighted_mean(cvar, batch.weight) + self.saturation_coef * saturation
        error = jnp.mean(values[0], -1) - jnp.mean(targets, -1)
        return critic_loss + actor_loss, (error, {"loss": critic_loss, "q_mean": -actor_loss})

    def _cvar_weights(self, policy: DeterministicPolicy, batch: Batch) -> Float[Array, "b k"]:
        """Weights of the quantiles in the actor's CVaR, for each sample."""
        assert policy.risk is not None
        distance = None
        if policy.obstacle_distance is not None:
            distance = policy.obstacle_distance(policy.normalizer.denormalize(batch.observation))
        return policy.risk.weights(distance, batch.reward.shape, self.quantiles)

    @property
    def mask_period(self) -> int:
        return self.policy_delay

    def mask_updates(self, updates: PyTree, count: Int[Array, ""]) -> Any:
        return self._actor.mask_updates(updates, count)
