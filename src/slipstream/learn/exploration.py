"""Exploration: schedules, and random actions from the agents' own generators. All functions take batches of agents."""

import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..core.rng import Rng
from ..core.spaces import Box, Discrete, MultiDiscrete
from ..core.struct import static, struct
from ..core.task import Spec

Noise = Float[Array, "*b a"] | None
"""Standard Gaussian noise of a step for every component of an action; None is white noise, drawn where it is used."""


@struct
class OrnsteinUhlenbeck:
    """Temporally correlated noise of every agent: an Ornstein-Uhlenbeck process sampled once a step.

        ε′ = φ ε + √(1 − φ²) w,   w ~ N(0, 1),   φ = exp(−dt / correlation time)

    Each value alone is standard Gaussian from the first step on, so a policy's standard deviation keeps its meaning.
    """

    value: Float[Array, "*b a"]
    correlation: float = static()  # φ, of one step with the next

    @classmethod
    def init(cls, spec: Spec, correlation_time: float, rngs: Rng) -> "tuple[OrnsteinUhlenbeck | None, Rng]":
        """The process of all agents at its start, and the generators after it; None if the noise is white."""
        if not correlation_time:
            return None, rngs
        value, rngs = draw_normal(rngs, spec.action.size)
        return cls(value, math.exp(-spec.control_dt / correlation_time)), rngs

    def step(self, rngs: Rng, ended: Bool[Array, "*b"]) -> "tuple[OrnsteinUhlenbeck, Rng]":
        """The noise of the next step; that of agents whose episode has ended is drawn anew, whatever it was."""
        new, rngs = draw_normal(rngs, self.value.shape[-1])
        next_value = self.correlation * self.value + math.sqrt(1.0 - self.correlation**2) * new
        return replace(self, value=jnp.where(ended[..., None], new, next_value)), rngs


def draw_normal(rngs: Rng, size: int) -> tuple[Float[Array, "*b a"], Rng]:
    """Standard Gaussian numbers from every agent's own generator."""

    def one(rng: Rng) -> tuple[Array, Rng]:
        parts = []
        for _ in range(size):
            part, rng = rng.normal()
            parts.append(part)
        return jnp.stack(parts), rng

    for _ in range(jnp.ndim(rngs.drawn)):
        one = jax.vmap(one)
    return one(rngs)


def check_correlation_time(correlation_time: float, spec: Spec) -> None:
    """Refuse correlated noise for actions that have none."""
    if correlation_time and not isinstance(spec.action, Box):
        raise ValueError(
            "discrete actions have no Gaussian noise to correlate; set learner.noise-correlation-time to 0 "
            "(dqn and iqn repeat random actions instead: learner.exploration-repeat)"
        )


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
    noise: Noise = None,
) -> tuple[Float[Array, "*b a"], Rng]:
    """Actions with Gaussian noise, squashed into [−1, 1], or with probability `epsilon` uniformly random ones.

    The noise is white unless it is given.
    """

    def one(mean: Array, std: Array, rng: Rng, noise: Noise) -> tuple[Array, Rng]:
        dice, rng = rng.uniform()
        parts = []
        for k in range(mean.shape[-1]):
            part, rng = rng.normal() if noise is None else (noise[k], rng)
            other, rng = rng.uniform(-1.0, 1.0)
            parts.append(jnp.where(dice < epsilon, other, squash(mean[k] + std[k] * part)))
        return jnp.stack(parts), rng

    for _ in range(mean.ndim - 1):
        one = jax.vmap(one)
    return one(mean, jnp.broadcast_to(std, mean.shape), rngs, noise)
