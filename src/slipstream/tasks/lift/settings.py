"""Groups of settings of the lift."""

from dataclasses import dataclass, fields
from typing import Literal

from ...core.errors import require_choice
from ...sensors.camera import CameraSettings

VIEWS = ("wrist", "scene", "both")


@dataclass(frozen=True)
class LiftCamera(CameraSettings):
    """The camera that a policy sees by."""

    resolution: int = 84
    """width and height of the square image, pixels"""
    interval: int = 1
    """control steps from one image to the next"""
    view: Literal["wrist", "scene", "both"] = "wrist"
    """at the wrist, beside the mat, or both, one image above the other"""
    frame_stack: int = 1
    """images of the last steps that are seen together, one above the other, 1 to 3"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("view", self.view, VIEWS)
        if not 1 <= self.frame_stack <= 3:
            raise ValueError(f"frame_stack is 1 to 3, not {self.frame_stack}")

    @property
    def views(self) -> tuple[str, ...]:
        return ("wrist", "scene") if self.view == "both" else (self.view,)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of all images together."""
        if not self.on:
            return None
        images = len(self.views) * self.frame_stack
        return (self.resolution * images, self.resolution, 3 if self.kind == "rgb" else 1)


@dataclass(frozen=True)
class LiftReward:
    """Weights of the terms whose sum is the reward of a step.

    The success bonus must be worth more than to go on for ever: more than all terms of a step together over one minus
    the discount factor.
    """

    reach: float = 0.1
    """for the tool center point near the cube"""
    grasp: float = 0.15
    """while both fingers push the cube"""
    lift: float = 0.6
    """in proportion to the height of the grasped cube"""
    high: float = 0.3
    """while the grasped cube is high enough; on the way to a target, for the cube near it"""
    action_rate: float = -0.01
    """times the square of the change of action"""
    success: float = 60.0
    """once, at success"""
    lost: float = 0.0
    """once, if the cube is knocked off the mat"""


@dataclass(frozen=True)
class LiftFactors:
    """Factors on parameters of the fast model, as `slipstream fit` finds them; the reference has none of them."""

    servo_gain: float = 1.0
    """of kp and kv of the arm's servos"""
    pad_friction: float = 1.0
    """between fingers and cube"""
    mat_friction: float = 1.0
    """between cube and mat"""
    pad_stiffness: float = 1.0
    """of the contact between fingers and cube, and of its damping"""


@dataclass(frozen=True)
class LiftRandomization:
    """Ranges of domain randomization; 0 turns a term off."""

    cube_size: float = 0.1
    """largest relative change of the cube's edges"""
    mass: float = 0.3
    """largest relative change of the cube's mass"""
    friction: float = 0.2
    """largest relative change of the friction coefficients of pads and mat, each of its own"""
    pad_stiffness: float = 0.0
    """largest relative change of the stiffness and damping of the pads in the fast model: at the edge of what holds,
    contacts that differ a little decide"""
    servo_gain: float = 0.1
    """largest relative change of the servos' gains"""
    max_action_delay: int = 1
    """largest delay of an action, in steps"""
    color: float = 0.25
    """largest change of each color channel of everything that is seen, from 0 to 1"""
    light: float = 0.3
    """largest relative change of the brightness of the light, and change of its direction"""
    camera_position: float = 0.005
    """largest offset of a camera along each axis, m"""
    camera_angle: float = 0.03
    """largest turn of a camera about each axis, rad"""
    field_of_view: float = 0.03
    """largest relative change of the cameras' fields of view"""
    pixel_noise: float = 0.02
    """largest standard deviation of the noise of a color from 0 to 1"""
    clutter: float = 1.0
    """probability of each of the objects that lie about out of reach"""

    def __post_init__(self) -> None:
        if min(getattr(self, field.name) for field in fields(self)) < 0.0:
            raise ValueError("ranges of randomization are not negative")
        if (
            max(
                self.cube_size,
                self.mass,
                self.friction,
                self.servo_gain,
                self.pad_stiffness,
                self.light,
                self.field_of_view,
            )
            >= 1.0
        ):
            raise ValueError("a relative randomization lies between 0 and 1")


NO_RANDOMIZATION = LiftRandomization(
    cube_size=0.0, mass=0.0, friction=0.0, pad_stiffness=0.0, servo_gain=0.0, max_action_delay=0, color=0.0, light=0.0,
    camera_position=0.0, camera_angle=0.0, field_of_view=0.0, pixel_noise=0.0, clutter=0.0,
)  # fmt: skip
"""Every world is the nominal one."""
