"""The command line: what a person types, checked before anything is compiled or written."""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from . import __version__
from .core.errors import suggest
from .plants.settings import PlantSettings

USAGE = """usage: slipstream COMMAND [options]

  list                   tasks, algorithms, presets, plants, and what this machine can run
  train PRESET           train, with a live progress bar
  evaluate RUN           score the policy of a run on a plant
  video RUN              film it
  report RUN             one self-contained HTML page
  pipeline PRESET        train, evaluate, video and report in one go
  fit --plant PLANT      tune the fast model to a plant, or with --log to a flight log
  parity RUN             how far apart plants are: the same policy on each, side by side
  compare NAME           train several agents on the same worlds: one table, their curves, the hardest worlds filmed
  bench [WHAT]           throughput here: sim, render, act, train or memory
  doctor                 what is installed and what is missing, in words

slipstream COMMAND --help tells more. Exit codes: 0 done, 1 the work failed, 2 the request was wrong."""


class RequestError(Exception):
    """The request was wrong: what, and the nearest valid choice."""


def say(text: str) -> None:
    """A line for a person, on standard error."""
    print(text, file=sys.stderr, flush=True)


def give(result: dict[str, Any], as_json: bool, words: Callable[[], None]) -> None:
    """The result: one JSON object on standard output, or words for a person."""
    if as_json:
        print(json.dumps(result))
    else:
        words()


def parse(kind: Any, words: list[str], command: str, default: Any = None) -> Any:
    """Options as a dataclass; tyro names the nearest option itself and exits with 2."""
    extra = {} if default is None else {"default": default}
    return tyro.cli(kind, args=words, prog=f"slipstream {command}", **extra)


def preset_of(words: list[str], command: str) -> tuple[str, list[str]]:
    """The preset a command starts with."""
    from .experiment.experiment import PRESETS

    if words and not words[0].startswith("-"):
        if words[0] not in PRESETS and not words[0].endswith(".json"):
            raise RequestError(f"there is no preset '{words[0]}'{suggest(words[0], PRESETS)}")
        return words[0], words[1:]
    if any(word in ("-h", "--help") for word in words):
        return next(iter(PRESETS)), words
    raise RequestError(f"slipstream {command} needs a preset: {', '.join(PRESETS)}")


