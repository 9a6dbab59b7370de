"""What choices are worth, by the mean of their returns or by their whole distribution; the best one is taken."""

import math
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.rng import Rng
from ..core.spaces import ActionSpace, Discrete, MultiDiscrete
from ..core.struct import static, struct
from ..core.task import ObstacleDistance, Spec
from .nets import Linear, Normalizer

JOINT = 64
"""Combinations up to this many are one choice; beyond, every component of an action has a head of its own."""
COSINES = 64
Precision = Literal["auto", "float32", "bfloat16"]
"""What networks compute in. A CPU only emulates bfloat16, so there `auto` is float32."""
QUANTILES = 32
"""Of the returns of an action, where they are told."""


@struct
class DiscreteActions:
    """How an action of several components is chosen: all at once, or each by a head of its own."""

    components: tuple[int, ...] = static()
    single: bool = static()  # whether an action is one number, and not an array of components

    @classmethod
    def of(cls, space: ActionSpace) -> "DiscreteActions":
        if isinstance(space, Discrete):
            return cls((space.choices,), True)
        assert isinstance(space, MultiDiscrete)
        return cls(space.choices, False)

    @property
    def joint(self) -> bool:
        return math.prod(self.components) <= JOINT

    @property
    def heads(self) -> tuple[int, ...]:
        return (math.prod(self.components),) if self.joint else self.components

    def split(self, values: Float[Array, "... h"]) -> list[Array]:
        """The values of each head."""
        ends = [sum(self.heads[: k + 1]) for k in range(len(self.heads))]
        return [values[..., end - size : end] for size, end in zip(self.heads, ends, strict=True)]

    def numbers(self, action: Int[Array, "..."]) -> list[Array]:
        """For each head, which of its choices an action is."""
        if self.single:
            return [action]
        parts = [action[..., k] for k in range(len(self.components))]
        if not self.joint:
            return parts
        number = parts[0]
        for size, part in zip(self.components[1:], parts[1:], strict=True):
            number = number * size + part
        return [number]

    def action(self, numbers: list[Array]) -> Int[Array, "..."]:
        """The action that those choices of the heads are."""
        if self.single:
            return numbers[0].astype(jnp.int32)
        if not self.joint:
            return jnp.stack(numbers, -1).astype(jnp.int32)
        rest, parts = numbers[0], []
        for size in reversed(self.components):
            parts.append(rest % size)
            rest = rest // size
        return jnp.stack(parts[::-1], -1).astype(jnp.int32)

    def leading(self, values: Float[Array, "... k h"], action: Int[Array, "..."]) -> Float[Array, "... k"]:
        """Of what every choice of the first head has, what an action has."""
        number = self.numbers(action)[0][..., None, None]
        return jnp.take_along_axis(self.split(values)[0], jnp.broadcast_to(number, (*values.shape[:-1], 1)), -1)[..., 0]

    def best(self, values: Float[Array, "... h"]) -> Int[Array, "..."]:
        return self.action([jnp.argmax(part, -1) for part in self.split(values)])

    def random(self, rng: Rng) -> tuple[Int[Array, "..."], Rng]:
        """Any action, all alike."""
        parts = []
        for size in self.components:
            part, rng = rng.integer(size)
            parts.append(part)
        return parts[0] if self.single else jnp.stack(parts), rng


