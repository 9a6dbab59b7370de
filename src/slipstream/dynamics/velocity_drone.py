"""A drone that follows velocity commands: no rotors and no autopilot, only the closed-loop response of such a drone.

A few parameters describe the response of PX4's velocity controller: time constants, limits on acceleration and tilt,
drag, and the effect of wind. They are the fields of `VelocityDrone`, so that a fit to recorded flights can find them by
gradient descent.
"""

from dataclasses import replace

import jax.numpy as jnp

from ..core.geometry import Quat, Scalar, Vec2, Vec3, sin_cos, wrap_angle
from ..core.struct import struct
from .quadrotor import GRAVITY

TILT_SUBSTEP = 0.05
"""Longest integration step of a drone whose tilt takes time, s."""


@struct
class VelocityDrone:
    """Parameters of the response to velocity commands. The defaults describe a survey quadrotor of 6 kg.

    Plain numbers as settings of a task, traced values in a fit.
    """

    max_speed: float = 12.0
    """largest horizontal speed, m/s"""
    max_climb_rate: float = 5.0
    """largest upward speed, m/s"""
    max_sink_rate: float = 3.0
    """largest downward speed, m/s"""
    max_yaw_rate: float = 1.0
    """largest yaw rate, rad/s"""
    velocity_time_constant: float = 0.45
    """time constant of the horizontal velocity, s"""
    climb_time_constant: float = 0.3
    """time constant of the vertical velocity, s"""
    yaw_time_constant: float = 0.2
    """time constant of the yaw rate, s"""
    max_acceleration: float = 5.0
    """largest horizontal acceleration, m/s²"""
    max_climb_acceleration: float = 4.0
    """largest vertical acceleration, m/s²"""
    max_tilt: float = 0.6
    """largest tilt, rad"""
    wind_coupling: float = 0.15
    """fraction of the wind speed that the drone drifts with; only if tilt_time_constant is 0"""
    tilt_time_constant: float = 0.0
    """time constant of the tilt, s; 0 is a drone that tilts at once, which is cheaper to simulate"""
    tilt_onset_time: float = 0.05
    """time constant of the tilt command, s; this and the settings below need a positive tilt_time_constant"""
    drag: float = 0.0
    """deceleration per airspeed, 1/s"""
    tilt_thrust_gain: float = 0.0
    """relative excess of horizontal thrust at a tilt of 45°"""
    tilt_lift_gain: float = 0.0
    """fraction of the extra thrust commanded for a tilt that lifts the drone until it has tilted"""
    velocity_integral_gain: float = 0.0
    """integral gain of the velocity controller, relative to its proportional gain, 1/s"""


@struct
class VelocityDroneState:
    """Position and motion of a velocity drone."""

    position: Vec3
    velocity: Vec3  # m/s, over the ground
    yaw: Scalar  # rad, counter-clockwise from east
    yaw_rate: Scalar
    acceleration: Vec3  # of the last step; the tilt follows from it
    integral: Vec2  # acceleration from the velocity controller's integrator, against drag and wind
    tilt_command: Vec2  # horizontal acceleration that the tilt follows, after the onset lag

    @classmethod
    def at(cls, position: Vec3, yaw: Scalar) -> "VelocityDroneState":
        """A drone that hovers there."""
        zero = 0.0 * position.x
        still = Vec3(zero, zero, zero)
        return cls(position, still, yaw + zero, zero, still, Vec2(zero, zero), Vec2(zero, zero))

    @property
    def attitude(self) -> Quat:
        """The attitude whose thrust balances gravity and gives the acceleration, with the nose along the yaw."""
        sin, cos = sin_cos(self.yaw)
        forward = cos * self.acceleration.x + sin * self.acceleration.y
        left = cos * self.acceleration.y - sin * self.acceleration.x
        lift = self.acceleration.z + GRAVITY
        pitch = jnp.arctan2(forward, lift)
        roll = -jnp.arctan2(left * jnp.cos(pitch), lift)
        return Quat.from_euler(roll, pitch, self.yaw)


@struct
class VelocityCommand:
    """Velocity in the frame of the heading and yaw rate, each in [−1, 1] as a fraction of its limit."""

    forward: Scalar
    left: Scalar
    up: Scalar
    yaw_rate: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        return self.forward, self.left, self.up, self.yaw_rate


def limit_factor(x: Scalar, y: Scalar, max_length: Scalar) -> Scalar:
    """The factor that shortens a vector in the plane to a largest length."""
    square = x * x + y * y
    return jnp.minimum(1.0, max_length / jnp.sqrt(jnp.maximum(square, 1e-12)))


def first_order(value: Scalar, target: Scalar, time_constant: Scalar, dt: float) -> Scalar:
    """Exact solution over `dt` of  τ ẋ = x* − x,  stable for any step."""
    return target + (value - target) * jnp.exp(-dt / time_constant)


