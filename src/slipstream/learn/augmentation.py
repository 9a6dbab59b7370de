"""Augmentation of images that are learned from."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..core.task import PackedImage


def random_shift(images: PackedImage, pixels: int, key: PRNGKeyArray) -> PackedImage:
    """Each image moved by up to that many pixels along both axes, with its border repeated.

    Square images one above the other are moved together, each with a border of its own. (Yarats et al., Image
    augmentation is all you need, 2020.)
    """
    if not pixels:
        return images
    height, width = images.shape[-2:]
    count = height // width if height % width == 0 else 1
    stacks = images.reshape(-1, count, height // count, width)
    padded = jnp.pad(stacks, ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)), mode="edge")
    corners = jax.random.randint(key, (padded.shape[0], 2), 0, 2 * pixels + 1)

    def crop(stack: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(stack, (0, corner[0], corner[1]), stacks.shape[1:])

    return jax.vmap(crop)(padded, corners).reshape(images.shape)