@struct
class Torso:
    """From what an agent sees to features: things of one kind through the same weights, and a place for each."""

    own: Linear
    thing: Linear | None
    layers: tuple[Linear, ...]
    things: tuple[int, int] = static()
    norm: bool = static()

    @classmethod
    def init(cls, key: PRNGKeyArray, spec: Spec, hidden: tuple[int, ...], norm: bool = False) -> "Torso":
        count, width = spec.entities
        keys = jax.random.split(key, 2 + len(hidden))
        gain = 2.0**0.5
        if not count:
            own, thing, size = Linear.init(keys[0], spec.observation, hidden[0], gain), None, hidden[0]
            rest = hidden[1:]
        else:
            own = Linear.init(keys[0], spec.observation - count * width, 56, gain)
            thing = Linear.init(keys[1], width, 40, gain)
            size, rest = 56 + 40 * count, hidden
        layers = []
        for part, out in zip(keys[2:], rest, strict=False):
            layers.append(Linear.init(part, size, out, gain))
            size = out
        return cls(own, thing, tuple(layers), spec.entities, norm)

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b f"]:
        count, width = self.things
        if self.thing is None:
            features = self._active(self.own(x))
        else:
            rows = x[..., -count * width :].reshape(*x.shape[:-1], count, width)
            each = jax.nn.relu(self.thing(rows)) * rows[..., -1:]
            own = jax.nn.relu(self.own(x[..., : -count * width]))
            features = jnp.concatenate([own, each.reshape(*x.shape[:-1], -1)], -1)
        for layer in self.layers:
            features = self._active(layer(features))
        return features

    def _active(self, x: Array) -> Array:
        return jax.nn.relu(layer_norm(x) if self.norm else x)


