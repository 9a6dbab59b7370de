"""Exploration: schedules, and random actions from the agents' own generators. All functions take batches of agents."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.rng import Rng
from ..core.spaces import Discrete, MultiDiscrete


def linear_schedule(first: float, last: float, progress: Float[Array, ""]) -> Float[Array, ""]:
    """From the first value at progress 0 linearly to the last at 1, which stays."""
    return first + (last - first) * jnp.minimum(progress, 1.0)


def explore_epsilon_greedy(
    best: Array, rngs: Rng, epsilon: Float[Array, ""], space: Discrete | MultiDiscrete, repeat: int = 1
) -> tuple[Array, Rng]:
    """The best actions, or with probability `epsilon` a uniformly random one, which is repeated for `repeat` steps."""

    def one(best: Array, rng: Rng) -> tuple[Array, Rng]:
        # The same stream for `repeat` steps gives the same draws, so no state has to be kept.
        held = replace(rng, drawn=rng.drawn // jnp.uint32(repeat)).fork(0)
        other, held = space.sample(held)
        dice, _ = held.uniform()
        return jnp.where(dice < epsilon, other.astype(best.dtype), best), rng.bits()[1]

    for _ in range(jnp.ndim(rngs.drawn)):
        one = jax.vmap(one)
    return one(best, rngs)


def explore_gaussian(
    mean: Float[Array, "*b a"],
    std: Float[Array, "*b a"] | float,
    rngs: Rng,
    epsilon: Float[Array, ""],
    squash: Callable[[Array], Array],
) -> tuple[Float[Array, "*b a"], Rng]:
    """Actions with Gaussian noise, squashed into [−1, 1], or with probability `epsilon` uniformly random ones."""

    def one(mean: Array, std: Array, rng: Rng) -> tuple[Array, Rng]:
        dice, rng = rng.uniform()
        parts = []
        for k in range(mean.shape[-1]):
            noise, rng = rng.normal()
            other, rng = rng.uniform(-1.0, 1.0)
            parts.append(jnp.where(dice < epsilon, other, squash(mean[k] + std[k] * noise)))
        return jnp.stack(parts), rng

    for _ in range(mean.ndim - 1):
        one = jax.vmap(one)
    return one(mean, jnp.broadcast_to(std, mean.shape), rngs)
