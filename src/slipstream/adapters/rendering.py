"""A picture of a world as it is now, from above, by the task's own report module."""

import math
from typing import Any

import jax
import numpy as np

from ..core.task import AnyTask
from ..evaluation.episode import Episode
from ..reports.default import DefaultCanvas, map_canvas, positions
from ..reports.video import FPS, report_module
from .vector import Worlds

EDGE = 480
"""Height and width of a picture, pixels."""


class Recorder:
    """What is recorded of the first world of a batch, and its picture."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds, self.task = worlds, worlds.task
        self._record, self._world_record = jax.jit(self.task.record), jax.jit(self.task.world_record)
        self.rows: list[dict[str, np.ndarray]] = []
        self.world: dict[str, np.ndarray] = {}

    def _first(self) -> Any:
        return jax.tree.map(lambda x: x[0], self.worlds.state.states)

    def begin(self) -> None:
        """Forget what was, and record a world that has just started."""
        self.rows, self.world = [], jax.device_get(dict(self._world_record(self._first())))
        self.note()

    def note(self) -> None:
        """Record the world as it is now."""
        self.rows.append(jax.device_get(dict(self._record(self._first()))))

    def picture(self) -> np.ndarray:
        """The last moment: height, width and colors."""
        if not self.rows:
            raise RuntimeError("call reset before a picture is drawn")
        rows = {name: np.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        return draw(self.task, Episode(rows, self.world, {"success": 1.0}, self.task.spec.control_dt))


def draw(task: AnyTask, episode: Episode) -> np.ndarray:
    """The end of an episode from above; without a position, as curves."""
    frame = math.ceil((episode.length - 1) * episode.control_dt * FPS)
    if positions(episode):
        # Not every room draws a map of its own.
        canvas = getattr(report_module(task), "map_canvas", map_canvas)(task, episode, "", 1.0, EDGE)
    else:
        canvas = DefaultCanvas([episode], task.description, 1.0, "")
    return np.array(canvas.draw(frame).convert("RGB"))
