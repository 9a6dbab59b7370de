"""The loop of all learners with a replay buffer: collect, store, learn from batches, update the target network."""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..core.rng import Rng
from ..core.struct import per_world, struct
from ..core.task import CameraTask, Spec, Task
from ..policy.encoder import Precision, cast_to, join_features, update_normalizer
from ..policy.policy import ImageFeatures, TrainablePolicy
from .exploration import Noise, OrnsteinUhlenbeck, linear_schedule
from .learner import Metrics
from .replay import Batch, Cursor, Replay, Sampling, add_transitions, init_replay, sample, set_priorities
from .rollout import Acting, Decision, EpisodeStats, init_worlds, masked_mean, observe_agents, rollout

P = TypeVar("P", bound=TrainablePolicy)
T = TypeVar("T")


@struct
class OffPolicyState:
    """The state of a training: worlds, networks, optimizer, replay and generators."""

    worlds: Any = per_world()
    rngs: Rng = per_world()
    noise: OrnsteinUhlenbeck | None = per_world()  # correlated exploration noise, or None if it is white
    policy: Any
    target: Any  # the policy with the parameters of the target networks
    optimizer: optax.OptState
    replay: Replay = per_world()
    max_priority: Float[Array, ""]  # so far; new entries get it
    key: PRNGKeyArray
    updates: Int[Array, ""]
    average: Any = None  # of the policy, over the last part of a training; the trainer keeps it


@struct
class LearningState:
    """What changes from one gradient step to the next."""

    policy: Any
    target: Any
    optimizer: optax.OptState
    tree: Float[Array, "w n"] | None
    max_priority: Float[Array, ""]
    count: Int[Array, ""]  # of gradient steps


