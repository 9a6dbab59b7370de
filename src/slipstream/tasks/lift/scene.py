"""The scene for our cameras: the arm, the cube, the mat and what lies about; and where the cameras are."""

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ...core.geometry import Quat, Scalar, Vec3, sin_cos
from ...dynamics.arm import Arm, Joints
from ...dynamics.grasp import GraspState
from ...sensors.camera import View
from ...sensors.scene import Color, Ground, Scene, Shapes, daylight
from .looks import CAMERAS, CLUTTER, LABELS, MATERIALS, TILE, CameraPose, arm_parts
from .state import CameraError, LiftState

if TYPE_CHECKING:
    from .task import Lift

TARGET_SIZE = (0.018, 0.018, 0.0008)
"""Half edges of the mark on the mat where a cube is to be placed, m."""
Pose = tuple[Vec3, Quat]


def turn(axis: int, angle: Scalar) -> Quat:
    """A rotation about the x, y or z axis."""
    sin, cos = sin_cos(0.5 * angle)
    parts = [0.0 * sin] * 3
    parts[axis] = sin
    return Quat(cos, *parts)


def frames(arm: Arm, angles: Joints) -> dict[str, Pose]:
    """Where the frames of the arm's bodies are."""
    zero = 0.0 * angles.pan

    def beyond(pose: Pose, x: float, y: float, z: float) -> Vec3:
        return pose[0] + pose[1].rotate(Vec3(x + zero, y + zero, z + zero))

    pan = turn(2, angles.pan)
    base = Vec3(arm.base[0] + zero, zero, zero), Quat(1.0 + zero, zero, zero, zero)
    shoulder = beyond(base, 0.0, 0.0, arm.base[1]), pan
    upper = beyond(shoulder, arm.shoulder[0], 0.0, arm.shoulder[1]), pan * turn(1, angles.lift)
    fore = beyond(upper, 0.0, 0.0, arm.upper), pan * turn(1, angles.lift + angles.elbow)
    wrist = beyond(fore, 0.0, 0.0, arm.fore), pan * turn(1, angles.lift + angles.elbow + angles.flex)
    gripper = beyond(wrist, 0.0, 0.0, arm.roll), wrist[1] * turn(2, angles.roll)
    pivot = beyond(gripper, 0.0, arm.pivot[1], arm.hand - arm.roll + arm.pivot[0])
    return {
        "base": base, "shoulder": shoulder, "upper": upper, "fore": fore, "wrist": wrist, "gripper": gripper,
        "jaw": (pivot, gripper[1] * turn(0, -angles.jaw)),
    }  # fmt: skip


def lift_scene(task: "Lift", state: LiftState, body: GraspState) -> Scene:
    """What there is to be seen of a world with the body like that."""
    arm, cube, looks = task.arm, body.cube, state.world.looks
    poses = frames(arm, body.angles)
    zero = 0.0 * cube.position.x
    tints = None if looks is None else looks.colors
    colors = {
        name: color if tints is None else tint(color, tints[k]) for k, (name, color) in enumerate(MATERIALS.items())
    }

    def shape(pose: Pose, position: tuple[float, float, float], size: Vec3, material: str) -> Shapes:
        place = pose[0] + pose[1].rotate(Vec3(*(x + zero for x in position)))
        leaves = place, pose[1], size, colors[material]
        place, attitude, size, color = jax.tree.map(lambda x: jnp.asarray(x + zero), leaves)
        return Shapes(place, attitude, size, color, jnp.int32(LABELS[material]))

    tip = arm.hand - arm.roll
    pad = Vec3(arm.pad.across, arm.pad.closing, arm.pad.approach)
    half = state.world.cube.half
    level = Quat(1.0, 0.0, 0.0, 0.0)
    boxes = [
        shape((cube.position, cube.attitude), (0.0, 0.0, 0.0), Vec3(half, half, half), "cube"),
        shape(poses["gripper"], (0.0, -arm.half_gap - arm.pad.closing, tip + arm.pad_center), pad, "pads"),
        shape(poses["jaw"], (0.0, arm.jaw_face + arm.pad.closing, arm.pad_center - arm.pivot[0]), pad, "pads"),
    ]
    capsules = []
    for part in arm_parts(arm):
        drawn = shape(poses[part.frame], part.position, Vec3(*part.size), part.material)
        (boxes if part.kind == "box" else capsules).append(drawn)
    places = [Vec3(x, y, size) for x, y, size in CLUTTER] if looks is None else looks.clutter
    for place, (_, _, size) in zip(places, CLUTTER, strict=True):
        boxes.append(shape((place, level), (0.0, 0.0, 0.0), Vec3(size, size, size), "clutter"))
    if state.world.target is not None:
        at = Vec3(state.world.target.x, state.world.target.y, zero)
        boxes.append(shape((at, level), (0.0, 0.0, 0.0), Vec3(*TARGET_SIZE), "target"))
    ground = Ground(zero, zero + TILE, *(jax.tree.map(lambda x: x + zero, colors[k]) for k in ("mat", "other tiles")))
    day = daylight()
    if looks is not None:
        sun, ambient = looks.light
        light = replace(
            day["light"],
            towards_sun=(day["light"].towards_sun + looks.sun).unit(),
            sun=day["light"].sun * sun,
            ambient=day["light"].ambient * ambient,
        )
        day["light"], day["pixel_noise"] = light, looks.pixel_noise
    return Scene(**day, ground=ground, boxes=joined(boxes), capsules=joined(capsules))


def joined(rows: list[Shapes]) -> Shapes:
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


def tint(color: Color, change: Color) -> Color:
    """A color with another added to it, between black and white."""
    return Color(*(jnp.clip(a + b, 0.02, 1.0) for a, b in zip(color.parts, change.parts, strict=True)))


def view(task: "Lift", state: LiftState, body: GraspState, name: str) -> View:
    """The view of a camera."""
    nominal, looks, zero = CAMERAS[name], state.world.looks, 0.0 * body.angles.pan
    position, attitude = Vec3(*(x + zero for x in nominal.position)), camera_attitude(nominal)
    fov = nominal.field_of_view + zero
    if looks is not None:
        error: CameraError = looks.cameras[list(CAMERAS).index(name)]
        position = position + error.position
        attitude = attitude * Quat(1.0, 0.5 * error.angle.x, 0.5 * error.angle.y, 0.5 * error.angle.z).unit()
        fov = fov * error.field_of_view
    if nominal.frame is not None:
        at, turned = frames(task.arm, body.angles)[nominal.frame]
        position, attitude = at + turned.rotate(position), turned * attitude
    attitude = jax.tree.map(lambda x: x + zero, attitude)
    return View(position, attitude, fov, state.rng.stream + state.step.astype(jnp.uint32))


def camera_attitude(pose: CameraPose) -> Quat:
    """The attitude whose x axis looks ahead and whose z axis is up in the image.

    By half of the matrix's trace; no camera here is turned by half a turn.
    """
    ahead, up = Vec3(*pose.ahead), Vec3(*pose.up)
    left = up.cross(ahead)
    w = 0.5 * float(max(1.0 + ahead.x + left.y + up.z, 1e-9)) ** 0.5
    scale = 0.25 / w
    return Quat(w, (left.z - up.y) * scale, (up.x - ahead.z) * scale, (ahead.y - left.x) * scale).unit()
