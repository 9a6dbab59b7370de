"""PQN: Q-learning straight from parallel worlds, without replay and without a target, held by layer norm."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.rng import Chance
from ..core.struct import struct
from ..core.task import Box, Env, Spec
from ..policy.nets import Normaliser
from ..policy.values import Choices, Heads, Precision, QPolicy, Torso, in_precision, seen
from .off_policy import Metrics, fallen, greedy_or_random
from .returns import traced
from .rollout import Tally, mean, noticed, rollout, started


@struct
class PqnState:
    """One tree: worlds, weights, optimiser, generators."""

    worlds: Any
    chances: Chance
    policy: QPolicy
    optimiser: Any
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the policy, over the last part of a training; kept by the trainer


@dataclass(frozen=True)
class Pqn:
    """Settings of PQN."""

    worlds: int = 128
    length: int = 32
    epochs: int = 2
    minibatches: int = 16
    rate: float = 5e-4
    rate_end: float = 0.0
    discount: float = 0.99
    trace: float = 0.65
    """how far returns that came are believed, and not values"""
    gradient_norm: float = 10.0
    explore: float = 1.0
    explore_end: float = 0.05
    explore_share: float = 0.2
    hidden: tuple[int, ...] = (128, 128)
    scale: float = 1.0
    """on rewards"""
    normalise: bool = True
    precision: Precision = "auto"
    """what networks compute in: auto is bfloat16 on accelerators only. Weights, targets and losses stay float32"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.length, self.epochs, self.minibatches) < 1:
            raise ValueError("worlds, length, epochs and minibatches must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.trace <= 1.0:
            raise ValueError("discount and trace lie between 0 and 1")
        if min(self.rate, self.gradient_norm, self.scale, self.explore_share) <= 0.0 or self.rate_end < 0.0:
            raise ValueError("rate, gradient_norm, scale and explore_share must be positive, rate_end not negative")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError("hidden needs at least one layer, such as 128 128")

    @property
    def samples(self) -> int:
        return self.worlds * self.length

    def check(self, spec: Spec, devices: int) -> None:
        if isinstance(spec.action, Box):
            raise ValueError("pqn chooses between actions; for numbers take sac, td3, ddpg, ac-iqn or ppo")
        if spec.frame:
            raise ValueError("pqn does not see pictures; choose a task without, or ppo")
        rows = self.worlds // devices * spec.agents * self.length
        if rows % self.minibatches:
            raise ValueError(f"{rows} rows on each device do not divide into {self.minibatches} minibatches")

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.gradient_norm), optax.scale_by_radam())

    def init(self, env: Env[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> PqnState:
        key = jax.random.key(seed)
        key, first, second = jax.random.split(key, 3)
        spec, choices = env.spec, Choices.of(env.spec.action)
        policy = QPolicy(
            Normaliser.of(spec.observation),
            Torso.init(first, spec, self.hidden, norm=True),
            Heads.init(second, self.hidden[-1], choices.heads),
            choices,
            jnp.ones(1),
        )
        states, chances = started(env, seed, worlds)
        return PqnState(
            worlds=states,
            chances=chances,
            policy=policy,
            optimiser=self._adam.init(policy.weights),
            key=key,
            updates=jnp.int32(0),
        )

    def update(
        self, env: Env[Any], train: PqnState, share: Float[Array, ""], axis: str | None = None
    ) -> tuple[PqnState, Metrics, Tally]:
        policy = train.policy
        explore = fallen(self.explore, self.explore_end, share / self.explore_share)

        def act(observation: Array, chances: Chance, sight: Any = None) -> tuple[Array, Array, Chance]:
            action, chances = self.choose(policy, observation, chances, explore)
            return action, self._best(policy, self._values(policy, policy.normaliser(observation))), chances

        worlds, chances, moments, tally, _ = rollout(env, act, train.worlds, train.chances, self.length)
        last = self._values(policy, policy.normaliser(noticed(env, worlds)))
        best = jnp.concatenate([moments.log_prob, self._best(policy, last)[None]])
        target = traced(
            self.scale * moments.reward, best[1:], moments.terminated, moments.truncated, self.discount, self.trace
        )
        flat = lambda x: x.reshape(-1, *x.shape[moments.reward.ndim :])  # noqa: E731
        rows = tuple(flat(x) for x in (policy.normaliser(moments.observation), moments.action, target, moments.valid))
        key, order = jax.random.split(train.key)
        rate = self.rate * (1.0 - (1.0 - self.rate_end) * share)
        policy, optimiser, metrics = self._improve(policy, train.optimiser, rows, order, rate, axis)
        if self.normalise:
            policy = seen(policy, env.spec, moments.observation, moments.valid, axis)
        metrics |= {"reward": mean(moments.reward, moments.valid, axis), "explore": explore}
        train = PqnState(worlds, chances, policy, optimiser, key, train.updates + 1)
        return train, metrics, jax.lax.psum(tally, axis) if axis else tally

    def choose(
        self, policy: QPolicy, observation: Array, chances: Chance, explore: Array, noise: PRNGKeyArray | None = None
    ) -> Any:
        """Exploring actions of all worlds and agents in one pass, and the streams that come after."""
        best = policy.choices.best(self._values(policy, policy.normaliser(observation)))
        return greedy_or_random(best, chances, explore, policy.choices.random, observation.ndim - 1)

    def _values(self, policy: QPolicy, observation: Array) -> Array:
        """Of normalised observations, what every choice is worth."""
        policy, observation = in_precision((policy, observation), self.precision)
        return policy.raw(observation)[..., 0].astype(jnp.float32)

    def _best(self, policy: QPolicy, values: Array) -> Array:
        """What the best action is worth; of several heads, their mean."""
        return jnp.mean(jnp.stack([jnp.max(part, -1) for part in policy.choices.split(values)]), 0)

    def _improve(
        self, policy: QPolicy, optimiser: Any, rows: Any, key: PRNGKeyArray, rate: Array, axis: str | None
    ) -> tuple[QPolicy, Any, Metrics]:
        count = rows[2].shape[0]
        orders = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(key, self.epochs))
        orders = orders.reshape(self.epochs * self.minibatches, -1)

        def learn(carry: Any, order: Array) -> tuple[Any, Metrics]:
            policy, optimiser = carry
            observation, action, target, valid = (x[order] for x in rows)

            def loss(weights: Any) -> Any:
                values = self._values(policy.having(weights), observation)
                parts = zip(policy.choices.split(values), policy.choices.numbers(action), strict=True)
                off = jnp.stack([jnp.take_along_axis(part, a[:, None], 1)[:, 0] - target for part, a in parts])
                total = jnp.sum(0.5 * jnp.mean(off**2, 0) * valid) / jnp.maximum(jnp.sum(valid), 1)
                return total, {"loss": total, "value": jnp.mean(jnp.max(values, -1))}

            slope, metrics = jax.grad(loss, has_aux=True)(policy.weights)
            if axis:
                slope, metrics = jax.lax.pmean((slope, metrics), axis)
            step, optimiser = self._adam.update(slope, optimiser, policy.weights)
            weights = jax.tree.map(lambda w, s: w - rate * s, policy.weights, step)
            return (policy.having(weights), optimiser), metrics | {"gradient": optax.tree.norm(slope)}

        (policy, optimiser), metrics = jax.lax.scan(learn, (policy, optimiser), orders)
        return policy, optimiser, jax.tree.map(jnp.mean, metrics)
