"""What follows a training: evaluation, film and report."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..adapters.foreign import foreign_pilot, load_policy
from ..core.task import Task
from ..evaluation import score
from ..experiment.experiment import Experiment
from ..learn.foreign import ForeignPolicy
from ..plants.registry import PLANTS, require_plant
from ..plants.settings import PlantSettings
from ..progress import CountingBar
from ..reports import page, video
from ..runs.run import Run
from ..runs.train import TrainingStatus
from .training import AnyExperiment, RunLike, configure, find_experiment, open_run, train_run


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
