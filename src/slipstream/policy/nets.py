"""Layers as structs one can call, and the running normalizer in front of them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..core.struct import static, struct

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
}


@struct
class Linear:
    """x ↦ x W + b."""

    weight: Float[Array, "i o"]
    bias: Float[Array, "o"]

    @classmethod
    def init(cls, key: PRNGKeyArray, inputs: int, outputs: int, gain: float = 1.0) -> "Linear":
        """A layer with orthogonal weights of that gain and a bias of zero."""
        weight = jax.nn.initializers.orthogonal(gain)(key, (inputs, outputs), jnp.float32)
        return cls(weight, jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        return x @ self.weight + self.bias


@struct
class Mlp:
    """Linear layers with an activation between them, and none at the end."""

    layers: tuple[Linear, ...]
    activation: str = static()

    @classmethod
    def init(cls, key: PRNGKeyArray, sizes: tuple[int, ...], activation: str = "tanh", last_gain: float = 1.0) -> "Mlp":
        keys = jax.random.split(key, len(sizes) - 1)
        gains = [2.0**0.5] * (len(sizes) - 2) + [last_gain]
        layers = [Linear.init(k, i, o, gain) for k, (i, o), gain in zip(keys, pairwise(sizes), gains, strict=True)]
        return cls(tuple(layers), activation)

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)


@struct
class Normalizer:
    """Running mean and variance, by the parallel form of Welford's method."""

    mean: Float[Array, "*d"]
    variance: Float[Array, "*d"]
    count: Float[Array, ""]

    @classmethod
    def of(cls, *shape: int) -> "Normalizer":
        """A normalizer that has seen nothing: mean 0, variance 1."""
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.float32(0.0))

    def leading(self, size: int) -> "Normalizer":
        """The normalizer of the first `size` features only."""
        return self if size == self.mean.shape[0] else Normalizer(self.mean[:size], self.variance[:size], self.count)

    def __call__(self, x: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return jnp.clip((x - self.mean) * jax.lax.rsqrt(self.variance + 1e-6), -10.0, 10.0)

    def denormalize(self, x: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """The inverse of normalizing, except where that has clipped."""
        return x * jnp.sqrt(self.variance + 1e-6) + self.mean

    def update(self, x: Float[Array, "..."], valid: Bool[Array, "..."], axis: str | None = None) -> "Normalizer":
        """The normalizer that has also seen the valid samples of `x`, on every device of the mesh axis."""
        weight = valid.astype(jnp.float32).reshape(valid.shape + (1,) * self.mean.ndim)
        over = tuple(range(valid.ndim))
        # Sums about the old mean stay accurate in float32 where sums of squares would not.
        shifted = (x - self.mean) * weight
        sums = (jnp.sum(weight), jnp.sum(shifted, over), jnp.sum(shifted * shifted, over))
        count, first, second = jax.lax.psum(sums, axis) if axis else sums
        total = self.count + count
        shift = first / jnp.maximum(total, 1.0)
        variance = (self.variance * self.count + second) / jnp.maximum(total, 1.0) - shift * shift
        return replace(self, mean=self.mean + shift, variance=jnp.maximum(variance, 1e-8), count=total)
