"""How a world starts: a cube somewhere on the mat, the open gripper above it, and what differs between worlds."""

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ...core.geometry import Quat, Scalar, Vec2, Vec3, sin_cos
from ...core.rng import Rng
from ...core.task import State
from ...dynamics.grasp import Cube
from ...sensors.scene import Color
from .looks import CAMERAS, CLUTTER, MATERIALS
from .state import CameraError, LiftProgress, LiftState, LiftWorld, Looks

if TYPE_CHECKING:
    from .task import Lift

CENTER = (0.2, 0.0)
"""Middle of the places where a cube starts, m."""
REACH = {"near": (0.02, 0.02), "far": (0.05, 0.06), "mat": (0.05, 0.10)}
"""Largest distance of a cube from the middle, forward and sideways, m."""
HALF, MASS, PAD_FRICTION, MAT_FRICTION = 0.015, 0.03, 1.0, 0.5
"""Of the nominal cube."""
TARGET_REACH = (0.04, 0.08)
"""Largest distance of a target from the middle, m."""
LOOKS = 0x100C
"""Branch of the generator that looks are drawn from: with a camera and without, everything else is the same."""


def reset(task: "Lift", rng: Rng) -> LiftState:
    world, rng = draw_world(task, rng)
    forward, sideward = (
        near + (far - near) * task.difficulty for near, far in zip(REACH["near"], REACH[task.area], strict=True)
    )
    x, rng = rng.uniform(CENTER[0] - forward, CENTER[0] + forward)
    y, rng = rng.uniform(CENTER[1] - sideward, CENTER[1] + sideward)
    yaw, rng = rng.uniform(-math.pi / 4, math.pi / 4)
    place, rng = draw_offset(rng, 0.02)
    height, rng = rng.uniform(0.05, 0.08)
    gripper = Vec3(CENTER[0] + place.x, CENTER[1] + place.y, height)
    sin, cos = sin_cos(0.5 * yaw)
    zero, no = 0.0 * x, jnp.bool_(False)
    body = task.model.start(gripper, task.arm.jaw_open + zero, Vec3(x, y, world.cube.half), Quat(cos, zero, zero, sin))
    progress = LiftProgress(
        target=gripper,
        recent_targets=(body.angles,) * (1 + task.randomize.max_action_delay),
        action=(zero,) * (task.spec.action.size - 1) + (zero + 1.0,),
        change=zero,
        grasped=no,
        lifted=no,
        held=jnp.int32(0),
        success=no,
        lost=no,
        highest=world.cube.half,
        episode_return=zero,
        earlier=(body,) * (task.camera.frame_stack - 1 if task.camera.on else 0),
    )
    return State(world, body, progress, rng, jnp.int32(0), zero, no, no)


def draw_world(task: "Lift", rng: Rng) -> tuple[LiftWorld, Rng]:
    ranges = task.randomize

    def factor(rng: Rng, largest: float) -> tuple[Scalar, Rng]:
        return rng.uniform(1.0 - largest, 1.0 + largest)

    size, rng = factor(rng, ranges.cube_size)
    mass, rng = factor(rng, ranges.mass)
    pads, rng = factor(rng, ranges.friction)
    mat, rng = factor(rng, ranges.friction)
    gain, rng = factor(rng, ranges.servo_gain)
    stiffness, rng = factor(rng, ranges.pad_stiffness)
    cube = Cube(HALF * size, MASS * mass, PAD_FRICTION * pads, MAT_FRICTION * mat, stiffness)
    delay = target = looks = None
    if ranges.max_action_delay:
        delay, rng = rng.integer(ranges.max_action_delay + 1)
    if task.goal == "place":
        x, rng = rng.uniform(CENTER[0] - TARGET_REACH[0], CENTER[0] + TARGET_REACH[0])
        y, rng = rng.uniform(CENTER[1] - TARGET_REACH[1], CENTER[1] + TARGET_REACH[1])
        target = Vec2(x, y)
    if task.camera.on:
        looks = draw_looks(task, rng.fork(LOOKS))
    return LiftWorld(cube, gain, delay, looks, target), rng


def draw_offset(rng: Rng, reach: float) -> tuple[Vec2, Rng]:
    x, rng = rng.uniform(-reach, reach)
    y, rng = rng.uniform(-reach, reach)
    return Vec2(x, y), rng


def draw_looks(task: "Lift", rng: Rng) -> Looks:
    """Colors, light, camera poses and clutter of a world."""
    ranges = task.randomize

    def draw(count: int, reach: float) -> list[Any]:
        nonlocal rng
        parts = []
        for _ in range(count):
            part, rng = rng.uniform(-reach, reach)
            parts.append(part)
        return parts

    colors = tuple(Color(*draw(3, ranges.color)) for _ in MATERIALS)
    light = tuple(1.0 + part for part in draw(2, ranges.light))
    sun = Vec3(*draw(3, ranges.light))
    cameras = tuple(
        CameraError(
            Vec3(*draw(3, ranges.camera_position)),
            Vec3(*draw(3, ranges.camera_angle)),
            1.0 + draw(1, ranges.field_of_view)[0],
        )
        for _ in CAMERAS
    )
    noise, rng = rng.uniform(0.0, ranges.pixel_noise)
    clutter = []
    for place in CLUTTER:
        aside, here = draw(2, 0.03), draw(1, 0.5)[0] + 0.5 < ranges.clutter
        # What is not there is under the mat.
        clutter.append(Vec3(place[0] + aside[0], place[1] + aside[1], jnp.where(here, place[2], -1.0)))
    return Looks(colors, (light[0], light[1]), sun, cameras, noise, tuple(clutter))
