"""The film of a survey, with the images of sixteen cameras beside a map, and its sections of the report."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from ...core.geometry import Vec3
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from ...evaluation.episode import Episode
from ...reports import charts
from ...reports.charts import palette
from ...reports.default import circle
from ...reports.text import Film, ReportText, Section
from ...reports.video import FPS, pace_for
from ...sensors.camera import Camera
from . import Survey
from .behavior import MODES
from .coverage import SIDE
from .generator import world_from_record
from .safety import REASONS
from .scene import drone_camera, survey_scene
from .world import HIGH, MEDIUM

WIDTH, HEIGHT = 1440, 720
TILE = Camera(176, 144)
GRID, GAP, TOP = 4, 4, 64
"""Rows and columns of tiles, pixels between tiles, and the height of the strip above them."""
PAPER, INK, FAINT, WHITE = (247, 249, 252), (15, 23, 42), (100, 116, 139), (255, 255, 255)
FRESH, STALE = (34, 197, 94), (148, 163, 184)


SUCCESS = {
    "transit": "arrive in time, with their reserve, and enter no zone",
    "coverage": "cover 85 %, find 80 % of the targets and land at home with their reserve",
    "search": "cover 85 %, find 80 % of the targets and land at home with their reserve",
    "multi-objective": "view 80 % of the achievable value and never come under a high threat",
    "dwell": "keep a good view of their target for 30 s without a break",
    "free": "succeed, since nothing is required",
}
HISTOGRAMS = {
    "duration": "duration, s",
    "battery": "battery left, %",
    "coverage": "fraction covered",
    "found": "fraction of targets found",
    "value": "fraction of the achievable value viewed",
    "dwell": "longest good view, s",
}


def text(task: Survey) -> ReportText:
    return ReportText(
        task=task.description,
        attempts="sorties",
        success=SUCCESS[task.mission],
        film="Left: every drone's camera, with its return and the targets it has found; a green dot marks a new image. "
        "Right: the map, with zones as they become active, paths, and targets (green once found).",
        tiles={
            "zone_violation_mean": ("{:.2%}", "of sorties entered a zone or left the geofence"),
            "crash_mean": ("{:.2%}", "crashed"),
            "coverage_mean": ("{:.1%}", "covered on average"),
            "found_mean": ("{:.1%}", "of targets found on average"),
            "value_mean": ("{:.1%}", "of the achievable value"),
            "dwell_mean": ("{:.1f} s", "longest good view, mean"),
            "filter_intervention_rate_mean": ("{:.1%}", "of commands changed by the safety filter"),
        },
    )


def sections(task: Survey, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    """Histograms of the metrics over the sorties."""
    shown = [
        Markup(charts.histogram(metrics[name], text, "sorties")) for name, text in HISTOGRAMS.items() if name in metrics
    ]
    return [Section("Sorties", shown, "Each drone of each evaluation world is one sortie.")] if shown else []


def film(task: Survey, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
    """The first world, from start to end in the length of the film."""
    pace, frames = pace_for(episodes[:1], seconds)
    return Film(SurveyCanvas(task, episodes[0], title, frames, FPS, pace, footer), frames)


def landmarks(episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]:
    """The zones that end a sortie, each with whether it is active."""
    rows = [episode.world[f"zones.{name}"] for name in ("center.x", "center.y", "radius", "starts_at", "level")]
    zones = zip(*rows, strict=True)
    return [
        (circle(np.array([x, y]), radius), time >= starts_at)
        for x, y, radius, starts_at, level in zones
        if level >= HIGH
    ]


class SurveyCanvas:
    """Draws the frames of a film: camera images on the left, the map on the right."""

    size = WIDTH, HEIGHT

    def __init__(
        self, task: Survey, episode: Episode, title: str, frames: int, fps: int, pace: float, footer: str
    ) -> None:
        self.task, self.episode, self.title, self.footer = task, episode, title, footer
        self.fps, self.pace = fps, pace
        self.trajectory = episode.trajectory
        self.agents = self.trajectory["position"].shape[1]
        self.shown = min(self.agents, GRID * GRID)
        self.colors = [palette(k / max(self.agents, 1)) for k in range(self.agents)]
        self.large, self.small, self.tiny = (ImageFont.load_default(size) for size in (24, 14, 11))
        self.interval = task.camera.interval
        self.ends = [self._end(k) for k in range(self.agents)]
        self.images = self._images(frames)
        self.left = GRID * (TILE.width + GAP) + GAP
        self.static_map, self.scale = self._static_map()

    def _end(self, drone: int) -> int:
        over = np.flatnonzero(self.trajectory["ended"][:, drone])
        return int(over[0]) if over.size else self.episode.length - 1

    def index(self, number: int) -> int:
        """The step that frame `number` of the film shows."""
        return min(int(number * self.pace / self.fps / self.episode.control_dt), self.episode.length - 1)

    def _images(self, frames: int) -> dict[int, np.ndarray]:
        """The images of every camera, by the step in which they were taken."""
        mission = self.task.mission_spec
        world = world_from_record(self.episode.world, mission.generator, self.agents)
        wanted = sorted({self.index(n) // self.interval * self.interval for n in range(frames)})

        def images_at(step: dict[str, Array]) -> UInt8[Array, "drones height width 3"]:
            position = Vec3(*step["position"].T)
            drones = VelocityDroneState.at(position, step["yaw"])
            gimbals = Gimbal(*step["gimbal"].T)
            scene = survey_scene(world, step["clock"][0], position, mission.target_per_drone)
            seeds = jnp.arange(self.agents, dtype=jnp.uint32)
            views = jax.vmap(drone_camera)(drones, gimbals, seeds)
            views = jax.tree.map(lambda x: x[: self.shown], views)
            return jax.vmap(partial(TILE.render, scene))(views).rgb

        render = jax.jit(jax.vmap(images_at))
        names = ("position", "yaw", "gimbal", "clock")
        found: dict[int, np.ndarray] = {}
        for first in range(0, len(wanted), 32):
            some = wanted[first : first + 32]
            # A last batch of another size would be compiled again.
            padded = some + some[-1:] * (32 - len(some))
            shown = np.asarray(
                render({name: jnp.asarray(self.trajectory[name][padded], jnp.float32) for name in names})
            )
            found |= dict(zip(some, shown, strict=False))
        return found

    def draw(self, number: int) -> Image.Image:
        i = self.index(number)
        image = Image.new("RGB", self.size, PAPER)
        image.paste(self.map(i), (self.left + 8, TOP))
        pen = ImageDraw.Draw(image)
        for drone in range(self.shown):
            self.tile(image, pen, drone, i)
        self.caption(pen, i)
        return image

    def tile(self, image: Image.Image, pen: ImageDraw.ImageDraw, drone: int, i: int) -> None:
        """The image of one drone, with its return so far."""
        row, column = divmod(drone, GRID)
        x, y = GAP + column * (TILE.width + GAP), TOP + row * (TILE.height + GAP)
        now = min(i, self.ends[drone])
        taken = now // self.interval * self.interval
        images = self.images.get(taken)
        if images is None:
            # The drone ended between two frames of the film: its last image stays.
            taken = max((step for step in self.images if step <= now), default=min(self.images))
            images = self.images[taken]
        image.paste(Image.fromarray(images[drone]), (x, y))
        over = i >= self.ends[drone]
        if over:
            shade = Image.new("RGB", (TILE.width, TILE.height), INK)
            image.paste(Image.blend(Image.fromarray(images[drone]), shade, 0.55), (x, y))
        episode_return = float(np.nansum(self.trajectory["reward"][: now + 1, drone]))
        found = int(self.trajectory["found"][now, drone]).bit_count()
        pen.rectangle((x, y, x + TILE.width - 1, y + 16), fill=self.colors[drone])
        label = f"{drone + 1}  return {episode_return:.1f}"
        if self.task.mission_spec.reward.detection:
            label += f"  found {found}"
        if self.task.mission_spec.target_per_drone:
            label += f"  view {100 * float(self.trajectory['view_quality'][now, drone]):.0f} %"
        pen.text((x + 4, y + 2), label, WHITE, self.tiny)
        fresh = now == taken and not over
        corner = (x + TILE.width - 13, y + 4, x + TILE.width - 5, y + 12)
        pen.ellipse(corner, fill=FRESH if fresh else STALE, outline=WHITE)
        mode = MODES[int(self.trajectory["mode"][now, drone])]
        note = "ended" if over else mode
        reason = REASONS[int(self.trajectory["filter_reason"][now, drone])]
        if not over and float(self.trajectory["filter_correction"][now, drone]) > 0.0:
            note += f" · filter: {reason}"
        elif note == "return" and reason == "battery":
            note += ": battery"
        pen.text((x + 4, y + TILE.height - 15), note, WHITE, self.tiny, stroke_width=1, stroke_fill=INK)

    # The map

    def pixel(self, east: float, north: float) -> tuple[float, float]:
        """The pixel of the map at a position."""
        edge = self.task.mission_spec.generator
        return float((east + edge.east) * self.scale + 6), float((edge.north - north) * self.scale + 6)

    def disc(self, pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, **style: Any) -> None:
        px, py = self.pixel(x, y)
        r = max(radius * self.scale, 1.0)
        pen.ellipse((px - r, py - r, px + r, py + r), **style)

    def _static_map(self) -> tuple[Image.Image, float]:
        """The map of what does not move, and pixels per meter: ground, hills, buildings, trees, pads."""
        edge, world = self.task.mission_spec.generator, self.episode.world
        room = WIDTH - self.left - 20, HEIGHT - TOP - 60
        self.scale = min((room[0] - 12) / (2 * edge.east), (room[1] - 12) / (2 * edge.north))
        image = Image.new("RGB", room, PAPER)
        pen = ImageDraw.Draw(image, "RGBA")
        pen.rectangle(
            (*self.pixel(-edge.east, edge.north), *self.pixel(edge.east, -edge.north)),
            fill=(226, 234, 218),
            outline=FAINT,
        )
        for x, y, z, radius in zip(
            *(world[f"hills.{n}"] for n in ("center.x", "center.y", "center.z", "radius")), strict=True
        ):
            base = math.sqrt(max(radius * radius - z * z, 0.0))
            for fraction in (1.0, 0.75, 0.5, 0.25):
                self.disc(pen, x, y, base * fraction, fill=(150, 130, 90, 26))
        for x, y, radius in zip(*(world[f"areas.{n}"] for n in ("center.x", "center.y", "radius")), strict=True):
            self.disc(pen, x, y, radius, outline=(59, 130, 246, 130), width=1)
        for x, y in zip(world["trees.position.x"], world["trees.position.y"], strict=True):
            self.disc(pen, x, y, 4.0, fill=(60, 120, 60, 160))
        names = ("center.x", "center.y", "half.x", "half.y", "cos", "sin", "height")
        for x, y, a, b, cos, sin, high in zip(*(world[f"buildings.{n}"] for n in names), strict=True):
            corners = [(a, b), (-a, b), (-a, -b), (a, -b)]
            dark = int(150 - min(high, 90))
            pen.polygon(
                [self.pixel(x + cos * u - sin * v, y + sin * u + cos * v) for u, v in corners], fill=(dark, dark, dark)
            )
        if self.task.mission_spec.coverage_half_extent:
            half = self.task.mission_spec.coverage_half_extent
            pen.rectangle((*self.pixel(-half, half), *self.pixel(half, -half)), outline=(59, 130, 246), width=2)
        for x, y in zip(world["pads.x"], world["pads.y"], strict=True):
            px, py = self.pixel(x, y)
            pen.rectangle((px - 3, py - 3, px + 3, py + 3), outline=INK)
        return image, self.scale

    def map(self, i: int) -> Image.Image:
        """The map at step `i`."""
        image = self.static_map.copy()
        pen = ImageDraw.Draw(image, "RGBA")
        world, trajectory = self.episode.world, self.trajectory
        clock = float(trajectory["clock"][i, 0])
        if self.task.mission_spec.coverage_half_extent:
            self.covered(pen, min(i, self.ends[0]))
        names = ("center.x", "center.y", "radius", "announced_at", "starts_at", "ends_at", "level")
        for x, y, radius, announced, starts, ends, level in zip(*(world[f"zones.{n}"] for n in names), strict=True):
            if not announced <= clock < ends:
                continue
            color = (234, 179, 8) if level == MEDIUM else (147, 51, 234) if level == HIGH else (220, 38, 38)
            active = clock >= starts
            self.disc(pen, x, y, radius, fill=(*color, 90 if active else 25), outline=(*color, 255), width=2)
            if not active:
                px, py = self.pixel(x, y)
                pen.text((px, py), f"in {starts - clock:.0f} s", color, self.tiny, anchor="mm")
        found = int(np.bitwise_or.reduce(trajectory["found"][i])) if self.task.mission_spec.reward.detection else 0
        if self.task.mission_spec.reward.detection or self.task.mission_spec.target_per_drone:
            fields = ("center.x", "center.y", "amplitude.x", "amplitude.y", "angular_frequency")
            movers = zip(*(world[f"targets.mover.{name}"] for name in fields), strict=True)
            for k, (x, y, dx, dy, frequency) in enumerate(movers):
                swing = math.sin(float(frequency) * clock)
                px, py = self.pixel(x + dx * swing, y + dy * swing)
                color = (22, 163, 74) if found >> k & 1 else (239, 68, 68)
                pen.regular_polygon((px, py, 6), 3, fill=color, outline=INK)
        for drone in reversed(range(self.agents)):
            self.path(pen, drone, min(i, self.ends[drone]), i >= self.ends[drone])
        return image

    def covered(self, pen: ImageDraw.ImageDraw, i: int) -> None:
        """The cells that the first drone has covered."""
        half = self.task.mission_spec.coverage_half_extent
        cell = 2 * half / SIDE
        for row, bits in enumerate(self.trajectory["covered"][i, 0]):
            for column in range(SIDE):
                if int(bits) >> column & 1:
                    x, y = -half + column * cell, -half + row * cell
                    pen.rectangle((*self.pixel(x, y + cell), *self.pixel(x + cell, y)), fill=(59, 130, 246, 55))

    def path(self, pen: ImageDraw.ImageDraw, drone: int, i: int, over: bool) -> None:
        """The path of one drone up to step `i`, and the drone at its end."""
        color = self.colors[drone]
        track = self.trajectory["position"][: i + 1 : 3, drone]
        if len(track) > 1:
            pen.line([self.pixel(x, y) for x, y, _ in track], fill=(*color, 170), width=2)
        if self.task.mission_spec.has_goal:
            x, y = self.pixel(*self.episode.world["goal"][drone, :2])
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), outline=color, width=2)
        px, py = self.pixel(*self.trajectory["position"][i, drone, :2])
        yaw = float(self.trajectory["yaw"][i, drone])
        nose = [(9, 0), (-6, 5), (-6, -5)]
        turned = [
            (px + math.cos(yaw) * a - math.sin(yaw) * b, py - math.sin(yaw) * a - math.cos(yaw) * b) for a, b in nose
        ]
        pen.polygon(turned, fill=(148, 163, 184) if over else color, outline=INK)

    def caption(self, pen: ImageDraw.ImageDraw, i: int) -> None:
        done = sum(i >= end for end in self.ends)
        time = i * self.episode.control_dt
        pen.text((10, 10), f"{self.title}: {self.task.mission}", INK, self.large)
        pen.text(
            (10, 40),
            f"{time:5.1f} s · {self.agents - done} of {self.agents} drones flying · {self.pace:g} x real time",
            FAINT,
            self.small,
        )
        if self.task.mission_spec.coverage_half_extent:
            rows = self.trajectory["covered"][min(i, self.ends[0]), 0]
            fraction = sum(int(bits).bit_count() for bits in rows) / SIDE**2
            pen.text((self.left + 8, 40), f"shaded: covered by drone 1, {100 * fraction:.0f} %", FAINT, self.small)
        y = HEIGHT - 46
        pen.text((10, y), self.footer, INK, self.small)
        pen.ellipse((10, y + 24, 20, y + 34), fill=FRESH)
        pen.text((26, y + 21), f"new image (every {self.interval} steps)", FAINT, self.small)
        pen.ellipse((270, y + 24, 280, y + 34), fill=STALE)
        pen.text((286, y + 21), "no new image: the last one stays", FAINT, self.small)
        legend = (("no-fly zone", (220, 38, 38)), ("high threat", (147, 51, 234)), ("medium threat", (234, 179, 8)))
        x = self.left + 8
        for label, color in legend:
            pen.rectangle((x, y + 24, x + 10, y + 34), fill=color)
            pen.text((x + 16, y + 21), label, FAINT, self.small)
            x += 120
