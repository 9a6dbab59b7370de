"""skrl with JAX: many worlds as its `Wrapper`, and models for discrete actions that explore and have an entropy.

In skrl 2.1.1 the JAX mixins for discrete actions draw every component of an action by the same random numbers, so that
equal components are always equal, and their entropy is NaN. `MultiCategoricalMixin` and `CategoricalMixin` of this
module are put in their place.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .libraries import needed
from .spaces import action_space, as_in_space, critic_space, observation_space
from .statistics import EpisodeLog
from .tasks import TaskLike, find_task
from .vector import Autoreset, Observation, Worlds

with needed("this adapter"):
    import flax.linen
    from skrl import config
    from skrl.envs.wrappers.jax.base import Wrapper
    from skrl.utils.spaces.jax import flatten_tensorized_space


class SlipstreamWrapper(Wrapper):
    """Worlds of a task; every agent of a world is an environment of its own. Arrays are our program's own."""

    def __init__(
        self,
        task: TaskLike = "racing",
        worlds: int = 256,
        seed: int = 0,
        autoreset: Autoreset = "next_step",
        evaluation: bool = False,
        **settings: Any,
    ) -> None:
        self.task = find_task(task, evaluation, **settings)
        self.worlds = Worlds(self.task, worlds, seed, autoreset)
        super().__init__(self.worlds)
        spec, features = self.task.spec, self.worlds.features
        self._observation_space, self._state_space = observation_space(spec, features), critic_space(spec, features)
        self._action_space = action_space(spec)
        self._log = EpisodeLog(self.worlds)

    @property
    def num_envs(self) -> int:
        return self.worlds.rows

    @property
    def observation_space(self) -> Any:
        return self._observation_space

    @property
    def state_space(self) -> Any:
        """What the critic observes, for tasks with privileged observations."""
        return self._state_space

    @property
    def action_space(self) -> Any:
        return self._action_space

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return self._observed(self.worlds.reset()), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        step = self.worlds.step(jnp.reshape(actions, (self.num_envs, *self.worlds.spec.action.shape)))
        reward, terminated, truncated = (x.reshape(-1, 1) for x in (step.reward, step.terminated, step.truncated))
        infos = {"valid": step.valid, "episode": {name: np.float32(v) for name, v in self._log.note().items()}}
        return self._observed(step.observation), reward, terminated, truncated, infos

    def _observed(self, observation: Observation) -> Any:
        """A flat row for every agent, as skrl takes them."""
        told = observation.privileged
        self._state = None if told is None else jnp.concatenate([observation.features, told], -1)
        return flatten_tensorized_space(as_in_space(observation))

    def state(self) -> Any:
        return self._state

    def render(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is shown; `slipstream evaluate` and `video` film a policy."""

    def close(self) -> None:
        """Nothing is held open."""


def sample_components(key: PRNGKeyArray, logits: list[Float[Array, "n k"]]) -> Array:
    """One choice of every component, each by random numbers of its own."""
    parts = [jax.random.categorical(jax.random.fold_in(key, k), row, axis=-1) for k, row in enumerate(logits)]
    return jnp.stack(parts, -1)


def log_prob_of(logits: list[Float[Array, "n k"]], actions: Array) -> Float[Array, "n 1"]:
    """The logarithm of the probability of all components together."""
    chosen = [
        jnp.take_along_axis(jax.nn.log_softmax(row), actions[:, k : k + 1], axis=-1) for k, row in enumerate(logits)
    ]
    return jnp.sum(jnp.concatenate(chosen, -1), axis=-1, keepdims=True)


def entropy_of(logits: list[Float[Array, "n k"]]) -> Float[Array, "n 1"]:
    """The entropy of all components together."""
    parts = [-jnp.sum(jax.nn.softmax(row) * jax.nn.log_softmax(row), axis=-1, keepdims=True) for row in logits]
    return jnp.sum(jnp.concatenate(parts, -1), axis=-1, keepdims=True)


class MultiCategoricalMixin:
    """A policy of several choices whose network returns logits, for skrl's JAX models.

    What skrl calls the standard deviation of the policy is its entropy here.
    """

    def __init__(self, *, unnormalized_log_prob: bool = True, reduction: str = "sum", role: str = "") -> None:
        if not unnormalized_log_prob or reduction != "sum":
            raise ValueError("the network returns logits, and log-probabilities of components are added up")
        self._calls, self._key = 0, config.jax.key
        flax.linen.Module.__post_init__(self)  # pyright: ignore[reportArgumentType]

    @property
    def choices(self) -> list[int]:
        """Of each component."""
        return [int(count) for count in self.action_space.nvec]  # pyright: ignore[reportAttributeAccessIssue]

    def act(self, inputs: dict[str, Any], *, role: str = "", params: Any = None) -> tuple[Array, dict[str, Any]]:
        """Actions, with their log-probability and the entropy of the policy."""
        model: Any = self
        with jax.default_device(model.device):
            self._calls += 1
            key = jax.random.fold_in(self._key, self._calls)
            inputs["key"] = key
        output, outputs = model.apply(model.state_dict.params if params is None else params, inputs, role)
        logits = jnp.split(output, np.cumsum(self.choices)[:-1], axis=-1)
        actions = sample_components(key, logits)
        taken = inputs["taken_actions"].astype(jnp.int32) if "taken_actions" in inputs else actions
        entropy = entropy_of(logits)
        return actions, outputs | {"log_prob": log_prob_of(logits, taken), "net_output": output, "stddev": entropy}

    def get_entropy(self, stddev: Array, *, role: str = "") -> Array:
        return stddev


class CategoricalMixin(MultiCategoricalMixin):
    """The same for one choice."""

    def __init__(self, *, unnormalized_log_prob: bool = True, role: str = "") -> None:
        super().__init__(unnormalized_log_prob=unnormalized_log_prob, role=role)

    @property
    def choices(self) -> list[int]:
        return [int(self.action_space.n)]  # pyright: ignore[reportAttributeAccessIssue]
