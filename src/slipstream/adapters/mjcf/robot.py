"""A robot at a moment: its state, and the poses, velocities and sensor readings that follow from it.

The kinematics are ours and the same for every engine, so what a task asks of a robot costs only what it asks for, and
belongs to the very moment of its state. Sensors are MuJoCo's: they were read one physics step before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.geometry import Quat, Scalar, Vec3
from ...core.struct import struct
from .model import Model

FREE, BALL, SLIDE, HINGE = range(4)
"""MuJoCo's types of joints."""
ORIGIN, UPRIGHT, ZERO = Vec3(0.0, 0.0, 0.0), Quat(1.0, 0.0, 0.0, 0.0), Vec3(0.0, 0.0, 0.0)


@struct
class RobotState:
    """What physics moves: MuJoCo's state, as it names it."""

    qpos: Float[Array, "*b nq"]
    qvel: Float[Array, "*b nv"]
    act: Float[Array, "*b na"]
    ctrl: Float[Array, "*b nu"]  # of the last step
    mocap_pos: Float[Array, "*b nmocap 3"]
    mocap_quat: Float[Array, "*b nmocap 4"]
    sensordata: Float[Array, "*b nsensordata"]


@dataclass(frozen=True)
class Pose:
    """Where a body, site, geom or camera is, in the world."""

    position: Vec3
    attitude: Quat


@dataclass(frozen=True)
class Motion:
    """How a body moves: the velocity of its origin, and its angular velocity, both in the world."""

    velocity: Vec3
    angular_velocity: Vec3

    def at(self, arm: Vec3) -> "Motion":
        """The motion of a point of the body, at `arm` from its origin."""
        return Motion(self.velocity + self.angular_velocity.cross(arm), self.angular_velocity)


class Part:
    """A body, site, geom or camera of a robot at a moment."""

    def __init__(self, pose: Pose, motion: Callable[[], Motion]) -> None:
        self.position, self.attitude = pose.position, pose.attitude
        self._find = motion

    @cached_property
    def _motion(self) -> Motion:
        return self._find()

    @property
    def velocity_w(self) -> Vec3:
        """Velocity in the world, m/s."""
        return self._motion.velocity

    @property
    def velocity_b(self) -> Vec3:
        """Velocity in its own frame, m/s."""
        return self.attitude.unrotate(self._motion.velocity)

    @property
    def angular_velocity_w(self) -> Vec3:
        """Angular velocity in the world, rad/s."""
        return self._motion.angular_velocity

    @property
    def angular_velocity_b(self) -> Vec3:
        """Angular velocity in its own frame, rad/s."""
        return self.attitude.unrotate(self._motion.angular_velocity)


