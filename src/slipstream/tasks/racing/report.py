"""The film and page of a race: a map, the leading drone from behind and through its camera, and lap times."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from ...core.geometry import Quat, Vec3
from ...evaluation.episode import Episode
from ...reports import charts
from ...reports.charts import speed_color
from ...reports.default import hardness, map_canvas
from ...reports.text import Film, ReportText, Section
from ...reports.video import FPS
from ...sensors.camera import Camera, View
from ...sensors.scene import Color
from .chart import track_map
from .scene import nose_camera, race_scene
from .task import Racing
from .track import OUTER, Gate

__all__ = ["film", "hardness", "landmarks", "map_canvas", "sections", "text"]

WIDTH, HEIGHT = 1280, 640
"""Size of the film, pixels."""
FINE = 2
"""Supersampling: the film is drawn this many times larger and then scaled down."""
PANE = Camera(WIDTH // 2 * FINE, HEIGHT * FINE)
"""Image of the chase camera, which fills the right half."""
NOSE = Camera(288 * FINE, 216 * FINE)
"""Image of the leader's own camera."""
CHASE_FOV = 1.4
"""Horizontal field of view of the chase camera, rad."""
TRAIL_SECONDS = 1.2
BACKGROUND, GRID, LINE = (247, 249, 252), (226, 232, 240), (207, 215, 226)
GRAY, NEXT, INK, WHITE = (71, 85, 105), (234, 88, 12), (15, 23, 42), (255, 255, 255)
NEXT_GATE, OTHER_GATE = Color(0.98, 0.42, 0.08), Color(0.92, 0.94, 0.97)
"""Colors of the gates in the chase view."""
OUT_OF_SIGHT = -1e3
"""Coordinate of drones that are not drawn, m."""
Rgb = tuple[int, int, int]


def text(task: Racing) -> ReportText:
    """The texts of the page."""
    return ReportText(
        task=task.description,
        attempts="starts",
        success="finish a lap",
        film="Left: map with trails colored by speed. Right: the leading drone from behind, with its next gate in "
        "orange. Corner: image of the camera in its nose.",
        tiles={
            "lap_time_mean": ("{:.2f} s", "mean first lap, from standing"),
            "flying_lap_mean": ("{:.2f} s", "mean best flying lap"),
            "gates_per_episode": ("{:.1f}", "gates an episode"),
        },
    )


