"""Surface vessels: a hull with two thrusters after Fossen, and a point that is steered by speed and turn."""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.geometry import Scalar, Vec2, sin_cos
from ..core.struct import struct


@struct
class VesselState:
    """Where a vessel is and how it moves. Frame: x east or forward, y north or left, yaw counter-clockwise."""

    position: Vec2
    yaw: Scalar
    velocity: Vec2  # over ground, forward and left
    yaw_rate: Scalar
    left: Scalar  # thrust in newtons
    right: Scalar

    @classmethod
    def at(cls, position: Vec2, yaw: Scalar) -> "VesselState":
        """At rest, thrusters off."""
        zero = 0.0 * yaw
        return cls(position, yaw, Vec2(zero, zero), zero, zero, zero)

    @property
    def course(self) -> Vec2:
        """The velocity over ground, east and north."""
        return self.velocity.turned(self.yaw)


@dataclass(frozen=True)
class TwinThrusterVessel:
    """Three degrees of freedom: surge, sway and yaw. The defaults are a WAM-V of 5 by 2.5 m."""

    mass: float = 400.0
    inertia: float = 450.0
    added: tuple[float, float, float] = (-20.0, 0.0, 980.0)
    """what the water adds to mass, mass aside and inertia; the first is negative in the original and kept"""
    drag: tuple[float, float, float] = (100.0, 100.0, 980.0)
    square_drag: tuple[float, float, float] = (150.0, 150.0, 950.0)
    lever: float = 1.25
    """from the middle to a thruster, across"""
    min_thrust: float = -500.0
    max_thrust: float = 1000.0
    radius: float = 2.795
    """of the circle around it that counts as the vessel"""
    published: bool = False
    """as in the original, where turns count twice: the frame turns under the velocity, and so do the equations"""

    @property
    def top_speed(self) -> float:
        """Straight ahead with all it has."""
        a, b, c = self.square_drag[0], self.drag[0], -2.0 * self.max_thrust
        return (-b + math.sqrt(b * b - 4.0 * a * c)) / (2.0 * a)

    def throttled(self, boat: VesselState, left: Scalar, right: Scalar) -> VesselState:
        """With the thrusts changed by so many newtons, within what they can."""
        return replace(
            boat,
            left=jnp.clip(boat.left + left, self.min_thrust, self.max_thrust),
            right=jnp.clip(boat.right + right, self.min_thrust, self.max_thrust),
        )

    def step(self, boat: VesselState, current: Vec2, dt: float) -> VesselState:
        """The vessel after `dt` in water that moves like that, east and north: place first, then speed.

            m u̇ = X + m v r − d(u)     m v̇ = −m u r − d(v)     I ṙ = N − d(r)

        with the added masses on the left; drag and what the added masses do in turns go by the speed through the water.
        """
        s, c = sin_cos(boat.yaw)
        velocity, yaw_rate = self._pushed(boat, current.rotated(-s, c), dt)
        if not self.published:
            place = boat.position + boat.velocity.rotated(s, c) * dt
            yaw = wrapped(boat.yaw + dt * boat.yaw_rate)
            return replace(boat, position=place, yaw=yaw, velocity=velocity, yaw_rate=yaw_rate)
        # Speed first, then place: what is observed in the original is one step older than where it is observed.
        angle = dt * yaw_rate
        back = angle * (angle * angle * (1.0 / 6.0) - 1.0), 1.0 - 0.5 * angle * angle
        place = boat.position + velocity.rotated(s, c) * dt
        return replace(
            boat, position=place, yaw=wrapped(boat.yaw + angle), velocity=velocity.rotated(*back), yaw_rate=yaw_rate
        )

    def _pushed(self, boat: VesselState, flow: Vec2, dt: float) -> tuple[Vec2, Scalar]:
        """Velocity and turn after `dt` of thrust, drag and inertia; `flow` is the water's, forward and left."""
        u, v, r = boat.velocity.x, boat.velocity.y, boat.yaw_rate
        x, y = u - flow.x, v - flow.y
        (more_x, more_y, more_r), (dx, dy, dr), (qx, qy, qr) = self.added, self.drag, self.square_drag
        surge = boat.left + boat.right + self.mass * v * r + more_y * y * r - (dx + qx * jnp.abs(x)) * x
        sway = -self.mass * u * r - more_x * x * r - (dy + qy * jnp.abs(y)) * y
        turn = self.lever * (boat.right - boat.left) + (more_x - more_y) * x * y - (dr + qr * jnp.abs(r)) * r
        velocity = Vec2(u + dt * surge / (self.mass + more_x), v + dt * sway / (self.mass + more_y))
        return velocity, r + dt * turn / (self.inertia + more_r)


@dataclass(frozen=True)
class PointVessel:
    """A vessel without inertia in its turns: it is told how to speed up and how fast to turn."""

    drag: float = 0.2
    max_speed: float = 2.0
    acceleration: float = 0.4
    turn: float = math.radians(30.0)
    radius: float = 0.8

    @property
    def top_speed(self) -> float:
        return self.max_speed

    def step(self, boat: VesselState, push: Scalar, turn: Scalar, current: Vec2, dt: float) -> VesselState:
        """After `dt`, speeding up and turning like that, place first, then speed; `velocity` is over ground."""
        s, c = sin_cos(boat.yaw)
        flow = current.rotated(-s, c)
        # `left` keeps the speed through the water: nothing else of a dot has a thruster.
        speed = jnp.clip(boat.left + dt * (push - self.drag * boat.left), 0.0, self.max_speed)
        place = boat.position + Vec2(boat.left + flow.x, flow.y).rotated(s, c) * dt
        return replace(
            boat,
            position=place,
            yaw=wrapped(boat.yaw + dt * turn),
            velocity=Vec2(speed + flow.x, flow.y),
            yaw_rate=turn + 0.0 * speed,
            left=speed,
        )


def wrapped(angle: Scalar) -> Scalar:
    """The same direction between −π and π."""
    return angle - 2.0 * jnp.pi * jnp.round(angle * (0.5 / jnp.pi))


CORE = 0.5
"""Radius of a whirl's core."""


@struct
class Vortices:
    """Whirls in the water: round a core the speed rises to its edge and falls outside; all of them add up."""

    x: Float[Array, "whirls"]
    y: Float[Array, "whirls"]
    strength: Float[Array, "whirls"]  # speed at the edge of the core, times its radius; negative turns clockwise

    def at(self, place: Vec2) -> Vec2:
        """The current at a place, east and north."""
        flow = place * 0.0
        for k in range(self.x.shape[0]):
            dx, dy = place.x - self.x[k], place.y - self.y[k]
            share = self.strength[k] / jnp.maximum(dx * dx + dy * dy, CORE * CORE)
            flow = flow + Vec2(-share * dy, share * dx)
        return flow
