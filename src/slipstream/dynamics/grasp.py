"""An arm that grasps a cube on a mat: the arm's servos, and a free cube under compliant contacts that are solved
implicitly.

A substep is one linear system for the six velocities of the cube and the rate of the jaw, whose contacts are those of
`contact`. It is solved twice: the second time normal forces and slip are those of the first solution.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

import jax
import jax.numpy as jnp

from ..core.geometry import Quat, Scalar, Vec3, sin_cos
from ..core.struct import struct
from .arm import GRAVITY, SO101, Arm, Gripper, Joints
from .contact import Material, Patch, Resistance, Twist, Wrench, box_patch, level_resistance, mat_patch, resistance

T = TypeVar("T")
FORCE_GROWTH = 2.0
"""By how much a normal force may grow within a substep before friction takes note of it."""


@struct
class CubeState:
    """Pose and motion of the cube."""

    position: Vec3
    attitude: Quat
    velocity: Vec3
    spin: Vec3  # rad/s, in the world


@struct
class NormalForces:
    """With how much the cube is pushed, N."""

    fixed: Scalar  # by the fixed finger
    jaw: Scalar
    mat: Scalar

    def __mul__(self, factor: float) -> "NormalForces":
        return NormalForces(self.fixed * factor, self.jaw * factor, self.mat * factor)


@struct
class GraspState:
    """An arm and a cube."""

    angles: Joints
    rates: Joints
    cube: CubeState
    push: Vec3  # N, of the cube on the gripper
    forces: "NormalForces"


@struct
class Cube:
    """What the cube of a world is like, and how it rubs."""

    half: Scalar  # half of an edge, m
    mass: Scalar  # kg
    pad_friction: Scalar
    mat_friction: Scalar
    pad_stiffness: Scalar = 1.0  # factor on stiffness and damping of the pads

    @property
    def inertia(self) -> Scalar:
        return self.mass * self.half * self.half * (2.0 / 3.0)


@dataclass(frozen=True)
class GraspModel:
    """The fast model of an arm, a cube and a mat."""

    arm: Arm = SO101
    """geometry, masses and servos"""
    pads: Material = Material(stiffness=30_000.0, damping=200.0, max_depth=1e-3, slip=1e-4)
    """between fingers and cube"""
    mat: Material = Material(stiffness=10_000.0, damping=0.0, max_depth=3e-3, slip=1e-4)
    """between cube and mat"""
    dt: float = 0.002
    """of a substep, s"""
    substeps: int = 10
    """of a step"""
    passes: int = 2
    """solutions of the contacts in a substep"""

    def start(self, gripper: Vec3, jaw: Scalar, cube: Vec3, attitude: Quat) -> GraspState:
        """At rest, with the gripper pointing down at a position and the jaw at an angle."""
        zero = 0.0 * cube.x
        rest = Vec3(zero, zero, zero)
        body = CubeState(cube, attitude, rest, rest)
        angles = self.arm.inverse_kinematics(gripper, jaw)
        return GraspState(angles, Joints(*[zero] * 6), body, rest, NormalForces(zero, zero, zero))

    def step(self, state: GraspState, targets: Joints, cube: Cube, gain: Scalar = 1.0) -> GraspState:
        """The state after all substeps; `gain` multiplies those of the arm's servos."""

        def tick(state: GraspState, _: None) -> tuple[GraspState, None]:
            return self.substep(state, targets, cube, gain), None

        return jax.lax.scan(tick, state, length=self.substeps)[0]

    def gripper(self, state: GraspState) -> Gripper:
        return self.arm.gripper(state.angles, state.rates)

    def substep(self, state: GraspState, targets: Joints, cube: Cube, gain: Scalar = 1.0) -> GraspState:
        arm, dt = self.arm, self.dt
        # The contacts are where things are; new rates first, and places follow at the end.
        rates = arm.step_rates(state.angles, state.rates, targets, gain, state.push, dt)
        # Friction compares the velocities of before for both: an arm that accelerates would look like slip.
        before, hand = arm.gripper(state.angles, state.rates), arm.gripper(state.angles, rates)
        contacts = self._contacts(state, hand, cube)
        motion = contacts.solve(self, state, before, hand, self._jaw_drive(state, targets), cube)
        return self._moved(state, rates, motion)

    def _contacts(self, state: GraspState, hand: Gripper, cube: Cube) -> "Contacts":
        arm, body = self.arm, state.cube
        axes, size = body.attitude.axes, Vec3(*arm.pad.parts)
        center = hand.position + hand.approach * arm.pad_center - hand.closing * (arm.half_gap + arm.pad.closing)
        fixed = Pad(center, (hand.approach, hand.closing, hand.across))
        sin, cos = sin_cos(state.angles.jaw)
        along, closing = hand.approach * cos + hand.closing * sin, hand.closing * cos - hand.approach * sin
        pivot = hand.position + hand.approach * arm.pivot[0] + hand.closing * arm.pivot[1]
        center = pivot + along * (arm.pad_center - arm.pivot[0]) + closing * (arm.jaw_face + arm.pad.closing)
        jaw = Pad(center, (along, closing, hand.across))

        def touch(pad: Pad) -> Patch:
            return box_patch(body.position, axes, cube.half, pad.center, pad.axes, size)

        # A loop, so that the most expensive function is compiled once.
        patches = touch(fixed), touch(jaw)
        mat = mat_patch(body.position.z, axes, cube.half)
        lever = Twist(hand.across.cross(body.position - pivot), hand.across)
        return jax.lax.optimization_barrier(Contacts(*patches, mat, lever))

    def _jaw_drive(self, state: GraspState, targets: Joints) -> tuple[Scalar, Scalar]:
        """Torque and damping of the jaw's servo in this substep, at its limit or not as it was."""
        servo = self.arm.jaw_servo
        drive = servo.kp * (targets.jaw - state.angles.jaw)
        torque = drive - servo.kv * state.rates.jaw
        free = jnp.abs(torque) < servo.max_torque
        limited = jnp.clip(torque, -servo.max_torque, servo.max_torque)
        damping = jnp.where(free, servo.kv + self.dt * servo.kp, 0.0) + servo.damping
        return jnp.where(free, drive, limited), damping

    def _moved(self, state: GraspState, rates: Joints, motion: "Motion") -> GraspState:
        """The state once all moves like that for a substep."""
        dt, body = self.dt, state.cube
        velocity, spin = motion.cube.velocity, motion.cube.spin
        attitude = turned(body.attitude, spin * dt)
        after = CubeState(body.position + velocity * dt, attitude, velocity, spin)
        rates = replace(rates, jaw=motion.jaw)
        angles = Joints(*(q + dt * v for q, v in zip(state.angles.parts, rates.parts, strict=True)))
        stopped, lowest = angles.jaw < self.arm.limits[5][0], self.arm.limits[5][0]
        angles = replace(angles, jaw=jnp.where(stopped, lowest, angles.jaw))
        rates = replace(rates, jaw=jnp.where(stopped, 0.0, rates.jaw))
        return GraspState(angles, rates, after, -motion.push, motion.forces)


