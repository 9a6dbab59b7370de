"""Image encoders: from a packed image to a feature vector."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.struct import static, struct
from ..core.task import PackedImage
from .nets import Linear

IMAGE_AGE_INPUTS = 2
"""Inputs of an actor with a camera besides the observation: the age of its image, and whether that is of an earlier
episode."""
PATCH_EDGES = (10, 8, 16, 12, 5, 4)
"""Patch sizes in pixels, in the order in which they are tried."""
CONVOLUTIONS = ((8, 4, 16), (4, 2, 32), (3, 1, 32))
"""Kernel size, stride and filters of each convolution."""


@struct
class PatchEncoder:
    """Three layers: one matrix for every patch of the image, then two for all patches together.

    Patches do not overlap, so all layers are matrix products, which suit a CPU.
    """

    patch: Linear
    hidden: Linear
    output: Linear
    edge: int = static()  # of a patch, in pixels

    @classmethod
    def init(cls, key: PRNGKeyArray, shape: tuple[int, int, int], size: int = 128, depth: int = 16) -> "PatchEncoder":
        height, width, channels = shape
        edge = patch_edge(shape)
        patch_key, hidden_key, output_key = jax.random.split(key, 3)
        count = (height // edge) * (width // edge)
        return cls(
            Linear.init(patch_key, edge * edge * channels, depth, 2.0**0.5),
            Linear.init(hidden_key, count * depth, size, 2.0**0.5),
            Linear.init(output_key, size, size, 2.0**0.5),
            edge,
        )

    @property
    def size(self) -> int:
        """Number of features."""
        return self.output.bias.size

    def __call__(self, image: PackedImage) -> Float[Array, "*b e"]:
        *batch, height, width = image.shape
        e = self.edge
        tiles = image.reshape(-1, height // e, e, width // e, e).swapaxes(2, 3).reshape(-1, e * e)
        patches = self.patch.bias
        for channel, weight in enumerate(self.patch.weight.reshape(-1, e * e, self.patch.bias.size)):
            byte = (tiles >> (8 * channel)) & 0xFF
            patches = patches + (byte.astype(jnp.int32).astype(jnp.float32) * (1.0 / 255.0) - 0.5) @ weight
        hidden = jax.nn.relu(self.hidden(jax.nn.relu(patches).reshape(*batch, -1)))
        return jax.nn.relu(self.output(hidden))


@struct
class CnnEncoder:
    """Three convolutions and a linear layer, which suit an accelerator."""

    filters: tuple[Float[Array, "..."], ...]  # height, width, channels in and out
    biases: tuple[Float[Array, "..."], ...]
    output: Linear

    @classmethod
    def init(cls, key: PRNGKeyArray, shape: tuple[int, int, int], size: int = 64) -> "CnnEncoder":
        height, width, channels = shape
        if min(height, width) < 16:
            raise ValueError(f"image_encoder=cnn needs an image of at least 16 x 16 pixels, not {width} x {height}")
        keys = jax.random.split(key, len(CONVOLUTIONS) + 1)
        filters, depth = [], channels
        for part, (edge, _, out) in zip(keys, CONVOLUTIONS, strict=False):
            flat = jax.nn.initializers.orthogonal(2.0**0.5)(part, (edge * edge * depth, out))
            filters.append(flat.reshape(edge, edge, depth, out))
            depth = out
        for _, stride, _ in CONVOLUTIONS:
            height, width = -(-height // stride), -(-width // stride)
        output = Linear.init(keys[-1], height * width * depth, size, 1.0)
        return cls(tuple(filters), tuple(jnp.zeros(out) for *_, out in CONVOLUTIONS), output)

    @property
    def size(self) -> int:
        """Number of features."""
        return self.output.bias.size

    def __call__(self, image: PackedImage) -> Float[Array, "*b e"]:
        *batch, height, width = image.shape
        channels = self.filters[0].shape[2]
        bytes_ = [(image.reshape(-1, height, width) >> (8 * c)) & 0xFF for c in range(channels)]
        x = jnp.stack(bytes_, axis=-1).astype(jnp.int32).astype(jnp.float32) * (1.0 / 255.0) - 0.5
        for kernel, bias, (_, stride, _) in zip(self.filters, self.biases, CONVOLUTIONS, strict=True):
            x = jax.lax.conv_general_dilated(
                x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + bias)
        return jnp.tanh(self.output(x.reshape(*batch, -1)))


ImageEncoder = PatchEncoder | CnnEncoder
IMAGE_ENCODERS: dict[str, type[PatchEncoder] | type[CnnEncoder]] = {"patches": PatchEncoder, "cnn": CnnEncoder}


def patch_edge(shape: tuple[int, int, int]) -> int:
    """The edge of the square patches that an image divides into."""
    height, width, _ = shape
    edge = next((e for e in PATCH_EDGES if height % e == 0 and width % e == 0), 0)
    if not edge:
        raise ValueError(f"an image of {width} x {height} pixels does not divide into square patches; 80 x 80 does")
    return edge
