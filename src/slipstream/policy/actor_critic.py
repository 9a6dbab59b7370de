"""A policy with a value: two networks behind one normaliser."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.struct import static, struct
from ..core.task import ActionSpace, Box, Picture, Spec
from .distributions import Distribution, distribution, head_size
from .nets import EYES, Eyes, Mlp, Normaliser

Sight = Float[Array, "*b e"] | None
AGE = 2
"""Numbers an agent with a camera sees besides: how old its picture is, and whether there is one at all."""


@struct
class ActorCritic:
    """Weights that say what to do and what it is worth. With `trunk`, both share its features.

    With `eyes` it also sees: `see` turns a picture into a sight, once for all the steps the picture stands.
    If the task tells a critic more than the agents see, that stands behind the first `known` numbers of an observation
    in training; the critic then reads all of them and needs no sight, and acting needs only the first. With `guesser`
    the actor guesses those numbers from what it knows and sees, and goes by its guess, too.
    """

    trunk: Mlp | None
    actor: Mlp
    critic: Mlp
    log_std: Float[Array, "s"]
    normaliser: Normaliser
    worth: Normaliser  # of returns: the critic speaks in units of their spread
    eyes: Eyes | None
    guesser: Mlp | None
    space: ActionSpace = static()
    known: int = static()  # numbers the actor reads
    insight: int = static()  # and those only the critic does

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
        known, eyes = spec.observation, None
        if spec.frame:
            eyes = EYES[eyes_kind].init(eyes_key, spec.frame)
            known += AGE
        size = known + (eyes.joined.bias.size if eyes else 0)
        worth = known + spec.insight if spec.insight else size
        guesser = None
        if guesses and spec.insight:
            guesser = Mlp.init(guesser_key, (size, hidden[0], spec.insight), activation)
            size += spec.insight
        trunk = Mlp.init(trunk_key, (size, *hidden), activation, 2.0**0.5) if shared else None
        actor, critic = ((hidden[-1],) if shared else (inputs, *hidden) for inputs in (size, worth))
        return cls(
            trunk=trunk,
            actor=Mlp.init(actor_key, (*actor, head_size(spec.action)), activation, 0.01),
            critic=Mlp.init(critic_key, (*critic, 1), activation, 1.0),
            log_std=jnp.full(spec.action.size if isinstance(spec.action, Box) else 0, jnp.log(spread)),
            normaliser=Normaliser.of(known + spec.insight),
            worth=Normaliser.of(),
            eyes=eyes,
            guesser=guesser,
            space=spec.action,
            known=known,
            insight=spec.insight,
        )

    def see(self, frame: Picture) -> Sight:
        """What a picture shows; nothing to a policy without eyes."""
        return None if self.eyes is None else self.eyes(frame)

    def _sensed(self, observation: Float[Array, "*b d"], sight: Sight) -> Float[Array, "*b i"]:
        """What an agent knows and sees."""
        known = self.normaliser.first(self.known)(observation[..., : self.known])
        if sight is None:
            return known
        return jnp.concatenate([known, jnp.broadcast_to(sight, (*known.shape[:-1], sight.shape[-1]))], axis=-1)

    def features(self, observation: Float[Array, "*b d"], sight: Sight = None) -> Float[Array, "*b h"]:
        """What the actor decides by."""
        sensed = self._sensed(observation, sight)
        if self.guesser is not None:
            # The guess is taught to be right; what would be convenient to the actor must not change it.
            sensed = jnp.concatenate([sensed, jax.lax.stop_gradient(self.guesser(sensed))], axis=-1)
        return sensed if self.trunk is None else jnp.tanh(self.trunk(sensed))

    def wrong(self, observation: Float[Array, "*b d"], sight: Sight = None) -> Float[Array, "*b"]:
        """How wrong the guess of what only the critic is told is: the mean square, in units of its spread."""
        assert self.guesser is not None
        truth = self.normaliser(observation)[..., self.known :]
        return jnp.mean((self.guesser(self._sensed(observation, sight)) - truth) ** 2, axis=-1)

    def choice(self, observation: Float[Array, "*b d"], sight: Sight = None) -> Distribution:
        return distribution(self.space, self.actor(self.features(observation, sight)), self.log_std)

    def value(self, observation: Float[Array, "*b d"], sight: Sight = None) -> Float[Array, "*b"]:
        told = self.normaliser(observation) if self.insight else self.features(observation, sight)
        return self.critic(told)[..., 0]

    def both(self, observation: Float[Array, "*b d"], sight: Sight = None) -> tuple[Distribution, Float[Array, "*b"]]:
        """The choice and the value, computing what they share once."""
        features = self.features(observation, sight)
        choice = distribution(self.space, self.actor(features), self.log_std)
        told = self.normaliser(observation) if self.insight else features
        return choice, self.critic(told)[..., 0]

    def start(self) -> None:
        """Memory at the start of an episode: this policy has none."""

    def act(self, observation: Float[Array, "*b d"], memory: None = None, sight: Sight = None) -> tuple[Any, None]:
        """The best action, without exploring."""
        return self.choice(observation, sight).mode, memory
