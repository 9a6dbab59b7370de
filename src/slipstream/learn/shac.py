"""Short-horizon actor-critic (SHAC): the actor follows the gradient of a smooth reward through the physics.

A window of steps is simulated as in any rollout. Then a reverse pass goes back through it, recomputes the derivative of
the motion, the observation and the actor at each stored step, and carries the gradient of the return with respect to
the state. At the end of the window, and where an episode is truncated, it begins with the gradient of a critic, which
learns the true reward. (Xu et al., Accelerated policy learning with parallel differentiable simulation, 2022.)
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..core.errors import require_choice
from ..core.geometry import Flag
from ..core.rng import Rng
from ..core.spaces import Box
from ..core.struct import per_world, struct
from ..core.task import DifferentiableTask, PackedImage, Spec, Task, TerminalValueTask, select
from ..policy.actor_critic import ActorCritic, Architecture
from ..policy.image_encoders import IMAGE_ENCODERS
from ..policy.nets import ACTIVATIONS
from .learner import Metrics
from .on_policy import Descent, check_rollouts, flatten_batch, minibatch_epochs, value_targets
from .ppo import explore
from .reverse_pass import ActorGradient, ReversePass, actor_params, with_actor_params
from .rollout import (
    Acting,
    EpisodeStats,
    Images,
    Transition,
    in_blocks,
    init_worlds,
    join,
    join_in_time,
    masked_mean,
    rollout_block,
)

CRITIC_SHARE_INTERVAL = 16
"""Updates from one measurement of the critic's share of the gradient to the next: each costs a reverse pass."""


@struct
class ShacState:
    """The state of a training: worlds, networks, optimizers and generators."""

    worlds: PyTree = per_world()  # states, with a leading axis of worlds
    rngs: Rng = per_world()  # one generator for every world (and agent), for exploration
    policy: ActorCritic
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    key: PRNGKeyArray
    updates: Int[Array, ""]
    critic_share: Float[Array, ""]  # of the actor's gradient, when it was last measured
    average: Any = None  # of the policy, over the last part of a training; the trainer keeps it


@struct
class CriticBatch:
    """Samples that the critic learns from."""

    observation: Float[Array, "n d"]
    target: Float[Array, "n"]
    weight: Float[Array, "n"]  # 1 for experience, 0 for restarts
    image: PackedImage | None = None  # then a sample is one image, and the other leaves have an axis of its steps


