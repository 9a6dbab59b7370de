"""What all learners with a replay share: collect, keep, learn from what was kept, follow with a target."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.rng import Chance
from ..core.struct import struct
from ..core.task import Env, Spec
from ..policy.values import Precision, in_precision, seen
from .replay import Replay, Rows, empty, raised, sample, stored
from .rollout import Tally, mean, rollout, started

Metrics = dict[str, Float[Array, ""]]


@struct
class OffPolicyState:
    """One tree: worlds, weights and those they are compared with, optimiser, replay, generators."""

    worlds: Any
    chances: Chance
    policy: Any
    target: Any
    optimiser: Any
    replay: Replay
    top: Float[Array, ""]  # the highest priority so far
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the policy, over the last part of a training; kept by the trainer


@dataclass(frozen=True)
class OffPolicy:
    """Settings that every learner with a replay has."""

    worlds: int = 64
    length: int = 4
    """steps each world takes before learning"""
    learns: int = 4
    """batches learned from after those steps"""
    batch: int = 256
    capacity: int = 500_000
    """rows kept, of all worlds and agents"""
    warmup: int = 2_000
    """rows before the first learning"""
    rate: float = 3e-4
    rate_end: float = 0.1
    """share of the step size that is left at the end, falling linearly"""
    discount: float = 0.99
    steps: int = 3
    """steps whose rewards are summed before a value takes over"""
    follow: float = 0.005
    """share by which the target follows after every batch"""
    copy: int = 0
    """if positive, the target is copied after so many batches instead"""
    scale: float = 1.0
    """on rewards: values far from one take long to learn"""
    width: float = 1.0
    """errors below this count by their square, beyond it straight; where a few large returns decide, as hits do, a
    narrow one is blind to them unless whole distributions are learned"""
    gradient_norm: float = 10.0
    explore: float = 1.0
    """share of actions that are random at the start, falling linearly"""
    explore_end: float = 0.05
    explore_share: float = 0.25
    """of the training, after which exploration stays"""
    prioritised: bool = False
    priority: float = 0.5
    """how much errors decide what is learned from: 0 not at all"""
    correction: float = 0.4
    """how much the bias of that is taken back, rising to 1"""
    hidden: tuple[int, ...] = (128, 128)
    norm: bool = True
    """layer norm in the networks"""
    normalise: bool = True
    """normalise observations by their running mean and variance"""
    precision: Precision = "auto"
    """what networks compute in: auto is bfloat16 on accelerators only. Weights, targets and losses stay float32"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.length, self.learns, self.batch, self.steps, self.capacity) < 1:
            raise ValueError("worlds, length, learns, batch, steps and capacity must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.explore_end <= self.explore <= 1.0:
            raise ValueError("discount and exploration lie between 0 and 1, and exploration does not grow")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError("hidden needs at least one layer, such as 128 128")
        if self.width <= 0.0 or self.scale <= 0.0:
            raise ValueError("width and scale must be positive")
        if self.gradient_norm <= 0.0 or min(self.rate_end, self.copy, self.warmup) < 0:
            raise ValueError("gradient_norm must be positive, rate_end, copy and warmup not negative")
        if self.rate <= 0.0 or not 0.0 < self.follow <= 1.0 or not 0.0 < self.explore_share <= 1.0:
            raise ValueError("rate must be positive, follow and explore_share between 0 and 1")

    @property
    def samples(self) -> int:
        return self.worlds * self.length

    def check(self, spec: Spec, devices: int) -> None:
        """Refuse a task this cannot learn, or a batch that cannot be divided."""
        self.check_action(spec)
        if spec.frame:
            raise ValueError(f"{type(self).__name__} does not see pictures; choose a task without, or ppo")
        if self.batch % devices:
            raise ValueError(f"a batch of {self.batch} rows does not divide over {devices} devices")
        if self.capacity < (self.steps + self.length + 1) * self.worlds * spec.agents:
            raise ValueError(
                f"{self.capacity} rows are too few for {self.worlds} worlds of {spec.agents}: raise learner.capacity"
            )

    def check_action(self, spec: Spec) -> None:
        raise NotImplementedError

    def room(self, spec: Spec) -> int:
        """Steps of every world that are kept: whole rollouts."""
        return max(self.capacity // (self.worlds * spec.agents * self.length), 2) * self.length

    # What differs

    def build(self, key: PRNGKeyArray, env: Env[Any]) -> Any:
        """The policy, with everything that is learned."""
        raise NotImplementedError

    def choose(self, policy: Any, observation: Array, chances: Chance, explore: Array, noise: PRNGKeyArray) -> Any:
        """Exploring actions of all worlds and agents in one pass, and the streams that come after."""
        raise NotImplementedError

    def loss(self, policy: Any, target: Any, rows: Rows, key: PRNGKeyArray, share: Array) -> tuple[Array, Any]:
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
        return optax.chain(optax.clip_by_global_norm(self.gradient_norm), optax.scale_by_adam(eps=1e-5))

    def init(self, env: Env[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> OffPolicyState:
        key = jax.random.key(seed)
        key, first = jax.random.split(key)
        policy = self.build(first, env)
        states, chances = started(env, seed, worlds)
        return OffPolicyState(
            worlds=states,
            chances=chances,
            policy=policy,
            target=policy,
            optimiser=self._adam.init(policy.weights),
            replay=empty(env.spec, worlds.shape[0], self.room(env.spec), self.prioritised),
            top=jnp.float32(1.0),
            key=key,
            updates=jnp.int32(0),
        )

    def update(
        self, env: Env[Any], train: OffPolicyState, share: Float[Array, ""], axis: str | None = None
    ) -> tuple[OffPolicyState, Metrics, Tally]:
        """A few steps of every world, then a few batches."""
        key, noise, learning = jax.random.split(train.key, 3)
        explore = fallen(self.explore, self.explore_end, share / self.explore_share)
        policy = train.policy

        def act(observation: Array, chances: Chance, sight: Any = None) -> tuple[Array, Array, Chance]:
            action, chances = self.choose(policy, observation, chances, explore, noise)
            return action, jnp.zeros(observation.shape[:-1]), chances

        worlds, chances, moments, tally, _ = rollout(env, act, train.worlds, train.chances, self.length)
        room = train.replay.length // self.length
        replay = stored(train.replay, moments, train.updates % room * self.length, train.top)
        if self.normalise:
            policy = seen(policy, env.spec, moments.observation, moments.valid, axis)
        # Counted in rollouts and never beyond the room there is: samples in all would overflow 32 bits.
        rollouts = train.updates + 1
        filled, head = jnp.minimum(rollouts, room) * self.length, rollouts % room * self.length
        enough = min(-(-self.warmup // (self.worlds * env.spec.agents * self.length)), room)
        warm = (rollouts >= enough) & (filled > self.steps)
        train = replace(train, worlds=worlds, chances=chances, policy=policy, replay=replay, key=key)
        train, metrics = self._learn(train, learning, head, filled, warm, share, axis)
        train = replace(train, updates=train.updates + 1)
        metrics |= {"reward": mean(moments.reward, moments.valid, axis), "explore": explore}
        return train, metrics, jax.lax.psum(tally, axis) if axis else tally

    def _learn(
        self,
        train: OffPolicyState,
        key: PRNGKeyArray,
        head: Array,
        filled: Array,
        warm: Array,
        share: Array,
        axis: str | None,
    ) -> tuple[OffPolicyState, Metrics]:
        devices = jax.lax.psum(1, axis) if axis else 1
        here = jax.lax.axis_index(axis) if axis else 0
        rate = self.rate * (1.0 - (1.0 - self.rate_end) * share) * warm
        beta = self.correction + (1.0 - self.correction) * share
        normaliser = train.policy.normaliser

        def one(carry: Any, key: PRNGKeyArray) -> tuple[Any, Metrics]:
            policy, target, optimiser, tree, top, count = carry
            drawing, inside = jax.random.split(jax.random.fold_in(key, here))
            replay = replace(train.replay, tree=tree)
            rows = sample(
                replay,
                drawing,
                self.batch // devices,
                head,
                filled,
                self.steps,
                self.discount,
                beta,
                axis,
                self.between,
            )
            rows = replace(
                rows,
                observation=normaliser(rows.observation),
                following=normaliser(rows.following),
                between=normaliser(rows.between) if self.between else rows.between,
                reward=self.scale * rows.reward,
            )

            def loss(weights: Any) -> Any:
                return self.loss(policy.having(weights), target, rows, inside, share)

            slope, (errors, metrics) = jax.grad(loss, has_aux=True)(policy.weights)
            if axis:
                slope, metrics = jax.lax.pmean((slope, metrics), axis)
            step, optimiser = self._adam.update(slope, optimiser)
            step = self.passed(step, count)
            weights = jax.tree.map(lambda w, s: w - rate * s, policy.weights, step)
            policy = policy.having(weights)
            target = self._followed(target, policy, count)
            if tree is not None:
                priority = jnp.where(rows.weight > 0.0, (jnp.abs(errors) + 1e-3) ** self.priority, 0.0)
                # A row that could not be used keeps what it had.
                old = tree[rows.world, rows.leaf + tree.shape[1] // 2]
                tree = raised(tree, rows.world, rows.leaf, jnp.where(rows.weight > 0.0, priority, old))
                highest = jnp.max(priority)
                top = jnp.maximum(top, jax.lax.pmax(highest, axis) if axis else highest)
            metrics |= {"gradient": optax.tree.norm(slope)}
            return (policy, target, optimiser, tree, top, count + 1), metrics

        # Only ever looked at modulo these; as it is, it would overflow 32 bits.
        count = train.updates % (max(self.copy, 1) * self.period) * self.learns
        carry = train.policy, train.target, train.optimiser, train.replay.tree, train.top, count
        carry, metrics = jax.lax.scan(one, carry, jax.random.split(key, self.learns))
        policy, target, optimiser, tree, top, _ = carry
        # Before there is enough to learn from, nothing has changed but the generators.
        optimiser = jax.tree.map(lambda new, old: jnp.where(warm, new, old), optimiser, train.optimiser)
        train = replace(
            train, policy=policy, target=target, optimiser=optimiser, replay=replace(train.replay, tree=tree), top=top
        )
        return train, jax.tree.map(jnp.mean, metrics)

    def _followed(self, target: Any, policy: Any, count: Array) -> Any:
        share = jnp.where((count + 1) % self.copy == 0, 1.0, 0.0) if self.copy else jnp.float32(self.follow)
        weights = jax.tree.map(lambda old, new: old + share * (new - old), target.weights, policy.weights)
        return target.having(weights)

    def computed(self, tree: Any) -> Any:
        return in_precision(tree, self.precision)


def fallen(first: float, last: float, share: Float[Array, ""]) -> Float[Array, ""]:
    """From the first value to the last, in a straight line, and from then on the last."""
    return first + (last - first) * jnp.minimum(share, 1.0)


def weighted(x: Float[Array, "b"], rows: Rows) -> Float[Array, ""]:
    """The mean over rows by their weight."""
    return jnp.sum(x * rows.weight) / jnp.maximum(jnp.sum(rows.weight > 0.0), 1.0)


def huber(x: Array, width: float = 1.0) -> Array:
    """Square near zero; beyond `width` straight, with a slope of one."""
    size = jnp.abs(x)
    return jnp.where(size < width, 0.5 / width * x * x, size - 0.5 * width)


def quantile_loss(
    values: Float[Array, "b k"], shares: Float[Array, "k"], targets: Float[Array, "b l"], width: float
) -> Float[Array, "b"]:
    """Quantile regression with Huber's loss: summed over the shares asked for, averaged over the targets."""
    off = targets[:, None, :] - values[:, :, None]
    side = jnp.abs(shares[:, None] - (off < 0.0))
    return jnp.sum(jnp.mean(side * huber(off, width), -1), -1)


def greedy_or_random(
    best: Array, chances: Chance, explore: Array, draw: Any, depth: int, hold: int = 1
) -> tuple[Array, Chance]:
    """The best actions, but for a share of agents any action, for `hold` steps; for all worlds and agents."""

    def one(best: Array, chance: Chance) -> tuple[Array, Chance]:
        # The same stream for `hold` steps gives the same dice and the same action, and nothing has to be kept.
        same = replace(chance, drawn=chance.drawn // jnp.uint32(hold)).fork(0)
        other, same = draw(same)
        dice, _ = same.uniform()
        return jnp.where(dice < explore, other.astype(best.dtype), best), chance.word()[1]

    for _ in range(depth):
        one = jax.vmap(one)
    return one(best, chances)
