"""What a task's report module says and draws: the interface that pages and films use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from markupsafe import Markup
from PIL import Image

from ..core.task import AnyTask
from ..evaluation.episode import Episode


@dataclass(frozen=True)
class ReportText:
    """The sentences of a page that differ between tasks."""

    task: str
    attempts: str = "episodes"
    """what an episode is called"""
    success: str = "succeed"
    """what a successful one does"""
    film: str = ""
    """what the film shows"""
    tiles: dict[str, tuple[str, str]] = field(default_factory=dict)
    """metrics shown first: how each is written, and what it is; by default the task's own, as far as there is room"""


@dataclass(frozen=True)
class Section:
    """A part of a page: one chart across it, or several beside each other."""

    title: str
    charts: list[Markup]
    note: str


class Canvas(Protocol):
    """Draws the frames of a film."""

    @property
    def size(self) -> tuple[int, int]: ...

    def draw(self, number: int) -> Image.Image: ...


class MapCanvas(Canvas, Protocol):
    """Draws one episode from above, in a frame that others can share."""

    low: np.ndarray
    high: np.ndarray

    def set_frame(self, low: np.ndarray, high: np.ndarray) -> None:
        """Show this part of the world."""
        ...

    def status(self, number: int) -> tuple[str, bool]:
        """How the agents do in this frame, in a few words, and whether that is bad."""
        ...


@dataclass(frozen=True)
class Film:
    """A film: what draws it, and how many frames it has."""

    canvas: Canvas
    frames: int


Landmarks = Callable[[Episode, float], list[tuple[np.ndarray, bool]]]
"""Lines from above of what stands in a world at a time: the points of each, and whether it is to be drawn strongly."""


class ReportModule(Protocol):
    """What the module that a task names in `report` has."""

    def text(self, task: AnyTask) -> ReportText: ...

    def sections(self, task: AnyTask, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]: ...

    def film(self, task: AnyTask, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
        """Of the first episodes of an evaluation."""
        ...

    def map_canvas(self, task: AnyTask, episode: Episode, title: str, pace: float, edge: int | None) -> MapCanvas:
        """One episode from above, as a square of `edge` pixels, or in full."""
        ...

    def landmarks(self, episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]: ...

    def hardness(self, episodes: Sequence[Episode]) -> tuple[float, ...]:
        """By which worlds are sorted: the hardest first, given the same world by several agents."""
        ...
