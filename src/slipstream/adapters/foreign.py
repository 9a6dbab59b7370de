"""Policies of other libraries, read from their files and flown by our evaluation.

A file from elsewhere is data. Weights are read by torch's own safe reader, which runs no code, and act as a network of
ours. What only a pickle holds, or code of yours, is loaded if you say that you trust it.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.errors import require_choice, suggest
from ..core.spaces import Box, Discrete, MultiDiscrete
from ..core.task import AnyState, AnyTask, CameraTask
from ..evaluation.pilot import Pilot
from ..experiment.registry import load_file
from ..learn.rollout import with_image_age
from ..policy.nets import ACTIVATIONS
from .libraries import load

Act = Callable[[Float[Array, "n d"]], Array]
"""From observations of all agents to their actions, without exploring; can be traced."""
LIBRARIES = ("sb3", "sbx", "skrl", "rsl_rl", "rl_games", "torchrl", "python")
WEIGHTS = Mapping[str, np.ndarray]


class UntrustedFileError(ValueError):
    """A file whose loading runs code in it."""


@dataclass(frozen=True)
class Source:
    """Where a policy is: a library and a file."""

    library: str
    file: Path
    attribute: str = ""

    @classmethod
    def parse(cls, text: str) -> "Source":
        """`sb3:model.zip`, or `python:FILE.py:function`."""
        library, _, rest = text.partition(":")
        require_choice("library", library, LIBRARIES)
        attribute = ""
        if library == "python":
            rest, _, attribute = rest.rpartition(":")
        if not rest or not Path(rest).is_file():
            raise ValueError(f"there is no file '{rest}': write LIBRARY:FILE, such as sb3:model.zip")
        return cls(library, Path(rest), attribute)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Layer:
    """x ↦ x W + b."""

    weight: Float[Array, "i o"]
    bias: Float[Array, "o"]


@dataclass(frozen=True)
class Scaling:
    """How observations were normalized: mean, standard deviation, and the largest value after that."""

    mean: np.ndarray
    std: np.ndarray
    limit: float


def load_policy(
    text: str, task: AnyTask, activation: str = "", trust: bool = False
) -> "tuple[Source, Act | HostPolicy]":
    """The policy in a file, for the observations and actions of a task.

    `activation` is that of its hidden layers, where the file does not say it.
    """
    source = Source.parse(text)
    if activation:
        require_choice("activation", activation, ACTIVATIONS)
    if task.spec.image_shape is not None and source.library != "python":
        raise ValueError("networks that read images are built by your code: write python:FILE.py:function")
    if source.library == "python":
        return source, python_policy(source, trust)
    if source.library == "sbx":
        return source, sbx_policy(source, trust)
    if source.library == "sb3":
        return source, sb3_policy(source, task, activation)
    return source, weights_policy(source, task, activation)


def refuse(source: Source, what: str) -> NoReturn:
    raise UntrustedFileError(
        f"{source.file} {what}: whoever wrote it decides what runs on this machine. "
        "If you know where it is from, add --trust"
    )


# Weights


def read_weights(data: bytes, source: Source) -> dict[str, Any]:
    """The dictionaries of tensors in a file of torch, by its reader that runs no code."""
    torch = load("torch", f"a policy of {source.library}")
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is wrong with a file from elsewhere
        raise ValueError(
            f"{source.file} cannot be read as weights alone ({type(error).__name__}). Save the state_dict of the "
            "policy by torch.save, or write python:FILE.py:function"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{source.file} holds no weights by name")
    return found


def as_arrays(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Tensors by name, as NumPy arrays; what is no tensor is left out."""
    return {name: value.detach().float().numpy() for name, value in tensors.items() if hasattr(value, "numpy")}


def chain(weights: WEIGHTS, inputs: int, outputs: int, source: Source) -> list[Layer]:
    """The linear layers that lead from so many inputs to so many outputs, in the order in which they were stored."""
    layers: list[Layer] = []
    width = inputs
    for name, value in weights.items():
        bias = weights.get(f"{name.removesuffix('weight')}bias")
        if name.endswith("weight") and value.ndim == 2 and bias is not None and value.shape[1] == width:
            layers.append(Layer(jnp.asarray(value.T), jnp.asarray(bias)))
            width = value.shape[0]
    if not layers or width != outputs:
        shapes = {name: value.shape for name, value in weights.items() if value.ndim == 2}
        raise ValueError(
            f"the policy of {source.file} does not fit: this task has {inputs} observed numbers and {outputs} outputs, "
            f"and its layers are {shapes}"
        )
    return layers


