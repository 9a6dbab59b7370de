"""What a task is: a state, a spec, three pure functions of one world, and the one place where worlds restart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from .rng import Chance
from .struct import struct

World = TypeVar("World")
Body = TypeVar("Body")
Progress = TypeVar("Progress")
S = TypeVar("S", bound="State[Any, Any, Any]")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@struct
class State(Generic[World, Body, Progress]):
    """One world. Where it holds several agents, what belongs to one has a leading `agents` axis."""

    world: World  # fixed until restart
    body: Body  # what physics moves
    progress: Progress  # what the task counts
    chance: Chance
    step: Int[Array, "*agents"]
    reward: Float[Array, "*agents"]
    terminated: Bool[Array, "*agents"]  # the future is worth nothing
    truncated: Bool[Array, "*agents"]  # the clock ran out; the future keeps its value

    @property
    def ended(self) -> Bool[Array, "*agents"]:
        return self.terminated | self.truncated

    @property
    def present(self) -> Bool[Array, "agents"]:
        """Which agents of a world with several are there for others to see: those that have not ended.

        A clock that ends all at once takes nobody away: what is seen then decides what the future is worth.
        """
        return ~self.terminated & (~self.truncated | jnp.all(self.ended))


@dataclass(frozen=True)
class Box:
    """`size` real numbers, each in [−1, 1]."""

    size: int


@dataclass(frozen=True)
class Discrete:
    """One of `choices` actions."""

    choices: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, of `choices[i]` each."""

    choices: tuple[int, ...]


ActionSpace = Box | Discrete | MultiDiscrete


@dataclass(frozen=True)
class Spec:
    """Sizes and rates, known before anything runs."""

    observation: int
    """How many numbers an agent sees."""
    action: ActionSpace
    control_dt: float
    """Seconds between two decisions."""
    agents: int = 1
    frame: tuple[int, int, int] | None = None
    """Lines, columns and channels of the picture an agent sees, if it sees one: then the task has `picture`."""
    interval: int = 1
    """Steps from one picture to the next; in between the last one stands."""
    insight: int = 0
    """How many numbers only a critic sees, in training: then the task has `insight`."""
    things: tuple[int, int] = (0, 0)
    """If the last numbers an agent sees are so many things of so many numbers each: the last tells if there is one."""


@runtime_checkable
class Env(Protocol[S]):
    """A task: pure functions of one world."""

    @property
    def spec(self) -> Spec: ...

    def reset(self, chance: Chance) -> S: ...

    def step(self, state: S, action: Any) -> S: ...

    def observe(self, state: S) -> Float[Array, "*agents features"]: ...

    def figures(self, state: S) -> Mapping[str, Float[Array, "*agents"]]:
        """What an episode that ends here is reported by; NaN where a figure does not apply."""
        ...


Picture = UInt32[Array, "*agents h w"] | UInt8[Array, "*agents h w"]
"""Red, green and blue in the lower bytes of a word: words are moved faster than bytes. With one channel, a byte."""


@runtime_checkable
class Seeing(Env[S], Protocol[S]):
    """A task whose agents have cameras."""

    def picture(self, state: S) -> Picture: ...


@runtime_checkable
class Telling(Env[S], Protocol[S]):
    """A task that tells a critic more than its agents see."""

    def insight(self, state: S) -> Float[Array, "*agents secrets"]: ...


@runtime_checkable
class Rejoining(Env[S], Protocol[S]):
    """A task whose agents come and go in a world that goes on. `state.step` then has the axis of agents, too."""

    def newcomers(self, chance: Chance, state: S) -> Any:
        """How every agent would start in this world."""
        ...

    def rejoin(self, state: S, newcomers: Any, who: Bool[Array, "agents"]) -> S:
        """The state in which the agents `who` have started anew; where the world has ended, they have ended with it."""
        ...


@runtime_checkable
class Growing(Env[S], Protocol[S]):
    """A task that begins with easier worlds."""

    def at(self, share: Float[Array, ""]) -> Env[S]:
        """The task after that share of a training."""
        ...


@struct
class Fresh(Generic[S]):
    """Where to go on after an end: a world of its own, and for a task that is `Rejoining` the starts in this one."""

    state: S
    newcomers: Any = None
    stale: Bool[Array, ""] | None = None  # whether the world of the newcomers has been replaced since


def pick(flag: Bool[Array, ""], yes: S, no: S) -> S:
    """One of two trees."""
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), yes, no)


def each(agents: int, function: F) -> F:
    """`function` of one agent, mapped over the agents of a world; as it is where there is only one."""
    return function if agents == 1 else jax.vmap(function)  # pyright: ignore[reportReturnType]


def prepare(env: Env[S], state: S) -> Fresh[S]:
    """The starts there would be if all ended now: of streams of their own, so that they may be drawn ahead."""
    chance = state.chance.fork(0)
    fresh = env.reset(chance)
    if not isinstance(env, Rejoining):
        return Fresh(fresh)
    return Fresh(fresh, env.newcomers(chance.fork(1), state), jnp.bool_(False))


def advance(env: Env[S], state: S, action: Any, fresh: Fresh[S] | None = None) -> S:
    """One step of a world, or the restart of what had ended.

    A world restarts on the step after its end and nowhere else, so the last observation of an episode is
    a real one. With several agents, one that has ended waits, masked, until all have; or, in a task that is
    `Rejoining`, starts anew at once, and the world restarts only when all have ended together.

    `fresh` is where to restart, if that was prepared before: drawing a start costs more than a step of physics, and
    few worlds need one.
    """
    after = env.step(state, action)
    fresh = prepare(env, state) if fresh is None else fresh
    # The world's own stream goes on: no episode sees the numbers of another, even if two share a prepared start.
    anew = replace(fresh.state, chance=state.chance.word()[1])
    if env.spec.agents == 1:
        return pick(state.ended, anew, after)
    waiting = state.ended
    after = replace(
        after,
        reward=jnp.where(waiting, 0.0, after.reward),
        terminated=state.terminated | (after.terminated & ~waiting),
        truncated=state.truncated | (after.truncated & ~waiting),
    )
    if isinstance(env, Rejoining):
        # Starts in a world that is gone may lie inside a hill of this one: who ends here waits for the next ones.
        after = env.rejoin(after, fresh.newcomers, waiting if fresh.stale is None else waiting & ~fresh.stale)
    return pick(jnp.all(waiting), anew, after)


def joined(parts: list[Any]) -> Float[Array, "*agents numbers"]:
    """Numbers of an agent, or of every agent, side by side along the last axis.

    Each is computed for all worlds first: without the barrier XLA fills an array of many origins number by number.
    """
    return jnp.moveaxis(jnp.stack(jax.lax.optimization_barrier([jnp.asarray(part) for part in parts])), 0, -1)


def among(who: Bool[Array, "agents"], yes: T, no: T) -> T:
    """For each agent one of two trees, whose leaves have a leading axis of agents."""
    return jax.tree.map(lambda a, b: jnp.where(who.reshape(who.shape + (1,) * (jnp.ndim(a) - 1)), a, b), yes, no)
