"""Environments of Brax as tasks: the physics is theirs, ends and restarts are ours.

Brax's own wrappers count a time-out as an end and forget the last observation when they restart. Here the environment
is used without them: what it calls done terminates, and a clock of ours truncates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import suggest
from ...core.rng import Rng
from ...core.spaces import Box
from ...core.task import Spec, State, Task

BraxState = State[None, Any, Float[Array, ""]]
"""`body` is the environment's state, a pytree of its library; `progress` is the return of the episode so far."""


@dataclass(frozen=True)
class BraxInterface(Task[BraxState]):
    """What environments have in common that follow Brax's interface: `reset(key)` and `step(state, action)`."""

    report: ClassVar[str] = "slipstream.tasks.gymnax.report"

    environment: str = ""
    """name of the environment in its library"""
    time_limit_steps: int = 1000
    """steps after which an episode is truncated"""
    success_return: float = 1e9
    """return from which on an episode counts as a success"""

    @cached_property
    def made(self) -> Any:
        """The environment. Untyped: it is of an optional dependency."""
        # Its numbers are computed now, even if it is first asked for while a program is traced.
        with jax.ensure_compile_time_eval():
            return self.make()

    def make(self) -> Any:
        """The environment, as its library makes it."""
        raise NotImplementedError

    @cached_property
    def max_steps(self) -> int:
        """Steps after which an episode is truncated."""
        return self.time_limit_steps

    @cached_property
    def control_dt(self) -> float:
        """Seconds of a step."""
        with jax.ensure_compile_time_eval():
            return float(self.made.dt)

    @cached_property
    def observed(self) -> Any:
        """Shapes of what the environment observes."""
        return jax.eval_shape(self.made.reset, jax.ShapeDtypeStruct((2,), jnp.uint32)).obs

    @cached_property
    def spec(self) -> Spec:
        told = self._privileged(self.observed)
        size = self._features(self.observed).size
        return Spec(
            size, Box(int(self.made.action_size)), self.control_dt, privileged_size=0 if told is None else told.size
        )

    def _features(self, observed: Any) -> Any:
        """What the policy observes, of an observation that may have parts."""
        if not isinstance(observed, dict):
            return observed
        if "state" not in observed:
            raise ValueError(
                f"{self.environment} observes {', '.join(observed)}, and only its `state` can be used here"
            )
        return observed["state"]

    def _privileged(self, observed: Any) -> Any:
        return observed.get("privileged_state") if isinstance(observed, dict) else None

    def reset(self, rng: Rng) -> BraxState:
        word, rng = rng.bits()
        # Keys of the old kind are plain numbers, which restarts can select between.
        body = jax.tree.map(jnp.asarray, self.made.reset(jnp.stack([jnp.uint32(0), word])))
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return State(None, body, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state: BraxState, action: Array) -> BraxState:
        state, command = self.command(state, action)
        return self.judge(state, self.move(state, command))

    def command(self, state: BraxState, action: Array) -> tuple[BraxState, Array]:
        return state, jnp.clip(action, -1.0, 1.0)

    def move(self, state: BraxState, command: Array) -> Any:
        """One step of the environment; leaves keep their types, so that a scan can carry them."""
        after = self.made.step(state.body, command)
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state.body)

    def judge(self, state: BraxState, body: Any) -> BraxState:
        step, reward = state.step + 1, jnp.asarray(body.reward, jnp.float32).reshape(())
        terminated = jnp.asarray(body.done, jnp.float32).reshape(()) > 0.5
        return replace(
            state,
            body=body,
            progress=state.progress + reward,
            rng=state.rng.bits()[1],
            step=step,
            reward=reward,
            terminated=terminated,
            truncated=(step >= self.max_steps) & ~terminated,
        )

    def observe(self, state: BraxState) -> Float[Array, "features"]:
        return jnp.ravel(jnp.asarray(self._features(state.body.obs), jnp.float32))

    def privileged_observation(self, state: BraxState) -> Float[Array, "features"]:
        return jnp.ravel(jnp.asarray(self._privileged(state.body.obs), jnp.float32))

    def episode_metrics(self, state: BraxState) -> dict[str, Float[Array, ""]]:
        return {
            "success": (state.progress >= self.success_return).astype(jnp.float32),
            "episode_return": state.progress,
        }

    def record(self, state: BraxState) -> dict[str, Array]:
        return {"observation": self.observe(state), "reward": state.reward}

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            "return_lowest": float(np.min(metrics["episode_return"])),
            "return_highest": float(np.max(metrics["episode_return"])),
        }


@dataclass(frozen=True)
class Brax(BraxInterface):
    """An environment of Brax by its name."""

    environment: str = "inverted_pendulum"
    """name that Brax has registered"""
    backend: str = ""
    """physics: generalized, spring, positional or mjx; by default the environment's own"""

    def make(self) -> Any:
        try:
            from brax import envs  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError("environments of Brax need it: pip install brax") from error
        known = envs._envs
        if self.environment not in known:
            raise ValueError(f"Brax has no '{self.environment}'{suggest(self.environment, known)}")
        backends = ("generalized", "spring", "positional", "mjx")
        if self.backend and self.backend not in backends:
            raise ValueError(f"Brax has no backend '{self.backend}'{suggest(self.backend, backends)}")
        return envs.get_environment(self.environment, **({"backend": self.backend} if self.backend else {}))

    @property
    def description(self) -> str:
        return f"{self.environment} of Brax"
