"""Environments of gymnax as tasks: termination and truncation are told apart, and restarts are left to `advance`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...core.errors import suggest
from ...core.rng import Rng
from ...core.spaces import Box, Discrete
from ...core.struct import struct
from ...core.task import Spec, State, Task


@struct
class GymnaxBody:
    """The state of a gymnax environment, and what its last step returned."""

    env_state: Any  # a pytree of gymnax
    observation: Float[Array, "features"]
    reward: Float[Array, ""]
    done: Bool[Array, ""]


GymnaxState = State[None, GymnaxBody, Float[Array, ""]]
"""`progress` is the return of the episode so far."""


@dataclass(frozen=True)
class Gymnax(Task[GymnaxState]):
    """An environment of gymnax by its name."""

    report: ClassVar[str] = "slipstream.tasks.gymnax.report"

    environment: str = "CartPole-v1"
    """name that gymnax has registered"""
    success_return: float = 1e9
    """return from which on an episode counts as a success"""

    @cached_property
    def _made(self) -> tuple[Any, Any]:
        """The environment and its parameters. Untyped: gymnax is an optional dependency without types."""
        try:
            import gymnax  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError("environments of gymnax need it: pip install gymnax six") from error
        if self.environment not in gymnax.registered_envs:
            raise ValueError(f"gymnax has no '{self.environment}'{suggest(self.environment, gymnax.registered_envs)}")
        return gymnax.make(self.environment)

    @property
    def description(self) -> str:
        return f"{self.environment} of gymnax"

    @cached_property
    def max_steps(self) -> int:
        """Steps after which an episode is truncated."""
        return int(self._made[1].max_steps_in_episode)

    @cached_property
    def params(self) -> Any:
        """The environment's own parameters without its step limit, which gymnax would report as a termination."""
        return self._made[1].replace(max_steps_in_episode=2**30)

    @cached_property
    def spec(self) -> Spec:
        env, params = self._made
        space = env.action_space(params)
        action = Discrete(int(space.n)) if hasattr(space, "n") else Box(math.prod(space.shape))
        return Spec(math.prod(env.observation_space(params).shape), action, 1.0)

    def reset(self, rng: Rng) -> GymnaxState:
        word, rng = rng.bits()
        observation, env_state = self._made[0].reset_env(jax.random.key(word), self.params)
        env_state = jax.tree.map(jnp.asarray, env_state)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        body = GymnaxBody(env_state, jnp.ravel(observation), zero, no)
        return State(None, body, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state: GymnaxState, action: Array) -> GymnaxState:
        state, command = self.command(state, action)
        return self.judge(state, self.move(state, command))

    def command(self, state: GymnaxState, action: Array) -> tuple[GymnaxState, Array]:
        """The action in the environment's own range."""
        if isinstance(self.spec.action, Box):
            space = self._made[0].action_space(self.params)
            action = space.low + 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (space.high - space.low)
        return state, action

    def move(self, state: GymnaxState, command: Array) -> GymnaxBody:
        """One step of the environment, with the observation and the reward that it returns."""
        word, _ = state.rng.bits()
        before = state.body.env_state
        observation, after, reward, done, _ = self._made[0].step_env(jax.random.key(word), before, command, self.params)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before)
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        return GymnaxBody(after, jnp.ravel(observation), reward, jnp.asarray(done, jnp.bool_).reshape(()))

    def judge(self, state: GymnaxState, body: GymnaxBody) -> GymnaxState:
        step = state.step + 1
        return replace(
            state,
            body=body,
            progress=state.progress + body.reward,
            rng=state.rng.bits()[1],
            step=step,
            reward=body.reward,
            terminated=body.done,
            truncated=(step >= self.max_steps) & ~body.done,
        )

    def observe(self, state: GymnaxState) -> Float[Array, "features"]:
        return jnp.asarray(state.body.observation, jnp.float32)

    def episode_metrics(self, state: GymnaxState) -> dict[str, Float[Array, ""]]:
        return {
            "success": (state.progress >= self.success_return).astype(jnp.float32),
            "episode_return": state.progress,
        }

    def record(self, state: GymnaxState) -> dict[str, Array]:
        return {"observation": self.observe(state), "reward": state.reward}

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            "return_lowest": float(np.min(metrics["episode_return"])),
            "return_highest": float(np.max(metrics["episode_return"])),
        }
