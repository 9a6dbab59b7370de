"""Deep Q-learning for choices, with Rainbow's parts as switches: double, dueling, n-step, priorities, noise, atoms."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.rng import Rng
from ..core.spaces import Box
from ..core.task import Spec
from ..policy.nets import Normalizer
from ..policy.values import DiscreteActions, QHead, QPolicy, Torso
from .off_policy import OffPolicy, explore_epsilon_greedy, huber, weighted_mean
from .replay import Batch


@dataclass(frozen=True)
class Dqn(OffPolicy):
    """Settings of deep Q-learning."""

    double_q: bool = True
    """choose by the learned network what the target network values"""
    exploration_repeat: int = 1
    """steps for which a random action is kept: where a goal is reached only by a run of equal actions, more find it"""
    dueling: bool = False
    noisy_sigma: float = 0.0
    """spread of weights that tremble in place of random actions; 0 is none"""
    atoms: int = 1
    """of the distribution of returns; 1 is its mean only"""
    v_min: float = -20.0
    """return of the first atom, and of the last"""
    v_max: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.atoms, self.exploration_repeat) < 1 or self.noisy_sigma < 0.0 or self.v_min >= self.v_max:
            raise ValueError("atoms and hold are at least 1, noisy not negative, and lowest is below highest")

    def check_action(self, spec: Spec) -> None:
        if isinstance(spec.action, Box):
            name = type(self).__name__.lower()
            raise ValueError(f"{name} chooses between actions; for numbers take sac, td3, ddpg, ac-iqn or ppo")

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> QPolicy:
        choices = DiscreteActions.of(spec.action)
        key = jax.random.key(0) if key is None else key
        first, second = jax.random.split(key)
        support = jnp.linspace(self.v_min, self.v_max, self.atoms) if self.atoms > 1 else jnp.ones(1)
        return QPolicy(
            Normalizer.of(spec.observation),
            Torso.init(first, spec, self.hidden_sizes, self.layer_norm),
            QHead.init(second, self.hidden_sizes[-1], choices.heads, self.atoms, self.dueling, self.noisy_sigma),
            choices,
            support,
        )

    def choose(self, policy: QPolicy, observation: Array, rngs: Rng, explore: Array, noise: PRNGKeyArray) -> Any:
        raw = self._raw(policy, policy.normalizer(observation), noise if self.noisy_sigma else None)
        best = policy.choices.best(policy.values(raw))
        progress = explore * 0.0 if self.noisy_sigma else explore
        return explore_epsilon_greedy(
            best, rngs, progress, policy.choices.random, observation.ndim - 1, self.exploration_repeat
        )

    def _raw(self, policy: QPolicy, observation: Array, noise: PRNGKeyArray | None) -> Array:
        policy, observation = self.cast((policy, observation))
        return policy.raw(observation, noise).astype(jnp.float32)

    def loss(
        self, policy: QPolicy, target: QPolicy, rows: Batch, key: PRNGKeyArray, progress: Array
    ) -> tuple[Array, Any]:
        choices = policy.choices
        keys = jax.random.split(key, 3) if self.noisy_sigma else (None, None, None)
        now, then = self._raw(policy, rows.observation, keys[0]), self._raw(target, rows.following, keys[1])
        picking = jax.lax.stop_gradient(self._raw(policy, rows.following, keys[2])) if self.double_q else then
        then = jax.lax.stop_gradient(then)
        taken = choices.numbers(rows.action)
        mine, picked, theirs = (
            self._split(choices, now),
            choices.split(policy.values(picking)),
            self._split(choices, then),
        )
        losses = errors = jnp.zeros_like(rows.reward)
        for own, action, by, after in zip(mine, taken, picked, theirs, strict=True):
            chosen = take_action(own, action)
            following = take_action(after, jnp.argmax(by, -1))
            if self.atoms == 1:
                error = chosen[..., 0] - (rows.reward + rows.discount * following[..., 0])
                losses, errors = losses + huber(error, self.huber_delta), errors + jnp.abs(error)
            else:
                wanted = project_distribution(jax.nn.softmax(following), rows.reward, rows.discount, policy.support)
                cross = -jnp.sum(wanted * jax.nn.log_softmax(chosen), -1)
                losses, errors = losses + cross, errors + cross
        count = len(mine)
        value = jnp.mean(jnp.stack([jnp.mean(jnp.max(part, -1)) for part in picked]))
        loss = weighted_mean(losses / count, rows)
        return loss, (errors / count, {"loss": loss, "q_mean": value})

    def _split(self, choices: DiscreteActions, raw: Float[Array, "b h a"]) -> list[Float[Array, "b n a"]]:
        parts = choices.split(jnp.swapaxes(raw, -1, -2))
        return [jnp.swapaxes(part, -1, -2) for part in parts]


def take_action(values: Float[Array, "b n a"], action: Array) -> Float[Array, "b a"]:
    """Of every row the values of its action."""
    return jnp.take_along_axis(values, action[:, None, None], axis=1)[:, 0]


def project_distribution(
    rngs: Float[Array, "b a"], reward: Float[Array, "b"], discount: Float[Array, "b"], support: Float[Array, "a"]
) -> Float[Array, "b a"]:
    """A distribution of returns after a reward and a discount, on the same atoms: what falls between two is shared."""
    low, high, count = support[0], support[-1], support.shape[0]
    width = (high - low) / (count - 1)
    moved = jnp.clip(reward[:, None] + discount[:, None] * support, low, high)
    # Every atom takes from those that land within one width of it.
    near = 1.0 - jnp.abs(moved[:, None, :] - support[:, None]) / width
    return jnp.sum(jnp.clip(near, 0.0, 1.0) * rngs[:, None, :], -1)
