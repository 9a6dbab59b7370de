"""Proximal policy optimization (PPO): collect, estimate advantages, improve the clipped surrogate."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..core.errors import require_choice
from ..core.rng import Rng
from ..core.struct import per_world, struct
from ..core.task import PackedImage, Spec, Task
from ..policy.actor_critic import ActorCritic, Architecture
from ..policy.distributions import Normal
from ..policy.image_encoders import IMAGE_ENCODERS
from ..policy.memory import Memory
from ..policy.nets import ACTIVATIONS, Normalizer
from ..policy.policy import ImageFeatures
from .exploration import OrnsteinUhlenbeck, check_correlation_time
from .learner import Metrics
from .on_policy import Descent, check_rollouts, flatten_batch, minibatch_epochs, value_targets
from .rollout import Acting, Decision, EpisodeStats, Images, Transition, init_worlds, masked_mean, rollout
from .sequences import Context, Past, check_memory_settings, contexts, sequence_length_for, what_was_seen


@struct
class PpoState:
    """The state of a training: worlds, networks, optimizer and generators."""

    worlds: PyTree = per_world()  # states, with a leading axis of worlds
    rngs: Rng = per_world()  # one generator for every world (and agent), for exploration
    noise: OrnsteinUhlenbeck | None = per_world()  # correlated exploration noise, or None if it is white
    memory: Memory = per_world()  # of the policy, or None if it has none
    past: Past | None = per_world()  # the end of the last rollout, for a policy with memory
    policy: ActorCritic
    optimizer: optax.OptState
    learning_rate: Float[Array, ""]
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the policy, over the last part of a training; the trainer keeps it


@struct
class PpoBatch:
    """Samples to learn from."""

    observation: Float[Array, "n d"]
    action: Array
    log_prob: Float[Array, "n"]
    advantage: Float[Array, "n"]
    target: Float[Array, "n"]
    weight: Float[Array, "n"]  # 1 for experience, 0 for restarts
    image: PackedImage | None = None  # then a sample is one image, and the other leaves have an axis of its steps
    context: Context | None = None  # then a sample is a sequence, and images have an axis, too


@dataclass(frozen=True)
class Ppo:
    """Settings of PPO. The defaults suit a CPU with a few cores."""

    worlds: int = 1024
    """worlds that are stepped together"""
    rollout_length: int = 32
    """steps of every world between two updates"""
    epochs: int = 4
    """passes over each rollout"""
    minibatches: int = 4
    """gradient steps in each pass"""
    learning_rate: float = 1e-3
    """learning rate of Adam at the start"""
    learning_rate_schedule: Literal["linear", "adaptive", "constant"] = "linear"
    """linear decay, adaptation to target_kl, or constant"""
    learning_rate_final_fraction: float = 0.0
    """fraction of the learning rate left at the end of a linear decay"""
    target_kl: float = 0.01
    """KL divergence of an update that the adaptive learning rate aims at"""
    target_kl_final_fraction: float = 0.1
    """fraction of target_kl left at the end; the decay begins at anneal_start"""
    discount: float = 0.99
    """discount factor γ of a step"""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation"""
    clip: float = 0.2
    """clip range of the probability ratio"""
    entropy_coef: float = 0.0
    """weight of the entropy bonus at the start; it decays linearly"""
    entropy_coef_final_fraction: float = 1.0
    """fraction of entropy_coef left at the end: 0 ends with a policy that needs no chance to act, 1 is no decay"""
    value_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 1.0
    """gradients are clipped to this norm"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers of each network"""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """activation function of the hidden layers"""
    shared_trunk: bool = False
    """one network with two heads instead of separate actor and critic networks"""
    init_std: float = 0.6
    """standard deviation of a continuous action at the start"""
    noise_correlation_time: float = 0.0
    """correlation time of the exploration noise of continuous actions, in seconds (an Ornstein-Uhlenbeck process);
    0 is white noise. Log-probabilities remain those of a single action, as in gSDE and colored-noise PPO"""
    final_std: float = 0.0
    """if positive, the standard deviation is not learned but decays exponentially from init_std to this at
    anneal_start"""
    anneal_start: float = 0.6
    """fraction of the training after which the standard deviation stays and target_kl decays"""
    normalize_observations: bool = True
    """normalize observations by their running mean and variance"""
    normalize_returns: bool = True
    """normalize value targets by the running mean and variance of returns"""
    shuffle_block: int = 64
    """samples that stay together when a rollout is shuffled into minibatches"""
    state_estimation_coef: float = 0.0
    """weight of the auxiliary loss that predicts privileged state from images; 0 is no prediction"""
    image_encoder: Literal["patches", "cnn"] = "patches"
    """network that reads images: matrix products on patches, for CPUs, or convolutions, for accelerators"""
    memory: Literal["none", "gru"] = "none"
    """memory of the policy: none, or a gated recurrent unit (GRU) before the actor and critic networks"""
    memory_size: int = 64
    """numbers that a recurrent policy remembers"""
    sequence_length: int = 16
    """steps through which gradients flow back in time, for a recurrent policy"""
    burn_in: int = 0
    """steps before each sequence from which its memory at the start is computed anew; 0 starts from the memory of the
    rollout"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.rollout_length, self.epochs, self.minibatches, self.shuffle_block) < 1:
            raise ValueError("worlds, rollout_length, epochs, minibatches and shuffle_block must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.gae_lambda <= 1.0:
            raise ValueError("discount and gae_lambda lie between 0 and 1")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden_sizes needs at least one layer, such as 64 64")
        require_choice("activation", self.activation, ACTIVATIONS)
        require_choice("image encoder", self.image_encoder, IMAGE_ENCODERS)
        check_memory_settings(self)
        if not 0.0 < self.anneal_start < 1.0:
            raise ValueError("anneal_start lies between 0 and 1")
        if self.noise_correlation_time < 0.0:
            raise ValueError("noise_correlation_time must not be negative")
        if self.learning_rate <= 0.0 or self.init_std <= 0.0 or self.state_estimation_coef < 0.0:
            raise ValueError("learning_rate and init_std must be positive, state_estimation_coef not negative")

    def check(self, task: Task[Any], devices: int) -> None:
        """Refuse a task whose rollouts these settings cannot divide, or whose observations they cannot use."""
        check_correlation_time(self.noise_correlation_time, task.spec)
        if task.spec.privileged_size and self.shared_trunk:
            raise ValueError(
                "a critic with privileged observations needs its own network; set learner.shared-trunk off"
            )
        check_rollouts(self, task.spec, devices, sequence_length_for(self, task.spec))

    @property
    def steps_per_update(self) -> int:
        return self.worlds * self.rollout_length

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> ActorCritic:
        architecture = Architecture(
            self.hidden_sizes, self.activation, self.shared_trunk, self.init_std, self.image_encoder,
            self.state_estimation_coef > 0.0, memory_size=0 if self.memory == "none" else self.memory_size,
        )  # fmt: skip
        return ActorCritic.init(jax.random.key(0) if key is None else key, spec, architecture)

    def init(self, task: Task[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> PpoState:
        key, policy_key = jax.random.split(jax.random.key(seed))
        policy = self.policy(task.spec, policy_key)
        states, rngs = init_worlds(task, seed, worlds)
        noise, rngs = OrnsteinUhlenbeck.init(task.spec, self.noise_correlation_time, rngs)
        return PpoState(
            worlds=states,
            rngs=rngs,
            noise=noise,
            memory=policy.start(*rngs.drawn.shape),
            past=Past.init(task, policy, states, self.burn_in),
            policy=policy,
            optimizer=self._optimizer.init(policy.params),
            learning_rate=jnp.float32(self.learning_rate),
            key=key,
            updates=jnp.int32(0),
        )

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def update(
        self, task: Task[Any], train: PpoState, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[PpoState, Metrics, EpisodeStats]:
        """A rollout of every world, then `epochs` passes over it."""
        policy = train.policy
        if self.final_std > 0.0:
            std = self.init_std * (self.final_std / self.init_std) ** jnp.minimum(progress / self.anneal_start, 1.0)
            policy = replace(policy, log_std=jnp.full_like(policy.log_std, jnp.log(std)))
        encode = policy.encode if task.spec.image_shape else None
        acting = Acting(train.rngs, train.noise, train.memory)
        worlds, acting, transitions, stats, images = rollout(
            task, partial(explore, policy), train.worlds, acting, self.rollout_length, encode
        )
        batch, return_normalizer = self._advantages(task, policy, worlds, acting.memory, transitions, images, axis)
        policy = replace(policy, return_normalizer=return_normalizer)
        if train.past is not None:
            assert train.memory is not None
            context, past = contexts(transitions, images, train.memory, train.past, self.sequence_length)
            batch, train = replace(batch, context=context), replace(train, past=past)
        learning_rate = train.learning_rate
        if self.learning_rate_schedule == "linear":
            decay = 1.0 - (1.0 - self.learning_rate_final_fraction) * progress
            learning_rate = jnp.float32(self.learning_rate) * decay
        key, order_key = jax.random.split(train.key)
        target_kl = self.target_kl * self.target_kl_final_fraction ** (
            jnp.maximum(progress - self.anneal_start, 0.0) / (1.0 - self.anneal_start)
        )
        train = replace(train, worlds=worlds, rngs=acting.rngs, noise=acting.noise, memory=acting.memory)
        train = replace(train, policy=policy, key=key, learning_rate=learning_rate)
        entropy_coef = self.entropy_coef * (1.0 - (1.0 - self.entropy_coef_final_fraction) * progress)
        train, metrics = self._optimize(train, (target_kl, entropy_coef), batch, order_key, axis)
        policy = train.policy
        if self.normalize_observations:
            # Only now: within an update the network must get the same inputs as when it acted.
            normalizer = policy.normalizer.update(transitions.observation, transitions.valid, axis)
            policy = replace(policy, normalizer=normalizer)
        train = replace(train, policy=policy, updates=train.updates + 1)
        metrics |= {
            "step_reward": masked_mean(transitions.reward, transitions.valid, axis),
            "learning_rate": train.learning_rate,
            "action_std": jnp.mean(jnp.exp(policy.log_std)) if policy.log_std.size else jnp.float32(0.0),
        }
        return train, metrics, jax.lax.psum(stats, axis) if axis else stats

    def _advantages(
        self,
        task: Task[Any],
        policy: ActorCritic,
        worlds: PyTree,
        memory: Memory,
        transitions: Transition,
        images: Images | None,
        axis: str | None,
    ) -> tuple[PpoBatch, Normalizer]:
        """The samples of a rollout with normalized advantages and value targets, and the new return normalizer."""
        advantage, target, normalizer = value_targets(self, task, policy, worlds, transitions, images, axis, memory)
        center = masked_mean(advantage, transitions.valid, axis)
        std = jnp.sqrt(masked_mean((advantage - center) ** 2, transitions.valid, axis))
        assert transitions.log_prob is not None
        batch = PpoBatch(
            observation=transitions.observation,
            action=transitions.action,
            log_prob=transitions.log_prob,
            advantage=(advantage - center) / (std + 1e-8),
            target=target,
            weight=transitions.valid.astype(jnp.float32),
        )
        steps = self.sequence_length if policy.memory is not None else task.spec.image_interval if images else None
        return flatten_batch(batch, images, steps), normalizer

    def _optimize(
        self, train: PpoState, now: tuple[Array, Array], batch: PpoBatch, key: PRNGKeyArray, axis: str | None
    ) -> tuple[PpoState, Metrics]:
        """The state after `epochs` passes over the batch, shuffled in blocks, which copy faster than single samples.

        `now` has target_kl and entropy_coef at this point of the training.
        """
        target_kl, entropy_coef = now
        policy, learning_rate = train.policy, train.learning_rate
        params, optimizer, metrics = minibatch_epochs(
            Descent(partial(self._loss, policy=policy, entropy_coef=entropy_coef), self._optimizer, learning_rate),
            (policy.params, train.optimizer),
            batch,
            key,
            (self.epochs, self.minibatches, self.shuffle_block),
            axis,
        )
        if self.learning_rate_schedule == "adaptive":
            # Once an update, by the divergence at its end: early minibatches always have a small one, and would
            # raise the learning rate every time.
            kl = jnp.mean(metrics["kl"][-max(self.minibatches // 2, 1) :])
            factor = jnp.clip(jnp.sqrt(target_kl / (kl + 1e-9)), 0.7, 1.2)
            learning_rate = jnp.clip(learning_rate * factor, 1e-6, 1e-2)
        policy = policy.with_params(params)
        train = replace(train, policy=policy, optimizer=optimizer, learning_rate=learning_rate)
        return train, jax.tree.map(jnp.mean, metrics)

    def _loss(
        self, params: PyTree, batch: PpoBatch, policy: ActorCritic, entropy_coef: Float[Array, ""]
    ) -> tuple[Array, Metrics]:
        """Sums over the samples, not means: a minibatch comes in parts, and restarts do not count."""
        policy = policy.with_params(params)
        if self.final_std > 0.0:
            policy = replace(policy, log_std=jax.lax.stop_gradient(policy.log_std))
        image_features, memory = what_was_seen(policy, batch, self.sequence_length)
        actions, value = policy.distribution_and_value(batch.observation, image_features, memory)
        log_ratio = actions.log_prob(batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)

        def total(x: Array) -> Array:
            return jnp.sum(x * batch.weight)

        clipped = jnp.clip(ratio, 1.0 - self.clip, 1.0 + self.clip)
        surrogate = total(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
        value_loss = total((value - batch.target) ** 2)
        entropy = total(actions.entropy)
        loss = -surrogate + self.value_coef * value_loss - entropy_coef * entropy
        auxiliary = {}
        if policy.state_estimator is not None:
            auxiliary["state_estimation_loss"] = total(
                policy.estimation_loss(batch.observation, image_features, memory)
            )
            loss = loss + self.state_estimation_coef * auxiliary["state_estimation_loss"]
        return loss, auxiliary | {
            "count": jnp.sum(batch.weight),
            "loss": loss,
            "value_loss": value_loss,
            "entropy": entropy,
            # The estimate (r − 1) − log r of the divergence is never negative and has little variance.
            "kl": total(ratio - 1.0 - log_ratio),
            "clip_fraction": total(jnp.abs(ratio - 1.0) > self.clip),
        }


def explore(
    policy: ActorCritic, observation: Float[Array, "*b d"], acting: Acting, image_features: ImageFeatures = None
) -> tuple[Decision, Acting]:
    """Actions drawn from the policy, for all worlds and agents in one pass of the network.

    With correlated noise the log-probability remains that of the action given its observation alone: the noise is
    standard Gaussian in every single step. That is the density which the loss compares it with.
    """
    memory = policy.remember(observation, acting.memory, image_features)
    acting = replace(acting, memory=memory)
    actions = policy.distribution(observation, image_features, memory)
    if acting.noise is not None:
        assert isinstance(actions, Normal)
        action = actions.from_noise(acting.noise.value)
        return Decision(action, actions.log_prob(action)), acting

    def sample(head: Array, rng: Rng) -> tuple[Array, Rng]:
        one = jax.tree.unflatten(tree, [head, *rest])
        return one.sample(rng)

    (head, *rest), tree = jax.tree.flatten(actions)
    for _ in range(observation.ndim - 1):
        sample = jax.vmap(sample)
    action, rngs = sample(head, acting.rngs)
    return Decision(action, actions.log_prob(action)), replace(acting, rngs=rngs)
