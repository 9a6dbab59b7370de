"""What learners from fresh rollouts share: value targets, and passes over a rollout in minibatches."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..core.task import CameraTask, Spec, Task
from ..policy.actor_critic import ActorCritic
from ..policy.image_encoders import IMAGE_ENCODERS
from ..policy.memory import Memory
from ..policy.nets import Normalizer
from .learner import Metrics
from .returns import gae
from .rollout import Images, Transition, observe_all

CACHED_SAMPLES, CACHED_IMAGES = 256, 16
"""Samples, or samples with an image, that stay in a CPU's nearest caches with all that is computed from them."""
Batch = TypeVar("Batch", bound=Any)
"""A struct of samples with the fields `weight` and `image`."""


class FromRollouts(Protocol):
    """Settings of a learner that cuts rollouts into minibatches."""

    @property
    def worlds(self) -> int: ...
    @property
    def rollout_length(self) -> int: ...
    @property
    def minibatches(self) -> int: ...
    @property
    def shuffle_block(self) -> int: ...
    @property
    def state_estimation_coef(self) -> float: ...
    @property
    def image_encoder(self) -> Any: ...


class OnPolicy(FromRollouts, Protocol):
    """Settings of a learner that also estimates values."""

    @property
    def discount(self) -> float: ...
    @property
    def gae_lambda(self) -> float: ...
    @property
    def normalize_returns(self) -> bool: ...


def check_rollouts(learner: FromRollouts, spec: Spec, devices: int, sequence_length: int | None = None) -> None:
    """Refuse a task whose rollouts the settings cannot divide, or whose observations they cannot use.

    A sample that is shuffled is a sequence of a policy with memory, an image and its steps, or a single step.
    """
    if learner.rollout_length % spec.image_interval:
        raise ValueError(
            f"a rollout of {learner.rollout_length} steps is not a whole number of images, one every "
            f"{spec.image_interval} steps; change learner.rollout-length"
        )
    if learner.state_estimation_coef and not spec.privileged_size:
        raise ValueError("this task has no privileged state to predict; set learner.state-estimation-coef to 0")
    if shape := spec.image_shape:
        # Refuses an image that the encoder cannot read.
        jax.eval_shape(lambda: IMAGE_ENCODERS[learner.image_encoder].init(jax.random.key(0), shape))
    samples = learner.rollout_length // (sequence_length or spec.image_interval)
    samples *= learner.worlds // devices * spec.agents
    if samples % (learner.minibatches * learner.shuffle_block):
        what = "sequences" if sequence_length else "images" if spec.image_shape else "samples"
        raise ValueError(
            f"{samples} {what} on each device do not divide into {learner.minibatches} minibatches of whole blocks "
            f"of {learner.shuffle_block}; change learner.worlds, learner.minibatches or learner.shuffle-block"
        )


def value_targets(
    learner: OnPolicy,
    task: Task[Any],
    policy: ActorCritic,
    worlds: PyTree,
    transitions: Transition,
    images: Images | None,
    axis: str | None,
    memory: Memory = None,
) -> tuple[Float[Array, "t *b"], Float[Array, "t *b"], Normalizer]:
    """Advantages and normalized value targets of a rollout that ended in `worlds`, and the new return normalizer.

    `memory` is that of a policy which has one, after the rollout.
    """
    last, image_features, new = observe_all(task, worlds, None if images is None else 0), None, None
    if images is not None:
        assert isinstance(task, CameraTask)
        new = policy.encode(jax.vmap(task.image)(worlds))
        image_features = jnp.concatenate(
            [jnp.repeat(images.image_features, task.spec.image_interval, axis=0), jnp.asarray(new)[None]]
        )
    after = policy.remember(last, memory, new)
    if transitions.memory is not None and after is not None:
        memory = jnp.concatenate([transitions.memory, after[None]])
    values = policy.value(jnp.concatenate([transitions.observation, last[None]]), image_features, memory)
    normalizer = policy.return_normalizer
    if learner.normalize_returns:
        values = values * jnp.sqrt(normalizer.variance) + normalizer.mean
    advantage = gae(
        transitions.reward, values[:-1], values[1:], transitions.terminated, transitions.truncated,
        learner.discount, learner.gae_lambda,
    )  # fmt: skip
    target = advantage + values[:-1]
    if learner.normalize_returns:
        normalizer = normalizer.update(target, transitions.valid, axis)
        target = (target - normalizer.mean) * jax.lax.rsqrt(normalizer.variance + 1e-6)
    return advantage, target, normalizer


