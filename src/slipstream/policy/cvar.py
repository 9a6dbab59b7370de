"""Conditional value at risk (CVaR): the mean of the worst part of a return distribution."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.struct import static, struct
from ..core.task import ObstacleDistance, Spec

LEAST = 0.05
"""Smallest factor on `alpha` near an obstacle."""


@struct
class Risk:
    """The CVaR level: fixed, or smaller near obstacles."""

    alpha: float = static()  # the worst fraction of the distribution that counts; 1 is its mean
    distance: float = static()  # meters within which alpha shrinks in proportion to the obstacle's distance; 0 is never

    def level(self, obstacle_distance: Float[Array, "*b"] | None, shape: tuple[int, ...]) -> Float[Array, "*b"]:
        """The CVaR level of each observation."""
        if not self.distance or obstacle_distance is None:
            return jnp.full(shape, self.alpha)
        return self.alpha * jnp.clip(obstacle_distance / self.distance, LEAST, 1.0)

    def weights(
        self, obstacle_distance: Float[Array, "*b"] | None, shape: tuple[int, ...], count: int
    ) -> Float[Array, "*b k"]:
        """Weights of `count` equal parts of the distribution, lowest returns first, whose weighted mean is the CVaR."""
        level = self.level(obstacle_distance, shape)[..., None]
        return jnp.clip(level * count - jnp.arange(count), 0.0, 1.0) / (level * count)


def require_distance(spec: Spec) -> ObstacleDistance:
    """How to read the distance to the nearest obstacle off an observation; an error if the task has no such thing."""
    if spec.obstacle_distance is None:
        raise ValueError("this task does not observe the distance to obstacles; set learner.cvar-distance to 0")
    return spec.obstacle_distance
