"""An arm in the proportions of an SO-101: five position servos, and a gripper of a fixed finger and a jaw that turns.

At angles of zero the arm stands upright over its base. Pan turns about the vertical; lift, elbow and flex about the
axis to the left; roll about the gripper's own axis. The gripper's frame: `approach` points from the wrist to the
fingertips, `closing` from the fixed finger to the jaw, `across` completes it.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from ..core.geometry import Scalar, Vec3, arctan2, sin_cos
from ..core.struct import struct

GRAVITY = 9.81
JOINTS = ("pan", "lift", "elbow", "flex", "roll", "jaw")


@struct
class Joints:
    """One number for each joint."""

    pan: Scalar
    lift: Scalar
    elbow: Scalar
    flex: Scalar
    roll: Scalar
    jaw: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar, Scalar]:
        return self.pan, self.lift, self.elbow, self.flex, self.roll, self.jaw


@struct
class Gripper:
    """Pose and motion of the gripper. Its point is the tool center point: between the fingertips."""

    position: Vec3
    approach: Vec3  # unit vectors
    closing: Vec3
    across: Vec3
    velocity: Vec3
    spin: Vec3  # rad/s, in the world

    def velocity_at(self, point: Vec3) -> Vec3:
        """The velocity of a point that moves with the gripper."""
        return self.velocity + self.spin.cross(point - self.position)


@dataclass(frozen=True)
class Servo:
    """A position servo: the torque kp (target − q) − kv q̇, limited, on a damped joint."""

    kp: float
    """N·m/rad"""
    kv: float
    """N·m·s/rad"""
    max_torque: float
    """N·m"""
    damping: float
    """friction of the joint, N·m·s/rad"""
    armature: float = 0.028
    """inertia of the motor behind its gears, kg·m²"""

    def step(
        self, angle: Scalar, rate: Scalar, target: Scalar, gain: Scalar, inertia: float, load: Scalar, dt: float
    ) -> Scalar:
        """The rate after `dt` under a torque `load` from outside; `gain` multiplies kp and kv, which are implicit."""
        kp, kv = self.kp * gain, self.kv * gain
        drive, share = kp * (target - angle), dt / inertia
        after = (rate + share * (drive + load)) / (1.0 + share * (kv + self.damping))
        torque = drive - kv * after
        limited = jnp.clip(torque, -self.max_torque, self.max_torque)
        saturated = (rate + share * (limited + load)) * (1.0 / (1.0 + share * self.damping))
        return jnp.where(jnp.abs(torque) > self.max_torque, saturated, after)


@dataclass(frozen=True)
class Link:
    """Mass of a link and where its center is along it, from its joint."""

    mass: float
    """kg"""
    center: float
    """m"""
    inertia: tuple[float, float, float]
    """about its center, kg·m²"""


@dataclass(frozen=True)
class Pad:
    """The box at the end of a finger that touches things."""

    approach: float = 0.026
    """half of its length along the finger, m"""
    closing: float = 0.003
    """half of its thickness, m"""
    across: float = 0.007
    """half of its width, m"""

    @property
    def parts(self) -> tuple[float, float, float]:
        return self.approach, self.closing, self.across


@dataclass(frozen=True)
class Arm:
    """The numbers of the arm, for every model of it. Lengths are in m."""

    base: tuple[float, float] = (0.0388, 0.0624)
    """where the pan joint is: forward and up from the arm's origin"""
    shoulder: tuple[float, float] = (0.0304, 0.0542)
    """the lift joint: outward and up from the pan joint"""
    upper: float = 0.116
    """from the lift joint to the elbow"""
    fore: float = 0.135
    """from the elbow to the flex joint"""
    hand: float = 0.159
    """from the flex joint to the tool center point"""
    roll: float = 0.061
    """from the flex joint to where the gripper begins to roll"""
    pad: Pad = Pad()
    """of both fingers"""
    pad_center: float = -0.014
    """of the pads along the approach, from the tool center point"""
    half_gap: float = 0.015
    """half of the gap between the pads at a jaw angle of zero"""
    pivot: tuple[float, float] = (-0.076, 0.013)
    """the jaw joint: along approach and closing, from the tool center point"""
    jaw_face: float = 0.002
    """the jaw's inner face along closing, from the jaw joint"""
    servo: Servo = Servo(kp=200.0, kv=4.7, max_torque=3.35, damping=0.3)
    """of the five joints of the arm"""
    jaw_servo: Servo = Servo(kp=20.0, kv=1.4, max_torque=1.0, damping=0.1)
    """of the jaw"""
    shoulder_link: Link = Link(0.100, 0.025, (8e-5, 8e-5, 3e-5))
    """between pan and lift"""
    upper_link: Link = Link(0.103, 0.090, (1.4e-4, 1.4e-4, 4e-5))
    """between lift and elbow"""
    fore_link: Link = Link(0.104, 0.098, (1.5e-4, 1.5e-4, 3e-5))
    """between elbow and flex"""
    wrist_link: Link = Link(0.079, 0.035, (3e-5, 3e-5, 2e-5))
    """between flex and roll"""
    gripper_link: Link = Link(0.087, 0.025, (3e-5, 4e-5, 3e-5))
    """beyond roll, with the fixed finger"""
    jaw_mass: float = 0.012
    """kg"""
    inertias: tuple[float, float, float, float, float, float] = (0.037, 0.036, 0.034, 0.029, 0.028, 0.0281)
    """that each joint turns with the arm over the mat, motor included, kg·m²; the model is a servo for each joint"""
    limits: tuple[tuple[float, float], ...] = (
        (-1.92, 1.92), (-1.75, 1.75), (-0.1, 3.0), (-0.5, 3.2), (-2.7, 2.8), (-0.4, 1.2),
    )  # fmt: skip
    """lowest and highest angle of each joint, rad"""
    jaw_open: float = 0.6
    """angle that the open jaw is commanded, rad"""
    jaw_closed: float = -0.38
    """angle that the closed jaw is commanded, rad: beyond any cube, so that the servo's torque is what holds it"""

    @property
    def lift_height(self) -> float:
        """Of the lift joint above the mat."""
        return self.base[1] + self.shoulder[1]

    @property
    def gravity_moments(self) -> tuple[float, float, float]:
        """Largest torque of gravity about lift, elbow and flex from the links that each of them moves alone, N·m."""
        upper, fore, wrist, gripper = self.upper_link, self.fore_link, self.wrist_link, self.gripper_link
        end = wrist.mass + gripper.mass + self.jaw_mass
        hand = wrist.mass * wrist.center + gripper.mass * (self.roll + gripper.center)
        hand += self.jaw_mass * (self.hand + self.pad_center)
        return (
            GRAVITY * (upper.mass * upper.center + (fore.mass + end) * self.upper),
            GRAVITY * (fore.mass * fore.center + end * self.fore),
            GRAVITY * hand,
        )

    def gripper(self, angles: Joints, rates: Joints) -> Gripper:
        """Where the gripper is, and how it moves."""
        plane = self.plane(angles)
        (sin_pan, cos_pan), (sin_roll, cos_roll) = plane.pan, sin_cos(angles.roll)
        (s1, c1), (s2, c2), (s3, c3) = plane.upper, plane.fore, plane.hand
        tilt_fore = rates.lift + rates.elbow
        tilt_hand = tilt_fore + rates.flex
        moved = self.upper * c1 * rates.lift + self.fore * c2 * tilt_fore + self.hand * c3 * tilt_hand
        height = self.lift_height + self.upper * c1 + self.fore * c2 + self.hand * c3
        sunk = self.upper * s1 * rates.lift + self.fore * s2 * tilt_fore + self.hand * s3 * tilt_hand
        zero = 0.0 * cos_pan
        side, up = Vec3(-sin_pan, cos_pan, zero), Vec3(zero, zero, zero + 1.0)
        approach = Vec3(s3 * cos_pan, s3 * sin_pan, c3)
        level = Vec3(c3 * cos_pan, c3 * sin_pan, -s3)
        closing = side * cos_roll - level * sin_roll
        return Gripper(
            position=Vec3(self.base[0] + plane.reach * cos_pan, plane.reach * sin_pan, height),
            approach=approach,
            closing=closing,
            across=approach.cross(closing),
            velocity=Vec3(cos_pan, sin_pan, zero) * moved + side * (plane.reach * rates.pan) - up * sunk,
            spin=side * tilt_hand + approach * rates.roll + up * rates.pan,
        )

    def plane(self, angles: Joints) -> "ArmPlane":
        """Sines and cosines of the links in the vertical plane that the arm moves in."""
        fore = angles.lift + angles.elbow
        upper_tilt, fore_tilt, hand_tilt = sin_cos(angles.lift), sin_cos(fore), sin_cos(fore + angles.flex)
        reach = self.shoulder[0] + self.upper * upper_tilt[0] + self.fore * fore_tilt[0] + self.hand * hand_tilt[0]
        return ArmPlane(sin_cos(angles.pan), upper_tilt, fore_tilt, hand_tilt, reach)

    def load(self, angles: Joints, force: Vec3) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        """Torques about pan, lift, elbow and flex of gravity, and of a force at the tool center point."""
        plane = self.plane(angles)
        sin_pan, cos_pan = plane.pan
        outward, sideward = force.x * cos_pan + force.y * sin_pan, force.y * cos_pan - force.x * sin_pan
        torque, torques = 0.0 * outward, []
        links = zip((self.upper, self.fore, self.hand), (plane.upper, plane.fore, plane.hand), strict=True)
        for (length, (sin, cos)), moment in reversed(list(zip(links, self.gravity_moments, strict=True))):
            torque = torque + length * (cos * outward - sin * force.z) + moment * sin
            torques.append(torque)
        return plane.reach * sideward, *reversed(torques)  # pyright: ignore[reportReturnType]

    def step_rates(
        self, angles: Joints, rates: Joints, targets: Joints, gain: Scalar, force: Vec3, dt: float
    ) -> Joints:
        """Rates of the arm's joints after `dt` under a force at the tool center point; the jaw's rate stays as it was.

        Each joint is a servo of its own inertia; what joints do to each other but for gravity is neglected.
        """
        loads = *self.load(angles, force), 0.0
        joints = zip(angles.parts, rates.parts, targets.parts, self.inertias, loads, strict=False)
        moved = [self.servo.step(q, v, u, gain, inertia, load, dt) for q, v, u, inertia, load in joints]
        pan, lift, elbow, flex, roll = moved
        return Joints(pan, lift, elbow, flex, roll, rates.jaw)

    def inverse_kinematics(self, target: Vec3, jaw: Scalar) -> Joints:
        """Angles that bring the tool center point to `target` with the gripper pointing down and not rolled.

        In closed form. A target out of reach is replaced by the nearest in its direction from the lift joint.
        """
        forward = target.x - self.base[0]
        pan = arctan2(target.y, forward)
        out = jnp.sqrt(forward * forward + target.y * target.y + 1e-12) - self.shoulder[0]
        up = target.z + self.hand - self.lift_height
        longest = 0.998 * (self.upper + self.fore)
        square = jnp.clip(out * out + up * up, 0.04**2, longest**2)
        cos = (square - self.upper**2 - self.fore**2) * (0.5 / (self.upper * self.fore))
        cos = jnp.clip(cos, -0.98, 1.0)
        sin = jnp.sqrt(jnp.maximum(1.0 - cos * cos, 1e-9))
        elbow = arctan2(sin, cos)
        lift = arctan2(out, up) - arctan2(self.fore * sin, self.upper + self.fore * cos)
        return Joints(pan, lift, elbow, math.pi - lift - elbow, 0.0 * lift, jaw)


@struct
class ArmPlane:
    """Sine and cosine of the pan angle and of each link's tilt from the vertical, and how far out the gripper is."""

    pan: tuple[Scalar, Scalar]
    upper: tuple[Scalar, Scalar]
    fore: tuple[Scalar, Scalar]
    hand: tuple[Scalar, Scalar]
    reach: Scalar  # m, from the pan joint to the tool center point


SO101 = Arm()
