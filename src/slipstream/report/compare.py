"""Several agents on the same worlds: one table, their curves, and the hardest worlds side by side."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from .. import __version__
from ..evaluate.episode import Episode
from ..experiment.experiment import LEARNERS, name_of
from ..runs.run import Run, write_text
from ..tasks.marine import Marine
from ..tasks.marine import report as marine
from . import charts
from .page import STYLE, minutes, shown
from .video import FPS, encode

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }} compared · Slipstream</title><style>{{ style }}
td.best{font-weight:700;color:#15803d}tr.script td:first-child{color:#64748b}
td{vertical-align:top;white-space:nowrap}td small{display:block;font-weight:400;color:#64748b}</style></head>
<body><main>
<h1>{{ name }} compared</h1>
<p class="lead">{{ task|capitalize }}. {{ agents }} agents{% if seeds > 1 %}, {{ seeds }} seeds each{% endif %}, and \
{{ scripts }} scripts on the same {{ worlds }} worlds that none was trained on.</p>
<section><h2>How they do</h2><table><tr><th></th>{% for key in keys %}<th>{{ key.replace("_", " ") }}</th>{% endfor %}\
<th>training</th><th>samples a second</th></tr>
{% for row in rows %}<tr{% if row.script %} class="script"{% endif %}><td>\
{{ row.title }}{% if row.title != row.name %}<small>{{ row.name }}</small>{% endif %}</td>\
{% for key in keys %}<td{% if row.best == key %} class="best"{% endif %}>{{ row.cells[key] }}</td>{% endfor %}\
<td>{{ row.time }}</td><td>{{ row.rate }}</td></tr>{% endfor %}</table>
<p class="note">{% if seeds > 1 %}Mean over seeds, and below it the lowest and the highest of them. {% endif %}\
Training is wall time of one seed; samples are steps of one agent, learning included.</p></section>
<section><h2>How they learned</h2><div class="two">{% for curve in curves %}<div>{{ curve }}</div>{% endfor %}</div>
<p class="note">Successes during training, with exploration, while worlds grow harder.</p></section>
{% for title, note, data in films %}<section><h2>{{ title }}</h2>
<video controls muted autoplay loop playsinline src="data:video/mp4;base64,{{ data }}"></video>
<p class="note">{{ note }}</p></section>{% endfor %}
<section><p class="note">Do it again: <code>slipstream compare {{ name }}</code>. Slipstream {{ version }}.</p>
</section></main></body></html>
"""


COMMON = ("success_rate", "score_mean")
"""What every task is summed up by."""


