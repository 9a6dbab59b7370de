"""The film of a survey: what sixteen cameras see, and the map they see it on."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from ...core.geometry import Vec3
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from ...evaluate.episode import Episode
from ...report import charts
from ...report.charts import palette
from ...report.default import circle
from ...report.text import Film, ReportText, Section
from ...report.video import FPS, pace_for
from ...sensors.camera import Camera
from . import Survey
from .behavior import MODES
from .coverage import SIDE
from .safety import REASONS
from .scene import look_of, survey_scene
from .world import HIGH, MEDIUM, country_of

WIDTH, HEIGHT = 1440, 720
TILE = Camera(176, 144)
GRID, GAP, TOP = 4, 4, 64
"""Tiles each way, pixels between them, and the strip above them."""
PAPER, INK, FAINT, WHITE = (247, 249, 252), (15, 23, 42), (100, 116, 139), (255, 255, 255)
FRESH, STALE = (34, 197, 94), (148, 163, 184)


SUCCESS = {
    "transit": "arrive in time, with their reserve, and enter no zone",
    "coverage": "cover 85 %, find 80 % of the targets and land at home with their reserve",
    "search": "cover 85 %, find 80 % of the targets and land at home with their reserve",
    "multi-objective": "view 80 % of the value there is and never come under a high threat",
    "dwell": "keep a good view of their target for 30 s without a break",
    "free": "succeed, since nothing was asked",
}
SPREADS = {
    "duration": "seconds in the air", "battery": "battery left, %", "coverage": "share covered",
    "found": "share of targets found", "value": "share of the value viewed", "dwell": "longest good view, s",
}  # fmt: skip


def text(task: Survey) -> ReportText:
    return ReportText(
        task=task.description,
        attempts="sorties",
        success=SUCCESS[task.mission],
        film="Left: every drone's camera, with its reward and what it has found; a green dot marks a picture taken on "
        "that very step. Right: the map, with zones as they come into force, paths, and targets (green once found).",
        tiles={
            "entered_mean": ("{:.2%}", "of sorties entered a zone or left the geofence"),
            "crash_mean": ("{:.2%}", "crashed"),
            "coverage_mean": ("{:.1%}", "covered on average"),
            "found_mean": ("{:.1%}", "of targets found on average"),
            "value_mean": ("{:.1%}", "of the achievable value"),
            "dwell_mean": ("{:.1f} s", "longest good view, mean"),
            "overruled_mean": ("{:.1%}", "of commands changed by the safety filter"),
        },
    )


def sections(task: Survey, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    """How the metrics spread over the sorties."""
    shown = [
        Markup(charts.histogram(metrics[name], text, "sorties")) for name, text in SPREADS.items() if name in metrics
    ]
    return [Section("Sorties", shown, "Each drone of each evaluation world is one sortie.")] if shown else []


def film(task: Survey, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
    """The first world, its whole time squeezed into the film's."""
    pace, frames = pace_for(episodes[:1], seconds)
    return Film(SurveyCanvas(task, episodes[0], title, frames, FPS, pace, footer), frames)


def landmarks(episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]:
    """The no-fly zones, strong once they are in force."""
    rows = [episode.world[f"zones.{name}"] for name in ("center.x", "center.y", "radius", "begins", "level")]
    zones = zip(*rows, strict=True)
    return [
        (circle(np.array([x, y]), radius), time >= begins) for x, y, radius, begins, level in zones if level >= HIGH
    ]


