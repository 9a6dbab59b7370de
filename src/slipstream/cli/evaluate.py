"""slipstream evaluate: score the policy of a run on a plant."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..core.task import Task
from ..pipeline import evaluate, load
from ..plants.settings import PlantSettings
from .options import asks_for_help, emit, parse
from .training import format_summary


@dataclass(frozen=True)
class EvaluateOptions:
    """How a run is scored."""

    plant: str = "fast"
    """what moves the bodies: fast, mujoco, betaflight or px4"""
    worlds: int | None = None
    """worlds to run, each with all its agents; by default as many as the plant runs in minutes"""
    episodes: int | None = None
    """instead of --worlds, episodes of single agents: as many worlds as give that many"""
    checkpoint: str = "average"
    """average (of the weights over the last part of the training), last, best, or a step"""
    seed: int | None = None
    """seed of the worlds; by default one that training never used"""
    baselines: bool = True
    """whether the task's scripts run on the same worlds, to compare with"""
    settings: tyro.conf.OmitArgPrefixes[PlantSettings] = PlantSettings()
    """the plant"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run(words: list[str]) -> int:
    """The task of the run decides which --task options there are."""
    folder = next((word for word in words[:1] if not word.startswith("-")), None)
    if folder is None and not asks_for_help(words):
        raise ValueError("slipstream evaluate needs the folder of a run")
    task = None if folder is None else load(Path(folder)).experiment.task
    kind: Any = Task if task is None else type(task)

    @dataclass(frozen=True)
    class Request:
        """Score the policy of a run on a plant; writes episodes and summary.json into the run.

        With --task.SETTING the policy is scored on other settings of its task than it was trained with.
        """

        run: tyro.conf.Positional[Path]
        """folder of the run"""
        task: kind  # pyright: ignore[reportInvalidTypeForm]
        """settings of the task, if they are to differ from those trained with"""
        options: Annotated[EvaluateOptions, tyro.conf.arg(name="")]

    if task is None:
        parse(EvaluateOptions, words, "evaluate RUN")
        return 0
    assert folder is not None
    request = parse(Request, words, "evaluate", Request(Path(folder), task, EvaluateOptions()))
    options, changed = request.options, request.task if task is None else request.task.with_files()
    summary = evaluate(
        request.run,
        options.plant,
        worlds=options.worlds,
        episodes=options.episodes,
        seed=options.seed,
        checkpoint=options.checkpoint,
        task=None if changed == task else changed,
        baselines=options.baselines,
        settings=options.settings,
    )
    emit(summary, options.json, lambda: format_summary(summary))
    return 0
