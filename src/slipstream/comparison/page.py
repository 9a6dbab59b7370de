"""The same task under several libraries' trainers: one table, curves, and the answer in a sentence."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from .. import __version__
from ..core.spaces import Box
from ..core.task import AnyTask
from ..reports import charts
from ..reports.page import STYLE
from ..runs.files import json_text, write_text
from .trials import Trial, figures
from .work import SETTINGS, Work

NAMES = {
    "slipstream": "Slipstream", "sb3": "Stable-Baselines3", "sbx": "sbx", "skrl": "skrl", "rsl_rl": "RSL-RL",
    "rl_games": "rl_games", "torchrl": "TorchRL",
}  # fmt: skip
ACTIONS = {
    "slipstream": "all", "sb3": "all", "sbx": "all", "skrl": "all; with JAX by our models",
    "rsl_rl": "Box; choices by our distribution", "rl_games": "all; several choices as a tuple",
    "torchrl": "all; several choices by our distribution",
}  # fmt: skip
"""Which actions train, as the tests of the adapters show."""
THROUGH_NUMPY = ("sb3", "sbx")
"""Libraries that hold what they collect in NumPy: everything crosses from the device to the host and back."""
TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }} by several libraries · Slipstream</title><style>{{ style }}
td.best{font-weight:700;color:#15803d}td{vertical-align:top;white-space:nowrap}td.wide{white-space:normal}
td small{display:block;font-weight:400;color:#64748b}</style></head><body><main>
<h1>{{ name }} by several libraries</h1>
<p class="lead">{{ task|capitalize }}. {% if settings %}Each library has settings of its own{% else %}{{ work.worlds }}
worlds of one task, {{ work.rollout_length }} steps a rollout, {{ work.epochs }} passes in {{ work.minibatches }}
minibatches, networks of {{ hidden }}{% endif %}{% if own %}; ours trains as its preset says{% endif %}.</p>
<section><h2>The answer</h2><p class="lead">{{ answer }}</p></section>
<section><h2>Figures</h2><table><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</table>
<p class="note">{{ seeds }} seed{{ "s" if seeds > 1 }}. Samples are steps of one agent, collecting and learning \
included, compiling and scoring not. The score is that of the policy at the end, without exploration, on 512 worlds \
that none was trained on.{% if skill %} Skill is {{ skill }}; CPU-seconds count everything from the start of the \
process but scoring.{% endif %}</p></section>
{% if settings %}<section><h2>Settings</h2><table><tr>{% for head in settings[0] %}<th>{{ head }}</th>{% endfor %}</tr>
{% for row in settings[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</table>
<p class="note">What all have in common is in libraries.json.</p></section>{% endif %}
<section><h2>Over time</h2><div class="two">{% for curve in curves %}<div>{{ curve }}</div>{% endfor %}</div></section>
<section><p class="note">Do it again: <code>{{ command }}</code>. Slipstream {{ version }}.</p></section>
</main></body></html>
"""


def write(folder: Path, name: str, task: AnyTask, runs: Mapping[str, Sequence[Trial]], command: str) -> dict[str, Any]:
    """Write libraries.html and libraries.json, and return what is in the latter."""
    found = {library: figures(trials) for library, trials in runs.items()}
    works = {library: trials[0].work for library, trials in runs.items()}
    work = works.get("slipstream", next(iter(works.values())))
    answer = answer_of(found, work)
    told = {library: one.to_json() for library, one in works.items()}
    result = {"name": name, "work": told, "libraries": found, "answer": answer}
    write_text(folder / "libraries.json", json_text(result))
    page = jinja2.Environment(autoescape=True).from_string(TEMPLATE)
    write_text(
        folder / "libraries.html",
        page.render(
            name=name,
            style=Markup(STYLE),
            task=task.description,
            work=work,
            hidden=" and ".join(map(str, work.hidden_sizes)),
            own=any(one.own_preset for one in works.values()),
            settings=settings_of(works),
            answer=answer,
            heads=heads(work),
            rows=[cells(library, one, found, task, work) for library, one in found.items()],
            seeds=max(len(trials) for trials in runs.values()),
            skill=skill_of(work),
            curves=[Markup(curve) for curve in curves_of(runs)],
            command=command,
            version=__version__,
        ),
    )
    return result


