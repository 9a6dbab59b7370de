"""Implicit quantile networks (IQN): Q-learning of return distributions, with actions by their CVaR."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.rng import Rng
from ..core.task import Spec
from ..policy.cvar import Risk, require_distance
from ..policy.discrete import DiscreteActions, QHead
from ..policy.encoder import Torso
from ..policy.iqn import IqnPolicy
from ..policy.nets import Normalizer
from ..policy.quantile import QuantileEmbedding, stratified_taus
from .dqn import require_discrete
from .exploration import Noise, explore_epsilon_greedy
from .learner import Metrics
from .losses import quantile_loss, weighted_mean
from .off_policy import OffPolicy
from .replay import Batch


@dataclass(frozen=True)
class Iqn(OffPolicy[IqnPolicy]):
    """Settings of implicit quantile networks."""

    quantiles: int = 8
    """quantile samples per transition (IQN's N and N′)"""
    eval_quantiles: int = 16
    """quantile levels used to act (IQN's K)"""
    cvar_alpha: float = 1.0
    """actions are chosen by the mean of this worst fraction of the return distribution (CVaR); 1 is the whole mean"""
    cvar_distance: float = 0.0
    """distance to the nearest obstacle, in meters, within which cvar_alpha shrinks in proportion to it; 0 is never"""
    exploration_repeat: int = 1
    """steps for which a random action is repeated"""
    double_q: bool = True
    """double Q-learning: the learned network selects the next action, the target network values it"""
    dueling: bool = False
    """separate value and advantage streams"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.quantiles, self.eval_quantiles, self.exploration_repeat) < 1:
            raise ValueError("quantiles, eval_quantiles and exploration_repeat must be at least 1")
        if not 0.0 < self.cvar_alpha <= 1.0 or self.cvar_distance < 0.0:
            raise ValueError("cvar_alpha must be in (0, 1], cvar_distance not negative")

    def check_action(self, spec: Spec) -> None:
        require_discrete(spec, "iqn")

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> IqnPolicy:
        actions = DiscreteActions.of(spec.action)
        key = jax.random.key(0) if key is None else key
        keys, size = jax.random.split(key, 3), self.hidden_sizes[-1]
        return IqnPolicy(
            Normalizer.of(spec.observation),
            Torso.init(keys[0], spec, self.hidden_sizes, self.layer_norm),
            QuantileEmbedding.init(keys[1], size),
            QHead.init(keys[2], size, actions.heads, 1, self.dueling),
            actions,
            Risk(self.cvar_alpha, self.cvar_distance),
            require_distance(spec) if self.cvar_distance else None,
            self.eval_quantiles,
        )

    def explore(
        self,
        policy: IqnPolicy,
        observation: Float[Array, "*b d"],
        rngs: Rng,
        progress: Float[Array, ""],
        key: PRNGKeyArray,
        noise: Noise = None,
    ) -> tuple[Array, Rng]:
        best = policy.actions.best(policy.values(observation))
        return explore_epsilon_greedy(best, rngs, self.epsilon(progress), policy.actions.space, self.exploration_repeat)

    def _quantile_values(self, policy: IqnPolicy, observation: Array, taus: Array) -> Float[Array, "b k h"]:
        # Quantile levels are not cast: their cosines need the digits.
        policy, observation = self.cast((policy, observation))
        return policy.quantile_values(observation, taus).astype(jnp.float32)

    def loss(
        self, policy: IqnPolicy, target: IqnPolicy, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Array, tuple[Array, Metrics]]:
        actions = policy.actions
        taus, next_taus = (stratified_taus(k, self.quantiles) for k in jax.random.split(key))
        quantiles = self._quantile_values(policy, batch.observation, taus)
        target_quantiles = jax.lax.stop_gradient(self._quantile_values(target, batch.next_observation, next_taus))
        selecting = target_quantiles
        if self.double_q:
            selecting = jax.lax.stop_gradient(self._quantile_values(policy, batch.next_observation, next_taus))
        next_values = self._cvar(policy, batch, selecting)
        losses = errors = jnp.zeros_like(batch.reward)
        for own, index, by, after in zip(
            actions.split(quantiles),
            actions.encode(batch.action),
            actions.split(next_values),
            actions.split(target_quantiles),
            strict=True,
        ):
            chosen = jnp.take_along_axis(own, index[:, None, None], -1)[..., 0]
            following = jnp.take_along_axis(after, jnp.argmax(by, -1)[:, None, None], -1)[..., 0]
            targets = batch.reward[:, None] + batch.discount[:, None] * following
            losses = losses + quantile_loss(chosen, taus, targets, self.huber_delta)
            errors = errors + jnp.abs(jnp.mean(chosen, -1) - jnp.mean(targets, -1))
        heads = len(actions.heads)
        loss = weighted_mean(losses / heads, batch.weight)
        return loss, (errors / heads, {"loss": loss, "q_mean": actions.mean_best_value(next_values)})

    def _cvar(self, policy: IqnPolicy, batch: Batch, quantiles: Float[Array, "b k h"]) -> Float[Array, "b h"]:
        """The CVaR of every next action: targets value the policy that acts, with its risk (decision 0012)."""
        distance = None
        if policy.obstacle_distance is not None:
            distance = policy.obstacle_distance(policy.normalizer.denormalize(batch.next_observation))
        weights = policy.risk.weights(distance, batch.reward.shape, self.quantiles)
        return jnp.sum(quantiles * weights[..., None], -2)
