"""Acting in many worlds at once, and counting how their episodes went."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, Float, Int

from ..core.rng import Rng
from ..core.struct import struct
from ..core.task import CameraTask, PackedImage, PrivilegedTask, Restart, State, Task, advance, draw_restart

S = TypeVar("S", bound=State[Any, Any, Any])
ActFn = Callable[[Float[Array, "*b d"], Rng, Any], tuple[Array, Float[Array, "*b"], Rng]]
EncodeFn = Callable[[PackedImage], Any]
Carry = tuple[Any, Any, Any]
"""Of a scan over steps: states, which worlds have restarted, and whatever else."""


BLOCK = 256
RESTART_WINDOW = 32


@struct
class Transition:
    """One step of every agent: what it saw and did, and what came of it."""

    observation: Float[Array, "*b d"]
    action: Array
    log_prob: Float[Array, "*b"]
    reward: Float[Array, "*b"]
    terminated: Bool[Array, "*b"]
    truncated: Bool[Array, "*b"]
    valid: Bool[Array, "*b"]  # false for the step that restarts a world: it is no experience


@struct
class EpisodeStats:
    """Sums over the episodes that ended, by figure; the mean is `total / count`."""

    total: dict[str, Float[Array, ""]]
    count: dict[str, Float[Array, ""]]

    def means(self) -> dict[str, Float[Array, ""]]:
        """NaN where no episode gave the figure."""
        return {name: self.total[name] / self.count[name] for name in self.total}


@struct
class Images:
    """The pictures of a rollout, each stored once: `interval` steps go with it."""

    image: PackedImage
    image_features: Float[Array, "*b e"]  # what the policy made of it


def init_worlds(task: Task[S], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> tuple[S, Rng]:
    """Worlds of those numbers at their first start, and a generator for every agent's exploration.

    Both are the same for a world wherever it lives.
    """
    seed = jnp.asarray(seed, jnp.uint32)
    agents = task.spec.agents
    own = jax.vmap(partial(Rng.from_seed, seed ^ jnp.uint32(0x5EED)))
    rngs = own(worlds) if agents == 1 else jax.vmap(own)(worlds[:, None] * agents + jnp.arange(agents))
    return jax.vmap(lambda world: task.reset(Rng.from_seed(seed, world)))(worlds), rngs


def mean(x: Array, valid: Array, axis: str | None) -> Float[Array, ""]:
    """The mean over what is valid, on all devices."""
    sums = jnp.sum(jnp.where(valid, x, 0.0)), jnp.sum(valid)
    total, count = jax.lax.psum(sums, axis) if axis else sums
    return total / jnp.maximum(count, 1)


def rollout(
    task: Task[S], act: ActFn, states: S, rngs: Rng, length: int, see: EncodeFn | None = None
) -> tuple[S, Rng, Transition, EpisodeStats, Images | None]:
    """Act in every world for `length` steps; moments and pictures come back stacked in time."""
    states, rngs, (transitions, seen), tallies = in_blocks(
        lambda states, rngs: _rollout(task, act, states, rngs, length, see),
        states,
        rngs,
        agents=task.spec.agents,
    )
    joined = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), (transitions, seen))
    join = partial(jax.tree.map, lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))
    return join(states), join(rngs), joined[0], jax.tree.map(partial(jnp.sum, axis=0), tallies), joined[1]


def block_of(agents: int) -> int:
    """Worlds of so many agents that make a block."""
    return max(BLOCK // agents, 1)


def in_blocks(work: Callable[..., Any], *worlds: Any, agents: int = 1) -> Any:
    """`work` on a block of worlds after the other; every result gets a leading axis of blocks.

    On a CPU a block and all that is computed for it stay in the nearest caches, which makes stepping several times
    faster. Elsewhere all worlds are one block.
    """
    count = jax.tree.leaves(worlds)[0].shape[0]
    size = block_of(agents)
    block = size if jax.default_backend() == "cpu" and count % size == 0 else count
    parts = jax.tree.map(lambda x: x.reshape(count // block, block, *x.shape[1:]), worlds)
    # The barriers keep the cutting and joining out of the loops that compute.
    return jax.lax.map(lambda part: jax.lax.optimization_barrier(work(*jax.lax.optimization_barrier(part))), parts)


def worlds_minor(worlds: Any, agents: int) -> Any:
    """The same arrays, laid out so that worlds are neighbours in memory, though theirs is the first axis.

    A CPU computes on neighbours at once. With the few agents of a world last, every loop would be over those few.
    """

    def turned(x: Array) -> Array:
        return with_layout_constraint(x, Layout((*range(1, x.ndim), 0))) if x.ndim > 1 else x

    few = 1 < agents < jax.tree.leaves(worlds)[0].shape[0]
    return jax.tree.map(turned, worlds) if few and jax.default_backend() == "cpu" else worlds


def advance_worlds(task: Task[S], states: S, action: Any, fresh: Restart[S], stale: Any) -> tuple[S, Any]:
    """All worlds one step on, and which of them have restarted since `fresh` was drawn."""
    laid = partial(worlds_minor, agents=task.spec.agents)
    fresh = replace(fresh, stale=stale)
    after = jax.lax.optimization_barrier(jax.vmap(partial(advance, task))(laid(states), laid(action), fresh))
    return laid(after), None if stale is None else stale | jnp.all(states.ended, axis=1)


def with_restarts(
    task: Task[S],
    tick: Callable[[Restart[S], Carry], tuple[Carry, Any]],
    states: S,
    rest: Any,
    length: int,
    window: int = RESTART_WINDOW,
) -> tuple[tuple[S, Any], Any]:
    """Scan `tick(fresh, (states, stale, rest))`, where `fresh` are the starts of the worlds that end.

    They are drawn once for a window of steps: in every step, as long as few worlds end, nearly all would be thrown
    away. A world that ends twice within a window starts twice from the same place; `stale` tells whether it has
    restarted, so that the starts of agents in the world before are of no use.
    """
    window = math.gcd(length, window)

    def outer(carry: tuple[S, Any], _: None) -> tuple[tuple[S, Any], Any]:
        with jax.named_scope("physics"):
            fresh = jax.lax.optimization_barrier(jax.vmap(partial(draw_restart, task))(carry[0]))
        (states, _, rest), out = jax.lax.scan(
            lambda carry, _: tick(fresh, carry), (carry[0], fresh.stale, carry[1]), length=window
        )
        return (states, rest), out

    carry, out = jax.lax.scan(outer, (states, rest), length=length // window)
    return carry, jax.tree.map(lambda x: x.reshape(length, *x.shape[2:]), out)


def with_image_age(observation: Float[Array, "*b d"], states: State[Any, Any, Any], age: Any, interval: int) -> Array:
    """The observation, with the age of the picture that stands now, and whether it is of this episode at all."""
    since = jnp.asarray(age, jnp.float32)
    young = (states.step < age).astype(jnp.float32)
    young = young.reshape(young.shape + (1,) * (observation.ndim - young.ndim))
    extra = [jnp.broadcast_to(since / interval, observation[..., :1].shape)]
    extra.append(jnp.broadcast_to(young, observation[..., :1].shape))
    return jnp.concatenate([observation, *extra], axis=-1)


def observe_all(task: Task[S], states: S, age: Any = None) -> Float[Array, "*b d"]:
    """What agents see, what they know of their picture if they have one, and last what only a critic is told."""
    seen = jax.vmap(task.observe)(states)
    if age is not None:
        seen = with_image_age(seen, states, age, task.spec.image_interval)
    if isinstance(task, PrivilegedTask) and task.spec.privileged_size:
        seen = jnp.concatenate([seen, jax.vmap(task.privileged_observation)(states)], axis=-1)
    return seen


def _rollout(
    task: Task[S], act: ActFn, states: S, rngs: Rng, length: int, see: EncodeFn | None
) -> tuple[S, Rng, tuple[Transition, Images | None], EpisodeStats]:
    spec = task.spec

    def tick(fresh: Restart[S], carry: Carry, age: Any = 0, image_features: Any = None) -> tuple[Carry, Transition]:
        states, stale, (rngs, stats) = carry
        with jax.named_scope("observation"):
            observation = observe_all(task, states, None if image_features is None else age)
        with jax.named_scope("policy"):
            action, log_prob, rngs = act(observation, rngs, image_features)
        with jax.named_scope("physics"):
            after, stale = advance_worlds(task, states, action, fresh, stale)
        transition = Transition(
            observation=observation,
            action=action,
            log_prob=log_prob,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            valid=~states.ended,
        )
        with jax.named_scope("physics"):
            stats = count(task, stats, states, after)
        return (after, stale, (rngs, stats)), transition

    def look(fresh: Restart[S], carry: Carry) -> tuple[Carry, tuple[Transition, Images]]:
        """One picture, and the steps through which it stands."""
        assert isinstance(task, CameraTask) and see is not None
        with jax.named_scope("camera"):
            image = jax.lax.optimization_barrier(jax.vmap(task.image)(carry[0]))
        with jax.named_scope("policy"):
            image_features = jax.lax.optimization_barrier(see(image))
        step = partial(tick, fresh, image_features=image_features)
        carry, transitions = jax.lax.scan(lambda c, age: step(c, age), carry, jnp.arange(spec.image_interval))
        return carry, (transitions, Images(image, image_features))

    rest = rngs, empty(task, states)
    if see is None:
        (states, (rngs, stats)), transitions = with_restarts(task, tick, states, rest, length)
        return states, rngs, (transitions, None), stats
    pictures = length // spec.image_interval
    (states, (rngs, stats)), (transitions, seen) = with_restarts(
        task, look, states, rest, pictures, max(RESTART_WINDOW // spec.image_interval, 1)
    )
    transitions = jax.tree.map(lambda x: x.reshape(length, *x.shape[2:]), transitions)
    return states, rngs, (transitions, seen), stats


def empty(task: Task[S], states: S) -> EpisodeStats:
    """No episodes yet."""
    names = jax.eval_shape(jax.vmap(task.episode_metrics), states)
    return EpisodeStats({name: jnp.float32(0.0) for name in names}, {name: jnp.float32(0.0) for name in names})


def count(task: Task[S], stats: EpisodeStats, before: S, after: S) -> EpisodeStats:
    """The tally with the episodes that have just ended."""
    over = after.ended & ~before.ended
    figures = jax.vmap(task.episode_metrics)(after)
    told = {name: over & jnp.isfinite(figure) for name, figure in figures.items()}
    total = {name: stats.total[name] + jnp.sum(jnp.where(told[name], figures[name], 0.0)) for name in told}
    return EpisodeStats(total, {name: stats.count[name] + jnp.sum(told[name]) for name in told})