@struct
class Motion:
    """A solution of a substep."""

    cube: Twist
    jaw: Scalar  # rad/s
    push: Vec3  # N, of both fingers on the cube
    forces: NormalForces


PassCarry = tuple[Motion, Twist, NormalForces]
"""From pass to pass: the motion, that of the fingers it is compared with, and the forces that friction may count."""


@struct
class Pad:
    """Where the box at the end of a finger is."""

    center: Vec3
    axes: tuple[Vec3, Vec3, Vec3]


@struct
class Contacts:
    """All patches of the cube."""

    fixed: Patch
    jaw: Patch
    mat: Patch
    lever: Twist  # of the jaw, where the cube's center is, for a rate of one

    def solve(
        self,
        model: GraspModel,
        state: GraspState,
        before: Gripper,
        hand: Gripper,
        drive: tuple[Scalar, Scalar],
        cube: Cube,
    ) -> Motion:
        """Velocities at the end of a substep, by as many passes as the model has."""
        body = state.cube
        now = Twist(body.velocity, body.spin)
        held = Twist(hand.velocity_at(body.position), hand.spin)
        was_held = Twist(before.velocity_at(body.position), before.spin)
        zero = 0.0 * state.rates.jaw
        rest = Vec3(zero, zero, zero)

        def one_pass(carry: PassCarry, _: None) -> tuple[PassCarry, None]:
            motion, finger, most = carry
            parts = self._resistances(model, motion, finger, most, cube)
            cube_motion, jaw = solve_motion(parts, now, held, self.lever, state.rates.jaw, drive, model, cube)
            fixed, moving, mat = parts
            fixed_wrench = fixed.push - fixed.times(cube_motion - held)
            jaw_wrench = moving.push - moving.times(cube_motion - held - self.lever * jaw)
            lift = mat.push.force.z - mat.times(cube_motion).force.z
            forces = NormalForces(
                self.fixed.frame.normal.dot(fixed_wrench.force), self.jaw.frame.normal.dot(jaw_wrench.force), lift
            )
            after = Motion(cube_motion, jaw, fixed_wrench.force + jaw_wrench.force, forces)
            return (after, held, forces * FORCE_GROWTH), None

        # A force is not known before a contact has been solved: what an impact would take to stop within a substep is
        # far more than it takes to push a light cube away, and friction of it would hold fast what slides.
        first = Motion(now, state.rates.jaw, rest, state.forces), was_held, state.forces * FORCE_GROWTH
        return jax.lax.scan(one_pass, first, length=model.passes)[0][0]

    def _resistances(
        self, model: GraspModel, motion: Motion, finger: Twist, most: NormalForces, cube: Cube
    ) -> tuple[Resistance, Resistance, Resistance]:
        """Of fixed finger, jaw and mat, if cube, fingers and jaw move like that."""
        against_fixed = motion.cube - finger
        against_jaw = against_fixed - self.lever * motion.jaw

        pads = model.pads.scaled(cube.pad_stiffness)

        def resist(patch: Patch, relative: Twist, most: Scalar) -> Resistance:
            return resistance(patch, relative, most, cube.pad_friction, pads, model.dt)

        fixed, jaw = resist(self.fixed, against_fixed, most.fixed), resist(self.jaw, against_jaw, most.jaw)
        mat = level_resistance(self.mat, motion.cube, most.mat, cube.mat_friction, model.mat, model.dt)
        return jax.lax.optimization_barrier((fixed, jaw, mat))


