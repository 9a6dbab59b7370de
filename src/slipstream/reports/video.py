"""The film of an evaluation, drawn by the report module of its task."""

import importlib
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np

from ..core.task import AnyTask
from ..evaluation.episode import Episode, load_episodes
from ..runs.run import Run, RunError
from .text import Canvas, ReportModule

FPS = 25


def report_module(task: AnyTask) -> ReportModule:
    """The module that draws the film and writes the page of a task: imported only now."""
    return cast(ReportModule, importlib.import_module(task.report))


def pace_for(episodes: list[Episode], seconds: float) -> tuple[float, int]:
    """How many times faster than real time a film of so many seconds runs, and its frames."""
    length = max(episode.length * episode.control_dt for episode in episodes)
    pace = max(1.0, float(math.ceil(length / seconds)))
    return pace, max(int(length / pace * FPS), 1)


def film(
    run: Run,
    plant: str = "fast",
    episodes: int = 8,
    seconds: float = 20.0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write videos/PLANT.mp4 of the first episodes of an evaluation."""
    shown = load_episodes(run, plant, max(episodes, 1))
    if not shown:
        raise RunError(f"{run.folder} has no episodes on the plant '{plant}'; evaluate it first")
    task, rows = run.experiment.task, run.metrics
    rate = (rows[-1].get("steps_per_second") or 0.0) * task.spec.agents if rows else 0.0
    footer = f"trained at {rate:,.0f} steps a second, learning included" if rate else ""
    made = report_module(task).film(task.for_evaluation(), shown, run.name, seconds, footer)
    target = run.folder / "videos" / f"{plant}.mp4"
    target.parent.mkdir(exist_ok=True)
    encode(target, made.canvas, made.frames, watch)
    return target


def encode(target: Path, canvas: Canvas, frames: int, watch: Callable[[int, int], None]) -> None:
    """All frames as H.264; the file has its name only once it is whole."""
    aside = target.with_name(f".{target.name}.part")
    with av.open(str(aside), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "23", "preset": "veryfast"})
        (stream.width, stream.height), stream.pix_fmt = canvas.size, "yuv420p"
        stream.time_base = Fraction(1, FPS)
        for number in range(frames):
            image = canvas.draw(number)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")))
            watch(number + 1, frames)
        container.mux(stream.encode())
    aside.replace(target)
