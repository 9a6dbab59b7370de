"""What a learner is: the start of a training, and one update of it."""

from dataclasses import Field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.task import Spec, Task
from .rollout import EpisodeStats

Metrics = dict[str, Float[Array, ""]]


class TrainState(Protocol):
    """The state of a training, as one tree. Fields made by `per_world` are split over devices."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def policy(self) -> Any: ...

    @property
    def updates(self) -> Int[Array, ""]:
        """Updates so far."""
        ...

    @property
    def average(self) -> Any:
        """Mean of the policies over the last part of a training; the trainer keeps it."""
        ...


T = TypeVar("T", bound=TrainState)


@runtime_checkable
class Learner(Protocol[T]):
    """An algorithm, as pure functions of the state of a training."""

    @property
    def worlds(self) -> int: ...

    @property
    def steps_per_update(self) -> int:
        """Steps of all worlds in one update; a step of a world is one of all its agents."""
        ...

    def check(self, task: Task[Any], devices: int) -> None:
        """Refuse, with a `ValueError` that says what to change, a task this learner cannot train."""
        ...

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> Any:
        """A policy with initial weights; by default always the same ones, whose shapes a loader needs."""
        ...

    def init(self, task: Task[Any], seed: Int[Array, ""], worlds: Int[Array, "n"]) -> T:
        """The state at the start of a training, with the worlds of those indices."""
        ...

    def update(
        self, task: Task[Any], train: T, progress: Float[Array, ""], axis: str | None = None
    ) -> tuple[T, Metrics, EpisodeStats]:
        """Collect experience and learn from it; `progress` is the fraction of the training that is done."""
        ...
