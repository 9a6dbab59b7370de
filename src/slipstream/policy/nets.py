"""Layers as structs one can call, and the normaliser that stands before them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..core.struct import static, struct
from ..core.task import PackedImage

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
        """Orthogonal weights of that gain, and no bias."""
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
class PatchEncoder:
    """A picture as a few numbers: each patch through one matrix, then all of them through another.

    Patches do not overlap, so both steps are matrix products, which is what a CPU does best.
    """

    patch: Linear
    joined: Linear
    edge: int = static()  # of a patch, in pixels

    @classmethod
    def init(cls, key: PRNGKeyArray, frame: tuple[int, int, int], size: int = 64, depth: int = 16) -> "PatchEncoder":
        height, width, channels = frame
        edge = patch_edge(frame)
        first, second = jax.random.split(key)
        count = (height // edge) * (width // edge)
        return cls(
            Linear.init(first, edge * edge * channels, depth, 2.0**0.5),
            Linear.init(second, count * depth, size, 1.0),
            edge,
        )

    def __call__(self, frame: PackedImage) -> Float[Array, "*b e"]:
        *batch, height, width = frame.shape
        e = self.edge
        tiles = frame.reshape(-1, height // e, e, width // e, e).swapaxes(2, 3).reshape(-1, e * e)
        patches = self.patch.bias
        for channel, weight in enumerate(self.patch.weight.reshape(-1, e * e, self.patch.bias.size)):
            byte = (tiles >> (8 * channel)) & 0xFF
            patches = patches + (byte.astype(jnp.int32).astype(jnp.float32) * (1.0 / 255.0) - 0.5) @ weight
        return jnp.tanh(self.joined(jax.nn.relu(patches).reshape(*batch, -1)))


@struct
class CnnEncoder:
    """A picture as a few numbers, by three convolutions that each halve it or more: what an accelerator does best."""

    filters: tuple[Float[Array, "..."], ...]  # lines, columns, channels in and out
    biases: tuple[Float[Array, "..."], ...]
    joined: Linear

    @classmethod
    def init(cls, key: PRNGKeyArray, frame: tuple[int, int, int], size: int = 64) -> "CnnEncoder":
        height, width, channels = frame
        if min(height, width) < 16:
            raise ValueError(f"convolutions need a picture of at least 16 x 16 pixels, not {width} x {height}")
        keys = jax.random.split(key, len(LAYERS) + 1)
        filters, depth = [], channels
        for part, (edge, _, out) in zip(keys, LAYERS, strict=False):
            flat = jax.nn.initializers.orthogonal(2.0**0.5)(part, (edge * edge * depth, out))
            filters.append(flat.reshape(edge, edge, depth, out))
            depth = out
        for _, stride, _ in LAYERS:
            height, width = -(-height // stride), -(-width // stride)
        joined = Linear.init(keys[-1], height * width * depth, size, 1.0)
        return cls(tuple(filters), tuple(jnp.zeros(out) for *_, out in LAYERS), joined)

    def __call__(self, frame: PackedImage) -> Float[Array, "*b e"]:
        *batch, height, width = frame.shape
        channels = self.filters[0].shape[2]
        bytes_ = [(frame.reshape(-1, height, width) >> (8 * c)) & 0xFF for c in range(channels)]
        x = jnp.stack(bytes_, axis=-1).astype(jnp.int32).astype(jnp.float32) * (1.0 / 255.0) - 0.5
        for kernel, bias, (_, stride, _) in zip(self.filters, self.biases, LAYERS, strict=True):
            x = jax.lax.conv_general_dilated(
                x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + bias)
        return jnp.tanh(self.joined(x.reshape(*batch, -1)))


LAYERS = ((8, 4, 16), (4, 2, 32), (3, 1, 32))
"""Edge, stride and filters of each convolution."""
ImageEncoder = PatchEncoder | CnnEncoder
IMAGE_ENCODERS: dict[str, type[PatchEncoder] | type[CnnEncoder]] = {"patches": PatchEncoder, "cnn": CnnEncoder}


def patch_edge(frame: tuple[int, int, int]) -> int:
    """The edge of the patches a picture divides into."""
    height, width, _ = frame
    edge = next((e for e in (10, 8, 16, 12, 5, 4) if height % e == 0 and width % e == 0), 0)
    if not edge:
        raise ValueError(f"a picture of {width} x {height} pixels does not divide into square patches; 80 x 80 does")
    return edge


@struct
class Normalizer:
    """Running mean and variance of what was seen, by the parallel form of Welford's method."""

    mean: Float[Array, "*d"]
    variance: Float[Array, "*d"]
    count: Float[Array, ""]

    @classmethod
    def of(cls, *shape: int) -> "Normalizer":
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.float32(0.0))

    def leading(self, size: int) -> "Normalizer":
        """Of the first so many numbers only."""
        return self if size == self.mean.shape[0] else Normalizer(self.mean[:size], self.variance[:size], self.count)

    def __call__(self, x: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return jnp.clip((x - self.mean) * jax.lax.rsqrt(self.variance + 1e-6), -10.0, 10.0)

    def denormalize(self, x: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """What was seen before it was normalised, but for what was cut off."""
        return x * jnp.sqrt(self.variance + 1e-6) + self.mean

    def update(self, x: Float[Array, "..."], valid: Bool[Array, "..."], axis: str | None = None) -> "Normalizer":
        """What is known after also seeing the valid rows of `x`, on every device of the mesh axis."""
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
