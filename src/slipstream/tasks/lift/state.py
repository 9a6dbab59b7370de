"""What a world of the lift is, and what it counts."""

from jaxtyping import Array, Bool, Int

from ...core.geometry import Scalar, Vec2, Vec3
from ...core.struct import struct
from ...core.task import State
from ...dynamics.arm import Joints
from ...dynamics.grasp import Cube, GraspState
from ...sensors.scene import Color


@struct
class CameraError:
    """How a camera differs from where it should be."""

    position: Vec3  # m
    angle: Vec3  # rad, about the camera's axes
    field_of_view: Scalar  # factor


@struct
class Looks:
    """How a world differs from the nominal one to the eye."""

    colors: tuple[Color, ...]  # added to those of the scene's materials
    light: tuple[Scalar, Scalar]  # factors on sun and ambient light
    sun: Vec3  # added to its direction
    cameras: tuple[CameraError, ...]  # of the wrist and of the scene
    pixel_noise: Scalar
    clutter: tuple[Vec3, ...]  # positions of objects that lie about


@struct
class LiftWorld:
    """What stays the same for an episode."""

    cube: Cube
    servo_gain: Scalar
    action_delay: Int[Array, ""] | None  # steps; None is none
    looks: Looks | None  # None is as designed
    target: Vec2 | None  # where the cube is to be placed; None if it is only to be lifted


@struct
class LiftProgress:
    """What an episode counts."""

    target: Vec3  # of the tool center point
    recent_targets: tuple[Joints, ...]  # of the servos, the newest first: those that may still be under way
    action: tuple[Scalar, ...]  # the last one
    change: Scalar  # square of its difference from the one before
    grasped: Bool[Array, ""]
    lifted: Bool[Array, ""]  # whether the cube has been high enough
    held: Int[Array, ""]  # steps in a row for which the goal was met
    success: Bool[Array, ""]
    lost: Bool[Array, ""]
    highest: Scalar  # m, of the cube
    episode_return: Scalar
    earlier: tuple[GraspState, ...]  # bodies of the last steps, if images are stacked


LiftState = State[LiftWorld, GraspState, LiftProgress]
