"""Scoring a run on a plant: many worlds, the same scripts beside it, intervals, and what is kept on disk."""

import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..experiment.experiment import SEEDS
from ..plants.plant import AnyTask, Plant, PlantError
from ..plants.registry import PLANTS
from ..plants.settings import DEFAULT_EPISODES, PlantSettings
from ..runs.files import json_safe, json_text, write_text
from ..runs.run import Run, RunError
from . import intervals
from .episode import METRICS_FILE, save_arrays
from .pilot import Pilot, load_policies, scripted_pilot, trained_pilot
from .runner import EvaluationResult, Watch, run_episodes, unwatched

EVALUATION_SEED_OFFSET = 1_000_003
"""Added to the seed of a training, so that no start of an evaluation was trained on."""
CHECKPOINTS = ("average", "last", "best")


def evaluate(
    run: Run,
    plant: str = "fast",
    worlds: int | None = None,
    seed: int | None = None,
    checkpoint: str = "average",
    keep: int = 16,
    watch: Watch = unwatched,
    settings: PlantSettings = PlantSettings(),
    task: AnyTask | None = None,
    baselines: bool = True,
    pilots: Sequence[Pilot] = (),
) -> dict[str, Any]:
    """Score a run on a plant by so many worlds, or by as many as take minutes; writes episodes and summary.json.

    `task` is the task of the run with other settings; its results stand beside those of the task trained on.
    With `baselines` the task's scripts run on the same worlds. `pilots` fly instead of the policies of the run.
    """
    if plant not in PLANTS:
        raise PlantError(f"the plant '{plant}' cannot be used here")
    body = PLANTS[plant](settings)
    experiment = run.experiment
    label = plant_label(plant if settings.camera == "ours" else f"{plant}-{settings.camera}", experiment.task, task)
    evaluated = with_same_interface(experiment.task, task).for_evaluation()
    agents = evaluated.spec.agents
    worlds = default_worlds(plant, agents) if worlds is None else worlds
    seed = (experiment.seed + EVALUATION_SEED_OFFSET) % SEEDS if seed is None else seed
    if worlds < 1:
        raise ValueError("at least 1 world is needed")
    if not 0 <= seed < SEEDS:
        raise ValueError(f"a seed lies between 0 and {SEEDS - 1}")
    step = 0
    if not pilots:
        step, policies = load_policies(run, checkpoint)
        pilots = [trained_pilot(evaluated, policy) for policy in policies]
    began = time.perf_counter()
    results = [run_episodes(evaluated, pilot, body, worlds, seed, keep, watch) for pilot in pilots]
    seconds = time.perf_counter() - began
    metrics = {name: np.concatenate([r.metrics[name] for r in results]) for name in results[0].metrics}
    summary: dict[str, Any] = {
        "plant": label,
        "worlds": worlds * len(results),
        "episodes": worlds * len(results) * agents,
        "agents": agents,
        **scores(evaluated, metrics),
        "return_std": float(np.std(metrics["episode_return"])),
        "failed": int(np.sum(metrics["failed"])),
        **body.diagnostics(),
        "checkpoint": step,
        "policy": checkpoint if checkpoint in CHECKPOINTS else "step",
        "seed": seed,
        "seconds": round(seconds, 2),
    }
    if len(results) > 1:
        summary["seeds"] = [scores(evaluated, result.metrics) for result in results]
    if baselines and not body.max_worlds:  # a plant that runs a few worlds at a time has no hours for scripts
        scripted = run_baselines(evaluated, body, worlds, seed, watch)
        if scripted:
            summary["baselines"] = scripted
    summary = json_safe(summary)
    store(run, label, results[0], metrics, summary)
    return summary


def scores(task: AnyTask, metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Success and return with 95 % intervals, and the task's own summary."""
    agents = task.spec.agents
    found: dict[str, Any] = {"success_rate": None, "success_rate_95": None}
    if "success" in metrics:
        found = {
            "success_rate": float(np.mean(metrics["success"])),
            "success_rate_95": intervals.rate(metrics["success"], agents),
        }
    returns = metrics["episode_return"]
    found |= {"return_mean": float(np.mean(returns)), "return_mean_95": intervals.mean(returns, agents)}
    return found | task.summary(metrics)


def run_baselines(task: AnyTask, plant: Plant, worlds: int, seed: int, watch: Watch) -> dict[str, Any]:
    """The task's scripts on the same worlds."""
    return {
        name: scores(task, run_episodes(task, scripted_pilot(script), plant, worlds, seed, 1, watch).metrics)
        for name, script in task.baselines().items()
    }


def store(
    run: Run, label: str, result: EvaluationResult, metrics: dict[str, np.ndarray], summary: dict[str, Any]
) -> None:
    """Write episodes/LABEL anew."""
    folder = run.episodes(label)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, episode in enumerate(result.episodes):
            episode.save(folder / f"{number:04d}.npz")
        save_arrays(folder / METRICS_FILE, metrics)
        write_text(folder / "summary.json", json_text(summary))
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from error


def default_worlds(plant: str, agents: int) -> int:
    """As many worlds as take minutes; those of the fast plant cost nothing."""
    episodes = DEFAULT_EPISODES[plant]
    return episodes if plant == "fast" else -(-episodes // agents)


def with_same_interface(trained: AnyTask, other: AnyTask | None) -> AnyTask:
    """The task to evaluate, as long as a policy of the trained one can act in it."""
    if other is None:
        return trained
    ours, theirs = (replace(task.spec, agents=1) for task in (trained, other))
    if ours != theirs:
        raise ValueError(
            f"with those settings the policy cannot act: it was trained for {ours}, and the task now has {theirs}"
        )
    return other


def plant_label(plant: str, trained: AnyTask, other: AnyTask | None) -> str:
    """The folder of an evaluation: the plant, and the settings that differ from those trained with."""
    if other is None or other == trained:
        return plant
    return "-".join([plant, *(f"{name}={value}" for name, value in sorted(changed_settings(trained, other).items()))])


def changed_settings(trained: AnyTask, other: AnyTask, prefix: str = "") -> dict[str, Any]:
    """Settings of two tasks of one class that differ, nested ones by their path."""
    found: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(trained)):  # pyright: ignore[reportArgumentType]
        ours, theirs = getattr(trained, name), getattr(other, name)
        if ours == theirs:
            continue
        if hasattr(ours, "__dataclass_fields__"):
            found |= changed_settings(ours, theirs, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = theirs
    return found
