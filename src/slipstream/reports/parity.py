"""Two plants beside each other: the film, and what the report says of how far apart they are."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from PIL import Image, ImageDraw, ImageFont

from ..evaluation.episode import Episode
from ..evaluation.parity import describe, motions, paired_episodes
from ..runs.run import Run, RunError
from . import charts
from .text import Landmarks, Section
from .video import FPS, encode, report_module

WIDTH, HEIGHT, FOOT = 1280, 720, 190
PAPER, INK, FAINT, GHOST = (247, 249, 252), (15, 23, 42), (100, 116, 139), (203, 213, 225)
OURS, THEIRS = (37, 99, 235), (234, 88, 12)
COLORS = {"good": "#16a34a", "fair": "#ca8a04", "poor": "#dc2626"}


class ParityCanvas:
    """One episode on two plants: left the base, right the reference; below, how far apart and what each earned."""

    size = WIDTH, HEIGHT

    def __init__(
        self, pair: tuple[Episode, Episode], names: tuple[str, str], title: str, pace: float, landmarks: Landmarks
    ) -> None:
        self.names, self.title, self.pace = names, title, pace
        self.sides = [self._path(episode) for episode in pair]
        self.dt = pair[0].control_dt
        self.episode = pair[0]
        self.landmarks = landmarks
        self.length = max(len(side["position"]) for side in self.sides)
        both = min(len(side["position"]) for side in self.sides)
        self.gap = np.linalg.norm(self.sides[0]["position"][:both] - self.sides[1]["position"][:both], axis=1)
        points = np.concatenate([side["position"][:, :2] for side in self.sides])
        low, high = points.min(0), points.max(0)
        room = np.array([WIDTH / 2 - 60, HEIGHT - FOOT - 110])
        self.scale = float(np.min(room / np.maximum(high - low, 4.0)))
        self.middle = (low + high) / 2
        self.large, self.small = ImageFont.load_default(24), ImageFont.load_default(14)

    def _path(self, episode: Episode) -> dict[str, np.ndarray]:
        """Of the only drone, or of the first: the same on both sides."""
        told = {name: episode.trajectory[name] for name in ("position", "velocity", "reward")}
        if told["position"].ndim == 2:
            return told
        ended = episode.trajectory["ended"][:, 0]
        length = int(np.argmax(ended)) + 1 if ended.any() else len(ended)
        return {name: value[:length, 0] for name, value in told.items()}

    def on_pane(self, points: np.ndarray, pane: int) -> np.ndarray:
        center = np.array([WIDTH / 4 + pane * WIDTH / 2, (HEIGHT - FOOT) / 2 + 30])
        return center + (points[..., :2] - self.middle) * self.scale * np.array([1.0, -1.0])

    def draw(self, number: int) -> Image.Image:
        image = Image.new("RGB", self.size, PAPER)
        pen = ImageDraw.Draw(image)
        now = int(number * self.pace / FPS / self.dt)
        for pane, (side, name) in enumerate(zip(self.sides, self.names, strict=True)):
            self._landmarks(pen, pane, now)
            i = min(now, len(side["position"]) - 1)
            if pane == 1:
                # Where the other one flew, as a ghost.
                other = self.sides[0]["position"][: min(now, len(self.sides[0]["position"]) - 1) + 1]
                self._trail(pen, self.on_pane(other, 1), GHOST)
            color = (OURS, THEIRS)[pane]
            self._trail(pen, self.on_pane(side["position"][: i + 1], pane), color)
            x, y = self.on_pane(side["position"][i], pane)
            pen.ellipse((x - 6, y - 6, x + 6, y + 6), fill=color)
            left = 20 + pane * WIDTH // 2
            speed, total = float(np.linalg.norm(side["velocity"][i])), float(np.sum(side["reward"][: i + 1]))
            pen.text((left, 44), f"{name}: {speed:4.1f} m/s, reward {total:7.1f}", color, self.large)
            if now >= len(side["position"]):
                pen.text((left, 76), f"ended after {len(side['position']) * self.dt:.1f} s", FAINT, self.small)
        pen.line((WIDTH / 2, 40, WIDTH / 2, HEIGHT - FOOT), fill=GHOST, width=2)
        pen.text((20, 10), f"{self.title}   {now * self.dt:5.1f} s", INK, self.large)
        self._chart(pen, now, 60, WIDTH // 2 - 30, self.gap, None, "position error, m")
        sums = [np.cumsum(side["reward"]) for side in self.sides]
        self._chart(pen, now, WIDTH // 2 + 70, WIDTH - 20, sums[0], sums[1], "reward so far")
        return image

    def _trail(self, pen: ImageDraw.ImageDraw, points: np.ndarray, color: tuple[int, int, int]) -> None:
        if len(points) > 1:
            pen.line([tuple(p) for p in points], fill=color, width=3)

    def _landmarks(self, pen: ImageDraw.ImageDraw, pane: int, now: int) -> None:
        for points, strong in self.landmarks(self.episode, now * self.dt):
            pen.line([tuple(p) for p in self.on_pane(points, pane)], fill=INK if strong else GHOST, width=3)

    def _chart(
        self, pen: ImageDraw.ImageDraw, now: int, left: int, right: int, a: np.ndarray, b: np.ndarray | None, name: str
    ) -> None:
        top, bottom = HEIGHT - FOOT + 34, HEIGHT - 24
        curves = [curve for curve in (a, b) if curve is not None]
        low, high = min(0.0, *(float(c.min()) for c in curves)), max(1e-3, *(float(c.max()) for c in curves))
        pen.rectangle((left, top, right, bottom), outline=GHOST)
        pen.text((left, top - 22), name, FAINT, self.small)
        pen.text((left - 6, top), f"{high:.3g}", FAINT, self.small, anchor="ra")
        pen.text((left - 6, bottom - 14), f"{low:.3g}", FAINT, self.small, anchor="ra")
        for curve, color in zip(curves, (OURS if b is not None else INK, THEIRS), strict=False):
            shown = curve[: now + 1]
            if len(shown) > 1:
                x = left + np.arange(len(shown)) / max(self.length - 1, 1) * (right - left)
                y = bottom - (shown - low) / (high - low) * (bottom - top)
                pen.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=color, width=2)


def film(
    run: Run, base: str, other: str, seconds: float = 20.0, watch: Callable[[int, int], None] = lambda done, all: None
) -> Any:
    """Write videos/parity-OTHER.mp4."""
    pairs = paired_episodes(run, base, other)
    if not pairs:
        raise RunError(f"{run.folder} has no episodes on both {base} and {other}; run slipstream parity first")
    # The episode that went on longest on both tells most.
    pair = max(pairs, key=lambda p: min(p[0].length, p[1].length))
    length = max(pair[0].length, pair[1].length) * pair[0].control_dt
    pace = max(1.0, float(np.ceil(length / seconds)))
    canvas = ParityCanvas(pair, (base, other), run.name, pace, report_module(run.experiment.task).landmarks)
    target = run.folder / "videos" / f"parity-{other}.mp4"
    target.parent.mkdir(exist_ok=True)
    encode(target, canvas, int(length / pace * FPS), watch)
    return target


def sections(run: Run) -> list[Section]:
    """What the page shows of parity, if it was measured."""
    path = run.folder / "parity.json"
    if not path.exists():
        return []
    try:
        told = json.loads(path.read_text())
        return [part for other, found in told["plants"].items() for part in _section(run, told["base"], other, found)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged; run slipstream parity again") from error


def _section(run: Run, base: str, other: str, found: dict[str, Any]) -> list[Section]:
    rows = []
    for name in ("success", "return"):
        r = {key: math.nan if value is None else value for key, value in found[f"{name}_ratio"].items()}
        rows.append((name, f"{number(r['base'])} → {number(r['other'])}", describe(r, base)))
    track = found["trajectory"]
    rows.append(("trajectory", f"{number(track['after_1s'])} m after 1 s, {number(track['after_5s'])} m after 5 s",
                 f"{number(track['share_after_5s'])} of the way flown"))  # fmt: skip
    for name in ("speed", "tilt", "rates"):
        if d := found.get(f"{name}_distance"):
            rows.append((name, f"{number(d['distance'])} apart", f"{number(d['in_deviations'])} standard deviations"))
    verdicts = found["verdicts"]
    table = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td><td>{escape(how)}</td>"
        f'<td style="color:{COLORS[verdicts[name]]};font-weight:600">{verdicts[name]}</td></tr>'
        for name, text, how in rows
    )
    head = f"<tr><th>metric</th><th>{escape(base)} and {escape(other)}</th><th>apart by</th><th>verdict</th></tr>"
    error = charts.lines({"error": (track["time"], track["mean"])}, "s", "mean distance between the paths, m")
    speeds = motions(paired_episodes(run, base, other)).get("speed")
    shown = [Markup(f"<table>{head}{table}</table>"), Markup(error)]
    if speeds is not None:
        at = np.linspace(0.0, 1.0, 101)
        curves = {
            base: (np.quantile(speeds[0], at).tolist(), at.tolist()),
            other: (np.quantile(speeds[1], at).tolist(), at.tolist()),
        }
        shown.append(Markup(charts.lines(curves, "speed, m/s", "share of the time slower")))
    note = "The same policy on the same worlds from the same starts; intervals are 95 %, over worlds."
    return [Section(f"Parity: {base} and {other}", shown, note)]


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
