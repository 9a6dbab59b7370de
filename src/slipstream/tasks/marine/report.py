"""Film and page of marine navigation: vessels from above with trails, goals, obstacles observed, and right of way."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from ...core.geometry import Vec2
from ...dynamics.vessel import TwinThrusterVessel
from ...evaluation.episode import Episode
from ...reports import charts
from ...reports.default import circle
from ...reports.text import Film, ReportText, Section
from ...reports.video import FPS, pace_for
from .colregs import CROSSING, CROSSING_SLOPE, HEAD_ON_LENGTH, HEAD_ON_WIDTH, must_give_way
from .state import Obstacle
from .task import Marine

WIDTH, HEIGHT, FINE = 1280, 720, 2
"""Of the film in pixels, and how many times finer it is drawn before it is scaled down."""
SEA, SHORE, INK, QUIET, BUOY, ALARM = (
    (222, 236, 245),
    (244, 248, 251),
    (15, 23, 42),
    (100, 116, 139),
    (217, 119, 6),
    (220, 38, 38),
)
HULL = np.array([[2.5, 0.0], [1.4, 1.25], [-2.5, 1.25], [-2.5, -1.25], [1.4, -1.25]])
"""Corners of a WAM-V seen from above, m."""
COLUMN = 380
"""Width of the column on the right, pixels."""
Rows = dict[str, np.ndarray]
"""Recorded arrays by name."""
Color = tuple[int, int, int]


def text(task: Marine) -> ReportText:
    return ReportText(
        task=task.description,
        attempts="vessels",
        success="reach their goal",
        film="Each vessel with its trail, its goal as a ring of its color, the range of its sensors and lines to the "
        "obstacles it observes. A red outline marks a vessel that the COLREGs require to turn right; the zones of the "
        "vessel it gives way to are shaded. On the right the thrusts and, for distributional policies, the "
        "distribution of the expected return.",
        tiles={
            "all_reach": ("{:.1%}", "of worlds in which all reach"),
            "duration_mean": ("{:.1f} s", "mean time to the goal"),
            "energy_mean": ("{:.1f} kN s", "mean thrust times time"),
            "crash_rate": ("{:.1%}", "of vessels collide"),
        },
    )


def sections(task: Marine, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    """Paths from above, and how times and efforts spread."""
    nothing = np.zeros(0)
    histograms = [
        charts.histogram(metrics.get("duration", nothing), "time to the goal, s", "vessels"),
        charts.histogram(metrics.get("energy", nothing), "thrust times time, kN s", "vessels"),
    ]
    maps = [Markup(path_chart(episode)) for episode in by_give_way_time(episodes)[:4]]
    return [
        Section("Voyages", maps, "The evaluation's worlds with the longest time of giving way, from above."),
        Section("Time and effort", [Markup(chart) for chart in histograms], ""),
    ]


def by_give_way_time(episodes: list[Episode]) -> list[Episode]:
    """Episodes sorted by the time in which vessels had to give way, longest first."""
    return sorted(episodes, key=lambda episode: -give_way_steps(episode))


def give_way_steps(episode: Episode) -> float:
    """Steps in which the COLREGs required a turn, of all vessels together."""
    return float(np.sum(rows_of(episode)["required_turn"] > 0.0))


def film(task: Marine, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
    """The episode with the longest time of giving way."""
    episode = by_give_way_time(episodes)[0]
    pace, frames = pace_for([episode], seconds)
    return Film(MarineCanvas(task, episode, title, FPS, pace), frames)


def map_canvas(task: Marine, episode: Episode, title: str, pace: float, edge: int | None) -> "MarineCanvas":
    return MarineCanvas(task, episode, title, FPS, pace, edge)


def landmarks(episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]:
    """The buoys and the goals."""
    buoys = [(circle(np.array([x, y]), radius), True) for x, y, radius in episode.world["buoys"] if radius > 0.0]
    return buoys + [(circle(goal, 2.0), False) for goal in np.atleast_2d(episode.world["goal"])]


def hardness(episodes: Sequence[Episode]) -> tuple[float, ...]:
    """The fewer vessels reach their goals and the longer they give way, the harder."""
    return sum(episode.metrics["success"] for episode in episodes), -sum(map(give_way_steps, episodes))


def rows_of(episode: Episode) -> Rows:
    """The trajectory with an axis of vessels; after its end a vessel stays as it was then."""
    steps = episode.trajectory
    if steps["yaw"].ndim == 1:
        steps = {name: value[:, None] for name, value in steps.items()}
    rows = {name: np.array(value) for name, value in steps.items()}
    for k in range(rows["yaw"].shape[1]):
        ended = rows["ended"][:, k]
        if ended.any():
            last = int(np.argmax(ended))
            for name, value in rows.items():
                if name not in ("reward", "ended", "returns"):
                    value[last:, k] = value[last, k]
            rows["required_turn"][last:, k] = 0.0
    return rows


def path_chart(episode: Episode, size: int = 360) -> str:
    """The paths of an episode from above, as SVG."""
    rows, goals = rows_of(episode), np.atleast_2d(episode.world["goal"])
    low, high = bounds(rows, goals)
    scale = size / float(np.max(high - low))
    place = lambda p: ((p[0] - low[0]) * scale, size - (p[1] - low[1]) * scale)  # noqa: E731
    parts = [
        f'<svg viewBox="0 0 {size} {size}" width="{size}" height="{size}" role="img" aria-label="paths from above">'
    ]
    parts.append(f'<rect width="{size}" height="{size}" fill="rgb{SEA}"/>')
    for x, y, radius in episode.world["buoys"]:
        if radius > 0.0:
            cx, cy = place((x, y))
            parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{radius * scale:.1f}" fill="rgb{BUOY}"/>')
    for k in range(rows["yaw"].shape[1]):
        color = f"rgb{hue(k)}"
        points = " ".join("{:.1f},{:.1f}".format(*place(p)) for p in rows["position"][:, k, :2])
        gx, gy = place(goals[k])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        ring = f'cx="{gx:.1f}" cy="{gy:.1f}" r="{2.0 * scale:.1f}"'
        parts.append(f'<circle {ring} fill="none" stroke="{color}" stroke-width="2"/>')
    return "".join([*parts, "</svg>"])


def bounds(rows: Rows, goals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower left and upper right corner of a square around all paths and goals."""
    points = np.concatenate([rows["position"][..., :2].reshape(-1, 2), goals])
    low, high = points.min(0) - 6.0, points.max(0) + 6.0
    middle, half = (low + high) / 2.0, float(np.max(high - low)) / 2.0
    return middle - half, middle + half