class SurveyCanvas:
    """Draws one moment of a survey: tiles on the left, the map on the right."""

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
        self.interval = task.interval
        self.ends = [self._end(k) for k in range(self.agents)]
        self.pictures = self._pictures(frames)
        self.left = GRID * (TILE.width + GAP) + GAP
        self.plan, self.scale = self._plan()

    def _end(self, drone: int) -> int:
        over = np.flatnonzero(self.trajectory["ended"][:, drone])
        return int(over[0]) if over.size else self.episode.length - 1

    def index(self, number: int) -> int:
        """The step that picture `number` of the film shows."""
        return min(int(number * self.pace / self.fps / self.episode.control_dt), self.episode.length - 1)

    def _pictures(self, frames: int) -> dict[int, np.ndarray]:
        """Every camera at every step on which it takes a picture, by step."""
        land = self.task.plan.land
        country = country_of(self.episode.world, land, self.agents)
        wanted = sorted({self.index(n) // self.interval * self.interval for n in range(frames)})

        def one(step: dict[str, Any]) -> Any:
            place = Vec3(*step["position"].T)
            drones = VelocityDroneState.at(place, step["yaw"])
            gimbals = Gimbal(*step["gimbal"].T)
            scene = survey_scene(country, step["clock"][0], place, self.task.plan.own)
            seeds = jnp.arange(self.agents, dtype=jnp.uint32)
            views = jax.vmap(look_of)(drones, gimbals, seeds)
            views = jax.tree.map(lambda x: x[: self.shown], views)
            return jax.vmap(partial(TILE.render, scene))(views).rgb

        render = jax.jit(jax.vmap(one))
        names = ("position", "yaw", "gimbal", "clock")
        found: dict[int, np.ndarray] = {}
        for first in range(0, len(wanted), 32):
            some = wanted[first : first + 32]
            # A last part of its own size would be compiled again.
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
        self.tell(pen, i)
        return image

    def tile(self, image: Image.Image, pen: ImageDraw.ImageDraw, drone: int, i: int) -> None:
        """One camera, with what its drone has got so far."""
        row, column = divmod(drone, GRID)
        x, y = GAP + column * (TILE.width + GAP), TOP + row * (TILE.height + GAP)
        now = min(i, self.ends[drone])
        taken = now // self.interval * self.interval
        picture = self.pictures.get(taken)
        if picture is None:
            # The drone has ended between two pictures of the film: what it saw last stands.
            taken = max((step for step in self.pictures if step <= now), default=min(self.pictures))
            picture = self.pictures[taken]
        image.paste(Image.fromarray(picture[drone]), (x, y))
        over = i >= self.ends[drone]
        if over:
            shade = Image.new("RGB", (TILE.width, TILE.height), INK)
            image.paste(Image.blend(Image.fromarray(picture[drone]), shade, 0.55), (x, y))
        score = float(np.nansum(self.trajectory["reward"][: now + 1, drone]))
        found = int(self.trajectory["found"][now, drone]).bit_count()
        pen.rectangle((x, y, x + TILE.width - 1, y + 16), fill=self.colors[drone])
        words = f"{drone + 1}  reward {score:.1f}"
        if self.task.plan.find_reward:
            words += f"  found {found}"
        if self.task.plan.own:
            words += f"  view {100 * float(self.trajectory['quality'][now, drone]):.0f} %"
        pen.text((x + 4, y + 2), words, WHITE, self.tiny)
        fresh = now == taken and not over
        corner = (x + TILE.width - 13, y + 4, x + TILE.width - 5, y + 12)
        pen.ellipse(corner, fill=FRESH if fresh else STALE, outline=WHITE)
        mode = MODES[int(self.trajectory["mode"][now, drone])]
        note = "ended" if over else mode
        reason = REASONS[int(self.trajectory["reason"][now, drone])]
        if not over and float(self.trajectory["changed"][now, drone]) > 0.0:
            note += f" · filter: {reason}"
        elif note == "return" and reason == "battery":
            note += ": battery"
        pen.text((x + 4, y + TILE.height - 15), note, WHITE, self.tiny, stroke_width=1, stroke_fill=INK)

    # The map

    def at(self, east: Any, north: Any) -> tuple[float, float]:
        land = self.task.plan.land
        return float((east + land.east) * self.scale + 6), float((land.north - north) * self.scale + 6)

    def disc(self, pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, **style: Any) -> None:
        px, py = self.at(x, y)
        r = max(radius * self.scale, 1.0)
        pen.ellipse((px - r, py - r, px + r, py + r), **style)

    def _plan(self) -> tuple[Image.Image, float]:
        """What does not move: ground, hills, buildings, trees, pads."""
        land, scenery = self.task.plan.land, self.episode.world
        room = WIDTH - self.left - 20, HEIGHT - TOP - 60
        self.scale = min((room[0] - 12) / (2 * land.east), (room[1] - 12) / (2 * land.north))
        image = Image.new("RGB", room, PAPER)
        pen = ImageDraw.Draw(image, "RGBA")
        pen.rectangle(
            (*self.at(-land.east, land.north), *self.at(land.east, -land.north)), fill=(226, 234, 218), outline=FAINT
        )
        for x, y, z, radius in zip(
            *(scenery[f"hills.{n}"] for n in ("centre.x", "centre.y", "centre.z", "radius")), strict=True
        ):
            base = math.sqrt(max(radius * radius - z * z, 0.0))
            for share in (1.0, 0.75, 0.5, 0.25):
                self.disc(pen, x, y, base * share, fill=(150, 130, 90, 26))
        for x, y, radius in zip(*(scenery[f"areas.{n}"] for n in ("centre.x", "centre.y", "radius")), strict=True):
            self.disc(pen, x, y, radius, outline=(59, 130, 246, 130), width=1)
        for x, y in zip(scenery["trees.place.x"], scenery["trees.place.y"], strict=True):
            self.disc(pen, x, y, 4.0, fill=(60, 120, 60, 160))
        names = ("centre.x", "centre.y", "half.x", "half.y", "cos", "sin", "height")
        for x, y, a, b, cos, sin, high in zip(*(scenery[f"buildings.{n}"] for n in names), strict=True):
            corners = [(a, b), (-a, b), (-a, -b), (a, -b)]
            dark = int(150 - min(high, 90))
            pen.polygon(
                [self.at(x + cos * u - sin * v, y + sin * u + cos * v) for u, v in corners], fill=(dark, dark, dark)
            )
        if self.task.plan.cover:
            half = self.task.plan.cover
            pen.rectangle((*self.at(-half, half), *self.at(half, -half)), outline=(59, 130, 246), width=2)
        for x, y in zip(scenery["pads.x"], scenery["pads.y"], strict=True):
            px, py = self.at(x, y)
            pen.rectangle((px - 3, py - 3, px + 3, py + 3), outline=INK)
        return image, self.scale

    def map(self, i: int) -> Image.Image:
        image = self.plan.copy()
        pen = ImageDraw.Draw(image, "RGBA")
        scenery, steps = self.episode.world, self.trajectory
        clock = float(steps["clock"][i, 0])
        if self.task.plan.cover:
            self.covered(pen, min(i, self.ends[0]))
        names = ("centre.x", "centre.y", "radius", "told", "begins", "ends", "level")
        for x, y, radius, told, begins, ends, level in zip(*(scenery[f"zones.{n}"] for n in names), strict=True):
            if not told <= clock < ends:
                continue
            color = (234, 179, 8) if level == MEDIUM else (147, 51, 234) if level == HIGH else (220, 38, 38)
            active = clock >= begins
            self.disc(pen, x, y, radius, fill=(*color, 90 if active else 25), outline=(*color, 255), width=2)
            if not active:
                px, py = self.at(x, y)
                pen.text((px, py), f"in {begins - clock:.0f} s", color, self.tiny, anchor="mm")
        found = int(np.bitwise_or.reduce(steps["found"][i])) if self.task.plan.find_reward else 0
        if self.task.plan.find_reward or self.task.plan.own:
            spans = ("place.x", "place.y", "span.x", "span.y", "pulse")
            for k, (x, y, dx, dy, pulse) in enumerate(
                zip(*(scenery[f"targets.mover.{n}"] for n in spans), strict=True)
            ):
                swing = math.sin(float(pulse) * clock)
                px, py = self.at(x + dx * swing, y + dy * swing)
                there = bool(found >> k & 1)
                pen.regular_polygon((px, py, 6), 3, fill=(22, 163, 74) if there else (239, 68, 68), outline=INK)
        for drone in reversed(range(self.agents)):
            self.path(pen, drone, min(i, self.ends[drone]), i >= self.ends[drone])
        return image

    def covered(self, pen: ImageDraw.ImageDraw, i: int) -> None:
        """What the first drone has covered."""
        half = self.task.plan.cover
        cell = 2 * half / SIDE
        for row, bits in enumerate(self.trajectory["covered"][i, 0]):
            for column in range(SIDE):
                if int(bits) >> column & 1:
                    x, y = -half + column * cell, -half + row * cell
                    pen.rectangle((*self.at(x, y + cell), *self.at(x + cell, y)), fill=(59, 130, 246, 55))

    def path(self, pen: ImageDraw.ImageDraw, drone: int, i: int, over: bool) -> None:
        color = self.colors[drone]
        track = self.trajectory["position"][: i + 1 : 3, drone]
        if len(track) > 1:
            pen.line([self.at(x, y) for x, y, _ in track], fill=(*color, 170), width=2)
        if self.task.plan.transit:
            x, y = self.at(*self.episode.world["goal"][drone, :2])
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), outline=color, width=2)
        px, py = self.at(*self.trajectory["position"][i, drone, :2])
        yaw = float(self.trajectory["yaw"][i, drone])
        nose = [(9, 0), (-6, 5), (-6, -5)]
        turned = [
            (px + math.cos(yaw) * a - math.sin(yaw) * b, py - math.sin(yaw) * a - math.cos(yaw) * b) for a, b in nose
        ]
        pen.polygon(turned, fill=(148, 163, 184) if over else color, outline=INK)

    def tell(self, pen: ImageDraw.ImageDraw, i: int) -> None:
        done = sum(i >= end for end in self.ends)
        time = i * self.episode.control_dt
        pen.text((10, 10), f"{self.title}: {self.task.mission}", INK, self.large)
        pen.text(
            (10, 40),
            f"{time:5.1f} s · {self.agents - done} of {self.agents} drones on their way · {self.pace:g} x real time",
            FAINT,
            self.small,
        )
        if self.task.plan.cover:
            rows = self.trajectory["covered"][min(i, self.ends[0]), 0]
            share = sum(int(bits).bit_count() for bits in rows) / SIDE**2
            pen.text((self.left + 8, 40), f"shaded: what drone 1 has covered, {100 * share:.0f} %", FAINT, self.small)
        y = HEIGHT - 46
        pen.text((10, y), self.footer, INK, self.small)
        pen.ellipse((10, y + 24, 20, y + 34), fill=FRESH)
        pen.text((26, y + 21), f"picture of this step (one every {self.interval})", FAINT, self.small)
        pen.ellipse((270, y + 24, 280, y + 34), fill=STALE)
        pen.text((286, y + 21), "no new picture: the last one stands", FAINT, self.small)
        legend = (("no-fly zone", (220, 38, 38)), ("high threat", (147, 51, 234)), ("medium threat", (234, 179, 8)))
        x = self.left + 8
        for words, color in legend:
            pen.rectangle((x, y + 24, x + 10, y + 34), fill=color)
            pen.text((x + 16, y + 21), words, FAINT, self.small)
            x += 120
