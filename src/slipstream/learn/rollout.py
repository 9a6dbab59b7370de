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

from ..core.rng import Chance
from ..core.struct import struct
from ..core.task import Env, Fresh, Picture, Seeing, State, Telling, advance, prepare

S = TypeVar("S", bound=State[Any, Any, Any])
Act = Callable[[Float[Array, "*b d"], Chance, Any], tuple[Array, Float[Array, "*b"], Chance]]
See = Callable[[Picture], Any]
Carry = tuple[Any, Any, Any]
"""Of a scan over steps: states, which worlds have restarted, and whatever else."""


BLOCK = 256
WINDOW = 32


@struct
class Moment:
    """One step of every agent: what it saw and did, and what came of it."""

    observation: Float[Array, "*b d"]
    action: Array
    log_prob: Float[Array, "*b"]
    reward: Float[Array, "*b"]
    terminated: Bool[Array, "*b"]
    truncated: Bool[Array, "*b"]
    valid: Bool[Array, "*b"]  # false for the step that restarts a world: it is no experience


@struct
class Tally:
    """Sums over the episodes that ended, by figure; the mean is `total / count`."""

    total: dict[str, Float[Array, ""]]
    count: dict[str, Float[Array, ""]]

    def means(self) -> dict[str, Float[Array, ""]]:
        """NaN where no episode gave the figure."""
        return {name: self.total[name] / self.count[name] for name in self.total}


@struct
class Seen:
    """The pictures of a rollout, each stored once: `interval` steps go with it."""

    frame: Picture
    sight: Float[Array, "*b e"]  # what the policy made of it


def started(env: Env[S], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> tuple[S, Chance]:
    """Worlds of those numbers at their first start, and a generator for every agent's exploration.

    Both are the same for a world wherever it lives.
    """
    seed = jnp.asarray(seed, jnp.uint32)
    agents = env.spec.agents
    own = jax.vmap(partial(Chance.of, seed ^ jnp.uint32(0x5EED)))
    chances = own(worlds) if agents == 1 else jax.vmap(own)(worlds[:, None] * agents + jnp.arange(agents))
    return jax.vmap(lambda world: env.reset(Chance.of(seed, world)))(worlds), chances


def mean(x: Array, valid: Array, axis: str | None) -> Float[Array, ""]:
    """The mean over what is valid, on all devices."""
    sums = jnp.sum(jnp.where(valid, x, 0.0)), jnp.sum(valid)
    total, count = jax.lax.psum(sums, axis) if axis else sums
    return total / jnp.maximum(count, 1)


def rollout(
    env: Env[S], act: Act, states: S, chances: Chance, length: int, see: See | None = None
) -> tuple[S, Chance, Moment, Tally, Seen | None]:
    """Act in every world for `length` steps; moments and pictures come back stacked in time."""
    states, chances, (moments, seen), tallies = in_blocks(
        lambda states, chances: _rollout(env, act, states, chances, length, see),
        states,
        chances,
        agents=env.spec.agents,
    )
    joined = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), (moments, seen))
    join = partial(jax.tree.map, lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))
    return join(states), join(chances), joined[0], jax.tree.map(partial(jnp.sum, axis=0), tallies), joined[1]


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


def side_by_side(worlds: Any, agents: int) -> Any:
    """The same arrays, laid out so that worlds are neighbours in memory, though theirs is the first axis.

    A CPU computes on neighbours at once. With the few agents of a world last, every loop would be over those few.
    """

    def turned(x: Array) -> Array:
        return with_layout_constraint(x, Layout((*range(1, x.ndim), 0))) if x.ndim > 1 else x

    few = 1 < agents < jax.tree.leaves(worlds)[0].shape[0]
    return jax.tree.map(turned, worlds) if few and jax.default_backend() == "cpu" else worlds


def advanced(env: Env[S], states: S, action: Any, fresh: Fresh[S], stale: Any) -> tuple[S, Any]:
    """All worlds one step on, and which of them have restarted since `fresh` was drawn."""
    laid = partial(side_by_side, agents=env.spec.agents)
    fresh = replace(fresh, stale=stale)
    after = jax.lax.optimization_barrier(jax.vmap(partial(advance, env))(laid(states), laid(action), fresh))
    return laid(after), None if stale is None else stale | jnp.all(states.ended, axis=1)


