"""The interface of a plant: what moves the bodies of an evaluation, be it our fast model, MuJoCo, Betaflight or PX4."""

from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..core.task import AnyState, AnyTask, QuadrotorTask, Spec

T = TypeVar("T")


class PlantError(Exception):
    """A plant that is missing, cannot run a task or does not respond; the message says what to do."""


@runtime_checkable
class Plant(Protocol):
    """What moves the bodies of an evaluation. States, commands and bodies are batches of worlds."""

    @property
    def name(self) -> str: ...

    @property
    def max_worlds(self) -> int:
        """Largest number of worlds it runs at the same time; 0 is any number."""
        ...

    @property
    def keeps_time(self) -> bool:
        """Whether nothing may be compiled between two commands, because the plant would be kept waiting."""
        ...

    def adapt(self, task: AnyTask) -> AnyTask:
        """The task as this plant runs it; raises a PlantError if it cannot."""
        ...

    def start(self, task: AnyTask, states: AnyState) -> Any:
        """Place the bodies as in these states, or as near as the plant can; returns where they are."""
        ...

    def command(self, states: AnyState, commands: PyTree) -> None:
        """Apply these commands for one control period."""
        ...

    def truth(self) -> Any:
        """The true bodies, by which the task judges."""
        ...

    def estimate(self) -> Any:
        """The bodies as the plant's sensors estimate them, which the policy observes; None if that is the truth."""
        ...

    @property
    def failed(self) -> np.ndarray | None:
        """For every world (and agent), whether the plant failed, so that its episode cannot go on; None is never."""
        ...

    def diagnostics(self) -> dict[str, Any]:
        """Figures about the plant itself, for the summary of an evaluation."""
        ...

    def close(self) -> None:
        """Release everything the plant holds; it can be started again."""
        ...


@runtime_checkable
class SeeingPlant(Protocol):
    """A plant that may render what policies see by itself."""

    def images(self, ended: np.ndarray) -> np.ndarray | None:
        """An image for every world, packed as the task's, or None if the task's own camera is to draw.

        Worlds that have ended may keep an old one.
        """
        ...


@runtime_checkable
class VehicleTask(QuadrotorTask, Protocol):
    """What a plant with quadrotors of its own uses of a task."""

    @property
    def spec(self) -> Spec: ...

    def command(self, state: Any, action: Array) -> tuple[Any, Any]: ...


def require_quadrotors(task: AnyTask, plant: str) -> AnyTask:
    """The task without its own vehicle model; raises a PlantError if its agents are not quadrotors."""
    return vehicle_task(task, plant).without_controller()


def vehicle_task(task: AnyTask, plant: str) -> VehicleTask:
    """The task as one of quadrotors; raises a PlantError if its agents are not quadrotors."""
    if not isinstance(task, VehicleTask):
        raise PlantError(f"{task.description} has no quadrotors; the plant {plant} cannot fly it. Use --plant fast.")
    return task


def agent_axis(spec: Spec) -> tuple[int, ...]:
    """The shape of the agents' axis: empty for one agent."""
    return (spec.agents,) if spec.agents > 1 else ()


def zero_actions(spec: Spec, worlds: int) -> Array:
    """The zero action for all agents of that many worlds."""
    return spec.action.zeros(worlds, *agent_axis(spec))


def flatten_agents(tree: T) -> T:
    """Leaves with the axes of worlds and agents reshaped to one axis of vehicles."""
    return jax.tree.map(lambda x: jnp.reshape(x, -1), tree)


def unstack(tree: T, count: int) -> list[T]:
    """The first `count` elements along the leading axis, each as a tree of its own."""
    return [jax.tree.map(lambda x, k=k: x[k], tree) for k in range(count)]
