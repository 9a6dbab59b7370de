"""Q-networks for discrete actions: how actions map to heads, the heads, and the policy that takes the best action."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from ..core.struct import static, struct
from .encoder import Torso
from .memory import Memory
from .nets import Linear, Normalizer
from .policy import ImageFeatures
from .quantile import RETURN_QUANTILES, tau_midpoints

MAX_JOINT_ACTIONS = 64
"""Up to this many combinations of components are one head; beyond, every component has a head of its own."""


@struct
class DiscreteActions:
    """How a discrete action is chosen: by one head over all combinations, or by one head for each component."""

    space: Discrete | MultiDiscrete = static()

    @classmethod
    def of(cls, space: ActionSpace) -> "DiscreteActions":
        if isinstance(space, Box):
            raise ValueError("a Q-network needs a discrete action space")
        return cls(space)

    @property
    def joint(self) -> bool:
        """Whether one head chooses all components at once."""
        return math.prod(self.space.components) <= MAX_JOINT_ACTIONS

    @property
    def heads(self) -> tuple[int, ...]:
        """Number of choices of each head."""
        return (math.prod(self.space.components),) if self.joint else self.space.components

    def split(self, values: Float[Array, "... h"]) -> list[Array]:
        """The values of each head."""
        ends = [sum(self.heads[: k + 1]) for k in range(len(self.heads))]
        return [values[..., end - size : end] for size, end in zip(self.heads, ends, strict=True)]

    def encode(self, action: Int[Array, "..."]) -> list[Array]:
        """The index of an action in each head."""
        if not self.space.shape:
            return [action]
        parts = [action[..., k] for k in range(self.space.size)]
        if not self.joint:
            return parts
        index = parts[0]
        for size, part in zip(self.space.components[1:], parts[1:], strict=True):
            index = index * size + part
        return [index]

    def decode(self, indices: list[Array]) -> Int[Array, "..."]:
        """The action with those indices in the heads."""
        if not self.space.shape:
            return indices[0].astype(jnp.int32)
        if not self.joint:
            return jnp.stack(indices, -1).astype(jnp.int32)
        rest, parts = indices[0], []
        for size in reversed(self.space.components):
            parts.append(rest % size)
            rest = rest // size
        return jnp.stack(parts[::-1], -1).astype(jnp.int32)

    def first_head(self, values: Float[Array, "... k h"], action: Int[Array, "..."]) -> Float[Array, "... k"]:
        """The values of an action in the first head."""
        index = self.encode(action)[0][..., None, None]
        return jnp.take_along_axis(self.split(values)[0], jnp.broadcast_to(index, (*values.shape[:-1], 1)), -1)[..., 0]

    def best(self, values: Float[Array, "... h"]) -> Int[Array, "..."]:
        """The action of the highest value in every head."""
        return self.decode([jnp.argmax(part, -1) for part in self.split(values)])

    def mean_best_value(self, values: Float[Array, "b h"]) -> Float[Array, ""]:
        """The mean value of the best action, over the batch and the heads; a metric."""
        return jnp.mean(jnp.stack([jnp.mean(jnp.max(part, -1)) for part in self.split(values)]))


@struct
class NoisyLinear:
    """A linear layer with learned, factorized Gaussian noise on its weights (Fortunato et al., 2018)."""

    mean: Linear
    sigma: Linear | None  # standard deviation of the noise; None without noise

    @classmethod
    def init(cls, key: PRNGKeyArray, inputs: int, outputs: int, sigma: float, gain: float = 1.0) -> "NoisyLinear":
        noise = None
        if sigma:
            scale = sigma / math.sqrt(inputs)
            noise = Linear(jnp.full((inputs, outputs), scale), jnp.full(outputs, scale))
        return cls(Linear.init(key, inputs, outputs, gain), noise)

    def __call__(self, x: Float[Array, "*b i"], key: PRNGKeyArray | None = None) -> Float[Array, "*b o"]:
        if self.sigma is None or key is None:
            return self.mean(x)
        input_key, output_key = jax.random.split(key)
        input_noise = factorize_noise(jax.random.normal(input_key, (self.mean.weight.shape[0], 1)))
        output_noise = factorize_noise(jax.random.normal(output_key, (self.mean.weight.shape[1],)))
        # All samples of a batch share the noise: so it is one matrix product.
        weight = self.mean.weight + self.sigma.weight * (input_noise * output_noise)
        return Linear(weight, self.mean.bias + self.sigma.bias * output_noise)(x)


def factorize_noise(noise: Float[Array, "..."]) -> Float[Array, "..."]:
    """f(x) = sign(x) √|x| of factorized noise."""
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))


@struct
class QHead:
    """From features to the value of every action, as `atoms` numbers each; dueling with a `value` stream."""

    advantage: NoisyLinear
    value: NoisyLinear | None
    heads: tuple[int, ...] = static()  # number of choices of each head
    atoms: int = static()

    @classmethod
    def init(
        cls,
        key: PRNGKeyArray,
        size: int,
        heads: tuple[int, ...],
        atoms: int = 1,
        dueling: bool = False,
        noisy_sigma: float = 0.0,
    ) -> "QHead":
        advantage_key, value_key = jax.random.split(key)
        value = NoisyLinear.init(value_key, size, len(heads) * atoms, noisy_sigma, 0.1) if dueling else None
        return cls(NoisyLinear.init(advantage_key, size, sum(heads) * atoms, noisy_sigma, 0.1), value, heads, atoms)

    def __call__(self, features: Float[Array, "*b f"], key: PRNGKeyArray | None = None) -> Float[Array, "*b h a"]:
        keys = (None, None) if key is None else jax.random.split(key)
        value = None if self.value is None else self.value(features, keys[1])
        return self.combine(self.advantage(features, keys[0]), value)

    def combine(self, advantage: Float[Array, "*b n"], value: Float[Array, "*b m"] | None) -> Float[Array, "*b h a"]:
        """Q = V + A − mean A of each head; without a value stream Q = A."""
        out = advantage.reshape(*advantage.shape[:-1], sum(self.heads), self.atoms)
        if value is None:
            return out
        value = value.reshape(*value.shape[:-1], len(self.heads), self.atoms)
        parts, end = [], 0
        for k, size in enumerate(self.heads):
            part = out[..., end : end + size, :]
            parts.append(part - jnp.mean(part, -2, keepdims=True) + value[..., k : k + 1, :])
            end += size
        return jnp.concatenate(parts, -2)


@struct
class QPolicy:
    """A Q-network, which may give a categorical distribution of returns; the action of the highest value is taken."""

    normalizer: Normalizer
    torso: Torso
    head: QHead
    actions: DiscreteActions
    support: Float[Array, "atoms"]  # return of each atom; a single 1 without a distribution

    @property
    def params(self) -> Any:
        return self.torso, self.head

    def with_params(self, params: PyTree) -> "QPolicy":
        return replace(self, torso=params[0], head=params[1])

    def outputs(self, observation: Float[Array, "*b d"], key: PRNGKeyArray | None = None) -> Float[Array, "*b h a"]:
        """Of normalized observations, the value of every action, or the logits of its return distribution.

        A key draws the noise of noisy layers; without one they have none.
        """
        return self.head(self.torso(observation), key)

    def values(self, outputs: Float[Array, "*b h a"]) -> Float[Array, "*b h"]:
        """The value of every action, from the network's outputs."""
        if self.support.shape[0] == 1:
            return outputs[..., 0]
        return jnp.sum(jax.nn.softmax(outputs) * self.support, -1)

    def start(self, *batch: int) -> None:
        """No memory."""

    def act(
        self, observation: Float[Array, "*b d"], memory: Memory = None, image_features: ImageFeatures = None
    ) -> tuple[Array, Memory]:
        return self.actions.best(self.values(self.outputs(self.normalizer(observation)))), memory

    def return_quantiles(self, observation: Float[Array, "*b d"], action: Array) -> Float[Array, "*b k"] | None:
        """Quantiles of an action's return, lowest first, by the first head; None without a distribution."""
        if self.support.shape[0] == 1:
            return None
        outputs = jnp.moveaxis(self.outputs(self.normalizer(observation)), -2, -1)
        logits = self.actions.first_head(outputs, action)
        below = jnp.cumsum(jax.nn.softmax(logits), -1)[..., None, :] < tau_midpoints(RETURN_QUANTILES)[:, None]
        return jnp.asarray(self.support)[jnp.minimum(jnp.sum(below, -1), self.support.shape[0] - 1)]
