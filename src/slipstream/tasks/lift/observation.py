"""What a policy observes: of the arm what it knows of itself, and without a camera the cube."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from ...core.geometry import Scalar, Vec3
from ...core.task import PackedImage, stack_features
from ...dynamics.arm import Gripper
from ...sensors.camera import Camera
from .scene import lift_scene, view
from .state import LiftState

if TYPE_CHECKING:
    from .task import Lift

ARM_SIZE, TARGET_SIZE, CUBE_SIZE = 18, 2, 13
"""Numbers of the arm without the last action, of a target, and of the cube."""


def observe(task: "Lift", state: LiftState) -> Float[Array, "features"]:
    own = [*arm_features(task, state), *target_features(task, state)]
    return stack_features(own if task.camera.on else own + cube_features(task, state))


def privileged_observation(task: "Lift", state: LiftState) -> Float[Array, "features"]:
    """Where the cube is: for a critic, and for what a policy with a camera learns to tell."""
    return stack_features(cube_features(task, state))


def arm_features(task: "Lift", state: LiftState) -> list[Scalar]:
    """What the arm knows of itself: nothing of it depends on where the cube is until it is touched."""
    body, progress = state.body, state.progress
    gripper = task.model.gripper(body)
    angles, rates = body.angles, body.rates
    return [
        *(gripper.position * 10.0).parts,
        angles.pan, angles.roll, angles.jaw,
        *(rate * 0.2 for rate in rates.parts),
        gripper.approach.x, gripper.approach.y, gripper.approach.z,
        *((progress.target - gripper.position) * 20.0).parts,
        *progress.action,
    ]  # fmt: skip


def target_features(task: "Lift", state: LiftState) -> list[Scalar]:
    """Where the cube is to be placed, from the gripper."""
    if state.world.target is None:
        return []
    at = task.model.gripper(state.body).position
    return [10.0 * (state.world.target.x - at.x), 10.0 * (state.world.target.y - at.y)]


def cube_features(task: "Lift", state: LiftState) -> list[Scalar]:
    """The cube, from the gripper and on the mat."""
    body, cube = state.body, state.body.cube
    gripper = task.model.gripper(body)
    offset = cube.position - gripper.position
    sin, cos = fourfold_yaw(cube.attitude.forward, gripper)
    return [
        *(offset * 10.0).parts,
        gripper.closing.dot(offset) * 30.0, gripper.across.dot(offset) * 30.0,
        *(cube.position * 10.0).parts,
        *(cube.velocity * 2.0).parts,
        sin, cos,
    ]  # fmt: skip


def fourfold_yaw(ahead: Vec3, gripper: Gripper) -> tuple[Scalar, Scalar]:
    """Sine and cosine of four times the angle from the fingers to the cube: the same for each of its sides."""
    x, y = gripper.across.dot(ahead), gripper.closing.dot(ahead)
    cos2, sin2 = x * x - y * y, 2.0 * x * y
    return 2.0 * cos2 * sin2, cos2 * cos2 - sin2 * sin2


def image(task: "Lift", state: LiftState) -> PackedImage:
    """The images of the camera, one above the other: of each moment, the newest first, each view."""
    eye = Camera(task.camera.resolution, task.camera.resolution)
    seen = []
    for body in (state.body, *state.progress.earlier):
        scene = lift_scene(task, state, body)
        seen += [(scene, view(task, state, body, name)) for name in task.camera.views]
    # All images in one pass of the renderer.
    frames = jax.vmap(eye.render)(*jax.tree.map(lambda *x: jnp.stack(x), *seen))
    if task.camera.kind == "rgb":
        return (frames.packed & 0xFFFFFF).reshape(-1, task.camera.resolution)
    return inverse_depth(frames.depth).reshape(-1, task.camera.resolution)


def inverse_depth(depth: Float[Array, "n h w"]) -> UInt8[Array, "n h w"]:
    """Depth as a byte: 255 at the lens, half of it at 0.3 m, 0 in the sky."""
    return (255.0 * 0.3 / (0.3 + jnp.minimum(depth, 1e6))).astype(jnp.uint8)
