"""Train, evaluate, film and report: what the command line and Python users both call.

import slipstream as sl

run = sl.train("racing", steps=10_000_000)
print(sl.evaluate(run)["success_rate"])
sl.film(run)
sl.report(run)
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .adapters.foreign import foreign_pilot, load_policy
from .comparison import page as libraries_page
from .comparison.trials import Trial
from .comparison.work import Work
from .core import device
from .core.errors import suggest
from .core.task import Task
from .evaluation import parity as parity_of_plants
from .evaluation import score
from .evaluation.fit import Fit, fit_experiment
from .evaluation.fit import write as write_fit
from .experiment import registry
from .experiment.experiment import Experiment
from .learn.foreign import ForeignPolicy
from .plants.plant import PlantError
from .plants.registry import PLANTS
from .plants.settings import PlantSettings
from .progress import CountingBar, ParallelBar, TrainingBar, on_interrupt
from .reports import compare as comparison
from .reports import page, video
from .reports import parity as parity_film
from .runs.checkpoint import CheckpointError
from .runs.parallel import LOG, default_jobs, run_parallel
from .runs.run import Run, RunError
from .runs.train import TrainingError, TrainingStatus, check_memory, lack_of_memory, steps_of, trainer_of
from .runs.train import train as run_training

RunLike = Run | Path | str
AnyExperiment = Experiment[Any, Any]


# What is trained


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


def prepared(experiment: AnyExperiment, init_from: RunLike | None = None) -> AnyExperiment:
    """The experiment with the files of its task read in, beginning with the policy of a run if one is named."""
    experiment = replace(experiment, task=experiment.task.with_files())
    return experiment if init_from is None else with_policy_of(experiment, init_from)


def require_trainable(experiment: AnyExperiment) -> None:
    """Refuse an experiment that cannot run on this machine, before its folder is made."""
    configure(experiment)
    check_memory(trainer_of(experiment))


# Set-up


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


# The stages


def train(
    what: str | Task[Any] | AnyExperiment,
    run: Path | str | None = None,
    *,
    learner: Any = None,
    init_from: RunLike | None = None,
    resume: bool = False,
    **settings: Any,
) -> Run:
    """Train a preset, a task or an experiment in a run directory, with a progress bar; the finished run comes back.

    `settings` are fields of the experiment (steps, seed, seeds, devices, average). `learner` is a learner, or its name.
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
    experiment = prepared(replace(experiment, **settings), init_from)
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


