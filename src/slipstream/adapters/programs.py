"""The programs that step many worlds: what is compiled, once for all batches of a task."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8

from ..core.spaces import Box
from ..core.struct import struct
from ..core.task import (
    CameraTask,
    PackedImage,
    PrivilegedTask,
    Restart,
    draw_restart,
    restart_ended,
    select,
    step_agents,
)
from ..evaluation.runner import freeze_ended
from ..learn.rollout import (
    EpisodeStats,
    advance_worlds,
    count_episodes,
    init_stats,
    init_worlds,
    with_image_age,
)
from .tasks import AnyTask

Autoreset = Literal["same_step", "next_step", "never"]
"""When a world that has ended restarts: in the same step, in the next step, or when it is told to."""
Program = Callable[..., Any]


@struct
class Observation:
    """What agents observe: one row for every agent of every world."""

    features: Float[Array, "n d"]
    image: UInt8[Array, "n h w c"] | None = None
    privileged: Float[Array, "n p"] | None = None  # what only a critic observes


@struct
class VectorStep:
    """What one step of all worlds returns: one row for every agent."""

    observation: Observation  # what to act on next; where worlds restarted, of the new episode
    final: Observation | None  # what was observed before any restart; None if that is `observation`
    reward: Float[Array, "n"]
    terminated: Bool[Array, "n"]
    truncated: Bool[Array, "n"]
    valid: Bool[Array, "n"]  # false where the agent waited for others or its world restarted: no experience
    over: Bool[Array, "n"]  # whether an episode ended in this step; the rest is about those that did
    episode_return: Float[Array, "n"]
    episode_length: Int[Array, "n"]
    metrics: dict[str, Float[Array, "n"]]

    @property
    def done(self) -> Bool[Array, "n"]:
        return self.terminated | self.truncated


@struct
class VectorState:
    """What is carried from step to step; it never leaves the device."""

    states: Any
    restarts: Restart[Any]
    image: PackedImage | None  # the current image, which stays for `image_interval` steps
    age: Int[Array, ""]  # steps since that image was rendered
    returns: Float[Array, "n"]
    lengths: Int[Array, "n"]
    stats: EpisodeStats  # of the episodes that ended since somebody asked


class Programs:
    """Functions of the state of all worlds, which hold no state themselves."""

    def __init__(self, task: AnyTask, worlds: int, autoreset: Autoreset) -> None:
        self.task, self.spec, self.worlds, self.autoreset = task, task.spec, worlds, autoreset
        self.agents = self.spec.agents
        self.rows = worlds * self.agents
        """Rows of everything that goes in and out."""
        self.features = self.spec.observation + (2 if self._holds_images else 0)
        """Numbers that are observed; an image that stays for several steps adds its age and whether it is outdated."""

    @property
    def _holds_images(self) -> bool:
        return self.spec.image_shape is not None and self.spec.image_interval > 1

    def _as_rows(self, tree: Any) -> Any:
        """Leaves with the axes of worlds and agents as one."""
        if self.agents == 1:
            return tree
        return jax.tree.map(lambda x: x.reshape(self.rows, *x.shape[2:]), tree)

    def _as_actions(self, action: Array) -> Array:
        """Actions within their space, by world and agent."""
        low, high = self.spec.action.bounds
        kind = jnp.float32 if isinstance(self.spec.action, Box) else jnp.int32
        action = jnp.clip(action.astype(kind), low, high)
        return action if self.agents == 1 else action.reshape(self.worlds, self.agents, *action.shape[1:])

    def _render(self, states: Any) -> PackedImage | None:
        if self.spec.image_shape is None or not isinstance(self.task, CameraTask):
            return None
        return jax.vmap(self.task.image)(states)

    def _observe(self, states: Any, image: PackedImage | None, age: Int[Array, ""]) -> Observation:
        features = jax.vmap(self.task.observe)(states)
        if self._holds_images:
            features = with_image_age(features, states, age, self.spec.image_interval)
        told = None
        if isinstance(self.task, PrivilegedTask) and self.spec.privileged_size:
            told = self._as_rows(jax.vmap(self.task.privileged_observation)(states))
        return Observation(self._as_rows(features), self._unpacked(image), told)

    def _unpacked(self, image: PackedImage | None) -> UInt8[Array, "n h w c"] | None:
        """Bytes of an image, with channels last."""
        if image is None or self.spec.image_shape is None:
            return None
        rows = self._as_rows(image)
        return jnp.stack([(rows >> (8 * c)).astype(jnp.uint8) for c in range(self.spec.image_shape[2])], -1)

    def _draw_all(self, states: Any) -> Restart[Any]:
        return jax.vmap(partial(draw_restart, self.task))(states)

    def _draw_restarts(self, state: VectorState) -> VectorState:
        return replace(state, restarts=self._draw_all(state.states))

    def _reset_all(self, seed: Array) -> tuple[VectorState, Observation]:
        states, _ = init_worlds(self.task, seed, jnp.arange(self.worlds))
        states, age = jax.tree.map(jnp.asarray, states), jnp.int32(0)
        image, zeros = self._render(states), jnp.zeros(self.rows)
        stats = init_stats(self.task, states)
        state = VectorState(states, self._draw_all(states), image, age, zeros, zeros.astype(jnp.int32), stats)
        return state, self._observe(states, image, age)

    def _restart_rows(self, state: VectorState, rows: Bool[Array, "n"]) -> tuple[VectorState, Observation]:
        chosen = jnp.all(rows.reshape(self.worlds, self.agents), axis=1)
        fresh = self._draw_all(state.states).state
        states = jax.vmap(select)(chosen, fresh, state.states)
        image = self._render(states)
        again = jnp.repeat(chosen, self.agents)
        state = replace(
            state,
            states=states,
            image=image,
            age=jnp.int32(0),
            returns=jnp.where(again, 0.0, state.returns),
            lengths=jnp.where(again, 0, state.lengths),
        )
        return state, self._observe(states, image, state.age)

    def _move(self, state: VectorState, action: Array) -> tuple[Any, Any, Restart[Any]]:
        """The states after the step as they truly are, those to go on with, and the restarts that are left."""
        task, before, restarts = self.task, state.states, state.restarts
        if self.autoreset == "next_step":
            after, stale = advance_worlds(task, before, action, restarts, restarts.stale)
            return after, after, replace(restarts, stale=stale)
        moved = jax.vmap(partial(step_agents, task))(before, action)
        if self.autoreset == "never":
            after = self._masked(before, moved)
            return after, after, restarts
        after = jax.vmap(partial(restart_ended, task))(moved, moved.ended, restarts, moved.rng)
        stale = None if restarts.stale is None else restarts.stale | jnp.all(moved.ended, axis=1)
        return moved, after, replace(restarts, stale=stale)

    def _masked(self, before: Any, after: Any) -> Any:
        """The states after a step, where what had ended stays as it ended: its metrics are those of its end."""
        held = after if self.agents == 1 else jax.vmap(freeze_ended)(before, after)
        over = before.ended if self.agents == 1 else jnp.all(before.ended, axis=1)
        return jax.vmap(select)(over, replace(before, reward=jnp.zeros_like(before.reward)), held)

    def _images(self, state: VectorState, moved: Any, after: Any) -> tuple[Any, Any, Int[Array, ""]]:
        """The image before restarts, the one to go on with, and its age: rendered only on steps that need it."""
        age = (state.age + 1) % self.spec.image_interval
        if state.image is None:
            return None, None, age
        last = jax.lax.cond(age == 0, lambda: self._render(moved), lambda: state.image)
        if self.autoreset != "same_step":
            return last, last, age
        again = (age == 0) & jnp.any(moved.ended)
        return last, jax.lax.cond(again, lambda: self._render(after), lambda: last), age

    def _step_all(self, state: VectorState, action: Array) -> tuple[VectorState, VectorStep]:
        moved, after, restarts = self._move(state, self._as_actions(action))
        return self._conclude(state, moved, after, restarts, after)

    def _conclude(
        self, state: VectorState, moved: Any, after: Any, restarts: Restart[Any], observed: Any
    ) -> tuple[VectorState, VectorStep]:
        """What the step returns: `moved` is where it led, `after` where to go on, `observed` what is seen of that."""
        before = state.states
        last_image, image, age = self._images(state, moved, after)
        valid = self._as_rows(~before.ended)
        ended = self._as_rows(moved.ended)
        reward = self._as_rows(moved.reward)
        returns = jnp.where(valid, state.returns + reward, 0.0)
        lengths = jnp.where(valid, state.lengths + 1, 0)
        metrics = jax.vmap(self.task.episode_metrics)(moved)
        step = VectorStep(
            observation=self._observe(observed, image, age),
            final=self._observe(moved, last_image, age) if self.autoreset == "same_step" else None,
            reward=reward,
            terminated=self._as_rows(moved.terminated),
            truncated=self._as_rows(moved.truncated),
            valid=valid,
            over=ended & valid,
            episode_return=returns,
            episode_length=lengths,
            metrics={name: self._as_rows(value) for name, value in metrics.items()},
        )
        state = VectorState(
            states=after,
            restarts=restarts,
            image=image,
            age=age,
            returns=jnp.where(ended, 0.0, returns),
            lengths=jnp.where(ended, 0, lengths),
            stats=count_episodes(self.task, state.stats, before, moved),
        )
        return state, step


def compiled(task: AnyTask, worlds: int, autoreset: Autoreset) -> tuple[Program, Program, Program, Program]:
    """Programs that reset, step, draw restarts and restart rows; batches of equal tasks and sizes share them."""
    try:
        return _shared(task, worlds, autoreset)
    except TypeError:  # a task that cannot be hashed has programs of its own
        return _shared.__wrapped__(task, worlds, autoreset)


@lru_cache(maxsize=32)
def _shared(task: AnyTask, worlds: int, autoreset: Autoreset) -> tuple[Program, Program, Program, Program]:
    own = Programs(task, worlds, autoreset)
    return jax.jit(own._reset_all), jax.jit(own._step_all), jax.jit(own._draw_restarts), jax.jit(own._restart_rows)
