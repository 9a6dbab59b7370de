"""Many worlds stepped by one compiled program: the core that every adapter wraps."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..core.errors import require_choice
from ..learn.rollout import RESTART_WINDOW
from .programs import Autoreset, Observation, Programs, VectorState, VectorStep, compiled
from .tasks import AnyTask, configure

__all__ = ["MAX_SEED", "Autoreset", "Observation", "VectorState", "VectorStep", "Worlds"]
AUTORESETS = ("same_step", "next_step", "never")
MAX_SEED = 2**31


class Worlds(Programs):
    """Worlds of a task as one batch, whose rows are worlds times agents.

    Statistics of episodes are computed on the device. An agent that has ended while others of its world go on waits:
    it earns nothing, stays terminated or truncated, and its rows are not `valid`.
    """

    def __init__(self, task: AnyTask, worlds: int, seed: int = 0, autoreset: Autoreset = "same_step") -> None:
        require_choice("autoreset", autoreset, AUTORESETS)
        if worlds < 1:
            raise ValueError("at least 1 world is needed")
        configure(task)
        super().__init__(task, worlds, autoreset)
        self.seed = check_seed(seed)
        # Drawing starts costs more than a step, so that many worlds share a draw for some steps.
        self._window = min(RESTART_WINDOW, worlds)
        self._reset, self._step, self._draw, self._restart = compiled(task, worlds, autoreset)
        self._steps = 0
        self._state: VectorState | None = None

    @property
    def state(self) -> VectorState:
        """The current state: data, and can be kept and put back."""
        if self._state is None:
            raise RuntimeError("call reset before step")
        return self._state

    @state.setter
    def state(self, state: VectorState) -> None:
        self._state = state

    def reset(self, seed: int | None = None) -> Observation:
        """Start all worlds anew; without a seed with other numbers than before."""
        if seed is None:
            seed = self.seed if self._state is None else (self.seed + 1) % MAX_SEED
        self.seed, self._steps = check_seed(seed), 0
        state, observation = self._reset(jnp.uint32(self.seed))
        self._state = jax.device_put(state, observation.features.device)
        return observation

    def step(self, action: Any) -> VectorStep:
        """Step all worlds; actions have one row for every agent."""
        # Arrays of other libraries are bound to a device and those of NumPy are not: without this JAX would compile the
        # same step again for each kind.
        action = jax.device_put(jnp.asarray(action), self.state.lengths.device)
        expected = (self.rows, *self.spec.action.shape)
        if action.shape != expected:
            raise ValueError(f"actions have the shape {action.shape}, and {expected} was expected")
        state = self.state
        if self._steps % self._window == 0 and self._steps and self.autoreset != "never":
            state = self._draw(state)
        self._steps += 1
        self._state, step = self._step(state, action)
        # On a CPU a caller may read and write its own buffers as soon as this returns.
        return jax.block_until_ready(step) if jax.default_backend() == "cpu" else step

    def restart(self, rows: Any) -> Observation:
        """Restart the worlds all of whose agents are among these rows, and return what is observed then."""
        self._state, observation = self._restart(self.state, jnp.asarray(rows))
        return observation

    def take_statistics(self) -> dict[str, Array]:
        """Means over the episodes that ended since the last call, on the device; NaN if none did."""
        stats = self.state.stats
        self._state = replace(self.state, stats=jax.tree.map(jnp.zeros_like, stats))
        return stats.means()

    @property
    def ended(self) -> Bool[Array, "n"]:
        """Which agents have ended and not restarted yet."""
        return self._as_rows(self.state.states.ended)

    @property
    def episode_steps(self) -> Int[Array, "n"]:
        """Steps since the start of each agent's episode, by the clock that truncates it."""
        steps = self.state.states.step
        return self._as_rows(steps) if steps.ndim == 1 + (self.agents > 1) else jnp.repeat(steps, self.agents)

    @episode_steps.setter
    def episode_steps(self, steps: Any) -> None:
        own = self.state.states.step
        rows = jnp.asarray(steps, own.dtype).reshape(self.worlds, self.agents)
        value = rows if own.ndim == 2 else rows[:, 0]
        self._state = replace(self.state, states=replace(self.state.states, step=value))


def check_seed(seed: int) -> int:
    """A seed that a stream of random numbers can begin with."""
    if not 0 <= seed < MAX_SEED:
        raise ValueError(f"a seed lies between 0 and {MAX_SEED - 1}")
    return int(seed)
