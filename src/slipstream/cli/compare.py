"""slipstream compare: train several agents on the same worlds and write one page about them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from ..core.errors import suggest
from ..experiment import registry
from ..experiment.experiment import Experiment
from ..pipeline import ForeignPolicies, compare, find_experiment, with_learner
from .options import emit, parse, say


@dataclass(frozen=True)
class CompareOptions:
    """Train and score several agents on the same worlds and write one page about them; what is done is not repeated."""

    name: tyro.conf.Positional[str]
    """a comparison (see `slipstream list`), or a preset or FILE.py:Task that is trained by several learners"""
    presets: str = ""
    """only these presets of a comparison, separated by commas"""
    learners: str = ""
    """learners to compare on a preset or task, such as ppo,sac; by default all that take its actions"""
    policies: str = ""
    """policies of other libraries to compare with, as LIBRARY:FILE separated by commas (see `slipstream evaluate`)"""
    activation: str = ""
    """activation of their hidden layers, where their files do not say it"""
    trust: bool = False
    """load their files even if that runs code that is in them"""
    folder: Path | None = None
    """where the runs and the page go; by default runs/compare-NAME"""
    seeds: int = 3
    """seeds of each agent"""
    worlds: int = 500
    """worlds each agent is scored on, for every seed"""
    steps: int = 0
    """training steps, instead of each preset's"""
    jobs: int = 0
    """trainings at once, each with a core of its own; 0 is one for every core, and one at a time elsewhere"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run(words: list[str]) -> int:
    options = parse(CompareOptions, words, "compare")
    if options.seeds < 1 or options.worlds < 1 or min(options.steps, options.jobs) < 0:
        raise ValueError("--seeds and --worlds must be at least 1, --steps and --jobs not negative")
    agents, name = find_agents(options)
    folder = options.folder or Path("runs") / f"compare-{name}"
    planned = {
        folder / agent / f"seed-{seed}": replace(experiment, seed=seed, steps=options.steps or experiment.steps)
        for agent, experiment in agents.items()
        for seed in range(options.seeds)
    }
    foreign = ForeignPolicies(tuple(_listed(options.policies)), options.activation, options.trust)
    done = compare(folder, name, planned, options.worlds, options.jobs, foreign)
    if done is None:
        say("what is done is kept; the same command goes on")
        return 1
    page, rows = done
    emit({"page": str(page), "rows": rows}, options.json, lambda: format_rows(rows, page))
    return 0


def find_agents(options: CompareOptions) -> tuple[dict[str, Experiment[Any, Any]], str]:
    """The experiments that are compared, by name, and the name of the comparison."""
    comparisons, presets = registry.comparisons(), registry.presets()
    if options.name in comparisons:
        known = comparisons[options.name]
        names = _listed(options.presets) or list(known)
        for name in names:
            if name not in known:
                raise ValueError(f"'{name}' is not part of this comparison{suggest(name, known)}")
        return {name: presets[name] for name in names}, options.name
    if options.name not in presets and ":" not in options.name:
        choices = [*comparisons, *presets]
        raise ValueError(f"there is no comparison or preset '{options.name}'{suggest(options.name, choices)}")
    experiment, name = find_experiment(options.name)
    names = _listed(options.learners) or [learner for learner in registry.LEARNERS if _accepts(experiment, learner)]
    # One device each, so that several are trained at once.
    return {learner: replace(with_learner(experiment, learner), devices=1) for learner in names}, name


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _accepts(experiment: Experiment[Any, Any], learner: str) -> bool:
    """Whether a learner can train the task."""
    try:
        with_learner(experiment, learner).learner.check(experiment.task, 1)
    except ValueError:
        return False
    return True


def format_rows(rows: list[dict[str, Any]], page: Path) -> str:
    lines = []
    for row in rows:
        known = {key: value for key, value in row["metrics"].items() if value is not None}
        lines.append(f"{row['name']:28} " + ", ".join(f"{k.replace('_', ' ')} {v:.3g}" for k, v in known.items()))
    return "\n".join([*lines, f"Page: {page.resolve()}"])
