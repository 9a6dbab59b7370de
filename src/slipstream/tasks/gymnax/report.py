"""What a report says of tasks that are numbers only: how scores spread, and what was seen in an episode."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from ...evaluate.episode import Episode
from ...report import charts
from ...report.text import Section, Words


def words(task: Any) -> Words:
    return Words(
        task=task.about,
        attempts="episodes",
        success=f"score {task.goal:g} or more",
        film="",
        tiles={"score_mean": ("{:.1f}", "mean score"), "score_lowest": ("{:.1f}", "lowest score")},
    )


def sections(task: Any, episodes: list[Episode], figures: dict[str, np.ndarray]) -> list[Section]:
    shown = [Markup(charts.histogram(figures.get("score", np.zeros(0)), "score", "episodes"))]
    if episodes:
        seen = episodes[0].steps["observation"]
        curves: dict[str, tuple[Sequence[float], Sequence[float | None]]] = {
            f"number {k + 1}": (range(len(seen)), list(map(float, seen[:, k]))) for k in range(min(seen.shape[1], 8))
        }
        shown.append(Markup(charts.lines(curves, "step", "seen by the agent")))
    return [Section("Episodes", shown, "How scores spread; and what the agent saw in one episode.")]
