"""The film and the page that any task gets: its robot or paths from above, where it has them, and curves over time."""

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from ..core.task import AnyTask, DrawnTask
from ..evaluation.episode import Episode
from . import charts
from .pictures import Pictures, stills
from .text import Film, ReportText, Section
from .video import FPS, pace_for

WIDTH, HEIGHT, FINE = 1280, 720, 2
"""Of the film in pixels, and how many times finer the map is drawn before it is scaled down."""
PAPER, GRID, INK, QUIET, GOOD, BAD = (
    (248, 250, 252), (226, 232, 240), (15, 23, 42), (100, 116, 139), (22, 163, 74), (220, 38, 38),
)  # fmt: skip
CURVES = 5
"""Recorded numbers that are drawn over time."""
HEADINGS = ("heading", "yaw")


def text(task: AnyTask) -> ReportText:
    if isinstance(task, DrawnTask):
        omitted = f" Not drawn: {', '.join(task.film_omits)}." if task.film_omits else ""
        words = "Left: the robot in one episode after another. Right: what was recorded of that episode, over time."
        return ReportText(task=task.description, film=words + omitted)
    return ReportText(
        task=task.description,
        film="Paths from above, with marks where the world has places; on the right what was recorded of the first "
        "episode, over time. Without a position, only the latter.",
    )


