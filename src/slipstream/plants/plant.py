"""A plant is whatever moves the bodies: our own fast model, MuJoCo, Betaflight or PX4."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.task import QuadrotorTask, Task

AnyTask = Task[Any]


class PlantError(Exception):
    """A plant that is not there or does not answer, and what to do about it."""


@runtime_checkable
class Plant(Protocol):
    """What moves the bodies of an evaluation: as many worlds at once as it can, as one batch."""

    @property
    def name(self) -> str: ...

    @property
    def max_worlds(self) -> int:
        """How many worlds it can run at once; 0 is any number."""
        ...

    @property
    def keeps_time(self) -> bool:
        """Whether it goes on by itself between two commands, so that nothing may be compiled meanwhile."""
        ...

    def adapt(self, task: AnyTask) -> AnyTask:
        """The task as this plant runs it; a PlantError if it cannot."""
        ...

    def start(self, task: AnyTask, states: Any) -> Any:
        """Put the bodies where these states have them, or as near as the plant can; where they are now."""
        ...

    def command(self, states: Any, commands: Any) -> None:
        """Hold these commands for one control period."""
        ...

    def truth(self) -> Any:
        """Where the bodies are now: this is judged."""
        ...

    def estimate(self) -> Any:
        """Where the plant's own sensors have the bodies: this is what a policy observes. None if that is the truth."""
        ...

    @property
    def failed(self) -> np.ndarray | None:
        """For every world (and agent) whether the plant failed there, so that its episode cannot go on."""
        ...

    def diagnostics(self) -> dict[str, Any]:
        """What the plant reports about itself, for the summary."""
        ...

    def close(self) -> None: ...


def require_quadrotors(task: AnyTask, plant: str) -> AnyTask:
    """The task for a plant that has quadrotors of its own, or why that cannot be."""
    if not isinstance(task, QuadrotorTask):
        raise PlantError(f"{task.description} has no quadrotors; the plant {plant} cannot fly it. Use --plant fast.")
    return task.without_controller()


def agent_axis(task: AnyTask) -> tuple[int, ...]:
    """The axis of agents, where a world has several."""
    return (task.spec.agents,) if task.spec.agents > 1 else ()


def zero_actions(task: AnyTask, worlds: int) -> Array:
    """For all agents of so many worlds, the action that is all zeros."""
    return task.spec.action.zeros(worlds, *agent_axis(task))


def flat(tree: Any) -> Any:
    """Leaves of worlds, or of worlds and agents, as one row of vehicles."""
    return jax.tree.map(lambda x: jnp.reshape(x, -1), tree)
