"""slipstream bench: throughput on this machine, and where the time goes."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..core import device
from ..core.errors import suggest
from ..experiment import registry
from ..experiment.experiment import Experiment
from ..pipeline.training import find_experiment
from ..reports import charts
from ..runs.files import write_text
from .options import emit, parse, say, take_option

What = Literal["sim", "render", "policy", "train", "memory"]


@dataclass(frozen=True)
class BenchOptions:
    """Throughput on this machine, and where the time goes."""

    what: tyro.conf.Positional[What] = "sim"
    """sim: worlds alone; render: cameras alone; policy: with a policy; train: with learning; memory: of one world"""
    worlds: int = 0
    """number of worlds; 0 is as many as make 4096 agents, and for memory the preset's"""
    devices: int | None = None
    """0 is all of them; by default all for policy and train, as in training, and one for the others"""
    cameras: int = 32
    """for render: number of cameras"""
    width: int = 80
    """for render: image width, pixels"""
    height: int = 80
    """for render: image height, pixels"""
    shapes: int = 32
    """for render: shapes in the scene"""
    picture: Path | None = None
    """for train: an SVG file that shows where the time goes"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run(words: list[str]) -> int:
    """`--task NAME|FILE.py:Task` and `--preset NAME` choose what is measured; all its settings are options."""
    task_name, words = take_option(words, "--task")
    preset_name, words = take_option(words, "--preset")
    base, name = find_measured(task_name, preset_name)
    options, experiment = _parse(words, base)
    for field in ("cameras", "width", "height", "shapes"):
        if getattr(options, field) < 1:
            raise ValueError(f"--{field} must be at least 1")
    if options.worlds < 0:
        raise ValueError("--worlds must not be negative")
    if options.picture is not None and options.what != "train":
        raise ValueError("--picture shows where the time of a training goes; use it with bench train")
    result = measure(options, experiment, name)
    if options.picture is not None:
        write_text(options.picture, picture_of(result))
        say(f"Picture: {options.picture.resolve()}")
    emit(result, options.json, lambda: "\n".join(f"{key:26} {value}" for key, value in result.items()))
    return 0


def picture_of(result: dict[str, Any]) -> str:
    """A second of the devices as one bar: the parts of a training, and idling."""
    idle = result["idle"] or 0.0
    parts = {name: share * (1.0 - idle) for name, share in result["share"].items()}
    return charts.alone(charts.stacked_bar(parts | {"idle": idle}))


def find_measured(task: str | None, preset: str | None) -> tuple[Experiment[Any, Any], str]:
    """The experiment that is measured: a preset, or a task with its default settings."""
    if preset is not None:
        return find_experiment(preset)
    tasks = registry.task_classes()
    name = task or next(iter(tasks))
    if name in tasks:
        # What a preset of the same name trains with, on the task as it is by default.
        presets = registry.presets()
        learner = presets[name] if name in presets else registry.default_experiment(tasks[name]())
        return replace(learner, task=tasks[name]()), name
    if ":" in name:
        return find_experiment(name)
    raise ValueError(f"there is no task '{name}'{suggest(name, tasks)}")


def _parse(words: list[str], base: Experiment[Any, Any]) -> tuple[BenchOptions, Experiment[Any, Any]]:
    task_type, learner_type = type(base.task), type(base.learner)

    @dataclass(frozen=True)
    class Request:
        """Throughput on this machine. --task NAME|FILE.py:Task or --preset NAME chooses what is measured."""

        options: Annotated[BenchOptions, tyro.conf.arg(name="")]
        task: task_type  # pyright: ignore[reportInvalidTypeForm]
        """settings of the task"""
        learner: learner_type  # pyright: ignore[reportInvalidTypeForm]
        """settings of the learner"""

    request = parse(Request, words, "bench", Request(BenchOptions(), base.task, base.learner))
    return request.options, replace(base, task=request.task, learner=request.learner)


def measure(options: BenchOptions, experiment: Experiment[Any, Any], name: str) -> dict[str, Any]:
    images = options.what == "render" or experiment.task.spec.image_shape is not None
    usual = 0 if options.what in ("policy", "train") else 1
    devices = usual if options.devices is None else options.devices
    device.configure(devices or None, images, options.what == "render" or experiment.task.wide_vectors)
    if options.what == "render":
        from ..bench.render import render

        return render(options.cameras, options.width, options.height, options.shapes)
    from ..bench import learning
    from ..bench.sim import default_worlds, sim

    if options.what == "sim":
        return sim(experiment.task, name, options.worlds or default_worlds(experiment.task), say)
    if options.what == "policy":
        return learning.policy(experiment, name, options.worlds or default_worlds(experiment.task))
    if options.what == "train":
        return learning.train(replace(experiment, devices=devices), name)
    return learning.memory(experiment, name, options.worlds or experiment.learner.worlds)
