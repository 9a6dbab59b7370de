"""From a name to a finished training."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import device
from ..core.errors import suggest
from ..core.task import Task
from ..experiment import registry
from ..experiment.experiment import Experiment
from ..learn.distill import Distill
from ..learn.teacher import Teacher
from ..progress import TrainingBar, on_interrupt
from ..runs.run import Run
from ..runs.train import TrainingStatus, check_memory, trainer_of
from ..runs.train import train as run_training

RunLike = Run | Path | str
AnyExperiment = Experiment[Any, Any]


def find_experiment(name: str) -> tuple[AnyExperiment, str]:
    """The experiment that a name stands for, and a short name for its run.

    The name is a preset, the file of a preset that `slipstream fit` wrote, an environment of another library such as
    brax:ant, or a task as FILE.py:Task or package.module:Task; those are trained by PPO unless told otherwise.
    """
    known = registry.presets()
    if name in known:
        return known[name], name
    if name.endswith(".json"):
        return read_experiment(Path(name)), Path(name).stem
    library, _, environment = name.partition(":")
    if environment and library in registry.libraries():
        experiment = registry.libraries()[library](environment)
        _ = experiment.task.spec  # a name that the library does not have is refused here
        return experiment, f"{library}-{environment}".lower()
    if ":" in name:
        task = registry.find_task(name)
        return registry.default_experiment(task()), name.rpartition(":")[2].lower()
    raise ValueError(f"there is no preset '{name}'{suggest(name, known)}")


def read_experiment(path: Path) -> AnyExperiment:
    """An experiment from a JSON file: data, checked before it is used."""
    try:
        return Experiment.from_dict(json.loads(path.read_text()))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no preset: {error}") from error


def with_learner(experiment: AnyExperiment, name: str) -> AnyExperiment:
    """The experiment trained by another learner, with its default settings."""
    return replace(experiment, learner=registry.find_learner(name)())


def with_policy_of(experiment: AnyExperiment, run: RunLike) -> AnyExperiment:
    """The experiment, beginning with the policy of a run; refused if that policy does not fit."""
    theirs = load(run).experiment
    ours = experiment
    if (theirs.task.spec, theirs.learner.hidden_sizes) != (ours.task.spec, ours.learner.hidden_sizes):
        raise ValueError(
            f"the policy of {load(run).folder} does not fit. It has {theirs.task.spec} and hidden_sizes "
            f"{theirs.learner.hidden_sizes}; this training has {ours.task.spec} and {ours.learner.hidden_sizes}"
        )
    return replace(experiment, init_from=str(load(run).folder))


def with_teacher(experiment: AnyExperiment, run: RunLike) -> AnyExperiment:
    """The experiment, imitating the policy of a run; refused if that cannot teach in this task."""
    learner, opened = experiment.learner, load(run)
    if not isinstance(learner, Distill):
        raise ValueError(f"{registry.learner_name(learner)} learns without a teacher; add --learner distill")
    theirs = opened.experiment
    if not opened.checkpoint_steps:
        raise ValueError(f"the teacher of {opened.folder} has no checkpoint yet; train it first")
    if theirs.seeds not in (1, experiment.seeds):
        raise ValueError(
            f"{opened.folder} holds the policies of {theirs.seeds} seeds: a student of it needs --seeds {theirs.seeds}"
        )
    teacher = Teacher(str(opened.folder), theirs.task, theirs.learner, theirs.seeds)
    configure(experiment)
    teacher.check(experiment.task)
    return replace(experiment, learner=learner.with_teacher(teacher))


def prepared(
    experiment: AnyExperiment, init_from: RunLike | None = None, teacher: RunLike | None = None
) -> AnyExperiment:
    """The experiment with the files of its task read in, and with the runs that it begins with or imitates."""
    experiment = replace(experiment, task=experiment.task.with_files())
    if teacher is not None:
        experiment = with_teacher(experiment, teacher)
    return experiment if init_from is None else with_policy_of(experiment, init_from)


def require_trainable(experiment: AnyExperiment) -> None:
    """Refuse an experiment that cannot run on this machine, before its folder is made."""
    configure(experiment)
    check_memory(trainer_of(experiment))


def configure(experiment: AnyExperiment, devices: int | None = None) -> None:
    """Set up JAX for an experiment, before anything is compiled."""
    task = experiment.task
    devices = experiment.devices if devices is None else devices
    device.configure(devices or None, task.spec.image_shape is not None, task.wide_vectors)


def load(run: RunLike) -> Run:
    """A run that exists."""
    return run if isinstance(run, Run) else Run.open(Path(run))


def open_run(run: RunLike) -> Run:
    """A run to look at, on one device: JAX is set up before anything of it can be compiled."""
    opened = load(run)
    configure(opened.experiment, 1)
    return opened


def train(
    what: str | Task[Any] | AnyExperiment,
    run: Path | str | None = None,
    *,
    learner: Any = None,
    init_from: RunLike | None = None,
    teacher: RunLike | None = None,
    resume: bool = False,
    **settings: Any,
) -> Run:
    """Train a preset, a task or an experiment in a run directory, with a progress bar; the finished run comes back.

    `settings` are fields of the experiment (steps, seed, seeds, devices, average). `learner` is a learner, or its name;
    `teacher` is the run that `learner="distill"` imitates.
    """
    if isinstance(what, str):
        experiment, name = find_experiment(what)
    elif isinstance(what, Experiment):
        experiment, name = what, type(what.task).__name__.lower()
    else:
        experiment, name = registry.default_experiment(what), type(what).__name__.lower()
    if isinstance(learner, str):
        experiment = with_learner(experiment, learner)
    elif learner is not None:
        experiment = replace(experiment, learner=learner)
    experiment = prepared(replace(experiment, **settings), init_from, teacher)
    folder = Path("runs") / name if run is None else Path(run)
    if resume:
        opened = load(folder)
    else:
        require_trainable(experiment)
        opened = Run.create(folder, experiment)
    train_run(opened, resume)
    return opened


def train_run(run: Run, resume: bool = False) -> TrainingStatus:
    """Train under a progress bar. Ctrl-C stores a checkpoint and says how to go on; a second one stops at once."""
    experiment = run.experiment
    configure(experiment)
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True
        print("stopping after this chunk; press again to stop at once", file=sys.stderr, flush=True)

    with on_interrupt(stop), TrainingBar(run.name, experiment.task.progress_bar) as bar:
        status = run_training(run, resume, bar.update, bar.say, stop=lambda: stopping)
    if stopping and status.step < status.steps:
        again = f"slipstream train --resume --run {run.folder}"
        print(f"saved at step {status.step:,}. Go on with: {again}", file=sys.stderr, flush=True)
    return status
