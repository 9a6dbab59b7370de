"""The fast plant: the model that the policy was trained on."""

from typing import Any

import jax
from jaxtyping import PyTree

from .plant import AnyState, AnyTask


class FastPlant:
    """The task's own dynamics, all worlds in one compiled program."""

    name = "fast"
    max_worlds = 0
    keeps_time = False
    failed = None

    def __init__(self) -> None:
        self._task: AnyTask | None = None

    def adapt(self, task: AnyTask) -> AnyTask:
        return task

    def start(self, task: AnyTask, states: AnyState) -> Any:
        if task is not self._task:
            self._task, self._move = task, jax.jit(jax.vmap(task.move))
        self._bodies = states.body
        return self._bodies

    def command(self, states: AnyState, commands: PyTree) -> None:
        self._bodies = self._move(states, commands)

    def truth(self) -> Any:
        return self._bodies

    def estimate(self) -> None:
        """The policy observes the truth."""

    def diagnostics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing is held open."""
