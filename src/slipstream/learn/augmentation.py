"""Augmentation of images that are learned from."""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from ..core.task import PackedImage


def random_shift(images: PackedImage, pixels: int, key: PRNGKeyArray) -> PackedImage:
    """Each image moved by up to that many pixels along both axes, with its border repeated.

    (Yarats et al., Image augmentation is all you need, 2020.)
    """
    if not pixels:
        return images
    *batch, height, width = images.shape
    border = ((0, 0), (pixels, pixels), (pixels, pixels))
    padded = jnp.pad(images.reshape(-1, height, width), border, mode="edge")
    corners = jax.random.randint(key, (padded.shape[0], 2), 0, 2 * pixels + 1)
    shifted = jax.vmap(lambda image, corner: jax.lax.dynamic_slice(image, corner, (height, width)))(padded, corners)
    return shifted.reshape(*batch, height, width)