def flatten_batch(batch: Batch, images: Images | None, steps: int | None) -> Batch:
    """Time, worlds and agents as one axis of samples; if they have `steps` each, those are a second axis.

    Their images, too, have an axis of as many as fall into those steps.
    """
    depth = batch.weight.ndim
    if steps is None:
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[depth:]), batch)
    samples = batch.weight.shape[0] // steps

    def together(x: Array) -> Array:
        parts = x.reshape(samples, -1, *x.shape[1:])
        return jnp.moveaxis(parts, 1, depth).reshape(-1, parts.shape[1], *x.shape[depth:])

    batch = jax.tree.map(together, batch)
    return batch if images is None else replace(batch, image=together(images.image))


@dataclass(frozen=True)
class Descent:
    """How parameters follow a loss. The loss is a sum over samples; its metrics have their `count`."""

    loss: Callable[[PyTree, Any], tuple[Array, Metrics]]
    optimizer: optax.GradientTransformation
    learning_rate: Float[Array, ""]


def minibatch_epochs(
    descent: Descent,
    start: tuple[Any, optax.OptState],
    batch: Any,
    key: PRNGKeyArray,
    sizes: tuple[int, int, int],
    axis: str | None,
) -> tuple[Any, optax.OptState, Metrics]:
    """Parameters, optimizer and the metrics of each minibatch after passes over a flat batch.

    `sizes` are epochs, minibatches, and the samples that stay together when the batch is shuffled: blocks copy faster
    than single samples.
    """
    epochs, minibatches, block = sizes
    blocks = batch.weight.shape[0] // block
    batch = jax.tree.map(lambda x: x.reshape(blocks, block, *x.shape[1:]), batch)
    orders = jax.vmap(lambda k: jax.random.permutation(k, blocks))(jax.random.split(key, epochs))
    together = blocks_at_once(blocks // minibatches, block, batch.image is not None)
    orders = orders.reshape(epochs * minibatches, -1, together)

    def learn(
        carry: tuple[Any, optax.OptState], order: Int[Array, "parts blocks"]
    ) -> tuple[tuple[Any, optax.OptState], Metrics]:
        params, optimizer = carry

        def grads_of(blocks: Int[Array, "blocks"]) -> tuple[Any, Metrics]:
            part = jax.tree.map(lambda x: x[blocks].reshape(blocks.size * block, *x.shape[2:]), batch)
            return jax.grad(descent.loss, has_aux=True)(params, part)

        def add(sums: tuple[Any, Metrics], blocks: Int[Array, "blocks"]) -> tuple[tuple[Any, Metrics], None]:
            return jax.tree.map(jnp.add, sums, grads_of(blocks)), None

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), jax.eval_shape(grads_of, order[0]))
        sums, _ = jax.lax.scan(add, zeros, order)
        grads, metrics = jax.lax.psum(sums, axis) if axis else sums
        # A minibatch may consist of restarts only.
        count = jnp.maximum(metrics.pop("count"), 1.0)
        grads, metrics = jax.tree.map(lambda x: x / count, (grads, metrics))
        updates, optimizer = descent.optimizer.update(grads, optimizer)
        params = jax.tree.map(lambda p, u: p - descent.learning_rate * u, params, updates)
        return (params, optimizer), metrics | {"grad_norm": optax.tree.norm(grads)}

    (params, optimizer), metrics = jax.lax.scan(learn, start, orders)
    return params, optimizer, metrics


def blocks_at_once(blocks: int, block: int, images: bool) -> int:
    """How many of a minibatch's blocks of samples go through the networks together.

    On a CPU as many as stay in the nearest caches: a third less time than all at once.
    """
    cached = CACHED_IMAGES if images else CACHED_SAMPLES
    return math.gcd(blocks, max(cached // block, 1)) if jax.default_backend() == "cpu" else blocks
