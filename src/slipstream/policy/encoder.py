"""From an observation to features: the torso of all value-based networks, its normalizer and its precision."""

import math
from dataclasses import replace
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..core.struct import static, struct
from ..core.task import Spec
from .image_encoders import IMAGE_AGE_INPUTS, ImageEncoder
from .nets import Linear, Normalizer
from .policy import ImageFeatures

Precision = Literal["auto", "float32", "bfloat16"]
"""Floating-point type of the networks. A CPU only emulates bfloat16, so there `auto` is float32."""
OWN_FEATURES, ENTITY_FEATURES = 56, 40
"""Features of an agent's own part of an observation, and of each entity in it."""
T = TypeVar("T")


@struct
class Torso:
    """Layers from an observation to features. Entities share the weights of their first layer."""

    own: Linear
    entity: Linear | None
    layers: tuple[Linear, ...]
    entities: tuple[int, int] = static()  # count and size
    layer_norm: bool = static()

    @classmethod
    def init(cls, key: PRNGKeyArray, spec: Spec, hidden_sizes: tuple[int, ...], layer_norm: bool = False) -> "Torso":
        count, width = spec.entities
        keys = jax.random.split(key, 2 + len(hidden_sizes))
        gain = 2.0**0.5
        if not count:
            own, entity = Linear.init(keys[0], spec.observation, hidden_sizes[0], gain), None
            size, rest = hidden_sizes[0], hidden_sizes[1:]
        else:
            own = Linear.init(keys[0], spec.observation - count * width, OWN_FEATURES, gain)
            entity = Linear.init(keys[1], width, ENTITY_FEATURES, gain)
            size, rest = OWN_FEATURES + ENTITY_FEATURES * count, hidden_sizes
        layers = []
        for part, out in zip(keys[2:], rest, strict=False):
            layers.append(Linear.init(part, size, out, gain))
            size = out
        return cls(own, entity, tuple(layers), spec.entities, layer_norm)

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b f"]:
        count, width = self.entities
        if self.entity is None:
            features = self.activate(self.own(x))
        else:
            rows = x[..., -count * width :].reshape(*x.shape[:-1], count, width)
            # The last number of an entity says whether it exists: the features of empty slots are zero.
            each = jax.nn.relu(self.entity(rows)) * rows[..., -1:]
            own = jax.nn.relu(self.own(x[..., : -count * width]))
            features = jnp.concatenate([own, each.reshape(*x.shape[:-1], -1)], -1)
        for layer in self.layers:
            features = self.activate(layer(features))
        return features

    def activate(self, x: Float[Array, "*b f"]) -> Float[Array, "*b f"]:
        """ReLU, after layer normalization if that is on."""
        return jax.nn.relu(layer_norm(x) if self.layer_norm else x)


def layer_norm(x: Float[Array, "*b f"]) -> Float[Array, "*b f"]:
    """Layer normalization without gain and bias: the next layer has its own."""
    centered = x - jnp.mean(x, -1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered * centered, -1, keepdims=True) + 1e-5)


def update_normalizer(
    normalizer: Normalizer, spec: Spec, observation: Float[Array, "*b d"], valid: Bool[Array, "*b"], axis: str | None
) -> Normalizer:
    """The normalizer after it has seen those observations, too.

    Entity features are not normalized: empty slots are all zeros and would bias the mean. Nor are the features of an
    image, which come before the observation.
    """
    first, end = normalizer.mean.size - observation.shape[-1], normalizer.mean.size - math.prod(spec.entities)
    own = Normalizer(normalizer.mean[first:], normalizer.variance[first:], normalizer.count)
    new = own.update(observation, valid, axis)

    def keep_features(new: Array, old: Array) -> Array:
        return jnp.concatenate([old[:first], new[: end - first], old[end:]])

    return replace(
        new,
        mean=keep_features(new.mean, normalizer.mean),
        variance=keep_features(new.variance, normalizer.variance),
    )


def join_features(image_features: ImageFeatures, observation: Float[Array, "*b d"]) -> Float[Array, "*b f"]:
    """The features of an image before the observation, where entities stay last."""
    if image_features is None:
        return observation
    features = jnp.broadcast_to(image_features, (*observation.shape[:-1], image_features.shape[-1]))
    return jnp.concatenate([features, observation], axis=-1)


def spec_of_inputs(spec: Spec, image_encoder: ImageEncoder | None) -> Spec:
    """The spec of a task as the networks behind an image encoder know it: `join_features` is the observation."""
    if image_encoder is None:
        return spec
    return replace(spec, observation=image_encoder.size + spec.observation + IMAGE_AGE_INPUTS, image_shape=None)


def cast_to(tree: T, precision: Precision) -> T:
    """Parameters and inputs in the precision that the networks compute in; stored parameters stay float32."""
    if precision == "auto":
        precision = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    if precision == "float32":
        return tree
    return jax.tree.map(lambda x: x.astype(precision) if x.dtype == jnp.float32 else x, tree)
