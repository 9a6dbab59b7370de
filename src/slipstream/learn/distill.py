"""Distillation on the device (DAgger): a student acts in its worlds and learns what its teacher would have done there.

The teacher is the policy of another run, whose task shares the dynamics but may observe more: the state, where the
student has a camera, a memory, or fewer numbers. In every step its task's `observe` is applied to the student's states,
and its policy labels them. (Ross et al., A reduction of imitation learning and structured prediction to no-regret
online learning, 2011.)
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..core.errors import require_choice
from ..core.rng import Rng
from ..core.struct import per_world, struct
from ..core.task import DataTask, PackedImage, Spec, Task, derive
from ..policy.actor_critic import ActorCritic, Architecture
from ..policy.distributions import Normal, distribution
from ..policy.image_encoders import IMAGE_ENCODERS
from ..policy.memory import Memory
from ..policy.nets import ACTIVATIONS
from ..policy.policy import ImageFeatures
from .augmentation import random_shift
from .learner import Metrics
from .on_policy import Descent, check_rollouts, flatten_batch, minibatch_epochs
from .rollout import Acting, Decision, EpisodeStats, Transition, init_worlds, masked_mean, rollout
from .sequences import Context, Past, check_memory_settings, contexts, sequence_length_for, what_was_seen
from .teacher import Teacher, TeacherWeights, observe_with_teacher, split_head


@struct
class DistillBatch:
    """Samples to learn from."""

    observation: Float[Array, "n d"]
    target: Float[Array, "n h"]  # the teacher's action, or its logits
    weight: Float[Array, "n"]  # 1 for experience, 0 for restarts
    image: PackedImage | None = None  # then a sample is one image, and the other leaves have an axis of its steps
    context: Context | None = None  # then a sample is a sequence, and images have an axis, too


@struct
class DistillState:
    """The state of a training: worlds, student, teacher, optimizer and generators."""

    worlds: PyTree = per_world()  # states, with a leading axis of worlds
    rngs: Rng = per_world()  # one generator for every world (and agent), for exploration
    memory: Memory = per_world()  # of the student, or None if it has none
    past: Past | None = per_world()  # the end of the last rollout, for a student with memory
    aggregate: DistillBatch | None = per_world()  # recent rollouts on the second axis, or None if only the last counts
    policy: ActorCritic
    teacher: TeacherWeights
    optimizer: optax.OptState
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the student, over the last part of a training; the trainer keeps it


@dataclass(frozen=True)
class Distill:
    """Settings of distillation by DAgger. It needs the run of a teacher (`--teacher RUN`)."""

    worlds: int = 256
    """worlds that are stepped together"""
    rollout_length: int = 32
    """steps of every world between two updates"""
    epochs: int = 2
    """passes over the rollouts in each update"""
    minibatches: int = 32
    """gradient steps in each pass over one rollout"""
    aggregate: int = 1
    """recent rollouts that each update learns from (DAgger's data set); 1 is only the last one"""
    learning_rate: float = 1e-3
    """learning rate of Adam at the start; it decays linearly"""
    learning_rate_final_fraction: float = 0.1
    """fraction of the learning rate left at the end"""
    max_grad_norm: float = 1.0
    """gradients are clipped to this norm"""
    beta_fraction: float = 0.1
    """fraction of the training over which β, the probability that the teacher acts in a step, decays linearly from 1
    to 0"""
    exploration_noise: float = 0.1
    """standard deviation of the Gaussian noise on continuous actions, of student and teacher; discrete actions are
    drawn from the student's or the teacher's probabilities"""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """sizes of the hidden layers of each network"""
    activation: Literal["tanh", "relu", "elu", "silu"] = "relu"
    """activation function of the hidden layers"""
    normalize_observations: bool = True
    """normalize observations by their running mean and variance"""
    shuffle_block: int = 8
    """samples that stay together when rollouts are shuffled into minibatches"""
    state_estimation_coef: float = 0.0
    """weight of the auxiliary loss that predicts privileged state; 0 is no prediction"""
    image_encoder: Literal["patches", "cnn"] = "patches"
    """network that reads images: matrix products on patches, for CPUs, or convolutions, for accelerators"""
    random_shift: int = 0
    """pixels by which images are shifted at random in each update (DrQ's augmentation); 0 is none"""
    memory: Literal["none", "gru"] = "none"
    """memory of the student: none, or a gated recurrent unit (GRU) before the actor network"""
    memory_size: int = 64
    """numbers that a recurrent student remembers"""
    sequence_length: int = 16
    """steps through which gradients flow back in time, for a recurrent student"""
    burn_in: int = 0
    """steps before each sequence from which its memory at the start is computed anew; 0 starts from the memory of the
    rollout"""
    # Not a setting: `with_teacher` sets it, from a run.
    teacher: Teacher | None = field(init=False, default=None)
    """whom the student imitates"""

    def __post_init__(self) -> None:
        sizes = self.worlds, self.rollout_length, self.epochs, self.minibatches, self.shuffle_block, self.aggregate
        if min(sizes) < 1:
            raise ValueError(
                "worlds, rollout_length, epochs, minibatches, shuffle_block and aggregate must be at least 1"
            )
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden_sizes needs at least one layer, such as 128 128")
        require_choice("activation", self.activation, ACTIVATIONS)
        require_choice("image encoder", self.image_encoder, IMAGE_ENCODERS)
        check_memory_settings(self)
        if min(self.learning_rate, self.max_grad_norm, self.exploration_noise) <= 0.0:
            raise ValueError("learning_rate, max_grad_norm and exploration_noise must be positive")
        if not 0.0 <= self.beta_fraction <= 1.0 or not 0.0 <= self.learning_rate_final_fraction <= 1.0:
            raise ValueError("beta_fraction and learning_rate_final_fraction lie between 0 and 1")
        if self.state_estimation_coef < 0.0 or self.random_shift < 0:
            raise ValueError("state_estimation_coef and random_shift must not be negative")

    def with_teacher(self, teacher: Teacher) -> "Distill":
        """The same settings with a teacher."""
        return derive(self, teacher=teacher)

    @property
    def _teacher(self) -> Teacher:
        if self.teacher is None:
            raise ValueError("distill needs a teacher: name the run of a trained policy by --teacher RUN")
        return self.teacher

    def check(self, task: Task[Any], devices: int) -> None:
        """Refuse to learn without a teacher, and rollouts that these settings cannot divide."""
        _ = self._teacher
        check_rollouts(self, task.spec, devices, sequence_length_for(self, task.spec))

    @property
    def steps_per_update(self) -> int:
        return self.worlds * self.rollout_length

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> ActorCritic:
        architecture = Architecture(
            self.hidden_sizes, self.activation, init_std=self.exploration_noise, image_encoder=self.image_encoder,
            state_estimator=self.state_estimation_coef > 0.0,
            memory_size=0 if self.memory == "none" else self.memory_size,
        )  # fmt: skip
        return ActorCritic.init(jax.random.key(0) if key is None else key, spec, architecture)

    def init(self, task: Task[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> DistillState:
        key, policy_key = jax.random.split(jax.random.key(seed))
        policy = self.policy(task.spec, policy_key)
        states, rngs = init_worlds(task, seed, worlds)
        train = DistillState(
            worlds=states,
            rngs=rngs,
            memory=policy.start(*rngs.drawn.shape),
            past=Past.init(task, policy, states, self.burn_in),
            aggregate=None,
            policy=policy,
            teacher=self._teacher.weights,
            optimizer=self._optimizer.init(policy.params),
            key=key,
            updates=jnp.int32(0),
        )
        if self.aggregate == 1:
            return train
        batch = jax.eval_shape(lambda: self._collect(task, train, jnp.float32(0.0))[1])
        # Rollouts that have not been yet weigh nothing.
        empty = jax.tree.map(lambda x: jnp.zeros((x.shape[0], self.aggregate, *x.shape[1:]), x.dtype), batch)
        return replace(train, aggregate=empty)

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def update(
        self, task: Task[Any], train: DistillState, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[DistillState, Metrics, EpisodeStats]:
        """A rollout of every world, then `epochs` passes over it and those before."""
        beta = jnp.maximum(1.0 - progress / self.beta_fraction, 0.0) if self.beta_fraction else jnp.float32(0.0)
        train, batch, transitions, stats = self._collect(task, train, beta)
        if train.aggregate is not None:
            slot = train.updates % self.aggregate
            aggregate = jax.tree.map(lambda all_, new: all_.at[:, slot].set(new), train.aggregate, batch)
            train = replace(train, aggregate=aggregate)
            batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), aggregate)
        learning_rate = self.learning_rate * (1.0 - (1.0 - self.learning_rate_final_fraction) * progress)
        key, order_key, shift_key = jax.random.split(train.key, 3)
        if batch.image is not None:
            device = jax.lax.axis_index(axis) if axis else 0
            shifted = random_shift(batch.image, self.random_shift, jax.random.fold_in(shift_key, device))
            batch = replace(batch, image=shifted)
        params, optimizer, metrics = minibatch_epochs(
            Descent(partial(self._loss, policy=train.policy), self._optimizer, learning_rate),
            (train.policy.params, train.optimizer),
            batch,
            order_key,
            (self.epochs, self.minibatches * self.aggregate, self.shuffle_block),
            axis,
        )
        policy = train.policy.with_params(params)
        if self.normalize_observations:
            # Only now: within an update the network must get the same inputs as when it acted.
            normalizer = policy.normalizer.update(transitions.observation, transitions.valid, axis)
            policy = replace(policy, normalizer=normalizer)
        train = replace(train, policy=policy, optimizer=optimizer, key=key, updates=train.updates + 1)
        metrics = jax.tree.map(jnp.mean, metrics) | {
            "step_reward": masked_mean(transitions.reward, transitions.valid, axis),
            "learning_rate": learning_rate,
            "beta": beta,
        }
        return train, metrics, jax.lax.psum(stats, axis) if axis else stats

    def _collect(
        self, task: Task[Any], train: DistillState, beta: Float[Array, ""]
    ) -> tuple[DistillState, DistillBatch, Transition, EpisodeStats]:
        """A rollout by teacher and student, as samples with the teacher's labels."""
        policy, their_task = train.policy, self._teacher.task
        if isinstance(their_task, DataTask):
            their_task = their_task.with_data(train.teacher.data)
        encode = policy.encode if task.spec.image_shape else None
        worlds, acting, transitions, stats, images = rollout(
            task,
            partial(act_in_turns, policy, beta),
            train.worlds,
            Acting(train.rngs, memory=train.memory),
            self.rollout_length,
            encode,
            partial(observe_with_teacher, (their_task, train.teacher.policy)),
        )
        observation, target = split_head(transitions.observation, task.spec.action)
        transitions = replace(transitions, observation=observation)
        batch = DistillBatch(observation, target, transitions.valid.astype(jnp.float32))
        steps = self.sequence_length if policy.memory is not None else task.spec.image_interval if images else None
        batch = flatten_batch(batch, images, steps)
        if train.past is not None:
            assert train.memory is not None
            context, past = contexts(transitions, images, train.memory, train.past, self.sequence_length)
            batch, train = replace(batch, context=context), replace(train, past=past)
        return replace(train, worlds=worlds, rngs=acting.rngs, memory=acting.memory), batch, transitions, stats

    def _loss(self, params: PyTree, batch: DistillBatch, policy: ActorCritic) -> tuple[Array, Metrics]:
        """Sums over the samples, not means: a minibatch comes in parts, and restarts do not count."""
        policy = policy.with_params(params)
        policy = replace(policy, log_std=jax.lax.stop_gradient(policy.log_std))
        image_features, memory = what_was_seen(policy, batch, self.sequence_length)
        actions = policy.distribution(batch.observation, image_features, memory)
        if isinstance(actions, Normal):
            # The gradient is that of the mean: beyond a bound the executed action has none, and could not come back.
            action = actions.mean + jax.lax.stop_gradient(actions.mode - actions.mean)
            error = jnp.mean((action - batch.target) ** 2, axis=-1)
        else:
            error = distribution(policy.space, batch.target, policy.log_std).kl(actions)
        imitation_loss = loss = jnp.sum(error * batch.weight)
        auxiliary = {}
        if policy.state_estimator is not None:
            wrong = policy.estimation_loss(batch.observation, image_features, memory)
            auxiliary["state_estimation_loss"] = jnp.sum(wrong * batch.weight)
            loss = loss + self.state_estimation_coef * auxiliary["state_estimation_loss"]
        return loss, auxiliary | {"count": jnp.sum(batch.weight), "loss": loss, "imitation_loss": imitation_loss}


def act_in_turns(
    policy: ActorCritic,
    beta: Float[Array, ""],
    observation: Float[Array, "*b d"],
    acting: Acting,
    image_features: ImageFeatures = None,
) -> tuple[Decision, Acting]:
    """Actions with exploration: in each step of each agent the teacher's with probability β, or else the student's."""
    own, target = split_head(observation, policy.space)
    memory = policy.remember(own, acting.memory, image_features)
    (head, *rest), tree = jax.tree.flatten(policy.distribution(own, image_features, memory))

    def sample(head: Array, target: Array, rng: Rng) -> tuple[Array, Rng]:
        turn, rng = rng.uniform()
        one = jax.tree.unflatten(tree, [jnp.where(turn < beta, target, head), *rest])
        return one.sample(rng)

    for _ in range(own.ndim - 1):
        sample = jax.vmap(sample)
    action, rngs = sample(head, target, acting.rngs)
    return Decision(action), replace(acting, rngs=rngs, memory=memory)
