"""PQN: Q-learning on parallel worlds without replay or target network; layer normalization keeps it stable."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..core.rng import Rng
from ..core.struct import per_world, struct
from ..core.task import Spec, Task
from ..policy.discrete import DiscreteActions, QHead, QPolicy
from ..policy.encoder import Precision, Torso, cast_to, update_normalizer
from ..policy.nets import Normalizer
from ..policy.policy import ImageFeatures
from .dqn import require_discrete
from .exploration import explore_epsilon_greedy, linear_schedule
from .learner import Metrics
from .returns import lambda_returns
from .rollout import Acting, Decision, EpisodeStats, Transition, init_worlds, masked_mean, observe_agents, rollout


@struct
class PqnState:
    """The state of a training: worlds, network, optimizer and generators."""

    worlds: PyTree = per_world()
    rngs: Rng = per_world()
    policy: QPolicy
    optimizer: optax.OptState
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the policy, over the last part of a training; the trainer keeps it


@struct
class PqnBatch:
    """Samples to learn from."""

    observation: Float[Array, "n d"]  # normalized
    action: Array
    target: Float[Array, "n"]
    valid: Bool[Array, "n"]


@dataclass(frozen=True)
class Pqn:
    """Settings of PQN."""

    worlds: int = 128
    """worlds that are stepped together"""
    rollout_length: int = 32
    """steps of every world between two updates"""
    epochs: int = 2
    """passes over each rollout"""
    minibatches: int = 16
    """gradient steps in each pass"""
    learning_rate: float = 5e-4
    """learning rate of RAdam at the start"""
    learning_rate_final_fraction: float = 0.0
    """fraction of the learning rate left at the end of a linear decay"""
    discount: float = 0.99
    """discount factor γ of a step"""
    td_lambda: float = 0.65
    """λ of the TD(λ) returns: 0 is one-step Q-learning, 1 is Monte Carlo"""
    max_grad_norm: float = 10.0
    """gradients are clipped to this norm"""
    epsilon_start: float = 1.0
    """probability of a random action at the start, decaying linearly"""
    epsilon_end: float = 0.05
    """probability of a random action after the decay"""
    exploration_fraction: float = 0.2
    """fraction of the training over which epsilon decays"""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """sizes of the hidden layers"""
    reward_scale: float = 1.0
    """factor on rewards; values far from one take long to learn"""
    normalize_observations: bool = True
    """normalize observations by their running mean and variance"""
    precision: Precision = "auto"
    """floating-point type of the networks; auto is bfloat16 on accelerators and float32 on CPUs. Parameters, targets
    and losses are always float32"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.rollout_length, self.epochs, self.minibatches) < 1:
            raise ValueError("worlds, rollout_length, epochs and minibatches must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.td_lambda <= 1.0:
            raise ValueError("discount and td_lambda lie between 0 and 1")
        if min(self.learning_rate, self.max_grad_norm, self.reward_scale, self.exploration_fraction) <= 0.0:
            raise ValueError("learning_rate, max_grad_norm, reward_scale and exploration_fraction must be positive")
        if self.learning_rate_final_fraction < 0.0:
            raise ValueError("learning_rate_final_fraction must not be negative")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden_sizes needs at least one layer, such as 128 128")

    @property
    def steps_per_update(self) -> int:
        return self.worlds * self.rollout_length

    def check(self, task: Task[Any], devices: int) -> None:
        """Refuse a task this cannot learn, or a rollout that cannot be divided."""
        spec = task.spec
        require_discrete(spec, "pqn")
        if spec.image_shape:
            raise ValueError("pqn cannot learn from images; choose a task without, or ppo")
        samples = self.worlds // devices * spec.agents * self.rollout_length
        if samples % self.minibatches:
            raise ValueError(f"{samples} samples on each device do not divide into {self.minibatches} minibatches")

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_radam())

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> QPolicy:
        actions = DiscreteActions.of(spec.action)
        _, torso_key, head_key = jax.random.split(jax.random.key(0) if key is None else key, 3)
        return QPolicy(
            Normalizer.of(spec.observation),
            Torso.init(torso_key, spec, self.hidden_sizes, layer_norm=True),
            QHead.init(head_key, self.hidden_sizes[-1], actions.heads),
            actions,
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
            optimizer=self._optimizer.init(policy.params),
            key=key,
            updates=jnp.int32(0),
        )

    def update(
        self, task: Task[Any], train: PqnState, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[PqnState, Metrics, EpisodeStats]:
        """A rollout of every world, then `epochs` passes over it."""
        policy = train.policy
        epsilon = linear_schedule(self.epsilon_start, self.epsilon_end, progress / self.exploration_fraction)

        def act(observation: Array, acting: Acting, _: ImageFeatures) -> tuple[Decision, Acting]:
            action, rngs = self.explore(policy, observation, acting.rngs, epsilon)
            values = self._values(policy, policy.normalizer(observation))
            return Decision(action, value=self._best(policy, values)), Acting(rngs)

        worlds, acting, transitions, stats, _ = rollout(
            task, act, train.worlds, Acting(train.rngs), self.rollout_length, observe=observe_agents
        )
        batch = self._batch(task, policy, worlds, transitions)
        key, order_key = jax.random.split(train.key)
        train = replace(train, worlds=worlds, rngs=acting.rngs, key=key)
        train, metrics = self._optimize(train, batch, order_key, progress, axis)
        policy = train.policy
        if self.normalize_observations:
            normalizer = update_normalizer(
                policy.normalizer, task.spec, transitions.observation, transitions.valid, axis
            )
            policy = replace(policy, normalizer=normalizer)
        metrics |= {"step_reward": masked_mean(transitions.reward, transitions.valid, axis), "epsilon": epsilon}
        train = replace(train, policy=policy, updates=train.updates + 1)
        return train, metrics, jax.lax.psum(stats, axis) if axis else stats

    def explore(
        self,
        policy: QPolicy,
        observation: Float[Array, "*b d"],
        rngs: Rng,
        epsilon: Float[Array, ""],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Array, Rng]:
        """Exploring actions of all worlds and agents in one pass, and the generators after them."""
        best = policy.actions.best(self._values(policy, policy.normalizer(observation)))
        return explore_epsilon_greedy(best, rngs, epsilon, policy.actions.space)

    def _values(self, policy: QPolicy, observation: Float[Array, "*b d"]) -> Float[Array, "*b h"]:
        """Of normalized observations, the value of every action."""
        policy, observation = cast_to((policy, observation), self.precision)
        return policy.outputs(observation)[..., 0].astype(jnp.float32)

    def _best(self, policy: QPolicy, values: Float[Array, "*b h"]) -> Float[Array, "*b"]:
        """The value of the best action; with several heads, their mean."""
        return jnp.mean(jnp.stack([jnp.max(part, -1) for part in policy.actions.split(values)]), 0)

    def _batch(self, task: Task[Any], policy: QPolicy, worlds: PyTree, transitions: Transition) -> PqnBatch:
        """The samples of a rollout, with their TD(λ) returns as targets."""
        last = self._values(policy, policy.normalizer(observe_agents(task, worlds)))
        assert transitions.value is not None
        value = jnp.concatenate([transitions.value, self._best(policy, last)[None]])
        target = lambda_returns(
            self.reward_scale * transitions.reward, value[1:], transitions.terminated, transitions.truncated,
            self.discount, self.td_lambda,
        )  # fmt: skip
        batch = PqnBatch(policy.normalizer(transitions.observation), transitions.action, target, transitions.valid)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[transitions.reward.ndim :]), batch)

    def _optimize(
        self, train: PqnState, batch: PqnBatch, key: PRNGKeyArray, progress: Float[Array, ""], axis: str | None
    ) -> tuple[PqnState, Metrics]:
        """The state after `epochs` passes over the batch, in random order."""
        learning_rate = self.learning_rate * (1.0 - (1.0 - self.learning_rate_final_fraction) * progress)
        count = batch.target.shape[0]
        orders = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(key, self.epochs))
        orders = orders.reshape(self.epochs * self.minibatches, -1)

        def learn(
            carry: tuple[QPolicy, optax.OptState], order: Int[Array, "m"]
        ) -> tuple[tuple[QPolicy, optax.OptState], Metrics]:
            policy, optimizer = carry
            part = jax.tree.map(lambda x: x[order], batch)
            grads, metrics = jax.grad(self._loss, has_aux=True)(policy.params, policy, part)
            if axis:
                grads, metrics = jax.lax.pmean((grads, metrics), axis)
            updates, optimizer = self._optimizer.update(grads, optimizer, policy.params)
            params = jax.tree.map(lambda p, u: p - learning_rate * u, policy.params, updates)
            return (policy.with_params(params), optimizer), metrics | {"grad_norm": optax.tree.norm(grads)}

        (policy, optimizer), metrics = jax.lax.scan(learn, (train.policy, train.optimizer), orders)
        return replace(train, policy=policy, optimizer=optimizer), jax.tree.map(jnp.mean, metrics)

    def _loss(self, params: PyTree, policy: QPolicy, batch: PqnBatch) -> tuple[Array, Metrics]:
        values = self._values(policy.with_params(params), batch.observation)
        heads = zip(policy.actions.split(values), policy.actions.encode(batch.action), strict=True)
        errors = jnp.stack([jnp.take_along_axis(q, index[:, None], 1)[:, 0] - batch.target for q, index in heads])
        loss = jnp.sum(0.5 * jnp.mean(errors**2, 0) * batch.valid) / jnp.maximum(jnp.sum(batch.valid), 1)
        return loss, {"loss": loss, "q_mean": jnp.mean(jnp.max(values, -1))}
