"""The film of a race: from above, from behind and from the drone, with trails, speed and lap time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from ...core.geometry import Quat, Vec3
from ...evaluate.episode import Episode
from ...report import charts
from ...report.charts import speed_color
from ...report.default import hardness, map_canvas
from ...report.text import Film, ReportText, Section
from ...report.video import FPS
from ...sensors.camera import Camera
from .scene import nose_camera, race_scene
from .task import Racing
from .track import OPENING, OUTER, Gate

__all__ = ["film", "hardness", "landmarks", "map_canvas", "sections", "text"]

WIDTH, HEIGHT, FINE = 1280, 640, 2
"""Of the film in pixels, and how many times finer it is drawn before it is scaled down."""
NOSE = Camera(288, 216)
"""The picture of the leader's own camera."""
TRAIL = 1.2
"""Seconds of trail behind a drone."""
SKY, GROUND, GRID = (196, 214, 233), (121, 134, 120), (143, 156, 141)
PAPER, FRAME, NEXT, INK = (247, 249, 252), (71, 85, 105), (234, 88, 12), (15, 23, 42)


def text(task: Racing) -> ReportText:
    return ReportText(
        task=task.description,
        attempts="starts",
        success="finish a lap",
        film="Left: from above, trails coloured by speed. Right: behind the leading drone; its next gate is orange; "
        "in the corner what its own camera sees.",
        tiles={
            "lap_time_mean": ("{:.2f} s", "mean first lap, from standing"),
            "flying_lap_mean": ("{:.2f} s", "mean best flying lap"),
            "gates_per_episode": ("{:.1f}", "gates an episode"),
        },
    )


