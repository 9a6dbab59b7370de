"""Film and page of the lift: what the cameras see, action, gripper and forces, and how long the goal is met."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from ...core.geometry import Quat, Vec2, Vec3
from ...core.rng import Rng
from ...dynamics.arm import Joints
from ...dynamics.grasp import Cube, CubeState, GraspState, NormalForces
from ...evaluation.episode import Episode
from ...reports import charts, default
from ...reports.panes import locate_frame
from ...reports.text import Film, ReportText, Section
from ...reports.video import FPS
from ...sensors.camera import Camera
from .rewards import GRASP_FORCE, HOLD_STEPS
from .scene import lift_scene, view
from .state import LiftState
from .task import Lift

WIDTH, HEIGHT, EYE = 1280, 720, 430
"""Of the film, and the edge of a picture, pixels."""
SLOW = 3.0
"""How many times slower than it was a film runs: a grasp takes half a second."""
REST = 0.6
"""Seconds for which a film stays at the end of an episode."""
PAPER, INK, QUIET, GOOD, ALARM = (248, 250, 252), (15, 23, 42), (100, 116, 139), (22, 130, 70), (220, 38, 38)
TRACES = {
    "height of the cube, m": ((234, 88, 12),),
    "gripper: opening of the jaw, rad": ((37, 99, 235),),
    "force of the fixed finger and the jaw, N": ((22, 130, 70), (147, 51, 234)),
    "action": ((37, 99, 235), (234, 88, 12), (22, 130, 70), (100, 116, 139), (147, 51, 234), (15, 23, 42)),
}
"""What is drawn over time, and its colors."""


def text(task: Lift) -> ReportText:
    done = "lift the cube" if task.goal == "lift" else "place the cube"
    return ReportText(
        task=task.description,
        success=done,
        film="Left the camera at the wrist, in the middle the one beside the mat; small, what the policy sees of them, "
        "if it has a camera. Right the cube's height, the jaw, the normal forces of both fingers, and the action. "
        f"The bar counts the {HOLD_STEPS} steps for which the goal must be met. {SLOW:g} times slower than it was.",
        tiles={
            "lifted_rate": ("{:.1%}", "lift the cube"),
            "lost_rate": ("{:.1%}", "knock it off the mat"),
            "duration_mean": ("{:.2f} s", "mean time of those that succeed"),
        },
    )


def sections(task: Lift, episodes: list[Episode], metrics: dict[str, np.ndarray]) -> list[Section]:
    """How episodes ended, how long they took, and one over time."""
    good, lost = float(np.mean(metrics["success"])), float(np.mean(metrics["lost"]))
    ends = {"success": good, "lost": lost, "late": max(1.0 - good - lost, 0.0)}
    bars = Markup(charts.stacked_bar(ends))
    found = [Section("How episodes ended", [bars], "Lost: knocked off the mat. Late: time ran out.")]
    time = metrics["duration"][np.isfinite(metrics["duration"])]
    if time.size:
        drawn = [Markup(charts.histogram(time, "time to success, s", "episodes"))]
        found.append(Section("How long it took", drawn, "Of episodes that succeed."))
    if episodes:
        episode = episodes[0]
        steps = [k * episode.control_dt for k in range(episode.length)]
        drawn = [
            Markup(charts.lines({n: (steps, [float(v) for v in row]) for n, row in rows.items()}, "s", name))
            for name, rows in {
                "m": {"cube": episode.trajectory["position"][:, 2], "gripper": episode.trajectory["gripper"][:, 2]},
                "N": dict(zip(("fixed finger", "jaw"), episode.trajectory["forces"].T, strict=True)),
            }.items()
        ]
        note = f"Heights, and normal forces of both fingers; a grasp is more than {GRASP_FORCE:g} N of each."
        found.append(Section("One episode", drawn, note))
    return found


def film(task: Lift, episodes: list[Episode], title: str, seconds: float, footer: str) -> Film:
    """Episodes one after the other, as many as there is time for; a failed one last, if there is one."""
    good = [episode for episode in episodes if episode.metrics["success"] > 0.5]
    bad = [episode for episode in episodes if episode.metrics["success"] <= 0.5]
    canvases, used = [], 0
    for episode in [*good, *bad[:1]] or episodes:
        canvas = LiftCanvas(task, episode, title, footer)
        if not canvases or used + canvas.frames <= seconds * FPS:
            canvases.append(canvas)
            used += canvas.frames
    reel = Reel(canvases)
    return Film(reel, sum(reel.lengths))


def map_canvas(task: Lift, episode: Episode, title: str, pace: float, edge: int | None) -> default.PathCanvas:
    return default.map_canvas(task, episode, title, pace, edge)


def landmarks(episode: Episode, time: float) -> list[tuple[np.ndarray, bool]]:
    return []


def hardness(episodes: Sequence[Episode]) -> tuple[float, ...]:
    """The fewer succeed, the harder."""
    return (sum(episode.metrics["success"] for episode in episodes),)


class Reel:
    """Episodes one after the other."""

    size = WIDTH, HEIGHT

    def __init__(self, canvases: list["LiftCanvas"]) -> None:
        self.canvases = canvases
        self.lengths = [canvas.frames for canvas in canvases]

    def draw(self, number: int) -> Image.Image:
        part, number = locate_frame(self.lengths, number)
        return self.canvases[part].draw(number)


def recorded_state(task: Lift, episode: Episode, step: int) -> LiftState:
    """The state of a recorded step, as far as it can be seen; the world's looks are the nominal ones."""
    rows, world = episode.trajectory, episode.world
    state = task.reset(Rng.from_seed(0, 0))

    def vec(values: np.ndarray) -> Vec3:
        return Vec3(*jnp.asarray(values, jnp.float32))

    zero = Vec3(*[jnp.float32(0.0)] * 3)
    cube = CubeState(vec(rows["position"][step]), Quat(*jnp.asarray(rows["attitude"][step])), zero, zero)
    angles = Joints(*jnp.asarray(rows["angles"][step]))
    body = GraspState(angles, angles, cube, zero, NormalForces(zero.x, zero.x, zero.x))
    numbers = Cube(*(jnp.float32(world[f"cube.{name}"]) for name in ("half", "mass", "pad_friction", "mat_friction")))
    target = None
    if task.goal == "place":
        target = Vec2(jnp.float32(world["target.x"]), jnp.float32(world["target.y"]))
    return replace(state, body=body, world=replace(state.world, cube=numbers, looks=None, target=target))


