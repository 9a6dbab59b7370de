"""The film of an evaluation, drawn by the module of its task."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import av
import numpy as np
from PIL import Image

from ..evaluate.episode import Episode
from ..runs.run import Run, RunError
from ..tasks.gymnax.task import Gymnax
from ..tasks.marine import Marine
from ..tasks.marine import report as marine
from ..tasks.racing import report as race
from ..tasks.survey import Survey
from ..tasks.survey import report as survey

FPS = 25


class Canvas(Protocol):
    """Draws the pictures of a film."""

    @property
    def size(self) -> tuple[int, int]: ...

    def draw(self, number: int) -> Image.Image: ...


def film(
    run: Run,
    plant: str = "fast",
    drones: int = 8,
    seconds: float = 20.0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write videos/PLANT.mp4 of the first episodes of an evaluation."""
    paths = sorted(run.episodes(plant).glob("[0-9]*.npz"))[: max(drones, 1)]
    if not paths:
        raise RunError(f"{run.folder} has no episodes on the plant '{plant}'; evaluate it first")
    task = run.experiment.task
    if not filmed(task):
        raise RunError(f"there is no film of {task.about}; its report has curves")
    if isinstance(task, Survey):
        canvas, frames = survey_canvas(run, task.exam(), Episode.load(paths[0]), seconds)
    elif isinstance(task, Marine):
        canvas, frames = marine_canvas(run, task.exam(), [Episode.load(path) for path in paths], seconds)
    else:
        canvas, frames = race_canvas(run, [Episode.load(path) for path in paths], seconds)
    target = run.folder / "videos" / f"{plant}.mp4"
    target.parent.mkdir(exist_ok=True)
    encode(target, canvas, frames, watch)
    return target


def filmed(task: Any) -> bool:
    """Whether there is a film of a task."""
    return not isinstance(task, Gymnax)


def race_canvas(run: Run, episodes: list[Episode], seconds: float) -> tuple[Canvas, int]:
    """All episodes side by side in time."""
    flights = [flight for episode in episodes for flight in race.by_agent(episode)]
    # The one to follow is the one that comes furthest.
    flights.sort(key=lambda e: (-e.figures.get("success", 0.0), -e.length))
    frames = int(min(seconds, max(e.length * e.control_dt for e in flights)) * FPS)
    return race.Canvas(flights, run.name, frames, FPS), frames


def survey_canvas(run: Run, task: Survey, episode: Episode, seconds: float) -> tuple[Canvas, int]:
    """The first country, its whole time squeezed into the film's."""
    length = episode.length * episode.control_dt
    pace = max(1.0, float(np.ceil(length / seconds)))
    frames = int(length / pace * FPS)
    rows: list[dict[str, Any]] = run.metrics
    rate = (rows[-1].get("steps_per_second") or 0.0) * task.agents if rows else 0.0
    footer = f"trained at {rate:,.0f} drone-steps a second, learning included"
    return survey.Canvas(task, episode, run.name, frames, FPS, pace, footer), frames


def marine_canvas(run: Run, task: Marine, episodes: list[Episode], seconds: float) -> tuple[Canvas, int]:
    """The world in which vessels had to yield longest."""
    episode = marine.hardest(episodes)[0]
    length = episode.length * episode.control_dt
    pace = max(1.0, float(np.ceil(length / seconds)))
    return marine.Canvas(task, episode, run.name, FPS, pace), int(length / pace * FPS)


def encode(target: Path, canvas: Canvas, frames: int, watch: Callable[[int, int], None]) -> None:
    """All pictures as H.264; the file has its name only once it is whole."""
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
