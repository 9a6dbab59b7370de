"""One self-contained HTML page about a run: what was trained, how it learned, how it flies, where the time went."""

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from .. import __version__
from ..evaluation.episode import load_episodes, load_metrics
from ..runs.files import write_text
from ..runs.run import Run
from . import charts, parity
from .text import ReportText, Section
from .video import report_module

STYLE = """:root{color-scheme:light}
body{font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:#1e293b;background:#f1f5f9;margin:0}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:30px;margin:0}h2{font-size:18px;margin:0 0 10px}p{margin:6px 0}
.lead{color:#475569;margin-bottom:18px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:18px 0}
.tile,section{background:#fff;border-radius:12px;box-shadow:0 1px 3px #0f172a1f}
.tile{padding:14px 16px}.tile b{display:block;font-size:25px;color:#0f172a;font-variant-numeric:tabular-nums}
.tile span{color:#64748b;font-size:13px}
section{padding:18px 20px;margin:14px 0}.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(430px,1fr));gap:0 26px}
svg,video{width:100%;height:auto;display:block;border-radius:8px}
svg .grid{stroke:#e2e8f0}svg text{font:12px system-ui,sans-serif;fill:#475569}svg .name{fill:#334155}
svg .mid{text-anchor:middle}svg .end{text-anchor:end}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
td,th{padding:4px 10px 4px 0;text-align:left;border-bottom:1px solid #e2e8f0;vertical-align:top}
code,pre{font:13px ui-monospace,monospace;background:#f1f5f9;border-radius:5px}code{padding:1px 5px}pre{padding:10px;overflow-x:auto}
details summary{cursor:pointer;color:#2563eb}.note{color:#64748b;font-size:13px}"""

