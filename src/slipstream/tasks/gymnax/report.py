"""What a report says of tasks that are numbers only: how scores spread, and what was seen in an episode."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from ...evaluate.episode import Episode
from ...report import charts
from ...report.default import film, hardness, landmarks, map_canvas
from ...report.text import ReportText, Section

__all__ = ["film", "hardness", "landmarks", "map_canvas", "sections", "text"]


def text(task: Any) -> ReportText:
    return ReportText(
        task=task.description,
        attempts="episodes",
        success=f"reach a return of {task.success_return:g}",
        film="What the agent observed and earned in one episode, over time.",
        tiles={"return_mean": ("{:.1f}", "mean return"), "return_lowest": ("{:.1f}", "lowest return")},
    )


def sections(task: Any, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    shown = [Markup(charts.histogram(metrics.get("episode_return", np.zeros(0)), "return", "episodes"))]
    if episodes:
        seen = episodes[0].trajectory["observation"]
        curves: dict[str, tuple[Sequence[float], Sequence[float | None]]] = {
            f"number {k + 1}": (range(len(seen)), list(map(float, seen[:, k]))) for k in range(min(seen.shape[1], 8))
        }
        shown.append(Markup(charts.lines(curves, "step", "observed")))
    return [Section("Episodes", shown, "How returns spread; and what the agent observed in one episode.")]
