"""Acting in many worlds at once, and statistics of the episodes that end."""

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
from ..policy.memory import Memory, forget
from ..policy.policy import ImageFeatures
from .exploration import OrnsteinUhlenbeck

BLOCK = 256
"""Agents of a block: on a CPU they and all that is computed for them stay in the nearest caches."""
RESTART_WINDOW = 32
"""Steps for which restarts are drawn ahead."""
S = TypeVar("S", bound=State[Any, Any, Any])
R = TypeVar("R")
Out = TypeVar("Out")
Tree = TypeVar("Tree")
Stale = Bool[Array, "w"] | None
"""Worlds that have restarted since their restarts were drawn; only a `RespawningTask` has it."""


@struct
class Decision:
    """What a learner's policy decides in one step of all agents."""

    action: Array
    log_prob: Float[Array, "*b"] | None = None
    value: Float[Array, "*b"] | None = None  # estimate of the best action's return


@struct
class Acting:
    """What belongs to the acting of every agent and goes on from step to step."""

    rngs: Rng
    noise: OrnsteinUhlenbeck | None = None  # correlated exploration noise; None if it is white
    memory: Memory = None  # of the policy

    def before_step(self, ended: Bool[Array, "*b"]) -> "Acting":
        """With the noise of the next step."""
        if self.noise is None:
            return self
        noise, rngs = self.noise.step(self.rngs, ended)
        return replace(self, noise=noise, rngs=rngs)

    def after_step(self, ended: Bool[Array, "*b"]) -> "Acting":
        """Without what was remembered of episodes that had ended: the step has restarted them."""
        return self if self.memory is None else replace(self, memory=forget(self.memory, ended))


ActFn = Callable[[Float[Array, "*b d"], Acting, ImageFeatures], tuple[Decision, Acting]]
"""From observations and image features to decisions."""
EncodeFn = Callable[[PackedImage], ImageFeatures]
ObserveFn = Callable[[Task[Any], Any, Int[Array, ""] | int | None], Float[Array, "*b d"]]
"""From a task, its states and the age of their images to what an `ActFn` gets."""


@struct
class Transition:
    """One step of every agent; `reward` and the flags belong to the state the action led to."""

    observation: Float[Array, "*b d"]
    action: Array
    log_prob: Float[Array, "*b"] | None
    value: Float[Array, "*b"] | None
    reward: Float[Array, "*b"]
    terminated: Bool[Array, "*b"]
    truncated: Bool[Array, "*b"]
    valid: Bool[Array, "*b"]  # false for the step that restarts a world: it is no experience
    memory: Memory = None  # of the policy once it has seen the observation
    state: Any = None  # the states before the step, if they are kept


@struct
class EpisodeStats:
    """Sums over the episodes that ended, by metric; the mean is `total / count`."""

    total: dict[str, Float[Array, ""]]
    count: dict[str, Float[Array, ""]]

    def means(self) -> dict[str, Float[Array, ""]]:
        """The mean of each metric; NaN where no episode gave it."""
        return {name: self.total[name] / self.count[name] for name in self.total}


@struct
class Images:
    """The images of a rollout, each stored once for the `image_interval` steps it is used."""

    image: PackedImage
    image_features: Float[Array, "*b e"]