def stack(first: T, second: T) -> T:
    """Two trees as one whose leaves have a leading axis."""
    return jax.tree.map(lambda a, b: jnp.stack([jnp.asarray(a), jnp.asarray(b)]), first, second)


def unstack(tree: T) -> tuple[T, T]:
    return jax.tree.map(lambda x: x[0], tree), jax.tree.map(lambda x: x[1], tree)


def solve_motion(
    parts: tuple[Resistance, Resistance, Resistance],
    now: Twist,
    held: Twist,
    lever: Twist,
    jaw_rate: Scalar,
    drive: tuple[Scalar, Scalar],
    model: GraspModel,
    cube: Cube,
) -> tuple[Twist, Scalar]:
    """The twist of the cube and the rate of the jaw that balance all forces at the end of a substep.

    (M + dt Σ R) x = M x₀ + dt (forces + Σ R ẋ of the fingers), where the jaw's own motion is the seventh unknown.
    """
    dt, jaw_inertia = model.dt, model.arm.inertias[5]
    fixed, jaw, mat = parts
    torque, damping = drive
    by_jaw, held_by_jaw = jaw.times(lever), jaw.times(held)
    weight = Wrench(Vec3(0.0, 0.0, -GRAVITY * cube.mass), Vec3(0.0, 0.0, 0.0))
    total = fixed.push + jaw.push + mat.push + fixed.times(held) + held_by_jaw + weight
    force = now.velocity * cube.mass + total.force * dt
    moment = now.spin * cube.inertia + total.torque * dt
    jaw_moment = jaw_inertia * jaw_rate + dt * (torque - lever.dot(jaw.push) - lever.dot(held_by_jaw))
    linear = add_rows(*(part.linear.rows for part in parts))
    mixed = add_rows(*(part.mixed.rows for part in parts))
    angular = add_rows(*(part.angular.rows for part in parts))
    rows: list[list[Scalar]] = []
    for i in range(3):
        rows.append([linear[i].parts[j] * dt + (cube.mass if i == j else 0.0) for j in range(i + 1)])
    for i in range(3):
        spun = [angular[i].parts[j] * dt + (cube.inertia if i == j else 0.0) for j in range(i + 1)]
        rows.append([mixed[j].parts[i] * dt for j in range(3)] + spun)
    coupling = [-dt * x for x in (*by_jaw.force.parts, *by_jaw.torque.parts)]
    rows.append([*coupling, jaw_inertia + dt * (damping + lever.dot(by_jaw))])
    x = solve_positive(rows, [*force.parts, *moment.parts, jaw_moment])
    return Twist(Vec3(x[0], x[1], x[2]), Vec3(x[3], x[4], x[5])), x[6]


def add_rows(*matrices: tuple[Vec3, Vec3, Vec3]) -> list[Vec3]:
    """The rows of a sum of matrices."""
    return [reduce(Vec3.__add__, rows) for rows in zip(*matrices, strict=True)]


def solve_positive(rows: Sequence[Sequence[Scalar]], right: Sequence[Scalar]) -> list[Scalar]:
    """The solution of a positive definite system, given by the rows of its lower triangle, by L D Lᵀ."""
    size = len(right)
    lower: list[list[Scalar]] = [[] for _ in range(size)]
    pivots: list[Scalar] = []
    inverse: list[Scalar] = []
    for i in range(size):
        for j in range(i):
            entry = rows[i][j]
            for k in range(j):
                entry = entry - lower[i][k] * lower[j][k] * pivots[k]
            lower[i].append(entry * inverse[j])
        pivot = rows[i][i]
        for k in range(i):
            pivot = pivot - lower[i][k] * lower[i][k] * pivots[k]
        pivots.append(pivot)
        inverse.append(1.0 / pivot)
    x = list(right)
    for i in range(size):
        for k in range(i):
            x[i] = x[i] - lower[i][k] * x[k]
    x = [a * b for a, b in zip(x, inverse, strict=True)]
    for i in reversed(range(size)):
        for k in range(i + 1, size):
            x[i] = x[i] - lower[k][i] * x[k]
    return x


def turned(attitude: Quat, angle_w: Vec3) -> Quat:
    """The attitude after a small turn about an axis in the world, to second order, of unit length."""
    half = angle_w * 0.5
    q = Quat(1.0 - 0.5 * half.dot(half), half.x, half.y, half.z) * attitude
    scale = 1.5 - 0.5 * (q.w * q.w + q.x * q.x + q.y * q.y + q.z * q.z)
    return Quat(q.w * scale, q.x * scale, q.y * scale, q.z * scale)
