"""Film and page of the field robot: rows from above and close up, lidar, commands, and the plants that were touched."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from ...evaluation.episode import Episode
from ...reports import charts
from ...reports.default import circle
from ...reports.panes import locate_frame
from ...reports.text import Film, ReportText, Section
from ...reports.video import FPS, pace_for
from .task import Field

WIDTH, HEIGHT, FINE = 1280, 720, 2
"""Of the film in pixels, and how many times finer it is drawn before it is scaled down."""
MAP, NEAR = (0, 0, 590, HEIGHT), (600, 0, WIDTH, 500)
"""Where the map of the field and the view close up stand: left, top, right and bottom, pixels."""
SOIL, HEADLAND, PAPER, INK, QUIET = (233, 222, 203), (214, 224, 196), (248, 250, 252), (15, 23, 42), (100, 116, 139)
PLANT, ALARM, BODY, WHEEL, BEAM, HIT, TRAIL, AIM = (
    (58, 125, 68), (220, 38, 38), (37, 99, 235), (15, 23, 42), (234, 88, 12), (194, 65, 12), (30, 64, 175),
    (147, 51, 234),
)  # fmt: skip
AIM_RADIUS = 0.15
"""Of the ring around the waypoint, m."""
MARGIN = 1.3
"""Of the map beyond rows and path, m."""
CLOSE = 2.7
"""Width of the view close up, m."""
REST = 1.0
"""Seconds for which a film stays at the end of an episode."""
WHEEL_SIZE = (0.1, 0.045)
"""Length and width of a wheel, m."""
Color = tuple[int, ...]
Box = tuple[int, int, int, int]


def text(task: Field) -> ReportText:
    return ReportText(
        task=task.description,
        success="drive all their lanes",
        film="Left the field from above: every plant, the headlands in green, the path driven and, as a violet ring, "
        "the waypoint. Right the robot close up, with its wheels and the beams of its lidar; a beam that hits a plant "
        "ends in a dot. Below, the command that the queue shows. Plants that are touched turn red.",
        tiles={
            "lanes_mean": ("{:.1f}", f"of {task.lanes} lanes, on average"),
            "touch_rate": ("{:.1%}", "touch a plant"),
            "lost_rate": ("{:.1%}", "lose their way"),
            "duration_mean": ("{:.0f} s", "mean time of those that finish"),
        },
    )


def sections(task: Field, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    """Paths from above, how episodes ended and how far they came, and what room was left beside plants."""
    found = []
    if episodes:
        shown = sorted(episodes, key=lambda episode: episode.metrics["success"])[:4]
        maps = [Markup(path_chart(task, episode)) for episode in shown]
        note = (
            "Evaluation episodes from above, those that failed first. A red cross marks where one ended, a violet ring "
            "the waypoint that it was to reach."
        )
        found.append(Section("Paths", maps, note))
    bars = Markup(charts.stacked_bar(ends(metrics)))
    found.append(
        Section(
            "How episodes ended",
            [bars],
            "Lost: the robot left the way to its waypoint. Late: time ran out. Touched: it hit a plant.",
        )
    )
    limits = [Markup(charts.histogram(metrics["lanes"], "lanes driven", "episodes"))]
    if episodes:
        room = np.concatenate([clearance(task, episode) for episode in episodes])
        limits.append(Markup(charts.histogram(room[room < 0.6], "room to the nearest plant, m", "steps")))
        note = limits_note(task, episodes, metrics)
        found.append(Section("What limits", limits, note))
    else:
        found.append(Section("What limits", limits, ""))
    return found


def ends(metrics: dict[str, np.ndarray]) -> dict[str, float]:
    """Fractions of episodes by how they ended."""
    good, touched, lost = (float(np.mean(metrics[name])) for name in ("success", "touched", "lost"))
    lost = max(min(lost, 1.0 - good - touched), 0.0)
    late = max(1.0 - good - touched - lost, 0.0)
    return {"finished": good, "lost": lost, "late": late, "touched": touched}


def limits_note(task: Field, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> str:
    """Where the failures of the recorded episodes happened, and how fast the robot was."""
    failed = [episode for episode in episodes if episode.metrics["success"] < 0.5]
    inside = sum(0.0 <= episode.trajectory["position"][-1, 0] <= episode.world["length"] for episode in failed)
    speed = np.concatenate([np.abs(episode.trajectory["speed"]) for episode in episodes])
    words = f"The robot drove at {np.mean(speed):.2f} m/s on average; its wheels can do {task.rover.max_speed:g} m/s."
    if failed:
        words += f" Of {len(failed)} recorded failures {inside} happened between rows, {len(failed) - inside} beyond."
    return words


def clearance(task: Field, episode: Episode) -> np.ndarray:
    """Room between the robot and the nearest plant, in every step, m."""
    gap = np.linalg.norm(episode.trajectory["position"][:, None, :2] - plants_of(episode)[None], axis=-1)
    return gap.min(1) - task.rover.radius - task.crop.plant_radius


def plants_of(episode: Episode) -> np.ndarray:
    """The middles of all plants that exist."""
    plants = episode.world["plants"]
    return plants[plants[:, 2] > 0.5, :2]


def touched_plants(task: Field, episode: Episode) -> np.ndarray:
    """Whether each plant is touched when the episode ends."""
    plants, last = plants_of(episode), episode.trajectory["position"][-1, :2]
    reach = task.rover.radius + task.crop.plant_radius + 1e-3
    return bool(episode.trajectory["touched"][-1]) & (np.linalg.norm(plants - last, axis=-1) < reach)


def bounds(episode: Episode) -> tuple[np.ndarray, np.ndarray]:
    """Lower left and upper right corner of what an episode has to do with: its path, and rows to either side of it."""
    path, length = episode.trajectory["position"][:, :2], float(episode.world["length"])
    low, high = np.minimum(path.min(0), [0.0, np.inf]), np.maximum(path.max(0), [length, -np.inf])
    return low - MARGIN, high + MARGIN


def path_chart(task: Field, episode: Episode, size: int = 520) -> str:
    """The path of an episode among the plants, as SVG; of one that failed also the waypoint it did not reach."""
    low, high = bounds(episode)
    soil = np.array([[0.0, low[1]], [float(episode.world["length"]), high[1]]])
    turned = high[1] - low[1] > high[0] - low[0]  # the longer side across
    turn = (lambda p: np.stack([p[..., 1], -p[..., 0]], -1)) if turned else (lambda p: p)
    low, high = np.sort(turn(np.stack([low, high])), axis=0)
    scale = size / float(high[0] - low[0])
    tall = float(high[1] - low[1]) * scale
    at = lambda p: (turn(p[..., :2]) - [low[0], high[1]]) * [scale, -scale]  # noqa: E731
    parts = [f'<svg viewBox="0 0 {size} {tall:.0f}" role="img" aria-label="path from above">']
    parts.append(f'<rect width="{size}" height="{tall:.0f}" fill="rgb{HEADLAND}"/>')
    (x, y), (right, bottom) = np.sort(at(soil), axis=0)
    parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{bottom - y:.1f}" fill="rgb{SOIL}"/>')
    touched = touched_plants(task, episode)
    radius = task.crop.plant_radius * scale
    for (x, y), red in zip(at(plants_of(episode)), touched, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="rgb{ALARM if red else PLANT}"/>')
    path = at(episode.trajectory["position"])
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
    parts.append(f'<polyline points="{points}" fill="none" stroke="rgb{TRAIL}" stroke-width="2"/>')
    x, y = path[0]
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="rgb{TRAIL}"/>')
    if episode.metrics["success"] < 0.5:
        x, y = at(episode.trajectory["waypoint"])[-1]
        ring = f'r="{AIM_RADIUS * scale:.1f}" fill="none" stroke="rgb{AIM}" stroke-width="2"'
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" {ring}/>')
        x, y = path[-1]
        cross = f"M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12"
        parts.append(f'<path d="{cross}" stroke="rgb{ALARM}" stroke-width="3"/>')
    return "".join([*parts, "</svg>"])


def film(task: Field, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
    """The episode that came farthest, and then one that touched a plant, if there is one."""
    best = max(episodes, key=lambda episode: (episode.metrics["success"], episode.metrics["lanes"]))
    touching = [episode for episode in episodes if episode.metrics["touched"] > 0.5 and episode is not best]
    shown = [best, *touching[:1]]
    pace, _ = pace_for([best], seconds)
    canvases = [FieldCanvas(task, episode, title, pace, footer) for episode in shown]
    reel = Reel(canvases)
    return Film(reel, sum(reel.lengths))


def map_canvas(task: Field, episode: Episode, title: str, pace: float, edge: int | None) -> "FieldCanvas":
    return FieldCanvas(task, episode, title, pace, "", edge)


def landmarks(episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]:
    """The plants."""
    return [(circle(plant, 0.1), True) for plant in plants_of(episode)]


def hardness(episodes: Sequence[Episode]) -> tuple[float, ...]:
    """The fewer finish and the fewer lanes they drive, the harder."""
    return sum(episode.metrics["success"] for episode in episodes), sum(
        episode.metrics["lanes"] for episode in episodes
    )


class Reel:
    """Episodes one after the other."""

    size = WIDTH, HEIGHT

    def __init__(self, canvases: list["FieldCanvas"]) -> None:
        self.canvases = canvases
        self.lengths = [canvas.frames for canvas in canvases]

    def draw(self, number: int) -> Image.Image:
        part, number = locate_frame(self.lengths, number)
        return self.canvases[part].draw(number)


@dataclass
class View:
    """A part of the world in a box of the picture."""

    box: Box
    low: np.ndarray
    high: np.ndarray

    @cached_property
    def scale(self) -> float:
        """Pixels of a meter."""
        left, top, right, bottom = self.box
        return FINE * min(*(np.array([right - left, bottom - top]) / (self.high - self.low)))

    def at(self, point: np.ndarray) -> np.ndarray:
        """Pixels of positions."""
        left, top, right, bottom = self.box
        offset = (np.asarray(point)[..., :2] - (self.low + self.high) / 2) * self.scale
        return np.array([left + right, top + bottom]) * FINE / 2 + offset * np.array([1.0, -1.0])

    @property
    def shown(self) -> tuple[np.ndarray, np.ndarray]:
        """The corners of what the box shows, which has another shape than what was asked for."""
        left, top, right, bottom = self.box
        half = np.array([right - left, bottom - top]) * FINE / self.scale / 2
        return (self.low + self.high) / 2 - half, (self.low + self.high) / 2 + half


class FieldCanvas:
    """Draws one moment of an episode: the map, the robot close up, and the command."""

    def __init__(
        self, task: Field, episode: Episode, title: str, pace: float, footer: str = "", edge: int | None = None
    ) -> None:
        """With an `edge`, only the map is drawn, as a square of so many pixels."""
        self.task, self.episode, self.title, self.pace, self.footer = task, episode, title, pace, footer
        self.rows, self.dt = episode.trajectory, episode.control_dt
        self.plants, self.touched = plants_of(episode), touched_plants(task, episode)
        self.edge, self.size = edge, (edge, edge) if edge else (WIDTH, HEIGHT)
        self.set_frame(*bounds(episode))
        self.large, self.medium, self.small = (ImageFont.load_default(size * FINE) for size in (26, 20, 15))

    @property
    def frames(self) -> int:
        """Of a film until the end of the episode and a little longer."""
        return max(int((self.episode.length * self.dt / self.pace + REST) * FPS), 1)

    def set_frame(self, low: np.ndarray, high: np.ndarray) -> None:
        """Show this part of the world on the map."""
        self.low, self.high = low, high
        self.map = View((0, 0, self.edge, self.edge) if self.edge else MAP, low, high)

    def status(self, number: int) -> tuple[str, bool]:
        step = self._step_at(number)
        over = step >= self.episode.length - 1
        if over and self.rows["touched"][-1]:
            return "touched a plant", True
        if over and self.episode.metrics["lost"] > 0.5:
            return "lost its way", True
        if over and self.episode.metrics["success"] > 0.5:
            return "all lanes driven", False
        return ("out of time", True) if over else ("driving", False)

    def draw(self, number: int) -> Image.Image:
        step = self._step_at(number)
        image = self._view(self.map, step, self.map.scale < 80 * FINE)
        if self.edge:
            return image.resize(self.size, Image.Resampling.BOX)
        picture = Image.new("RGB", (WIDTH * FINE, HEIGHT * FINE), PAPER)
        picture.paste(image, (MAP[0] * FINE, MAP[1] * FINE))
        here = self.rows["position"][step, :2]
        half = CLOSE / 2 * np.array([1.0, (NEAR[3] - NEAR[1]) / (NEAR[2] - NEAR[0])])
        near = View((0, 0, NEAR[2] - NEAR[0], NEAR[3] - NEAR[1]), here - half, here + half)
        picture.paste(self._view(near, step, False), (NEAR[0] * FINE, NEAR[1] * FINE))
        self._panel(ImageDraw.Draw(picture, "RGBA"), step, number)
        return picture.resize(self.size, Image.Resampling.BOX)

    def _step_at(self, number: int) -> int:
        return min(int(number / FPS * self.pace / self.dt), self.episode.length - 1)

    def _view(self, view: View, step: int, small: bool) -> Image.Image:
        """A view of the world; on a small one the beams of the lidar are left out where they hit nothing."""
        left, top, right, bottom = view.box
        image = Image.new("RGB", ((right - left) * FINE, (bottom - top) * FINE), HEADLAND)
        pen = ImageDraw.Draw(image, "RGBA")
        low, high = view.shown
        soil = view.at(np.array([[0.0, high[1]], [float(self.episode.world["length"]), low[1]]]))
        pen.rectangle([*soil[0], *soil[1]], fill=SOIL)
        self._trail(pen, view, step)
        self._lidar(pen, view, step, small)
        self._plants(pen, view, low, high, step)
        self._waypoint(pen, view, step)
        self._rover(pen, view, step)
        return image

    def _plants(self, pen: ImageDraw.ImageDraw, view: View, low: np.ndarray, high: np.ndarray, step: int) -> None:
        over = step >= self.episode.length - 1
        inside = np.all((self.plants > low - 0.2) & (self.plants < high + 0.2), axis=1)
        for (x, y), red in zip(view.at(self.plants[inside]), self.touched[inside], strict=True):
            r = self.task.crop.plant_radius * view.scale
            color = ALARM if red and over else PLANT
            pen.ellipse([x - r, y - r, x + r, y + r], fill=color)

    def _trail(self, pen: ImageDraw.ImageDraw, view: View, step: int) -> None:
        points = view.at(self.rows["position"][: step + 1])
        if len(points) > 1:
            pen.line([tuple(p) for p in points], fill=(*TRAIL, 150), width=2 * FINE)

    def _lidar(self, pen: ImageDraw.ImageDraw, view: View, step: int, small: bool) -> None:
        position, ranges = self.rows["position"][step, :2], self.rows["ranges"][step]
        angles = self.rows["yaw"][step] + self.task.lidar.angles
        ends = view.at(position + ranges[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1))
        start = view.at(position)
        dot = (2 if small else 4) * FINE
        for (x, y), hit in zip(ends, ranges < 0.999 * self.task.lidar.max_range, strict=True):
            if hit or not small:
                pen.line([*start, x, y], fill=(*BEAM, 150 if hit else 55), width=FINE)
            if hit:
                pen.ellipse([x - dot, y - dot, x + dot, y + dot], fill=HIT)

    def _waypoint(self, pen: ImageDraw.ImageDraw, view: View, step: int) -> None:
        """A ring; nothing once all lanes are driven."""
        if step >= self.episode.length - 1 and self.episode.metrics["success"] > 0.5:
            return
        x, y = view.at(self.rows["waypoint"][step])
        r = AIM_RADIUS * view.scale
        pen.ellipse([x - r, y - r, x + r, y + r], outline=(*AIM, 160), width=2 * FINE)

    def _rover(self, pen: ImageDraw.ImageDraw, view: View, step: int) -> None:
        """The body with an arrow ahead, four wheels as they are turned, and the circle that must not touch plants."""
        rover, place, yaw = self.task.rover, self.rows["position"][step, :2], float(self.rows["yaw"][step])
        bad = bool(self.rows["touched"][step])
        x, y = view.at(place)
        r = rover.radius * view.scale
        pen.ellipse([x - r, y - r, x + r, y + r], outline=ALARM if bad else (*BODY, 140), width=FINE)
        a, b = rover.half_length, rover.half_width
        corners = np.array([[a, 0.6 * b], [-a, 0.6 * b], [-a, -0.6 * b], [a, -0.6 * b]])
        self._polygon(pen, view, place + corners @ rotation(yaw).T, ALARM if bad else BODY)
        nose = np.array([[0.8 * a, 0.0], [0.2 * a, 0.45 * b], [0.2 * a, -0.45 * b]])
        self._polygon(pen, view, place + nose @ rotation(yaw).T, (255, 255, 255))
        half = np.array(WHEEL_SIZE) / 2
        tread = half * np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
        for hub, angle in zip(((a, b), (a, -b), (-a, b), (-a, -b)), self.rows["wheel_angles"][step], strict=True):
            wheel = np.array(hub) + tread @ rotation(float(angle)).T
            self._polygon(pen, view, place + wheel @ rotation(yaw).T, WHEEL)

    def _polygon(self, pen: ImageDraw.ImageDraw, view: View, points: np.ndarray, color: Color) -> None:
        pen.polygon([tuple(p) for p in view.at(points)], fill=color)

    def _panel(self, pen: ImageDraw.ImageDraw, step: int, number: int) -> None:
        """Title, time, command, and how it goes."""
        left, top = (NEAR[0] + 16) * FINE, (NEAR[3] + 14) * FINE
        pen.text((left, top), self.title, fill=INK, font=self.large)
        faster = f", shown {self.pace:.0f} times as fast" if self.pace > 1 else ""
        pen.text((left, top + 36 * FINE), f"{step * self.dt:.0f} s{faster}", fill=QUIET, font=self.small)
        words, bad = self.status(number)
        pen.text((left, top + 60 * FINE), words, fill=ALARM if bad else INK, font=self.medium)
        self._speed(pen, left, top + 94 * FINE, step)
        self._command(pen, left + 330 * FINE, top, step)
        pen.text((left, (HEIGHT - 24) * FINE), self.footer, fill=QUIET, font=self.small)

    def _speed(self, pen: ImageDraw.ImageDraw, left: float, top: float, step: int) -> None:
        """The speed of the wheels as a bar to either side, and the cells of memory from white to black."""
        zero, unit = left + 90 * FINE, 90 * FINE
        fraction = float(self.rows["speed"][step]) / self.task.rover.max_speed
        pen.rectangle([zero - unit, top, zero + unit, top + 12 * FINE], fill=(226, 232, 240))
        ends_at = sorted((zero, zero + fraction * unit))
        pen.rectangle([ends_at[0], top, ends_at[1], top + 12 * FINE], fill=BODY)
        pen.text(
            (zero + unit + 8 * FINE, top - 4 * FINE),
            f"{fraction * self.task.rover.max_speed:.1f} m/s",
            QUIET,
            self.small,
        )
        for k, value in enumerate(self.rows["memory"][step]):
            x, y = left + 32 * k * FINE, top + 28 * FINE
            shade = round(127 * (1.0 - float(value)))
            pen.rectangle([x, y, x + 24 * FINE, y + 16 * FINE], fill=(shade, shade, shade), outline=QUIET)
        if self.rows["memory"].shape[1]:
            end = left + (32 * self.rows["memory"].shape[1] + 6) * FINE
            pen.text((end, top + 26 * FINE), "memory", QUIET, self.small)

    def _command(self, pen: ImageDraw.ImageDraw, left: float, top: float, step: int) -> None:
        """What the queue shows: to which side to turn, and after how many rows; and the lane being driven."""
        command, rows_left, _ = (int(x) for x in self.rows["command"][step])
        pen.text((left, top + 4 * FINE), f"lane {command + 1} of {self.task.lanes}", fill=INK, font=self.medium)
        if command >= len(self.episode.world["right"]):
            pen.text((left, top + 44 * FINE), "then the end", fill=INK, font=self.medium)
            return
        right = bool(self.episode.world["right"][command])
        rows = f"{rows_left} row{'s' if rows_left > 1 else ''} on"
        pen.text((left, top + 36 * FINE), f"then to the {'right' if right else 'left'}, {rows}", INK, self.medium)
        self._arrow(pen, left + 90 * FINE, top + 128 * FINE, 1 if right else -1)
        upcoming = zip(
            self.episode.world["right"][command + 1 :], self.episode.world["rows"][command + 1 :], strict=True
        )
        later = "  ".join(f"{'right' if r else 'left'} {n}" for r, n in list(upcoming)[:4])
        if later:
            pen.text((left, top + 160 * FINE), f"later: {later}", fill=QUIET, font=self.small)

    def _arrow(self, pen: ImageDraw.ImageDraw, x: float, y: float, side: int) -> None:
        """A U-turn to that side: 1 is right."""
        wide, tall, line = 50 * FINE * side, 40 * FINE, 7 * FINE
        pen.line([x, y, x, y - tall, x + wide, y - tall, x + wide, y - 12 * FINE], fill=AIM, width=line, joint="curve")
        tip = 13 * FINE
        pen.polygon(
            [(x + wide - tip, y - 16 * FINE), (x + wide + tip, y - 16 * FINE), (x + wide, y + 4 * FINE)], fill=AIM
        )


def rotation(angle: float) -> np.ndarray:
    """The matrix that turns counter-clockwise."""
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
