"""Sequences of a rollout, for policies with memory: each with its memory at the start, brought up to date or not."""

import math
from dataclasses import replace
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ..core.errors import require_choice
from ..core.struct import struct
from ..core.task import CameraTask, PackedImage, Spec, Task
from ..policy.actor_critic import ActorCritic
from ..policy.memory import Memory, forget
from ..policy.policy import ImageFeatures
from .rollout import Images, Transition, observe_all


class Remembering(Protocol):
    """Settings of a learner whose policy may have memory."""

    @property
    def rollout_length(self) -> int: ...
    @property
    def memory(self) -> Literal["none", "gru"]: ...
    @property
    def memory_size(self) -> int: ...
    @property
    def sequence_length(self) -> int: ...
    @property
    def burn_in(self) -> int: ...


def check_memory_settings(learner: Remembering) -> None:
    """Refuse sequences that cannot be."""
    require_choice("memory", learner.memory, ("none", "gru"))
    if learner.memory_size < 1 or not 0 <= learner.burn_in <= learner.sequence_length or learner.sequence_length < 1:
        raise ValueError("memory_size and sequence_length must be at least 1, and burn_in at most sequence_length")


def sequence_length_for(learner: Remembering, spec: Spec) -> int | None:
    """Steps of a sequence that is learned from, None without memory; refused if rollouts do not divide into them."""
    if learner.memory == "none":
        return None
    length, interval = learner.sequence_length, spec.image_interval
    if learner.rollout_length % length:
        raise ValueError(
            f"a rollout of {learner.rollout_length} steps is not a whole number of sequences of {length}; change "
            "learner.sequence-length"
        )
    if length % interval or learner.burn_in % interval:
        raise ValueError(
            f"sequences and their burn-in begin with an image, one every {interval} steps; change "
            "learner.sequence-length or learner.burn-in"
        )
    return length


@struct
class Past:
    """The last steps of the rollout before: the burn-in of the next one's first sequences. Worlds are the first axis,
    and time is the last of the batch."""

    observation: Float[Array, "*b t d"]
    ended: Bool[Array, "*b t"]
    image: PackedImage | None
    memory: Float[Array, "*b m"]  # before the first of these steps

    @classmethod
    def init(cls, task: Task[Any], policy: ActorCritic, worlds: PyTree, burn_in: int) -> "Past | None":
        """Nothing has been seen yet. None for a policy without memory."""
        batch, interval = worlds.ended.shape, task.spec.image_interval
        memory, image = policy.start(*batch), None
        if memory is None:
            return None
        if isinstance(task, CameraTask) and task.spec.image_shape:
            one = jax.eval_shape(jax.vmap(task.image), worlds)
            image = jnp.zeros((*batch, burn_in // interval, *one.shape[len(batch) :]), one.dtype)
        size = jax.eval_shape(lambda: observe_all(task, worlds, None if image is None else 0)).shape[-1]
        return cls(jnp.zeros((*batch, burn_in, size)), jnp.ones((*batch, burn_in), jnp.bool_), image, memory)


@struct
class Context:
    """What a policy needs to remember the steps of a sequence."""

    memory: Float[Array, "n m"]  # before the burn-in
    observation: Float[Array, "n b d"]  # of the burn-in
    image: PackedImage | None  # of the burn-in
    ended: Bool[Array, "n t"]  # in the steps of burn-in and sequence

    def remember(
        self, policy: ActorCritic, observation: Float[Array, "n t d"], image_features: ImageFeatures
    ) -> Float[Array, "n t m"]:
        """The memory after each step of the sequences. No gradient flows into the burn-in."""
        memory, burn_in = self.memory, self.observation.shape[1]
        if burn_in:
            features = None if self.image is None else for_each_step(policy.encode(self.image), burn_in)
            before = policy.remember_sequence(self.observation, memory, self.ended[:, :burn_in], features)
            memory = jax.lax.stop_gradient(forget(before[:, -1], self.ended[:, burn_in - 1]))
        return policy.remember_sequence(observation, memory, self.ended[:, burn_in:], image_features)


class SeenBatch(Protocol):
    """Samples whose policy may see images, and remember."""

    @property
    def observation(self) -> Array: ...
    @property
    def image(self) -> PackedImage | None: ...
    @property
    def context(self) -> Context | None: ...


def what_was_seen(policy: ActorCritic, batch: SeenBatch, sequence_length: int) -> tuple[ImageFeatures, Memory]:
    """Image features and memory at every step of a batch; None where the policy has neither."""
    image_features = None if batch.image is None else policy.encode(batch.image)
    if batch.context is None:
        return image_features, None
    if image_features is not None:
        image_features = for_each_step(image_features, sequence_length)
    return image_features, batch.context.remember(policy, batch.observation, image_features)


def for_each_step(image_features: ImageFeatures, steps: int) -> ImageFeatures:
    """The features of images, each for the steps it is used."""
    assert image_features is not None
    return jnp.repeat(image_features, steps // image_features.shape[1], axis=1)


def contexts(
    transitions: Transition,
    images: Images | None,
    start: Float[Array, "*b m"],
    past: Past,
    length: int,
) -> tuple[Context, Past]:
    """The contexts of all sequences of `length` steps of a rollout, and the past of the next one.

    `start` is the memory with which the rollout began. Sequences come in the order of `flatten_batch`.
    """
    ended = ~transitions.valid
    steps, depth, burn_in = ended.shape[0], ended.ndim, past.ended.shape[-1]
    assert transitions.memory is not None
    # Before each step, and after the last.
    before = jnp.concatenate([start[None], forget(transitions.memory, ended)])

    def windows(x: Array, old: Array, every: int, size: int) -> Array:
        """`size` entries of each sequence from its burn-in on; sequences, worlds and agents are one axis."""
        x = jnp.concatenate([jnp.moveaxis(old, depth - 1, 0), x])
        starts = range(0, x.shape[0] - old.shape[depth - 1], every)
        parts = jnp.stack([jnp.moveaxis(x[s : s + size], 0, depth - 1) for s in starts])
        return parts.reshape(math.prod(parts.shape[:depth]), *parts.shape[depth:])

    def last(x: Array, size: int) -> Array:
        return jnp.moveaxis(x[x.shape[0] - size :], 0, depth - 1)

    memory = jnp.concatenate([past.memory[None], before[length - burn_in : steps - burn_in : length]])
    context = Context(
        memory=memory.reshape(-1, memory.shape[-1]),
        observation=windows(transitions.observation, past.observation, length, burn_in),
        image=None,
        ended=windows(ended, past.ended, length, burn_in + length),
    )
    past = replace(
        past,
        observation=last(transitions.observation, burn_in),
        ended=last(ended, burn_in),
        memory=before[steps - burn_in],
    )
    if images is None or past.image is None:
        return context, past
    shown, every = past.image.shape[depth - 1], images.image.shape[0] * length // steps
    context = replace(context, image=windows(images.image, past.image, every, shown))
    return context, replace(past, image=last(images.image, shown))
