"""The page of a gymnax environment: how returns spread, and the observations of one episode."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from ...evaluation.episode import Episode
from ...reports import charts
from ...reports.default import film, hardness, landmarks, map_canvas
from ...reports.text import ReportText, Section
from .task import Gymnax

__all__ = ["film", "hardness", "landmarks", "map_canvas", "sections", "text"]


def text(task: Gymnax) -> ReportText:
    return ReportText(
        task=task.description,
        attempts="episodes",
        success=f"reach a return of {task.success_return:g}",
        film="Observations and rewards of one episode, over time.",
        tiles={"return_mean": ("{:.1f}", "mean return"), "return_lowest": ("{:.1f}", "lowest return")},
    )


def sections(task: Gymnax, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    shown = [Markup(charts.histogram(metrics.get("episode_return", np.zeros(0)), "return", "episodes"))]
    if episodes:
        rows = episodes[0].trajectory["observation"]
        curves: dict[str, tuple[Sequence[float], Sequence[float | None]]] = {
            f"feature {k + 1}": (range(len(rows)), list(map(float, rows[:, k]))) for k in range(min(rows.shape[1], 8))
        }
        shown.append(Markup(charts.lines(curves, "step", "observation")))
    return [Section("Episodes", shown, "The distribution of returns, and the observations of one episode.")]
