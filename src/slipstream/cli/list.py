"""slipstream list: presets, tasks, algorithms, plants and devices."""

import dataclasses
import typing
from typing import Any

from ..core import device
from ..core.task import Task
from ..experiment import registry
from ..plants.settings import DEFAULT_EPISODES
from ..progress import brief
from .options import JsonOption, emit, parse


def run(words: list[str]) -> int:
    options = parse(JsonOption, words, "list")
    device.configure()
    import jax

    presets, tasks = registry.presets(), registry.task_classes()
    result = {
        "presets": {name: preset.as_dict() for name, preset in presets.items()},
        "tasks": {name: choices(task) for name, task in tasks.items()},
        "algorithms": list(registry.LEARNERS),
        "comparisons": {name: list(names) for name, names in registry.comparisons().items()},
        "plants": list(DEFAULT_EPISODES),
        "libraries": [f"{name}:ENVIRONMENT" for name in registry.libraries()],
        "devices": [f"{d.platform}:{d.device_kind}" for d in jax.devices()],
        "problems": registry.problems(),
    }
    emit(result, options.json, lambda: format_list(result))
    return 0


def choices(task: type[Task[Any]]) -> dict[str, list[Any]]:
    """The settings of a task that are a choice between names, and what there is to choose from."""
    hints = typing.get_type_hints(task)
    fields = [f.name for f in dataclasses.fields(task) if f.init]  # pyright: ignore[reportArgumentType]
    return {name: names for name in fields if (names := literals(hints[name]))}


def literals(kind: object) -> list[Any]:
    """The names of a type that is a choice between names, or between names and something else."""
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [
        name for part in typing.get_args(kind) if typing.get_origin(part) is typing.Literal for name in literals(part)
    ]


def format_list(result: dict[str, Any]) -> str:
    lines = []
    for name, preset in registry.presets().items():
        learner = registry.learner_name(preset.learner)
        lines.append(f"preset      {name:22} {preset.task.description}; {learner}, {brief(preset.steps)} steps")
    for name, settings in result["tasks"].items():
        told = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in settings.items())
        lines.append(f"task        {name:22} {told}")
    for key in ("algorithms", "comparisons", "plants", "libraries", "devices"):
        lines.append(f"{key:11} {', '.join(result[key])}")
    return "\n".join(lines + [f"problem     {text}" for text in result["problems"]])
