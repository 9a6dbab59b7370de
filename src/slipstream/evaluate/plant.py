"""A plant is whatever moves the bodies: our own fast model, MuJoCo, Betaflight or PX4."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array

from ..env import Env


class PlantError(Exception):
    """A plant that is not there or does not answer, and what to do about it."""


@runtime_checkable
class Plant(Protocol):
    """Four calls. All worlds of an evaluation are flown side by side, as one batch."""

    def start(self, task: "Task", states: Any) -> None:
        """Put the bodies where these states have them."""
        ...

    def command(self, states: Any, commands: Any) -> None:
        """Hold these commands for one control period."""
        ...

    def sense(self) -> Any:
        """Where the bodies are now."""
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
