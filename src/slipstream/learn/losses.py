"""Losses of value-based learners."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def weighted_mean(x: Float[Array, "b"], weight: Float[Array, "b"]) -> Float[Array, ""]:
    """The weighted sum over the number of samples that have a weight."""
    return jnp.sum(x * weight) / jnp.maximum(jnp.sum(weight > 0.0), 1.0)


def huber(x: Float[Array, "..."], delta: float = 1.0) -> Float[Array, "..."]:
    """The Huber loss divided by δ:  x² / 2δ  where |x| < δ,  |x| − δ/2  beyond."""
    size = jnp.abs(x)
    return jnp.where(size < delta, 0.5 / delta * x * x, size - 0.5 * delta)


def quantile_loss(
    values: Float[Array, "b k"], taus: Float[Array, "k"], targets: Float[Array, "b l"], delta: float
) -> Float[Array, "b"]:
    """Quantile regression with the Huber loss: summed over quantile levels, averaged over target samples."""
    error = targets[:, None, :] - values[:, :, None]
    side = jnp.abs(taus[:, None] - (error < 0.0))
    return jnp.sum(jnp.mean(side * huber(error, delta), -1), -1)
