"""Environments of gymnax as tasks: pure functions of one world, with ends told apart and restarts left to us."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..chance import Chance
from ..env import ActionSpace, Box, Discrete, Spec, State


@dataclass(frozen=True)
class Gymnax:
    """One of gymnax's environments by name, for every learner that can act in it."""

    name: str = "CartPole-v1"
    goal: float = math.inf
    """score from which on an episode counts as a success; without one none does"""

    def __post_init__(self) -> None:
        try:
            import gymnax  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError('environments of gymnax need it: pip install "slipstream[gymnax]"') from error
        if self.name not in gymnax.registered_envs:
            from ..words import nearest

            raise ValueError(f"gymnax has no '{self.name}'{nearest(self.name, gymnax.registered_envs)}")

    @cached_property
    def _made(self) -> tuple[Any, Any]:
        import gymnax  # pyright: ignore[reportMissingImports]

        return gymnax.make(self.name)

    @property
    def about(self) -> str:
        return f"{self.name} of gymnax"

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

    def reset(self, chance: Chance) -> State[Any, Any, Array]:
        word, chance = chance.word()
        seen, body = self._made[0].reset_env(jax.random.key(word), self.params)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return State(jnp.ravel(seen), body, zero, chance, jnp.int32(0), zero, no, no)

    def step(self, state: State[Any, Any, Array], action: Any) -> State[Any, Any, Array]:
        env, params = self._made[0], self.params
        word, chance = state.chance.word()
        if isinstance(self.action, Box):
            space = env.action_space(params)
            action = space.low + 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (space.high - space.low)
        seen, body, reward, over, _ = env.step_env(jax.random.key(word), state.body, action, params)
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        step, over = state.step + 1, jnp.asarray(over, jnp.bool_).reshape(())
        return replace(
            state,
            world=jnp.ravel(seen),  # what is seen comes with a step, and from nowhere else
            body=jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), body, state.body),
            progress=state.progress + reward,
            chance=chance,
            step=step,
            reward=reward,
            terminated=over,
            truncated=(step >= self.limit) & ~over,
        )

    def observe(self, state: State[Any, Any, Array]) -> Float[Array, "features"]:
        return jnp.asarray(state.world, jnp.float32)

    def figures(self, state: State[Any, Any, Array]) -> dict[str, Float[Array, ""]]:
        return {"success": (state.progress >= self.goal).astype(jnp.float32), "score": state.progress}
