"""The replay buffer on the device: a ring for every world, sampled uniformly or by priority.

An entry is one step of one agent. Entries of an agent follow each other in time and store each observation once: the
next observation of a step is that of the next entry. For the last step of an episode that is its true last
observation, because a world restarts only on the step after its end.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..core.struct import struct
from ..core.task import PackedImage, Spec
from ..policy.image_encoders import IMAGE_AGE_INPUTS
from ..policy.nets import Normalizer
from .rollout import Images, Transition

REJECTION_TRIES = 4
"""Uniform draws for each sample: entries of agents that wait for others cannot be used."""
STORED = ("observation", "action", "reward", "terminated", "truncated", "valid")
"""Fields of a transition that are kept."""


@struct
class Replay:
    """The entries of all worlds. Axes: worlds, time, and agents if there are several."""

    observation: Float[Array, "w t *a d"]
    action: Array
    reward: Float[Array, "w t *a"]
    terminated: Bool[Array, "w t *a"]
    truncated: Bool[Array, "w t *a"]
    valid: Bool[Array, "w t *a"]
    tree: Float[Array, "w n"] | None  # sums of priorities: the root at 1, the children of k at 2k and 2k + 1
    image: PackedImage | None = None  # one for every few steps of a world

    @property
    def length(self) -> int:
        """Capacity of a world's ring, in steps."""
        return self.reward.shape[1]

    @property
    def agents(self) -> int:
        return self.reward.shape[2] if self.reward.ndim > 2 else 1

    def flat(self, x: Array) -> Array:
        """A field with time and agents as one axis: that of the leaves."""
        worlds, agents = self.reward.shape[0], self.agents
        return x.reshape(worlds, x.shape[1] * agents, *x.shape[2 + (agents > 1) :])

    def images_at(self, world: Int[Array, "b"], leaf: Int[Array, "b"]) -> PackedImage | None:
        """What agents saw last at those entries; None without cameras."""
        if self.image is None:
            return None
        interval = self.length // self.image.shape[1]
        time, agent = leaf // self.agents, leaf % self.agents
        return self.flat(self.image)[world, time // interval * self.agents + agent]


@struct
class Cursor:
    """How far the rings are written."""

    head: Int[Array, ""]  # where the next step will be written
    filled: Int[Array, ""]  # steps of a world that are there


@dataclass(frozen=True)
class Sampling:
    """How batches are drawn."""

    batch_size: int
    n_step: int
    discount: float
    intermediate: bool = False
    """Whether a batch includes the observations between the first and the last step."""


@struct
class Batch:
    """n-step transitions to learn from."""

    observation: Float[Array, "b d"]
    action: Array
    reward: Float[Array, "b"]  # discounted sum over the steps
    discount: Float[Array, "b"]  # of the next observation's value; 0 after a termination
    next_observation: Float[Array, "b d"]
    weight: Float[Array, "b"]  # importance weight; 0 if the sample cannot be used
    world: Int[Array, "b"]
    leaf: Int[Array, "b"]  # time and agent as one index
    intermediate_observation: Float[Array, "b m d"] | None = None  # after the first step and before the last
    intermediate_discount: Float[Array, "b m"] | None = None  # of each; 0 after an end
    image: PackedImage | None = None  # that goes with the observation
    next_image: PackedImage | None = None

    def normalized(self, normalizer: Normalizer, reward_scale: float) -> "Batch":
        """The batch with normalized observations and scaled rewards."""
        between = self.intermediate_observation
        return replace(
            self,
            observation=normalizer(self.observation),
            next_observation=normalizer(self.next_observation),
            intermediate_observation=None if between is None else normalizer(between),
            reward=reward_scale * self.reward,
        )


def init_replay(spec: Spec, worlds: int, length: int, prioritized: bool, image: PackedImage | None = None) -> Replay:
    """An empty replay with room for `length` steps of every world; `image` has the shape of the images of all."""
    agents = (spec.agents,) if spec.agents > 1 else ()
    shape = (worlds, length, *agents)
    no = jnp.zeros(shape, jnp.bool_)
    tree = jnp.zeros((worlds, 2 * tree_leaves(length * spec.agents))) if prioritized else None
    observation = jnp.zeros((*shape, spec.observation + (0 if image is None else IMAGE_AGE_INPUTS)))
    images = None
    if image is not None:
        images = jnp.zeros((worlds, length // spec.image_interval, *image.shape[1:]), image.dtype)
    return Replay(observation, spec.action.zeros(*shape), jnp.zeros(shape), no, no, no, tree, images)


def tree_leaves(entries: int) -> int:
    """Leaves of the full binary tree over that many entries."""
    return 1 << max(entries - 1, 0).bit_length()


def tree_depth(tree: Float[Array, "w n"]) -> int:
    """Levels of a tree below its root."""
    return (tree.shape[1] // 2).bit_length() - 1


def add_transitions(
    replay: Replay,
    transitions: Transition,
    head: Int[Array, ""],
    priority: Float[Array, ""],
    images: Images | None = None,
) -> Replay:
    """The replay with transitions, stacked in time, written from step `head` on; all get the same priority."""

    def put(ring: Array, new: Array, head: Int[Array, ""] = head) -> Array:
        new = jnp.swapaxes(new, 0, 1).astype(ring.dtype)
        return jax.lax.dynamic_update_slice_in_dim(ring, new, head, axis=1)

    after = replace(replay, **{name: put(getattr(replay, name), getattr(transitions, name)) for name in STORED})
    if replay.image is not None and images is not None:
        interval = replay.length // replay.image.shape[1]
        after = replace(after, image=put(replay.image, images.image, head // interval))
    if replay.tree is None:
        return after
    steps, worlds = transitions.reward.shape[:2]
    agents = replay.agents
    leaf = (head * agents + jnp.arange(steps * agents))[None, :] + jnp.zeros((worlds, 1), jnp.int32)
    world = jnp.broadcast_to(jnp.arange(worlds)[:, None], leaf.shape)
    valid = jnp.swapaxes(transitions.valid, 0, 1).reshape(worlds, -1)
    priorities = jnp.where(valid, priority, 0.0)
    tree = set_priorities(replay.tree, world.reshape(-1), leaf.reshape(-1), priorities.reshape(-1))
    return replace(after, tree=tree)


def set_priorities(
    tree: Float[Array, "w n"], world: Int[Array, "b"], leaf: Int[Array, "b"], priority: Float[Array, "b"]
) -> Float[Array, "w n"]:
    """The tree with new priorities of some leaves."""

    def up(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tree, node = carry
        node = node // 2
        return tree.at[world, node].set(tree[world, 2 * node] + tree[world, 2 * node + 1]), node

    node = leaf + tree.shape[1] // 2
    return jax.lax.fori_loop(0, tree_depth(tree), up, (tree.at[world, node].set(priority), node))[0]


def sample_tree(
    tree: Float[Array, "w n"], draw: Float[Array, "b"]
) -> tuple[Int[Array, "b"], Int[Array, "b"], Float[Array, "b"]]:
    """World and leaf that uniform numbers in [0, 1) select by priority, and the probability of each leaf."""
    totals = jnp.cumsum(tree[:, 1])
    total = jnp.maximum(totals[-1], 1e-9)
    at = draw * total
    world = jnp.minimum(jnp.searchsorted(totals, at, side="right"), tree.shape[0] - 1)

    # A loop, since XLA would compute an unrolled level as often as there are ways down to it.
    def down(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, node = carry
        left = tree[world, 2 * node]
        # Rounding must not lead into an empty branch.
        right = (rest >= left) & (tree[world, 2 * node + 1] > 0.0)
        return jnp.where(right, rest - left, rest), 2 * node + right

    rest = at - (totals[world] - tree[world, 1])
    _, node = jax.lax.fori_loop(0, tree_depth(tree), down, (rest, jnp.ones_like(world)))
    return world, node - tree.shape[1] // 2, tree[world, node] / total


Draw = tuple[Int[Array, "b"], Int[Array, "b"], Float[Array, "b"]]
"""World, leaf and weight of each sample."""


def sample(
    replay: Replay,
    key: PRNGKeyArray,
    cursor: Cursor,
    sampling: Sampling,
    per_beta: Float[Array, ""] | float = 0.0,
    axis: str | None = None,
) -> Batch:
    """A batch of n-step transitions, which never reach beyond the end of an episode."""
    if replay.tree is None:
        draw = _draw_uniform(replay, key, cursor, sampling)
    else:
        draw = _draw_by_priority(replay, replay.tree, key, cursor, sampling, per_beta, axis)
    return _follow(replay, draw, sampling)


def _draw_uniform(replay: Replay, key: PRNGKeyArray, cursor: Cursor, sampling: Sampling) -> Draw:
    valid, agents, worlds = replay.flat(replay.valid), replay.agents, replay.reward.shape[0]
    shape, steps = (REJECTION_TRIES, sampling.batch_size), sampling.n_step
    world_key, agent_key, age_key = jax.random.split(key, 3)
    world = jax.random.randint(world_key, shape, 0, worlds)
    agent = jax.random.randint(agent_key, shape, 0, agents)
    # The newest entries have no n-step successor yet.
    age = jax.random.randint(age_key, shape, steps, jnp.maximum(cursor.filled, steps + 1))
    leaf = ((cursor.head - 1 - age) % replay.length) * agents + agent
    good = valid[world, leaf]
    best = jnp.argmax(good, axis=0)
    world, leaf, good = (jnp.take_along_axis(x, best[None], 0)[0] for x in (world, leaf, good))
    return world, leaf, good.astype(jnp.float32) * (cursor.filled > steps)


def _draw_by_priority(
    replay: Replay,
    tree: Float[Array, "w n"],
    key: PRNGKeyArray,
    cursor: Cursor,
    sampling: Sampling,
    per_beta: Float[Array, ""] | float,
    axis: str | None,
) -> Draw:
    valid, agents, worlds = replay.flat(replay.valid), replay.agents, replay.reward.shape[0]
    count = sampling.batch_size
    # Stratified: one draw in each of `count` equal parts of the total priority.
    draw = (jnp.arange(count) + jax.random.uniform(key, (count,))) / count
    world, leaf, probability = sample_tree(tree, draw)
    age = (cursor.head - 1 - leaf // agents) % replay.length
    good = valid[world, leaf] & (age >= sampling.n_step) & (age < cursor.filled)
    entries = jnp.maximum(cursor.filled.astype(jnp.float32) * worlds * agents, 1.0)
    weight = (entries * jnp.maximum(probability, 1e-12)) ** -per_beta
    highest = jnp.max(jnp.where(good, weight, 0.0))
    # One scale for the whole batch, on whatever device its samples are.
    return world, leaf, good * weight / jnp.maximum(jax.lax.pmax(highest, axis) if axis else highest, 1e-9)


def _follow(replay: Replay, draw: Draw, sampling: Sampling) -> Batch:
    """The transitions over up to n steps from where the samples are, not beyond an end."""
    world, leaf, weight = draw
    agents, length, count = replay.agents, replay.length, sampling.batch_size
    reward, going = jnp.zeros(count), jnp.ones(count, jnp.bool_)
    scale, ends = jnp.ones(count), jnp.zeros(count, jnp.bool_)
    rewards, terminated, truncated = (replay.flat(x) for x in (replay.reward, replay.terminated, replay.truncated))
    at, places, discounts = leaf, [], []
    for k in range(sampling.n_step):
        if sampling.intermediate and k:
            places.append(at)
            discounts.append(jnp.where(going, scale, 0.0))
        over = terminated[world, at] | truncated[world, at]
        reward = reward + jnp.where(going, scale * rewards[world, at], 0.0)
        scale = jnp.where(going, scale * sampling.discount, scale)
        ends = jnp.where(going, terminated[world, at], ends)
        after = (at + agents) % (length * agents)
        at = jnp.where(going, after, at)
        going = going & ~over
    observation = replay.flat(replay.observation)
    return Batch(
        observation=observation[world, leaf],
        action=replay.flat(replay.action)[world, leaf],
        reward=reward,
        discount=jnp.where(ends, 0.0, scale),
        next_observation=observation[world, at],
        weight=weight,
        world=world,
        leaf=leaf,
        intermediate_observation=jnp.stack([observation[world, place] for place in places], 1) if places else None,
        intermediate_discount=jnp.stack(discounts, 1) if places else None,
        image=replay.images_at(world, leaf),
        next_image=replay.images_at(world, at),
    )