def named(preset: str) -> Any:
    """The experiment of a preset, or of a file that `slipstream fit` wrote."""
    from .experiment.experiment import PRESETS, Experiment

    if preset in PRESETS:
        return PRESETS[preset]
    try:
        return Experiment.from_dict(json.loads(Path(preset).read_text()))
    except OSError as error:
        raise RequestError(f"{preset} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise RequestError(f"{preset} is no preset: {error}") from error


@dataclass(frozen=True)
class Where:
    """Where a training lives."""

    run: Path | None = None
    """folder of the run; by default runs/PRESET"""
    resume: bool = False
    """go on with the run that is there"""
    origin: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """a run whose policy, and without a preset whose settings, this training begins with"""
    vehicle: Literal["", "fast", "cascade"] = ""
    """fast: the model made for training; cascade: rotors under the loops of PX4, nearer to the reference and slower"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def training_request(words: list[str], command: str) -> tuple[Any, Where]:
    """The run to train and the options, all checked."""
    from .experiment.experiment import Experiment
    from .runs.run import Run

    if "--resume" in words and (not words or words[0].startswith("-")):
        where = parse(Where, words, command)
        if where.run is None:
            raise RequestError("--resume without a preset needs --run FOLDER")
        return Run.open(where.run), where
    if "--from" in words[:-1] and words[0].startswith("-"):
        origin = Path(words[words.index("--from") + 1])
        preset, name = Run.open(origin).experiment, f"{origin.resolve().name}-again"
    else:
        name, words = preset_of(words, command)
        preset, name = named(name), Path(name).stem
    kind = Experiment[type(preset.task), type(preset.learner)]

    @dataclass(frozen=True)
    class Request:
        experiment: Annotated[kind, tyro.conf.arg(name="")]  # pyright: ignore[reportInvalidTypeForm]
        where: Annotated[Where, tyro.conf.arg(name="")]

    Request.__doc__ = f"Train the preset '{name}'. Every setting below can be changed."
    request = parse(Request, words, f"{command} {name}", Request(preset, Where()))
    where = replace(request.where, run=request.where.run or Path("runs") / name)
    experiment = changed(request.experiment, where)
    assert where.run is not None
    if where.resume:
        run = Run.open(where.run)
        if experiment not in (preset, run.experiment):
            raise RequestError(f"{where.run} was started with other settings; resume it without changing any")
        return run, where
    check(experiment)
    return Run.create(where.run, experiment), where


def changed(experiment: Any, where: Where) -> Any:
    """The experiment with what `--from` and `--vehicle` say about it."""
    from .runs.run import Run

    if where.vehicle and not hasattr(experiment.task, "model"):
        raise RequestError("--vehicle is for drones; other tasks have vehicles of their own among their settings")
    if where.vehicle:
        experiment = replace(experiment, task=replace(experiment.task, model=where.vehicle))
    if where.origin is None:
        return experiment
    theirs, ours = Run.open(where.origin).experiment, experiment
    if (theirs.task.spec, theirs.learner.hidden) != (ours.task.spec, ours.learner.hidden):
        raise RequestError(f"the policy of {where.origin} does not fit: it sees, does or is built otherwise")
    return replace(experiment, origin=str(where.origin))


def check(experiment: Any) -> None:
    """Refuse an experiment that cannot run on this machine, before its folder is made."""
    configure(experiment.devices, sees(experiment))
    from .runs.train import check_memory, trainer_of

    check_memory(trainer_of(experiment))


def sees(experiment: Any) -> bool:
    """Whether its agents have cameras."""
    return experiment.task.spec.image_shape is not None


def configure(devices: int = 0, pictures: bool = False) -> None:
    from .core import device

    device.configure(devices or None, pictures)


def opened(folder: Path) -> Any:
    """A run to look at, on one device: JAX is set up before anything of it can be compiled."""
    from .runs.run import Run

    run = Run.open(folder)
    configure(1, sees(run.experiment))
    return run


# Commands


def command_train(words: list[str]) -> int:
    run, where = training_request(words, "train")
    result = train(run, where.resume)
    give(result, where.json, lambda: print(told(result)))
    return 0


def train(run: Any, resume: bool) -> dict[str, Any]:
    """Train under a progress bar; Ctrl-C saves and says how to go on."""
    configure(run.experiment.devices, sees(run.experiment))
    from .progress import Bar
    from .runs.train import train as training

    stopping = False

    def stop(*_: Any) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True
        say("stopping after this chunk; once more to stop at once")

    before = signal.signal(signal.SIGINT, stop)
    try:
        with Bar(run.name) as bar:
            look = training(run, resume, bar.look, bar.say, stop=lambda: stopping)
    finally:
        signal.signal(signal.SIGINT, before)
    if stopping and look.step < look.steps:
        say(f"saved at step {look.step:,}. Go on with: slipstream train --resume --run {run.folder}")
    return {
        "run": str(run.folder),
        "step": look.step,
        "steps": look.steps,
        "seconds": round(look.seconds, 2),
        "steps_per_second": round(look.rate),
        "finished": look.step >= look.steps,
        **{name: None if math.isnan(value) else round(value, 6) for name, value in look.metrics.items()},
    }


def told(result: dict[str, Any]) -> str:
    success = f", success {100 * result['success']:.0f} %" if result.get("success") is not None else ""
    lap = f", lap {result['lap_time']:.2f} s" if result.get("lap_time") else ""
    return (
        f"{result['run']}: {result['step']:,} steps in {result['seconds']:.0f} s "
        f"({result['steps_per_second']:,} a second){success}{lap}"
    )


@dataclass(frozen=True)
class Evaluate:
    """Score the policy of a run on a plant; writes episodes and summary.json into the run."""

    run: tyro.conf.Positional[Path]
    """folder of the run"""
    plant: str = "fast"
    """what moves the bodies: fast, mujoco, betaflight or px4"""
    episodes: int | None = None
    """worlds to fly, each with all its agents; without this, as many as the plant flies in minutes"""
    checkpoint: str = "average"
    """average (of the weights over the last part of the training), last, best, or a step"""
    seed: int | None = None
    """of the starts; by default one that training never used"""
    changed: str = ""
    """settings of the task that differ from those trained with, such as vessels=7,buoys=8"""
    scripts: bool = True
    """whether the task's scripts fly the same worlds, to compare with"""
    settings: tyro.conf.OmitArgPrefixes[PlantSettings] = PlantSettings()
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def command_evaluate(words: list[str]) -> int:
    request = parse(Evaluate, words, "evaluate")
    summary = evaluate(request)
    give(summary, request.json, lambda: print(scored(summary)))
    return 0


def evaluate(request: Evaluate) -> dict[str, Any]:
    run = opened(request.run)
    from .evaluate.episode import PLANTS
    from .evaluate.episode import evaluate as evaluation
    from .progress import Count

    if request.plant not in PLANTS:
        raise RequestError(f"there is no plant '{request.plant}'{suggest(request.plant, PLANTS)}")
    if request.episodes is not None and request.episodes < 1:
        raise RequestError("--episodes must be at least 1")
    with Count(f"{request.plant} plant", request.episodes or 1) as count:
        return evaluation(
            run, request.plant, request.episodes, request.seed, request.checkpoint,
            watch=count.look, settings=request.settings, changes=read_changes(request.changed),
            scripts=request.scripts,
        )  # fmt: skip


def read_changes(text: str) -> dict[str, Any]:
    """`vessels=7,rules=false` as names and values."""
    found = {}
    for part in filter(None, text.split(",")):
        name, sign, value = part.partition("=")
        if not sign:
            raise RequestError(f"'{part}' is no setting; write it as name=value")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value.strip()
    return found


def scored(summary: dict[str, Any]) -> str:
    own = {k: v for k, v in summary.items() if isinstance(v, float) and k not in ("success_rate", "seconds")}
    rest = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in own.items())
    low, high = summary["success_rate_95"]
    sure = f" (95 %: {100 * low:.1f} to {100 * high:.1f})" if low is not None else ""
    return (
        f"{summary['plant']}: {100 * summary['success_rate']:.1f} % of {summary['episodes']} episodes succeed{sure}; "
        f"{rest}"
    )


