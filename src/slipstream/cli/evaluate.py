"""slipstream evaluate: score the policy of a run on a plant."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..core.task import Task
from ..pipeline.stages import evaluate, evaluate_policy
from ..pipeline.training import find_experiment, load
from ..plants.settings import PlantSettings
from .options import asks_for_help, emit, parse
from .training import format_summary, with_task_prefix


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


@dataclass(frozen=True)
class PolicyOptions:
    """How a policy of another library is scored."""

    policy: str
    """file of the policy, after the library that trained it: sb3:model.zip; also sbx, skrl, rsl_rl, rl_games, torchrl,
    or a function of yours from observations to actions: python:FILE.py:function"""
    run: Path | None = None
    """folder for the results; by default runs/PRESET-LIBRARY"""
    activation: str = ""
    """activation of its hidden layers (tanh, relu, elu or silu), which only files of sb3 say"""
    trust: bool = False
    """load the file even if that runs code that is in it"""
    plant: str = "fast"
    """what moves the bodies: fast, mujoco, betaflight or px4"""
    worlds: int | None = None
    """worlds to run, each with all its agents; by default as many as the plant runs in minutes"""
    seed: int | None = None
    """seed of the worlds; by default one that no training uses"""
    baselines: bool = True
    """whether the task's scripts run on the same worlds, to compare with"""
    settings: tyro.conf.OmitArgPrefixes[PlantSettings] = PlantSettings()
    """the plant"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run_policy(words: list[str]) -> int:
    """A policy of another library on the task of a preset, whose settings are --task options."""
    if words[0].startswith("-"):
        raise ValueError("slipstream evaluate --policy needs a preset or a task: slipstream evaluate hover --policy …")
    experiment, name = find_experiment(words[0])
    kind: Any = type(experiment.task)

    @dataclass(frozen=True)
    class Request:
        """Score a policy that another library trained; it is then filmed and reported like any run."""

        task: kind  # pyright: ignore[reportInvalidTypeForm]
        """settings of the task it was trained on"""
        options: Annotated[PolicyOptions, tyro.conf.arg(name="")]

    words = with_task_prefix(words[1:], experiment.task)
    request = parse(Request, words, f"evaluate {name}", Request(experiment.task, PolicyOptions("")))
    options = request.options
    summary = evaluate_policy(
        options.policy,
        experiment,
        options.plant,
        run=options.run or Path("runs") / f"{name}-{options.policy.partition(':')[0]}",
        task=request.task,
        activation=options.activation,
        trust=options.trust,
        worlds=options.worlds,
        seed=options.seed,
        baselines=options.baselines,
        settings=options.settings,
    )
    emit(summary, options.json, lambda: f"{summary['run']}: {format_summary(summary)}")
    return 0


def run(words: list[str]) -> int:
    """The task of the run decides which --task options there are."""
    if any(word.partition("=")[0] == "--policy" for word in words):
        return run_policy(words)
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
