"""An experiment is a task, a learner and a budget; presets are experiments with a name."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..learn.distill import Distill
from ..learn.teacher import Teacher
from . import registry
from .fields import checked_fields, to_dict

SEEDS = 2**31
"""Seeds are below this."""
FORMAT = 2
"""Of experiment.json. Format 1 is from before settings had the names they have now."""
TaskT = TypeVar("TaskT")
LearnerT = TypeVar("LearnerT")


@dataclass(frozen=True)
class Experiment(Generic[TaskT, LearnerT]):
    """What is trained, how, and for how long."""

    task: TaskT
    learner: LearnerT
    steps: int = 30_000_000
    """training budget: steps of all worlds together, each of all its agents"""
    seed: int = 0
    """seed of weights, worlds and exploration"""
    seeds: int = 1
    """number of seeds trained at once"""
    devices: int = 0
    """devices to train on; 0 is all of them, and on a CPU every core is one"""
    average: float = 0.3
    """fraction of the training, at its end, over which weights are averaged to the policy that is kept; 0 is none"""
    init_from: str = ""
    """folder of a run whose policy this training begins with"""

    def __post_init__(self) -> None:
        if not 0.0 <= self.average <= 1.0:
            raise ValueError("average is a fraction of the training, between 0 and 1")
        if self.steps < 1 or self.seeds < 1 or self.devices < 0 or not 0 <= self.seed < SEEDS:
            raise ValueError("steps and seeds must be at least 1, devices and seed not negative")

    @property
    def updates(self) -> int:
        return max(1, round(self.steps / self.learner.steps_per_update))  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def teacher(self) -> Teacher | None:
        """Whom the policy imitates, if its learner does that."""
        return self.learner.teacher if isinstance(self.learner, Distill) else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data: where task and learner come from, and every setting."""
        return {
            "format": FORMAT,
            "task": described_task(self.task),
            "learner": described_learner(self.learner),
            **({} if self.teacher is None else {"teacher": described_teacher(self.teacher)}),
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)[2:]},
        }

    @classmethod
    def from_dict(cls, data: object) -> "Experiment[Any, Any]":
        """The experiment that `as_dict` described; anything else is refused in words."""
        if not isinstance(data, dict) or not {"task", "learner"} <= set(data):
            raise ValueError("an experiment is an object with task, learner and settings")
        if data.get("format") != FORMAT:
            raise ValueError(
                f"it has format {data.get('format', 1)}, and this version of Slipstream reads format {FORMAT}: "
                "settings have other names now. Train again from the preset."
            )
        learner = read_learner(data["learner"])
        if isinstance(learner, Distill) and "teacher" in data:
            learner = learner.with_teacher(read_teacher(data["teacher"]))
        rest = {k: v for k, v in data.items() if k not in ("format", "task", "learner", "teacher", "fitted")}
        return cls(
            task=read_task(data["task"]),  # pyright: ignore[reportArgumentType]
            learner=learner,  # pyright: ignore[reportArgumentType]
            **checked_fields(cls, rest, "experiment", frozenset(("task", "learner"))),
        )


def described_task(task: Any) -> dict[str, Any]:
    """A task as plain data: its class and its settings."""
    return {"class": registry.task_source(task), **to_dict(task)}


def read_task(data: object) -> Any:
    """The task that `described_task` described."""
    settings = dict(data) if isinstance(data, dict) else {}
    kind = registry.find_recorded_task(settings.pop("class", None))
    return kind(**checked_fields(kind, settings, "task"))


def described_learner(learner: Any) -> dict[str, Any]:
    """A learner as plain data: its name and its settings."""
    return {"name": registry.learner_name(learner), **to_dict(learner)}


def read_learner(data: object) -> Any:
    """The learner that `described_learner` described."""
    settings = dict(data) if isinstance(data, dict) else {}
    kind = registry.find_recorded_learner(settings.pop("name", None))
    return kind(**checked_fields(kind, settings, "learner"))


def described_teacher(teacher: Teacher) -> dict[str, Any]:
    """A teacher as plain data. Its weights are in the checkpoints of its student."""
    task, learner = described_task(teacher.task), described_learner(teacher.learner)
    return {"run": teacher.run, "seeds": teacher.seeds, "task": task, "learner": learner}


def read_teacher(data: object) -> Teacher:
    """The teacher that `described_teacher` described."""
    if not isinstance(data, dict) or not {"run", "seeds", "task", "learner"} <= set(data):
        raise ValueError("a teacher is an object with run, seeds, task and learner")
    return Teacher(str(data["run"]), read_task(data["task"]), read_learner(data["learner"]), int(data["seeds"]))
