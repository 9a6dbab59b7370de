"""Quantile levels τ, and how implicit quantile networks (IQN) feed them to a layer."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.struct import struct
from .nets import Linear

COSINES = 64
"""Cosine features of a quantile level (IQN's n)."""
RETURN_QUANTILES = 32
"""Quantiles of a return distribution that an evaluation records."""


@struct
class QuantileEmbedding:
    """IQN's embedding of quantile levels:  φ(τ) = relu(W cos(π i τ) + b),  i = 1 … 64."""

    cosines: Linear

    @classmethod
    def init(cls, key: PRNGKeyArray, size: int) -> "QuantileEmbedding":
        return cls(Linear.init(key, COSINES, size, 2.0**0.5))

    def __call__(self, taus: Float[Array, "k"]) -> Float[Array, "k f"]:
        waves = jnp.cos(jnp.pi * jnp.arange(1.0, COSINES + 1.0) * taus[:, None])
        return jax.nn.relu(self.cosines(waves.astype(self.cosines.weight.dtype)))


def quantile_linear(
    layer: Linear, features: Float[Array, "*b f"], embedding: Float[Array, "k f"]
) -> Float[Array, "*b k o"]:
    """(features ⊙ φ(τₖ)) W + b for every τₖ, as one matrix product: all samples share the same levels."""
    weight = embedding.T[:, :, None] * layer.weight[:, None, :]
    out = features @ weight.reshape(features.shape[-1], -1)
    return out.reshape(*out.shape[:-1], *weight.shape[1:]) + layer.bias


def stratified_taus(key: PRNGKeyArray, count: int) -> Float[Array, "k"]:
    """Random quantile levels, one in each of `count` equal parts of [0, 1)."""
    return (jnp.arange(count) + jax.random.uniform(key, (count,))) / count


def tau_midpoints(count: int) -> Float[Array, "k"]:
    """The midpoints of `count` equal parts of [0, 1)."""
    return (jnp.arange(count) + 0.5) / count
