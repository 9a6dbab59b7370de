"""Proximal policy optimisation: collect, estimate advantages, improve within a trust region."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.rng import Rng
from ..core.struct import per_world, struct
from ..core.task import CameraTask, PackedImage, Spec, Task
from ..policy.actor_critic import ActorCritic
from ..policy.nets import ACTIVATIONS, IMAGE_ENCODERS, Normalizer
from .returns import gae
from .rollout import EpisodeStats, Images, Transition, init_worlds, mean, observe_all, rollout

Metrics = dict[str, Float[Array, ""]]


@struct
class PpoState:
    """One tree: worlds, weights, optimiser, generators."""

    worlds: Any = per_world()  # states, with a leading axis of worlds
    rngs: Rng = per_world()  # one generator a world (and agent), for exploration
    policy: ActorCritic
    optimizer: Any
    learning_rate: Float[Array, ""]
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the policy, over the last part of a training; kept by the trainer


@struct
class Batch:
    """Rows to learn from."""

    observation: Float[Array, "n d"]
    action: Array
    log_prob: Float[Array, "n"]
    advantage: Float[Array, "n"]
    target: Float[Array, "n"]
    weight: Float[Array, "n"]  # 1 for experience, 0 for restarts
    image: PackedImage | None = None  # if there is one, it is the row: the other leaves have an axis of its steps


@dataclass(frozen=True)
class Ppo:
    """Settings of PPO. The defaults suit a CPU with a few cores."""

    worlds: int = 1024
    rollout_length: int = 32
    """steps each world takes between two updates"""
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    """step size of Adam at the start"""
    learning_rate_schedule: Literal["linear", "adaptive", "constant"] = "linear"
    """how the step size changes: falling to its end, following the KL divergence, or not"""
    learning_rate_final_fraction: float = 0.0
    """share of the step size left at the end of a linear schedule"""
    target_kl: float = 0.01
    """divergence between the start and the end of an update that an adaptive step size aims at"""
    target_kl_final_fraction: float = 0.1
    """share of target_kl left at the end, falling once `anneal_start` has come: small steps keep what large ones found"""
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.0
    value_coef: float = 0.5
    max_grad_norm: float = 1.0
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    shared_trunk: bool = False
    """one network with two heads instead of two networks"""
    init_std: float = 0.6
    """standard deviation of a continuous action at the start"""
    final_std: float = 0.0
    """if positive, the spread is not learned but falls from `init_std` to this, and stays there once `anneal_start` has come"""
    anneal_start: float = 0.6
    """share of the training after which the spread stays and target_kl falls"""
    normalize_observations: bool = True
    """normalize observations by their running mean and variance"""
    normalize_returns: bool = True
    """normalize value targets by the running mean and variance of returns"""
    shuffle_block: int = 64
    """rows that are shuffled together"""
    state_estimation_coef: float = 0.0
    """weight of how wrong an agent with a camera guesses what its critic is told; with 0 it does not guess"""
    image_encoder: Literal["patches", "cnn"] = "patches"
    """how pictures are read: by matrix products, which suit a CPU, or by convolutions, which suit an accelerator"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.rollout_length, self.epochs, self.minibatches, self.shuffle_block) < 1:
            raise ValueError("worlds, length, epochs, minibatches and block must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.gae_lambda <= 1.0:
            raise ValueError("discount and trace lie between 0 and 1")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden needs at least one layer, such as 64 64")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation} is not known; choose from {', '.join(ACTIVATIONS)}")
        if self.image_encoder not in IMAGE_ENCODERS:
            raise ValueError(f"eyes are {' or '.join(IMAGE_ENCODERS)}, not '{self.image_encoder}'")
        if not 0.0 < self.anneal_start < 1.0:
            raise ValueError("settle lies between 0 and 1")
        if self.learning_rate <= 0.0 or self.init_std <= 0.0 or self.state_estimation_coef < 0.0:
            raise ValueError("rate and spread must be positive, guess not negative")

    def check(self, spec: Spec, devices: int) -> None:
        """Refuse a task whose rollouts these settings cannot divide."""
        if self.rollout_length % spec.image_interval:
            raise ValueError(
                f"{self.rollout_length} steps are no whole number of pictures, one every {spec.image_interval}"
            )
        if self.state_estimation_coef and not spec.privileged_size:
            raise ValueError(
                "nothing is told to the critic alone, so there is nothing to guess; set learner.guess to 0"
            )
        if spec.privileged_size and self.shared_trunk:
            raise ValueError("a critic that is told more than its actor cannot share a network with it; set shared off")
        if frame := spec.image_shape:
            jax.eval_shape(
                lambda: IMAGE_ENCODERS[self.image_encoder].init(jax.random.key(0), frame)
            )  # refuses what it cannot read
        rows = self.worlds // devices * spec.agents * (self.rollout_length // spec.image_interval)
        if rows % (self.minibatches * self.shuffle_block):
            what = "pictures" if spec.image_shape else "rows"
            raise ValueError(
                f"{rows} {what} on each device do not divide into {self.minibatches} minibatches of whole blocks "
                f"of {self.shuffle_block}; change learner.worlds, learner.minibatches or learner.block"
            )

    @property
    def steps_per_update(self) -> int:
        """Steps of all worlds in one update; with several agents, each world gives that many for each."""
        return self.worlds * self.rollout_length

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> ActorCritic:
        """A new policy."""
        return ActorCritic.init(
            jax.random.key(0) if key is None else key,
            spec,
            self.hidden_sizes,
            self.activation,
            self.shared_trunk,
            self.init_std,
            self.image_encoder,
            self.state_estimation_coef > 0.0,
        )

    def init(self, task: Task[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> PpoState:
        """The start, for the worlds of those indices: the same for a world wherever it lives."""
        key, weights = jax.random.split(jax.random.key(seed))
        policy = self.policy(task.spec, weights)
        states, rngs = init_worlds(task, seed, worlds)
        return PpoState(
            worlds=states,
            rngs=rngs,
            policy=policy,
            optimizer=self._adam.init(trainable(policy)),
            learning_rate=jnp.float32(self.learning_rate),
            key=key,
            updates=jnp.int32(0),
        )

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def update(
        self, task: Task[Any], train: PpoState, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[PpoState, Metrics, EpisodeStats]:
        """Collect once, learn from it; `progress` is how much of the training is done, from 0 to 1."""
        policy = train.policy
        if self.final_std > 0.0:
            spread = self.init_std * (self.final_std / self.init_std) ** jnp.minimum(progress / self.anneal_start, 1.0)
            policy = replace(policy, log_std=jnp.full_like(policy.log_std, jnp.log(spread)))
        see = policy.encode if task.spec.image_shape else None
        worlds, rngs, transitions, stats, seen = rollout(
            task, partial(explore, policy), train.worlds, train.rngs, self.rollout_length, see
        )
        batch, worth = self._advantages(task, policy, worlds, transitions, seen, axis)
        policy = replace(policy, return_normalizer=worth)
        rate = train.learning_rate
        if self.learning_rate_schedule == "linear":
            rate = jnp.float32(self.learning_rate) * (1.0 - (1.0 - self.learning_rate_final_fraction) * progress)
        key, order = jax.random.split(train.key)
        target_kl = self.target_kl * self.target_kl_final_fraction ** (
            jnp.maximum(progress - self.anneal_start, 0.0) / (1.0 - self.anneal_start)
        )
        policy, optimizer, rate, metrics = self._optimize(policy, train.optimizer, rate, target_kl, batch, order, axis)
        if self.normalize_observations:
            # Only now: within an update the network must see what it saw when it acted.
            seen = policy.normalizer.update(transitions.observation, transitions.valid, axis)
            policy = replace(policy, normalizer=seen)
        train = PpoState(worlds, rngs, policy, optimizer, rate, key, train.updates + 1)
        metrics |= {
            "step_reward": mean(transitions.reward, transitions.valid, axis),
            "learning_rate": rate,
            "action_std": jnp.mean(jnp.exp(policy.log_std)) if policy.log_std.size else jnp.float32(0.0),
        }
        return train, metrics, jax.lax.psum(stats, axis) if axis else stats

    def _advantages(
        self,
        task: Task[Any],
        policy: ActorCritic,
        worlds: Any,
        transitions: Transition,
        seen: Images | None,
        axis: str | None,
    ) -> tuple[Batch, Normalizer]:
        """Advantages and value targets of a rollout, as rows; and what returns are like now."""
        last, image_features = observe_all(task, worlds, None if seen is None else 0), None
        if seen is not None:
            assert isinstance(task, CameraTask)
            new = policy.encode(jax.vmap(task.image)(worlds))
            image_features = jnp.concatenate(
                [jnp.repeat(seen.image_features, task.spec.image_interval, axis=0), jnp.asarray(new)[None]]
            )
        values = policy.value(jnp.concatenate([transitions.observation, last[None]]), image_features)
        if self.normalize_returns:
            values = values * jnp.sqrt(policy.return_normalizer.variance) + policy.return_normalizer.mean
        advantage = gae(
            transitions.reward, values[:-1], values[1:], transitions.terminated, transitions.truncated,
            self.discount, self.gae_lambda,
        )  # fmt: skip
        target = advantage + values[:-1]
        worth = policy.return_normalizer
        if self.normalize_returns:
            worth = worth.update(target, transitions.valid, axis)
            target = (target - worth.mean) * jax.lax.rsqrt(worth.variance + 1e-6)
        center = mean(advantage, transitions.valid, axis)
        spread = jnp.sqrt(mean((advantage - center) ** 2, transitions.valid, axis))
        batch = Batch(
            observation=transitions.observation,
            action=transitions.action,
            log_prob=transitions.log_prob,
            advantage=(advantage - center) / (spread + 1e-8),
            target=target,
            weight=transitions.valid.astype(jnp.float32),
        )
        depth = transitions.reward.ndim
        if seen is None:
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[depth:]), batch), worth
        steps = task.spec.image_interval

        def beside(x: Array) -> Array:
            """The steps of a picture as an axis of its row."""
            parted = x.reshape(-1, steps, *x.shape[1:])
            return jnp.moveaxis(parted, 1, depth).reshape(-1, steps, *x.shape[depth:])

        batch = jax.tree.map(beside, batch)
        return replace(batch, image=seen.image.reshape(-1, *seen.image.shape[depth:])), worth

    def _optimize(
        self,
        policy: ActorCritic,
        optimizer: Any,
        rate: Array,
        target_kl: Array,
        batch: Batch,
        key: PRNGKeyArray,
        axis: str | None,
    ) -> tuple[ActorCritic, Any, Array, Metrics]:
        """Several passes over the rows, shuffled in blocks: whole blocks copy faster than single rows."""
        rows = batch.advantage.shape[0]
        blocks = rows // self.shuffle_block
        batch = jax.tree.map(lambda x: x.reshape(blocks, self.shuffle_block, *x.shape[1:]), batch)
        orders = jax.vmap(lambda k: jax.random.permutation(k, blocks))(jax.random.split(key, self.epochs))
        together = blocks_at_once(blocks // self.minibatches, self.shuffle_block, batch.image is not None)
        orders = orders.reshape(self.epochs * self.minibatches, -1, together)

        def learn(carry: tuple[Any, Any], order: Array) -> tuple[tuple[Any, Any], Metrics]:
            weights, optimizer = carry

            def of(some: Array) -> Any:
                part = jax.tree.map(lambda x: x[some].reshape(-1, *x.shape[2:]), batch)
                return jax.grad(self._loss, has_aux=True)(weights, policy, part)

            def add(sums: Any, some: Array) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, sums, of(some)), None

            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape), jax.eval_shape(of, order[0]))
            sums, _ = jax.lax.scan(add, nothing, order)
            gradient, metrics = jax.lax.psum(sums, axis) if axis else sums
            # A minibatch of nothing but restarts teaches nothing.
            count = jnp.maximum(metrics.pop("count"), 1.0)
            gradient, metrics = jax.tree.map(lambda x: x / count, (gradient, metrics))
            step, optimizer = self._adam.update(gradient, optimizer)
            weights = jax.tree.map(lambda w, s: w - rate * s, weights, step)
            return (weights, optimizer), metrics | {"grad_norm": optax.tree.norm(gradient)}

        (weights, optimizer), metrics = jax.lax.scan(learn, (trainable(policy), optimizer), orders)
        if self.learning_rate_schedule == "adaptive":
            # Once an update, by how far its end is from its start. Early minibatches are always near the start:
            # followed one by one they would drive the rate up each time.
            reached = jnp.mean(metrics["kl"][-max(self.minibatches // 2, 1) :])
            rate = jnp.clip(rate * jnp.clip(jnp.sqrt(target_kl / (reached + 1e-9)), 0.7, 1.2), 1e-6, 1e-2)
        return with_trainable(policy, weights), optimizer, rate, jax.tree.map(jnp.mean, metrics)

    def _loss(self, weights: Any, policy: ActorCritic, batch: Batch) -> tuple[Array, Metrics]:
        """Summed over the rows, not averaged: a minibatch comes in parts, and not every row is experience."""
        policy = with_trainable(policy, weights)
        if self.final_std > 0.0:
            policy = replace(policy, log_std=jax.lax.stop_gradient(policy.log_std))
        image_features = None if batch.image is None else policy.encode(batch.image)
        image_features = None if image_features is None else image_features[:, None]
        choice, value = policy.distribution_and_value(batch.observation, image_features)
        log_ratio = choice.log_prob(batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)

        def total(x: Array) -> Array:
            return jnp.sum(x * batch.weight)

        clipped = jnp.clip(ratio, 1.0 - self.clip, 1.0 + self.clip)
        surrogate = total(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
        value_loss = total((value - batch.target) ** 2)
        entropy = total(choice.entropy)
        loss = -surrogate + self.value_coef * value_loss - self.entropy_coef * entropy
        guessed = {}
        if policy.state_estimator is not None:
            guessed["state_estimation_loss"] = total(policy.estimation_loss(batch.observation, image_features))
            loss = loss + self.state_estimation_coef * guessed["state_estimation_loss"]
        return loss, guessed | {
            "count": jnp.sum(batch.weight),
            "loss": loss,
            "value_loss": value_loss,
            "entropy": entropy,
            # The estimate (r − 1) − log r of the divergence is never negative and has little variance.
            "kl": total(ratio - 1.0 - log_ratio),
            "clip_fraction": total(jnp.abs(ratio - 1.0) > self.clip),
        }


def explore(
    policy: ActorCritic, observation: Float[Array, "*b d"], rngs: Rng, image_features: Any = None
) -> tuple[Array, Float[Array, "*b"], Rng]:
    """Actions drawn from the policy, for all worlds and agents in one pass of the network."""
    choice = policy.distribution(observation, image_features)

    def sample(head: Array, rng: Rng) -> tuple[Array, Rng]:
        single = jax.tree.unflatten(tree, [head, *rest])
        return single.sample(rng)

    (head, *rest), tree = jax.tree.flatten(choice)
    for _ in range(observation.ndim - 1):
        sample = jax.vmap(sample)
    action, rngs = sample(head, rngs)
    return action, choice.log_prob(action), rngs


def blocks_at_once(blocks: int, rows: int, pictures: bool) -> int:
    """How many of a minibatch's blocks of rows go through the networks together.

    On a CPU 256 rows and all that is computed from them stay in the nearest caches: a third less time than all at
    once. Of rows with a picture it is 16.
    """
    return math.gcd(blocks, max((16 if pictures else 256) // rows, 1)) if jax.default_backend() == "cpu" else blocks


def trainable(policy: ActorCritic) -> tuple[Any, ...]:
    """What the gradient changes."""
    return policy.trunk, policy.actor, policy.critic, policy.log_std, policy.image_encoder, policy.state_estimator


def with_trainable(policy: ActorCritic, weights: tuple[Any, ...]) -> ActorCritic:
    trunk, actor, critic, log_std, image_encoder, state_estimator = weights
    return replace(
        policy,
        trunk=trunk,
        actor=actor,
        critic=critic,
        log_std=log_std,
        image_encoder=image_encoder,
        state_estimator=state_estimator,
    )