def settings_of(works: Mapping[str, Work]) -> list[list[str]]:
    """A table of the settings in which libraries differ, with its heads; empty if all do the same work."""
    works = {library: work for library, work in works.items() if not work.own_preset}
    rows = [
        [name.replace("_", " "), *(text_of(getattr(work, name)) for work in works.values())]
        for name in SETTINGS
        if len({text_of(getattr(work, name)) for work in works.values()}) > 1
    ]
    return [["", *(NAMES[library] for library in works)], *rows] if rows else []


def text_of(value: Any) -> str:
    """A setting as a person writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {text_of(one)}" for name, one in value.items())
    if isinstance(value, tuple):
        return " ".join(map(text_of, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def skill_of(work: Work) -> str:
    """What counts as skill, in words."""
    parts = [
        f"{name.replace('_', ' ')} of at {'least' if bound >= 0 else 'most'} {abs(bound):g}"
        for name, bound in work.skill
    ]
    return " and ".join(parts)


def heads(work: Work) -> list[str]:
    """The columns of the table."""
    own = ["CPU-seconds to skill"] if work.skill else []
    return [
        "", "samples per CPU-second", "of ours", "samples per second", *own, "success at the end", "CPU-seconds",
        "to the first update", "memory", "through the host", "actions",
    ]  # fmt: skip


def cells(library: str, one: dict[str, Any], found: dict[str, Any], task: AnyTask, work: Work) -> list[str]:
    """One row of the table."""
    if "failure" in one:
        return [NAMES[library], f"failed: {one['failure'][:120]}", *[""] * (len(heads(work)) - 2)]
    ours, rate = found.get("slipstream", {}).get("samples_per_cpu_second"), one["samples_per_cpu_second"]
    success = one["score"].get("success")
    own = [skill_cell(one)] if work.skill else []
    return [
        NAMES[library],
        charts.label(round(rate)) if rate else "",
        f"1/{ours / rate:.1f}" if ours and rate and library != "slipstream" else "",
        charts.label(round(one["samples_per_second"])) if one["samples_per_second"] else "",
        *own,
        "" if success is None else f"{100.0 * success:.1f} %",
        f"{one['cpu_seconds']:.0f}",
        f"{one['cpu_seconds_to_first_update']:.1f} s",
        f"{one['memory'] / 2**20:.0f} MB",
        f"{traffic(task)} bytes a sample" if library in THROUGH_NUMPY else "nothing",
        ACTIONS[library],
    ]


def skill_cell(one: dict[str, Any]) -> str:
    """Time to skill, or that it was not reached."""
    if one["skill_cpu_seconds"] is None:
        return f"not within {one['cpu_seconds']:.0f} ({one['skill_reached']})"
    return f"{one['skill_cpu_seconds']:.1f}"


def traffic(task: AnyTask) -> int:
    """Bytes of a sample that cross between device and host: what is observed, the action, reward and flags."""
    spec = task.spec
    image = int.__mul__(*spec.image_shape[:2]) * spec.image_shape[2] if spec.image_shape else 0
    return 4 * spec.observation + image + 4 * (spec.action.size if isinstance(spec.action, Box) else 1) + 4 + 2


def answer_of(found: dict[str, Any], work: Work) -> str:
    """Which one to take, from these figures alone."""
    ran = {name: one for name, one in found.items() if "failure" not in one and one["samples_per_cpu_second"]}
    if "slipstream" not in ran or len(ran) < 2:
        return "Nothing can be said: ours and at least one other library have to run."
    others = {name: one for name, one in ran.items() if name != "slipstream"}
    ours, fastest = ran["slipstream"], max(others, key=lambda name: others[name]["samples_per_cpu_second"])
    ratio = ours["samples_per_cpu_second"] / others[fastest]["samples_per_cpu_second"]
    rate = charts.label(round(ours["samples_per_cpu_second"]))
    text = f"On this task Slipstream makes {rate} samples a CPU-second, {ratio:.1f} times the next, {NAMES[fastest]}"
    if work.own_preset:
        text = "Slipstream trains this task as its own preset says"
    if work.skill:
        text += skill_answer(ours, others)
    close = [name for name in others if others[name]["samples_per_cpu_second"] > 0.8 * median_rate(others)]
    rest = sorted((name for name in close if name != fastest), key=lambda name: NAMES[name])
    if len(rest) > 1:
        text += (
            f". If it has to be another library, take {NAMES[fastest]} for speed; "
            f"{', '.join(NAMES[name] for name in rest[:-1])} and {NAMES[rest[-1]]} are alike on a CPU"
        )
    failed = [NAMES[name] for name, one in found.items() if "failure" in one]
    return text + (f". {', '.join(failed)} did not train it." if failed else ".")


def skill_answer(ours: dict[str, Any], others: dict[str, Any]) -> str:
    """How much sooner ours has skill."""
    if ours["skill_cpu_seconds"] is None:
        return ", and does not reach the skill within the time"
    reached = {n: one["skill_cpu_seconds"] for n, one in others.items() if one["skill_cpu_seconds"] is not None}
    if not reached:
        least = min(one["cpu_seconds"] for one in others.values()) / ours["skill_cpu_seconds"]
        seconds = ours["skill_cpu_seconds"]
        return f", and has the skill after {seconds:.0f} CPU-seconds; no other has it within {least:.0f} times that"
    soonest = min(reached, key=lambda name: reached[name])
    times = reached[soonest] / ours["skill_cpu_seconds"]
    return (
        f", and has the skill after {ours['skill_cpu_seconds']:.0f} CPU-seconds, {NAMES[soonest]} after "
        f"{reached[soonest]:.0f} ({times:.1f} times that)"
    )


def median_rate(others: dict[str, Any]) -> float:
    rates = sorted(one["samples_per_cpu_second"] for one in others.values())
    return rates[len(rates) // 2]


def curves_of(runs: Mapping[str, Sequence[Trial]]) -> list[str]:
    """Success over CPU time and over samples; cores and memory over wall time. Of the first seed."""
    by_time, by_samples, cores, memory = {}, {}, {}, {}
    for library, trials in runs.items():
        name, trial = NAMES[library], trials[0]
        scored = [row for row in trial.looks if "score" in row]
        if len(scored) > 1:
            success = [row["score"].get("success") for row in scored]
            by_time[name] = ([row["cpu"] for row in scored], success)
            by_samples[name] = ([row["samples"] / 1e6 for row in scored], success)
        if trial.usage:
            seconds = trial.usage["seconds"]
            cores[name] = (seconds, running_mean(trial.usage["cores"], 4))
            memory[name] = (seconds, [x / 2**20 for x in trial.usage["memory"]])
    found = []
    if by_time:
        found += [
            charts.lines(by_time, "CPU-seconds", "success", (0.0, 1.0), log_x=True),
            charts.lines(by_samples, "million samples", "success", (0.0, 1.0), log_x=True),
        ]
    if cores:
        found += [charts.lines(cores, "seconds", "cores in use"), charts.lines(memory, "seconds", "memory, MB")]
    return found


def running_mean(values: Sequence[float], width: int) -> list[float | None]:
    sums = [0.0, *itertools.accumulate(values)]
    ends = range(1, len(values) + 1)
    return [(sums[k] - sums[max(0, k - width)]) / min(k, width) for k in ends]
