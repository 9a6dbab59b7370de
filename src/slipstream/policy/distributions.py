"""Distributions over actions, one for each kind of action space."""

import math
from typing import Protocol, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..core.rng import Rng
from ..core.spaces import ActionSpace, Box, Discrete
from ..core.struct import static, struct

LOG_2PI = math.log(2.0 * math.pi)


class Distribution(Protocol):
    """A distribution over the actions of one agent; all but `sample` also take leading batch axes."""

    def sample(self, rng: Rng) -> tuple[Array, Rng]: ...

    @property
    def mode(self) -> Array:
        """The action without exploration."""
        ...

    def log_prob(self, action: Array) -> Float[Array, "*b"]: ...

    @property
    def entropy(self) -> Float[Array, "*b"]: ...

    def kl(self, other: Self) -> Float[Array, "*b"]:
        """KL divergence from `other`."""
        ...


@struct
class Normal:
    """Independent Gaussians, one for each component of the action."""

    mean: Float[Array, "*b a"]
    log_std: Float[Array, "a"]

    def sample(self, rng: Rng) -> tuple[Float[Array, "a"], Rng]:
        noise = []
        for _ in range(self.mean.shape[-1]):
            part, rng = rng.normal()
            noise.append(part)
        return self.from_noise(jnp.stack(noise)), rng

    def from_noise(self, noise: Float[Array, "*b a"]) -> Float[Array, "*b a"]:
        """The sample that standard Gaussian noise stands for."""
        return self.mean + jnp.exp(self.log_std) * noise

    @property
    def mode(self) -> Float[Array, "*b a"]:
        """The mean of the executed action, which is the sample clipped to [−1, 1].

        A policy whose mean is near or beyond a bound has learned with executed actions that are gentler on average:
        the unclipped mean would fly differently.
        """
        std = jnp.exp(self.log_std)
        low, high = (-1.0 - self.mean) / std, (1.0 - self.mean) / std
        below, above = jax.scipy.stats.norm.cdf(low), jax.scipy.stats.norm.cdf(-high)
        density = jax.scipy.stats.norm.pdf(low) - jax.scipy.stats.norm.pdf(high)
        return self.mean * (1.0 - below - above) + std * density + above - below

    def log_prob(self, action: Float[Array, "*b a"]) -> Float[Array, "*b"]:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -0.5 * jnp.sum(z * z, -1) - jnp.sum(self.log_std + 0.5 * LOG_2PI)

    @property
    def entropy(self) -> Float[Array, "*b"]:
        return jnp.broadcast_to(jnp.sum(self.log_std + 0.5 * (1.0 + LOG_2PI)), self.mean.shape[:-1])

    def kl(self, other: "Normal") -> Float[Array, "*b"]:
        ratio = jnp.exp(2.0 * (self.log_std - other.log_std))
        difference = ((self.mean - other.mean) * jnp.exp(-other.log_std)) ** 2
        return 0.5 * jnp.sum(ratio + difference - 1.0 - 2.0 * (self.log_std - other.log_std), -1)


@struct
class Categorical:
    """One of several choices."""

    logits: Float[Array, "*b n"]

    @property
    def log_probs(self) -> Float[Array, "*b n"]:
        return jax.nn.log_softmax(self.logits)

    def sample(self, rng: Rng) -> tuple[Int[Array, ""], Rng]:
        """By inversion: the first choice whose cumulative probability exceeds a uniform number."""
        uniform, rng = rng.uniform()
        below = jnp.cumsum(jax.nn.softmax(self.logits)) <= uniform
        return jnp.minimum(jnp.sum(below), self.logits.shape[-1] - 1).astype(jnp.int32), rng

    @property
    def mode(self) -> Int[Array, "*b"]:
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, "*b"]) -> Float[Array, "*b"]:
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=jnp.float32)
        return jnp.sum(self.log_probs * chosen, -1)

    @property
    def entropy(self) -> Float[Array, "*b"]:
        return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, -1)

    def kl(self, other: "Categorical") -> Float[Array, "*b"]:
        return jnp.sum(jnp.exp(self.log_probs) * (self.log_probs - other.log_probs), -1)


@struct
class MultiCategorical:
    """Several independent choices, their logits side by side."""

    logits: Float[Array, "*b n"]
    choices: tuple[int, ...] = static()

    @property
    def parts(self) -> list[Categorical]:
        ends = [sum(self.choices[: i + 1]) for i in range(len(self.choices))]
        return [Categorical(self.logits[..., end - n : end]) for n, end in zip(self.choices, ends, strict=True)]

    def sample(self, rng: Rng) -> tuple[Int[Array, "a"], Rng]:
        actions = []
        for part in self.parts:
            action, rng = part.sample(rng)
            actions.append(action)
        return jnp.stack(actions), rng

    @property
    def mode(self) -> Int[Array, "*b a"]:
        return jnp.stack([part.mode for part in self.parts], -1)

    def log_prob(self, action: Int[Array, "*b a"]) -> Float[Array, "*b"]:
        return sum((part.log_prob(action[..., i]) for i, part in enumerate(self.parts)), jnp.float32(0.0))

    @property
    def entropy(self) -> Float[Array, "*b"]:
        return sum((part.entropy for part in self.parts), jnp.float32(0.0))

    def kl(self, other: "MultiCategorical") -> Float[Array, "*b"]:
        return sum((a.kl(b) for a, b in zip(self.parts, other.parts, strict=True)), jnp.float32(0.0))


def head_size(space: ActionSpace) -> int:
    """Network outputs needed for a distribution over `space`."""
    return space.size if isinstance(space, Box) else sum(space.components)


def std_size(space: ActionSpace) -> int:
    """Standard deviations of a distribution over `space`: one for each component, none for discrete actions."""
    return space.size if isinstance(space, Box) else 0


def distribution(space: ActionSpace, head: Float[Array, "*b n"], log_std: Float[Array, "s"]) -> Distribution:
    """The distribution over `space` with those network outputs."""
    if isinstance(space, Box):
        return Normal(head, log_std)
    return Categorical(head) if isinstance(space, Discrete) else MultiCategorical(head, space.components)
