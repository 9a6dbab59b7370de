"""What all learners with a replay share: collect, keep, learn from what was kept, follow with a target."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.rng import Rng
from ..core.struct import per_world, struct
from ..core.task import Spec, Task
from ..policy.values import Precision, cast_to, update_normalizer
from .replay import Batch, Replay, add_transitions, empty, sample, set_priorities
from .rollout import EpisodeStats, init_worlds, mean, rollout

Metrics = dict[str, Float[Array, ""]]


@struct
class OffPolicyState:
    """One tree: worlds, weights and those they are compared with, optimiser, replay, generators."""

    worlds: Any = per_world()
    rngs: Rng = per_world()
    policy: Any
    target: Any
    optimizer: Any
    replay: Replay = per_world()
    top: Float[Array, ""]  # the highest priority so far
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the policy, over the last part of a training; kept by the trainer


@dataclass(frozen=True)
class OffPolicy:
    """Settings that every learner with a replay has."""

    worlds: int = 64
    rollout_length: int = 4
    """steps each world takes before learning"""
    gradient_steps: int = 4
    """batches learned from after those steps"""
    batch_size: int = 256
    capacity: int = 500_000
    """rows kept, of all worlds and agents"""
    learning_starts: int = 2_000
    """rows before the first learning"""
    learning_rate: float = 3e-4
    learning_rate_final_fraction: float = 0.1
    """share of the step size that is left at the end, falling linearly"""
    discount: float = 0.99
    n_step: int = 3
    """steps whose rewards are summed before a value takes over"""
    tau: float = 0.005
    """share by which the target follows after every batch"""
    target_update_interval: int = 0
    """if positive, the target is copied after so many batches instead"""
    reward_scale: float = 1.0
    """on rewards: values far from one take long to learn"""
    huber_delta: float = 1.0
    """errors below this count by their square, beyond it straight; where a few large returns decide, as hits do, a
    narrow one is blind to them unless whole distributions are learned"""
    max_grad_norm: float = 10.0
    epsilon_start: float = 1.0
    """share of actions that are random at the start, falling linearly"""
    epsilon_end: float = 0.05
    exploration_fraction: float = 0.25
    """of the training, after which exploration stays"""
    prioritized_replay: bool = False
    per_alpha: float = 0.5
    """how much errors decide what is learned from: 0 not at all"""
    per_beta: float = 0.4
    """how much the bias of that is taken back, rising to 1"""
    hidden_sizes: tuple[int, ...] = (128, 128)
    layer_norm: bool = True
    """layer norm in the networks"""
    normalize_observations: bool = True
    """normalise observations by their running mean and variance"""
    precision: Precision = "auto"
    """what networks compute in: auto is bfloat16 on accelerators only. Weights, targets and losses stay float32"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.rollout_length, self.gradient_steps, self.batch_size, self.n_step, self.capacity) < 1:
            raise ValueError("worlds, length, learns, batch, steps and capacity must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.epsilon_end <= self.epsilon_start <= 1.0:
            raise ValueError("discount and exploration lie between 0 and 1, and exploration does not grow")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden needs at least one layer, such as 128 128")
        if self.huber_delta <= 0.0 or self.reward_scale <= 0.0:
            raise ValueError("width and scale must be positive")
        if (
            self.max_grad_norm <= 0.0
            or min(self.learning_rate_final_fraction, self.target_update_interval, self.learning_starts) < 0
        ):
            raise ValueError("gradient_norm must be positive, rate_end, copy and warmup not negative")
        if self.learning_rate <= 0.0 or not 0.0 < self.tau <= 1.0 or not 0.0 < self.exploration_fraction <= 1.0:
            raise ValueError("rate must be positive, follow and explore_share between 0 and 1")

    @property
    def steps_per_update(self) -> int:
        return self.worlds * self.rollout_length

    def check(self, spec: Spec, devices: int) -> None:
        """Refuse a task this cannot learn, or a batch that cannot be divided."""
        self.check_action(spec)
        if spec.image_shape:
            raise ValueError(f"{type(self).__name__} does not see pictures; choose a task without, or ppo")
        if self.batch_size % devices:
            raise ValueError(f"a batch of {self.batch_size} rows does not divide over {devices} devices")
        if self.capacity < (self.n_step + self.rollout_length + 1) * self.worlds * spec.agents:
            raise ValueError(
                f"{self.capacity} rows are too few for {self.worlds} worlds of {spec.agents}: raise learner.capacity"
            )

    def check_action(self, spec: Spec) -> None:
        raise NotImplementedError

    def room(self, spec: Spec) -> int:
        """Steps of every world that are kept: whole rollouts."""
        return max(self.capacity // (self.worlds * spec.agents * self.rollout_length), 2) * self.rollout_length

    # What differs

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> Any:
        """A new policy, with everything that is learned."""
        raise NotImplementedError

    def choose(self, policy: Any, observation: Array, rngs: Rng, explore: Array, noise: PRNGKeyArray) -> Any:
        """Exploring actions of all worlds and agents in one pass, and the streams that come after."""
        raise NotImplementedError

    def loss(self, policy: Any, target: Any, rows: Batch, key: PRNGKeyArray, progress: Array) -> tuple[Array, Any]:
        """The weighted mean loss of a batch; and for each row its error, and metrics."""
        raise NotImplementedError

    @property
    def between(self) -> bool:
        """Whether the loss looks at the observations between the first step of a row and its last."""
        return False

    @property
    def period(self) -> int:
        """Batches after which `passed` repeats itself."""
        return 1

    def passed(self, step: Any, count: Array) -> Any:
        """What of a step of the optimiser is taken; by default all."""
        return step

    # What is shared

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def init(self, task: Task[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> OffPolicyState:
        key = jax.random.key(seed)
        key, first = jax.random.split(key)
        policy = self.policy(task.spec, first)
        states, rngs = init_worlds(task, seed, worlds)
        return OffPolicyState(
            worlds=states,
            rngs=rngs,
            policy=policy,
            target=policy,
            optimizer=self._adam.init(policy.params),
            replay=empty(task.spec, worlds.shape[0], self.room(task.spec), self.prioritized_replay),
            top=jnp.float32(1.0),
            key=key,
            updates=jnp.int32(0),
        )

    def update(
        self, task: Task[Any], train: OffPolicyState, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[OffPolicyState, Metrics, EpisodeStats]:
        """A few steps of every world, then a few batches."""
        key, noise, learning = jax.random.split(train.key, 3)
        explore = linear_schedule(self.epsilon_start, self.epsilon_end, progress / self.exploration_fraction)
        policy = train.policy

        def act(observation: Array, rngs: Rng, image_features: Any = None) -> tuple[Array, Array, Rng]:
            action, rngs = self.choose(policy, observation, rngs, explore, noise)
            return action, jnp.zeros(observation.shape[:-1]), rngs

        worlds, rngs, transitions, stats, _ = rollout(task, act, train.worlds, train.rngs, self.rollout_length)
        room = train.replay.length // self.rollout_length
        replay = add_transitions(train.replay, transitions, train.updates % room * self.rollout_length, train.top)
        if self.normalize_observations:
            policy = update_normalizer(policy, task.spec, transitions.observation, transitions.valid, axis)
        # Counted in rollouts and never beyond the room there is: samples in all would overflow 32 bits.
        rollouts = train.updates + 1
        filled, head = jnp.minimum(rollouts, room) * self.rollout_length, rollouts % room * self.rollout_length
        enough = min(-(-self.learning_starts // (self.worlds * task.spec.agents * self.rollout_length)), room)
        warm = (rollouts >= enough) & (filled > self.n_step)
        train = replace(train, worlds=worlds, rngs=rngs, policy=policy, replay=replay, key=key)
        train, metrics = self._learn(train, learning, head, filled, warm, progress, axis)
        train = replace(train, updates=train.updates + 1)
        metrics |= {"step_reward": mean(transitions.reward, transitions.valid, axis), "epsilon": explore}
        return train, metrics, jax.lax.psum(stats, axis) if axis else stats

    def _learn(
        self,
        train: OffPolicyState,
        key: PRNGKeyArray,
        head: Array,
        filled: Array,
        warm: Array,
        progress: Array,
        axis: str | None,
    ) -> tuple[OffPolicyState, Metrics]:
        devices = jax.lax.psum(1, axis) if axis else 1
        here = jax.lax.axis_index(axis) if axis else 0
        rate = self.learning_rate * (1.0 - (1.0 - self.learning_rate_final_fraction) * progress) * warm
        beta = self.per_beta + (1.0 - self.per_beta) * progress
        normalizer = train.policy.normalizer

        def one(carry: Any, key: PRNGKeyArray) -> tuple[Any, Metrics]:
            policy, target, optimizer, tree, top, count = carry
            drawing, inside = jax.random.split(jax.random.fold_in(key, here))
            replay = replace(train.replay, tree=tree)
            rows = sample(
                replay,
                drawing,
                self.batch_size // devices,
                head,
                filled,
                self.n_step,
                self.discount,
                beta,
                axis,
                self.between,
            )
            rows = replace(
                rows,
                observation=normalizer(rows.observation),
                following=normalizer(rows.following),
                between=normalizer(rows.between) if self.between else rows.between,
                reward=self.reward_scale * rows.reward,
            )

            def loss(weights: Any) -> Any:
                return self.loss(policy.with_params(weights), target, rows, inside, progress)

            slope, (errors, metrics) = jax.grad(loss, has_aux=True)(policy.params)
            if axis:
                slope, metrics = jax.lax.pmean((slope, metrics), axis)
            step, optimizer = self._adam.update(slope, optimizer)
            step = self.passed(step, count)
            weights = jax.tree.map(lambda w, s: w - rate * s, policy.params, step)
            policy = policy.with_params(weights)
            target = self._update_target(target, policy, count)
            if tree is not None:
                priority = jnp.where(rows.weight > 0.0, (jnp.abs(errors) + 1e-3) ** self.per_alpha, 0.0)
                # A row that could not be used keeps what it had.
                old = tree[rows.world, rows.leaf + tree.shape[1] // 2]
                tree = set_priorities(tree, rows.world, rows.leaf, jnp.where(rows.weight > 0.0, priority, old))
                highest = jnp.max(priority)
                top = jnp.maximum(top, jax.lax.pmax(highest, axis) if axis else highest)
            metrics |= {"grad_norm": optax.tree.norm(slope)}
            return (policy, target, optimizer, tree, top, count + 1), metrics

        # Only ever looked at modulo these; as it is, it would overflow 32 bits.
        count = train.updates % (max(self.target_update_interval, 1) * self.period) * self.gradient_steps
        carry = train.policy, train.target, train.optimizer, train.replay.tree, train.top, count
        carry, metrics = jax.lax.scan(one, carry, jax.random.split(key, self.gradient_steps))
        policy, target, optimizer, tree, top, _ = carry
        # Before there is enough to learn from, nothing has changed but the generators.
        optimizer = jax.tree.map(lambda new, old: jnp.where(warm, new, old), optimizer, train.optimizer)
        train = replace(
            train, policy=policy, target=target, optimizer=optimizer, replay=replace(train.replay, tree=tree), top=top
        )
        return train, jax.tree.map(jnp.mean, metrics)

    def _update_target(self, target: Any, policy: Any, count: Array) -> Any:
        progress = (
            jnp.where((count + 1) % self.target_update_interval == 0, 1.0, 0.0)
            if self.target_update_interval
            else jnp.float32(self.tau)
        )
        weights = jax.tree.map(lambda old, new: old + progress * (new - old), target.params, policy.params)
        return target.with_params(weights)

    def cast(self, tree: Any) -> Any:
        return cast_to(tree, self.precision)


def linear_schedule(first: float, last: float, progress: Float[Array, ""]) -> Float[Array, ""]:
    """From the first value to the last, in a straight line, and from then on the last."""
    return first + (last - first) * jnp.minimum(progress, 1.0)


def weighted_mean(x: Float[Array, "b"], rows: Batch) -> Float[Array, ""]:
    """The mean over rows by their weight."""
    return jnp.sum(x * rows.weight) / jnp.maximum(jnp.sum(rows.weight > 0.0), 1.0)


def huber(x: Array, width: float = 1.0) -> Array:
    """Square near zero; beyond `huber_delta` straight, with a slope of one."""
    size = jnp.abs(x)
    return jnp.where(size < width, 0.5 / width * x * x, size - 0.5 * width)


def quantile_loss(
    values: Float[Array, "b k"], shares: Float[Array, "k"], targets: Float[Array, "b l"], width: float
) -> Float[Array, "b"]:
    """Quantile regression with Huber's loss: summed over the shares asked for, averaged over the targets."""
    off = targets[:, None, :] - values[:, :, None]
    side = jnp.abs(shares[:, None] - (off < 0.0))
    return jnp.sum(jnp.mean(side * huber(off, width), -1), -1)


def explore_epsilon_greedy(
    best: Array, rngs: Rng, explore: Array, draw: Any, depth: int, hold: int = 1
) -> tuple[Array, Rng]:
    """The best actions, but for a share of agents any action, for `hold` steps; for all worlds and agents."""

    def one(best: Array, rng: Rng) -> tuple[Array, Rng]:
        # The same stream for `hold` steps gives the same dice and action, so nothing has to be kept.
        same = replace(rng, drawn=rng.drawn // jnp.uint32(hold)).fork(0)
        other, same = draw(same)
        dice, _ = same.uniform()
        return jnp.where(dice < explore, other.astype(best.dtype), best), rng.bits()[1]

    for _ in range(depth):
        one = jax.vmap(one)
    return one(best, rngs)
