"""A drone that is told a velocity: no rotors and no autopilot, only how such a drone answers.

What PX4 makes of a velocity command, in a few numbers: a lag, limits on acceleration and tilt, and how much of the
wind gets through. They stand in one struct, `VelocityDrone`, so that a fit to recorded flights can tune them by gradient.
"""

from dataclasses import replace

import jax.numpy as jnp

from ..core.geometry import Quat, Scalar, Vec2, Vec3, sin_cos
from ..core.struct import struct
from .quadrotor import GRAVITY


@struct
class VelocityDrone:
    """How a drone answers its commands. The defaults are a survey quadrotor of 6 kg.

    Plain numbers, as settings of a task; in a fit they are traced.
    """

    speed: float = 12.0
    """fastest, along the ground"""
    climb: float = 5.0
    """fastest, up"""
    sink: float = 3.0
    """fastest, down"""
    turn: float = 1.0
    """fastest, rad/s"""
    lag: float = 0.45
    """of the velocity along the ground, s"""
    climb_lag: float = 0.3
    turn_lag: float = 0.2
    acceleration: float = 5.0
    """largest, along the ground"""
    climb_acceleration: float = 4.0
    tilt: float = 0.6
    """largest, rad"""
    yielding: float = 0.15
    """share of the wind's speed that the drone is carried along with, if it has no lean"""
    lean: float = 0.0
    """lag of leaning over, s; 0 is a drone that leans at once, which is cheaper"""
    onset: float = 0.05
    """lag before it begins to lean, s; this and the following only for a drone that leans"""
    drag: float = 0.0
    """deceleration for each m/s of speed through the air, 1/s"""
    surge: float = 0.0
    """how much more than asked is pushed when leaning at 45°"""
    heave: float = 0.0
    """share of the thrust meant for leaning that lifts the drone until it leans"""
    trim: float = 0.0
    """how fast a steady error is made good: share of the answer to it that is added every second"""


@struct
class VelocityDroneState:
    """Where such a drone is and how it moves."""

    position: Vec3
    velocity: Vec3  # m/s, over the ground
    yaw: Scalar  # rad, counter-clockwise from east
    yaw_rate: Scalar
    acceleration: Vec3  # of the last step: it is what the drone leans into
    trim: Vec2  # acceleration that is kept against drag and wind
    onset: Vec2  # acceleration that it begins to lean into

    @classmethod
    def at(cls, position: Vec3, yaw: Scalar) -> "VelocityDroneState":
        """Hovering there."""
        zero = 0.0 * position.x
        still = Vec3(zero, zero, zero)
        return cls(position, still, yaw + zero, zero, still, Vec2(zero, zero), Vec2(zero, zero))

    @property
    def attitude(self) -> Quat:
        """The thrust points against gravity and along the acceleration, the nose along the yaw."""
        sin, cos = sin_cos(self.yaw)
        ahead = cos * self.acceleration.x + sin * self.acceleration.y
        aside = cos * self.acceleration.y - sin * self.acceleration.x
        lift = self.acceleration.z + GRAVITY
        pitch = jnp.arctan2(ahead, lift)
        roll = -jnp.arctan2(aside * jnp.cos(pitch), lift)
        return Quat.from_euler(roll, pitch, self.yaw)


@struct
class VelocityCommand:
    """Each in [−1, 1]: velocity ahead, aside (left) and up, in the frame of the heading, and yaw rate."""

    ahead: Scalar
    aside: Scalar
    up: Scalar
    turn: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        return self.ahead, self.aside, self.up, self.turn


def limited(ahead: Scalar, aside: Scalar, most: Scalar) -> Scalar:
    """The factor that brings a vector in the plane down to a length."""
    square = ahead * ahead + aside * aside
    return jnp.minimum(1.0, most / jnp.sqrt(jnp.maximum(square, 1e-12)))


def followed(value: Scalar, target: Scalar, lag: Scalar, dt: float) -> Scalar:
    """Exact solution over `dt` of  τ ẋ = x* − x,  whatever the step."""
    return target + (value - target) * jnp.exp(-dt / lag)


