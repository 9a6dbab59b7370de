"""The policy of PPO: an actor and a critic behind one normalizer; both may use more than the observation."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..core.spaces import ActionSpace, Box
from ..core.struct import static, struct
from ..core.task import PackedImage, Spec
from .distributions import Distribution, distribution, head_size, std_size
from .image_encoders import IMAGE_AGE_INPUTS, IMAGE_ENCODERS, ImageEncoder
from .memory import Gru, Memory
from .nets import Mlp, Normalizer
from .policy import ImageFeatures

ESTIMATOR_HIDDEN = 128
"""Smallest hidden layer of a state estimator."""


@dataclass(frozen=True)
class Architecture:
    """The networks of an actor-critic."""

    hidden_sizes: tuple[int, ...]
    activation: str = "tanh"
    shared_trunk: bool = False
    init_std: float = 1.0
    image_encoder: str = "patches"
    state_estimator: bool = False
    teacher_forcing: bool = False
    memory_size: int = 0


@struct
class ActorCritic:
    """An actor and a critic. With `trunk`, both share its features.

    With `image_encoder` the actor also reads images: `encode` computes their features, once for all the steps that an
    image is used. If the task has privileged observations, these follow the first `actor_inputs` numbers of an
    observation in training; the critic then reads the whole vector and no images, and the actor only its first part.
    With `state_estimator` the actor predicts the privileged observation and uses its prediction as input.
    With `memory` a recurrent unit reads what the actor reads, and both networks read what it remembers: `remember`
    comes first in every step, and everything else takes the memory after it.
    """

    trunk: Mlp | None
    actor: Mlp
    critic: Mlp
    log_std: Float[Array, "s"]
    normalizer: Normalizer
    return_normalizer: Normalizer  # the critic predicts normalized returns
    image_encoder: ImageEncoder | None
    memory: Gru | None
    state_estimator: Mlp | None
    teacher_forcing: Float[Array, ""] | None  # in training, the share of the truth in the actor's privileged input
    space: ActionSpace = static()
    actor_inputs: int = static()  # numbers of an observation that the actor reads
    privileged_inputs: int = static()  # those after them, which only the critic reads

    @classmethod
    def init(cls, key: PRNGKeyArray, spec: Spec, architecture: Architecture) -> "ActorCritic":
        trunk_key, actor_key, critic_key, encoder_key, estimator_key = jax.random.split(key, 5)
        memory_key = jax.random.fold_in(key, 5)
        hidden, activation = architecture.hidden_sizes, architecture.activation
        actor_inputs, image_encoder = spec.observation, None
        if spec.image_shape:
            image_encoder = IMAGE_ENCODERS[architecture.image_encoder].init(encoder_key, spec.image_shape)
            actor_inputs += IMAGE_AGE_INPUTS
        actor_size = actor_inputs + (image_encoder.size if image_encoder else 0)
        critic_size = actor_inputs + spec.privileged_size if spec.privileged_size else actor_size
        memory, memory_size = None, architecture.memory_size
        if memory_size:
            memory = Gru.init(memory_key, actor_size, memory_size)
            actor_size, critic_size = actor_size + memory_size, critic_size + memory_size
        state_estimator = None
        if architecture.state_estimator and spec.privileged_size:
            sizes = actor_size, max(hidden[0], ESTIMATOR_HIDDEN), spec.privileged_size
            state_estimator = Mlp.init(estimator_key, sizes, "relu")
            actor_size += spec.privileged_size
        shared = architecture.shared_trunk
        trunk = Mlp.init(trunk_key, (actor_size, *hidden), activation, 2.0**0.5) if shared else None
        actor, critic = ((hidden[-1],) if shared else (inputs, *hidden) for inputs in (actor_size, critic_size))
        return cls(
            trunk=trunk,
            actor=Mlp.init(actor_key, (*actor, head_size(spec.action)), activation, 0.01),
            critic=Mlp.init(critic_key, (*critic, 1), activation, 1.0),
            log_std=jnp.full(std_size(spec.action), jnp.log(architecture.init_std)),
            normalizer=Normalizer.of(actor_inputs + spec.privileged_size),
            return_normalizer=Normalizer.of(),
            image_encoder=image_encoder,
            memory=memory,
            state_estimator=state_estimator,
            teacher_forcing=jnp.float32(0.0) if state_estimator and architecture.teacher_forcing else None,
            space=spec.action,
            actor_inputs=actor_inputs,
            privileged_inputs=spec.privileged_size,
        )

    @property
    def params(self) -> tuple[Any, ...]:
        return self.trunk, self.actor, self.critic, self.log_std, self.image_encoder, self.state_estimator, self.memory

    def with_params(self, params: tuple[Any, ...]) -> "ActorCritic":
        trunk, actor, critic, log_std, image_encoder, state_estimator, memory = params
        return replace(
            self,
            trunk=trunk,
            actor=actor,
            critic=critic,
            log_std=log_std,
            image_encoder=image_encoder,
            state_estimator=state_estimator,
            memory=memory,
        )

    def encode(self, image: PackedImage) -> ImageFeatures:
        """Features of an image; None for a policy without a camera."""
        return None if self.image_encoder is None else self.image_encoder(image)

    def start(self, *batch: int) -> Memory:
        return None if self.memory is None else jnp.zeros((*batch, self.memory.size))

    def remember(
        self, observation: Float[Array, "*b d"], memory: Memory, image_features: ImageFeatures = None
    ) -> Memory:
        """The memory once the observation has been seen."""
        if self.memory is None or memory is None:
            return None
        return self.memory(self._seen(observation, image_features), memory)

    def remember_sequence(
        self,
        observation: Float[Array, "n t d"],
        memory: Float[Array, "n m"],
        ended: Bool[Array, "n t"],
        image_features: Float[Array, "n t e"] | None = None,
    ) -> Float[Array, "n t m"]:
        """The memory after each step of sequences, which may hold the ends of episodes."""
        assert self.memory is not None
        return self.memory.over_sequence(self._seen(observation, image_features), memory, ended)

    def _seen(self, observation: Float[Array, "*b d"], image_features: ImageFeatures) -> Float[Array, "*b i"]:
        """The normalized observation of the actor, and its image features."""
        seen = self.normalizer.leading(self.actor_inputs)(observation[..., : self.actor_inputs])
        if image_features is None:
            return seen
        features = jnp.broadcast_to(image_features, (*seen.shape[:-1], image_features.shape[-1]))
        return jnp.concatenate([seen, features], axis=-1)

    def _inputs(
        self, observation: Float[Array, "*b d"], image_features: ImageFeatures, memory: Memory
    ) -> Float[Array, "*b i"]:
        """What the actor sees, and what it remembers."""
        seen = self._seen(observation, image_features)
        return seen if memory is None else jnp.concatenate([seen, memory], axis=-1)

    def features(
        self,
        observation: Float[Array, "*b d"],
        image_features: ImageFeatures = None,
        memory: Memory = None,
        differentiable: bool = False,
    ) -> Float[Array, "*b h"]:
        """The input of the actor: after the trunk, if there is one.

        Where it is `differentiable` by the observation, an estimate has the derivative of the truth it stands for.
        """
        inputs = self._inputs(observation, image_features, memory)
        if self.state_estimator is not None:
            # The estimator learns from the truth only: the actor's gradient must not bend its prediction.
            estimate = jax.lax.stop_gradient(self.state_estimator(inputs))
            if observation.shape[-1] > self.actor_inputs:
                truth = self.normalizer(observation)[..., self.actor_inputs :]
                if self.teacher_forcing is not None:
                    estimate = estimate + self.teacher_forcing * jax.lax.stop_gradient(truth - estimate)
                if differentiable:
                    estimate = estimate + truth - jax.lax.stop_gradient(truth)
            inputs = jnp.concatenate([inputs, estimate], axis=-1)
        return inputs if self.trunk is None else jnp.tanh(self.trunk(inputs))

    def estimation_loss(
        self, observation: Float[Array, "*b d"], image_features: ImageFeatures = None, memory: Memory = None
    ) -> Float[Array, "*b"]:
        """Mean squared error of the predicted privileged observation, in normalized units."""
        assert self.state_estimator is not None
        truth = self.normalizer(observation)[..., self.actor_inputs :]
        estimate = self.state_estimator(self._inputs(observation, image_features, memory))
        return jnp.mean((estimate - truth) ** 2, axis=-1)

    def distribution(
        self, observation: Float[Array, "*b d"], image_features: ImageFeatures = None, memory: Memory = None
    ) -> Distribution:
        """The distribution over actions."""
        return distribution(self.space, self.actor(self.features(observation, image_features, memory)), self.log_std)

    def mean_action(
        self, observation: Float[Array, "*b d"], image_features: ImageFeatures = None
    ) -> Float[Array, "*b a"]:
        """The mean of a continuous action, as a differentiable function of the whole observation in training."""
        assert isinstance(self.space, Box)
        return self.actor(self.features(observation, image_features, differentiable=True))

    def value(
        self, observation: Float[Array, "*b d"], image_features: ImageFeatures = None, memory: Memory = None
    ) -> Float[Array, "*b"]:
        """The value, in units of the return normalizer."""
        if self.privileged_inputs:
            return self._privileged_value(observation, memory)
        return self.critic(self.features(observation, image_features, memory))[..., 0]

    def _privileged_value(self, observation: Float[Array, "*b d"], memory: Memory) -> Float[Array, "*b"]:
        inputs = self.normalizer(observation)
        if memory is not None:
            # What the actor remembers tells what it will do; what is worth remembering, the actor decides.
            inputs = jnp.concatenate([inputs, jax.lax.stop_gradient(memory)], axis=-1)
        return self.critic(inputs)[..., 0]

    def distribution_and_value(
        self, observation: Float[Array, "*b d"], image_features: ImageFeatures = None, memory: Memory = None
    ) -> tuple[Distribution, Float[Array, "*b"]]:
        """Both, with shared features computed once."""
        features = self.features(observation, image_features, memory)
        actions = distribution(self.space, self.actor(features), self.log_std)
        if self.privileged_inputs:
            return actions, self._privileged_value(observation, memory)
        return actions, self.critic(features)[..., 0]

    def act(
        self, observation: Float[Array, "*b d"], memory: Memory = None, image_features: ImageFeatures = None
    ) -> tuple[Array, Memory]:
        memory = self.remember(observation, memory, image_features)
        return self.distribution(observation, image_features, memory).mode, memory