def output_size(task: AnyTask) -> int:
    """Outputs of a network: the mean of each component, or a value for each choice."""
    action = task.spec.action
    return action.size if isinstance(action, Box) else sum(action.components)


def network(
    layers: list[Layer],
    task: AnyTask,
    activation: str,
    squash: bool = False,
    scaling: Scaling | None = None,
) -> Act:
    """The network of those layers, as a policy that takes the likeliest action."""
    space, act = task.spec.action, ACTIVATIONS[activation]

    def policy(x: Float[Array, "n d"]) -> Array:
        if scaling is not None:
            x = jnp.clip((x - scaling.mean) / scaling.std, -scaling.limit, scaling.limit)
        for layer in layers[:-1]:
            x = act(x @ layer.weight + layer.bias)
        x = x @ layers[-1].weight + layers[-1].bias
        if isinstance(space, Box):
            return jnp.tanh(x) if squash else jnp.clip(x, -1.0, 1.0)
        if isinstance(space, Discrete):
            return jnp.argmax(x, -1).astype(jnp.int32)
        parts = jnp.split(x, np.cumsum(space.choices)[:-1], axis=-1)
        return jnp.stack([jnp.argmax(part, -1) for part in parts], -1).astype(jnp.int32)

    return policy


def weights_policy(source: Source, task: AnyTask, activation: str) -> Act:
    """A policy of skrl, RSL-RL, rl_games or TorchRL: layers one after the other, of which the file has the weights."""
    found = read_weights(source.file.read_bytes(), source)
    key = {"skrl": "policy", "rsl_rl": "actor_state_dict", "rl_games": "model"}.get(source.library)
    weights = as_arrays(found.get(key, found) if key else found)
    scaling = None
    if source.library == "rl_games":
        scaling, weights = (
            scaling_of(weights, "running_mean_std.running_mean", "running_mean_std.running_var"),
            actor(weights),
        )
    elif source.library == "rsl_rl" and "obs_normalizer._mean" in weights:
        scaling = Scaling(weights["obs_normalizer._mean"], weights["obs_normalizer._std"] + 1e-2, np.inf)
    elif source.library == "skrl" and isinstance(found.get("observation_preprocessor"), dict):
        scaling = scaling_of(as_arrays(found["observation_preprocessor"]), "running_mean", "running_variance")
    if not activation:
        raise ValueError(f"a file of {source.library} does not say what its hidden layers do: add --activation tanh")
    layers = chain(weights, task.spec.observation, output_size(task), source)
    return network(layers, task, activation, scaling=scaling)


def scaling_of(weights: WEIGHTS, mean: str, variance: str) -> Scaling | None:
    """How observations were normalized, if they were."""
    return Scaling(weights[mean], np.sqrt(weights[variance] + 1e-5), 5.0) if mean in weights else None


def actor(weights: WEIGHTS) -> dict[str, np.ndarray]:
    """Of a model of rl_games the layers of the actor, with its heads as one last layer."""
    own = {name: value for name, value in weights.items() if "critic" not in name and "value" not in name}
    heads = [name for name in own if re.search(r"\.(mu|logits)(\.\d+)?\.(weight|bias)$", name)]
    body = {name: value for name, value in own.items() if name not in heads}
    joined = (
        {part: np.concatenate([own[n] for n in heads if n.endswith(part)]) for part in ("weight", "bias")}
        if heads
        else {}
    )
    return body | {f"head.{part}": value for part, value in joined.items()}


# Stable-Baselines3


SB3_PARTS = {
    "on policy": ("mlp_extractor.policy_net.", "action_net."),
    "sac": ("actor.latent_pi.", "actor.mu."),
    "td3": ("actor.mu.",),
    "dqn": ("q_net.q_net.",),
}
"""Which weights make the actor, by the kind of algorithm."""


def sb3_policy(source: Source, task: AnyTask, activation: str) -> Act:
    """A policy of Stable-Baselines3 with its MlpPolicy; its pickled settings are not touched."""
    try:
        with zipfile.ZipFile(source.file) as archive:
            settings, stored = json.loads(archive.read("data")), archive.read("policy.pth")
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{source.file} is no model that Stable-Baselines3 saved") from error
    weights = as_arrays(read_weights(stored, source))
    kind = next(
        (name for name, parts in SB3_PARTS.items() if all(any(w.startswith(p) for w in weights) for p in parts)), ""
    )
    if not kind:
        raise ValueError(f"{source.file} holds no MlpPolicy; write python:FILE.py:function for another network")
    if settings.get("use_sde"):
        raise ValueError(
            f"{source.file} explores by gSDE, whose policy is not read here; write python:FILE.py:function"
        )
    own = {name: v for part in SB3_PARTS[kind] for name, v in weights.items() if name.startswith(part)}
    layers = chain(own, task.spec.observation, output_size(task), source)
    return network(layers, task, activation or sb3_activation(settings, kind), squash=kind in ("sac", "td3"))