def asked_for(yaw: Scalar, command: VelocityCommand, handling: VelocityDrone) -> Vec3:
    """The velocity over the ground that a command asks of a drone with that heading."""
    ahead, aside, up = (jnp.clip(x, -1.0, 1.0) for x in (command.ahead, command.aside, command.up))
    # The corner of the square of commands is no faster than its sides.
    shrink = limited(ahead, aside, 1.0) * handling.speed
    sin, cos = sin_cos(yaw)
    return Vec3(
        (cos * ahead - sin * aside) * shrink,
        (sin * ahead + cos * aside) * shrink,
        jnp.where(up > 0.0, up * handling.climb, up * handling.sink),
    )


def fly(
    glide: VelocityDroneState, command: VelocityCommand, handling: VelocityDrone, wind: Vec3 | None, dt: float
) -> VelocityDroneState:
    """The drone after `dt`."""
    turn = jnp.clip(command.turn, -1.0, 1.0) * handling.turn
    return drawn_to(glide, asked_for(glide.yaw, command, handling), turn, handling, wind, dt)


def drawn_to(
    glide: VelocityDroneState, target: Vec3, turn: Scalar, handling: VelocityDrone, wind: Vec3 | None, dt: float
) -> VelocityDroneState:
    """The drone after `dt` of being told a velocity over the ground and a yaw rate."""
    yaw_rate = followed(glide.yaw_rate, turn, handling.turn_lag, dt)
    glide = replace(glide, yaw=wrapped(glide.yaw + 0.5 * (glide.yaw_rate + yaw_rate) * dt), yaw_rate=yaw_rate)
    if not leans(handling):
        return step_simple(glide, target, handling, wind, dt)
    steps = max(1, round(dt / 0.05))
    for _ in range(steps):
        glide = leaning(glide, target, handling, wind, dt / steps)
    return glide


def leans(handling: VelocityDrone) -> bool:
    """Whether leaning takes time; in a fit, where numbers are traced, it does."""
    return not isinstance(handling.lean, float | int) or handling.lean > 0.0


def step_simple(
    glide: VelocityDroneState, target: Vec3, handling: VelocityDrone, wind: Vec3 | None, dt: float
) -> VelocityDroneState:
    """After `dt`, drawn to a velocity with a lag and limits."""
    if wind is not None:
        target = target + wind * handling.yielding
    wanted = Vec3(
        followed(glide.velocity.x, target.x, handling.lag, dt),
        followed(glide.velocity.y, target.y, handling.lag, dt),
        followed(glide.velocity.z, target.z, handling.climb_lag, dt),
    )
    push = (wanted - glide.velocity) * (1.0 / dt)
    lean = jnp.minimum(handling.acceleration, GRAVITY * jnp.tan(handling.tilt))
    give = limited(push.x, push.y, lean)
    push = Vec3(
        push.x * give, push.y * give, jnp.clip(push.z, -handling.climb_acceleration, handling.climb_acceleration)
    )
    return moved(glide, push, push, dt)


def leaning(
    glide: VelocityDroneState, target: Vec3, handling: VelocityDrone, wind: Vec3 | None, dt: float
) -> VelocityDroneState:
    """After a short `dt`, of a drone as velocity controllers fly it.

    The error in velocity asks for an acceleration, the drone leans into it with a lag, drag takes part of it, and what
    is missing for long is added: the loops of PX4 in five numbers.
    """
    v, gain = glide.velocity, 1.0 / handling.lag
    error = Vec2(target.x - v.x, target.y - v.y)
    asked = error * gain + glide.trim
    give = limited(asked.x, asked.y, jnp.minimum(handling.acceleration, GRAVITY * jnp.tan(handling.tilt)))
    start, follow = (1.0 - jnp.exp(-dt / lag) for lag in (handling.onset, handling.lean))
    onset = glide.onset + (asked * give - glide.onset) * start
    # The lean is the body's: it is carried round as the body turns.
    swing = glide.yaw_rate * dt
    lean = Vec2(
        glide.acceleration.x - swing * glide.acceleration.y, glide.acceleration.y + swing * glide.acceleration.x
    )
    lean = lean + ((glide.onset + onset) * 0.5 - lean) * follow
    up = (followed(v.z, target.z, handling.climb_lag, dt) - v.z) * (1.0 / dt)
    up = jnp.clip(up, -handling.climb_acceleration, handling.climb_acceleration)
    # Thrust for a lean that is only asked for lifts the drone.
    up = up + handling.heave * (onset.dot(onset) - lean.dot(lean)) * (1.0 / GRAVITY)
    air = Vec2(v.x, v.y) if wind is None else Vec2(v.x - wind.x, v.y - wind.y)
    # What pushes is the thrust, leant over: less while it sinks away. It goes with the square of the signal that is
    # meant to hold the height, so leaning far pushes more than asked.
    mean = Vec2(glide.acceleration.x + lean.x, glide.acceleration.y + lean.y) * 0.5
    more = 1.0 + up * (1.0 / GRAVITY) + handling.surge * (mean.dot(mean) * (1.0 / GRAVITY**2))
    push = mean * more - air * handling.drag
    # What could not be given is not added up, and takes back what was; at a steady lean, too, a little is not given.
    given = give * (1.0 - handling.surge * (mean.dot(mean) * (1.0 / GRAVITY**2)))
    grown = glide.trim + (error * gain - asked * (2.0 * (1.0 - given))) * (handling.trim * dt)
    return replace(moved(glide, Vec3(push.x, push.y, up), Vec3(lean.x, lean.y, up), dt), trim=grown, onset=onset)