@dataclass(frozen=True)
class OffPolicy(Generic[P]):
    """Settings that every learner with a replay buffer has."""

    worlds: int = 64
    """worlds that are stepped together"""
    rollout_length: int = 4
    """steps of every world between two updates"""
    gradient_steps: int = 4
    """batches learned from in each update"""
    batch_size: int = 256
    """transitions in a batch, over all devices"""
    capacity: int = 500_000
    """size of the replay buffer in transitions, over all worlds and agents"""
    learning_starts: int = 2_000
    """transitions collected before the first gradient step"""
    learning_rate: float = 3e-4
    """learning rate of Adam at the start"""
    learning_rate_final_fraction: float = 0.1
    """fraction of the learning rate left at the end of a linear decay"""
    discount: float = 0.99
    """discount factor γ of a step"""
    n_step: int = 3
    """steps of an n-step return"""
    tau: float = 0.005
    """soft update of the target networks: fraction taken from the learned ones after each gradient step"""
    target_update_interval: int = 0
    """if positive, copy the target networks every so many gradient steps instead of the soft update"""
    reward_scale: float = 1.0
    """factor on rewards; values far from one take long to learn"""
    huber_delta: float = 1.0
    """error at which the Huber loss changes from quadratic to linear. If a few large returns such as collisions matter,
    choose it large, or learn return distributions: a small one underrates them"""
    max_grad_norm: float = 10.0
    """gradients are clipped to this norm"""
    epsilon_start: float = 1.0
    """probability of a random action at the start, decaying linearly"""
    epsilon_end: float = 0.05
    """probability of a random action after the decay"""
    exploration_fraction: float = 0.25
    """fraction of the training over which epsilon decays"""
    prioritized_replay: bool = False
    """sample transitions by their last error instead of uniformly"""
    per_alpha: float = 0.5
    """exponent of the priorities; 0 is uniform sampling"""
    per_beta: float = 0.4
    """exponent of the importance weights at the start, rising to 1"""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """sizes of the hidden layers of each network"""
    layer_norm: bool = True
    """layer normalization in the networks"""
    normalize_observations: bool = True
    """normalize observations by their running mean and variance"""
    precision: Precision = "auto"
    """floating-point type of the networks; auto is bfloat16 on accelerators and float32 on CPUs. Parameters, targets
    and losses are always float32"""

    def __post_init__(self) -> None:
        if min(self.worlds, self.rollout_length, self.gradient_steps, self.batch_size, self.n_step, self.capacity) < 1:
            raise ValueError(
                "worlds, rollout_length, gradient_steps, batch_size, n_step and capacity must be at least 1"
            )
        if not 0.0 <= self.discount <= 1.0 or not 0.0 <= self.epsilon_end <= self.epsilon_start <= 1.0:
            raise ValueError("discount, epsilon_start and epsilon_end lie between 0 and 1, and epsilon does not grow")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError("hidden_sizes needs at least one layer, such as 128 128")
        if self.huber_delta <= 0.0 or self.reward_scale <= 0.0:
            raise ValueError("huber_delta and reward_scale must be positive")
        if self.max_grad_norm <= 0.0:
            raise ValueError("max_grad_norm must be positive")
        if min(self.learning_rate_final_fraction, self.target_update_interval, self.learning_starts) < 0:
            raise ValueError(
                "learning_rate_final_fraction, target_update_interval and learning_starts must not be negative"
            )
        if self.learning_rate <= 0.0 or not 0.0 < self.tau <= 1.0 or not 0.0 < self.exploration_fraction <= 1.0:
            raise ValueError("learning_rate must be positive, tau and exploration_fraction between 0 and 1")

    @property
    def steps_per_update(self) -> int:
        return self.worlds * self.rollout_length

    def check(self, task: Task[Any], devices: int) -> None:
        """Refuse a task this cannot learn, or a batch that cannot be divided."""
        spec = task.spec
        self.check_action(spec)
        self.check_images(spec)
        if self.batch_size % devices:
            raise ValueError(f"a batch of {self.batch_size} transitions does not divide over {devices} devices")
        if self.capacity < (self.n_step + self.rollout_length + 1) * self.worlds * spec.agents:
            raise ValueError(
                f"a capacity of {self.capacity} transitions is too few for {self.worlds} worlds of {spec.agents} "
                "agents: raise learner.capacity"
            )

    def steps_per_world(self, spec: Spec) -> int:
        """Steps of every world that the replay keeps: whole rollouts."""
        return max(self.capacity // (self.worlds * spec.agents * self.rollout_length), 2) * self.rollout_length

    # What differs between algorithms

    def check_action(self, spec: Spec) -> None:
        """Refuse an action space this cannot act in."""
        raise NotImplementedError

    def check_images(self, spec: Spec) -> None:
        """Refuse a task with cameras, if these cannot be learned from; by default they cannot."""
        if spec.image_shape:
            raise ValueError(
                f"{type(self).__name__.lower()} cannot learn from images; choose a task without, or ppo, distill, sac, "
                "td3 or ddpg"
            )

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> P:
        """A policy with initial weights, with everything that is learned."""
        raise NotImplementedError

    def explore(
        self,
        policy: P,
        observation: Float[Array, "*b d"],
        rngs: Rng,
        progress: Float[Array, ""],
        key: PRNGKeyArray,
        noise: Noise = None,
    ) -> tuple[Array, Rng]:
        """Exploring actions of all worlds and agents in one pass, and the generators after them.

        `key` is for noisy networks, `noise` is the correlated noise of continuous actions.
        """
        raise NotImplementedError

    def epsilon(self, progress: Float[Array, ""]) -> Float[Array, ""]:
        """The probability of a random action after that fraction of the training."""
        return linear_schedule(self.epsilon_start, self.epsilon_end, progress / self.exploration_fraction)

    def inputs(self, policy: P, batch: Batch, key: PRNGKeyArray) -> Batch:
        """The batch as the networks read it: normalized, and with the features of its images."""
        return batch.normalized(policy.normalizer, self.reward_scale)

    def loss(self, policy: P, target: P, batch: Batch, key: PRNGKeyArray) -> tuple[Array, tuple[Array, Metrics]]:
        """The weighted mean loss of a batch; and the error of each sample, and metrics."""
        raise NotImplementedError

    def init_noise(self, spec: Spec, rngs: Rng) -> tuple[OrnsteinUhlenbeck | None, Rng]:
        """The correlated noise of exploration, by default none, and the generators after it."""
        return None, rngs

    @property
    def uses_intermediate(self) -> bool:
        """Whether the loss needs the observations between the first and the last step of an n-step transition."""
        return False

    @property
    def mask_period(self) -> int:
        """Gradient steps after which `mask_updates` repeats itself."""
        return 1

    def mask_updates(self, updates: PyTree, count: Int[Array, ""]) -> Any:
        """The parameter updates that are applied in gradient step `count`; by default all."""
        return updates

    # What is shared

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def init(self, task: Task[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> OffPolicyState:
        key = jax.random.key(seed)
        key, policy_key = jax.random.split(key)
        policy = self.policy(task.spec, policy_key)
        states, rngs = init_worlds(task, seed, worlds)
        noise, rngs = self.init_noise(task.spec, rngs)
        image = jax.eval_shape(jax.vmap(task.image), states) if isinstance(task, CameraTask) else None
        image = image if task.spec.image_shape else None
        length = self.steps_per_world(task.spec)
        return OffPolicyState(
            worlds=states,
            rngs=rngs,
            noise=noise,
            policy=policy,
            target=policy,
            optimizer=self._optimizer.init(policy.params),
            replay=init_replay(task.spec, worlds.shape[0], length, self.prioritized_replay, image),
            max_priority=jnp.float32(1.0),
            key=key,
            updates=jnp.int32(0),
        )

    def update(
        self, task: Task[Any], train: OffPolicyState, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[OffPolicyState, Metrics, EpisodeStats]:
        """A rollout of every world, then `gradient_steps` batches."""
        key, explore_key, learn_key = jax.random.split(train.key, 3)
        policy = train.policy

        def act(observation: Array, acting: Acting, image_features: ImageFeatures) -> tuple[Decision, Acting]:
            noise = None if acting.noise is None else acting.noise.value
            seen = join_features(image_features, observation)
            action, rngs = self.explore(policy, seen, acting.rngs, progress, explore_key, noise)
            return Decision(action), replace(acting, rngs=rngs)

        encode = policy.encode if task.spec.image_shape else None
        worlds, acting, transitions, stats, images = rollout(
            task, act, train.worlds, Acting(train.rngs, train.noise), self.rollout_length, encode, observe_agents
        )
        kept = train.replay.length // self.rollout_length
        head = train.updates % kept * self.rollout_length
        replay = add_transitions(train.replay, transitions, head, train.max_priority, images)
        if self.normalize_observations:
            normalizer = update_normalizer(
                policy.normalizer, task.spec, transitions.observation, transitions.valid, axis
            )
            policy = replace(policy, normalizer=normalizer)
        # Counted in rollouts, and modulo what is kept: the number of transitions would overflow 32 bits.
        rollouts = train.updates + 1
        filled, head = jnp.minimum(rollouts, kept) * self.rollout_length, rollouts % kept * self.rollout_length
        enough = min(-(-self.learning_starts // (self.worlds * task.spec.agents * self.rollout_length)), kept)
        warm = (rollouts >= enough) & (filled > self.n_step)
        train = replace(train, worlds=worlds, rngs=acting.rngs, noise=acting.noise)
        train = replace(train, policy=policy, replay=replay, key=key)
        train, metrics = self._learn(train, learn_key, Cursor(head, filled), warm, progress, axis)
        train = replace(train, updates=train.updates + 1)
        metrics |= {
            "step_reward": masked_mean(transitions.reward, transitions.valid, axis),
            "epsilon": self.epsilon(progress),
        }
        return train, metrics, jax.lax.psum(stats, axis) if axis else stats

    def _learn(
        self,
        train: OffPolicyState,
        key: PRNGKeyArray,
        cursor: Cursor,
        warm: Bool[Array, ""],
        progress: Float[Array, ""],
        axis: str | None,
    ) -> tuple[OffPolicyState, Metrics]:
        """The state after `gradient_steps` batches; before it is `warm`, only generators change."""
        devices = jax.lax.psum(1, axis) if axis else 1
        device = jax.lax.axis_index(axis) if axis else 0
        learning_rate = self.learning_rate * (1.0 - (1.0 - self.learning_rate_final_fraction) * progress) * warm
        per_beta = self.per_beta + (1.0 - self.per_beta) * progress
        sampling = Sampling(self.batch_size // devices, self.n_step, self.discount, self.uses_intermediate)

        def gradient_step(state: LearningState, key: PRNGKeyArray) -> tuple[LearningState, Metrics]:
            sample_key, loss_key = jax.random.split(jax.random.fold_in(key, device))
            replay = replace(train.replay, tree=state.tree)
            batch = sample(replay, sample_key, cursor, sampling, per_beta, axis)

            def loss(params: PyTree) -> tuple[Array, tuple[Array, Metrics]]:
                policy = state.policy.with_params(params)
                return self.loss(policy, state.target, self.inputs(policy, batch, loss_key), loss_key)

            grads, (errors, metrics) = jax.grad(loss, has_aux=True)(state.policy.params)
            if axis:
                grads, metrics = jax.lax.pmean((grads, metrics), axis)
            updates, optimizer = self._optimizer.update(grads, state.optimizer)
            updates = self.mask_updates(updates, state.count)
            params = jax.tree.map(lambda p, u: p - learning_rate * u, state.policy.params, updates)
            policy = state.policy.with_params(params)
            target = self._update_target(state.target, policy, state.count)
            tree, max_priority = self._update_priorities(state, batch, errors, axis)
            metrics |= {"grad_norm": optax.tree.norm(grads)}
            return LearningState(policy, target, optimizer, tree, max_priority, state.count + 1), metrics

        # The count is only used modulo these; on its own it would overflow 32 bits.
        count = train.updates % (max(self.target_update_interval, 1) * self.mask_period) * self.gradient_steps
        state = LearningState(train.policy, train.target, train.optimizer, train.replay.tree, train.max_priority, count)
        state, metrics = jax.lax.scan(gradient_step, state, jax.random.split(key, self.gradient_steps))
        # The learning rate is zero until then, but Adam's moments would have changed.
        optimizer = jax.tree.map(lambda new, old: jnp.where(warm, new, old), state.optimizer, train.optimizer)
        train = replace(
            train,
            policy=state.policy,
            target=state.target,
            optimizer=optimizer,
            replay=replace(train.replay, tree=state.tree),
            max_priority=state.max_priority,
        )
        return train, jax.tree.map(jnp.mean, metrics)

    def _update_priorities(
        self, state: LearningState, batch: Batch, errors: Float[Array, "b"], axis: str | None
    ) -> tuple[Float[Array, "w n"] | None, Float[Array, ""]]:
        """The tree with the new priorities of a batch, and the highest priority so far."""
        tree, max_priority = state.tree, state.max_priority
        if tree is None:
            return tree, max_priority
        priority = jnp.where(batch.weight > 0.0, (jnp.abs(errors) + 1e-3) ** self.per_alpha, 0.0)
        # A sample that could not be used keeps its priority.
        old = tree[batch.world, batch.leaf + tree.shape[1] // 2]
        tree = set_priorities(tree, batch.world, batch.leaf, jnp.where(batch.weight > 0.0, priority, old))
        highest = jnp.max(priority)
        return tree, jnp.maximum(max_priority, jax.lax.pmax(highest, axis) if axis else highest)

    def _update_target(self, target: P, policy: P, count: Int[Array, ""]) -> P:
        """The target after gradient step `count`: a soft update, or now and then a copy."""
        tau = (
            jnp.where((count + 1) % self.target_update_interval == 0, 1.0, 0.0)
            if self.target_update_interval
            else jnp.float32(self.tau)
        )
        params = jax.tree.map(lambda old, new: old + tau * (new - old), target.params, policy.params)
        return target.with_params(params)

    def cast(self, tree: T) -> T:
        """Parameters and inputs in the precision of the networks."""
        return cast_to(tree, self.precision)