@dataclass(frozen=True)
class Video:
    """Film a run: from above and from behind. Evaluates it first if that was not done."""

    run: tyro.conf.Positional[Path]
    plant: str = "fast"
    drones: int = 8
    """episodes shown at once"""
    seconds: float = 20.0
    json: bool = False


def command_video(words: list[str]) -> int:
    request = parse(Video, words, "video")
    path = video(request)
    give({"video": str(path)}, request.json, lambda: print(path))
    return 0


def video(request: Video) -> Path:
    run = opened(request.run)
    if not (run.episodes(request.plant) / "summary.json").exists():
        evaluate(Evaluate(request.run, request.plant))
    from .progress import Count
    from .report.video import film

    with Count("video", 1) as count:
        return film(run, request.plant, request.drones, request.seconds, watch=count.look)


@dataclass(frozen=True)
class Report:
    """One self-contained HTML page about a run. Evaluates and films it first if that was not done."""

    run: tyro.conf.Positional[Path]
    json: bool = False


def command_report(words: list[str]) -> int:
    request = parse(Report, words, "report")
    path = report(request)
    give({"report": str(path)}, request.json, lambda: print(path))
    return 0


def report(request: Report) -> Path:
    run = opened(request.run)
    if not run.summaries():
        evaluate(Evaluate(request.run))
    from .report.page import write
    from .report.video import filmed

    if filmed(run.experiment.task) and not any(run.videos):
        video(Video(request.run))
    return write(run)


def command_pipeline(words: list[str]) -> int:
    began = time.perf_counter()
    run, where = training_request(words, "pipeline")
    trained = train(run, where.resume)
    if not trained["finished"]:
        return 1
    summary = evaluate(Evaluate(run.folder))
    from .report.video import filmed

    film = str(video(Video(run.folder))) if filmed(run.experiment.task) else None
    page = report(Report(run.folder))
    result = {"run": str(run.folder), "training": trained, "evaluation": summary, "video": film}
    result |= {"report": str(page), "seconds": round(time.perf_counter() - began, 1)}

    def words_for() -> None:
        print(f"Report:   {page.resolve()}")
        print(f"Trained:  {told(trained)}")
        print(f"Achieved: {scored(summary)}")

    give(result, where.json, words_for)
    return 0