def rounded_range(values: np.ndarray) -> tuple[float, float]:
    """Multiples of ten around all but the extreme values."""
    low, high = np.percentile(values, (0.5, 99.5)) if values.size else (0.0, 1.0)
    return math.floor(float(low) / 10.0) * 10.0, math.ceil(float(high) / 10.0) * 10.0 + 1e-6


def hue(number: int) -> Color:
    """A color for each vessel, far from its neighbors'."""
    table = ((37, 99, 235), (22, 163, 74), (147, 51, 234), (8, 145, 178), (219, 39, 119), (101, 163, 13), (79, 70, 229))
    return table[number % len(table)]


class MarineCanvas:
    """Draws one moment of an episode."""

    def __init__(
        self, task: Marine, episode: Episode, title: str, fps: int, pace: float, edge: int | None = None
    ) -> None:
        """With an `edge`, only the map is drawn, as a square of so many pixels, without the column beside it."""
        self.task, self.title, self.fps, self.pace = task, title, fps, pace
        self.rows, self.dt = rows_of(episode), episode.control_dt
        self.goals, self.buoys = np.atleast_2d(episode.world["goal"]), episode.world["buoys"]
        self.size = (edge, edge) if edge else (WIDTH, HEIGHT)
        self.map_only, self.left, self.tall = bool(edge), (edge or WIDTH - COLUMN) * FINE, (edge or HEIGHT) * FINE
        self.set_frame(*bounds(self.rows, self.goals))
        returns = self.rows.get("returns")
        self.expected = (0.0, 1.0) if returns is None else rounded_range(returns[~self.rows["ended"]])
        self.large, self.small = (ImageFont.load_default(size * FINE) for size in (24, 15))

    def set_frame(self, low: np.ndarray, high: np.ndarray) -> None:
        """Show this part of the world."""
        self.low, self.high = low, high
        self.scale = self.tall / float(np.max(high - low))

    def at(self, point: np.ndarray) -> np.ndarray:
        """Pixels of a position."""
        x = self.left / 2 + (point[..., 0] - (self.low[0] + self.high[0]) / 2) * self.scale
        y = self.tall / 2 - (point[..., 1] - (self.low[1] + self.high[1]) / 2) * self.scale
        return np.stack([x, y], -1)

    def draw(self, number: int) -> Image.Image:
        time = self._step_at(number)
        step = min(int(time), len(self.rows["yaw"]) - 1)
        image = Image.new("RGB", (self.size[0] * FINE, self.tall), SEA)
        pen = ImageDraw.Draw(image, "RGBA")
        for x, y, radius in self.buoys:
            if radius > 0.0:
                self._circle(pen, np.array([x, y]), radius, fill=BUOY)
        now = self._interpolate(time)
        for k in range(now["yaw"].shape[0]):
            self._zones(pen, now, k)
        for k in range(now["yaw"].shape[0]):
            self._vessel(pen, now, k, step)
        if not self.map_only:
            self._column(pen, now, step)
        return image.resize(self.size, Image.Resampling.BOX)

    def status(self, number: int) -> tuple[str, bool]:
        now = self._interpolate(self._step_at(number))
        count, collided = len(now["yaw"]), int(np.sum(now["collided"]))
        reached = sum(self._reached(now, k) for k in range(count))
        return f"{reached} of {count} there" + (f", {collided} collided" if collided else ""), collided > 0

    def _step_at(self, number: int) -> float:
        """The step shown in a frame, with its fraction."""
        return number / self.fps * self.pace / self.dt

    def _interpolate(self, time: float) -> Rows:
        """The vessels between two steps."""
        last = len(self.rows["yaw"]) - 1
        first = min(int(time), last)
        second, fraction = min(first + 1, last), min(time, last) - first
        mixed = {}
        for name in ("position", "velocity"):
            mixed[name] = (1 - fraction) * self.rows[name][first] + fraction * self.rows[name][second]
        turn = self.rows["yaw"][second] - self.rows["yaw"][first]
        turn = (turn + math.pi) % (2 * math.pi) - math.pi
        kept = ("required_turn", "thrust", "collided", "ended", "returns")
        rest = {name: self.rows[name][first] for name in kept if name in self.rows}
        return {**mixed, **rest, "yaw": self.rows["yaw"][first] + fraction * turn}

    def _circle(self, pen: ImageDraw.ImageDraw, center: np.ndarray, radius: float, **style: object) -> None:
        x, y = self.at(center)
        r = radius * self.scale
        pen.ellipse([x - r, y - r, x + r, y + r], **style)  # pyright: ignore[reportArgumentType]

    def _zones(self, pen: ImageDraw.ImageDraw, now: Rows, k: int) -> None:
        """The head-on and crossing zones of the vessel that `k` gives way to."""
        if now["required_turn"][k] <= 0.0 or not self.task.colregs:
            return
        offset, velocity = now["position"] - now["position"][k], now["velocity"]
        at, moving = (Vec2(*jnp.asarray(x[:, :2], jnp.float32).T) for x in (offset, velocity))
        others = Obstacle(at, moving, jnp.zeros(len(offset)), jnp.asarray(~now["ended"]))
        asks = np.asarray(must_give_way(Vec2(*map(jnp.float32, velocity[k][:2])), others))
        gaps = np.where(asks, np.linalg.norm(offset, axis=-1), np.inf)
        gaps[k] = np.inf
        other = int(np.argmin(gaps))
        if not np.isfinite(gaps[other]):
            return
        ahead = velocity[other][:2] / max(float(np.linalg.norm(velocity[other][:2])), 1e-6)
        side = np.array([-ahead[1], ahead[0]])
        back, front, left = CROSSING
        length, width = HEAD_ON_LENGTH, HEAD_ON_WIDTH
        head_on = ((0.0, -width), (length, -width), (length, width), (0.0, width))
        crossing = ((back, 0.0), (0.0, 0.0), (front, CROSSING_SLOPE * front), (front, left), (back, left))
        for corners in (head_on, crossing):
            places = [now["position"][other][:2] + x * ahead + y * side for x, y in corners]
            pen.polygon([tuple(self.at(place)) for place in places], fill=(*ALARM, 26))

    def _vessel(self, pen: ImageDraw.ImageDraw, now: Rows, k: int, step: int) -> None:
        color = hue(k)
        self._circle(pen, self.goals[k], self.task.goal_radius, outline=color, width=3 * FINE)
        trail = self.at(self.rows["position"][: step + 1, k, :2])
        if len(trail) > 1:
            pen.line([tuple(p) for p in trail], fill=(*color, 150), width=2 * FINE)
        place, yaw = now["position"][k][:2], float(now["yaw"][k])
        if now["ended"][k]:
            if now["collided"][k]:
                x, y = self.at(place)
                arm = 9 * FINE
                for dx in (-arm, arm):
                    pen.line([x - dx, y - arm, x + dx, y + arm], fill=ALARM, width=4 * FINE)
            return
        self._circle(pen, place, self.task.sensor_range, outline=(*color, 50), width=FINE)
        for obstacle in self._observed(now, k):
            pen.line([*self.at(place), *self.at(obstacle)], fill=(*color, 90), width=FINE)
        turn = np.array([[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]])
        shape = HULL * (self.task.dynamics.radius / TwinThrusterVessel().radius)
        outline = [tuple(self.at(place + turn @ corner)) for corner in shape]
        pen.polygon(
            outline, fill=color, outline=ALARM if now["required_turn"][k] > 0.0 else (255, 255, 255), width=2 * FINE
        )

    def _column(self, pen: ImageDraw.ImageDraw, now: Rows, step: int) -> None:
        left, top = self.left, 24 * FINE
        pen.rectangle([left, 0, WIDTH * FINE, HEIGHT * FINE], fill=SHORE)
        pen.text((left + 24 * FINE, top), self.title, fill=INK, font=self.large)
        time = f"{step * self.dt:.0f} s" + (f", shown {self.pace:.0f} times as fast" if self.pace > 1 else "")
        pen.text((left + 24 * FINE, top + 34 * FINE), time, fill=QUIET, font=self.small)
        count = now["yaw"].shape[0]
        for k in range(count):
            y = top + (76 + min(116, 600 // count) * k) * FINE
            speed = float(np.linalg.norm(now["velocity"][k]))
            pen.ellipse([left + 24 * FINE, y, left + 40 * FINE, y + 16 * FINE], fill=hue(k))
            status = f"{speed:.1f} m/s"
            if now["ended"][k]:
                status = "at its goal" if self._reached(now, k) else "collided" if now["collided"][k] else "out of time"
            pen.text((left + 52 * FINE, y - 2 * FINE), f"vessel {k + 1}: {status}", fill=INK, font=self.small)
            if now["ended"][k]:
                continue
            if isinstance(self.task.dynamics, TwinThrusterVessel):
                for row, thrust in enumerate(now["thrust"][k]):
                    self._bar(pen, y + (22 + 14 * row) * FINE, float(thrust) / self.task.dynamics.max_thrust, hue(k))
            if "returns" in now:
                self._returns(pen, y + 52 * FINE, now["returns"][k], hue(k))
            if now["required_turn"][k] > 0.0:
                text = f"give way: {math.degrees(float(now['required_turn'][k])):.0f}° right"
                pen.text((left + 200 * FINE, y - 2 * FINE), text, fill=ALARM, font=self.small)

    def _returns(self, pen: ImageDraw.ImageDraw, y: float, quantiles: np.ndarray, color: Color) -> None:
        """The distribution of the expected return as a smoothed density, with a line at its mean."""
        low, high = self.expected
        left, wide, tall = self.left + 32 * FINE, 300 * FINE, 34 * FINE
        grid = np.linspace(low, high, 76)
        width = 0.03 * (high - low)
        density = np.mean(np.exp(-0.5 * ((grid[:, None] - quantiles) / width) ** 2), axis=1)
        x = left + (grid - low) / (high - low) * wide
        points = list(zip(x, y + tall * (1.0 - density / max(float(density.max()), 1e-9)), strict=True))
        pen.polygon([(left, y + tall), *points, (left + wide, y + tall)], fill=(*color, 90))
        middle = left + (float(np.mean(quantiles)) - low) / (high - low) * wide
        pen.line([middle, y, middle, y + tall], fill=INK, width=FINE)
        pen.line([left, y + tall, left + wide, y + tall], fill=QUIET, width=FINE)
        for value, anchor in ((low, "la"), (high, "ra")):
            edge = left if anchor == "la" else left + wide
            pen.text((edge, y - 2 * FINE), f"{value:.0f}", fill=QUIET, font=self.small, anchor=anchor)
        pen.text((left + wide, y + tall + 2 * FINE), "expected return", fill=QUIET, font=self.small, anchor="ra")

    def _observed(self, now: Rows, k: int) -> list[np.ndarray]:
        """Positions of the obstacles that a vessel observes."""
        if self.task.sensing != "obstacles":
            return []
        place, radius = now["position"][k][:2], self.task.dynamics.radius
        others = [j for j in range(len(now["yaw"])) if j != k and not now["ended"][j]]
        found = [(now["position"][j][:2], radius) for j in others]
        found += [(buoy[:2], buoy[2]) for buoy in self.buoys if buoy[2] > 0.0]
        gaps = sorted((float(np.linalg.norm(at - place)) - radius, tuple(at)) for at, radius in found)
        return [np.array(at) for gap, at in gaps[: self.task.max_obstacles] if gap < self.task.sensor_range]

    def _reached(self, now: Rows, k: int) -> bool:
        distance = float(np.linalg.norm(now["position"][k][:2] - self.goals[k]))
        return bool(now["ended"][k] & ~now["collided"][k]) and distance < self.task.goal_radius + 1.0

    def _bar(self, pen: ImageDraw.ImageDraw, y: float, fraction: float, color: Color) -> None:
        """A thrust as a fraction of the largest, between full astern and full ahead."""
        zero, unit, high = self.left + 132 * FINE, 200 * FINE, 9 * FINE
        pen.rectangle([zero - 0.5 * unit, y, zero + unit, y + high], fill=(226, 232, 240))
        pen.rectangle([zero + min(fraction, 0.0) * unit, y, zero + max(fraction, 0.0) * unit, y + high], fill=color)