UTILIZATION_CHARTS = {
    "cores in use, and the share of the GPU": {"cores_used": "cores", "gpu_utilization": "GPU"},
    "memory, GB": {"memory_gb": "main memory", "gpu_memory_gb": "GPU"},
}
"""What the page draws of a training's use of the machine, by axis."""
TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }} · Slipstream</title>
<style>{{ style }}</style></head><body><main>
<h1>{{ name }}</h1>
<p class="lead">{{ task|capitalize }}. {% if worlds %}{{ learner }}, {{ worlds }} worlds on {{ devices }}, {{ steps }} steps in {{ wall }}.{% else %}Trained by {{ library }}.{% endif %}</p>
<div class="tiles">{% for value, text in tiles %}<div class="tile"><b>{{ value }}</b><span>{{ text }}</span></div>{% endfor %}</div>
{% for title, note, data in videos %}<section><h2>{{ title }}</h2>
<video controls muted autoplay loop playsinline src="data:video/mp4;base64,{{ data }}"></video>
<p class="note">{{ note }}</p></section>{% endfor %}
<section><h2>Learning</h2><div class="two"><div>{{ success_curve }}</div><div>{{ reward_curve }}</div></div>
<p class="note">During training, with exploration; attempts that were given too little time to succeed are left out, however they ended{% if seeds > 1 %}; the band is one standard deviation over {{ seeds }} seeds{% endif %}.</p></section>
{% for section in sections %}<section><h2>{{ section.title }}</h2>{% if section.charts|length > 1 %}<div class="two">{% for chart in section.charts %}<div>{{ chart }}</div>{% endfor %}</div>{% else %}{{ section.charts[0] }}{% endif %}
<p class="note">{{ section.note }}</p></section>{% endfor %}
<section><h2>Evaluation</h2><table><tr><th></th>{% for plant in summaries %}<th>{{ plant }}</th>{% endfor %}</tr>
{% for key in keys %}<tr><td>{{ key.replace("_95", ", 95 % interval").replace("_", " ") }}</td>{% for s in summaries.values() %}<td>{{ shown(s.get(key)) }}</td>{% endfor %}</tr>{% endfor %}
</table></section>
{% if baselines %}<section><h2>Beside scripts, on the same worlds</h2><table><tr><th></th><th>this policy</th>{% for name in baselines %}<th>{{ name }}</th>{% endfor %}</tr>
{% for key in baseline_keys %}<tr><td>{{ key.replace("_95", ", 95 % interval").replace("_", " ") }}</td><td>{{ shown(summary.get(key)) }}</td>{% for b in baselines.values() %}<td>{{ shown(b.get(key)) }}</td>{% endfor %}</tr>{% endfor %}
</table></section>{% endif %}
<section><h2>Throughput, and where the time goes</h2><div class="two"><div>{{ speed_curve }}</div>
<div>{{ share }}<p>{{ rate_text }}</p></div></div></section>
<section><h2>Settings</h2><details><summary>experiment.json</summary><pre>{{ settings }}</pre></details>
{% if worlds %}<p>Do it again: <code>slipstream train --resume --run {{ folder }}</code> goes on from the last checkpoint,
<code>slipstream evaluate {{ folder }} --worlds 512</code> scores it.</p>{% endif %}
<p class="note">Slipstream {{ version }}, JAX {{ jax }}.</p></section>
</main></body></html>
"""


def write(run: Run) -> Path:
    """Write report.html into the run."""
    write_text(run.report, page(run))
    return run.report


def page(run: Run) -> str:
    import jax

    experiment, metrics, summaries = run.experiment, run.metrics, run.summaries()
    settings = experiment.as_dict()
    last = metrics[-1] if metrics else {}
    summary = summaries.get("fast") or next(iter(summaries.values()), {})
    profile = run.profile
    shown_plant = "fast" if "fast" in summaries else next(iter(summaries), None)
    episode_metrics = load_metrics(run, shown_plant) if shown_plant else {}
    episodes = load_episodes(run, shown_plant) if shown_plant else []
    module = report_module(experiment.task)
    words = module.text(experiment.task)
    million = [row["step"] / 1e6 for row in metrics]
    environment = jinja2.Environment(autoescape=True)
    safe = {
        name: Markup(chart)
        for name, chart in {
            "success_curve": success_curve(metrics, million),
            "reward_curve": curve(metrics, million, "step_reward", "reward a step"),
            "speed_curve": curve(metrics, million, "steps_per_second", "steps a second", skip=2),
            "share": charts.stacked_bar(profile["share"]) if profile and profile["share"] else "",
        }.items()
    }
    return environment.from_string(TEMPLATE).render(
        style=Markup(STYLE),
        name=run.name,
        task=words.task,
        learner=settings["learner"]["name"].upper(),
        worlds=settings["learner"].get("worlds"),
        library=settings["learner"].get("library"),
        devices=f"{jax.default_backend()}",
        steps=charts.label(last.get("step", 0) * experiment.task.spec.agents),
        wall=minutes(last.get("seconds", 0.0)),
        tiles=tiles(summary, last, words),
        sections=[
            *gradient_sections(metrics, million),
            *utilization_sections(metrics),
            *module.sections(experiment.task, episodes, episode_metrics),
            *parity.sections(run),
        ],
        summary=summary,
        baselines=summary.get("baselines") or {},
        baseline_keys=list(next(iter((summary.get("baselines") or {}).values()), {})),
        videos=[(*titled(p.stem, words), base64.b64encode(p.read_bytes()).decode()) for p in run.videos],
        seeds=experiment.seeds,
        summaries=summaries,
        keys=[key for key, value in summary.items() if key not in ("plant", "seeds") and not isinstance(value, dict)],
        shown=shown,
        rate_text=rate_text(profile),
        settings=json.dumps(settings, indent=1),
        folder=run.folder,
        version=__version__,
        jax=jax.__version__,
        **safe,
    )


def titled(name: str, words: ReportText) -> tuple[str, str]:
    """What stands over and under a film."""
    if name.startswith("parity-"):
        other = name.removeprefix("parity-")
        note = "Left what it was trained on, right the reference, with the left path as a ghost. Below, their distance."
        return f"Beside the plant {other}", note
    return f"Film ({name} plant)", words.film


def curve(
    metrics: list[dict[str, Any]],
    million: list[float],
    name: str,
    words: str,
    y_range: tuple[float, float] | None = None,
    skip: int = 0,
) -> str:
    values = [row.get(name) for row in metrics]
    spread = [row.get(f"{name}_std") for row in metrics]
    band = (million[skip:], spread[skip:]) if any(s is not None for s in spread) else None
    return charts.lines({name: (million[skip:], values[skip:])}, "million steps", words, y_range, band)


def success_curve(metrics: list[dict[str, Any]], million: list[float]) -> str:
    """Success over the training; where episodes in training are too short for it, crashes or the return."""
    for name, words, y_range in (
        ("success", "share of episodes that succeed", (0.0, 1.0)),
        ("crash", "share of episodes that end in a crash", (0.0, 1.0)),
    ):
        if any(row.get(name) is not None for row in metrics):
            return curve(metrics, million, name, words, y_range)
    return curve(metrics, million, "episode_return", "return of an episode")


def gradient_sections(metrics: list[dict[str, Any]], million: list[float]) -> list[Section]:
    """What a learner that differentiates the physics followed; nothing for other learners."""
    if not metrics or "critic_gradient_share" not in metrics[-1]:
        return []
    rewards: dict[str, tuple[Sequence[float], Sequence[float | None]]] = {
        words: (million, [row.get(name) for row in metrics])
        for words, name in (("smooth surrogate", "smooth_reward"), ("true reward", "step_reward"))
    }
    shown_charts = [
        charts.lines(rewards, "million steps", "reward a step"),
        curve(metrics, million, "grad_norm", "norm of the actor's gradient"),
        curve(metrics, million, "critic_gradient_share", "critic's share of the gradient", (0.0, 1.0)),
    ]
    note = (
        "The actor follows the gradient of the smooth surrogate through the physics; the critic learns the true reward "
        "and stands for all that comes after a window. Its share is the norm of the gradient that comes from it, over the "
        "sum of that and the norm of the gradient that comes from the rewards of the window. Norms are before clipping."
    )
    return [Section("Gradients through the physics", [Markup(chart) for chart in shown_charts], note)]


def utilization_sections(metrics: list[dict[str, Any]]) -> list[Section]:
    """How busy the machine was; nothing for runs that did not note it."""
    seconds = [row.get("seconds") or 0.0 for row in metrics]
    # Of the first look compiling is a part.
    found = []
    for words, names in UTILIZATION_CHARTS.items():
        known: dict[str, tuple[Sequence[float], Sequence[float | None]]] = {
            title: (seconds[1:], [row.get(name) for row in metrics[1:]])
            for name, title in names.items()
            if metrics and metrics[-1].get(name) is not None
        }
        if known and len(seconds) > 2:
            found.append(Markup(charts.lines(known, "seconds", words)))
    note = "Cores and memory are those of the training process, with compiling, logs and checkpoints."
    return [Section("How busy the machine was", found, note)] if found else []


def rate_text(profile: dict[str, Any] | None) -> str:
    if not profile:
        return ""
    return (
        f"{profile['samples_per_second']:,.0f} samples a second with learning, on {profile['devices']} device(s); "
        f"{profile['samples_per_cpu_second']:,.0f} for each second of CPU."
    )


def tiles(summary: dict[str, Any], last: dict[str, Any], words: ReportText) -> list[tuple[str, str]]:
    """The figures one wants first."""
    found = []
    if summary:
        if summary.get("success_rate") is not None:
            rate = f"{100 * summary['success_rate']:.1f} %"
            found.append((rate, f"of {summary['episodes']:,} unseen {words.attempts} {words.success}"))
        else:
            found.append((f"{summary['return_mean']:.4g}", f"mean return of {summary['episodes']:,} unseen episodes"))
    for key, (form, text) in (words.tiles or own_tiles(summary)).items():
        if summary.get(key) is not None:
            found.append((form.format(summary[key]), text))
    if last:
        found.append((minutes(last.get("seconds") or 0.0), "of training"))
        rate = (last.get("steps_per_second") or 0) * summary.get("agents", 1)
        found.append((charts.label(round(rate, -3)), "steps a second, learning included"))
    return found


def own_tiles(summary: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """The first means of a task that does not say what is to be shown first."""
    means = [key for key, value in summary.items() if key.endswith("_mean") and isinstance(value, float)]
    return {key: ("{:.4g}", f"mean {key.removesuffix('_mean').replace('_', ' ')}") for key in means[:3]}


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s" if seconds >= 60 else f"{seconds:.0f} s"


def shown(value: object) -> str:
    if isinstance(value, list):
        return " to ".join(map(shown, value))
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
