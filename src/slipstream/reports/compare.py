"""Several agents on the same worlds: one table, their curves, and the hardest worlds side by side."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from .. import __version__
from ..experiment.registry import learner_name
from ..learn.foreign import ForeignPolicy
from ..runs.files import json_text, write_text
from ..runs.run import Run
from . import charts
from .page import STYLE, minutes, shown
from .panes import hardest_films

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


COMMON = ("success_rate", "return_mean")
"""What every task is summed up by."""
OWN_ENDS = ("_mean", "_rate", "_reach")
"""Of a task without scripts, what else of its summary is compared."""


def rows_of(runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """One row for each agent, best first, then the scripts, which only the first run has flown; means over runs."""
    summary = next(iter(runs.values()))[0].summaries()["fast"]
    keys, rows = keys_of(summary), []
    for name, some in runs.items():
        found, last = [run.summaries()["fast"] for run in some], [(run.metrics or [{}])[-1] for run in some]
        seeds = [{key: one.get(key) for key in keys} for one in found]
        rows.append(
            {
                "name": name,
                "metrics": {key: mean([one[key] for one in seeds]) for key in keys},
                "seeds": seeds,
                "seconds": mean([row.get("seconds") for row in last]),
                "rate": (mean([row.get("steps_per_second") for row in last]) or 0.0) * found[0]["agents"],
            }
        )
    rows.sort(key=lambda row: -(row["metrics"][keys[0]] or 0.0))
    scripts = summary.get("baselines") or {}
    figures = {name: {key: found.get(key) for key in keys} for name, found in scripts.items()}
    return rows + [{"name": name, "metrics": found, "seeds": [], "script": True} for name, found in figures.items()]


def mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def keys_of(summary: dict[str, Any]) -> list[str]:
    """What is compared: what the task sums up first, successes and score, then the rest it sums up."""
    first = next(iter((summary.get("baselines") or {}).values()), None)
    if first is None:
        first = {key: value for key, value in summary.items() if isinstance(value, float) and key.endswith(OWN_ENDS)}
    own = [key for key, value in first.items() if key not in COMMON and not isinstance(value, list)]
    return [*own[:1], *COMMON, *own[1:]]


def format_cell(row: dict[str, Any], key: str) -> str:
    """The mean, and below it the range over seeds."""
    values = [one[key] for one in row["seeds"] if one.get(key) is not None]
    text = Markup("{}").format(format_value(row["metrics"].get(key)))
    if len(values) > 1:
        text += Markup("<small>{} to {}</small>").format(format_value(min(values)), format_value(max(values)))
    return text


def format_value(value: float | None) -> str:
    """As many digits as can be read at a glance, the same for all of a size."""
    return shown(value) if value is None else f"{value:.{3 if abs(value) < 1.0 else 2 if abs(value) < 10.0 else 1}f}"


def titles_of(runs: dict[str, list[Run]]) -> dict[str, str]:
    """What agents are called: by their learner, if no other has the same; a policy from elsewhere by its name."""
    own = {name: some[0].experiment.learner for name, some in runs.items()}
    learners = {name: name if isinstance(one, ForeignPolicy) else learner_name(one) for name, one in own.items()}
    return learners if len(set(learners.values())) == len(learners) else {name: name for name in runs}


def write(
    folder: Path, name: str, runs: dict[str, list[Run]], watch: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Write compare.html and compare.json into a folder of runs."""
    first = next(iter(runs.values()))
    task, rows, summary = first[0].experiment.task, rows_of(runs), first[0].summaries()["fast"]
    titles = titles_of(runs)
    keys = keys_of(summary)
    write_text(folder / "compare.json", json_text({"name": name, "rows": rows}))
    best_first = {titles[row["name"]]: runs[row["name"]][0] for row in rows if "rate" in row}
    films = hardest_films(folder, task, best_first, watch)
    best = max(rows, key=lambda row: row["metrics"].get(keys[0]) or 0.0)
    told = [
        {
            "name": row["name"],
            "title": titles.get(row["name"], row["name"]),
            "script": row.get("script", False),
            "best": keys[0] if row is best else "",
            "cells": {key: format_cell(row, key) for key in keys},
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
            task=task.description,
            agents=len(runs),
            seeds=len(first),
            scripts=len(summary.get("baselines") or {}),
            worlds=summary["worlds"],
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
        if not all(run.metrics for run in some):
            continue  # it was not trained here
        agents, rows = some[0].experiment.task.spec.agents, list(zip(*(run.metrics for run in some), strict=False))
        success = smooth([mean([one.get("success") for one in row]) for row in rows])
        steps[name] = ([row[0]["step"] * agents / 1e6 for row in rows], success)
        clock[name] = ([(mean([one.get("seconds") for one in row]) or 0.0) / 60.0 for row in rows], success)
    text = "share of agents that succeed"
    return [
        charts.lines(steps, "million steps of one agent", text, (0.0, 1.0), log_x=True),
        charts.lines(clock, "minutes", text, (0.0, 1.0), log_x=True),
    ]


def smooth(values: list[float | None], width: int = 9) -> list[float | None]:
    """Running means over what there is."""
    return [mean(values[max(0, k - width + 1) : k + 1]) for k in range(len(values))]