def sections(task: Racing, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    """Paths from above, and how lap times spread."""
    nothing = np.zeros(0)
    laps = [
        charts.histogram(metrics.get("lap_time", nothing), "first lap from standing, s", "episodes"),
        charts.histogram(metrics.get("flying_lap", nothing), "best flying lap, s", "episodes"),
    ]
    above = f"{len(episodes)} evaluation episodes seen from above. Numbers are gates in order, with their height."
    return [
        Section("Flight", [Markup(path_chart(episodes))], above),
        Section("Lap times", [Markup(c) for c in laps], ""),
    ]


def film(task: Racing, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
    """All episodes at the same time; the one to follow is the one that comes furthest."""
    flights = [flight for episode in episodes for flight in by_agent(episode)]
    flights.sort(key=lambda e: (-e.metrics.get("success", 0.0), -e.length))
    frames = int(min(seconds, max(e.length * e.control_dt for e in flights)) * FPS)
    return Film(RaceCanvas(flights, title, frames, FPS), frames)


def landmarks(episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]:
    """The gates."""
    lines = []
    for x, y, _, cos, sin in episode.world["gates"]:
        aside = np.array([-sin, cos]) * OUTER / 2
        lines.append((np.stack([np.array([x, y]) - aside, np.array([x, y]) + aside]), True))
    return lines


def path_chart(episodes: list[Episode]) -> str:
    """Paths of the episodes that share the first one's track."""
    if not episodes:
        return ""
    gates = episodes[0].world["gates"]
    paths = []
    for episode in episodes:
        if not np.allclose(episode.world["gates"], gates):
            continue
        position, velocity = episode.trajectory["position"], episode.trajectory["velocity"]
        for agent in range(position.shape[1]) if position.ndim == 3 else [None]:
            place = position if agent is None else position[:, agent]
            speed = np.linalg.norm(velocity if agent is None else velocity[:, agent], axis=-1)
            paths.append((place[:900], speed[:900]))
    return charts.track_map(gates, paths, OUTER)


def by_agent(episode: Episode) -> list[Episode]:
    """An episode of several drones as several of one."""
    if episode.trajectory["position"].ndim == 2:
        return [episode]
    agents = episode.trajectory["position"].shape[1]
    return [
        Episode(
            {k: v[:, i] for k, v in episode.trajectory.items()},
            episode.world,
            episode.metrics,
            episode.control_dt,
        )
        for i in range(agents)
    ]


class RaceCanvas:
    """Draws one moment of the race."""

    size = WIDTH, HEIGHT

    def __init__(self, flights: list[Episode], title: str, frames: int, fps: int) -> None:
        self.vehicle_states, self.title, self.fps = flights, title, fps
        self.leader = flights[0]
        self.gates = self.leader.world["gates"]
        self.fastest = max(float(np.linalg.norm(e.trajectory["velocity"], axis=-1).max()) for e in flights)
        self.pane = WIDTH // 2 * FINE
        self.high = HEIGHT * FINE
        # Generated tracks differ between worlds: then only the leader's world is shown.
        same = [e for e in flights if np.allclose(e.world["gates"], self.gates)]
        self.shown = same
        points = np.concatenate([self.gates[:, :2], *[e.trajectory["position"][:, :2] for e in same]])
        low, high = points.min(axis=0) - 1.5, points.max(axis=0) + 1.5
        room = np.array([self.pane - 40 * FINE, self.high - 120 * FINE])
        self.scale = float(np.min(room / (high - low)))
        self.middle = (low + high) / 2
        self.large, self.small = (ImageFont.load_default(size * FINE) for size in (26, 15))
        self.heading = self._smooth_heading()
        self.plan = self._plan()
        self.nose = self._nose(frames)

    def _smooth_heading(self) -> np.ndarray:
        """Where the chasing camera looks from: the leader's way, without its twitches."""
        velocity = self.leader.trajectory["velocity"][:, :2]
        nose = forward(self.leader.trajectory["attitude"])[:, :2]
        way = velocity + 2.0 * nose
        smooth = np.empty_like(way)
        state = way[0]
        keep = math.exp(-self.leader.control_dt / 0.25)
        for i, now in enumerate(way):
            state = keep * state + (1 - keep) * now
            smooth[i] = state
        return smooth / np.maximum(np.linalg.norm(smooth, axis=1, keepdims=True), 1e-6)

    def _nose(self, frames: int) -> np.ndarray:
        """What the leader's camera sees, for every picture of the film."""
        gates = [Gate(Vec3(*map(float, g[:3])), float(g[3]), float(g[4])) for g in self.gates]
        others = [flight for flight in self.shown if flight is not self.leader]
        steps = [self.index(self.leader, k / self.fps) for k in range(frames)]
        # Where the drones that are still flying are; the others are out of sight.
        places = np.full((frames, max(len(others), 1), 3), -1e3, np.float32)
        for k in range(frames):
            for n, flight in enumerate(others):
                i = self.index(flight, k / self.fps)
                if i < flight.length - 1:
                    places[k, n] = flight.trajectory["position"][i]

        def image(place: jax.Array, turn: jax.Array, there: jax.Array) -> jax.Array:
            scene = race_scene(gates, Vec3(*there.T))
            return NOSE.render(scene, nose_camera(Vec3(*place), Quat(*turn))).rgb

        own = [jnp.asarray(self.leader.trajectory[name][steps], jnp.float32) for name in ("position", "attitude")]
        return np.asarray(jax.jit(jax.vmap(image))(*own, jnp.asarray(places)))

    def index(self, flight: Episode, time: float) -> int:
        return min(int(time / flight.control_dt), flight.length - 1)

    def draw(self, number: int) -> Image.Image:
        """Both views in one picture of the film."""
        time = number / self.fps
        image = Image.new("RGB", (WIDTH * FINE, self.high), PAPER)
        image.paste(self.chase(time), (self.pane, 0))
        image.paste(self.above(time), (0, 0))
        seen = Image.fromarray(self.nose[min(number, len(self.nose) - 1)])
        seen = seen.resize((NOSE.width * FINE, NOSE.height * FINE))
        image.paste(INK, (self.pane, self.high - seen.height - 3 * FINE, self.pane + seen.width + 3 * FINE, self.high))
        image.paste(seen, (self.pane, self.high - seen.height))
        self.tell(ImageDraw.Draw(image), time)
        return image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)

    # From above

    def on_plan(self, points: np.ndarray) -> np.ndarray:
        center = np.array([self.pane / 2, self.high / 2 + 30 * FINE])
        return center + (points[..., :2] - self.middle) * self.scale * np.array([1.0, -1.0])

    def _plan(self) -> Image.Image:
        """What does not move."""
        image = Image.new("RGB", (self.pane, self.high), PAPER)
        pen = ImageDraw.Draw(image)
        for k in range(-40, 41, 5):
            for a, b in (((k, -60), (k, 60)), ((-60, k), (60, k))):
                ends = self.on_plan(np.array([a, b], float))
                pen.line([tuple(p) for p in ends], fill=(226, 232, 240), width=FINE)
        return image

    def above(self, time: float) -> Image.Image:
        image = self.plan.copy()
        pen = ImageDraw.Draw(image)
        following = int(self.leader.trajectory["next_gate"][self.index(self.leader, time)])
        for number, (x, y, z, cos, sin) in enumerate(self.gates):
            aside = np.array([-sin, cos]) * OUTER / 2
            center = np.array([x, y])
            ends = self.on_plan(np.stack([center - aside, center + aside]))
            color = NEXT if number == following else FRAME
            pen.line([tuple(p) for p in ends], fill=color, width=int((3 + z) * FINE))
            tip = self.on_plan(np.array([[x, y], [x + cos, y + sin]]))
            pen.line([tuple(p) for p in tip], fill=color, width=2 * FINE)
            name = self.on_plan(np.array([x, y]) + aside * 1.45 - 0.3 * np.array([cos, sin]))
            pen.text(tuple(name), str(number + 1), color, self.small, anchor="mm")
        for flight in reversed(self.shown):
            i = self.index(flight, time)
            first = max(0, i - int(TRAIL / flight.control_dt))
            self.trail(
                pen,
                self.on_plan(flight.trajectory["position"][first : i + 1]),
                flight.trajectory["velocity"][first : i + 1],
            )
            x, y = self.on_plan(flight.trajectory["position"][i])
            size = (7 if flight is self.leader else 4) * FINE
            pen.ellipse(
                (x - size, y - size, x + size, y + size), fill=INK if flight is self.leader else (100, 116, 139)
            )
        return image

    def trail(self, pen: ImageDraw.ImageDraw, points: np.ndarray, velocity: np.ndarray, width: int = 3) -> None:
        speed = np.linalg.norm(velocity, axis=-1)
        for i in range(0, len(points) - 2, 2):
            ends = [tuple(points[i]), tuple(points[i + 2])]
            pen.line(ends, fill=speed_color(float(speed[i]) / self.fastest), width=width * FINE)

    # From behind

    def chase(self, time: float) -> Image.Image:
        i = self.index(self.leader, time)
        position = self.leader.trajectory["position"][i]
        way = self.heading[i]
        eye = position + np.array([-2.6 * way[0], -2.6 * way[1], 0.9])
        view = View(eye, position + np.array([2.0 * way[0], 2.0 * way[1], 0.1]), self.pane, self.high)
        image = Image.new("RGB", (self.pane, self.high), SKY)
        pen = ImageDraw.Draw(image)
        self.land(pen, view, position)
        following = int(self.leader.trajectory["next_gate"][i])
        order = sorted(range(len(self.gates)), key=lambda k: -float(np.linalg.norm(self.gates[k, :3] - eye)))
        behind = [k for k in order if np.dot(self.gates[k, :3] - position, position - eye) > 0]
        for k in behind:
            self.gate(pen, view, self.gates[k], NEXT if k == following else (226, 232, 240))
        for flight in reversed(self.shown):
            j = self.index(flight, time)
            if flight is self.leader or j < flight.length - 1:
                self.drone(pen, view, flight, j)
        for k in order:
            if k not in behind:
                self.gate(pen, view, self.gates[k], (226, 232, 240))
        return image

    def land(self, pen: ImageDraw.ImageDraw, view: "View", around: np.ndarray) -> None:
        horizon = view.horizon
        pen.rectangle((0, max(horizon, 0), self.pane, self.high), fill=GROUND)
        cx, cy = (round(float(c) / 2) * 2 for c in around[:2])
        for k in range(-40, 41, 2):
            for a, b in (((cx + k, cy - 40, 0), (cx + k, cy + 40, 0)), ((cx - 40, cy + k, 0), (cx + 40, cy + k, 0))):
                view.line(pen, np.array(a, float), np.array(b, float), GRID, FINE)

    def gate(self, pen: ImageDraw.ImageDraw, view: "View", gate: np.ndarray, color: tuple[int, int, int]) -> None:
        center, (cos, sin) = gate[:3], gate[3:]
        aside, up = np.array([-sin, cos, 0.0]), np.array([0.0, 0.0, 1.0])

        def corner(half: float, a: int, u: int) -> np.ndarray:
            return center + aside * (half * a) + up * (half * u)

        around = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
        for (a0, u0), (a1, u1) in zip(around, around[1:] + around[:1], strict=True):
            quad = [
                corner(OUTER / 2, a0, u0), corner(OUTER / 2, a1, u1),
                corner(OPENING / 2, a1, u1), corner(OPENING / 2, a0, u0),
            ]  # fmt: skip
            view.polygon(pen, quad, color, FRAME)
        if center[2] > OUTER / 2 + 0.1:
            for side in (-1, 1):
                foot = corner(OUTER / 2, side, -1)
                view.line(pen, foot, np.array([foot[0], foot[1], 0.0]), FRAME, 2 * FINE)

    def drone(self, pen: ImageDraw.ImageDraw, view: "View", flight: Episode, i: int) -> None:
        position, q = flight.trajectory["position"][i], flight.trajectory["attitude"][i]
        shadow = [
            position * [1, 1, 0] + 0.18 * np.array([math.cos(a), math.sin(a), 0]) for a in np.arange(0, 6.28, 0.6)
        ]
        view.polygon(pen, shadow, (92, 104, 92), None)
        body = rotation(q)
        turn = np.arange(0.0, 2 * math.pi, 0.5)
        for ahead, side in ((1, 1), (1, -1), (-1, -1), (-1, 1)):
            hub = np.array([ahead * 0.09, side * 0.09, 0.0])
            view.line(pen, position, position + body @ hub, INK, 4 * FINE)
            disc = [position + body @ (hub + 0.065 * np.array([math.cos(a), math.sin(a), 0.15])) for a in turn]
            view.polygon(pen, disc, NEXT if ahead > 0 else (51, 65, 85), None)

    # Words

    def tell(self, pen: ImageDraw.ImageDraw, time: float) -> None:
        i = self.index(self.leader, time)
        steps = self.leader.trajectory
        speed = float(np.linalg.norm(steps["velocity"][i]))
        count = len(self.gates)
        passed = int(steps["passed"][i])
        lap_starts = np.flatnonzero(np.diff(steps["passed"][: i + 1] // count) > 0)
        lap_from = (int(lap_starts[-1]) + 1) * self.leader.control_dt if len(lap_starts) else 0.0
        laps = np.diff(np.concatenate([[0], lap_starts + 1])) * self.leader.control_dt
        last = f"last {laps[-1]:.2f} s" if len(laps) else ""
        pen.text((20 * FINE, 14 * FINE), self.title, INK, self.large)
        flying = sum(self.index(e, time) < e.length - 1 for e in self.shown)
        pen.text((20 * FINE, 50 * FINE), f"{flying} of {len(self.shown)} drones flying", FRAME, self.small)
        right = self.pane
        pen.rectangle((right, 0, WIDTH * FINE, 58 * FINE), fill=INK)
        white = (255, 255, 255)
        pen.text((right + 16 * FINE, 12 * FINE), f"{speed:4.1f} m/s", white, self.large)
        now = f"lap {passed // count + 1}   {max(time - lap_from, 0.0):5.2f} s"
        pen.text((right + 170 * FINE, 12 * FINE), now, white, self.large)
        pen.text((right + 400 * FINE, 10 * FINE), f"gate {passed % count} of {count}", white, self.small)
        pen.text((right + 400 * FINE, 30 * FINE), last, (253, 186, 116), self.small)


class View:
    """A camera that sees points of the world as points of a picture."""

    def __init__(self, eye: np.ndarray, target: np.ndarray, width: int, height: int, fov: float = 1.4) -> None:
        ahead = target - eye
        ahead = ahead / np.linalg.norm(ahead)
        right = np.cross(ahead, [0.0, 0.0, 1.0])
        right /= max(float(np.linalg.norm(right)), 1e-6)
        self.axes = np.stack([right, np.cross(right, ahead), ahead])
        self.eye, self.focal = eye, width / 2 / math.tan(fov / 2)
        self.center = np.array([width / 2, height / 2])
        self.horizon = self.center[1] + self.focal * ahead[2] / max(math.hypot(ahead[0], ahead[1]), 1e-6)

    def _flat(self, point: np.ndarray) -> tuple[float, float]:
        x, y = self.center + self.focal * np.array([point[0], -point[1]]) / point[2]
        return float(np.clip(x, -1e4, 1e4)), float(np.clip(y, -1e4, 1e4))

    def line(
        self, pen: ImageDraw.ImageDraw, a: np.ndarray, b: np.ndarray, color: tuple[int, int, int], width: int
    ) -> None:
        a, b = self.axes @ (a - self.eye), self.axes @ (b - self.eye)
        near = 0.15
        if a[2] < near and b[2] < near:
            return
        if a[2] < near:
            a = b + (a - b) * ((b[2] - near) / (b[2] - a[2]))
        elif b[2] < near:
            b = a + (b - a) * ((a[2] - near) / (a[2] - b[2]))
        pen.line([self._flat(a), self._flat(b)], fill=color, width=width)

    def polygon(
        self,
        pen: ImageDraw.ImageDraw,
        points: list[np.ndarray],
        color: tuple[int, int, int],
        edge: tuple[int, int, int] | None,
    ) -> None:
        seen = [self.axes @ (p - self.eye) for p in points]
        if all(p[2] > 0.15 for p in seen):
            pen.polygon([self._flat(p) for p in seen], fill=color, outline=edge)


def rotation(q: np.ndarray) -> np.ndarray:
    """The matrix of a unit quaternion."""
    w, x, y, z = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def forward(q: np.ndarray) -> np.ndarray:
    """The noses of many attitudes."""
    w, x, y, z = q.T
    return np.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], axis=1)