def layer_norm(x: Float[Array, "*b f"]) -> Float[Array, "*b f"]:
    """Layer norm without weights of its own: those of the next layer do."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5)


@struct
class NoisyLinear:
    """A linear layer whose weights may tremble: exploration that is learned."""

    mean: Linear
    spread: Linear | None

    @classmethod
    def init(cls, key: PRNGKeyArray, inputs: int, outputs: int, noisy: float, gain: float = 1.0) -> "NoisyLinear":
        spread = None
        if noisy:
            scale = noisy / math.sqrt(inputs)
            spread = Linear(jnp.full((inputs, outputs), scale), jnp.full(outputs, scale))
        return cls(Linear.init(key, inputs, outputs, gain), spread)

    def __call__(self, x: Float[Array, "*b i"], noise: PRNGKeyArray | None = None) -> Float[Array, "*b o"]:
        if self.spread is None or noise is None:
            return self.mean(x)
        first, second = jax.random.split(noise)
        inward = factorize_noise(jax.random.normal(first, (self.mean.weight.shape[0], 1)))
        outward = factorize_noise(jax.random.normal(second, (self.mean.weight.shape[1],)))
        # All rows tremble alike, so the weights do, and it is one product.
        weight = self.mean.weight + self.spread.weight * (inward * outward)
        return Linear(weight, self.mean.bias + self.spread.bias * outward)(x)


def factorize_noise(noise: Array) -> Array:
    """Factorised noise: sign and square root."""
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))


@struct
class QHead:
    """From features to what each choice is worth, as `atoms` numbers each."""

    advantage: NoisyLinear
    value: NoisyLinear | None
    heads: tuple[int, ...] = static()
    atoms: int = static()

    @classmethod
    def init(
        cls,
        key: PRNGKeyArray,
        size: int,
        heads: tuple[int, ...],
        atoms: int = 1,
        dueling: bool = False,
        noisy: float = 0.0,
    ) -> "QHead":
        first, second = jax.random.split(key)
        value = NoisyLinear.init(second, size, len(heads) * atoms, noisy, 0.1) if dueling else None
        return cls(NoisyLinear.init(first, size, sum(heads) * atoms, noisy, 0.1), value, heads, atoms)

    def __call__(self, features: Float[Array, "*b f"], noise: PRNGKeyArray | None = None) -> Float[Array, "*b h a"]:
        keys = (None, None) if noise is None else jax.random.split(noise)
        worth = None if self.value is None else self.value(features, keys[1])
        return self._joined(self.advantage(features, keys[0]), worth)

    def at(self, features: Float[Array, "*b f"], looks: Float[Array, "k f"]) -> Float[Array, "*b k h"]:
        """The same at shares of the distribution of returns, which are looked at like that."""
        worth = None if self.value is None else quantile_linear(self.value.mean, features, looks)
        return self._joined(quantile_linear(self.advantage.mean, features, looks), worth)[..., 0]

    def _joined(self, out: Array, worth: Array | None) -> Float[Array, "*b h a"]:
        out = out.reshape(*out.shape[:-1], sum(self.heads), self.atoms)
        if worth is None:
            return out
        worth = worth.reshape(*worth.shape[:-1], len(self.heads), self.atoms)
        parts, end = [], 0
        for k, size in enumerate(self.heads):
            part = out[..., end : end + size, :]
            parts.append(part - jnp.mean(part, -2, keepdims=True) + worth[..., k : k + 1, :])
            end += size
        return jnp.concatenate(parts, -2)


@struct
class QuantileEmbedding:
    """How features look at a share of the distribution of returns: by cosines of it."""

    cosines: Linear

    @classmethod
    def init(cls, key: PRNGKeyArray, size: int) -> "QuantileEmbedding":
        return cls(Linear.init(key, COSINES, size, 2.0**0.5))

    def __call__(self, shares: Float[Array, "k"]) -> Float[Array, "k f"]:
        """What features are multiplied with to see the returns at those shares; the same for all rows."""
        waves = jnp.cos(jnp.pi * jnp.arange(1.0, COSINES + 1.0) * shares[:, None])
        return jax.nn.relu(self.cosines(waves.astype(self.cosines.weight.dtype)))


def quantile_linear(
    layer: Linear, features: Float[Array, "*b f"], looks: Float[Array, "k f"]
) -> Float[Array, "*b k o"]:
    """Features, looked at in several ways, through a layer: as one product, since all rows are looked at alike."""
    weight = looks.T[:, :, None] * layer.weight[:, None, :]
    out = features @ weight.reshape(features.shape[-1], -1)
    return out.reshape(*out.shape[:-1], *weight.shape[1:]) + layer.bias


def stratified_taus(key: PRNGKeyArray, count: int) -> Float[Array, "k"]:
    """Shares of a distribution to look at, one in each of `count` equal parts."""
    return (jnp.arange(count) + jax.random.uniform(key, (count,))) / count


def tau_midpoints(count: int) -> Float[Array, "k"]:
    """The middles of `count` equal parts of a distribution."""
    return (jnp.arange(count) + 0.5) / count


@struct
class Risk:
    """Which part of the distribution counts: its worst share, fixed or by how near the nearest thing is."""

    share: float = static()
    adaptive: float = static()  # metres within which the share falls with the distance; 0 is never

    def of(self, near: Array | None, shape: tuple[int, ...]) -> Float[Array, "*b"]:
        if not self.adaptive or near is None:
            return jnp.full(shape, self.share)
        return self.share * jnp.clip(near / self.adaptive, 0.05, 1.0)

    def weights(self, near: Array | None, shape: tuple[int, ...], count: int) -> Float[Array, "*b k"]:
        """How much each of `count` equal parts of the distribution, the worst first, counts in its mean."""
        part = self.of(near, shape)[..., None]
        return jnp.clip(part * count - jnp.arange(count), 0.0, 1.0) / (part * count)


def require_distance(spec: Spec) -> ObstacleDistance:
    """How to read the distance to the nearest obstacle off an observation, if the task says so."""
    if spec.obstacle_distance is None:
        raise ValueError("this task does not observe how near obstacles are; set learner.cvar-distance to 0")
    return spec.obstacle_distance


@struct
class QPolicy:
    """What every choice is worth; the best one is taken."""

    normalizer: Normalizer
    torso: Torso
    heads: QHead
    choices: DiscreteActions
    support: Float[Array, "atoms"]  # returns that the atoms of a distribution stand for; one 1 without a distribution

    @property
    def params(self) -> Any:
        return self.torso, self.heads

    def with_params(self, weights: Any) -> "QPolicy":
        return replace(self, torso=weights[0], heads=weights[1])

    def raw(self, observation: Array, noise: PRNGKeyArray | None = None) -> Float[Array, "*b h a"]:
        """Of normalised observations, for every choice its value, or the logits of its distribution."""
        return self.heads(self.torso(observation), noise)

    def values(self, raw: Float[Array, "*b h a"]) -> Float[Array, "*b h"]:
        if self.support.shape[0] == 1:
            return raw[..., 0]
        return jnp.sum(jax.nn.softmax(raw) * self.support, -1)

    def start(self) -> None:
        """No memory."""

    def act(self, observation: Array, memory: None = None, image_features: Any = None) -> tuple[Array, None]:
        return self.choices.best(self.values(self.raw(self.normalizer(observation)))), memory

    def return_quantiles(self, observation: Array, action: Array) -> Float[Array, "*b k"] | None:
        """Quantiles of the returns expected of an action, the lowest first; of several heads, the first one's."""
        if self.support.shape[0] == 1:
            return None
        raw = self.choices.leading(jnp.moveaxis(self.raw(self.normalizer(observation)), -2, -1), action)
        below = jnp.cumsum(jax.nn.softmax(raw), -1)[..., None, :] < tau_midpoints(QUANTILES)[:, None]
        return jnp.asarray(self.support)[jnp.minimum(jnp.sum(below, -1), self.support.shape[0] - 1)]


