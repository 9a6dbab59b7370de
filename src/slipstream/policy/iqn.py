"""The policy of implicit quantile networks (IQN): the return of every action at any quantile level."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.struct import static, struct
from ..core.task import ObstacleDistance
from .cvar import Risk
from .discrete import DiscreteActions, QHead
from .encoder import Torso
from .memory import Memory
from .nets import Normalizer
from .policy import ImageFeatures
from .quantile import RETURN_QUANTILES, QuantileEmbedding, quantile_linear, tau_midpoints


@struct
class IqnPolicy:
    """An implicit quantile network; the action of the highest CVaR is taken."""

    normalizer: Normalizer
    torso: Torso
    embedding: QuantileEmbedding
    head: QHead
    actions: DiscreteActions
    risk: Risk
    obstacle_distance: ObstacleDistance | None = static()  # for a risk that depends on it
    eval_quantiles: int = static()  # quantile levels used to act

    @property
    def params(self) -> tuple[Torso, QuantileEmbedding, QHead]:
        return self.torso, self.embedding, self.head

    def with_params(self, params: tuple[Torso, QuantileEmbedding, QHead]) -> "IqnPolicy":
        return replace(self, torso=params[0], embedding=params[1], head=params[2])

    def quantile_values(self, observation: Float[Array, "*b d"], taus: Float[Array, "k"]) -> Float[Array, "*b k h"]:
        """Of normalized observations, the return of every action at those quantile levels."""
        features, embedding = self.torso(observation), self.embedding(taus)
        head = self.head
        value = None if head.value is None else quantile_linear(head.value.mean, features, embedding)
        return head.combine(quantile_linear(head.advantage.mean, features, embedding), value)[..., 0]

    def values(self, observation: Float[Array, "*b d"]) -> Float[Array, "*b h"]:
        """Of observations that are not normalized, the CVaR of every action."""
        distance = self.obstacle_distance(observation) if self.obstacle_distance else None
        weights = self.risk.weights(distance, observation.shape[:-1], self.eval_quantiles)
        quantiles = self.quantile_values(self.normalizer(observation), tau_midpoints(self.eval_quantiles))
        return jnp.sum(quantiles * weights[..., None], -2)

    def start(self, *batch: int) -> None:
        """No memory."""

    def act(
        self, observation: Float[Array, "*b d"], memory: Memory = None, image_features: ImageFeatures = None
    ) -> tuple[Array, Memory]:
        return self.actions.best(self.values(observation)), memory

    def return_quantiles(self, observation: Float[Array, "*b d"], action: Array) -> Float[Array, "*b k"]:
        """Quantiles of an action's return, lowest first, by the first head."""
        quantiles = self.quantile_values(self.normalizer(observation), tau_midpoints(RETURN_QUANTILES))
        return self.actions.first_head(quantiles, action)
