"""The MuJoCo model of the arm, the cube and the mat, from the same numbers as the fast model."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...dynamics.arm import GRAVITY, JOINTS, Arm, Link, Servo
from .looks import CAMERAS, MATERIALS, TILE, CameraPose, arm_parts

PAD_GEOMS = ("fixed_pad", "jaw_pad")
"""The pads by the order of their touch sensors."""


@dataclass(frozen=True)
class ContactSettings:
    """MuJoCo's settings of contacts and solver."""

    solref: tuple[float, float] = (0.004, 1.0)
    solimp: tuple[float, float, float] = (0.95, 0.99, 0.001)
    noslip_iterations: int = 3
    iterations: int = 100
    ls_iterations: int = 50
    cone: str = "elliptic"
    impratio: float = 10.0
    timestep: float = 0.002


REFERENCE = ContactSettings()
"""What everything is scored by: written down before anything was (docs/decisions/0019)."""
SOFTER = ContactSettings(solref=(0.01, 1.0), noslip_iterations=0)
"""As plausible: how far MuJoCo agrees with itself."""


@dataclass(frozen=True)
class WorldNumbers:
    """What differs between worlds."""

    half: float = 0.015
    """half of the cube's edge, m"""
    mass: float = 0.03
    """of the cube, kg"""
    pad_friction: float = 1.0
    mat_friction: float = 0.5
    servo_gain: float = 1.0
    """factor on kp and kv of the arm's servos"""


def numbers(values: Iterable[float]) -> str:
    return " ".join(f"{value:.9g}" for value in values)


def rgb(material: str) -> str:
    return numbers([float(part) for part in MATERIALS[material].parts])


def rgba(material: str) -> str:
    return f'rgba="{rgb(material)} 1"'


@dataclass(frozen=True)
class Appearance:
    """What MuJoCo's renderer draws. It changes nothing that moves."""

    visual: str = '<headlight ambient="0.35 0.35 0.35" diffuse="0 0 0" specular="0 0 0"/>'
    assets: str = (
        '<texture name="checker" type="2d" builtin="checker" width="64" height="64" '
        f'rgb1="{rgb("mat")}" rgb2="{rgb("other tiles")}"/>'
        f'<material name="mat" texture="checker" texrepeat="{0.5 / TILE:g} {0.5 / TILE:g}" texuniform="true"/>'
    )
    """textures and materials; one is called mat"""
    lights: str = '<light pos="0.6 0.4 1.3" dir="-0.4 -0.3 -0.87" directional="true" diffuse="0.65 0.65 0.65"/>'
    paint: Callable[[str], str] = rgba
    """the attribute of a geom that is of some material"""
    cameras: Mapping[str, CameraPose] = field(default_factory=lambda: CAMERAS)
    objects: str = ""
    """what only is to be seen, in the world"""


PLAIN = Appearance()


def model_xml(
    arm: Arm,
    world: WorldNumbers = WorldNumbers(),
    settings: ContactSettings = REFERENCE,
    look: Appearance = PLAIN,
) -> str:
    """The model of a world."""
    friction, pads = (f"{mu:.9g} 0.005 0.0001" for mu in (world.mat_friction, world.pad_friction))
    return f"""<mujoco model="lift">
<compiler angle="radian" autolimits="true"/>
<option timestep="{settings.timestep:g}" gravity="0 0 {-GRAVITY:g}" integrator="implicitfast" cone="{settings.cone}"
 impratio="{settings.impratio:g}" solver="Newton" iterations="{settings.iterations}"
 ls_iterations="{settings.ls_iterations}" noslip_iterations="{settings.noslip_iterations}">
 <flag eulerdamp="disable"/></option>
<default>
 <geom solref="{numbers(settings.solref)}" solimp="{numbers(settings.solimp)}" friction="{friction}" condim="4"/>
 <default class="look"><geom contype="0" conaffinity="0" group="2" mass="0"/></default>
 <default class="pad"><geom type="box" contype="1" conaffinity="2" friction="{pads}" {look.paint("pads")}/></default>
</default>
<visual>{look.visual}</visual>
<asset>{look.assets}</asset>
<worldbody>
 {look.lights}
 <geom name="mat" type="plane" size="1 1 0.1" contype="2" conaffinity="3" material="mat"/>
 {arm_xml(arm, look)}
 <body name="cube" pos="0.2 0 {world.half:.9g}"><freejoint name="cube"/>
  <geom name="cube" type="box" size="{numbers([world.half] * 3)}" mass="{world.mass:.9g}" contype="2" conaffinity="1"
   {look.paint("cube")}/></body>
 {camera_xml("scene", look.cameras["scene"])}
 {look.objects}
</worldbody>
<actuator>{actuators_xml(arm, world.servo_gain)}</actuator>
<sensor>{"".join(f'<touch site="{name}"/>' for name in PAD_GEOMS)}</sensor>
</mujoco>"""


