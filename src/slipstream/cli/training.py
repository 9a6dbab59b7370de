"""What `train` and `pipeline` share: from the words of a person to a run that can be trained."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..core.task import Task
from ..experiment import registry
from ..experiment.experiment import Experiment
from ..pipeline.training import find_experiment, load, prepared, require_trainable, with_learner
from ..progress import format_metrics
from ..runs.run import Run
from ..runs.train import TrainingStatus
from .options import asks_for_help, parse, take_option


@dataclass(frozen=True)
class RunOptions:
    """Where a training is kept."""

    run: Path | None = None
    """folder of the run; by default runs/PRESET"""
    resume: bool = False
    """go on with the run that is there"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def training_request(words: list[str], command: str) -> tuple[Run, RunOptions]:
    """The run to train and the options, all checked before anything is written."""
    if "--resume" in words and (not words or words[0].startswith("-")):
        options = parse(RunOptions, words, command)
        if options.run is None:
            raise ValueError("--resume without a preset needs --run FOLDER")
        return Run.open(options.run), options
    origin, words = take_option(words, "--init-from")
    teacher, words = take_option(words, "--teacher")
    learner, words = take_option(words, "--learner")
    if words and not words[0].startswith("-"):
        preset, name = find_experiment(words[0])
        words = words[1:]
    elif origin is not None:
        run = load(origin)
        preset, name = run.experiment, f"{run.name}-again"
    elif asks_for_help(words):
        name, preset = next(iter(registry.presets().items()))
    else:
        raise ValueError(f"slipstream {command} needs a preset or a task: {', '.join(registry.presets())}")
    if learner is not None:
        preset = with_learner(preset, learner)
    experiment, options = _parse_experiment(preset, name, words, command)
    options = replace(options, run=options.run or Path("runs") / name)
    assert options.run is not None
    experiment = prepared(experiment, origin, teacher)
    if options.resume:
        run = Run.open(options.run)
        if experiment not in (preset, run.experiment):
            raise ValueError(f"{options.run} was started with other settings; resume it without changing any")
        return run, options
    require_trainable(experiment)
    return Run.create(options.run, experiment), options


def _parse_experiment(
    preset: Experiment[Any, Any], name: str, words: list[str], command: str
) -> tuple[Experiment[Any, Any], RunOptions]:
    """The preset with what a person changed; every setting of task and learner is an option."""
    kind = Experiment[type(preset.task), type(preset.learner)]

    @dataclass(frozen=True)
    class Request:
        experiment: Annotated[kind, tyro.conf.arg(name="")]  # pyright: ignore[reportInvalidTypeForm]
        options: Annotated[RunOptions, tyro.conf.arg(name="")]

    Request.__doc__ = (
        f"Train '{name}'. Every setting below can be changed. --learner NAME trains by another algorithm "
        f"({', '.join(registry.LEARNERS)}); --init-from RUN begins with the policy of a run; "
        "--teacher RUN is the run that distill imitates."
    )
    words = with_task_prefix(words, preset.task)
    request = parse(Request, words, f"{command} {name}", Request(preset, RunOptions()))
    return request.experiment, request.options


def with_task_prefix(words: list[str], task: Task[Any]) -> list[str]:
    """`--SETTING` as `--task.SETTING`, where that is a setting of the task and of nothing else."""
    others = {f.name for kind in (Experiment, RunOptions) for f in fields(kind)}
    own = {f.name for f in fields(task) if f.init} - others  # pyright: ignore[reportArgumentType]
    names = {f"--{name.replace('_', '-')}" for name in own}
    return [word.replace("--", "--task.", 1) if word.partition("=")[0] in names else word for word in words]


def training_result(run: Run, status: TrainingStatus) -> dict[str, Any]:
    """What `--json` prints about a training."""
    return {
        "run": str(run.folder),
        "step": status.step,
        "steps": status.steps,
        "seconds": round(status.seconds, 2),
        "steps_per_second": round(status.rate),
        "finished": status.step >= status.steps,
        **{name: round(value, 6) for name, value in status.metrics.items()},
    }


def format_training(result: dict[str, Any], task: Task[Any]) -> str:
    known = {name: value for name, value in result.items() if isinstance(value, float)}
    metrics = "".join(f", {text}" for text in format_metrics(known, task.progress_bar))
    return (
        f"{result['run']}: {result['step']:,} steps in {result['seconds']:.0f} s "
        f"({result['steps_per_second']:,} a second){metrics}"
    )


def format_summary(summary: dict[str, Any]) -> str:
    """The result of an evaluation in one line."""
    shown = ("success_rate", "seconds")
    own = {name: value for name, value in summary.items() if isinstance(value, float) and name not in shown}
    rest = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in own.items())
    if summary["success_rate"] is None:
        return f"{summary['plant']}: {summary['episodes']} episodes; {rest}"
    low, high = summary["success_rate_95"]
    interval = f" (95 %: {100 * low:.1f} to {100 * high:.1f})" if low is not None else ""
    rate = 100 * summary["success_rate"]
    return f"{summary['plant']}: {rate:.1f} % of {summary['episodes']} episodes succeed{interval}; {rest}"