@dataclass(frozen=True)
class Shac:
    """Settings of SHAC. The window in seconds, rollout_length / control rate, matters most: about one second."""

    worlds: int = 256
    """worlds that are stepped together"""
    rollout_length: int = 64
    """steps of every world in a window, through which the gradient goes"""
    learning_rate: float = 5e-3
    """learning rate of the actor's Adam at the start; it decays linearly"""
    learning_rate_final_fraction: float = 0.05
    """fraction of the actor's learning rate left at the end"""
    adam_betas: tuple[float, float] = (0.7, 0.95)
    """decay of the moments of the actor's Adam, which takes one step for each window"""
    max_grad_norm: float = 1.0
    """gradients are clipped to this norm"""
    max_state_grad: float = 20.0
    """largest gradient with respect to one number of the state that is carried back"""
    max_action_grad: float = 5.0
    """largest gradient with respect to one number of an action"""
    bootstrap: Literal["critic", "terminal_value"] = "critic"
    """what a window's last state is worth: by a critic that is learned, or by the task's own terminal value"""
    critic_learning_rate: float = 4e-3
    """learning rate of the critic's Adam at the start; it decays linearly"""
    critic_learning_rate_final_fraction: float = 0.1
    """fraction of the critic's learning rate left at the end"""
    critic_epochs: int = 2
    """passes of the critic over each window"""
    minibatches: int = 4
    """gradient steps of the critic in each pass"""
    shuffle_block: int = 64
    """samples that stay together when a window is shuffled into minibatches"""
    discount: float = 0.98
    """discount factor γ of a step"""
    gae_lambda: float = 0.9
    """λ of the critic's targets"""
    init_std: float = 0.3
    """standard deviation of an action's exploration noise at the start"""
    final_std: float = 0.1
    """standard deviation of an action's exploration noise at the end; it decays exponentially"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers of each network"""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """activation function of the hidden layers"""
    normalize_observations: bool = True
    """normalize observations by their running mean and variance"""
    normalize_returns: bool = True
    """normalize value targets by the running mean and variance of returns"""
    state_estimation_coef: float = 0.0
    """weight of the auxiliary loss that predicts privileged state from images; 0 is no prediction"""
    teacher_forcing: float = 0.0
    """fraction of the training in which the actor's input goes over, linearly, from the true privileged state to its
    prediction"""
    image_encoder: Literal["patches", "cnn"] = "patches"
    """network that reads images: matrix products on patches, for CPUs, or convolutions, for accelerators"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.rollout_length, self.critic_epochs, self.minibatches, self.shuffle_block) < 1:
            raise ValueError("worlds, rollout_length, critic_epochs, minibatches and shuffle_block must be at least 1")
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.gae_lambda <= 1.0:
            raise ValueError("discount and gae_lambda lie between 0 and 1")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden_sizes needs at least one layer, such as 64 64")
        require_choice("activation", self.activation, ACTIVATIONS)
        require_choice("image encoder", self.image_encoder, IMAGE_ENCODERS)
        require_choice("bootstrap", self.bootstrap, ("critic", "terminal_value"))
        positive = (self.learning_rate, self.critic_learning_rate, self.init_std, self.final_std, self.max_grad_norm)
        if min(positive) <= 0.0 or min(self.max_state_grad, self.max_action_grad) <= 0.0:
            raise ValueError("learning rates, standard deviations and limits of gradients must be positive")
        if self.state_estimation_coef < 0.0 or not 0.0 <= self.teacher_forcing <= 1.0:
            raise ValueError("state_estimation_coef must not be negative, and teacher_forcing lies between 0 and 1")
        if self.teacher_forcing and not self.state_estimation_coef:
            raise ValueError(
                "teacher_forcing needs a prediction to go over to: set state_estimation_coef, such as to 1"
            )
        if not all(0.0 <= beta < 1.0 for beta in self.adam_betas):
            raise ValueError("adam_betas lie between 0 and 1")

    def check(self, task: Task[Any], devices: int) -> None:
        """Refuse a task that cannot be differentiated, or whose windows these settings cannot divide."""
        name = type(task).__name__
        if not isinstance(task, DifferentiableTask):
            raise ValueError(
                f"shac cannot train {name}: it has no smooth_reward and no differentiable_state, so there is no "
                "gradient to follow. Choose ppo, or sac, td3 or ddpg for continuous actions"
            )
        try:
            state = jax.eval_shape(lambda: task.reset(Rng.from_seed(0, 0)))
            jax.eval_shape(task.smooth_reward, state, state)
        except ValueError as error:
            raise ValueError(f"shac cannot train this task: {error}. Choose ppo") from error
        if not isinstance(task.spec.action, Box):
            raise ValueError(f"shac needs continuous actions, and {name} has discrete ones: choose box actions, or ppo")
        if self.bootstrap == "terminal_value" and not isinstance(task, TerminalValueTask):
            raise ValueError(f"{name} has no terminal_value; set learner.bootstrap to critic")
        check_rollouts(self, task.spec, devices)

    @property
    def steps_per_update(self) -> int:
        return self.worlds * self.rollout_length

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> ActorCritic:
        architecture = Architecture(
            self.hidden_sizes, self.activation, init_std=self.init_std, image_encoder=self.image_encoder,
            state_estimator=self.state_estimation_coef > 0.0, teacher_forcing=self.teacher_forcing > 0.0,
        )  # fmt: skip
        return ActorCritic.init(jax.random.key(0) if key is None else key, spec, architecture)

    def init(self, task: Task[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> ShacState:
        key, policy_key = jax.random.split(jax.random.key(seed))
        policy = self.policy(task.spec, policy_key)
        states, rngs = init_worlds(task, seed, worlds)
        return ShacState(
            worlds=states,
            rngs=rngs,
            policy=policy,
            actor_optimizer=self._actor_adam.init(actor_params(policy)),
            critic_optimizer=self._critic_adam.init(self._critic_params(policy)),
            key=key,
            updates=jnp.int32(0),
            critic_share=jnp.float32(1.0),
        )

    @property
    def _actor_adam(self) -> optax.GradientTransformation:
        b1, b2 = self.adam_betas
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(b1, b2))

    @property
    def _critic_adam(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(0.9, 0.99, eps=1e-6))

    def update(
        self, task: Task[Any], train: ShacState, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[ShacState, Metrics, EpisodeStats]:
        """A window of every world, one step of the actor along its gradient, and passes of the critic over it."""
        std = self.init_std * (self.final_std / self.init_std) ** progress
        policy = replace(train.policy, log_std=jnp.full_like(train.policy.log_std, jnp.log(std)))
        if policy.teacher_forcing is not None:
            policy = replace(policy, teacher_forcing=jnp.maximum(1.0 - progress / self.teacher_forcing, 0.0))
        measured = train.updates % CRITIC_SHARE_INTERVAL == 0
        worlds, rngs, experience, sums = in_blocks(
            partial(self._window, task, policy, measured), train.worlds, train.rngs, agents=task.spec.agents
        )
        worlds, rngs, (transitions, images) = join(worlds), join(rngs), join_in_time(experience)
        sums = jax.tree.map(partial(jnp.sum, axis=0), sums)
        gradient, of_critic, stats = jax.lax.psum(sums, axis) if axis else sums
        of_rewards = jax.tree.map(jnp.subtract, gradient.params, of_critic.params)
        critic_norm = optax.tree.norm(of_critic.params)
        share = critic_norm / (critic_norm + optax.tree.norm(of_rewards) + 1e-20)
        train = replace(train, critic_share=jnp.where(measured, share, train.critic_share))
        key, order_key = jax.random.split(train.key)
        train = replace(train, worlds=worlds, rngs=rngs, policy=policy, key=key, updates=train.updates + 1)
        train, metrics = self._improve_actor(train, gradient, progress)
        if self.bootstrap == "critic":
            train, critic_metrics = self._improve_critic(task, train, transitions, images, order_key, progress, axis)
            metrics |= critic_metrics
        if self.normalize_observations:
            # Only now: within an update the networks must get the same inputs as when they acted.
            normalizer = policy.normalizer.update(transitions.observation, transitions.valid, axis)
            train = replace(train, policy=replace(train.policy, normalizer=normalizer))
        metrics |= {
            "step_reward": masked_mean(transitions.reward, transitions.valid, axis),
            "action_std": std,
            "critic_gradient_share": train.critic_share,
        }
        return train, metrics, stats

    # The actor

    def _improve_actor(
        self, train: ShacState, gradient: ActorGradient, progress: Float[Array, ""]
    ) -> tuple[ShacState, Metrics]:
        """One step of Adam uphill."""
        count = jnp.maximum(gradient.count, 1.0)
        grads = jax.tree.map(lambda g: -g / count, gradient.params)
        learning_rate = self.learning_rate * (1.0 - (1.0 - self.learning_rate_final_fraction) * progress)
        updates, optimizer = self._actor_adam.update(grads, train.actor_optimizer)
        params = jax.tree.map(lambda p, u: p - learning_rate * u, actor_params(train.policy), updates)
        train = replace(train, policy=with_actor_params(train.policy, params), actor_optimizer=optimizer)
        return train, {
            "grad_norm": optax.tree.norm(grads),
            "loss": -gradient.smooth_reward / count,
            "smooth_reward": gradient.smooth_reward / count,
            "learning_rate": learning_rate,
        }

    def _window(
        self, task: Task[Any], policy: ActorCritic, measured: Flag, states: PyTree, rngs: Rng
    ) -> tuple[Any, Rng, tuple[Transition, Images | None], tuple[ActorGradient, ActorGradient, EpisodeStats]]:
        """A window of one block of worlds, forward and back: and if `measured`, back again without rewards."""
        encode = policy.encode if task.spec.image_shape else None
        states, acting, (transitions, images), stats = rollout_block(
            task, partial(explore, policy), states, Acting(rngs), self.rollout_length, encode, keep_states=True
        )
        with jax.named_scope("learner"):
            reverse = self.reverse_pass(task, policy)
            back, nothing = partial(reverse, transitions, states, images), reverse.zero

            def once(k: Array, found: tuple[ActorGradient, ActorGradient]) -> tuple[ActorGradient, ActorGradient]:
                new = back(reward_weight=jnp.where(k == 0, 1.0, 0.0))
                return select(k == 0, new, found[0]), new

            # A loop, so that the pass is compiled once.
            gradient, of_critic = jax.lax.fori_loop(0, jnp.where(measured, 2, 1), once, (nothing, nothing))
        experience = replace(transitions, state=None, log_prob=None), images
        return states, acting.rngs, experience, (gradient, of_critic, stats)

    def reverse_pass(self, task: Task[Any], policy: ActorCritic) -> ReversePass:
        """The way back through a window, with these settings."""
        return ReversePass(
            policy,
            task,
            self.discount,
            self.max_state_grad,
            self.max_action_grad,
            self.bootstrap,
            self.normalize_returns,
        )

    # The critic

    def _improve_critic(
        self,
        task: Task[Any],
        train: ShacState,
        transitions: Transition,
        images: Images | None,
        key: PRNGKeyArray,
        progress: Float[Array, ""],
        axis: str | None,
    ) -> tuple[ShacState, Metrics]:
        """Passes over the window, towards TD(λ) targets of the true reward and towards the privileged state."""
        policy = train.policy
        _, target, return_normalizer = value_targets(self, task, policy, train.worlds, transitions, images, axis)
        batch = CriticBatch(transitions.observation, target, transitions.valid.astype(jnp.float32))
        batch = flatten_batch(batch, images, task.spec.image_interval if images else None)

        def loss(params: PyTree, batch: CriticBatch) -> tuple[Array, Metrics]:
            critic, image_encoder, state_estimator = params
            learned = replace(policy, critic=critic, image_encoder=image_encoder, state_estimator=state_estimator)
            image_features = None if batch.image is None else learned.encode(batch.image)
            error = learned.value(batch.observation, image_features) - batch.target
            total = jnp.sum(batch.weight * error**2)
            metrics = {"count": jnp.sum(batch.weight), "value_loss": total}
            if state_estimator is not None:
                estimation = jnp.sum(batch.weight * learned.estimation_loss(batch.observation, image_features))
                metrics["state_estimation_loss"] = estimation
                total = total + self.state_estimation_coef * estimation
            return total, metrics

        learning_rate = self.critic_learning_rate * (1.0 - (1.0 - self.critic_learning_rate_final_fraction) * progress)
        (critic, image_encoder, state_estimator), optimizer, metrics = minibatch_epochs(
            Descent(loss, self._critic_adam, learning_rate),
            (self._critic_params(policy), train.critic_optimizer),
            batch,
            key,
            (self.critic_epochs, self.minibatches, self.shuffle_block),
            axis,
        )
        policy = replace(policy, critic=critic, return_normalizer=return_normalizer, state_estimator=state_estimator)
        policy = replace(policy, image_encoder=image_encoder)
        train = replace(train, policy=policy, critic_optimizer=optimizer)
        return train, {name: jnp.mean(value) for name, value in metrics.items() if name.endswith("loss")}

    def _critic_params(self, policy: ActorCritic) -> tuple[Any, Any, Any]:
        """What is learned in minibatches: the critic, the image encoder and the state estimator."""
        return policy.critic, policy.image_encoder, policy.state_estimator