@dataclass(frozen=True)
class FitRequest:
    """Tune the fast model of a preset to a plant, or to a flight log, and write a preset that train takes."""

    preset: str = "survey-transit"
    """whose model is tuned; a survey by velocities, a race by thrust and body rates"""
    plant: str = "cascade"
    """cascade (on the device), mujoco, betaflight or px4"""
    log: Path | None = None
    """a PX4 flight log (.ulg) instead of a plant"""
    out: Path | None = None
    """where the preset is written; by default PRESET-PLANT.json"""
    flights: int = 24
    seconds: float = 20.0
    """of each flight"""
    seed: int = 0
    settings: tyro.conf.OmitArgPrefixes[PlantSettings] = PlantSettings()
    json: bool = False


def command_fit(words: list[str]) -> int:
    request = parse(FitRequest, words, "fit")
    if request.flights < 4 or request.seconds < 1.0:
        raise RequestError("a fit needs at least 4 flights of 1 s")
    base = named(request.preset)
    source = request.log.stem if request.log else request.plant
    out = request.out or Path(f"{Path(request.preset).stem}-{source}.json")
    if not os.access(out.parent, os.W_OK):
        raise RequestError(f"{out.parent} is no folder that can be written to; choose another by --out")
    configure(1)
    from .evaluate.fit import fit_experiment, write
    from .plants.registry import PLANTS
    from .progress import Count

    known = ["cascade", *(name for name in PLANTS if name != "fast")]
    if request.log is None and request.plant not in known:
        raise RequestError(f"there is no plant '{request.plant}' to fit to{suggest(request.plant, known)}")
    plant = None
    if request.log is None and request.plant != "cascade":
        plant = PLANTS[request.plant](request.settings)
    with Count("fit", 1) as count:
        experiment, found = fit_experiment(
            base, plant, request.log, request.flights, request.seconds, request.seed, request.settings.px4_version,
            watch=count.tell,
        )  # fmt: skip
    write(out, experiment, found)
    result = {"preset": str(out), **found.as_dict()}

    def words_for() -> None:
        print(f"{'number':20} {'found':>9} {'± error':>8} {'between flights':>16}")
        for name, value in found.parameters.items():
            print(f"{name:20} {value:9.3f} {100 * found.relative_error[name]:7.1f}% {100 * found.between_flight_std[name]:15.1f}%")
        ratio = found.error_before / max(found.error_after, 1e-9)
        print(f"held-out error: {found.error_before:.3f} before, {found.error_after:.3f} after ({ratio:.1f} times less)")
        if math.isfinite(found.step_error_after):
            ratio = found.step_error_before / max(found.step_error_after, 1e-9)
            before, after = found.step_error_before, found.step_error_after
            print(f"steps of 5 m/s: {before:.3f} m/s before, {after:.3f} after ({ratio:.1f} times less)")
        print(f"train on it: slipstream train {out}")

    give({k: None if isinstance(v, float) and math.isnan(v) else v for k, v in result.items()}, request.json, words_for)
    return 0


@dataclass(frozen=True)
class Parity:
    """Fly a run on several plants, same worlds and starts, and say how far apart they are; with a film of each pair."""

    run: tyro.conf.Positional[Path]
    """folder of the run"""
    plants: str = "fast,mujoco"
    """the first is what the others are compared with"""
    episodes: int | None = None
    """worlds to fly on each; without this, as many as the slowest flies in minutes"""
    seed: int | None = None
    settings: tyro.conf.OmitArgPrefixes[PlantSettings] = PlantSettings()
    json: bool = False