def sections(task: AnyTask, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    """Paths, how metrics spread, and one episode over time."""
    found = []
    if isinstance(task, DrawnTask) and episodes:
        found.append(Section("The robot", stills(task, episodes[0]), "The first episode, from its start to its end."))
    paths = [path for episode in episodes for path in positions(episode)]
    if paths:
        found.append(
            Section("Paths", [Markup(path_chart(episodes))], f"{len(episodes)} evaluation episodes from above.")
        )
    spread = [
        Markup(charts.histogram(value, name.replace("_", " "), "episodes"))
        for name, value in metrics.items()
        if name not in ("success", "failed") and np.nanmax(value, initial=-np.inf) > np.nanmin(value, initial=np.inf)
    ]
    if spread:
        found.append(Section("Metrics", spread, "How the metrics of the evaluation's episodes spread."))
    if episodes:
        episode = episodes[0]
        time = [k * episode.control_dt for k in range(episode.length)]
        shown = single_numbers(episode) if isinstance(task, DrawnTask) else scalars(episode)
        lines: dict[str, tuple[Sequence[float], Sequence[float | None]]] = {
            name: (time, [float(v) for v in row]) for name, row in shown.items()
        }
        if lines:
            chart = Markup(charts.lines(lines, "s", "recorded"))
            found.append(Section("One episode", [chart], "What was recorded of the first episode, over time."))
    return found


def film(task: AnyTask, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
    pace, frames = pace_for(episodes, seconds)
    if not isinstance(task, DrawnTask):
        return Film(DefaultCanvas(episodes, title, pace, footer), frames)
    canvas = RobotCanvas(task, episodes, title, pace, footer)
    # As many episodes one after another as there is time for, and the first one in any case.
    ends = np.cumsum([canvas.frames(episode) for episode in episodes])
    return Film(canvas, int(max(ends[ends <= seconds * FPS], default=ends[0])))


def map_canvas(task: AnyTask, episode: Episode, title: str, pace: float, edge: int | None) -> "PathCanvas":
    return PathCanvas([episode], pace, edge or HEIGHT)


def hardness(episodes: Sequence[Episode]) -> tuple[float, ...]:
    """The fewer succeed and the less is earned, the harder."""
    return (
        sum(episode.metrics.get("success", 0.0) for episode in episodes),
        sum(episode.metrics.get("episode_return", 0.0) for episode in episodes),
    )


def circle(center: np.ndarray, radius: float) -> np.ndarray:
    angles = np.linspace(0.0, 2.0 * math.pi, 33)
    return center + radius * np.stack([np.cos(angles), np.sin(angles)], -1)


def landmarks(episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]:
    """A small circle at every place of the world."""
    return [(circle(place, 0.5), True) for marks in places(episode).values() for place in marks]


# What a record holds


def positions(episode: Episode) -> list[np.ndarray]:
    """The path of every agent, as x and y over time; empty if nothing recorded is a position."""
    rows = episode.trajectory
    if "position" in rows:
        place = rows["position"][..., :2]
    elif {"position.x", "position.y"} <= set(rows):
        place = np.stack([rows["position.x"], rows["position.y"]], -1)
    elif {"x", "y"} <= set(rows):
        place = np.stack([rows["x"], rows["y"]], -1)
    else:
        return []
    return [place] if place.ndim == 2 else [place[:, k] for k in range(place.shape[1])]


def headings(episode: Episode) -> np.ndarray | None:
    """Of every agent over time, rad."""
    name = next((name for name in HEADINGS if name in episode.trajectory), None)
    return None if name is None else episode.trajectory[name].reshape(episode.length, -1)


def places(episode: Episode) -> dict[str, np.ndarray]:
    """What stands in the world, by name: everything with an x and a y."""
    world, found = episode.world, {}
    for name in world:
        base = name.removesuffix(".x")
        if name.endswith(".x") and f"{base}.y" in world:
            found[base] = np.stack([world[name], world[f"{base}.y"]], -1).reshape(-1, 2)
    return found


def scalars(episode: Episode) -> dict[str, np.ndarray]:
    """Recorded numbers of the first agent over time: the reward first."""
    return curves_of(episode, {name: value for name, value in episode.trajectory.items() if value.size})


def single_numbers(episode: Episode) -> dict[str, np.ndarray]:
    """The same of those recorded numbers that are not parts of an array."""
    return curves_of(episode, {name: value for name, value in episode.trajectory.items() if value.ndim == 1})


def curves_of(episode: Episode, kept: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first few of these that change."""
    rows = {name: value.reshape(episode.length, -1)[:, 0] for name, value in kept.items()}
    changing = {name: row for name, row in rows.items() if np.issubdtype(row.dtype, np.number) and np.ptp(row) > 0.0}
    order = sorted(changing, key=lambda name: name != "reward")
    return {name: np.asarray(changing[name], float) for name in order[:CURVES]}


def frame_of(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """A square around all paths and places."""
    points = [path for episode in episodes for path in positions(episode)]
    points += [place for episode in episodes for place in places(episode).values()]
    every = np.concatenate(points)
    middle, half = (every.min(0) + every.max(0)) / 2, max(float(np.max(np.ptp(every, 0))) / 2, 0.5) * 1.12
    return middle - half, middle + half


def path_chart(episodes: list[Episode], size: int = 560) -> str:
    """Paths from above, as SVG: green where an episode succeeded."""
    low, high = frame_of(episodes)
    scale = size / float(np.max(high - low))
    at = lambda p: ((p[0] - low[0]) * scale, size - (p[1] - low[1]) * scale)  # noqa: E731
    parts = [f'<svg viewBox="0 0 {size} {size}" style="max-width:{size}px" role="img" aria-label="paths from above">']
    for episode in episodes:
        good = episode.metrics.get("success", 1.0) > 0.5
        stroke = "#16a34a" if good else "#dc2626"
        for path in positions(episode):
            points = " ".join("{:.1f},{:.1f}".format(*at(p)) for p in path)
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="1.5" opacity="0.7"/>'
            )
            parts.append('<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="#0f172a"/>'.format(*at(path[0])))
        for marks in places(episode).values():
            parts += [
                '<circle cx="{:.1f}" cy="{:.1f}" r="5" fill="none" stroke="#ea580c"/>'.format(*at(p)) for p in marks
            ]
    return "".join([*parts, "</svg>"])


# The film


class PathCanvas:
    """Episodes from above, all at the same time."""

    def __init__(self, episodes: Sequence[Episode], pace: float, edge: int) -> None:
        self.episodes, self.pace, self.edge = list(episodes), pace, edge
        self.small = ImageFont.load_default(14 * FINE)
        self.set_frame(*frame_of(episodes))

    @property
    def size(self) -> tuple[int, int]:
        return self.edge, self.edge

    def set_frame(self, low: np.ndarray, high: np.ndarray) -> None:
        self.low, self.high = low, high
        self.scale = self.edge * FINE / float(np.max(high - low))

    def step(self, episode: Episode, number: int) -> int:
        return min(int(number * self.pace / FPS / episode.control_dt), episode.length - 1)

    def on_map(self, points: np.ndarray) -> np.ndarray:
        return np.stack(
            [
                (points[..., 0] - self.low[0]) * self.scale,
                self.edge * FINE - (points[..., 1] - self.low[1]) * self.scale,
            ],
            -1,
        )

    def status(self, number: int) -> tuple[str, bool]:
        ended = [self.step(e, number) >= e.length - 1 for e in self.episodes]
        failed = sum(over and e.metrics.get("success", 1.0) < 0.5 for over, e in zip(ended, self.episodes, strict=True))
        return f"{len(ended) - sum(ended)} of {len(ended)} under way" + (
            f", {failed} failed" if failed else ""
        ), failed > 0

    def draw(self, number: int) -> Image.Image:
        image = Image.new("RGB", (self.edge * FINE, self.edge * FINE), PAPER)
        pen = ImageDraw.Draw(image)
        self._grid(pen)
        for first, episode in reversed(list(enumerate(self.episodes))):
            self._episode(pen, episode, number, first == 0)
        return image.resize(self.size, Image.Resampling.BOX)

    def _grid(self, pen: ImageDraw.ImageDraw) -> None:
        span = float(np.max(self.high - self.low))
        step = 10.0 ** math.floor(math.log10(span / 2.0))
        for axis in range(2):
            for k in range(math.ceil(self.low[axis] / step), math.floor(self.high[axis] / step) + 1):
                ends = np.array([self.low, self.high], float)
                ends[:, axis] = k * step
                pen.line([tuple(p) for p in self.on_map(ends)], fill=GRID, width=FINE)
        pen.text((10 * FINE, (self.edge - 24) * FINE), f"grid {step:g} m", QUIET, self.small)

    def _episode(self, pen: ImageDraw.ImageDraw, episode: Episode, number: int, leads: bool) -> None:
        now = self.step(episode, number)
        over = now >= episode.length - 1
        good = episode.metrics.get("success", 1.0) > 0.5
        color = (GOOD if good else BAD) if over else INK if leads else QUIET
        for marks in places(episode).values():
            for x, y in self.on_map(marks):
                r = 9 * FINE
                pen.ellipse((x - r, y - r, x + r, y + r), outline=color, width=2 * FINE)
        directions = headings(episode)
        for k, path in enumerate(positions(episode)):
            points = self.on_map(path[: now + 1])
            if len(points) > 1:
                pen.line([tuple(p) for p in points], fill=color, width=(3 if leads else 2) * FINE)
            self._body(pen, points[-1], None if directions is None else float(directions[now, k]), color, leads)

    def _body(
        self, pen: ImageDraw.ImageDraw, at: np.ndarray, heading: float | None, color: tuple[int, int, int], leads: bool
    ) -> None:
        size = (9 if leads else 6) * FINE
        if heading is None:
            pen.ellipse((at[0] - size, at[1] - size, at[0] + size, at[1] + size), fill=color)
            return
        corners = [(2.0, 0.0), (-1.2, 1.1), (-0.6, 0.0), (-1.2, -1.1)]
        cos, sin = math.cos(heading), math.sin(heading)
        turned = [(at[0] + size * (cos * x - sin * y), at[1] - size * (sin * x + cos * y)) for x, y in corners]
        pen.polygon(turned, fill=color)


class DefaultCanvas:
    """The map on the left, and curves of the first episode on the right; without a position, curves only."""

    size = WIDTH, HEIGHT

    def __init__(self, episodes: list[Episode], title: str, pace: float, footer: str) -> None:
        self.episodes, self.title, self.pace, self.footer = episodes, title, pace, footer
        self.map = PathCanvas(episodes, pace, HEIGHT) if positions(episodes[0]) else None
        self.left = HEIGHT + 30 if self.map else 60
        self.curves = scalars(episodes[0])
        self.large, self.small = ImageFont.load_default(26), ImageFont.load_default(15)

    def draw(self, number: int) -> Image.Image:
        image = Image.new("RGB", self.size, (255, 255, 255))
        if self.map:
            image.paste(self.map.draw(number), (0, 0))
        status = self.map.status(number) if self.map else None
        self._tell(ImageDraw.Draw(image), self.episodes[0], number, self.curves, status)
        return image

    def _tell(
        self,
        pen: ImageDraw.ImageDraw,
        episode: Episode,
        number: int,
        curves: dict[str, np.ndarray],
        status: tuple[str, bool] | None,
    ) -> None:
        """The right side: title, time, status and curves."""
        now = min(int(number * self.pace / FPS / episode.control_dt), episode.length - 1)
        pen.text((self.left, 18), self.title, INK, self.large)
        speed = f", {self.pace:g} times as fast" if self.pace > 1.0 else ""
        pen.text((self.left, 52), f"{number * self.pace / FPS:.1f} s{speed}", QUIET, self.small)
        if status:
            pen.text((self.left, 74), status[0], BAD if status[1] else QUIET, self.small)
        room = (HEIGHT - 140) / max(len(curves), 1)
        for k, (name, values) in enumerate(curves.items()):
            self._curve(pen, name, values, now, 104 + k * room, room - 26)
        pen.text((self.left, HEIGHT - 26), self.footer, QUIET, self.small)

    def _curve(
        self, pen: ImageDraw.ImageDraw, name: str, values: np.ndarray, now: int, top: float, height: float
    ) -> None:
        left, right, low, high = self.left, WIDTH - 90, float(values.min()), float(values.max())
        pen.text((left, top), name.replace("_", " "), INK, self.small)
        pen.text((right + 8, top + 20), f"{values[now]:.3g}", INK, self.small)
        top, bottom = top + 20, top + height
        pen.rectangle((left, top, right, bottom), outline=GRID)
        x = left + np.arange(len(values)) / max(len(values) - 1, 1) * (right - left)
        y = bottom - (values - low) / max(high - low, 1e-9) * (bottom - top)
        pen.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=GRID, width=2)
        if now:
            pen.line(list(zip(x[: now + 1].tolist(), y[: now + 1].tolist(), strict=True)), fill=(37, 99, 235), width=3)
        pen.ellipse((x[now] - 4, y[now] - 4, x[now] + 4, y[now] + 4), fill=(37, 99, 235))


class RobotCanvas(DefaultCanvas):
    """The robot on the left, in one episode after another, and curves of that episode on the right."""

    def __init__(self, task: DrawnTask, episodes: list[Episode], title: str, pace: float, footer: str) -> None:
        super().__init__(episodes, title, pace, footer)
        self.left, self.pictures = HEIGHT + 30, Pictures(task, HEIGHT, HEIGHT)

    def frames(self, episode: Episode) -> int:
        """Frames that an episode takes."""
        return max(int(episode.length * episode.control_dt / self.pace * FPS), 1)

    def draw(self, number: int) -> Image.Image:
        image = Image.new("RGB", self.size, (255, 255, 255))
        shown = 0
        while number >= self.frames(self.episodes[shown]) and shown + 1 < len(self.episodes):
            number -= self.frames(self.episodes[shown])
            shown += 1
        episode = self.episodes[shown]
        now = min(int(number * self.pace / FPS / episode.control_dt), episode.length - 1)
        image.paste(self.pictures.draw(episode, now), (0, 0))
        good = episode.metrics.get("success", 1.0) > 0.5
        status = f"episode {shown + 1}: {'succeeds' if good else 'fails'}", not good
        self._tell(ImageDraw.Draw(image), episode, number, single_numbers(episode), status)
        return image