def evaluate(
    run: RunLike,
    plant: str = "fast",
    *,
    worlds: int | None = None,
    episodes: int | None = None,
    seed: int | None = None,
    checkpoint: str = "average",
    task: Task[Any] | None = None,
    baselines: bool = True,
    settings: PlantSettings = PlantSettings(),
) -> dict[str, Any]:
    """Score the policy of a run on a plant: so many worlds, or as many as give that many episodes."""
    opened = open_run(run)
    require_plant(plant)
    if worlds is not None and episodes is not None:
        raise ValueError("give either worlds or episodes, not both")
    if min(worlds or 1, episodes or 1) < 1:
        raise ValueError("worlds and episodes must be at least 1")
    agents = (task or opened.experiment.task).spec.agents
    worlds = -(-episodes // agents) if episodes is not None else worlds
    with CountingBar(f"{plant} plant", worlds or 1) as bar:
        return score.evaluate(
            opened, plant, worlds, seed, checkpoint,
            watch=bar.update, settings=settings, task=task, baselines=baselines,
        )  # fmt: skip


def evaluate_policy(
    policy: str,
    what: str | AnyExperiment,
    plant: str = "fast",
    *,
    run: Path | None = None,
    task: Task[Any] | None = None,
    activation: str = "",
    trust: bool = False,
    worlds: int | None = None,
    seed: int | None = None,
    baselines: bool = True,
    settings: PlantSettings = PlantSettings(),
) -> dict[str, Any]:
    """Score a policy that another library trained (`LIBRARY:FILE`) on the task of a preset, in a run of its own.

    Code in a file only runs with `trust`. The run is filmed and reported like any other.
    """
    experiment, name = find_experiment(what) if isinstance(what, str) else (what, type(what.task).__name__.lower())
    experiment = replace(experiment, task=(task or experiment.task).with_files())
    require_plant(plant)
    configure(experiment, 1)
    source, act = load_policy(policy, experiment.task, activation, trust)
    learner = ForeignPolicy(source.library, str(source.file), source.sha256)
    flown = Experiment(experiment.task, learner, steps=1, average=0.0)
    folder = Path("runs") / f"{name}-{source.library}" if run is None else run
    opened = Run.open(folder) if (folder / "experiment.json").exists() else Run.create(folder, flown)
    if opened.experiment != flown:
        raise ValueError(f"{folder} holds another policy or task; choose another --run folder")
    pilot = foreign_pilot(PLANTS[plant](settings).adapt(experiment.task), act)
    with CountingBar(f"{plant} plant", worlds or 1) as bar:
        summary = score.evaluate(
            opened, plant, worlds, seed, watch=bar.update, settings=settings, baselines=baselines, pilots=[pilot]
        )
    return {"run": str(folder)} | summary


def require_plant(plant: str) -> None:
    if plant not in PLANTS:
        raise ValueError(f"there is no plant '{plant}'{suggest(plant, PLANTS)}")


def film(run: RunLike, plant: str = "fast", *, episodes: int = 8, seconds: float = 20.0) -> Path:
    """Film a run; it is evaluated first if that was not done."""
    opened = open_run(run)
    if not (opened.episodes(plant) / "summary.json").exists():
        evaluate(opened, plant)
    with CountingBar("video") as bar:
        return video.film(opened, plant, episodes, seconds, watch=bar.update)


def report(run: RunLike) -> Path:
    """One self-contained HTML page about a run; it is evaluated and filmed first if that was not done."""
    opened = open_run(run)
    if not opened.summaries():
        evaluate(opened)
    if not any(opened.videos):
        film(opened, next(iter(opened.summaries())))
    return page.write(opened)


@dataclass(frozen=True)
class PipelineResult:
    """What a whole pipeline made."""

    run: Run
    training: TrainingStatus
    evaluation: dict[str, Any]
    video: Path
    report: Path


def run_all(run: Run, resume: bool = False) -> PipelineResult | None:
    """Train, evaluate, film and report; None if a person stopped the training."""
    status = train_run(run, resume)
    if status.step < status.steps:
        return None
    return PipelineResult(run, status, evaluate(run), film(run), report(run))


def parity(
    run: RunLike,
    plants: list[str],
    *,
    worlds: int | None = None,
    seed: int | None = None,
    settings: PlantSettings = PlantSettings(),
) -> dict[str, Any]:
    """Compare the plants, the first one being the base, and film each pair; the same policy, worlds and starts."""
    for name in plants:
        require_plant(name)
    if len(plants) < 2 or len(set(plants)) < len(plants):
        raise ValueError("parity needs at least two different plants")
    if worlds is not None and worlds < 1:
        raise ValueError("worlds must be at least 1")
    opened = open_run(run)
    with CountingBar("parity") as bar:
        result = parity_of_plants.compare(opened, plants, worlds, seed, settings, watch=bar.update_part)
        films = [str(parity_film.film(opened, plants[0], other)) for other in plants[1:]]
    return result | {"films": films}


FIT_ON_DEVICE = "px4-controller"
"""PX4's controller on the device, as a plant to fit to."""


def fit(
    experiment: AnyExperiment,
    plant: str = FIT_ON_DEVICE,
    *,
    log: Path | None = None,
    flights: int = 24,
    seconds: float = 20.0,
    seed: int = 0,
    settings: PlantSettings = PlantSettings(),
    out: Path,
) -> tuple[AnyExperiment, Fit]:
    """Fit the fast model of an experiment to a plant or a flight log, and write the preset that train takes."""
    if flights < 4 or seconds < 1.0:
        raise ValueError("a fit needs at least 4 flights of 1 s")
    known = [FIT_ON_DEVICE, *(name for name in PLANTS if name != "fast")]
    if log is None and plant not in known:
        raise ValueError(f"there is no plant '{plant}' to fit to{suggest(plant, known)}")
    device.configure(1)
    body = None if log is not None or plant == FIT_ON_DEVICE else PLANTS[plant](settings)
    with CountingBar("fit") as bar:
        fitted, found = fit_experiment(
            experiment, body, log, flights, seconds, seed, settings.px4_version, watch=bar.update_part
        )
    write_fit(out, fitted, found)
    return fitted, found


# Several runs


@dataclass(frozen=True)
class ForeignPolicies:
    """Policies of other libraries that are compared with ours."""

    files: tuple[str, ...] = ()
    activation: str = ""
    trust: bool = False

    def score(self, folder: Path, experiment: AnyExperiment, worlds: int) -> dict[str, list[Run]]:
        """Each on the worlds of a comparison, in FOLDER/LIBRARY-FILE/seed-0."""
        runs = {}
        for policy in self.files:
            library, _, file = policy.partition(":")
            name = f"{library}-{Path(file).stem}"
            evaluate_policy(
                policy, experiment, run=folder / name / "seed-0", activation=self.activation, trust=self.trust,
                worlds=worlds, seed=score.EVALUATION_SEED_OFFSET, baselines=False,
            )  # fmt: skip
            runs[name] = [Run.open(folder / name / "seed-0")]
        return runs


def compare(
    folder: Path,
    name: str,
    planned: Mapping[Path, AnyExperiment],
    worlds: int = 500,
    jobs: int = 0,
    foreign: ForeignPolicies = ForeignPolicies(),
) -> tuple[Path, list[dict[str, Any]]] | None:
    """Train and score experiments on the same worlds and write one page about them; None if one did not finish.

    What is done is kept and not repeated. The folders of `planned` are FOLDER/NAME/seed-N.
    """
    for policy in foreign.files:  # refused before anything is trained
        load_policy(policy, next(iter(planned.values())).task, foreign.activation, foreign.trust)
    begun = {path: Run.open(path) for path in planned if (path / "experiment.json").exists()}
    for path, experiment in planned.items():
        if path in begun and begun[path].experiment != experiment:
            raise ValueError(f"{path} was trained with other settings; choose another --folder")
        if path.name == "seed-0":
            require_trainable(experiment)
    runs: dict[str, list[Run]] = {}
    for path, experiment in planned.items():
        runs.setdefault(path.parent.name, []).append(begun.get(path) or Run.create(path, experiment))
    if not complete_all([run for some in runs.values() for run in some], worlds, jobs):
        return None
    runs |= foreign.score(folder, next(iter(planned.values())), worlds)
    with CountingBar("films") as bar:
        path = comparison.write(folder, name, runs, watch=bar.update)
    return path, comparison.rows_of(runs)


def compare_libraries(
    folder: Path,
    work: Work,
    libraries: Sequence[str],
    seeds: int,
    ours: str,
    command: str,
    watch: Callable[[str], None],
) -> dict[str, Any]:
    """Train one preset by several libraries, one after the other on one core, and write a page about them.

    What is done is kept and not repeated. With `ours` Slipstream trains by that preset instead of doing the same work.
    """
    runs: dict[str, list[Trial]] = {library: [] for library in libraries}
    for seed in range(seeds):
        for library in libraries:
            own = {"preset": ours, "own_preset": True} if ours and library == "slipstream" else {}
            trial = Trial(folder / library / f"seed-{seed}", library, replace(work, seed=seed, **own))
            runs[library].append(trial)
            if not trial.done:
                watch(f"{trial.name} begins")
                trial.run(lambda text, seconds: watch(f"{text}, {seconds:.0f} s"), last_core())
    return libraries_page.write(folder, work.preset, registry.presets()[work.preset].task, runs, command)


def last_core() -> int | None:
    """The core on which libraries train, where a process can be kept to one."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def complete_all(runs: list[Run], worlds: int, jobs: int) -> bool:
    """Train and score what is not yet, several at once if one device is enough for each; false if not all could be."""
    jobs = jobs or (default_jobs() if all(run.experiment.devices == 1 for run in runs) else 1)
    if jobs == 1:
        for number, run in enumerate(runs, 1):
            print(f"{run.folder.parent.name}, {run.name} ({number} of {len(runs)})", file=sys.stderr, flush=True)
            if not complete(run, worlds, baselines=run is runs[0]):
                return False
        return True
    left = [run for run in runs if not is_scored(run, worlds, baselines=run is runs[0])]
    steps = {run.folder: run.experiment.steps for run in left}
    sources = tuple(sorted({registry.task_source(run.experiment.task) for run in left}))
    work = partial(complete_in_worker, worlds=worlds, with_baselines=runs[0].folder, sources=sources)
    with ParallelBar(f"{len(left)} runs, {jobs} at once", steps) as bar:
        failed = run_parallel(list(steps), work, jobs, bar.update)
    for folder in failed:
        print(f"{folder} was not finished: {folder / LOG} says why", file=sys.stderr, flush=True)
    return not failed


def complete_in_worker(folder: Path, worlds: int, with_baselines: Path, sources: tuple[str, ...]) -> int:
    """In a process of its own: an exit code instead of a traceback. `sources` are tasks that the user has named."""
    try:
        for source in sources:
            if not source.startswith("slipstream."):
                registry.find_task(source)
        return 0 if complete(Run.open(folder), worlds, folder == with_baselines) else 1
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        print(f"slipstream: {explained[0]}", file=sys.stderr, flush=True)
        return explained[1]


def explain(error: Exception) -> tuple[str, int] | None:
    """What to tell a person about an error that they can put right, and the exit code: 2 if the request was wrong.

    None if the error is a bug of ours, which needs its traceback.
    """
    if isinstance(error, RunError | ValueError):
        return str(error), 2
    if isinstance(error, CheckpointError | TrainingError | PlantError):
        return str(error), 1
    text = lack_of_memory(error)
    return None if text is None else (text, 1)


def is_trained(run: Run) -> bool:
    return (run.checkpoint_steps or [0])[-1] >= steps_of(run.experiment)


def is_scored(run: Run, worlds: int, baselines: bool) -> bool:
    """Whether the newest policy of a run, and if wanted the scripts, were scored on so many unseen worlds."""
    found = run.summaries().get("fast", {})
    wanted = {
        "worlds": worlds * run.experiment.seeds,
        "checkpoint": (run.checkpoint_steps or [0])[-1],
        "seed": score.EVALUATION_SEED_OFFSET,
        "policy": "average",
    }
    same = {name: found.get(name) for name in wanted} == wanted
    has_scripts = "baselines" in found or not run.experiment.task.baselines()
    return is_trained(run) and same and (has_scripts or not baselines)


def complete(run: Run, worlds: int, baselines: bool) -> bool:
    """Train what is left of a run, if any, and score it unless that was done; false if a person stopped it."""
    if not is_trained(run):
        status = train_run(run, bool(run.checkpoint_steps))
        if status.step < status.steps:
            return False
    if not is_scored(run, worlds, baselines):
        evaluate(run, worlds=worlds, seed=score.EVALUATION_SEED_OFFSET, baselines=baselines)
    return True
