"""What actions turned out to be worth."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def gae(
    reward: Float[Array, "t *b"],
    value: Float[Array, "t *b"],
    next_value: Float[Array, "t *b"],
    terminated: Bool[Array, "t *b"],
    truncated: Bool[Array, "t *b"],
    discount: float,
    trace: float,
) -> Float[Array, "t *b"]:
    """Generalised advantage estimates.

        δ = r + γ (1 − terminated) V′ − V        A = δ + γ λ (1 − ended) A′

    `reward`, `next_value` and the flags belong to the state an action led to. A truncated episode keeps the value of
    its true last observation; neither kind of end lets anything leak in from the episode that follows.
    """
    difference = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    keep = discount * trace * (1.0 - (terminated | truncated).astype(jnp.float32))

    def back(after: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = now[0] + now[1] * after
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros_like(value[0]), (difference, keep), reverse=True)[1]


def lambda_returns(
    reward: Float[Array, "t *b"],
    best: Float[Array, "t *b"],
    terminated: Bool[Array, "t *b"],
    truncated: Bool[Array, "t *b"],
    discount: float,
    trace: float,
) -> Float[Array, "t *b"]:
    """Returns that believe what came by `trace`, and the best value of the next state for the rest.

        G = r + γ ((1 − λ) max Q′ + λ G′)

    After an end that terminates nothing follows; after one that truncates, the value of the true last observation.
    """

    def back(after: Array, now: Any) -> tuple[Array, Array]:
        reward, best, terminated, truncated = now
        onward = jnp.where(truncated, best, (1.0 - trace) * best + trace * after)
        total = reward + discount * jnp.where(terminated, 0.0, onward)
        return total, total

    return jax.lax.scan(back, best[-1], (reward, best, terminated, truncated), reverse=True)[1]
