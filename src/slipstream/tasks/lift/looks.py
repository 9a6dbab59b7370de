"""What arm, cube and mat look like, for our camera and for MuJoCo's: parts in the frames of the arm's bodies."""

from dataclasses import dataclass
from typing import Literal

from ...dynamics.arm import Arm
from ...sensors.scene import Color

Frame = Literal["base", "shoulder", "upper", "fore", "wrist", "gripper", "jaw"]

MATERIALS = {
    "arm": Color(0.95, 0.80, 0.15),
    "motors": Color(0.15, 0.15, 0.17),
    "pads": Color(0.20, 0.20, 0.20),
    "cube": Color(0.85, 0.15, 0.10),
    "mat": Color(0.30, 0.45, 0.35),
    "other tiles": Color(0.26, 0.40, 0.31),
    "clutter": Color(0.75, 0.75, 0.78),
    "target": Color(0.90, 0.90, 0.90),
}
"""Colors, from 0 to 1."""
LABELS = {"cube": 1, "pads": 2, "arm": 3, "motors": 4, "clutter": 5, "target": 6}
"""Of the parts of each material, in segmentation."""
TILE = 0.05
"""Edge of a tile of the mat, m."""
CLUTTER = ((0.08, 0.27, 0.03), (0.34, -0.24, 0.02))
"""Places of the objects that lie about, and half of their edges, m."""


@dataclass(frozen=True)
class Part:
    """A box or a capsule along z that is only to be seen."""

    frame: Frame
    kind: Literal["box", "capsule"]
    position: tuple[float, float, float]
    size: tuple[float, float, float]
    """half edges of a box; radius, nothing and half of the straight length of a capsule"""
    material: str


def arm_parts(arm: Arm) -> tuple[Part, ...]:
    """Everything of the arm but the pads."""

    def rod(frame: Frame, radius: float, low: float, high: float, at: tuple[float, float] = (0.0, 0.0)) -> Part:
        return Part(frame, "capsule", (*at, 0.5 * (low + high)), (radius, 0.0, 0.5 * (high - low)), "arm")

    return (
        Part("base", "box", (-0.03, 0.0, 0.03), (0.045, 0.03, 0.03), "motors"),
        Part("shoulder", "box", (0.015, 0.0, 0.03), (0.025, 0.022, 0.03), "arm"),
        rod("upper", 0.014, 0.0, arm.upper),
        rod("fore", 0.013, 0.0, arm.fore),
        rod("wrist", 0.016, 0.0, 0.05),
        Part("gripper", "box", (0.0, 0.004, 0.02), (0.014, 0.028, 0.016), "motors"),
        rod("jaw", 0.006, 0.0, 0.04, (0.0, 0.005)),
    )


@dataclass(frozen=True)
class CameraPose:
    """Where a camera is and looks, in a frame of the arm or in the world."""

    frame: Frame | None
    position: tuple[float, float, float]
    ahead: tuple[float, float, float]
    """unit vector"""
    up: tuple[float, float, float]
    """unit vector"""
    field_of_view: float
    """of the square image, rad"""


CAMERAS = {
    "wrist": CameraPose("gripper", (-0.06, 0.0, 0.02), (0.4350, 0.0, 0.9004), (-0.9004, 0.0, 0.4350), 1.23),
    "scene": CameraPose(None, (0.58, -0.22, 0.34), (-0.7297, 0.4225, -0.5377), (-0.4653, 0.2694, 0.8432), 0.85),
}
"""At the gripper, looking between the fingertips; and beside the mat, looking at its middle."""