def target_velocity(yaw: Scalar, command: VelocityCommand, model: VelocityDrone) -> Vec3:
    """The velocity over the ground that a command asks of a drone with that heading."""
    forward, left, up = (jnp.clip(x, -1.0, 1.0) for x in (command.forward, command.left, command.up))
    # A diagonal command is no faster than a straight one.
    scale = limit_factor(forward, left, 1.0) * model.max_speed
    sin, cos = sin_cos(yaw)
    return Vec3(
        (cos * forward - sin * left) * scale,
        (sin * forward + cos * left) * scale,
        jnp.where(up > 0.0, up * model.max_climb_rate, up * model.max_sink_rate),
    )


def fly(
    drone: VelocityDroneState, command: VelocityCommand, model: VelocityDrone, wind: Vec3 | None, dt: float
) -> VelocityDroneState:
    """The drone after `dt` under a command."""
    yaw_rate = jnp.clip(command.yaw_rate, -1.0, 1.0) * model.max_yaw_rate
    return step_velocity(drone, target_velocity(drone.yaw, command, model), yaw_rate, model, wind, dt)


def step_velocity(
    drone: VelocityDroneState, target: Vec3, yaw_rate: Scalar, model: VelocityDrone, wind: Vec3 | None, dt: float
) -> VelocityDroneState:
    """The drone after `dt` with setpoints of velocity over the ground and yaw rate."""
    rate = first_order(drone.yaw_rate, yaw_rate, model.yaw_time_constant, dt)
    drone = replace(drone, yaw=wrap_angle(drone.yaw + 0.5 * (drone.yaw_rate + rate) * dt), yaw_rate=rate)
    if not has_tilt_dynamics(model):
        return step_simple(drone, target, model, wind, dt)
    steps = max(1, round(dt / TILT_SUBSTEP))
    for _ in range(steps):
        drone = step_tilting(drone, target, model, wind, dt / steps)
    return drone


def has_tilt_dynamics(model: VelocityDrone) -> bool:
    """Whether tilting takes time; in a fit, where parameters are traced, it does."""
    return not isinstance(model.tilt_time_constant, float | int) or model.tilt_time_constant > 0.0


def step_simple(
    drone: VelocityDroneState, target: Vec3, model: VelocityDrone, wind: Vec3 | None, dt: float
) -> VelocityDroneState:
    """The drone after `dt`, its velocity following the target with a time constant and limits."""
    if wind is not None:
        target = target + wind * model.wind_coupling
    wanted = Vec3(
        first_order(drone.velocity.x, target.x, model.velocity_time_constant, dt),
        first_order(drone.velocity.y, target.y, model.velocity_time_constant, dt),
        first_order(drone.velocity.z, target.z, model.climb_time_constant, dt),
    )
    acceleration = (wanted - drone.velocity) * (1.0 / dt)
    limit = jnp.minimum(model.max_acceleration, GRAVITY * jnp.tan(model.max_tilt))
    factor = limit_factor(acceleration.x, acceleration.y, limit)
    acceleration = Vec3(
        acceleration.x * factor,
        acceleration.y * factor,
        jnp.clip(acceleration.z, -model.max_climb_acceleration, model.max_climb_acceleration),
    )
    return integrate(drone, acceleration, acceleration, dt)


