"""Advantages and returns of a rollout."""

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
    gae_lambda: float,
) -> Float[Array, "t *b"]:
    """Generalized advantage estimates.

        δ = r + γ (1 − terminated) V′ − V        A = δ + γ λ (1 − ended) A′

    `reward`, `next_value` and the flags belong to the state an action led to. A truncated episode keeps the value of
    its true last observation; nothing of the next episode enters after either kind of end.
    """
    difference = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    keep = discount * gae_lambda * (1.0 - (terminated | truncated).astype(jnp.float32))

    def back(after: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = now[0] + now[1] * after
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros_like(value[0]), (difference, keep), reverse=True)[1]


def lambda_returns(
    reward: Float[Array, "t *b"],
    next_value: Float[Array, "t *b"],
    terminated: Bool[Array, "t *b"],
    truncated: Bool[Array, "t *b"],
    discount: float,
    td_lambda: float,
) -> Float[Array, "t *b"]:
    """TD(λ) returns of Q-learning, where `next_value` is max Q of the state an action led to.

        G = r + γ ((1 − λ) max Q′ + λ G′)

    After a termination nothing follows; after a truncation, the value of the true last observation.
    """

    def back(after: Array, now: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        reward, next_value, terminated, truncated = now
        onward = jnp.where(truncated, next_value, (1.0 - td_lambda) * next_value + td_lambda * after)
        total = reward + discount * jnp.where(terminated, 0.0, onward)
        return total, total

    return jax.lax.scan(back, next_value[-1], (reward, next_value, terminated, truncated), reverse=True)[1]
