"""Films of several agents on the same worlds: beside each other, and one world after the other."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..core.task import AnyTask
from ..evaluation.episode import Episode, load_episodes
from ..runs.run import Run
from .default import positions
from .text import MapCanvas, ReportModule
from .video import FPS, encode, report_module

PACE, REST = 3.0, 1.0
"""How fast the films run, and seconds a world stays after its end."""
AROUND = 10.0
"""Meters around the starts and places of a world that are shown at most."""
PAPER, INK, ALARM = (244, 248, 251), (15, 23, 42), (220, 38, 38)


def hardest_films(
    folder: Path, task: AnyTask, runs: dict[str, Run], watch: Callable[[int, int], None]
) -> list[tuple[str, str, Path]]:
    """The worlds most agents fail in, all agents beside each other; and the best one with the returns it expects."""
    module, kept = report_module(task), {name: load_episodes(run, "fast") for name, run in runs.items()}
    if not all(episodes and positions(episodes[0]) for episodes in kept.values()):
        return []
    count = min(len(episodes) for episodes in kept.values())
    order = sorted(range(count), key=lambda k: module.hardness([episodes[k] for episodes in kept.values()]))[:3]
    evaluated = task.for_evaluation()
    panes = Panes(module, evaluated, {name: [episodes[k] for k in order] for name, episodes in kept.items()})
    target = folder / "hardest.mp4"
    encode(target, panes, panes.frames, watch)
    films = [
        ("The hardest worlds", "The worlds that most agents failed in, one after the other, by every agent.", target)
    ]
    best = next((name for name, episodes in kept.items() if "returns" in episodes[0].trajectory), None)
    if best:
        reel = Reel(module, evaluated, [kept[best][k] for k in order], best)
        target = folder / "expected.mp4"
        encode(target, reel, reel.frames, watch)
        films.append((f"The same by {best}, and the returns it expects", module.text(task).film, target))
    return films


class Reel:
    """Worlds one after the other."""

    def __init__(self, module: ReportModule, task: AnyTask, episodes: list[Episode], title: str) -> None:
        self.parts = [module.map_canvas(task, episode, title, PACE, None) for episode in episodes]
        self.size = self.parts[0].size
        self.lengths = [frames_of([episode]) for episode in episodes]

    @property
    def frames(self) -> int:
        return sum(self.lengths)

    def draw(self, number: int) -> Image.Image:
        part, number = locate_frame(self.lengths, number)
        return self.parts[part].draw(number)


class Panes:
    """The same worlds by several agents, beside each other; one world after the other."""

    columns, edge, foot = 4, 320, 34

    def __init__(self, module: ReportModule, task: AnyTask, episodes: dict[str, list[Episode]]) -> None:
        self.parts: dict[str, list[MapCanvas]] = {
            name: [module.map_canvas(task, e, name, PACE, self.edge - 4) for e in some]
            for name, some in episodes.items()
        }
        worlds = zip(*episodes.values(), strict=True)
        self.lengths = [frames_of(list(world)) for world in worlds]
        for row, world in zip(
            zip(*self.parts.values(), strict=True), zip(*episodes.values(), strict=True), strict=True
        ):
            # One part of the world for all; an agent that leaves it far behind is out of sight.
            starts = np.concatenate([path[:1] for episode in world for path in positions(episode)])
            low, high = np.min([c.low for c in row], 0), np.max([c.high for c in row], 0)
            reach = AROUND + np.ptp(starts, 0)
            for canvas in row:
                canvas.set_frame(np.maximum(low, starts.min(0) - reach), np.minimum(high, starts.max(0) + reach))
        self.font = ImageFont.load_default(17)

    @property
    def frames(self) -> int:
        return sum(self.lengths)

    @property
    def size(self) -> tuple[int, int]:
        rows = -(-len(self.parts) // self.columns)
        return self.edge * min(self.columns, len(self.parts)), (self.edge + self.foot) * rows

    def draw(self, number: int) -> Image.Image:
        part, number = locate_frame(self.lengths, number)
        image = Image.new("RGB", self.size, PAPER)
        pen = ImageDraw.Draw(image)
        for k, (name, canvases) in enumerate(self.parts.items()):
            x, y = k % self.columns * self.edge, k // self.columns * (self.edge + self.foot)
            canvas = canvases[part]
            image.paste(canvas.draw(number), (x + 2, y + 2))
            words, bad = canvas.status(number)
            pen.text((x + 8, y + self.edge + 4), f"{name}: {words}", fill=ALARM if bad else INK, font=self.font)
        return image


def frames_of(episodes: list[Episode]) -> int:
    """Of a film of a world, until the last agent has ended and a little longer."""
    longest = max(episode.length * episode.control_dt for episode in episodes)
    return int((min(longest, 60.0) / PACE + REST) * FPS)


def locate_frame(lengths: list[int], number: int) -> tuple[int, int]:
    """Which part of a film a frame belongs to, and which frame of that part it is."""
    for part, length in enumerate(lengths):
        if number < length or part == len(lengths) - 1:
            return part, number
        number -= length
    raise AssertionError("a film has parts")
