"""What was lived through, kept on the device: a ring for every world, uniform or by priority.

A row is one step of one agent. Rows of an agent lie one after the other in time, each observation once: what came after
a step is the observation of the next row, and for the last step of an episode that is its true last one, since a world
restarts only on the step after.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..core.spaces import Box, Discrete
from ..core.struct import struct
from ..core.task import Spec
from .rollout import Transition

REJECTION_TRIES = 4
"""Rows drawn for each that is wanted: agents that wait for others leave rows of no use."""


@struct
class Replay:
    """The rows of all worlds. Axes: worlds, time, agents if there are several."""

    observation: Float[Array, "w t *a d"]
    action: Array
    reward: Float[Array, "w t *a"]
    terminated: Bool[Array, "w t *a"]
    truncated: Bool[Array, "w t *a"]
    valid: Bool[Array, "w t *a"]
    tree: Float[Array, "w n"] | None  # sums of priorities: the root at 1, the children of k at 2k and 2k + 1

    @property
    def length(self) -> int:
        """Steps of a world that have room."""
        return self.reward.shape[1]

    @property
    def agents(self) -> int:
        return self.reward.shape[2] if self.reward.ndim > 2 else 1


@struct
class Batch:
    """Steps to learn from, each over up to n steps."""

    observation: Float[Array, "b d"]
    action: Array
    reward: Float[Array, "b"]  # discounted sum
    discount: Float[Array, "b"]  # of what comes after; 0 after an end that terminates
    following: Float[Array, "b d"]
    weight: Float[Array, "b"]
    world: Int[Array, "b"]
    leaf: Int[Array, "b"]  # time and agent as one number
    between: Float[Array, "b m d"] | None = None  # observations after the first step and before the last, if asked for
    between_discount: Float[Array, "b m"] | None = None  # of each; 0 after an end


def empty(spec: Spec, worlds: int, length: int, prioritised: bool) -> Replay:
    """No rows yet, room for `length` steps of every world."""
    agents = (spec.agents,) if spec.agents > 1 else ()
    shape = (worlds, length, *agents)
    if isinstance(spec.action, Box):
        action = jnp.zeros((*shape, spec.action.size))
    elif isinstance(spec.action, Discrete):
        action = jnp.zeros(shape, jnp.int32)
    else:
        action = jnp.zeros((*shape, len(spec.action.choices)), jnp.int32)
    no = jnp.zeros(shape, jnp.bool_)
    tree = jnp.zeros((worlds, 2 * leaves(length * spec.agents))) if prioritised else None
    return Replay(jnp.zeros((*shape, spec.observation)), action, jnp.zeros(shape), no, no, no, tree)


def leaves(rows: int) -> int:
    """Of a full tree over so many rows."""
    return 1 << max(rows - 1, 0).bit_length()


def add_transitions(replay: Replay, transitions: Transition, head: Int[Array, ""], top: Float[Array, ""]) -> Replay:
    """With moments, stacked in time, written from time `head` on; new rows get the priority `top`."""

    def put(ring: Array, new: Array) -> Array:
        new = jnp.swapaxes(new, 0, 1).astype(ring.dtype)
        return jax.lax.dynamic_update_slice_in_dim(ring, new, head, axis=1)

    names = ("observation", "action", "reward", "terminated", "truncated", "valid")
    after = replace(replay, **{name: put(getattr(replay, name), getattr(transitions, name)) for name in names})
    if replay.tree is None:
        return after
    steps, worlds = transitions.reward.shape[:2]
    agents = replay.agents
    leaf = (head * agents + jnp.arange(steps * agents))[None, :] + jnp.zeros((worlds, 1), jnp.int32)
    world = jnp.broadcast_to(jnp.arange(worlds)[:, None], leaf.shape)
    valid = jnp.swapaxes(transitions.valid, 0, 1).reshape(worlds, -1)
    priority = jnp.where(valid, top, 0.0)
    tree = set_priorities(replay.tree, world.reshape(-1), leaf.reshape(-1), priority.reshape(-1))
    return replace(after, tree=tree)


def set_priorities(tree: Float[Array, "w n"], world: Int[Array, "b"], leaf: Int[Array, "b"], priority: Array) -> Array:
    """The tree with new priorities of some leaves."""

    def up(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tree, place = carry
        place = place // 2
        return tree.at[world, place].set(tree[world, 2 * place] + tree[world, 2 * place + 1]), place

    place = leaf + tree.shape[1] // 2
    return jax.lax.fori_loop(0, levels(tree), up, (tree.at[world, place].set(priority), place))[0]


def levels(tree: Float[Array, "w n"]) -> int:
    """Of a tree, below its root."""
    return (tree.shape[1] // 2).bit_length() - 1


def sample_tree(tree: Float[Array, "w n"], draw: Float[Array, "b"]) -> tuple[Int[Array, "b"], Int[Array, "b"], Array]:
    """For numbers in [0, 1), the world and leaf each falls on, and that leaf's share of all priorities."""
    totals = jnp.cumsum(tree[:, 1])
    total = jnp.maximum(totals[-1], 1e-9)
    at = draw * total
    world = jnp.minimum(jnp.searchsorted(totals, at, side="right"), tree.shape[0] - 1)

    # A loop, since XLA would compute a level written out as often as there are ways down to it.
    def down(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, place = carry
        left = tree[world, 2 * place]
        # Rounding must not lead into a branch that has nothing.
        right = (rest >= left) & (tree[world, 2 * place + 1] > 0.0)
        return jnp.where(right, rest - left, rest), 2 * place + right

    rest = at - (totals[world] - tree[world, 1])
    _, place = jax.lax.fori_loop(0, levels(tree), down, (rest, jnp.ones_like(world)))
    return world, place - tree.shape[1] // 2, tree[world, place] / total


def sample(
    replay: Replay,
    key: PRNGKeyArray,
    count: int,
    head: Int[Array, ""],
    filled: Int[Array, ""],
    steps: int,
    discount: float,
    beta: Float[Array, ""] | float = 0.0,
    axis: str | None = None,
    between: bool = False,
) -> Batch:
    """Rows to learn from, each with what followed over up to `steps` steps, never across an end.

    `head` is where the next step will be written, `filled` how many steps of a world there are.
    """
    agents, length, worlds = replay.agents, replay.length, replay.reward.shape[0]
    flat = lambda x: x.reshape(worlds, length * agents, *x.shape[2 + (agents > 1) :])  # noqa: E731
    valid = flat(replay.valid)
    if replay.tree is None:
        first, second, third = jax.random.split(key, 3)
        world = jax.random.randint(first, (REJECTION_TRIES, count), 0, worlds)
        who = jax.random.randint(second, (REJECTION_TRIES, count), 0, agents)
        # The newest rows have nothing after them yet.
        age = jax.random.randint(third, (REJECTION_TRIES, count), steps, jnp.maximum(filled, steps + 1))
        leaf = ((head - 1 - age) % length) * agents + who
        good = valid[world, leaf]
        best = jnp.argmax(good, axis=0)
        world, leaf, good = (jnp.take_along_axis(x, best[None], 0)[0] for x in (world, leaf, good))
        weight = good.astype(jnp.float32) * (filled > steps)
    else:
        # One draw in each part of the whole, so that a batch is spread as the priorities are.
        draw = (jnp.arange(count) + jax.random.uniform(key, (count,))) / count
        world, leaf, progress = sample_tree(replay.tree, draw)
        age = (head - 1 - leaf // agents) % length
        good = valid[world, leaf] & (age >= steps) & (age < filled)
        rows = jnp.maximum(filled.astype(jnp.float32) * worlds * agents, 1.0)
        weight = (rows * jnp.maximum(progress, 1e-12)) ** -beta
        highest = jnp.max(jnp.where(good, weight, 0.0))
        # One scale for the whole batch, wherever its rows lie.
        weight = good * weight / jnp.maximum(jax.lax.pmax(highest, axis) if axis else highest, 1e-9)
    reward, going = jnp.zeros(count), jnp.ones(count, jnp.bool_)
    scale, ends = jnp.ones(count), jnp.zeros(count, jnp.bool_)
    rewards, terminated, truncated = flat(replay.reward), flat(replay.terminated), flat(replay.truncated)
    at, places, discounts = leaf, [], []
    for k in range(steps):
        if between and k:
            places.append(at)
            discounts.append(jnp.where(going, scale, 0.0))
        over = terminated[world, at] | truncated[world, at]
        reward = reward + jnp.where(going, scale * rewards[world, at], 0.0)
        scale = jnp.where(going, scale * discount, scale)
        ends = jnp.where(going, terminated[world, at], ends)
        following = (at + agents) % (length * agents)
        at = jnp.where(going, following, at)
        going = going & ~over
    observation = flat(replay.observation)
    return Batch(
        observation=observation[world, leaf],
        action=flat(replay.action)[world, leaf],
        reward=reward,
        discount=jnp.where(ends, 0.0, scale),
        following=observation[world, at],
        weight=weight,
        world=world,
        leaf=leaf,
        between=jnp.stack([observation[world, place] for place in places], 1) if places else None,
        between_discount=jnp.stack(discounts, 1) if places else None,
    )
