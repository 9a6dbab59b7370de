"""slipstream compare: train several agents on the same worlds and write one page about them."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..adapters.libraries import require_library
from ..comparison.settings import read_settings
from ..comparison.work import LIBRARIES, MODULES, SETTINGS, Work
from ..core.errors import require_choice, suggest
from ..experiment import registry
from ..experiment.experiment import Experiment
from ..pipeline.comparison import ForeignPolicies, Libraries, compare, compare_libraries
from ..pipeline.training import find_experiment, with_learner
from ..progress import CountingBar
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
    libraries: Annotated[str, tyro.conf.arg(name="with")] = ""
    """libraries whose PPO trains the same preset instead, such as slipstream,sb3,sbx,skrl,rsl_rl,rl_games,torchrl"""
    seconds: float = 60.0
    """with libraries: seconds of each training, CPU time on a CPU"""
    looks: int = 8
    """with libraries: how often policies are scored along the way"""
    skill: str = "success=0.9"
    """with libraries: a training ends once the policy has this, such as success=0.9,lap_time<6.5; empty trains on"""
    batch: str = ""
    """with libraries: other settings of the work, such as worlds=1024,epochs=4,minibatches=4"""
    settings: str = ""
    """with libraries: 'tuned' for settings that were found best for each library, or a JSON file of yours: {"sb3":
    {"worlds": 512}}; they override --batch"""
    ours: str = ""
    """with libraries: the preset by which Slipstream trains, if that is not to do the same work"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run(words: list[str]) -> int:
    options = parse(CompareOptions, words, "compare")
    if options.libraries:
        return run_libraries(options, shlex.join(["slipstream", "compare", *words]))
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


def run_libraries(options: CompareOptions, command: str) -> int:
    """Train one preset by several libraries and write a page about them, which tells the command."""
    asked = _listed(options.libraries)
    for library in asked:
        require_choice("library", library, LIBRARIES)
        require_library(MODULES[library], f"a comparison with {library}")
    presets = registry.presets()
    for name in [options.name, *([options.ours] if options.ours else [])]:
        if name not in presets:
            raise ValueError(f"there is no preset '{name}'{suggest(name, presets)}")
    if options.seconds <= 0.0 or options.looks < 0 or options.seeds < 1:
        raise ValueError("--seconds must be positive, --seeds at least 1 and --looks not negative")
    work = Work.of(options.name, presets[options.name], seconds=options.seconds, looks=options.looks)
    work = replace(work, skill=read_skill(options.skill), samples=options.steps, **read_batch(options.batch))
    settings = read_settings(options.settings, work) if options.settings else {}
    folder = options.folder or Path("runs") / f"libraries-{options.name}"
    with CountingBar("trials") as bar:
        trials = Libraries(tuple(asked), settings, options.seeds, options.ours)
        found = compare_libraries(folder, work, trials, command, bar.say)
    page = folder / "libraries.html"
    emit(found | {"page": str(page)}, options.json, lambda: f"{found['answer']}\nPage: {page.resolve()}")
    return 1 if any("failure" in one for one in found["libraries"].values()) else 0


def read_skill(text: str) -> tuple[tuple[str, float], ...]:
    """`success=0.9,lap_time<6.5` as metrics and bounds; upper bounds are negative."""
    found = []
    for part in _listed(text):
        name, mark, bound = part.partition("<") if "<" in part else part.partition("=")
        try:
            value = float(bound)
        except ValueError:
            raise ValueError(f"--skill is a list such as success=0.9,lap_time<6.5, not '{text}'") from None
        found.append((name.strip(), -value if mark == "<" else value))
    return tuple(found)


def read_batch(text: str) -> dict[str, Any]:
    """`worlds=1024,epochs=4` as settings of the work."""
    kinds = {name: type(getattr(Work(), name)) for name in SETTINGS if name not in ("hidden_sizes", "task")}
    found: dict[str, Any] = {}
    for part in _listed(text):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in kinds:
            raise ValueError(f"'{name}' is not a setting of the work{suggest(name, kinds)}")
        try:
            found[name] = value in ("true", "1") if kinds[name] is bool else kinds[name](value)
        except ValueError:
            raise ValueError(f"{name} is a number, not '{value}'") from None
    return found


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
