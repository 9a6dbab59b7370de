"""PQN: Q-learning straight from parallel worlds, without replay and without a target, held by layer norm."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.rng import Rng
from ..core.spaces import Box
from ..core.struct import per_world, struct
from ..core.task import Spec, Task
from ..policy.nets import Normalizer
from ..policy.values import DiscreteActions, Precision, QHead, QPolicy, Torso, cast_to, update_normalizer
from .off_policy import Metrics, explore_epsilon_greedy, linear_schedule
from .returns import lambda_returns
from .rollout import EpisodeStats, init_worlds, mean, observe_all, rollout


@struct
class PqnState:
    """One tree: worlds, weights, optimiser, generators."""

    worlds: Any = per_world()
    rngs: Rng = per_world()
    policy: QPolicy
    optimizer: Any
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the policy, over the last part of a training; kept by the trainer


@dataclass(frozen=True)
class Pqn:
    """Settings of PQN."""

    worlds: int = 128
    rollout_length: int = 32
    epochs: int = 2
    minibatches: int = 16
    learning_rate: float = 5e-4
    learning_rate_final_fraction: float = 0.0
    discount: float = 0.99
    td_lambda: float = 0.65
    """how far returns that came are believed, and not values"""
    max_grad_norm: float = 10.0
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    exploration_fraction: float = 0.2
    hidden_sizes: tuple[int, ...] = (128, 128)
    reward_scale: float = 1.0
    """on rewards"""
    normalize_observations: bool = True
    precision: Precision = "auto"
    """what networks compute in: auto is bfloat16 on accelerators only. Weights, targets and losses stay float32"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.rollout_length, self.epochs, self.minibatches) < 1:
            raise ValueError("worlds, length, epochs and minibatches must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.td_lambda <= 1.0:
            raise ValueError("discount and trace lie between 0 and 1")
        if (
            min(self.learning_rate, self.max_grad_norm, self.reward_scale, self.exploration_fraction) <= 0.0
            or self.learning_rate_final_fraction < 0.0
        ):
            raise ValueError("rate, gradient_norm, scale and explore_share must be positive, rate_end not negative")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden needs at least one layer, such as 128 128")

    @property
    def steps_per_update(self) -> int:
        return self.worlds * self.rollout_length

    def check(self, spec: Spec, devices: int) -> None:
        if isinstance(spec.action, Box):
            raise ValueError("pqn chooses between actions; for numbers take sac, td3, ddpg, ac-iqn or ppo")
        if spec.image_shape:
            raise ValueError("pqn does not see pictures; choose a task without, or ppo")
        rows = self.worlds // devices * spec.agents * self.rollout_length
        if rows % self.minibatches:
            raise ValueError(f"{rows} rows on each device do not divide into {self.minibatches} minibatches")

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_radam())

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> QPolicy:
        """A new policy."""
        choices = DiscreteActions.of(spec.action)
        _, first, second = jax.random.split(jax.random.key(0) if key is None else key, 3)
        return QPolicy(
            Normalizer.of(spec.observation),
            Torso.init(first, spec, self.hidden_sizes, norm=True),
            QHead.init(second, self.hidden_sizes[-1], choices.heads),
            choices,
            jnp.ones(1),
        )

    def init(self, task: Task[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> PqnState:
        key = jax.random.key(seed)
        policy, key = self.policy(task.spec, key), jax.random.split(key, 3)[0]
        states, rngs = init_worlds(task, seed, worlds)
        return PqnState(
            worlds=states,
            rngs=rngs,
            policy=policy,
            optimizer=self._adam.init(policy.params),
            key=key,
            updates=jnp.int32(0),
        )

    def update(
        self, task: Task[Any], train: PqnState, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[PqnState, Metrics, EpisodeStats]:
        policy = train.policy
        explore = linear_schedule(self.epsilon_start, self.epsilon_end, progress / self.exploration_fraction)

        def act(observation: Array, rngs: Rng, image_features: Any = None) -> tuple[Array, Array, Rng]:
            action, rngs = self.choose(policy, observation, rngs, explore)
            return action, self._best(policy, self._values(policy, policy.normalizer(observation))), rngs

        worlds, rngs, transitions, stats, _ = rollout(task, act, train.worlds, train.rngs, self.rollout_length)
        last = self._values(policy, policy.normalizer(observe_all(task, worlds)))
        best = jnp.concatenate([transitions.log_prob, self._best(policy, last)[None]])
        target = lambda_returns(
            self.reward_scale * transitions.reward,
            best[1:],
            transitions.terminated,
            transitions.truncated,
            self.discount,
            self.td_lambda,
        )
        flat = lambda x: x.reshape(-1, *x.shape[transitions.reward.ndim :])  # noqa: E731
        rows = tuple(
            flat(x) for x in (policy.normalizer(transitions.observation), transitions.action, target, transitions.valid)
        )
        key, order = jax.random.split(train.key)
        rate = self.learning_rate * (1.0 - (1.0 - self.learning_rate_final_fraction) * progress)
        policy, optimizer, metrics = self._optimize(policy, train.optimizer, rows, order, rate, axis)
        if self.normalize_observations:
            policy = update_normalizer(policy, task.spec, transitions.observation, transitions.valid, axis)
        metrics |= {"step_reward": mean(transitions.reward, transitions.valid, axis), "epsilon": explore}
        train = PqnState(worlds, rngs, policy, optimizer, key, train.updates + 1)
        return train, metrics, jax.lax.psum(stats, axis) if axis else stats

    def choose(
        self, policy: QPolicy, observation: Array, rngs: Rng, explore: Array, noise: PRNGKeyArray | None = None
    ) -> Any:
        """Exploring actions of all worlds and agents in one pass, and the streams that come after."""
        best = policy.choices.best(self._values(policy, policy.normalizer(observation)))
        return explore_epsilon_greedy(best, rngs, explore, policy.choices.random, observation.ndim - 1)

    def _values(self, policy: QPolicy, observation: Array) -> Array:
        """Of normalised observations, what every choice is worth."""
        policy, observation = cast_to((policy, observation), self.precision)
        return policy.raw(observation)[..., 0].astype(jnp.float32)

    def _best(self, policy: QPolicy, values: Array) -> Array:
        """What the best action is worth; of several heads, their mean."""
        return jnp.mean(jnp.stack([jnp.max(part, -1) for part in policy.choices.split(values)]), 0)

    def _optimize(
        self, policy: QPolicy, optimizer: Any, rows: Any, key: PRNGKeyArray, rate: Array, axis: str | None
    ) -> tuple[QPolicy, Any, Metrics]:
        count = rows[2].shape[0]
        orders = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(key, self.epochs))
        orders = orders.reshape(self.epochs * self.minibatches, -1)

        def learn(carry: Any, order: Array) -> tuple[Any, Metrics]:
            policy, optimizer = carry
            observation, action, target, valid = (x[order] for x in rows)

            def loss(weights: Any) -> Any:
                values = self._values(policy.with_params(weights), observation)
                parts = zip(policy.choices.split(values), policy.choices.numbers(action), strict=True)
                off = jnp.stack([jnp.take_along_axis(part, a[:, None], 1)[:, 0] - target for part, a in parts])
                total = jnp.sum(0.5 * jnp.mean(off**2, 0) * valid) / jnp.maximum(jnp.sum(valid), 1)
                return total, {"loss": total, "q_mean": jnp.mean(jnp.max(values, -1))}

            slope, metrics = jax.grad(loss, has_aux=True)(policy.params)
            if axis:
                slope, metrics = jax.lax.pmean((slope, metrics), axis)
            step, optimizer = self._adam.update(slope, optimizer, policy.params)
            weights = jax.tree.map(lambda w, s: w - rate * s, policy.params, step)
            return (policy.with_params(weights), optimizer), metrics | {"grad_norm": optax.tree.norm(slope)}

        (policy, optimizer), metrics = jax.lax.scan(learn, (policy, optimizer), orders)
        return policy, optimizer, jax.tree.map(jnp.mean, metrics)