def command_parity(words: list[str]) -> int:
    request = parse(Parity, words, "parity")
    run = opened(request.run)
    from .evaluate.parity import compare, plain
    from .evaluate.parity import words as parity_words
    from .plants.registry import PLANTS
    from .progress import Count
    from .report.parity import film

    plants = [name.strip() for name in request.plants.split(",") if name.strip()]
    for name in plants:
        if name not in PLANTS:
            raise RequestError(f"there is no plant '{name}'{suggest(name, PLANTS)}")
    if len(plants) < 2 or len(set(plants)) < len(plants):
        raise RequestError("parity needs at least two different plants")
    if request.episodes is not None and request.episodes < 1:
        raise RequestError("--episodes must be at least 1")
    with Count("parity", 1) as count:
        result = compare(run, plants, request.episodes, request.seed, request.settings, watch=count.tell)
        films = [str(film(run, plants[0], other)) for other in plants[1:]]
    result |= {"films": films}

    def words_for() -> None:
        for other, found in result["plants"].items():
            for name, verdict in found["verdicts"].items():
                part = found.get(f"{name}_ratio")
                told = parity_words(part, plants[0]) if part else ""
                print(f"{other:12} {name:12} {verdict:5} {told}")
        print("\n".join(films))

    give(plain(result), request.json, words_for)
    return 0


@dataclass(frozen=True)
class Compare:
    """Train and score several agents on the same worlds and write one page about them; what is done is not repeated."""

    name: tyro.conf.Positional[str]
    """of a comparison, such as marine"""
    agents: str = ""
    """only these presets of it, such as marine,marine-sac"""
    folder: Path | None = None
    """where the runs and the page go; by default runs/compare-NAME"""
    seeds: int = 3
    episodes: int = 500
    """worlds each is scored on, for every seed"""
    steps: int = 0
    """of training, instead of each preset's"""
    jobs: int = 0
    """trainings at once, each with a core of its own; 0 is one for every core, and one at a time elsewhere"""
    json: bool = False


def command_compare(words: list[str]) -> int:
    request = parse(Compare, words, "compare")
    from .experiment.experiment import COMPARISONS, PRESETS
    from .runs.run import Run

    if request.name not in COMPARISONS:
        raise RequestError(f"there is no comparison '{request.name}'{suggest(request.name, COMPARISONS)}")
    agents = [name.strip() for name in request.agents.split(",") if name.strip()] or COMPARISONS[request.name]
    for name in agents:
        if name not in COMPARISONS[request.name]:
            raise RequestError(f"'{name}' is not compared here{suggest(name, COMPARISONS[request.name])}")
    if request.seeds < 1 or request.episodes < 1 or min(request.steps, request.jobs) < 0:
        raise RequestError("--seeds and --episodes must be at least 1, --steps and --jobs not negative")
    folder = request.folder or Path("runs") / f"compare-{request.name}"
    planned = {
        folder / name / f"seed-{seed}": replace(PRESETS[name], seed=seed, steps=request.steps or PRESETS[name].steps)
        for name in agents
        for seed in range(request.seeds)
    }
    begun = {path: Run.open(path) for path in planned if (path / "experiment.json").exists()}
    for path, experiment in planned.items():
        if path in begun and begun[path].experiment != experiment:
            raise RequestError(f"{path} was trained with other settings; choose another --folder")
        if experiment.seed == 0:
            check(experiment)
    runs: dict[str, list[Run]] = {name: [] for name in agents}
    for path, experiment in planned.items():
        runs[path.parent.name].append(begun.get(path) or Run.create(path, experiment))
    if not all_completed([run for some in runs.values() for run in some], request.episodes, request.jobs):
        say("what is done is kept; the same command goes on")
        return 1
    from .progress import Count
    from .report.compare import rows_of, write

    with Count("films", 1) as count:
        page = write(folder, request.name, runs, watch=count.look)
    rows = rows_of(runs)

    def words_for() -> None:
        for row in rows:
            text = ", ".join(
                f"{key.replace('_', ' ')} {value:.3g}" for key, value in row["figures"].items() if value is not None
            )
            print(f"{row['name']:20} {text}")
        print(f"Page: {page.resolve()}")

    give({"page": str(page), "rows": rows}, request.json, words_for)
    return 0


def all_completed(runs: list[Any], episodes: int, jobs: int) -> bool:
    """Train and score what is not yet, several at once if one device is enough for each; false if not all could be."""
    from .progress import Runs
    from .runs.parallel import LOG, most, side_by_side

    jobs = jobs or (most() if all(run.experiment.devices == 1 for run in runs) else 1)
    if jobs == 1:
        for number, run in enumerate(runs, 1):
            say(f"{run.folder.parent.name}, {run.name} ({number} of {len(runs)})")
            if not completed(run, episodes, scripts=run is runs[0]):
                return False
        return True
    left = [run for run in runs if not scored_already(run, episodes, scripts=run is runs[0])]
    steps = {run.folder: run.experiment.steps for run in left}
    work = partial(completed_alone, episodes=episodes, with_scripts=runs[0].folder)
    with Runs(f"{len(left)} runs, {jobs} at once", steps) as bar:
        failed = side_by_side(list(steps), work, jobs, bar.look)
    for folder in failed:
        say(f"{folder} was not finished: {folder / LOG} says why")
    return not failed


