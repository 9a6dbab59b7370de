"""Environments of gymnax as tasks: pure functions of one world, with ends told apart and restarts left to us."""

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
from ...core.spaces import ActionSpace, Box, Discrete
from ...core.struct import struct
from ...core.task import Spec, State, Task


@struct
class GymnaxBody:
    """Where one of gymnax's environments stands, and what its last step gave."""

    inner: Any
    seen: Float[Array, "features"]
    reward: Float[Array, ""]
    over: Bool[Array, ""]


GymnaxState = State[None, GymnaxBody, Array]


@dataclass(frozen=True)
class Gymnax(Task[GymnaxState]):
    """One of gymnax's environments by name, for every learner that can act in it."""

    report: ClassVar[str] = "slipstream.tasks.gymnax.report"

    environment: str = "CartPole-v1"
    success_return: float = 1e9
    """return from which on an episode counts as a success"""

    @cached_property
    def _made(self) -> tuple[Any, Any]:
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
    def limit(self) -> int:
        """Steps after which an episode is cut off."""
        return int(self._made[1].max_steps_in_episode)

    @cached_property
    def params(self) -> Any:
        """The environment's own, but for its clock: it counts a cut-off as an end, which it is not."""
        return self._made[1].replace(max_steps_in_episode=2**30)

    @cached_property
    def spec(self) -> Spec:
        env, params = self._made
        seen = env.observation_space(params).shape
        return Spec(math.prod(seen), self.action, 1.0)

    @cached_property
    def action(self) -> ActionSpace:
        env, params = self._made
        space = env.action_space(params)
        return Discrete(int(space.n)) if hasattr(space, "n") else Box(math.prod(space.shape))

    def reset(self, rng: Rng) -> GymnaxState:
        word, rng = rng.bits()
        seen, inner = self._made[0].reset_env(jax.random.key(word), self.params)
        inner = jax.tree.map(jnp.asarray, inner)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return State(None, GymnaxBody(inner, jnp.ravel(seen), zero, no), zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state: GymnaxState, action: Any) -> GymnaxState:
        state, told = self.command(state, action)
        return self.judge(state, self.move(state, told))

    def command(self, state: GymnaxState, action: Any) -> tuple[GymnaxState, Any]:
        """The action as the environment takes it."""
        if isinstance(self.action, Box):
            space = self._made[0].action_space(self.params)
            action = space.low + 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (space.high - space.low)
        return state, action

    def move(self, state: GymnaxState, command: Any) -> GymnaxBody:
        """One step of the environment itself; what is seen and earned comes with it, and from nowhere else."""
        word, _ = state.rng.bits()
        inner = state.body.inner
        seen, after, reward, over, _ = self._made[0].step_env(jax.random.key(word), inner, command, self.params)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, inner)
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        return GymnaxBody(after, jnp.ravel(seen), reward, jnp.asarray(over, jnp.bool_).reshape(()))

    def judge(self, state: GymnaxState, body: GymnaxBody) -> GymnaxState:
        step = state.step + 1
        return replace(
            state,
            body=body,
            progress=state.progress + body.reward,
            rng=state.rng.bits()[1],
            step=step,
            reward=body.reward,
            terminated=body.over,
            truncated=(step >= self.limit) & ~body.over,
        )

    def observe(self, state: GymnaxState) -> Float[Array, "features"]:
        return jnp.asarray(state.body.seen, jnp.float32)

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
