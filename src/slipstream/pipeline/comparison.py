"""Several runs beside each other: agents on the same worlds, and the same task under other libraries."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..adapters.foreign import load_policy
from ..comparison import page as libraries_page
from ..comparison.settings import Settings
from ..comparison.trials import Trial
from ..comparison.work import Work
from ..evaluation import score
from ..experiment import registry
from ..progress import CountingBar, ParallelBar
from ..reports import compare as comparison
from ..runs.parallel import LOG, default_jobs, run_parallel
from ..runs.run import Run
from ..runs.train import steps_of
from .errors import explain
from .stages import evaluate, evaluate_policy
from .training import AnyExperiment, require_trainable, train_run


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


@dataclass(frozen=True)
class Libraries:
    """Which libraries train, and how."""

    names: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    seeds: int = 1
    ours: str = ""
    """the preset by which Slipstream trains, instead of doing the same work"""

    def work_of(self, library: str, work: Work) -> Work:
        """What this library is given to do."""
        if self.ours and library == "slipstream":
            return replace(work, preset=self.ours, own_preset=True)
        return work.tuned(self.settings.get(library, {}))


def compare_libraries(
    folder: Path,
    work: Work,
    libraries: Libraries,
    command: str,
    watch: Callable[[str], None],
) -> dict[str, Any]:
    """Train one preset by several libraries, one after the other on one core, and write a page about them.

    What is done is kept and not repeated.
    """
    runs: dict[str, list[Trial]] = {library: [] for library in libraries.names}
    for seed in range(libraries.seeds):
        for library in libraries.names:
            given = replace(libraries.work_of(library, work), seed=seed)
            trial = Trial(folder / library / f"seed-{seed}", library, given)
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
