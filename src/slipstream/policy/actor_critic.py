"""A policy with a value: two networks behind one normaliser."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..env import ActionSpace, Box, Picture, Spec
from ..struct import static, struct
from .distributions import Distribution, distribution, head_size
from .nets import EYES, Eyes, Mlp, Normaliser

Sight = Float[Array, "*b e"] | None
AGE = 2
"""Numbers an agent with a camera sees besides: how old its picture is, and whether there is one at all."""


@struct
class ActorCritic:
    """Weights that say what to do and what it is worth. With `trunk`, both share its features.

    With `eyes` it also sees: `see` turns a picture into a sight, once for all the steps the picture stands.
    """

    trunk: Mlp | None
    actor: Mlp
    critic: Mlp
    log_std: Float[Array, "s"]
    normaliser: Normaliser
    worth: Normaliser  # of returns: the critic speaks in units of their spread
    eyes: Eyes | None
    space: ActionSpace = static()

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
    ) -> "ActorCritic":
        trunk_key, actor_key, critic_key = jax.random.split(key, 3)
        size, eyes = spec.observation, None
        if spec.frame:
            eyes = EYES[eyes_kind].init(jax.random.fold_in(key, 1), spec.frame)
            size += AGE + eyes.joined.bias.size
        trunk = Mlp.init(trunk_key, (size, *hidden), activation, 2.0**0.5) if shared else None
        sizes = (hidden[-1],) if shared else (size, *hidden)
        return cls(
            trunk=trunk,
            actor=Mlp.init(actor_key, (*sizes, head_size(spec.action)), activation, 0.01),
            critic=Mlp.init(critic_key, (*sizes, 1), activation, 1.0),
            log_std=jnp.full(spec.action.size if isinstance(spec.action, Box) else 0, jnp.log(spread)),
            normaliser=Normaliser.of(spec.observation + (AGE if spec.frame else 0)),
            worth=Normaliser.of(),
            eyes=eyes,
            space=spec.action,
        )

    def see(self, frame: Picture) -> Sight:
        """What a picture shows; nothing to a policy without eyes."""
        return None if self.eyes is None else self.eyes(frame)

    def features(self, observation: Float[Array, "*b d"], sight: Sight = None) -> Float[Array, "*b h"]:
        known = self.normaliser(observation)
        if sight is not None:
            sight = jnp.broadcast_to(sight, (*known.shape[:-1], sight.shape[-1]))
            known = jnp.concatenate([known, sight], axis=-1)
        return known if self.trunk is None else jnp.tanh(self.trunk(known))

    def choice(self, observation: Float[Array, "*b d"], sight: Sight = None) -> Distribution:
        return distribution(self.space, self.actor(self.features(observation, sight)), self.log_std)

    def value(self, observation: Float[Array, "*b d"], sight: Sight = None) -> Float[Array, "*b"]:
        return self.critic(self.features(observation, sight))[..., 0]

    def both(self, observation: Float[Array, "*b d"], sight: Sight = None) -> tuple[Distribution, Float[Array, "*b"]]:
        """The choice and the value, computing what they share once."""
        features = self.features(observation, sight)
        choice = distribution(self.space, self.actor(features), self.log_std)
        return choice, self.critic(features)[..., 0]

    def start(self) -> None:
        """Memory at the start of an episode: this policy has none."""

    def act(self, observation: Float[Array, "*b d"], memory: None = None, sight: Sight = None) -> tuple[Any, None]:
        """The best action, without exploring."""
        return self.choice(observation, sight).mode, memory