def init_worlds(task: Task[S], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> tuple[S, Rng]:
    """Worlds of those indices at their first start, and a generator for every agent's exploration.

    Both depend on seed and index only, not on the device.
    """
    seed = jnp.asarray(seed, jnp.uint32)
    agents = task.spec.agents
    own = jax.vmap(partial(Rng.from_seed, seed ^ jnp.uint32(0x5EED)))
    rngs = own(worlds) if agents == 1 else jax.vmap(own)(worlds[:, None] * agents + jnp.arange(agents))
    return jax.vmap(lambda world: task.reset(Rng.from_seed(seed, world)))(worlds), rngs


def masked_mean(x: Float[Array, "*b"], valid: Bool[Array, "*b"], axis: str | None) -> Float[Array, ""]:
    """The mean over valid samples, on all devices."""
    sums = jnp.sum(jnp.where(valid, x, 0.0)), jnp.sum(valid)
    total, count = jax.lax.psum(sums, axis) if axis else sums
    return total / jnp.maximum(count, 1)


def rollout(
    task: Task[S],
    act: ActFn,
    states: S,
    acting: Acting,
    length: int,
    encode: EncodeFn | None = None,
    observe: ObserveFn | None = None,
) -> tuple[S, Acting, Transition, EpisodeStats, Images | None]:
    """Act in every world for `length` steps; transitions and images come back stacked in time."""
    states, acting, experience, stats = in_blocks(
        lambda states, acting: rollout_block(task, act, states, acting, length, encode, observe=observe),
        states,
        acting,
        agents=task.spec.agents,
    )
    transitions, images = join_in_time(experience)
    stats = jax.tree.map(partial(jnp.sum, axis=0), stats)
    return join(states), join(acting), transitions, stats, images


def join(blocks: Tree) -> Tree:
    """Blocks of worlds as one axis of worlds."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), blocks)


def join_in_time(blocks: Tree) -> Tree:
    """The same for arrays whose axes are blocks, time and worlds: time comes first then."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), blocks)


def block_of(agents: int) -> int:
    """Worlds of a block, for that many agents a world."""
    return max(BLOCK // agents, 1)


def in_blocks(work: Callable[..., Any], *worlds: Any, agents: int = 1) -> Any:
    """`work` on one block of worlds after the other; every result gets a leading axis of blocks.

    On a CPU a block and all that is computed for it stay in the nearest caches, which makes stepping several times
    faster. Elsewhere all worlds are one block.
    """
    count = jax.tree.leaves(worlds)[0].shape[0]
    size = block_of(agents)
    block = size if jax.default_backend() == "cpu" and count % size == 0 else count
    parts = jax.tree.map(lambda x: x.reshape(count // block, block, *x.shape[1:]), worlds)
    # The barriers keep the cutting and joining out of the loops that compute.
    return jax.lax.map(lambda part: jax.lax.optimization_barrier(work(*jax.lax.optimization_barrier(part))), parts)


def worlds_minor(worlds: Tree, agents: int) -> Tree:
    """The same arrays, laid out so that worlds are neighbors in memory, though theirs is the first axis.

    A CPU vectorizes over neighbors. With the few agents of a world last, every loop would be over those few.
    """

    def reorder(x: Array) -> Array:
        return with_layout_constraint(x, Layout((*range(1, x.ndim), 0))) if x.ndim > 1 else x

    few = 1 < agents < jax.tree.leaves(worlds)[0].shape[0]
    return jax.tree.map(reorder, worlds) if few and jax.default_backend() == "cpu" else worlds


def advance_worlds(task: Task[S], states: S, action: Array, restarts: Restart[S], stale: Stale) -> tuple[S, Stale]:
    """All worlds one step later, and which of them have restarted since `restarts` were drawn."""
    layout = partial(worlds_minor, agents=task.spec.agents)
    restarts = replace(restarts, stale=stale)
    after = jax.lax.optimization_barrier(jax.vmap(partial(advance, task))(layout(states), layout(action), restarts))
    return layout(after), None if stale is None else stale | jnp.all(states.ended, axis=1)


def with_restarts(
    task: Task[S],
    tick: Callable[[Restart[S], tuple[S, Stale, R]], tuple[tuple[S, Stale, R], Out]],
    states: S,
    rest: R,
    length: int,
    window: int = RESTART_WINDOW,
) -> tuple[tuple[S, R], Out]:
    """Scan `tick(restarts, (states, stale, rest))`, where `restarts` are the starts of the worlds that end.

    They are drawn once for a window of steps: few worlds end in a step, so drawing them every step would waste nearly
    all. A world that ends twice within a window starts twice from the same place; `stale` says whether it has
    restarted, because then the drawn starts of its agents belong to a world that is gone.
    """
    window = math.gcd(length, window)

    def outer(carry: tuple[S, R], _: None) -> tuple[tuple[S, R], Out]:
        with jax.named_scope("physics"):
            restarts = jax.lax.optimization_barrier(jax.vmap(partial(draw_restart, task))(carry[0]))
        (states, _stale, rest), out = jax.lax.scan(
            lambda carry, _: tick(restarts, carry), (carry[0], restarts.stale, carry[1]), length=window
        )
        return (states, rest), out

    carry, out = jax.lax.scan(outer, (states, rest), length=length // window)
    return carry, jax.tree.map(lambda x: x.reshape(length, *x.shape[2:]), out)


def with_image_age(
    observation: Float[Array, "*b d"], states: State[Any, Any, Any], age: Int[Array, ""] | int, interval: int
) -> Float[Array, "*b e"]:
    """The observation, the age of the current image, and whether the image is from before this episode."""
    steps = jnp.asarray(age, jnp.float32)
    outdated = (states.step < age).astype(jnp.float32)
    outdated = outdated.reshape(outdated.shape + (1,) * (observation.ndim - outdated.ndim))
    extra = [jnp.broadcast_to(steps / interval, observation[..., :1].shape)]
    extra.append(jnp.broadcast_to(outdated, observation[..., :1].shape))
    return jnp.concatenate([observation, *extra], axis=-1)


def observe_agents(task: Task[S], states: S, age: Int[Array, ""] | int | None = None) -> Float[Array, "*b d"]:
    """Observations of all agents, then the age of their images if they have any."""
    observation = jax.vmap(task.observe)(states)
    return observation if age is None else with_image_age(observation, states, age, task.spec.image_interval)


def observe_all(task: Task[S], states: S, age: Int[Array, ""] | int | None = None) -> Float[Array, "*b d"]:
    """The same, then privileged observations."""
    observation = observe_agents(task, states, age)
    if isinstance(task, PrivilegedTask) and task.spec.privileged_size:
        observation = jnp.concatenate([observation, jax.vmap(task.privileged_observation)(states)], axis=-1)
    return observation


Collected = tuple[Acting, EpisodeStats]
"""What a rollout carries from step to step besides its worlds."""


def rollout_block(
    task: Task[S],
    act: ActFn,
    states: S,
    acting: Acting,
    length: int,
    encode: EncodeFn | None,
    keep_states: bool = False,
    observe: ObserveFn | None = None,
) -> tuple[S, Acting, tuple[Transition, Images | None], EpisodeStats]:
    """The rollout of one block of worlds, perhaps with the states before each step."""
    spec, observe = task.spec, observe or observe_all

    def tick(
        restarts: Restart[S],
        carry: tuple[S, Stale, Collected],
        age: Int[Array, ""] | int = 0,
        image_features: ImageFeatures = None,
    ) -> tuple[tuple[S, Stale, Collected], Transition]:
        states, stale, (acting, stats) = carry
        with jax.named_scope("observation"):
            observation = observe(task, states, None if image_features is None else age)
        with jax.named_scope("policy"):
            decision, acting = act(observation, acting.before_step(states.ended), image_features)
        with jax.named_scope("physics"):
            after, stale = advance_worlds(task, states, decision.action, restarts, stale)
        transition = Transition(
            observation=observation,
            action=decision.action,
            log_prob=decision.log_prob,
            value=decision.value,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            valid=~states.ended,
            memory=acting.memory,
            state=states if keep_states else None,
        )
        with jax.named_scope("physics"):
            stats = count_episodes(task, stats, states, after)
        return (after, stale, (acting.after_step(states.ended), stats)), transition

    def image_steps(
        restarts: Restart[S], carry: tuple[S, Stale, Collected]
    ) -> tuple[tuple[S, Stale, Collected], tuple[Transition, Images]]:
        """One image, and the steps for which it is used."""
        assert isinstance(task, CameraTask) and encode is not None
        with jax.named_scope("camera"):
            image = jax.lax.optimization_barrier(jax.vmap(task.image)(carry[0]))
        with jax.named_scope("policy"):
            image_features = jax.lax.optimization_barrier(encode(image))
        assert image_features is not None
        step = partial(tick, restarts, image_features=image_features)
        carry, transitions = jax.lax.scan(lambda c, age: step(c, age), carry, jnp.arange(spec.image_interval))
        return carry, (transitions, Images(image, image_features))

    rest = acting, init_stats(task, states)
    if encode is None:
        (states, (acting, stats)), transitions = with_restarts(task, tick, states, rest, length)
        return states, acting, (transitions, None), stats
    window = max(RESTART_WINDOW // spec.image_interval, 1)
    (states, (acting, stats)), (transitions, images) = with_restarts(
        task, image_steps, states, rest, length // spec.image_interval, window
    )
    transitions = jax.tree.map(lambda x: x.reshape(length, *x.shape[2:]), transitions)
    return states, acting, (transitions, images), stats


def init_stats(task: Task[S], states: S) -> EpisodeStats:
    """Statistics of no episodes."""
    names = jax.eval_shape(jax.vmap(task.episode_metrics), states)
    return EpisodeStats({name: jnp.float32(0.0) for name in names}, {name: jnp.float32(0.0) for name in names})


def count_episodes(task: Task[S], stats: EpisodeStats, before: S, after: S) -> EpisodeStats:
    """The statistics with the episodes that ended in this step."""
    over = after.ended & ~before.ended
    metrics = jax.vmap(task.episode_metrics)(after)
    counted = {name: over & jnp.isfinite(metric) for name, metric in metrics.items()}
    total = {name: stats.total[name] + jnp.sum(jnp.where(counted[name], metrics[name], 0.0)) for name in counted}
    return EpisodeStats(total, {name: stats.count[name] + jnp.sum(counted[name]) for name in counted})
