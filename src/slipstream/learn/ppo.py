"""Proximal policy optimisation: collect, estimate advantages, improve within a trust region."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.rng import Chance
from ..core.struct import struct
from ..core.task import Env, Picture, Seeing, Spec
from ..policy.actor_critic import ActorCritic
from ..policy.nets import ACTIVATIONS, EYES, Normaliser
from .returns import advantages
from .rollout import Moment, Seen, Tally, mean, noticed, rollout, started

Metrics = dict[str, Float[Array, ""]]


@struct
class PpoState:
    """One tree: worlds, weights, optimiser, generators."""

    worlds: Any  # states, with a leading axis of worlds
    chances: Chance  # one generator a world (and agent), for exploration
    policy: ActorCritic
    optimiser: Any
    rate: Float[Array, ""]
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
    frame: Picture | None = None  # if there is one, it is the row: the other leaves have an axis of its steps


@dataclass(frozen=True)
class Ppo:
    """Settings of PPO. The defaults suit a CPU with a few cores."""

    worlds: int = 1024
    length: int = 32
    """steps each world takes between two updates"""
    epochs: int = 4
    minibatches: int = 4
    rate: float = 1e-3
    """step size of Adam at the start"""
    schedule: Literal["linear", "adaptive", "constant"] = "linear"
    """how the step size changes: falling to its end, following the KL divergence, or not"""
    rate_end: float = 0.0
    """share of the step size left at the end of a linear schedule"""
    target_kl: float = 0.01
    """divergence between the start and the end of an update that an adaptive step size aims at"""
    target_kl_end: float = 0.1
    """share of target_kl left at the end, falling once `settle` has come: small steps keep what large ones found"""
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    entropy: float = 0.0
    value_weight: float = 0.5
    gradient_norm: float = 1.0
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    shared: bool = False
    """one network with two heads instead of two networks"""
    spread: float = 0.6
    """standard deviation of a continuous action at the start"""
    spread_end: float = 0.0
    """if positive, the spread is not learned but falls from `spread` to this, and stays there once `settle` has come"""
    settle: float = 0.6
    """share of the training after which the spread stays and target_kl falls"""
    normalise: bool = True
    """normalise observations by their running mean and variance, and returns likewise"""
    block: int = 64
    """rows that are shuffled together"""
    guess: float = 0.0
    """weight of how wrong an agent with a camera guesses what its critic is told; with 0 it does not guess"""
    eyes: Literal["patches", "convolutions"] = "patches"
    """how pictures are read: by matrix products, which suit a CPU, or by convolutions, which suit an accelerator"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.length, self.epochs, self.minibatches, self.block) < 1:
            raise ValueError("worlds, length, epochs, minibatches and block must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.trace <= 1.0:
            raise ValueError("discount and trace lie between 0 and 1")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError("hidden needs at least one layer, such as 64 64")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation} is not known; choose from {', '.join(ACTIVATIONS)}")
        if self.eyes not in EYES:
            raise ValueError(f"eyes are {' or '.join(EYES)}, not '{self.eyes}'")
        if not 0.0 < self.settle < 1.0:
            raise ValueError("settle lies between 0 and 1")
        if self.rate <= 0.0 or self.spread <= 0.0 or self.guess < 0.0:
            raise ValueError("rate and spread must be positive, guess not negative")

    def check(self, spec: Spec, devices: int) -> None:
        """Refuse a task whose rollouts these settings cannot divide."""
        if self.length % spec.interval:
            raise ValueError(f"{self.length} steps are no whole number of pictures, one every {spec.interval}")
        if self.guess and not spec.insight:
            raise ValueError(
                "nothing is told to the critic alone, so there is nothing to guess; set learner.guess to 0"
            )
        if spec.insight and self.shared:
            raise ValueError("a critic that is told more than its actor cannot share a network with it; set shared off")
        if frame := spec.frame:
            jax.eval_shape(lambda: EYES[self.eyes].init(jax.random.key(0), frame))  # refuses what it cannot read
        rows = self.worlds // devices * spec.agents * (self.length // spec.interval)
        if rows % (self.minibatches * self.block):
            what = "pictures" if spec.frame else "rows"
            raise ValueError(
                f"{rows} {what} on each device do not divide into {self.minibatches} minibatches of whole blocks "
                f"of {self.block}; change learner.worlds, learner.minibatches or learner.block"
            )

    @property
    def samples(self) -> int:
        """Steps of all worlds in one update; with several agents, each world gives that many for each."""
        return self.worlds * self.length

    def init(self, env: Env[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> PpoState:
        """The start, for the worlds of those indices: the same for a world wherever it lives."""
        key = jax.random.key(seed)
        key, weights = jax.random.split(key)
        policy = ActorCritic.init(
            weights, env.spec, self.hidden, self.activation, self.shared, self.spread, self.eyes, self.guess > 0.0
        )
        states, chances = started(env, seed, worlds)
        return PpoState(
            worlds=states,
            chances=chances,
            policy=policy,
            optimiser=self._adam.init(trainable(policy)),
            rate=jnp.float32(self.rate),
            key=key,
            updates=jnp.int32(0),
        )

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.gradient_norm), optax.scale_by_adam(eps=1e-5))

    def update(
        self, env: Env[Any], train: PpoState, share: Float[Array, ""], axis: str | None = None
    ) -> tuple[PpoState, Metrics, Tally]:
        """Collect once, learn from it; `share` is how much of the training is done, from 0 to 1."""
        policy = train.policy
        if self.spread_end > 0.0:
            spread = self.spread * (self.spread_end / self.spread) ** jnp.minimum(share / self.settle, 1.0)
            policy = replace(policy, log_std=jnp.full_like(policy.log_std, jnp.log(spread)))
        see = policy.see if env.spec.frame else None
        worlds, chances, moments, tally, seen = rollout(
            env, partial(explore, policy), train.worlds, train.chances, self.length, see
        )
        batch, worth = self._estimate(env, policy, worlds, moments, seen, axis)
        policy = replace(policy, worth=worth)
        rate = train.rate
        if self.schedule == "linear":
            rate = jnp.float32(self.rate) * (1.0 - (1.0 - self.rate_end) * share)
        key, order = jax.random.split(train.key)
        target_kl = self.target_kl * self.target_kl_end ** (jnp.maximum(share - self.settle, 0.0) / (1.0 - self.settle))
        policy, optimiser, rate, metrics = self._improve(policy, train.optimiser, rate, target_kl, batch, order, axis)
        if self.normalise:
            # Only now: within an update the network must see what it saw when it acted.
            seen = policy.normaliser.seen(moments.observation, moments.valid, axis)
            policy = replace(policy, normaliser=seen)
        train = PpoState(worlds, chances, policy, optimiser, rate, key, train.updates + 1)
        metrics |= {
            "reward": mean(moments.reward, moments.valid, axis),
            "rate": rate,
            "spread": jnp.mean(jnp.exp(policy.log_std)) if policy.log_std.size else jnp.float32(0.0),
        }
        return train, metrics, jax.lax.psum(tally, axis) if axis else tally

    def _estimate(
        self, env: Env[Any], policy: ActorCritic, worlds: Any, moments: Moment, seen: Seen | None, axis: str | None
    ) -> tuple[Batch, Normaliser]:
        """Advantages and value targets of a rollout, as rows; and what returns are like now."""
        last, sights = noticed(env, worlds, None if seen is None else 0), None
        if seen is not None:
            assert isinstance(env, Seeing)
            new = policy.see(jax.vmap(env.picture)(worlds))
            sights = jnp.concatenate([jnp.repeat(seen.sight, env.spec.interval, axis=0), jnp.asarray(new)[None]])
        values = policy.value(jnp.concatenate([moments.observation, last[None]]), sights)
        if self.normalise:
            values = values * jnp.sqrt(policy.worth.variance) + policy.worth.mean
        advantage = advantages(
            moments.reward, values[:-1], values[1:], moments.terminated, moments.truncated,
            self.discount, self.trace,
        )  # fmt: skip
        target = advantage + values[:-1]
        worth = policy.worth
        if self.normalise:
            worth = worth.seen(target, moments.valid, axis)
            target = (target - worth.mean) * jax.lax.rsqrt(worth.variance + 1e-6)
        centre = mean(advantage, moments.valid, axis)
        spread = jnp.sqrt(mean((advantage - centre) ** 2, moments.valid, axis))
        batch = Batch(
            observation=moments.observation,
            action=moments.action,
            log_prob=moments.log_prob,
            advantage=(advantage - centre) / (spread + 1e-8),
            target=target,
            weight=moments.valid.astype(jnp.float32),
        )
        depth = moments.reward.ndim
        if seen is None:
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[depth:]), batch), worth
        steps = env.spec.interval

        def beside(x: Array) -> Array:
            """The steps of a picture as an axis of its row."""
            parted = x.reshape(-1, steps, *x.shape[1:])
            return jnp.moveaxis(parted, 1, depth).reshape(-1, steps, *x.shape[depth:])

        batch = jax.tree.map(beside, batch)
        return replace(batch, frame=seen.frame.reshape(-1, *seen.frame.shape[depth:])), worth

    def _improve(
        self,
        policy: ActorCritic,
        optimiser: Any,
        rate: Array,
        target_kl: Array,
        batch: Batch,
        key: PRNGKeyArray,
        axis: str | None,
    ) -> tuple[ActorCritic, Any, Array, Metrics]:
        """Several passes over the rows, shuffled in blocks: whole blocks copy faster than single rows."""
        rows = batch.advantage.shape[0]
        blocks = rows // self.block
        batch = jax.tree.map(lambda x: x.reshape(blocks, self.block, *x.shape[1:]), batch)
        orders = jax.vmap(lambda k: jax.random.permutation(k, blocks))(jax.random.split(key, self.epochs))
        together = blocks_at_once(blocks // self.minibatches, self.block, batch.frame is not None)
        orders = orders.reshape(self.epochs * self.minibatches, -1, together)

        def learn(carry: tuple[Any, Any], order: Array) -> tuple[tuple[Any, Any], Metrics]:
            weights, optimiser = carry

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
            step, optimiser = self._adam.update(gradient, optimiser)
            weights = jax.tree.map(lambda w, s: w - rate * s, weights, step)
            return (weights, optimiser), metrics | {"gradient": optax.tree.norm(gradient)}

        (weights, optimiser), metrics = jax.lax.scan(learn, (trainable(policy), optimiser), orders)
        if self.schedule == "adaptive":
            # Once an update, by how far its end is from its start. Early minibatches are always near the start:
            # followed one by one they would drive the rate up each time.
            reached = jnp.mean(metrics["kl"][-max(self.minibatches // 2, 1) :])
            rate = jnp.clip(rate * jnp.clip(jnp.sqrt(target_kl / (reached + 1e-9)), 0.7, 1.2), 1e-6, 1e-2)
        return with_trainable(policy, weights), optimiser, rate, jax.tree.map(jnp.mean, metrics)

    def _loss(self, weights: Any, policy: ActorCritic, batch: Batch) -> tuple[Array, Metrics]:
        """Summed over the rows, not averaged: a minibatch comes in parts, and not every row is experience."""
        policy = with_trainable(policy, weights)
        if self.spread_end > 0.0:
            policy = replace(policy, log_std=jax.lax.stop_gradient(policy.log_std))
        sight = None if batch.frame is None else policy.see(batch.frame)
        sight = None if sight is None else sight[:, None]
        choice, value = policy.both(batch.observation, sight)
        log_ratio = choice.log_prob(batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)

        def total(x: Array) -> Array:
            return jnp.sum(x * batch.weight)

        clipped = jnp.clip(ratio, 1.0 - self.clip, 1.0 + self.clip)
        surrogate = total(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
        value_loss = total((value - batch.target) ** 2)
        entropy = total(choice.entropy)
        loss = -surrogate + self.value_weight * value_loss - self.entropy * entropy
        guessed = {}
        if policy.guesser is not None:
            guessed["guess_loss"] = total(policy.wrong(batch.observation, sight))
            loss = loss + self.guess * guessed["guess_loss"]
        return loss, guessed | {
            "count": jnp.sum(batch.weight),
            "loss": loss,
            "value_loss": value_loss,
            "entropy": entropy,
            # The estimate (r − 1) − log r of the divergence is never negative and has little variance.
            "kl": total(ratio - 1.0 - log_ratio),
            "clipped": total(jnp.abs(ratio - 1.0) > self.clip),
        }


def explore(
    policy: ActorCritic, observation: Float[Array, "*b d"], chances: Chance, sight: Any = None
) -> tuple[Array, Float[Array, "*b"], Chance]:
    """Actions drawn from the policy, for all worlds and agents in one pass of the network."""
    choice = policy.choice(observation, sight)

    def sample(head: Array, chance: Chance) -> tuple[Array, Chance]:
        single = jax.tree.unflatten(tree, [head, *rest])
        return single.sample(chance)

    (head, *rest), tree = jax.tree.flatten(choice)
    for _ in range(observation.ndim - 1):
        sample = jax.vmap(sample)
    action, chances = sample(head, chances)
    return action, choice.log_prob(action), chances


def blocks_at_once(blocks: int, rows: int, pictures: bool) -> int:
    """How many of a minibatch's blocks of rows go through the networks together.

    On a CPU 256 rows and all that is computed from them stay in the nearest caches: a third less time than all at
    once. Of rows with a picture it is 16.
    """
    return math.gcd(blocks, max((16 if pictures else 256) // rows, 1)) if jax.default_backend() == "cpu" else blocks


def trainable(policy: ActorCritic) -> tuple[Any, ...]:
    """What the gradient changes."""
    return policy.trunk, policy.actor, policy.critic, policy.log_std, policy.eyes, policy.guesser


def with_trainable(policy: ActorCritic, weights: tuple[Any, ...]) -> ActorCritic:
    trunk, actor, critic, log_std, eyes, guesser = weights
    return replace(policy, trunk=trunk, actor=actor, critic=critic, log_std=log_std, eyes=eyes, guesser=guesser)
