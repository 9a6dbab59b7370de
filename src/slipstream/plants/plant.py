"""A plant is whatever moves the bodies: our own fast model, MuJoCo, Betaflight or PX4."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.geometry import Vec3
from ..core.task import Box, Env, MultiDiscrete
from ..dynamics.control_modes import Setpoint
from ..dynamics.quadrotor import Flight, Quadrotor, Variation
from ..sensors.scene import Scene


class PlantError(Exception):
    """A plant that is not there or does not answer, and what to do about it."""


@runtime_checkable
class Plant(Protocol):
    """What flies an evaluation. As many worlds as it can are flown side by side, as one batch."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int:
        """How many worlds it can fly at once; 0 is any number."""
        ...

    def adapt(self, task: "Task") -> "Task":
        """The task as this plant flies it; a PlantError if it cannot."""
        ...

    def start(self, task: "Task", states: Any) -> Any:
        """Put the bodies where these states have them, or as near as the plant can; where they are now."""
        ...

    def command(self, states: Any, commands: Any) -> None:
        """Hold these commands for one control period."""
        ...

    def sense(self) -> Any:
        """Where the bodies are now: this is judged."""
        ...

    def seen(self) -> Any:
        """Where the plant's own sensors have the bodies: this is what a policy flies by."""
        ...

    @property
    def lost(self) -> np.ndarray | None:
        """For every world whether the plant failed there, so that its episode cannot go on."""
        ...

    def figures(self) -> dict[str, Any]:
        """What the plant has to say about itself, for the summary."""
        ...

    def close(self) -> None: ...


class Task(Env[Any], Protocol):
    """A task that a plant can be scored by: it commands and judges, and does not care who moved the body."""

    @property
    def about(self) -> str:
        """In a few words."""
        ...

    def exam(self) -> "Task":
        """The task as it is evaluated."""
        ...

    def command(self, state: Any, action: Any) -> tuple[Any, Any]: ...

    def move(self, state: Any, command: Any) -> Any: ...

    def judge(self, state: Any, body: Any) -> Any: ...

    def record(self, state: Any) -> dict[str, Array]: ...

    def scenery(self, state: Any) -> dict[str, Array]: ...

    def baselines(self) -> Mapping[str, Callable[[Any], Any]]:
        """Scripts that the task is also flown by: functions of one world that give the actions of its agents."""
        ...

    def summary(self, figures: dict[str, np.ndarray]) -> dict[str, float]: ...


@runtime_checkable
class Airborne(Protocol):
    """A task whose agents are quadrotors, so that somebody else's can take their place. All of one world."""

    @property
    def airframe(self) -> Quadrotor: ...

    def bare(self) -> Task:
        """The same task for a plant that brings its own vehicles and controllers."""
        ...

    def flights(self, state: Any) -> Flight:
        """Where the vehicles start, and how they move."""
        ...

    def setpoints(self, state: Any, command: Any) -> Setpoint:
        """What their controllers are told."""
        ...

    def air(self, state: Any) -> Vec3:
        """How the air moves where each vehicle is."""
        ...

    def variations(self, state: Any) -> Variation:
        """How each differs from its drawing."""
        ...

    def settled(self, state: Any, command: Any, flights: Flight) -> Any:
        """The body of the task, once the vehicles fly like that."""
        ...

    def surroundings(self, state: Any) -> Scene:
        """What can be run into."""
        ...


def flown_by_vehicles(task: Task, plant: str) -> Task:
    """The task for a plant that has quadrotors of its own, or why that cannot be."""
    if not isinstance(task, Airborne):
        raise PlantError(f"{task.about} has no quadrotors; the plant {plant} cannot fly it. Use --plant fast.")
    return task.bare()


def agents_of(task: Task) -> tuple[int, ...]:
    """The axis of agents, where a world has several."""
    return (task.spec.agents,) if task.spec.agents > 1 else ()


def idle_actions(task: Task, worlds: int) -> Array:
    """For all agents of so many worlds, the action that is all zeros."""
    space, size = task.spec.action, ()
    if isinstance(space, Box):
        size = (space.size,)
    elif isinstance(space, MultiDiscrete):
        size = (len(space.choices),)
    return jnp.zeros((worlds, *agents_of(task), *size), jnp.float32 if isinstance(space, Box) else jnp.int32)


def flat(tree: Any) -> Any:
    """Leaves of worlds, or of worlds and agents, as one row of vehicles."""
    return jax.tree.map(lambda x: jnp.reshape(x, -1), tree)
