"""The reverse pass of SHAC: the gradient of a window's return with respect to the actor, through the physics.

A task is known only by its differentiable state, its motion and its smooth reward; nothing here knows which task it is.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..core.geometry import Scalar
from ..core.struct import static, struct
from ..core.task import CameraTask, DifferentiableTask, Task, TerminalValueTask
from ..policy.actor_critic import ActorCritic
from ..policy.policy import ImageFeatures
from .rollout import Images, Transition, observe_all

INSIDE = 1.0 - 1e-6
"""Actions are clipped to this before they are differentiated: at its bound a clip would halve their gradient."""


@struct
class ActorGradient:
    """The gradient of a window's return with respect to the actor, and what it came from; sums over samples."""

    params: Any  # of the actor, and of its image encoder or None
    smooth_reward: Float[Array, ""]
    count: Float[Array, ""]


@struct
class Carry:
    """What goes from a step to the one before it."""

    grad: Any  # λ: of the return, with respect to the differentiable part of the state
    after: Any  # the states one step later
    features_grad: ImageFeatures  # with respect to the features of the image that the step was decided by
    total: ActorGradient


@struct
class ReversePass:
    """The gradient of the sum of all returns of a window with respect to the actor.

    With s the differentiable part of the state, and λ the gradient of the discounted return with respect to it,

        λₜ = ∂rₜ/∂sₜ + (∂sₜ₊₁/∂sₜ)ᵀ γλₜ₊₁ + (∂oₜ/∂sₜ)ᵀ (∂aₜ/∂oₜ)ᵀ gₜ    gₜ = ∂rₜ/∂aₜ + (∂sₜ₊₁/∂aₜ)ᵀ γλₜ₊₁

    and the actor's gradient is the sum of (∂aₜ/∂θ)ᵀ gₜ. Memory grows linearly with the window: only states are kept,
    and every derivative is computed again. The camera is not differentiated: to the state, image features are
    constants, and an estimate of the privileged observation has the derivative of the truth.
    """

    policy: ActorCritic
    task: Task[Any] = static()
    discount: float = static()
    max_state_grad: float = static()
    max_action_grad: float = static()
    bootstrap: Literal["critic", "terminal_value"] = static()
    normalize_returns: bool = static()

    def __call__(
        self, transitions: Transition, last: PyTree, images: Images | None = None, reward_weight: Scalar = 1.0
    ) -> ActorGradient:
        """Back from the last states to the first. With `reward_weight` 0 only what the last states are worth counts."""
        start = Carry(self.last_grad(last), last, None, self.zero)
        if images is None:
            carry, _ = jax.lax.scan(partial(self._back, reward_weight, None), start, transitions, reverse=True)
        else:
            count = images.image_features.shape[0]
            steps = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), transitions)
            start = replace(start, features_grad=jnp.zeros_like(images.image_features[0]))
            back = partial(self._back_to_image, reward_weight)
            carry, _ = jax.lax.scan(back, start, (steps, images), reverse=True)
        return carry.total

    @property
    def zero(self) -> ActorGradient:
        """The gradient of nothing."""
        params = jax.tree.map(jnp.zeros_like, actor_params(self.policy))
        return ActorGradient(params, jnp.float32(0.0), jnp.float32(0.0))

    def _back(
        self, reward_weight: Scalar, image_features: ImageFeatures, carry: Carry, now: Transition
    ) -> tuple[Carry, None]:
        """One step."""
        before, valid = now.state, now.valid
        part = jax.vmap(self._task.differentiable_state)(before)
        λ = jax.tree.map(
            lambda g: jnp.where(valid, jnp.clip(g, -self.max_state_grad, self.max_state_grad) * self.discount, 0.0),
            carry.grad,
        )
        (_, reward), pull = jax.vjp(
            lambda part, action: jax.vmap(partial(smooth_step, self.task))(part, action, before, carry.after),
            part,
            jnp.clip(now.action, -INSIDE, INSIDE),
        )
        part_grad, action_grad = pull((λ, valid * jnp.float32(reward_weight)))
        action_grad = self._allowed(now.action, action_grad, valid)
        _, pull = jax.vjp(
            lambda actor, observation, features: replace(self.policy, actor=actor).mean_action(observation, features),
            self.policy.actor,
            now.observation,
            image_features,
        )
        actor_grad, observation_grad, new_features_grad = pull(action_grad)
        # An episode that was truncated here keeps the value of what would have followed.
        cut = (before.truncated & ~valid)[..., None]
        if self.bootstrap == "critic":
            value_grad = self._value_grad(now.observation, image_features)
            observation_grad = jnp.where(cut, value_grad, observation_grad)
        else:
            value_grad = self._terminal_value_grad(before, part)
            part_grad = jax.tree.map(partial(jnp.where, cut[..., 0]), value_grad, part_grad)
        _, pull = jax.vjp(partial(self._observe, before), part)
        λ = jax.tree.map(jnp.add, part_grad, pull(observation_grad)[0])
        total = carry.total
        total = replace(
            total,
            params=(jax.tree.map(jnp.add, total.params[0], actor_grad), total.params[1]),
            smooth_reward=total.smooth_reward + jnp.sum(jnp.where(valid, reward, 0.0)),
            count=total.count + jnp.sum(valid, dtype=jnp.float32),
        )
        features_grad = jax.tree.map(jnp.add, carry.features_grad, new_features_grad)
        return Carry(jax.lax.optimization_barrier(λ), before, features_grad, total), None

    def _back_to_image(self, reward_weight: Scalar, carry: Carry, now: tuple[Transition, Images]) -> tuple[Carry, None]:
        """The steps of one image, and the encoder's gradient of all of them at once."""
        steps, images = now
        features = images.image_features
        carry = replace(carry, features_grad=jnp.zeros_like(features))
        carry, _ = jax.lax.scan(partial(self._back, reward_weight, features), carry, steps, reverse=True)
        encoder = self.policy.image_encoder
        _, pull = jax.vjp(lambda encoder: replace(self.policy, image_encoder=encoder).encode(images.image), encoder)
        actor, encoder_grad = carry.total.params
        encoder_grad = jax.tree.map(jnp.add, encoder_grad, pull(carry.features_grad)[0])
        return replace(carry, total=replace(carry.total, params=(actor, encoder_grad))), None

    def last_grad(self, last: PyTree) -> Any:
        """The gradient of what a window's last states are worth, with respect to their differentiable part."""
        part = jax.vmap(self._task.differentiable_state)(last)
        if self.bootstrap == "critic":
            observation, pull = jax.vjp(partial(self._observe, last), part)
            image_features = None
            if self.task.spec.image_shape:
                assert isinstance(self.task, CameraTask)
                image_features = self.policy.encode(jax.vmap(self.task.image)(last))
            grad = pull(self._value_grad(observation, image_features))[0]
        else:
            grad = self._terminal_value_grad(last, part)
        return jax.tree.map(lambda g: jnp.where(last.terminated, 0.0, g), grad)

    @property
    def _task(self) -> DifferentiableTask:
        assert isinstance(self.task, DifferentiableTask)
        return self.task

    def _allowed(self, action: Array, grad: Array, valid: Array) -> Array:
        """The gradient of an action: clipped, and none that would push it further beyond its bounds."""
        outwards = ((action > 1.0) & (grad > 0.0)) | ((action < -1.0) & (grad < 0.0))
        grad = jnp.clip(grad, -self.max_action_grad, self.max_action_grad)
        return jnp.where(outwards | ~valid[..., None], 0.0, grad)

    def _observe(self, states: PyTree, part: PyTree) -> Float[Array, "*b d"]:
        age = 0 if self.task.spec.image_shape else None
        return observe_all(self.task, jax.vmap(self._task.with_differentiable_state)(states, part), age)

    def _value_grad(self, observation: Float[Array, "*b d"], image_features: ImageFeatures) -> Float[Array, "*b d"]:
        """The gradient of the return that the critic expects."""
        grad = jax.grad(lambda observation: jnp.sum(self.policy.value(observation, image_features)))(observation)
        return grad * jnp.sqrt(self.policy.return_normalizer.variance) if self.normalize_returns else grad

    def _terminal_value_grad(self, states: PyTree, part: PyTree) -> Any:
        assert isinstance(self.task, TerminalValueTask)
        value, restore = jax.vmap(self.task.terminal_value), jax.vmap(self._task.with_differentiable_state)
        return jax.grad(lambda part: jnp.sum(value(restore(states, part))))(part)


def actor_params(policy: ActorCritic) -> tuple[Any, Any]:
    """What the actor's gradient changes: the actor and its image encoder."""
    return policy.actor, policy.image_encoder


def with_actor_params(policy: ActorCritic, params: tuple[Any, Any]) -> ActorCritic:
    return replace(policy, actor=params[0], image_encoder=params[1])


def smooth_step(task: Task[Any], part: PyTree, action: Array, before: PyTree, after: PyTree) -> tuple[Any, Array]:
    """The differentiable part of the state one step later, and the smooth reward of the step, in one world.

    `before` and `after` are the states of the rollout: what does not carry a gradient is taken from them.
    """
    assert isinstance(task, DifferentiableTask)
    before = task.with_differentiable_state(before, part)
    moved, command = task.command(before, action)
    part = task.differentiable_state(replace(moved, body=task.move(moved, command)))
    return part, task.smooth_reward(before, task.with_differentiable_state(after, part))