def moved(glide: VelocityDroneState, push: Vec3, lean: Vec3, dt: float) -> VelocityDroneState:
    """After `dt` at an acceleration. Half of the change acts over the step: exact while the acceleration stands."""
    velocity = glide.velocity + push * dt
    position = glide.position + (glide.velocity + velocity) * (0.5 * dt)
    return replace(glide, position=position, velocity=velocity, acceleration=lean)


def commanded(
    glide: VelocityDroneState, velocity: Vec3, handling: VelocityDrone, wind: Vec3 | None, dt: float, turn: Scalar = 0.0
) -> VelocityCommand:
    """The command after which a drone has that velocity in `dt`, or comes as near to it as it can.

    A drone that leans cannot: it gets there in `dt` and twice its lags of leaning.
    """
    climb_lead = -1.0 / jnp.expm1(-dt / handling.climb_lag)
    now = glide.velocity
    z = now.z + (velocity.z - now.z) * climb_lead
    if leans(handling):
        air = Vec2(now.x, now.y) if wind is None else Vec2(now.x - wind.x, now.y - wind.y)
        soon = handling.lag / (dt + 2.0 * (handling.lean + handling.onset))
        x = velocity.x + (velocity.x - now.x) * soon + (handling.drag * air.x - glide.trim.x) * handling.lag
        y = velocity.y + (velocity.y - now.y) * soon + (handling.drag * air.y - glide.trim.y) * handling.lag
    else:
        lead = -1.0 / jnp.expm1(-dt / handling.lag)
        x, y = now.x + (velocity.x - now.x) * lead, now.y + (velocity.y - now.y) * lead
    if wind is not None and not leans(handling):
        x, y, z = x - wind.x * handling.yielding, y - wind.y * handling.yielding, z - wind.z * handling.yielding
    sin, cos = sin_cos(glide.yaw)
    share = 1.0 / handling.speed
    return VelocityCommand(
        (cos * x + sin * y) * share,
        (cos * y - sin * x) * share,
        jnp.clip(z * jnp.where(z > 0.0, 1.0 / handling.climb, 1.0 / handling.sink), -1.0, 1.0),
        turn,
    )


def wrapped(angle: Scalar) -> Scalar:
    """The same direction between −π and π."""
    return angle - 2.0 * jnp.pi * jnp.round(angle * (0.5 / jnp.pi))


@struct
class Gimbal:
    """Which way a camera on a drone looks, relative to its heading; it stays level as the drone leans."""

    yaw: Scalar
    pitch: Scalar  # rad, positive looks down

    def turned(self, yaw: Scalar, pitch: Scalar, rate: float, dt: float) -> "Gimbal":
        """After `dt` at those shares of the largest `rate`, each in [−1, 1]."""
        down = jnp.clip(self.pitch + jnp.clip(pitch, -1.0, 1.0) * (rate * dt), -jnp.pi / 6, jnp.pi / 2)
        return Gimbal(wrapped(self.yaw + jnp.clip(yaw, -1.0, 1.0) * (rate * dt)), down)

    def attitude(self, heading: Scalar) -> Quat:
        return Quat.from_euler(0.0, self.pitch, heading + self.yaw)