def rows_of(runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """One row for each agent, best first, then the scripts, which only the first run has flown; means over runs."""
    summary = next(iter(runs.values()))[0].summaries()["fast"]
    keys, rows = keys_of(summary), []
    for name, some in runs.items():
        found, last = [run.summaries()["fast"] for run in some], [run.metrics[-1] for run in some]
        seeds = [{key: one.get(key) for key in keys} for one in found]
        rows.append(
            {
                "name": name,
                "figures": {key: mean([one[key] for one in seeds]) for key in keys},
                "seeds": seeds,
                "seconds": mean([row.get("seconds") for row in last]),
                "rate": (mean([row.get("steps_per_second") for row in last]) or 0.0) * found[0]["agents"],
            }
        )
    rows.sort(key=lambda row: -(row["figures"][keys[0]] or 0.0))
    scripts = summary.get("baselines") or {}
    figures = {name: {key: found.get(key) for key in keys} for name, found in scripts.items()}
    return rows + [{"name": name, "figures": found, "seeds": [], "script": True} for name, found in figures.items()]


def mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def keys_of(summary: dict[str, Any]) -> list[str]:
    """What is compared: what the task sums up first, successes and score, then the rest it sums up."""
    first = next(iter((summary.get("baselines") or {}).values()), {})
    own = [key for key, value in first.items() if key not in COMMON and not isinstance(value, list)]
    return [*own[:1], *COMMON, *own[1:]]


def cell(row: dict[str, Any], key: str) -> str:
    """The mean, and below it the range over seeds."""
    values = [one[key] for one in row["seeds"] if one.get(key) is not None]
    text = Markup("{}").format(figure(row["figures"].get(key)))
    if len(values) > 1:
        text += Markup("<small>{} to {}</small>").format(figure(min(values)), figure(max(values)))
    return text


def figure(value: float | None) -> str:
    """As many digits as can be read at a glance, the same for all of a size."""
    return shown(value) if value is None else f"{value:.{3 if abs(value) < 1.0 else 2 if abs(value) < 10.0 else 1}f}"


def titles_of(runs: dict[str, list[Run]]) -> dict[str, str]:
    """What agents are called: by their learner, if no other has the same."""
    learners = {name: name_of(LEARNERS, some[0].experiment.learner) for name, some in runs.items()}
    return learners if len(set(learners.values())) == len(learners) else {name: name for name in runs}


def write(
    folder: Path, name: str, runs: dict[str, list[Run]], watch: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Write compare.html and compare.json into a folder of runs."""
    first = next(iter(runs.values()))
    task, rows, summary = first[0].experiment.task, rows_of(runs), first[0].summaries()["fast"]
    titles = titles_of(runs)
    keys = keys_of(summary)
    write_text(folder / "compare.json", json.dumps({"name": name, "rows": rows}, indent=1) + "\n")
    best_first = {titles[row["name"]]: runs[row["name"]][0] for row in rows if "rate" in row}
    films = hardest_films(folder, task, best_first, watch)
    best = max(rows, key=lambda row: row["figures"].get(keys[0]) or 0.0)
    told = [
        {
            "name": row["name"],
            "title": titles.get(row["name"], row["name"]),
            "script": row.get("script", False),
            "best": keys[0] if row is best else "",
            "cells": {key: cell(row, key) for key in keys},
            "time": minutes(row["seconds"]) if row.get("seconds") else "",
            "rate": charts.label(round(row["rate"], -2)) if row.get("rate") else "",
        }
        for row in rows
    ]
    page = jinja2.Environment(autoescape=True).from_string(TEMPLATE)
    path = folder / "compare.html"
    write_text(
        path,
        page.render(
            name=name,
            style=Markup(STYLE),
            task=task.about,
            agents=len(runs),
            seeds=len(first),
            scripts=len(summary.get("baselines") or {}),
            worlds=summary["episodes"],
            keys=keys,
            rows=told,
            curves=[Markup(chart) for chart in curves_of({titles[name]: some for name, some in runs.items()})],
            films=[(title, note, base64.b64encode(film.read_bytes()).decode()) for title, note, film in films],
            version=__version__,
        ),
    )
    return path


def curves_of(runs: dict[str, list[Run]]) -> list[str]:
    """Successes over steps, and over time, as means over the runs of an agent."""
    steps, clock = {}, {}
    for name, some in runs.items():
        agents, rows = some[0].experiment.task.spec.agents, list(zip(*(run.metrics for run in some), strict=False))
        success = smooth([mean([one.get("success") for one in row]) for row in rows])
        steps[name] = ([row[0]["step"] * agents / 1e6 for row in rows], success)
        clock[name] = ([(mean([one.get("seconds") for one in row]) or 0.0) / 60.0 for row in rows], success)
    text = "share of agents that succeed"
    return [
        charts.lines(steps, "million steps of one agent", text, (0.0, 1.0), decades=True),
        charts.lines(clock, "minutes", text, (0.0, 1.0), decades=True),
    ]


def smooth(values: list[float | None], width: int = 9) -> list[float | None]:
    """Running means over what there is."""
    return [mean(values[max(0, k - width + 1) : k + 1]) for k in range(len(values))]


def hardest_films(
    folder: Path, task: Any, runs: dict[str, Run], watch: Callable[[int, int], None]
) -> list[tuple[str, str, Path]]:
    """The world most agents fail in, all agents beside each other; and the best of them that tells what it expects."""
    if not isinstance(task, Marine):
        return []
    kept = {
        name: [Episode.load(p) for p in sorted(run.episodes("fast").glob("[0-9]*.npz"))] for name, run in runs.items()
    }
    count = min(len(episodes) for episodes in kept.values())
    order = sorted(range(count), key=lambda k: hardness([episodes[k] for episodes in kept.values()]))
    films = []
    panes = Panes(task.exam(), {name: [episodes[k] for k in order[:3]] for name, episodes in kept.items()})
    target = folder / "hardest.mp4"
    encode(target, panes, panes.frames, watch)
    films.append(
        (
            "The hardest crossings",
            "The worlds in which most vessels failed or had to yield, one after the other, by every agent.",
            target,
        )
    )
    best = next((name for name, episodes in kept.items() if "returns" in episodes[0].steps), None)
    if best:
        reel = Reel(task.exam(), [kept[best][k] for k in order[:3]], best)
        target = folder / "expected.mp4"
        encode(target, reel, reel.frames, watch)
        films.append((f"The same by {best}, and what it expects", marine.words(task).film, target))
    return films


def hardness(episodes: list[Episode]) -> tuple[float, float]:
    """The fewer vessels reach their goals and the longer they yield, the harder: hardest first."""
    yielding = sum(float(np.sum(marine.rows_of(episode)["duty"] > 0.0)) for episode in episodes)
    return sum(episode.figures["success"] for episode in episodes), -yielding


PACE, REST = 3.0, 1.0
"""How fast the films run, and seconds a world stays after its end."""
AROUND = 10.0
"""Metres around a bay that are shown at most."""


class Reel:
    """Worlds one after the other."""

    size = marine.WIDTH, marine.HEIGHT

    def __init__(self, task: Marine, episodes: list[Episode], title: str) -> None:
        self.parts = [marine.Canvas(task, episode, title, FPS, PACE) for episode in episodes]
        self.lengths = [frames_of([episode]) for episode in episodes]

    @property
    def frames(self) -> int:
        return sum(self.lengths)

    def draw(self, number: int) -> Image.Image:
        part, number = found(self.lengths, number)
        return self.parts[part].draw(number)


class Panes:
    """The same worlds by several agents, beside each other; one world after the other."""

    columns, edge, foot = 4, 320, 34

    def __init__(self, task: Marine, episodes: dict[str, list[Episode]]) -> None:
        self.parts = {
            name: [marine.Canvas(task, e, name, FPS, PACE, self.edge - 4) for e in some]
            for name, some in episodes.items()
        }
        worlds = zip(*episodes.values(), strict=True)
        self.lengths = [frames_of(list(world)) for world in worlds]
        for row in zip(*self.parts.values(), strict=True):
            # One section of the bay for all; whoever leaves it far behind is out of sight.
            low, high = np.min([c.low for c in row], 0), np.max([c.high for c in row], 0)
            for canvas in row:
                canvas.framed(np.maximum(low, -AROUND), np.minimum(high, task.size + AROUND))
        self.font = ImageFont.load_default(17)

    @property
    def frames(self) -> int:
        return sum(self.lengths)

    @property
    def size(self) -> tuple[int, int]:
        rows = -(-len(self.parts) // self.columns)
        return self.edge * min(self.columns, len(self.parts)), (self.edge + self.foot) * rows

    def draw(self, number: int) -> Image.Image:
        part, number = found(self.lengths, number)
        image = Image.new("RGB", self.size, marine.SHORE)
        pen = ImageDraw.Draw(image)
        for k, (name, canvases) in enumerate(self.parts.items()):
            x, y = k % self.columns * self.edge, k // self.columns * (self.edge + self.foot)
            canvas = canvases[part]
            image.paste(canvas.draw(number), (x + 2, y + 2))
            reached, hit, count = canvas.counted(number)
            text = f"{name}: {reached} of {count} there" + (f", {hit} hit" if hit else "")
            pen.text((x + 8, y + self.edge + 4), text, fill=marine.ALARM if hit else marine.INK, font=self.font)
        return image


def frames_of(episodes: list[Episode]) -> int:
    """Of a film of a world, until the last agent has ended and a little longer."""
    longest = max(episode.length * episode.control_dt for episode in episodes)
    return int((min(longest, 60.0) / PACE + REST) * FPS)


def found(lengths: list[int], number: int) -> tuple[int, int]:
    """Which part of a film a picture belongs to, and which picture of that part it is."""
    for part, length in enumerate(lengths):
        if number < length or part == len(lengths) - 1:
            return part, number
        number -= length
    raise AssertionError("a film has parts")
