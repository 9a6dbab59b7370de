"""A rover with four steered wheels: it drives straight, sideways, along curves, and turns on the spot."""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Int

from ..core.geometry import Scalar, Vec2, sin_cos, wrap_angle
from ..core.struct import struct

CRAB, ACKERMANN, SPIN = 0, 1, 2
"""Steering modes: all wheels parallel; rear wheels opposite to the front ones; wheels tangential, on the spot."""
Mode = Int[Array, ""] | int


@struct
class Wheels:
    """One number for each wheel."""

    front_left: Scalar
    front_right: Scalar
    rear_left: Scalar
    rear_right: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        return self.front_left, self.front_right, self.rear_left, self.rear_right


@struct
class RoverState:
    """Pose, wheel angles and wheel speeds. World axes are east and north, body axes forward and left."""

    position: Vec2  # m
    yaw: Scalar  # rad, counter-clockwise from east
    steering: Scalar  # rad, the steering angle that the wheels turn to
    angles: Wheels  # rad, of each wheel, counter-clockwise from forward
    left: Scalar  # m/s, speed of the left wheels over ground if they do not slip
    right: Scalar

    @classmethod
    def at(cls, position: Vec2, yaw: Scalar) -> "RoverState":
        """At rest, with the wheels straight."""
        zero = 0.0 * yaw
        return cls(position, yaw, zero, Wheels(zero, zero, zero, zero), zero, zero)


@struct
class Ground:
    """What the ground does to a rover."""

    slip: Scalar  # fraction of the wheel speed that is lost
    slide: Vec2  # m to the east and north for each m driven: the pull of a slope


@dataclass(frozen=True)
class Rover:
    """A four-wheel-steered rover. It has no mass: wheels reach their speeds and angles with a lag."""

    half_length: float = 0.16
    """half of the wheelbase, m"""
    half_width: float = 0.14
    """half of the track, m"""
    radius: float = 0.22
    """radius of the circle that stands for the body in collisions, m"""
    max_speed: float = 0.8
    """of the wheels, m/s"""
    speed_time_constant: float = 0.1
    """of the wheel speeds, s"""
    max_steering: float = math.pi / 2
    """largest steering angle in crab mode, rad"""
    max_curve_steering: float = math.radians(45.0)
    """largest angle of the front wheels in Ackermann mode, rad"""
    max_steering_speed: float = math.radians(360.0)
    """of the steering motors, rad/s"""

    def steer(self, rover: RoverState, change: Scalar) -> RoverState:
        """The rover with its steering angle changed by so many radians, within its limits."""
        return replace(rover, steering=jnp.clip(rover.steering + change, -self.max_steering, self.max_steering))

    def step(self, rover: RoverState, throttle: Scalar, mode: Mode, ground: Ground, dt: float) -> RoverState:
        """The rover after `dt`, by an Euler step; `throttle` is a fraction of the top speed.

        On the spot, a positive throttle turns to the left.
        """
        turn = self.max_steering_speed * dt
        pairs = zip(rover.angles.parts, self._target_angles(rover.steering, mode).parts, strict=True)
        angles = Wheels(*[angle + jnp.clip(target - angle, -turn, turn) for angle, target in pairs])
        speed = throttle * self.max_speed
        reached = 1.0 - math.exp(-dt / self.speed_time_constant)
        left = rover.left + (jnp.where(mode == SPIN, -speed, speed) - rover.left) * reached
        right = rover.right + (speed - rover.right) * reached
        moved = replace(rover, angles=angles, left=left, right=right)
        velocity, yaw_rate = self.twist(moved)
        grip = 1.0 - ground.slip
        driven = velocity.turned(rover.yaw) * grip
        position = rover.position + (driven + ground.slide * driven.norm()) * dt
        return replace(moved, position=position, yaw=wrap_angle(rover.yaw + grip * yaw_rate * dt))

    def twist(self, rover: RoverState) -> tuple[Vec2, Scalar]:
        """Velocity (forward and left) and yaw rate that fit the wheels best, if none slips.

        The least squares over the velocities vᵢ of wheels at rᵢ:  v = Σ vᵢ / 4,  ω = Σ rᵢ × vᵢ / Σ |rᵢ|².
        """
        a, b = self.half_length, self.half_width
        places = Vec2(a, b), Vec2(a, -b), Vec2(-a, b), Vec2(-a, -b)
        speeds = rover.left, rover.right, rover.left, rover.right
        velocity, moment = Vec2(0.0, 0.0), 0.0
        for place, angle, speed in zip(places, rover.angles.parts, speeds, strict=True):
            sin, cos = sin_cos(angle)
            wheel = Vec2(speed * cos, speed * sin)
            velocity, moment = velocity + wheel, moment + place.cross(wheel)
        return velocity * 0.25, moment / (4.0 * (a * a + b * b))

    def _target_angles(self, steering: Scalar, mode: Mode) -> Wheels:
        """The angles that the wheels turn to."""
        curve = steering * (self.max_curve_steering / self.max_steering)
        rear = jnp.where(mode == CRAB, steering, -curve)
        front = jnp.where(mode == CRAB, steering, curve)
        tangent = math.atan2(self.half_length, self.half_width)
        spin = mode == SPIN
        return Wheels(
            jnp.where(spin, -tangent, front),
            jnp.where(spin, tangent, front),
            jnp.where(spin, tangent, rear),
            jnp.where(spin, -tangent, rear),
        )
