"""The fast plant: the very model the policy was trained on."""

from typing import Any

import jax

from .plant import Task


class FastPlant:
    """Our own dynamics, for all episodes in one call."""

    def start(self, task: Task, states: Any) -> None:
        self._move = jax.jit(jax.vmap(task.move))
        self._bodies = states.body

    def command(self, states: Any, commands: Any) -> None:
        self._bodies = self._move(states, commands)

    def sense(self) -> Any:
        return self._bodies

    def close(self) -> None:
        """Nothing is held open."""
