"""Surface vessels: a hull with two thrusters by Fossen's equations, and a point that is commanded."""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.geometry import Scalar, Vec2, sin_cos, wrap_angle
from ..core.struct import struct


@struct
class VesselState:
    """Pose and motion of a vessel. World axes are east and north, body axes forward and left, yaw counter-clockwise."""

    position: Vec2  # m
    yaw: Scalar  # rad
    velocity_b: Vec2  # m/s over ground, forward and left
    yaw_rate: Scalar  # rad/s
    left: Scalar  # thrust of the left thruster, N; of a `PointVessel`, see `speed`
    right: Scalar  # thrust of the right thruster, N

    @classmethod
    def at(cls, position: Vec2, yaw: Scalar) -> "VesselState":
        """At rest, with the thrusters off."""
        zero = 0.0 * yaw
        return cls(position, yaw, Vec2(zero, zero), zero, zero, zero)

    @property
    def velocity_w(self) -> Vec2:
        """The velocity over ground, east and north."""
        return self.velocity_b.turned(self.yaw)

    @property
    def speed(self) -> Scalar:
        """The speed of a `PointVessel` through the water, m/s.

        It is stored as `left`, since a point has no thrusters: a field of its own would be one more array that every
        step and every restart of every vessel has to copy.
        """
        return self.left


@dataclass(frozen=True)
class TwinThrusterVessel:
    """A hull with three degrees of freedom: surge, sway and yaw. The defaults are a WAM-V of 5 by 2.5 m."""

    mass: float = 400.0
    """kg"""
    inertia: float = 450.0
    """about the vertical axis, kg m²"""
    added_mass: tuple[float, float, float] = (-20.0, 0.0, 980.0)
    """mass of water moved along, in surge, sway and yaw; the first is negative in the original model and kept so"""
    linear_drag: tuple[float, float, float] = (100.0, 100.0, 980.0)
    """drag per unit of speed, in surge, sway and yaw"""
    quadratic_drag: tuple[float, float, float] = (150.0, 150.0, 950.0)
    """drag per unit of squared speed, in surge, sway and yaw"""
    thruster_offset: float = 1.25
    """distance from the center line to a thruster, m"""
    min_thrust: float = -500.0
    """N, of one thruster"""
    max_thrust: float = 1000.0
    """N, of one thruster"""
    radius: float = 2.795
    """radius of the circle that stands for the hull in collisions, m"""
    original_kinematics: bool = False
    """as in the original model, which counts a turn twice: it rotates the velocity with the body frame, and the
    Coriolis terms do so again"""

    @property
    def top_speed(self) -> float:
        """The speed straight ahead at full thrust, m/s."""
        a, b, c = self.quadratic_drag[0], self.linear_drag[0], -2.0 * self.max_thrust
        return (-b + math.sqrt(b * b - 4.0 * a * c)) / (2.0 * a)

    def change_thrust(self, boat: VesselState, left: Scalar, right: Scalar) -> VesselState:
        """The vessel with its thrusts changed by so many newtons, within their limits."""
        return replace(
            boat,
            left=jnp.clip(boat.left + left, self.min_thrust, self.max_thrust),
            right=jnp.clip(boat.right + right, self.min_thrust, self.max_thrust),
        )

    def step(self, boat: VesselState, current: Vec2, dt: float) -> VesselState:
        """The vessel after `dt` in a current (east and north), by an Euler step: position first, then velocity.

            m u̇ = X + m v r − d(u)     m v̇ = −m u r − d(v)     I ṙ = N − d(r)

        with the added masses on the left. Drag and the Coriolis terms of the added masses depend on the velocity
        through the water, all others on the velocity over ground.
        """
        s, c = sin_cos(boat.yaw)
        velocity, yaw_rate = self._accelerate(boat, current.rotated(-s, c), dt)
        if not self.original_kinematics:
            position = boat.position + boat.velocity_b.rotated(s, c) * dt
            yaw = wrap_angle(boat.yaw + dt * boat.yaw_rate)
            return replace(boat, position=position, yaw=yaw, velocity_b=velocity, yaw_rate=yaw_rate)
        # Velocity first, then position: the original observes a velocity that is one step older than the position.
        angle = dt * yaw_rate
        back = angle * (angle * angle * (1.0 / 6.0) - 1.0), 1.0 - 0.5 * angle * angle
        position = boat.position + velocity.rotated(s, c) * dt
        return replace(
            boat,
            position=position,
            yaw=wrap_angle(boat.yaw + angle),
            velocity_b=velocity.rotated(*back),
            yaw_rate=yaw_rate,
        )

    def _accelerate(self, boat: VesselState, current_b: Vec2, dt: float) -> tuple[Vec2, Scalar]:
        """Velocity and yaw rate after `dt` of thrust, drag and inertia."""
        u, v, r = boat.velocity_b.x, boat.velocity_b.y, boat.yaw_rate
        x, y = u - current_b.x, v - current_b.y
        (more_x, more_y, more_r), (dx, dy, dr), (qx, qy, qr) = self.added_mass, self.linear_drag, self.quadratic_drag
        surge = boat.left + boat.right + self.mass * v * r + more_y * y * r - (dx + qx * jnp.abs(x)) * x
        sway = -self.mass * u * r - more_x * x * r - (dy + qy * jnp.abs(y)) * y
        torque = self.thruster_offset * (boat.right - boat.left)
        turn = torque + (more_x - more_y) * x * y - (dr + qr * jnp.abs(r)) * r
        velocity = Vec2(u + dt * surge / (self.mass + more_x), v + dt * sway / (self.mass + more_y))
        return velocity, r + dt * turn / (self.inertia + more_r)