def sb3_activation(settings: dict[str, Any], kind: str) -> str:
    """What the settings of a model say in plain text; otherwise the default of its algorithm."""
    text = str(settings.get("policy_kwargs", {}).get("activation_fn", "")).lower()
    named = next((name for name in ACTIVATIONS if f".{name}'" in text), "")
    if text and not named:
        raise ValueError(f"its activation is {text}{suggest(text, ACTIVATIONS)}")
    return named or ("tanh" if kind == "on policy" else "relu")


# What needs trust


def sbx_policy(source: Source, trust: bool) -> Act:
    """A policy of sbx, whose files are pickles."""
    if not trust:
        refuse(source, "is a pickle, as all models of sbx are, and loading it runs code that is in it")
    sbx = load("sbx", "a policy of sbx")
    with zipfile.ZipFile(source.file) as archive:
        settings = json.loads(archive.read("data"))
    name = next((kind for kind, mark in SBX_MARKS.items() if mark in settings), "PPO")
    policy = getattr(sbx, name).load(source.file, device="cpu").policy
    if name == "DQN":
        return lambda x: jnp.argmax(policy.qf_state.apply_fn(policy.qf_state.params, x), -1).astype(jnp.int32)
    state = policy.actor_state

    def act(x: Float[Array, "n d"]) -> Array:
        found = state.apply_fn(state.params, x)
        return found.mode() if hasattr(found, "mode") else found

    return act


SBX_MARKS = {"PPO": "clip_range", "DQN": "exploration_rate", "TD3": "target_policy_noise", "SAC": "target_entropy"}
"""A setting that only this algorithm has."""


def python_policy(source: Source, trust: bool) -> "HostPolicy":
    """A function of yours from NumPy observations (with a camera also images) to actions."""
    if not trust:
        refuse(source, "is code")
    function = getattr(load_file(source.file.resolve()), source.attribute, None)
    if not callable(function):
        raise ValueError(f"{source.file} has no function '{source.attribute}'")
    return HostPolicy(function)


@dataclass(frozen=True)
class HostPolicy:
    """A policy that runs on the host: from NumPy observations, and images if there are any, to actions."""

    function: Callable[..., Any]


# The pilot


def foreign_pilot(task: AnyTask, act: Act | HostPolicy) -> Pilot:
    """Who acts in an evaluation: the policy, for all agents of all worlds at once."""
    spec = task.spec
    held = spec.image_shape is not None and spec.image_interval > 1

    def encode(policy: None, states: AnyState, images: Array | None = None) -> Any:
        if not isinstance(task, CameraTask) or not spec.image_shape:
            return None
        return jax.vmap(task.image)(states) if images is None else images

    def decide(policy: None, states: AnyState, memory: None, image: Array | None, age: Any) -> tuple[Array, None]:
        observation = jax.vmap(task.observe)(states)
        if held:
            observation = with_image_age(observation, states, age, spec.image_interval)
        batch = observation.shape[:-1]
        rows = [observation.reshape(-1, observation.shape[-1])]
        if image is not None and spec.image_shape is not None:
            packed = image.reshape(-1, *image.shape[len(batch) :])
            rows.append(jnp.stack([(packed >> (8 * c)).astype(jnp.uint8) for c in range(spec.image_shape[2])], -1))
        actions = on_host(act.function, spec.action, *rows) if isinstance(act, HostPolicy) else act(rows[0])
        return actions.reshape(*batch, *spec.action.shape), None

    return Pilot(encode, decide)


def on_host(function: Callable[..., Any], space: Box | Discrete | MultiDiscrete, *rows: Array) -> Array:
    """The actions that a function on the host returns."""
    kind = np.float32 if isinstance(space, Box) else np.int32
    shape = (rows[0].shape[0], *space.shape)

    def call(*arrays: Any) -> np.ndarray:
        found = np.asarray(function(*map(np.asarray, arrays)), kind)
        if found.shape != shape:
            raise ValueError(f"the policy returned actions of shape {found.shape}, and {shape} was expected")
        return found

    return jax.pure_callback(call, jax.ShapeDtypeStruct(shape, kind), *rows)