def completed_alone(folder: Path, episodes: int, with_scripts: Path) -> int:
    """In a process of its own: an exit code instead of a traceback."""
    from .runs.run import Run

    return guarded(lambda _: 0 if completed(Run.open(folder), episodes, folder == with_scripts) else 1, [])


def scored_already(run: Any, episodes: int, scripts: bool) -> bool:
    """Whether the newest policy of a run, and if wanted the scripts, went through so many worlds no training had."""
    from .evaluate.episode import EVALUATION_SEED_OFFSET

    found = run.summaries().get("fast", {})
    wanted = {
        "episodes": episodes,
        "checkpoint": (run.steps or [0])[-1],
        "seed": EVALUATION_SEED_OFFSET,
        "policy": "average",
    }
    same = {name: found.get(name) for name in wanted} == wanted
    return trained_already(run) and same and ("baselines" in found or not scripts)


def trained_already(run: Any) -> bool:
    from .runs.train import steps_of

    return (run.steps or [0])[-1] >= steps_of(run.experiment)


def completed(run: Any, episodes: int, scripts: bool) -> bool:
    """Train what is left of a run, if any, and score it unless that was done; false if a person stopped it."""
    if not trained_already(run) and not train(run, bool(run.steps))["finished"]:
        return False
    from .evaluate.episode import EVALUATION_SEED_OFFSET

    if not scored_already(run, episodes, scripts):
        evaluate(Evaluate(run.folder, episodes=episodes, seed=EVALUATION_SEED_OFFSET, scripts=scripts))
    return True


@dataclass(frozen=True)
class Bench:
    """Throughput on this machine, and where the time goes."""

    what: tyro.conf.Positional[Literal["sim", "render", "act", "train", "memory"]] = "sim"
    """sim: worlds alone; render: cameras alone; act: with a policy; train: learning too; memory: what a world takes"""
    task: str = "racing"
    preset: str = "racing"
    worlds: int = 0
    """how many; 0 is as many as make 4096 agents, and for memory the preset's"""
    devices: int | None = None
    """0 is all of them; without this, all for act and train, as training has them, and one for the others"""
    epochs: int = 0
    """of train, instead of the preset's"""
    minibatches: int = 0
    """of train, instead of the preset's"""
    cameras: int = 32
    """of render; likewise the following"""
    width: int = 80
    height: int = 80
    shapes: int = 32
    sight: Literal["", "rgb", "depth"] = ""
    """of act, instead of the preset's; likewise the following"""
    pixels: int = 0
    json: bool = False


def command_bench(words: list[str]) -> int:
    request = parse(Bench, words, "bench")
    from .experiment.experiment import PRESETS, TASKS

    if request.task not in TASKS:
        raise RequestError(f"there is no task '{request.task}'{suggest(request.task, TASKS)}")
    if request.preset not in PRESETS:
        raise RequestError(f"there is no preset '{request.preset}'{suggest(request.preset, PRESETS)}")
    for name in ("cameras", "width", "height", "shapes"):
        if getattr(request, name) < 1:
            raise RequestError(f"--{name} must be at least 1")
    if request.worlds < 0:
        raise RequestError("--worlds must not be negative")
    pictures = request.what in ("render", "act") or (request.what == "train" and sees(PRESETS[request.preset]))
    usual = 0 if request.what in ("act", "train") else 1
    configure(usual if request.devices is None else request.devices, pictures)
    from . import bench

    worlds = request.worlds
    if request.what == "sim":
        result = bench.sim(request.task, worlds or usual_worlds(TASKS[request.task]().spec.agents), say)
    elif request.what == "render":
        result = bench.render(request.cameras, request.width, request.height, request.shapes)
    elif request.what == "act":
        result = bench.act(
            request.preset,
            worlds or usual_worlds(PRESETS[request.preset].task.spec.agents),
            request.sight,
            request.pixels,
        )
    elif request.what == "train":
        result = bench.train(request.preset, request.epochs, request.minibatches)
    else:
        result = bench.memory(request.preset, worlds or PRESETS[request.preset].learner.worlds, say)
    give(result, request.json, lambda: print("\n".join(f"{k:24} {v}" for k, v in result.items())))
    return 0