@dataclass(frozen=True)
class PointVessel:
    """A point without inertia in its turns: it is commanded an acceleration and a turn rate."""

    drag: float = 0.2
    """deceleration per unit of speed, 1/s"""
    max_speed: float = 2.0
    """through the water, m/s"""
    max_acceleration: float = 0.4
    """m/s²"""
    max_turn_rate: float = math.radians(30.0)
    """rad/s"""
    radius: float = 0.8
    """radius of the circle that stands for the vessel in collisions, m"""

    @property
    def top_speed(self) -> float:
        return self.max_speed

    def step(self, boat: VesselState, acceleration: Scalar, turn_rate: Scalar, current: Vec2, dt: float) -> VesselState:
        """The vessel after `dt` in a current (east and north), by an Euler step: position first, then speed."""
        s, c = sin_cos(boat.yaw)
        current_b = current.rotated(-s, c)
        speed = jnp.clip(boat.speed + dt * (acceleration - self.drag * boat.speed), 0.0, self.max_speed)
        position = boat.position + Vec2(boat.speed + current_b.x, current_b.y).rotated(s, c) * dt
        return replace(
            boat,
            position=position,
            yaw=wrap_angle(boat.yaw + dt * turn_rate),
            velocity_b=Vec2(speed + current_b.x, current_b.y),
            yaw_rate=turn_rate + 0.0 * speed,
            left=speed,
        )


VesselModel = TwinThrusterVessel | PointVessel
VESSELS: dict[str, VesselModel] = {
    "wamv": TwinThrusterVessel(),
    "wamv-original": TwinThrusterVessel(original_kinematics=True),
    "point": PointVessel(),
}


CORE_RADIUS = 0.5
"""Radius of a vortex core, m."""


@struct
class Vortices:
    """Rankine vortices: the speed rises with the radius up to the edge of the core and falls with it outside."""

    x: Float[Array, "vortices"]
    y: Float[Array, "vortices"]
    strength: Float[Array, "vortices"]  # speed at the edge of the core times its radius; negative turns clockwise

    def velocity(self, position: Vec2) -> Vec2:
        """The current at a position, east and north: the sum over all vortices."""
        flow = position * 0.0
        for k in range(self.x.shape[0]):
            dx, dy = position.x - self.x[k], position.y - self.y[k]
            rate = self.strength[k] / jnp.maximum(dx * dx + dy * dy, CORE_RADIUS * CORE_RADIUS)
            flow = flow + Vec2(-rate * dy, rate * dx)
        return flow