def sections(task: Racing, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    """A map of the flown paths, and the distributions of lap times."""
    nothing = np.zeros(0)
    laps = [
        charts.histogram(metrics.get("lap_time", nothing), "first lap from standing, s", "episodes"),
        charts.histogram(metrics.get("flying_lap", nothing), "best flying lap, s", "episodes"),
    ]
    note = f"{len(episodes)} evaluation episodes from above. Gates have their number and the height of their center."
    return [
        Section("Flight", [Markup(path_chart(episodes))], note),
        Section("Lap times", [Markup(c) for c in laps], ""),
    ]


def film(task: Racing, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
    """All episodes at the same time; the chase camera follows the one that lasts longest."""
    flights = [flight for episode in episodes for flight in by_agent(episode)]
    flights.sort(key=lambda e: (-e.metrics.get("success", 0.0), -e.length))
    frames = int(min(seconds, max(e.length * e.control_dt for e in flights)) * FPS)
    return Film(RaceCanvas(flights, title, frames, FPS), frames)


def landmarks(episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]:
    """The gates as lines from above."""
    lines = []
    for x, y, _, cos, sin in episode.world["gates"]:
        center, left = np.array([x, y]), np.array([-sin, cos]) * OUTER / 2
        lines.append((np.stack([center - left, center + left]), True))
    return lines


def path_chart(episodes: list[Episode]) -> str:
    """Paths of the episodes that have the first one's track."""
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
    return track_map(gates, paths, OUTER)


def by_agent(episode: Episode) -> list[Episode]:
    """One episode for each drone of an episode."""
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
    """Draws the frames of the film of a race."""

    size = WIDTH, HEIGHT

    def __init__(self, flights: list[Episode], title: str, frames: int, fps: int) -> None:
        self.title, self.fps = title, fps
        self.leader = flights[0]
        self.gates = self.leader.world["gates"]
        # Generated tracks differ between worlds: then only the flights in the leader's world are drawn.
        self.flights = [e for e in flights if np.allclose(e.world["gates"], self.gates)]
        speeds = [float(np.linalg.norm(e.trajectory["velocity"], axis=-1).max()) for e in self.flights]
        self.max_speed = max(*speeds, 1e-3)
        self.large, self.small = (ImageFont.load_default(size * FINE) for size in (26, 15))
        points = np.concatenate([self.gates[:, :2], *[e.trajectory["position"][:, :2] for e in self.flights]])
        low, high = points.min(axis=0) - 1.5, points.max(axis=0) + 1.5
        room = np.array([PANE.width - 40 * FINE, PANE.height - 150 * FINE])
        self.scale = float(np.min(room / (high - low)))
        self.middle = (low + high) / 2
        self.map = self._draw_background()
        self.directions = self._smooth_directions()
        self.nose_images = self._render_nose(frames)
        self.render_chase = jax.jit(self._render_chase)

    def draw(self, number: int) -> Image.Image:
        """One frame of the film."""
        time = number / self.fps
        image = Image.new("RGB", (WIDTH * FINE, HEIGHT * FINE), BACKGROUND)
        image.paste(self._draw_map(time), (0, 0))
        image.paste(self._draw_chase(time), (PANE.width, 0))
        nose = Image.fromarray(self.nose_images[min(number, len(self.nose_images) - 1)])
        top, border = PANE.height - NOSE.height, 3 * FINE
        image.paste(INK, (PANE.width, top - border, PANE.width + NOSE.width + border, PANE.height))
        image.paste(nose, (PANE.width, top))
        pen = ImageDraw.Draw(image)
        pen.text((PANE.width + 10 * FINE, top + 8 * FINE), "nose camera", WHITE, self.small, **outline(INK))
        self._draw_text(pen, time)
        return image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)

    def step_at(self, flight: Episode, time: float) -> int:
        """The step of a flight at that time; its last one afterwards."""
        return min(int(time / flight.control_dt), flight.length - 1)

    def is_flying(self, flight: Episode, time: float) -> bool:
        return self.step_at(flight, time) < flight.length - 1

    # The map

    def to_map(self, points: np.ndarray) -> np.ndarray:
        """Pixels of the map from world coordinates."""
        center = np.array([PANE.width / 2, PANE.height / 2 + 20 * FINE])
        return center + (points[..., :2] - self.middle) * self.scale * np.array([1.0, -1.0])

    def _draw_background(self) -> Image.Image:
        """The parts of the map that do not move: a grid of 5 m, the leader's path and the scale of speeds."""
        image = Image.new("RGB", (PANE.width, PANE.height), BACKGROUND)
        pen = ImageDraw.Draw(image)
        for k in range(-60, 61, 5):
            for ends in (((k, -60), (k, 60)), ((-60, k), (60, k))):
                pen.line(pixels(self.to_map(np.array(ends, float))), fill=GRID, width=FINE)
        path = self.to_map(self.leader.trajectory["position"])
        pen.line(pixels(path), fill=LINE, width=2 * FINE, joint="curve")
        left, top, width = 20 * FINE, PANE.height - 34 * FINE, 130 * FINE
        for x in range(width):
            pen.line(((left + x, top), (left + x, top + 10 * FINE)), fill=speed_color(x / width))
        label = f"0 to {self.max_speed:.0f} m/s"
        pen.text((left + width + 10 * FINE, top + 5 * FINE), label, GRAY, self.small, anchor="lm")
        return image

    def _draw_map(self, time: float) -> Image.Image:
        image = self.map.copy()
        pen = ImageDraw.Draw(image)
        next_gate = int(self.leader.trajectory["next_gate"][self.step_at(self.leader, time)])
        for number, gate in enumerate(self.gates):
            self._draw_map_gate(pen, gate, str(number + 1), NEXT if number == next_gate else GRAY)
        for flight in reversed(self.flights):
            step, leads = self.step_at(flight, time), flight is self.leader
            first = max(0, step - int(TRAIL_SECONDS / flight.control_dt))
            path, velocity = (flight.trajectory[name][first : step + 1] for name in ("position", "velocity"))
            self._draw_trail(pen, self.to_map(path), velocity, (4 if leads else 3) * FINE)
            x, y = self.to_map(flight.trajectory["position"][step])
            radius = (8 if leads else 5) * FINE
            box = (x - radius, y - radius, x + radius, y + radius)
            pen.ellipse(box, fill=INK if leads else (100, 116, 139), outline=WHITE, width=FINE)
        return image

    def _draw_map_gate(self, pen: ImageDraw.ImageDraw, gate: np.ndarray, name: str, color: Rgb) -> None:
        """A gate as a line with an arrow in its direction; the higher, the thicker."""
        x, y, z, cos, sin = gate
        center, ahead, left = np.array([x, y]), np.array([cos, sin]), np.array([-sin, cos])
        sides = self.to_map(np.stack([center - left * OUTER / 2, center + left * OUTER / 2]))
        pen.line(pixels(sides), fill=color, width=int((3 + z) * FINE))
        shaft = self.to_map(np.stack([center, center + 0.75 * ahead]))
        pen.line(pixels(shaft), fill=color, width=2 * FINE)
        tip, back = center + 1.1 * ahead, center + 0.65 * ahead
        pen.polygon(pixels(self.to_map(np.stack([tip, back + 0.25 * left, back - 0.25 * left]))), fill=color)
        at = self.to_map(center + left * (OUTER / 2 + 0.55) - 0.3 * ahead)
        pen.text((float(at[0]), float(at[1])), name, color, self.small, anchor="mm", **outline(BACKGROUND))

    def _draw_trail(self, pen: ImageDraw.ImageDraw, points: np.ndarray, velocity: np.ndarray, width: int) -> None:
        speed = np.linalg.norm(velocity, axis=-1)
        for i in range(0, len(points) - 2, 2):
            color = speed_color(float(speed[i]) / self.max_speed)
            pen.line(pixels(points[[i, i + 2]]), fill=color, width=width)

    # From behind

    def _smooth_directions(self) -> np.ndarray:
        """The horizontal direction of the chase camera at every step: low-pass filtered velocity and heading."""
        velocity = self.leader.trajectory["velocity"][:, :2]
        directions = velocity + 2.0 * forward(self.leader.trajectory["attitude"])[:, :2]
        keep = math.exp(-self.leader.control_dt / 0.25)
        for i in range(1, len(directions)):
            directions[i] = keep * directions[i - 1] + (1 - keep) * directions[i]
        return directions / np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-6)

    def _render_chase(
        self, eye: jax.Array, pitch: jax.Array, yaw: jax.Array, next_gate: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Color and depth of the track without the drones."""
        colors = [
            jax.tree.map(lambda a, b, k=k: jnp.where(next_gate == k, a, b), NEXT_GATE, OTHER_GATE)
            for k in range(len(self.gates))
        ]
        scene = race_scene(struct_gates(self.gates), colors=colors)
        # More ambient light than for the nose camera, so that the next gate stays bright from its shaded side.
        light = replace(scene.light, sun=jnp.float32(0.35), ambient=jnp.float32(0.65))
        scene = replace(scene, light=light, visibility=jnp.float32(60.0))
        view = View(Vec3(*eye), Quat.from_euler(0.0, pitch, yaw), jnp.float32(CHASE_FOV), jnp.uint32(0))
        frame = PANE.render(scene, view)
        return frame.rgb, frame.depth

    def _draw_chase(self, time: float) -> Image.Image:
        step = self.step_at(self.leader, time)
        position = self.leader.trajectory["position"][step].astype(float)
        direction = np.append(self.directions[step], 0.0)
        eye = position - 2.6 * direction + [0.0, 0.0, 0.9]
        view = Projection(eye, position + 2.0 * direction + [0.0, 0.0, 0.1], PANE.width, PANE.height, CHASE_FOV)
        next_gate = np.int32(self.leader.trajectory["next_gate"][step])
        arguments = (eye.astype(np.float32), np.float32(view.pitch), np.float32(view.yaw), next_gate)
        rgb, depth = (np.asarray(x) for x in self.render_chase(*arguments))
        image = Image.fromarray(rgb)
        pen = ImageDraw.Draw(image, "RGBA")
        drones = [
            (flight, self.step_at(flight, time))
            for flight in self.flights
            if flight is self.leader or self.is_flying(flight, time)
        ]
        # From far to near, and none behind a gate.
        drones.sort(key=lambda drone: -view.depth(drone[0].trajectory["position"][drone[1]]))
        for flight, i in drones:
            place = flight.trajectory["position"][i]
            ground = place * [1, 1, 0]
            if view.sees(ground, depth):
                circle = [ground + 0.18 * np.array([math.cos(a), math.sin(a), 0]) for a in np.arange(0, 6.28, 0.4)]
                view.polygon(pen, circle, (15, 23, 42, 90))
            if flight is self.leader or view.sees(place, depth):
                self._draw_drone(pen, view, place, flight.trajectory["attitude"][i])
        return image

    def _draw_drone(
        self, pen: ImageDraw.ImageDraw, view: "Projection", position: np.ndarray, attitude: np.ndarray
    ) -> None:
        """Four arms with rotor discs; those in front are orange."""
        body = rotation(attitude)
        rim = [np.array([0.065 * math.cos(a), 0.065 * math.sin(a), 0.01]) for a in np.arange(0.0, 2 * math.pi, 0.3)]
        hubs = [np.array([ahead * 0.09, left * 0.09, 0.0]) for ahead in (1, -1) for left in (1, -1)]
        hubs.sort(key=lambda hub: -view.depth(position + body @ hub))
        for hub in hubs:
            view.line(pen, position, position + body @ hub, INK, 4 * FINE)
            disc = [position + body @ (hub + point) for point in rim]
            view.polygon(pen, disc, (*NEXT, 235) if hub[0] > 0 else (51, 65, 85, 235))

    # Through the nose camera

    def _render_nose(self, frames: int) -> np.ndarray:
        """The image of the leader's camera in every frame of the film."""
        gates = struct_gates(self.gates)
        others = [flight for flight in self.flights if flight is not self.leader]
        steps = [self.step_at(self.leader, k / self.fps) for k in range(frames)]
        places = np.full((frames, max(len(others), 1), 3), OUT_OF_SIGHT, np.float32)
        for k in range(frames):
            for n, flight in enumerate(others):
                if self.is_flying(flight, k / self.fps):
                    places[k, n] = flight.trajectory["position"][self.step_at(flight, k / self.fps)]

        def image(position: jax.Array, attitude: jax.Array, others: jax.Array) -> jax.Array:
            scene = race_scene(gates, Vec3(*others.T))
            return NOSE.render(scene, nose_camera(Vec3(*position), Quat(*attitude))).rgb

        own = [jnp.asarray(self.leader.trajectory[name][steps], jnp.float32) for name in ("position", "attitude")]
        return np.asarray(jax.jit(jax.vmap(image))(*own, jnp.asarray(places)))

    # Text

    def _draw_text(self, pen: ImageDraw.ImageDraw, time: float) -> None:
        trajectory, dt = self.leader.trajectory, self.leader.control_dt
        step = self.step_at(self.leader, time)
        count, passed = len(self.gates), int(trajectory["passed"][step])
        lap_ends = (np.flatnonzero(np.diff(trajectory["passed"][: step + 1] // count) > 0) + 1) * dt
        laps = np.diff(lap_ends, prepend=0.0)
        lap_time = max(time - (float(lap_ends[-1]) if len(lap_ends) else 0.0), 0.0)
        speed = float(np.linalg.norm(trajectory["velocity"][step]))
        pen.text((20 * FINE, 14 * FINE), self.title, INK, self.large)
        flying = sum(self.is_flying(flight, time) for flight in self.flights)
        pen.text((20 * FINE, 50 * FINE), f"{flying} of {len(self.flights)} drones flying", GRAY, self.small)
        left = PANE.width
        pen.rectangle((left, 0, WIDTH * FINE, 58 * FINE), fill=INK)
        pen.text((left + 140 * FINE, 29 * FINE), f"{speed:.1f} m/s", WHITE, self.large, anchor="rm")
        pen.text((left + 175 * FINE, 29 * FINE), f"lap {passed // count + 1}", WHITE, self.large, anchor="lm")
        pen.text((left + 350 * FINE, 29 * FINE), f"{lap_time:.2f} s", WHITE, self.large, anchor="rm")
        right = WIDTH * FINE - 20 * FINE
        pen.text((right, 19 * FINE), f"{passed % count} of {count} gates", WHITE, self.small, anchor="rm")
        if len(laps):
            pen.text((right, 40 * FINE), f"last lap {laps[-1]:.2f} s", (253, 186, 116), self.small, anchor="rm")


class Projection:
    """A pinhole projection from world coordinates to pixels."""

    near = 0.15
    """Distance of the near clipping plane, m."""

    def __init__(self, eye: np.ndarray, target: np.ndarray, width: int, height: int, fov: float) -> None:
        ahead = (target - eye) / np.linalg.norm(target - eye)
        right = np.cross(ahead, [0.0, 0.0, 1.0])
        right /= max(float(np.linalg.norm(right)), 1e-6)
        self.axes = np.stack([right, np.cross(right, ahead), ahead])
        self.eye, self.focal = eye, width / 2 / math.tan(fov / 2)
        self.center = np.array([width / 2, height / 2])
        self.yaw = math.atan2(ahead[1], ahead[0])
        self.pitch = -math.asin(ahead[2])  # positive downwards, as a rotation about the left axis

    def to_camera(self, point: np.ndarray) -> np.ndarray:
        """A point of the world in the camera frame: right, up, ahead."""
        return self.axes @ (point - self.eye)

    def to_pixel(self, point: np.ndarray) -> tuple[float, float]:
        """The pixel of a point in the camera frame."""
        x, y = self.center + self.focal * np.array([point[0], -point[1]]) / point[2]
        return float(np.clip(x, -1e4, 1e4)), float(np.clip(y, -1e4, 1e4))

    def depth(self, point: np.ndarray) -> float:
        return float(self.to_camera(point)[2])

    def sees(self, point: np.ndarray, depth: np.ndarray) -> bool:
        """Whether nothing in a depth image of this camera hides the point."""
        local = self.to_camera(point)
        if local[2] < self.near:
            return False
        column, row = (int(c) for c in self.to_pixel(local))
        inside = 0 <= row < depth.shape[0] and 0 <= column < depth.shape[1]
        return not inside or float(depth[row, column]) > local[2] - 0.1

    def line(self, pen: ImageDraw.ImageDraw, a: np.ndarray, b: np.ndarray, color: Rgb, width: int) -> None:
        """A line between two points of the world, clipped at the near plane."""
        a, b = self.to_camera(a), self.to_camera(b)
        if a[2] < self.near and b[2] < self.near:
            return
        if a[2] < self.near:
            a = b + (a - b) * ((b[2] - self.near) / (b[2] - a[2]))
        elif b[2] < self.near:
            b = a + (b - a) * ((a[2] - self.near) / (a[2] - b[2]))
        pen.line([self.to_pixel(a), self.to_pixel(b)], fill=color, width=width)

    def polygon(self, pen: ImageDraw.ImageDraw, points: list[np.ndarray], color: tuple[int, int, int, int]) -> None:
        """A polygon in the world, if all of it lies beyond the near plane."""
        local = [self.to_camera(p) for p in points]
        if all(p[2] > self.near for p in local):
            pen.polygon([self.to_pixel(p) for p in local], fill=color)


def pixels(points: np.ndarray) -> list[tuple[float, float]]:
    """Points as Pillow takes them."""
    return [(float(x), float(y)) for x, y in points]


def outline(color: Rgb) -> dict[str, Any]:
    """Options of Pillow for a text with an outline, legible on any background."""
    return {"stroke_width": FINE, "stroke_fill": color}


def struct_gates(rows: np.ndarray) -> list[Gate]:
    """Gates from the rows of a world's record."""
    return [Gate(Vec3(float(x), float(y), float(z)), float(cos), float(sin)) for x, y, z, cos, sin in rows]


def rotation(q: np.ndarray) -> np.ndarray:
    """The rotation matrix of a unit quaternion."""
    w, x, y, z = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def forward(q: np.ndarray) -> np.ndarray:
    """The forward axes of many attitudes."""
    w, x, y, z = q.T
    return np.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], axis=1)