@struct
class IqnPolicy:
    """What every choice is worth at any share of the distribution of its returns."""

    normalizer: Normalizer
    torso: Torso
    quantiles: QuantileEmbedding
    heads: QHead
    choices: DiscreteActions
    risk: Risk
    obstacle_distance: ObstacleDistance | None = static()  # for a risk that adapts
    eval_quantiles: int = static()  # used to act

    @property
    def params(self) -> Any:
        return self.torso, self.quantiles, self.heads

    def with_params(self, weights: Any) -> "IqnPolicy":
        return replace(self, torso=weights[0], quantiles=weights[1], heads=weights[2])

    def raw(self, observation: Array, shares: Float[Array, "k"]) -> Float[Array, "*b k h"]:
        """Of normalised observations, the returns of every choice at those shares."""
        return self.heads.at(self.torso(observation), self.quantiles(shares))

    def values(self, observation: Array) -> Float[Array, "*b h"]:
        """Of observations as they are, the mean over the part of the distribution that counts."""
        near = self.obstacle_distance(observation) if self.obstacle_distance else None
        weights = self.risk.weights(near, observation.shape[:-1], self.eval_quantiles)
        return jnp.sum(
            self.raw(self.normalizer(observation), tau_midpoints(self.eval_quantiles)) * weights[..., None], -2
        )

    def start(self) -> None:
        """No memory."""

    def act(self, observation: Array, memory: None = None, image_features: Any = None) -> tuple[Array, None]:
        return self.choices.best(self.values(observation)), memory

    def return_quantiles(self, observation: Array, action: Array) -> Float[Array, "*b k"]:
        """Quantiles of the returns expected of an action, the lowest first; of several heads, the first one's."""
        return self.choices.leading(self.raw(self.normalizer(observation), tau_midpoints(QUANTILES)), action)


def update_normalizer(policy: Any, spec: Spec, observation: Array, valid: Array, axis: str | None) -> Any:
    """The policy, once its normaliser has seen those rows too.

    Things stay as they are: a place without one is all zeros, and means over such places say nothing.
    """
    old, rest = policy.normalizer, math.prod(spec.entities)
    new = old.update(observation, valid, axis)
    if rest:
        kept = lambda a, b: jnp.concatenate([a[:-rest], b[-rest:]])  # noqa: E731
        new = replace(new, mean=kept(new.mean, old.mean), variance=kept(new.variance, old.variance))
    return replace(policy, normalizer=new)


def cast_to(tree: Any, precision: str) -> Any:
    """Weights and inputs as the device computes with them; what is kept stays float32."""
    if precision == "auto":
        precision = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    if precision == "float32":
        return tree
    return jax.tree.map(lambda x: x.astype(precision) if x.dtype == jnp.float32 else x, tree)