def usual_worlds(agents: int) -> int:
    """As many worlds as make 4096 agents, or nearly: whole blocks."""
    from .learn.rollout import block_of

    block = block_of(agents)
    return max(4096 // agents // block, 1) * block


@dataclass(frozen=True)
class Plain:
    """No options but --json."""

    json: bool = False


def command_list(words: list[str]) -> int:
    request = parse(Plain, words, "list")
    configure()
    import jax

    from .dynamics.control_modes import CONTROL_MODES
    from .dynamics.quadrotor import VEHICLES
    from .evaluate.episode import PLANTS
    from .experiment.experiment import LEARNERS, PRESETS, TASKS, name_of
    from .progress import brief
    from .tasks.racing import TRACKS
    from .tasks.survey import MISSIONS

    devices = [f"{d.platform}:{d.device_kind}" for d in jax.devices()]
    result = {
        "presets": {name: preset.as_dict() for name, preset in PRESETS.items()},
        "tasks": list(TASKS),
        "algorithms": list(LEARNERS),
        "plants": list(PLANTS),
        "tracks": list(TRACKS),
        "missions": list(MISSIONS),
        "vehicles": list(VEHICLES),
        "actions": list(CONTROL_MODES),
        "devices": devices,
    }

    def words_for() -> None:
        for name, preset in PRESETS.items():
            steps, learner = brief(preset.steps * agents_of(preset.task)), name_of(LEARNERS, preset.learner)
            print(f"preset     {name:20} {preset.task.description}; {learner}, {steps} steps")
        for name in ("tasks", "algorithms", "plants", "tracks", "missions", "vehicles", "actions", "devices"):
            print(f"{name:10} {', '.join(result[name])}")

    give(result, request.json, words_for)
    return 0


def agents_of(task: Any) -> int:
    """Of one world; of a task whose package is not installed nobody knows."""
    try:
        return task.spec.agents
    except ValueError:
        return 1


def command_doctor(words: list[str]) -> int:
    request = parse(Plain, words, "doctor")
    configure()
    from .doctor import examine

    findings = examine()
    give({"findings": findings}, request.json, lambda: print("\n".join(f["text"] for f in findings)))
    return 0 if all(finding["good"] or not finding["needed"] for finding in findings) else 1


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": command_list,
    "train": command_train,
    "evaluate": command_evaluate,
    "video": command_video,
    "report": command_report,
    "pipeline": command_pipeline,
    "fit": command_fit,
    "parity": command_parity,
    "compare": command_compare,
    "bench": command_bench,
    "doctor": command_doctor,
}


def main(words: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"slipstream {__version__}")
        return 0
    if words[0] not in COMMANDS:
        say(f"slipstream: there is no command '{words[0]}'{suggest(words[0], COMMANDS)}")
        return 2
    return guarded(COMMANDS[words[0]], words[1:])


def guarded(command: Callable[[list[str]], int], words: list[str]) -> int:
    """Errors a person can put right come as one line, not as a traceback."""
    from .runs.checkpoint import CheckpointError
    from .runs.run import RunError

    try:
        return command(words)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 2
    except (RequestError, RunError, ValueError) as error:
        if os.environ.get("SLIPSTREAM_TRACEBACK"):
            raise
        say(f"slipstream: {error}")
        return 2
    except KeyboardInterrupt:
        say("slipstream: stopped")
        return 1
    except CheckpointError as error:
        say(f"slipstream: {error}")
        return 1
    except Exception as error:
        from .plants.plant import PlantError
        from .runs.train import TrainingError, lack_of_memory

        text = str(error) if isinstance(error, TrainingError | PlantError) else lack_of_memory(error)
        if text is None:
            raise
        say(f"slipstream: {text}")
        return 1


def entry() -> None:
    """What the installed command calls."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output (`slipstream list | head`) has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    entry()
