"""How far apart two plants are: the same policy on the same worlds from the same starts."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..plants.settings import PlantSettings
from ..runs.files import json_text, write_text
from ..runs.run import Run
from . import intervals
from .episode import Episode, load_metrics
from .score import default_worlds, evaluate

GOOD, FAIR, POOR = "good", "fair", "poor"
METRICS = {"success": "success", "return": "episode_return"}


def compare(
    run: Run,
    plants: list[str],
    worlds: int | None = None,
    seed: int | None = None,
    settings: PlantSettings = PlantSettings(),
    watch: Callable[[str, int, int], None] = lambda what, done, all: None,
) -> dict[str, Any]:
    """Fly the run on every plant, the first being what the others are compared with; writes parity.json.

    Unless a number of worlds is given, as many are flown as the slowest plant flies in minutes.
    """
    agents = run.experiment.task.spec.agents
    worlds = worlds or min(default_worlds(name, agents) for name in plants)
    summaries = {}
    for plant in plants:
        summaries[plant] = evaluate(
            run, plant, worlds, seed, watch=lambda done, all, plant=plant: watch(plant, done, all), settings=settings
        )
    base, *others = plants
    result = {
        "base": base,
        "worlds": summaries[base]["worlds"],
        "episodes": summaries[base]["episodes"],
        "agents": summaries[base]["agents"],
        "plants": {other: compare_plants(run, base, other, summaries[base]["agents"]) for other in others},
    }
    write_text(run.folder / "parity.json", json_text(result))
    return result


def compare_plants(run: Run, base: str, other: str, agents: int) -> dict[str, Any]:
    """What of one plant differs from another, with a verdict for each."""
    ours, theirs = load_metrics(run, base), load_metrics(run, other)
    pairs = paired_episodes(run, base, other)
    found: dict[str, Any] = {}
    for name in ("success", "return"):
        found[f"{name}_ratio"] = compared(ours[METRICS[name]], theirs[METRICS[name]], agents, rates=name == "success")
    track = path_error(pairs)
    found["trajectory"] = track
    for name, (a, b) in motions(pairs).items():
        found[f"{name}_distance"] = distance(a, b)
    found["verdicts"] = verdicts(found)
    found["failed"] = int(np.nansum(theirs.get("failed", 0.0)))
    return found


def paired_episodes(run: Run, base: str, other: str) -> list[tuple[Episode, Episode]]:
    """The episodes of which both plants kept all steps."""
    found = []
    for path in sorted(run.episodes(base).glob("[0-9]*.npz")):
        twin = run.episodes(other) / path.name
        if twin.exists():
            found.append((Episode.load(path), Episode.load(twin)))
    return found


def compared(ours: np.ndarray, theirs: np.ndarray, agents: int, rates: bool) -> dict[str, float]:
    """How their mean compares with ours, with 95 % intervals: as a ratio where ours is positive, and as a difference.

    `rates` if the values are successes and failures.
    """
    base, other = float(np.mean(ours)), float(np.mean(theirs))
    ratio, (low, high) = math.nan, intervals.NONE
    if base > 0.0:
        of = intervals.ratio_of_rates if rates else intervals.ratio_of_means
        ratio, (low, high) = other / base, of(ours, theirs, agents)
    less, more = intervals.difference(ours, theirs, agents)
    return {
        "base": base,
        "other": other,
        "ratio": ratio,
        "low": low,
        "high": high,
        "difference": other - base,
        "difference_low": less,
        "difference_high": more,
    }


def change(part: dict[str, float]) -> float:
    """Their mean over ours; where ours is not positive, one and the difference in units of ours."""
    if math.isfinite(part["ratio"]):
        return part["ratio"]
    return 1.0 + part["difference"] / max(abs(part["base"]), 1e-9)


def paths(episode: Episode) -> list[np.ndarray]:
    """Positions over time, of every agent, up to its end."""
    place = episode.trajectory["position"]
    if place.ndim == 2:
        return [place]
    ends = episode.trajectory.get("ended")
    lengths = [len(place) if ends is None or not ends[:, k].any() else int(np.argmax(ends[:, k])) + 1
               for k in range(place.shape[1])]  # fmt: skip
    return [place[:length, k] for k, length in enumerate(lengths)]


def path_error(pairs: list[tuple[Episode, Episode]]) -> dict[str, Any]:
    """Distance between the paths at the same time: its course, its mean, and what share of the way flown it is."""
    if not pairs:
        return {"time": [], "mean": [], "after_1s": None, "after_5s": None, "share_after_5s": None}
    dt = pairs[0][0].control_dt
    gaps, ways = [], []
    for ours, theirs in pairs:
        for a, b in zip(paths(ours), paths(theirs), strict=True):
            length = min(len(a), len(b))
            gaps.append(np.linalg.norm(a[:length] - b[:length], axis=1))
            ways.append(np.cumsum(np.linalg.norm(np.diff(a[:length], axis=0, prepend=a[:1]), axis=1)))
    longest = max(map(len, gaps))

    def mean_at(rows: list[np.ndarray], k: int) -> float:
        there = [row[k] for row in rows if len(row) > k]
        return float(np.mean(there)) if there else math.nan

    every = max(1, longest // 200)
    times = list(range(0, longest, every))
    five = round(5.0 / dt)
    way = mean_at(ways, five)
    return {
        "time": [k * dt for k in times],
        "mean": [mean_at(gaps, k) for k in times],
        "after_1s": mean_at(gaps, round(1.0 / dt)),
        "after_5s": mean_at(gaps, five),
        "share_after_5s": mean_at(gaps, five) / way if way else math.nan,
    }


def motions(pairs: list[tuple[Episode, Episode]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Speeds, tilts and rates of all kept steps, of both plants."""
    made: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for pair in pairs:
        for side, episode in enumerate(pair):
            steps = episode.trajectory
            values = {"speed": np.linalg.norm(steps["velocity"], axis=-1)}
            if "attitude" in steps:
                _, x, y, _ = np.moveaxis(steps["attitude"], -1, 0)
                values["tilt"] = np.arccos(np.clip(1.0 - 2.0 * (x * x + y * y), -1.0, 1.0))
            if "rates" in steps:
                values["rates"] = np.linalg.norm(steps["rates"], axis=-1)
            elif "yaw" in steps:
                turned = np.diff(steps["yaw"], axis=0)
                values["rates"] = np.abs((turned + np.pi) % (2.0 * np.pi) - np.pi) / episode.control_dt
                push = np.diff(steps["velocity"], axis=0) / episode.control_dt
                values["tilt"] = np.arctan2(np.linalg.norm(push[..., :2], axis=-1), 9.80665 + push[..., 2])
            for name, value in values.items():
                made.setdefault(name, ([], []))[side].append(value.reshape(-1))
    return {name: (np.concatenate(a), np.concatenate(b)) for name, (a, b) in made.items()}


