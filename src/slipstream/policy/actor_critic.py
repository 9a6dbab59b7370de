"""A policy with a value: two networks behind one normaliser."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.spaces import ActionSpace, Box
from ..core.struct import static, struct
from ..core.task import PackedImage, Spec
from .distributions import Distribution, distribution, head_size
from .nets import IMAGE_ENCODERS, ImageEncoder, Mlp, Normalizer

Sight = Float[Array, "*b e"] | None
AGE = 2
"""Numbers an agent with a camera sees besides: how old its picture is, and whether there is one at all."""


@struct
class ActorCritic:
    """Weights that say what to do and what it is worth. With `trunk`, both share its features.

    With `image_encoder` it also sees: `encode` turns a picture into a sight, once for all the steps the picture stands.
    If the task tells a critic more than the agents see, that stands behind the first `actor_inputs` numbers of an observation
    in training; the critic then reads all of them and needs no sight, and acting needs only the first. With `state_estimator`
    the actor guesses those numbers from what it knows and sees, and goes by its guess, too.
    """

    trunk: Mlp | None
    actor: Mlp
    critic: Mlp
    log_std: Float[Array, "s"]
    normalizer: Normalizer
    return_normalizer: Normalizer  # of returns: the critic speaks in units of their spread
    image_encoder: ImageEncoder | None
    state_estimator: Mlp | None
    space: ActionSpace = static()
    actor_inputs: int = static()  # numbers the actor reads
    privileged_inputs: int = static()  # and those only the critic does

    @classmethod
    def init(
        cls,
        key: PRNGKeyArray,
        spec: Spec,
        hidden: tuple[int, ...],
        activation: str = "tanh",
        shared: bool = False,
        spread: float = 1.0,
        eyes_kind: str = "patches",
        guesses: bool = False,
    ) -> "ActorCritic":
        trunk_key, actor_key, critic_key, eyes_key, guesser_key = jax.random.split(key, 5)
        actor_inputs, image_encoder = spec.observation, None
        if spec.image_shape:
            image_encoder = IMAGE_ENCODERS[eyes_kind].init(eyes_key, spec.image_shape)
            actor_inputs += AGE
        size = actor_inputs + (image_encoder.joined.bias.size if image_encoder else 0)
        worth = actor_inputs + spec.privileged_size if spec.privileged_size else size
        state_estimator = None
        if guesses and spec.privileged_size:
            state_estimator = Mlp.init(guesser_key, (size, hidden[0], spec.privileged_size), activation)
            size += spec.privileged_size
        trunk = Mlp.init(trunk_key, (size, *hidden), activation, 2.0**0.5) if shared else None
        actor, critic = ((hidden[-1],) if shared else (inputs, *hidden) for inputs in (size, worth))
        return cls(
            trunk=trunk,
            actor=Mlp.init(actor_key, (*actor, head_size(spec.action)), activation, 0.01),
            critic=Mlp.init(critic_key, (*critic, 1), activation, 1.0),
            log_std=jnp.full(spec.action.size if isinstance(spec.action, Box) else 0, jnp.log(spread)),
            normalizer=Normalizer.of(actor_inputs + spec.privileged_size),
            return_normalizer=Normalizer.of(),
            image_encoder=image_encoder,
            state_estimator=state_estimator,
            space=spec.action,
            actor_inputs=actor_inputs,
            privileged_inputs=spec.privileged_size,
        )

    def encode(self, frame: PackedImage) -> Sight:
        """What a picture shows; nothing to a policy without eyes."""
        return None if self.image_encoder is None else self.image_encoder(frame)

    def _sensed(self, observation: Float[Array, "*b d"], image_features: Sight) -> Float[Array, "*b i"]:
        """What an agent knows and sees."""
        actor_inputs = self.normalizer.leading(self.actor_inputs)(observation[..., : self.actor_inputs])
        if image_features is None:
            return actor_inputs
        return jnp.concatenate(
            [actor_inputs, jnp.broadcast_to(image_features, (*actor_inputs.shape[:-1], image_features.shape[-1]))],
            axis=-1,
        )

    def features(self, observation: Float[Array, "*b d"], image_features: Sight = None) -> Float[Array, "*b h"]:
        """What the actor decides by."""
        sensed = self._sensed(observation, image_features)
        if self.state_estimator is not None:
            # The guess is taught to be right; what would be convenient to the actor must not change it.
            sensed = jnp.concatenate([sensed, jax.lax.stop_gradient(self.state_estimator(sensed))], axis=-1)
        return sensed if self.trunk is None else jnp.tanh(self.trunk(sensed))

    def estimation_loss(self, observation: Float[Array, "*b d"], image_features: Sight = None) -> Float[Array, "*b"]:
        """How wrong the guess of what only the critic is told is: the mean square, in units of its spread."""
        assert self.state_estimator is not None
        truth = self.normalizer(observation)[..., self.actor_inputs :]
        return jnp.mean((self.state_estimator(self._sensed(observation, image_features)) - truth) ** 2, axis=-1)

    def distribution(self, observation: Float[Array, "*b d"], image_features: Sight = None) -> Distribution:
        return distribution(self.space, self.actor(self.features(observation, image_features)), self.log_std)

    def value(self, observation: Float[Array, "*b d"], image_features: Sight = None) -> Float[Array, "*b"]:
        told = self.normalizer(observation) if self.privileged_inputs else self.features(observation, image_features)
        return self.critic(told)[..., 0]

    def distribution_and_value(
        self, observation: Float[Array, "*b d"], image_features: Sight = None
    ) -> tuple[Distribution, Float[Array, "*b"]]:
        """The choice and the value, computing what they share once."""
        features = self.features(observation, image_features)
        choice = distribution(self.space, self.actor(features), self.log_std)
        told = self.normalizer(observation) if self.privileged_inputs else features
        return choice, self.critic(told)[..., 0]

    def start(self) -> None:
        """Memory at the start of an episode: this policy has none."""

    def act(
        self, observation: Float[Array, "*b d"], memory: None = None, image_features: Sight = None
    ) -> tuple[Any, None]:
        """The best action, without exploring."""
        return self.distribution(observation, image_features).mode, memory