class Robot:
    """What a task can ask of a robot at a moment. Names are those of the MJCF file."""

    def __init__(self, model: Model, state: RobotState, world: Any = None, time: Scalar = 0.0) -> None:
        self.model, self.state, self.world = model, state, world
        self.time = time
        """Seconds since the start of the episode."""
        self._poses: dict[int, Pose] = {}
        self._motions: dict[int, Motion] = {}

    @property
    def qpos(self) -> Float[Array, "nq"]:
        return self.state.qpos

    @property
    def qvel(self) -> Float[Array, "nv"]:
        return self.state.qvel

    @property
    def act(self) -> Float[Array, "na"]:
        return self.state.act

    @property
    def ctrl(self) -> Float[Array, "nu"]:
        """Controls of the last step."""
        return self.state.ctrl

    def body(self, name: str | int) -> Part:
        """The body of that name or number."""
        number = name if isinstance(name, int) else self.model.index("body", name)
        return Part(self._pose(number), lambda: self._motion(number))

    def site(self, name: str) -> Part:
        return self._part("site", name)

    def geom(self, name: str) -> Part:
        return self._part("geom", name)

    def camera(self, name: str) -> Part:
        return self._part("cam", name, "camera")

    def joint(self, name: str) -> tuple[Any, Any]:
        """Position and velocity of a joint: numbers of a hinge or slide, arrays of a ball or free joint."""
        mj, number = self.model.mj, self.model.index("joint", name)
        q, v, kind = int(mj.jnt_qposadr[number]), int(mj.jnt_dofadr[number]), int(mj.jnt_type[number])
        if kind in (SLIDE, HINGE):
            return self.qpos[q], self.qvel[v]
        sizes = (7, 6) if kind == FREE else (4, 3)
        return self.qpos[q : q + sizes[0]], self.qvel[v : v + sizes[1]]

    def sensor(self, name: str) -> Any:
        """What a sensor said: a number, or an array if it says several."""
        mj, number = self.model.mj, self.model.index("sensor", name)
        first, size = int(mj.sensor_adr[number]), int(mj.sensor_dim[number])
        return self.state.sensordata[first] if size == 1 else self.state.sensordata[first : first + size]

    # Kinematics

    def part(self, kind: str, number: int) -> Part:
        """The site, geom or camera (`site`, `geom`, `cam`) of that number."""
        mj = self.model.mj
        body = int(getattr(mj, f"{kind}_bodyid")[number])
        base = self._pose(body)
        offset = Vec3(*map(float, getattr(mj, f"{kind}_pos")[number]))
        turn = Quat(*map(float, getattr(mj, f"{kind}_quat")[number]))
        arm = base.attitude.rotate(offset)
        pose = Pose(base.position + arm, base.attitude * turn)
        return Part(pose, lambda: self._motion(body).at(arm))

    def _part(self, kind: str, name: str, words: str = "") -> Part:
        return self.part(kind, self.model.index(words or kind, name))

    def _joints(self, body: int) -> list[int]:
        first, count = int(self.model.mj.body_jntadr[body]), int(self.model.mj.body_jntnum[body])
        return list(range(first, first + count))

    def _vec(self, array: Array, first: int) -> Vec3:
        return Vec3(array[first], array[first + 1], array[first + 2])

    def _quat(self, array: Array, first: int) -> Quat:
        return Quat(array[first], array[first + 1], array[first + 2], array[first + 3]).unit()

    def _pose(self, body: int) -> Pose:
        """Of a body, from those it hangs on."""
        if body == 0:
            return Pose(ORIGIN, UPRIGHT)
        if body not in self._poses:
            pose = self._rest(body)
            for joint in self._joints(body):
                pose = self._moved(pose, joint)
            self._poses[body] = pose
        return self._poses[body]

    def _rest(self, body: int) -> Pose:
        """Of a body before its joints move it."""
        mj = self.model.mj
        mocap = int(mj.body_mocapid[body])
        if mocap >= 0:
            return Pose(self._vec(self.state.mocap_pos[mocap], 0), self._quat(self.state.mocap_quat[mocap], 0))
        base = self._pose(int(mj.body_parentid[body]))
        offset = base.attitude.rotate(Vec3(*map(float, mj.body_pos[body])))
        return Pose(base.position + offset, base.attitude * Quat(*map(float, mj.body_quat[body])))

    def _moved(self, pose: Pose, joint: int) -> Pose:
        """The pose after one joint more."""
        mj, qpos = self.model.mj, self.qpos
        kind, first = int(mj.jnt_type[joint]), int(mj.jnt_qposadr[joint])
        if kind == FREE:
            return Pose(self._vec(qpos, first), self._quat(qpos, first + 3))
        axis = Vec3(*map(float, mj.jnt_axis[joint]))
        if kind == SLIDE:
            way = qpos[first] - float(mj.qpos0[first])
            return Pose(pose.position + pose.attitude.rotate(axis) * way, pose.attitude)
        turn = self._quat(qpos, first) if kind == BALL else _turn(axis, qpos[first] - float(mj.qpos0[first]))
        attitude = pose.attitude * turn
        offset = Vec3(*map(float, mj.jnt_pos[joint]))
        return Pose(pose.position + pose.attitude.rotate(offset) - attitude.rotate(offset), attitude)

    def _motion(self, body: int) -> Motion:
        """Of a body, joint by joint as its pose."""
        mj = self.model.mj
        if body == 0 or mj.body_mocapid[body] >= 0:
            return Motion(ZERO, ZERO)
        if body not in self._motions:
            parent, pose = int(mj.body_parentid[body]), self._rest(body)
            motion = self._motion(parent).at(pose.position - self._pose(parent).position)
            for joint in self._joints(body):
                after = self._moved(pose, joint)
                motion, pose = self._pushed(motion, pose, after, joint), after
            self._motions[body] = motion
        return self._motions[body]

    def _pushed(self, motion: Motion, pose: Pose, after: Pose, joint: int) -> Motion:
        """The motion with that of one joint more, which takes the body from one pose to another."""
        mj, qvel = self.model.mj, self.qvel
        kind, first = int(mj.jnt_type[joint]), int(mj.jnt_dofadr[joint])
        if kind == FREE:
            return Motion(self._vec(qvel, first), after.attitude.rotate(self._vec(qvel, first + 3)))
        axis = pose.attitude.rotate(Vec3(*map(float, mj.jnt_axis[joint])))
        if kind == SLIDE:
            carried = motion.at(after.position - pose.position)
            return Motion(carried.velocity + axis * qvel[first], carried.angular_velocity)
        spin = after.attitude.rotate(self._vec(qvel, first)) if kind == BALL else axis * qvel[first]
        anchor = pose.position + pose.attitude.rotate(Vec3(*map(float, mj.jnt_pos[joint])))
        held = motion.at(anchor - pose.position)
        return Motion(held.velocity, held.angular_velocity + spin).at(after.position - anchor)


def _turn(axis: Vec3, angle: Scalar) -> Quat:
    """The rotation about a unit vector."""
    sin, cos = jnp.sin(angle * 0.5), jnp.cos(angle * 0.5)
    return Quat(cos, axis.x * sin, axis.y * sin, axis.z * sin)


def numbers(array: np.ndarray) -> Array:
    """MuJoCo's numbers, which are of double precision, as ours."""
    return jnp.asarray(np.asarray(array, np.float32))