def distance(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Wasserstein distance of two samples, also in standard deviations of the first."""
    at = np.linspace(0.0, 1.0, 501)
    gap = float(np.mean(np.abs(np.quantile(a, at) - np.quantile(b, at))))
    return {"distance": gap, "in_deviations": gap / max(float(np.std(a)), 1e-9)}


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    """For every metric, in one word."""

    def graded(value: float | None, good: float, fair: float, more: bool) -> str:
        if value is None or not math.isfinite(value):
            return POOR
        return GOOD if (value >= good) == more or value == good else FAIR if (value >= fair) == more else POOR

    told = {
        "success": graded(change(found["success_ratio"]), 0.9, 0.75, True),
        "return": graded(change(found["return_ratio"]), 0.9, 0.75, True),
        "trajectory": graded(found["trajectory"]["share_after_5s"], 0.1, 0.3, False),
    }
    for name in ("speed", "tilt", "rates"):
        if f"{name}_distance" in found:
            told[name] = graded(found[f"{name}_distance"]["in_deviations"], 0.25, 0.5, False)
    return told


def describe(part: dict[str, float], base: str) -> str:
    """A comparison in words: a ratio and its interval, or a difference where there is no ratio."""
    if math.isfinite(part["ratio"]):
        value, low, high = f"{part['ratio']:.3f} times {base}", part["low"], part["high"]
    else:
        value, low, high = f"{part['difference']:+.3g} to {base}", part["difference_low"], part["difference_high"]
    if not math.isfinite(low):
        return f"{value} (too few worlds for an interval)"
    return f"{value} ({low:.3f} to {high:.3f})"