def camera_xml(name: str, pose: CameraPose) -> str:
    """A camera that looks along its −z axis with y up in the image."""
    (ax, ay, az), (ux, uy, uz) = pose.ahead, pose.up
    right = ay * uz - az * uy, az * ux - ax * uz, ax * uy - ay * ux
    axes, fov = numbers((*right, *pose.up)), math.degrees(pose.field_of_view)
    return f'<camera name="{name}" pos="{numbers(pose.position)}" xyaxes="{axes}" fovy="{fov:g}"/>'


def arm_xml(arm: Arm, look: Appearance) -> str:
    """The bodies of the arm."""
    tip, pad = arm.hand - arm.roll, (arm.pad.across, arm.pad.closing, arm.pad.approach)

    def inertial(link: Link, forward: float = 0.0) -> str:
        place, inertia = f"{forward:g} 0 {link.center:g}", numbers(link.inertia)
        return f'<inertial pos="{place}" mass="{link.mass:g}" diaginertia="{inertia}"/>'

    def joint(k: int, axis: str, servo: Servo) -> str:
        return (
            f'<joint name="{JOINTS[k]}" axis="{axis}" range="{numbers(arm.limits[k])}" '
            f'damping="{servo.damping:g}" armature="{servo.armature:g}"/>'
        )

    def pad_geom(name: str, position: Sequence[float]) -> str:
        place = f'type="box" pos="{numbers(position)}"'
        return (
            f'<geom name="{name}" class="pad" {place} size="{numbers(pad)}" mass="{arm.jaw_mass:g}"/>'
            f'<site name="{name}" {place} size="{numbers([size + 0.002 for size in pad])}" group="4"/>'
        )

    def seen(frame: str) -> str:
        """What is to be seen in a frame, and the camera that is there."""
        parts = [
            f'<geom class="look" type="{part.kind}" pos="{numbers(part.position)}" '
            f'size="{numbers(part.size if part.kind == "box" else part.size[::2])}" {look.paint(part.material)}/>'
            for part in arm_parts(arm)
            if part.frame == frame
        ]
        return "".join(parts) + "".join(camera_xml(name, c) for name, c in look.cameras.items() if c.frame == frame)

    def body(name: str, position: Sequence[float], *content: str) -> str:
        return f'<body name="{name}" pos="{numbers(position)}">{seen(name)}{"".join(content)}</body>\n'

    servo, (out, up) = arm.servo, arm.shoulder
    fixed_pad = 0.0, -arm.half_gap - arm.pad.closing, tip + arm.pad_center
    jaw_pad = 0.0, arm.jaw_face + arm.pad.closing, arm.pad_center - arm.pivot[0]
    jaw = joint(5, "-1 0 0", arm.jaw_servo), pad_geom(PAD_GEOMS[1], jaw_pad)
    gripper = inertial(arm.gripper_link), joint(4, "0 0 1", servo), pad_geom(PAD_GEOMS[0], fixed_pad)
    wrist = inertial(arm.wrist_link), joint(3, "0 1 0", servo)
    fore = inertial(arm.fore_link), joint(2, "0 1 0", servo)
    upper = inertial(arm.upper_link), joint(1, "0 1 0", servo)
    shoulder = inertial(arm.shoulder_link, 0.02), joint(0, "0 0 1", servo)
    chain = body("jaw", (0.0, arm.pivot[1], tip + arm.pivot[0]), *jaw)
    for name, position, parts in (
        ("gripper", (0.0, 0.0, arm.roll), gripper),
        ("wrist", (0.0, 0.0, arm.fore), wrist),
        ("fore", (0.0, 0.0, arm.upper), fore),
        ("upper", (out, 0.0, up), upper),
        ("shoulder", (arm.base[0], 0.0, arm.base[1]), shoulder),
    ):
        chain = body(name, position, *parts, chain)
    return body("base", (arm.base[0], 0.0, 0.0)) + chain


def actuators_xml(arm: Arm, gain: float) -> str:
    """A position servo for each joint."""
    rows = []
    for name, limits in zip(JOINTS, arm.limits, strict=True):
        servo, factor = (arm.jaw_servo, 1.0) if name == "jaw" else (arm.servo, gain)
        rows.append(
            f'<position name="{name}" joint="{name}" kp="{servo.kp * factor:.9g}" kv="{servo.kv * factor:.9g}" '
            f'forcerange="{-servo.max_torque:g} {servo.max_torque:g}" ctrlrange="{numbers(limits)}"/>'
        )
    return "".join(rows)