def with_restarts(
    env: Env[S],
    tick: Callable[[Fresh[S], Carry], tuple[Carry, Any]],
    states: S,
    rest: Any,
    length: int,
    window: int = WINDOW,
) -> tuple[tuple[S, Any], Any]:
    """Scan `tick(fresh, (states, stale, rest))`, where `fresh` are the starts of the worlds that end.

    They are drawn once for a window of steps: in every step, as long as few worlds end, nearly all would be thrown
    away. A world that ends twice within a window starts twice from the same place; `stale` tells whether it has
    restarted, so that the starts of agents in the world before are of no use.
    """
    window = math.gcd(length, window)

    def outer(carry: tuple[S, Any], _: None) -> tuple[tuple[S, Any], Any]:
        with jax.named_scope("physics"):
            fresh = jax.lax.optimization_barrier(jax.vmap(partial(prepare, env))(carry[0]))
        (states, _, rest), out = jax.lax.scan(
            lambda carry, _: tick(fresh, carry), (carry[0], fresh.stale, carry[1]), length=window
        )
        return (states, rest), out

    carry, out = jax.lax.scan(outer, (states, rest), length=length // window)
    return carry, jax.tree.map(lambda x: x.reshape(length, *x.shape[2:]), out)


def aged(observation: Float[Array, "*b d"], states: State[Any, Any, Any], age: Any, interval: int) -> Array:
    """The observation, with the age of the picture that stands now, and whether it is of this episode at all."""
    since = jnp.asarray(age, jnp.float32)
    young = (states.step < age).astype(jnp.float32)
    young = young.reshape(young.shape + (1,) * (observation.ndim - young.ndim))
    extra = [jnp.broadcast_to(since / interval, observation[..., :1].shape)]
    extra.append(jnp.broadcast_to(young, observation[..., :1].shape))
    return jnp.concatenate([observation, *extra], axis=-1)


def noticed(env: Env[S], states: S, age: Any = None) -> Float[Array, "*b d"]:
    """What agents see, what they know of their picture if they have one, and last what only a critic is told."""
    seen = jax.vmap(env.observe)(states)
    if age is not None:
        seen = aged(seen, states, age, env.spec.interval)
    if isinstance(env, Telling) and env.spec.insight:
        seen = jnp.concatenate([seen, jax.vmap(env.insight)(states)], axis=-1)
    return seen


def _rollout(
    env: Env[S], act: Act, states: S, chances: Chance, length: int, see: See | None
) -> tuple[S, Chance, tuple[Moment, Seen | None], Tally]:
    spec = env.spec

    def tick(fresh: Fresh[S], carry: Carry, age: Any = 0, sight: Any = None) -> tuple[Carry, Moment]:
        states, stale, (chances, tally) = carry
        with jax.named_scope("observation"):
            observation = noticed(env, states, None if sight is None else age)
        with jax.named_scope("policy"):
            action, log_prob, chances = act(observation, chances, sight)
        with jax.named_scope("physics"):
            after, stale = advanced(env, states, action, fresh, stale)
        moment = Moment(
            observation=observation,
            action=action,
            log_prob=log_prob,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            valid=~states.ended,
        )
        with jax.named_scope("physics"):
            tally = count(env, tally, states, after)
        return (after, stale, (chances, tally)), moment

    def look(fresh: Fresh[S], carry: Carry) -> tuple[Carry, tuple[Moment, Seen]]:
        """One picture, and the steps through which it stands."""
        assert isinstance(env, Seeing) and see is not None
        with jax.named_scope("camera"):
            frame = jax.lax.optimization_barrier(jax.vmap(env.picture)(carry[0]))
        with jax.named_scope("policy"):
            sight = jax.lax.optimization_barrier(see(frame))
        step = partial(tick, fresh, sight=sight)
        carry, moments = jax.lax.scan(lambda c, age: step(c, age), carry, jnp.arange(spec.interval))
        return carry, (moments, Seen(frame, sight))

    rest = chances, empty(env, states)
    if see is None:
        (states, (chances, tally)), moments = with_restarts(env, tick, states, rest, length)
        return states, chances, (moments, None), tally
    pictures = length // spec.interval
    (states, (chances, tally)), (moments, seen) = with_restarts(
        env, look, states, rest, pictures, max(WINDOW // spec.interval, 1)
    )
    moments = jax.tree.map(lambda x: x.reshape(length, *x.shape[2:]), moments)
    return states, chances, (moments, seen), tally


def empty(env: Env[S], states: S) -> Tally:
    """No episodes yet."""
    names = jax.eval_shape(jax.vmap(env.figures), states)
    return Tally({name: jnp.float32(0.0) for name in names}, {name: jnp.float32(0.0) for name in names})


def count(env: Env[S], tally: Tally, before: S, after: S) -> Tally:
    """The tally with the episodes that have just ended."""
    over = after.ended & ~before.ended
    figures = jax.vmap(env.figures)(after)
    told = {name: over & jnp.isfinite(figure) for name, figure in figures.items()}
    total = {name: tally.total[name] + jnp.sum(jnp.where(told[name], figures[name], 0.0)) for name in told}
    return Tally(total, {name: tally.count[name] + jnp.sum(told[name]) for name in told})