class LiftCanvas:
    """Draws one moment of an episode."""

    size = WIDTH, HEIGHT

    def __init__(self, task: Lift, episode: Episode, title: str, footer: str = "") -> None:
        self.task, self.episode, self.title, self.footer = task, episode, title, footer
        self.rows, self.dt = episode.trajectory, episode.control_dt
        self.large, self.small = ImageFont.load_default(24), ImageFont.load_default(14)

    @property
    def frames(self) -> int:
        return max(int((self.episode.length * self.dt * SLOW + REST) * FPS), 1)

    @cached_property
    def pictures(self) -> list[tuple[Image.Image, Image.Image]]:
        """What both cameras see in every step."""
        states = [recorded_state(self.task, self.episode, k) for k in range(self.episode.length)]
        stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x]), *states)
        eye, task = Camera(EYE, EYE), self.task

        def look(state: LiftState) -> tuple[jax.Array, jax.Array]:
            scene = lift_scene(task, state, state.body)
            wrist, beside = (eye.render(scene, view(task, state, state.body, name)) for name in ("wrist", "scene"))
            return wrist.rgb, beside.rgb

        wrist, beside = (np.asarray(part) for part in jax.jit(jax.vmap(look))(stacked))
        return [(Image.fromarray(a), Image.fromarray(b)) for a, b in zip(wrist, beside, strict=True)]

    def draw(self, number: int) -> Image.Image:
        step = min(int(number / FPS / SLOW / self.dt), self.episode.length - 1)
        image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
        pen = ImageDraw.Draw(image)
        wrist, beside = self.pictures[step]
        for k, (picture, name) in enumerate(((wrist, "wrist"), (beside, "beside the mat"))):
            left = 16 + k * (EYE + 10)
            image.paste(picture, (left, 70))
            pen.text((left, 504), name, fill=QUIET, font=self.small)
        if self.task.camera.on:
            self._policy_view(image, pen, (wrist, beside))
        pen.text((16, 18), self.title, fill=INK, font=self.large)
        pen.text((16 + 500, 24), f"{step * self.dt:.2f} s, shown {SLOW:g} times slower", fill=QUIET, font=self.small)
        self._counter(pen, step)
        top = 30
        for name, colors in TRACES.items():
            self._trace(pen, name, colors, step, (910, top, WIDTH - 20, top + 130))
            top += 168
        pen.text((16, HEIGHT - 24), self.footer, fill=QUIET, font=self.small)
        return image

    def _policy_view(
        self, image: Image.Image, pen: ImageDraw.ImageDraw, pictures: tuple[Image.Image, Image.Image]
    ) -> None:
        """The pictures at the resolution of the policy, under the large ones."""
        size = self.task.camera.resolution
        for k, name in enumerate(("wrist", "scene")):
            if name in self.task.camera.views:
                small = pictures[k].resize((size, size), Image.Resampling.BOX)
                image.paste(small.resize((120, 120), Image.Resampling.NEAREST), (16 + 310 + k * 440, 530))
                pen.text((16 + 180 + k * 440, 540), f"seen at {size}×{size}", fill=QUIET, font=self.small)

    def _counter(self, pen: ImageDraw.ImageDraw, step: int) -> None:
        """How many steps the goal has been met, of those that are needed."""
        held = min(int(self.rows["held"][step]), HOLD_STEPS)
        for k in range(HOLD_STEPS):
            left = 16 + 16 * k
            pen.rectangle([left, 540, left + 12, 566], fill=GOOD if k < held else (226, 232, 240))
        over = step >= self.episode.length - 1
        words = f"{held} of {HOLD_STEPS} steps"
        if over:
            words = "success" if self.episode.metrics["success"] > 0.5 else "failed"
        bad = over and self.episode.metrics["success"] <= 0.5
        pen.text((16, 576), words, fill=ALARM if bad else INK, font=self.small)

    @cached_property
    def _series(self) -> dict[str, np.ndarray]:
        rows = self.rows
        columns = (rows["position"][:, 2:3], rows["angles"][:, 5:6], rows["forces"], rows["action"])
        return dict(zip(TRACES, columns, strict=True))

    def _trace(
        self,
        pen: ImageDraw.ImageDraw,
        name: str,
        colors: tuple[tuple[int, int, int], ...],
        step: int,
        box: tuple[int, int, int, int],
    ) -> None:
        """Numbers over time up to this step."""
        left, top, right, bottom = box
        values = self._series[name]
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 1e-3)
        pen.text((left, top - 18), name, fill=INK, font=self.small)
        pen.rectangle(box, outline=(203, 213, 225))
        pen.text((left + 4, top + 2), f"{high:.3g}", fill=QUIET, font=self.small)
        x = left + (right - left) * np.arange(step + 1) / max(self.episode.length - 1, 1)
        for column, color in zip(values[: step + 1].T, colors, strict=False):
            y = bottom - (bottom - top) * (column - low) / (high - low)
            if step:
                pen.line([(float(a), float(b)) for a, b in zip(x, y, strict=True)], fill=color, width=2)
