"""A policy with a value: two networks behind one normaliser."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..env import ActionSpace, Box, Spec
from ..struct import static, struct
from .distributions import Distribution, distribution, head_size
from .nets import Mlp, Normaliser


@struct
class ActorCritic:
    """Weights that say what to do and what it is worth. With `trunk`, both share its features."""

    trunk: Mlp | None
    actor: Mlp
    critic: Mlp
    log_std: Float[Array, "s"]
    normaliser: Normaliser
    worth: Normaliser  # of returns: the critic speaks in units of their spread
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
    ) -> "ActorCritic":
        trunk_key, actor_key, critic_key = jax.random.split(key, 3)
        trunk = Mlp.init(trunk_key, (spec.observation, *hidden), activation, 2.0**0.5) if shared else None
        sizes = (hidden[-1],) if shared else (spec.observation, *hidden)
        return cls(
            trunk=trunk,
            actor=Mlp.init(actor_key, (*sizes, head_size(spec.action)), activation, 0.01),
            critic=Mlp.init(critic_key, (*sizes, 1), activation, 1.0),
            log_std=jnp.full(spec.action.size if isinstance(spec.action, Box) else 0, jnp.log(spread)),
            normaliser=Normaliser.of(spec.observation),
            worth=Normaliser.of(),
            space=spec.action,
        )

    def features(self, observation: Float[Array, "*b d"]) -> Float[Array, "*b h"]:
        seen = self.normaliser(observation)
        return seen if self.trunk is None else jnp.tanh(self.trunk(seen))

    def choice(self, observation: Float[Array, "*b d"]) -> Distribution:
        return distribution(self.space, self.actor(self.features(observation)), self.log_std)

    def value(self, observation: Float[Array, "*b d"]) -> Float[Array, "*b"]:
        return self.critic(self.features(observation))[..., 0]

    def both(self, observation: Float[Array, "*b d"]) -> tuple[Distribution, Float[Array, "*b"]]:
        """The choice and the value, computing what they share once."""
        features = self.features(observation)
        choice = distribution(self.space, self.actor(features), self.log_std)
        return choice, self.critic(features)[..., 0]

    def start(self) -> None:
        """Memory at the start of an episode: this policy has none."""

    def act(self, observation: Float[Array, "*b d"], memory: None = None) -> tuple[Any, None]:
        """The best action, without exploring."""
        return self.choice(observation).mode, memory