def step_tilting(
    drone: VelocityDroneState, target: Vec3, model: VelocityDrone, wind: Vec3 | None, dt: float
) -> VelocityDroneState:
    """The drone after a short `dt` under a PI velocity controller, with tilt dynamics and drag.

    The velocity error commands an acceleration, the tilt follows that with two lags, drag takes part of it, and the
    integrator adds what stays missing.
    """
    v, gain = drone.velocity, 1.0 / model.velocity_time_constant
    error = Vec2(target.x - v.x, target.y - v.y)
    wanted = error * gain + drone.integral
    factor = limit_factor(wanted.x, wanted.y, jnp.minimum(model.max_acceleration, GRAVITY * jnp.tan(model.max_tilt)))
    onset, follow = (1.0 - jnp.exp(-dt / time) for time in (model.tilt_onset_time, model.tilt_time_constant))
    tilt_command = drone.tilt_command + (wanted * factor - drone.tilt_command) * onset
    # The tilt belongs to the body, so it rotates with the yaw.
    turn = drone.yaw_rate * dt
    tilt = Vec2(drone.acceleration.x - turn * drone.acceleration.y, drone.acceleration.y + turn * drone.acceleration.x)
    tilt = tilt + ((drone.tilt_command + tilt_command) * 0.5 - tilt) * follow
    up = (first_order(v.z, target.z, model.climb_time_constant, dt) - v.z) * (1.0 / dt)
    up = jnp.clip(up, -model.max_climb_acceleration, model.max_climb_acceleration)
    # Thrust rises with the commanded tilt: it lifts the drone until the drone has tilted.
    up = up + model.tilt_lift_gain * (tilt_command.dot(tilt_command) - tilt.dot(tilt)) * (1.0 / GRAVITY)
    air = Vec2(v.x, v.y) if wind is None else Vec2(v.x - wind.x, v.y - wind.y)
    # The horizontal force is the tilted thrust: less while the drone sinks. Thrust goes with the square of the signal
    # that should hold the height, so a large tilt gives more than commanded.
    mean = Vec2(drone.acceleration.x + tilt.x, drone.acceleration.y + tilt.y) * 0.5
    thrust = 1.0 + up * (1.0 / GRAVITY) + model.tilt_thrust_gain * (mean.dot(mean) * (1.0 / GRAVITY**2))
    push = mean * thrust - air * model.drag
    # Anti-windup: what the limits cut off is not integrated; nor is a part of what a steady tilt gives too much.
    given = factor * (1.0 - model.tilt_thrust_gain * (mean.dot(mean) * (1.0 / GRAVITY**2)))
    integral = drone.integral + (error * gain - wanted * (2.0 * (1.0 - given))) * (model.velocity_integral_gain * dt)
    after = integrate(drone, Vec3(push.x, push.y, up), Vec3(tilt.x, tilt.y, up), dt)
    return replace(after, integral=integral, tilt_command=tilt_command)


def integrate(drone: VelocityDroneState, acceleration: Vec3, tilt: Vec3, dt: float) -> VelocityDroneState:
    """The drone after `dt` at a constant acceleration (trapezoidal rule, exact in that case)."""
    velocity = drone.velocity + acceleration * dt
    position = drone.position + (drone.velocity + velocity) * (0.5 * dt)
    return replace(drone, position=position, velocity=velocity, acceleration=tilt)


def command_for_velocity(
    drone: VelocityDroneState,
    velocity: Vec3,
    model: VelocityDrone,
    wind: Vec3 | None,
    dt: float,
    yaw_rate: Scalar = 0.0,
) -> VelocityCommand:
    """The command after which a drone has that velocity in `dt`, or comes as near to it as it can.

    A drone with tilt dynamics needs `dt` plus twice the sum of its tilt lags.
    """
    climb_lead = -1.0 / jnp.expm1(-dt / model.climb_time_constant)
    now = drone.velocity
    z = now.z + (velocity.z - now.z) * climb_lead
    lag = model.velocity_time_constant
    if has_tilt_dynamics(model):
        air = Vec2(now.x, now.y) if wind is None else Vec2(now.x - wind.x, now.y - wind.y)
        lead = lag / (dt + 2.0 * (model.tilt_time_constant + model.tilt_onset_time))
        x = velocity.x + (velocity.x - now.x) * lead + (model.drag * air.x - drone.integral.x) * lag
        y = velocity.y + (velocity.y - now.y) * lead + (model.drag * air.y - drone.integral.y) * lag
    else:
        lead = -1.0 / jnp.expm1(-dt / lag)
        x, y = now.x + (velocity.x - now.x) * lead, now.y + (velocity.y - now.y) * lead
    if wind is not None and not has_tilt_dynamics(model):
        share = model.wind_coupling
        x, y, z = x - wind.x * share, y - wind.y * share, z - wind.z * share
    sin, cos = sin_cos(drone.yaw)
    scale = 1.0 / model.max_speed
    return VelocityCommand(
        (cos * x + sin * y) * scale,
        (cos * y - sin * x) * scale,
        jnp.clip(z * jnp.where(z > 0.0, 1.0 / model.max_climb_rate, 1.0 / model.max_sink_rate), -1.0, 1.0),
        yaw_rate,
    )


@struct
class Gimbal:
    """Direction of a stabilized camera relative to the drone's heading; it stays level as the drone tilts."""

    yaw: Scalar
    pitch: Scalar  # rad, positive looks down

    def step(self, yaw: Scalar, pitch: Scalar, max_rate: float, dt: float) -> "Gimbal":
        """The gimbal after `dt` at those fractions of the largest rate, each in [−1, 1]."""
        down = jnp.clip(self.pitch + jnp.clip(pitch, -1.0, 1.0) * (max_rate * dt), -jnp.pi / 6, jnp.pi / 2)
        return Gimbal(wrap_angle(self.yaw + jnp.clip(yaw, -1.0, 1.0) * (max_rate * dt)), down)

    def attitude(self, heading: Scalar) -> Quat:
        return Quat.from_euler(0.0, self.pitch, heading + self.yaw)
