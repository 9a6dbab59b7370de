"""Quadrotor dynamics: a rigid body with four first-order rotors, drag, gyroscopic torque and ground contact."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ..core.geometry import Quat, Scalar, Vec3
from ..core.struct import struct

GRAVITY = 9.80665


@struct
class Rotors:
    """One number for each rotor, named by its position seen from above."""

    front_left: Scalar
    front_right: Scalar
    rear_right: Scalar
    rear_left: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        return self.front_left, self.front_right, self.rear_right, self.rear_left

    @property
    def total(self) -> Scalar:
        return (self.front_left + self.front_right) + (self.rear_right + self.rear_left)

    @property
    def rolling(self) -> Scalar:
        """Left minus right; as thrusts, the source of the roll torque."""
        return (self.front_left - self.front_right) + (self.rear_left - self.rear_right)

    @property
    def pitching(self) -> Scalar:
        """Rear minus front; as thrusts, the source of the pitch torque (positive is nose down)."""
        return (self.rear_right - self.front_left) + (self.rear_left - self.front_right)

    @property
    def yawing(self) -> Scalar:
        """Clockwise pair minus counter-clockwise pair; as drag torques, the yaw torque (positive is to the left)."""
        return (self.front_left - self.front_right) + (self.rear_right - self.rear_left)


@struct
class QuadrotorState:
    """Position, attitude, velocities and rotor speeds of a quadrotor."""

    position: Vec3  # m, world
    attitude: Quat
    velocity: Vec3  # m/s, world
    rates: Vec3  # rad/s, body
    rotors: Rotors  # rad/s
    memory: Any = None  # state of the flight controller, if there is one


@struct
class PhysicsRandomization:
    """Factors on the parameters of one world's vehicle; `None` is 1."""

    mass: Scalar | None = None
    inertia: Scalar | None = None
    thrust: Scalar | None = None
    motor_lag: Scalar | None = None
    drag: Scalar | None = None


def scaled(value: float, factor: Scalar | None) -> Scalar:
    """The value times a factor; without a factor, the value."""
    return value if factor is None else value * factor


@dataclass(frozen=True)
class Quadrotor:
    """A quadrotor in X configuration. The defaults are the 5-inch racer."""

    mass: float = 0.6076
    """kg"""
    inertia: tuple[float, float, float] = (0.003, 0.003, 0.006)
    """principal moments of inertia, kg m²"""
    arm: tuple[float, float] = (0.0883, 0.0883)
    """distance of the rotors from the center, forward and sideways, m"""
    thrust_curve: tuple[float, float] = (0.0, 2.25e-7)
    """linear and quadratic coefficient of a rotor's thrust (N) by its speed (rad/s)"""
    torque_curve: tuple[float, float] = (0.0, 1.5e-9)
    """linear and quadratic coefficient of a rotor's drag torque (N m) by its speed (rad/s)"""
    max_speed: float = 5145.0
    """largest rotor speed, rad/s"""
    lag_up: float = 0.012
    """time constant of a rotor that speeds up, s"""
    lag_down: float = 0.018
    """time constant of a rotor that slows down, s"""
    rotor_inertia: float = 3.0e-6
    """moment of inertia of one rotor about its axis, kg m²"""
    body_drag: tuple[float, float, float] = (0.006, 0.006, 0.012)
    """quadratic drag coefficients along the body's axes, N/(m/s)²"""
    rotor_drag: float = 1.0e-5
    """linear drag of the spinning rotors in their plane, N/(m/s) for each rad/s"""
    radius: float = 0.15
    """radius of the vehicle in collision tests, m"""
    ground: bool = False
    """whether ground contact is simulated; a task that ends at the first contact does not need it"""
    foot_drop: float = 0.04
    """height of the center above the feet, m"""
    ground_frequency: float = 25.0
    """natural frequency of the vehicle on its feet, Hz: their stiffness"""
    ground_friction: float = 0.6
    """Coulomb friction coefficient of the feet"""
    integrator: Literal["euler", "rk4"] = "euler"
    """semi-implicit Euler, or the classical fourth-order Runge-Kutta method"""

    def __post_init__(self) -> None:
        if min(self.mass, *self.inertia, *self.arm, self.max_speed, self.lag_up, self.lag_down) <= 0.0:
            raise ValueError("mass, inertia, arm, max_speed and rotor lags of a quadrotor must be positive")
        if self.integrator not in ("euler", "rk4"):
            raise ValueError(f"there is no integrator '{self.integrator}'; choose euler or rk4")

    @property
    def max_thrust(self) -> float:
        """Largest thrust of one rotor, N."""
        return self.thrust_curve[0] * self.max_speed + self.thrust_curve[1] * self.max_speed**2

    @property
    def hover_speed(self) -> float:
        """Rotor speed at hover, rad/s."""
        linear, quadratic = self.thrust_curve
        return (math.sqrt(linear**2 + quadratic * self.mass * GRAVITY) - linear) / (2.0 * quadratic)

    @property
    def torque_per_thrust(self) -> float:
        """Drag torque per thrust of a rotor at hover, m."""
        ω = self.hover_speed
        linear, quadratic = self.torque_curve
        return (linear * ω + quadratic * ω**2) / (self.mass * GRAVITY / 4.0)

    def speed_for(self, thrust: Scalar) -> Scalar:
        """The rotor speed that gives `thrust` in steady state: the inverse of the thrust curve."""
        linear, quadratic = self.thrust_curve
        if linear == 0.0:
            # The square root has no derivative at zero, and a fit needs one; the bound is far below any rotor speed.
            return jnp.sqrt(jnp.maximum(thrust * (1.0 / quadratic), 1e-6))
        return (jnp.sqrt(linear**2 + 4.0 * quadratic * thrust) - linear) * (0.5 / quadratic)

    def hovering(self, position: Vec3, attitude: Quat, velocity: Vec3, rates: Vec3) -> QuadrotorState:
        """The vehicle in that state of motion, with its rotors at hover speed."""
        return QuadrotorState(position, attitude, velocity, rates, Rotors(*[self.hover_speed + 0.0 * position.x] * 4))

    def mix(self, thrust: Scalar, torque: Vec3) -> Rotors:
        """Steady-state rotor speeds for a total thrust and a torque, each clipped to its limits."""
        share = thrust * 0.25
        roll = torque.x * (0.25 / self.arm[1])
        pitch = torque.y * (0.25 / self.arm[0])
        yaw = torque.z * (0.25 / self.torque_per_thrust)
        wanted = Rotors(
            share + roll - pitch + yaw,
            share - roll - pitch - yaw,
            share - roll + pitch + yaw,
            share + roll + pitch - yaw,
        )
        return Rotors(*(self.speed_for(jnp.clip(force, 0.0, self.max_thrust)) for force in wanted.parts))

    def decay(self, randomization: PhysicsRandomization, dt: float) -> tuple[Scalar, Scalar]:
        """The factor by which a rotor-speed error decays within `dt`, speeding up and slowing down."""
        up, down = (scaled(lag, randomization.motor_lag) for lag in (self.lag_up, self.lag_down))
        return jnp.exp(-dt / up), jnp.exp(-dt / down)

    def rotor_response(self, rotors: Rotors, target: Rotors, randomization: PhysicsRandomization, dt: float) -> Rotors:
        """Rotor speeds after `dt` of first-order response to the `target` speeds (exact solution)."""
        up, down = self.decay(randomization, dt)
        return Rotors(
            *(t + (ω - t) * jnp.where(t > ω, up, down) for ω, t in zip(rotors.parts, target.parts, strict=True))
        )

    def thrusts(self, rotors: Rotors, randomization: PhysicsRandomization) -> Rotors:
        """Thrust of each rotor, N."""
        lift = scaled(1.0, randomization.thrust)
        return Rotors(*(self._curve(self.thrust_curve, ω) * lift for ω in rotors.parts))

    def gyroscopic_torque(self, state: QuadrotorState, rotor_acceleration: Rotors) -> Vec3:
        """Torque on the body from the rotors' angular momentum: gyroscopic in roll and pitch, reaction in yaw."""
        # Clockwise rotors, whose drag yaws the body to the left, have their angular momentum along −z.
        momentum = -self.rotor_inertia * state.rotors.yawing
        return Vec3(-state.rates.y * momentum, state.rates.x * momentum, self.rotor_inertia * rotor_acceleration.yawing)

    def signal_for(self, thrust: Scalar) -> Scalar:
        """The motor signal (fraction of the largest speed) at which all rotors together give `thrust`, clipped."""
        return self.speed_for(jnp.clip(0.25 * thrust, 0.0, self.max_thrust)) / self.max_speed

    def step(
        self, state: QuadrotorState, target: Rotors, wind: Vec3 | None, randomization: PhysicsRandomization, dt: float
    ) -> QuadrotorState:
        """The vehicle after `dt`, with the rotors following the `target` speeds."""
        if self.integrator == "rk4":
            return self._runge_kutta(state, target, wind, randomization, dt)
        rotors = self.rotor_response(state.rotors, target, randomization, dt)
        rotor_acceleration = mean_rotor_acceleration(state.rotors, rotors, dt)
        state = replace(state, rotors=rotors)
        acceleration, angular_acceleration = self.accelerations(state, rotor_acceleration, wind, randomization)
        velocity = state.velocity + acceleration * dt
        rates = state.rates + angular_acceleration * dt
        return replace(
            state,
            position=state.position + velocity * dt,
            attitude=state.attitude.spun(rates, dt),
            velocity=velocity,
            rates=rates,
        )

    def _runge_kutta(
        self, state: QuadrotorState, target: Rotors, wind: Vec3 | None, randomization: PhysicsRandomization, dt: float
    ) -> QuadrotorState:
        """One step of the classical fourth-order Runge-Kutta method; the quaternion is normalized after it."""
        memory, state = state.memory, replace(state, memory=None)

        def derivative(at: QuadrotorState) -> QuadrotorState:
            rotor_acceleration = self.rotor_acceleration(at.rotors, target, randomization)
            acceleration, angular_acceleration = self.accelerations(at, rotor_acceleration, wind, randomization)
            ω = at.rates * 0.5
            return QuadrotorState(
                position=at.velocity,
                attitude=at.attitude * Quat(0.0, ω.x, ω.y, ω.z),
                velocity=acceleration,
                rates=angular_acceleration,
                rotors=rotor_acceleration,
            )

        def advanced(by: QuadrotorState, h: float) -> QuadrotorState:
            return jax.tree.map(lambda x, dx: x + h * dx, state, by)

        k1 = derivative(state)
        k2 = derivative(advanced(k1, dt / 2))
        k3 = derivative(advanced(k2, dt / 2))
        k4 = derivative(advanced(k3, dt))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2.0 * (b + c) + d) * (1.0 / 6.0), k1, k2, k3, k4)
        after = advanced(mean, dt)
        return replace(after, attitude=after.attitude.unit(), memory=memory)

    def rotor_acceleration(self, rotors: Rotors, target: Rotors, randomization: PhysicsRandomization) -> Rotors:
        """Derivative of the rotor speeds while they follow the `target` speeds, rad/s²."""
        up, down = (1.0 / scaled(lag, randomization.motor_lag) for lag in (self.lag_up, self.lag_down))
        return Rotors(*((t - ω) * jnp.where(t > ω, up, down) for ω, t in zip(rotors.parts, target.parts, strict=True)))

    def accelerations(
        self, state: QuadrotorState, rotor_acceleration: Rotors, wind: Vec3 | None, randomization: PhysicsRandomization
    ) -> tuple[Vec3, Vec3]:
        """Acceleration of the center of mass in the world, and angular acceleration in the body.

        J ω̇ = τ − ω × J ω + gyroscopic torque;  `rotor_acceleration` is the derivative of the rotor speeds, rad/s².
        """
        mass = scaled(self.mass, randomization.mass)
        ix, iy, iz = (scaled(i, randomization.inertia) for i in self.inertia)
        force_b, torque = self.wrench(state, wind, randomization)
        ω = state.rates
        torque = torque - ω.cross(Vec3(ix * ω.x, iy * ω.y, iz * ω.z))
        if self.rotor_inertia:
            torque = torque + self.gyroscopic_torque(state, rotor_acceleration)
        acceleration = state.attitude.rotate(force_b) * (1.0 / mass) - Vec3(0.0, 0.0, GRAVITY)
        if self.ground:
            push, turn = self.ground_reaction(state)
            acceleration = acceleration + push * (1.0 / mass)
            torque = torque + turn
        return acceleration, torque * Vec3(1.0 / ix, 1.0 / iy, 1.0 / iz)

    def wrench(
        self, state: QuadrotorState, wind: Vec3 | None, randomization: PhysicsRandomization
    ) -> tuple[Vec3, Vec3]:
        """Force and torque of rotors and drag, in the body frame."""
        thrust = Rotors(*(self._curve(self.thrust_curve, ω) for ω in state.rotors.parts))
        drag_torque = Rotors(*(self._curve(self.torque_curve, ω) for ω in state.rotors.parts))
        lift = scaled(1.0, randomization.thrust)
        airspeed = state.attitude.unrotate(state.velocity if wind is None else state.velocity - wind)
        speed = airspeed.norm()
        across = self.rotor_drag * state.rotors.total
        drag = Vec3(
            airspeed.x * (self.body_drag[0] * speed + across),
            airspeed.y * (self.body_drag[1] * speed + across),
            airspeed.z * (self.body_drag[2] * speed),
        ) * scaled(1.0, randomization.drag)
        torque = Vec3(
            self.arm[1] * thrust.rolling * lift, self.arm[0] * thrust.pitching * lift, drag_torque.yawing * lift
        )
        return Vec3(0.0, 0.0, thrust.total * lift) - drag, torque

    def ground_reaction(self, state: QuadrotorState) -> tuple[Vec3, Vec3]:
        """Force in the world and torque in the body of four feet (spring, damper, friction) on the plane z = 0."""
        stiffness = 0.25 * self.mass * (2.0 * jnp.pi * self.ground_frequency) ** 2
        damping = 0.25 * self.mass * 2.0 * (2.0 * jnp.pi * self.ground_frequency) * 0.5
        force, torque = Vec3(0.0, 0.0, 0.0), Vec3(0.0, 0.0, 0.0)
        for ahead, aside in ((1, 1), (1, -1), (-1, -1), (-1, 1)):
            foot_b = Vec3(ahead * self.arm[0], aside * self.arm[1], -self.foot_drop)
            depth = -(state.position.z + state.attitude.rotate(foot_b).z)
            slip = state.velocity + state.attitude.rotate(state.rates.cross(foot_b))
            touching = depth > 0.0
            normal = jnp.where(touching, jnp.maximum(stiffness * depth - damping * slip.z, 0.0), 0.0)
            # Coulomb friction, smoothed below 5 cm/s so that it has a derivative.
            rub = self.ground_friction * normal * jax.lax.rsqrt(slip.x**2 + slip.y**2 + 0.05**2)
            push = Vec3(-rub * slip.x, -rub * slip.y, normal)
            force = force + push
            torque = torque + foot_b.cross(state.attitude.unrotate(push))
        return force, torque

    def specific_force(self, state: QuadrotorState, wind: Vec3 | None, randomization: PhysicsRandomization) -> Vec3:
        """Specific force at the center of mass in the body frame: what an ideal accelerometer measures."""
        force_b, _ = self.wrench(state, wind, randomization)
        if self.ground:
            force_b = force_b + state.attitude.unrotate(self.ground_reaction(state)[0])
        return force_b * (1.0 / scaled(self.mass, randomization.mass))

    def _curve(self, coefficients: tuple[float, float], speed: Scalar) -> Scalar:
        linear, quadratic = coefficients
        return quadratic * speed * speed if linear == 0.0 else speed * (linear + quadratic * speed)


def mean_rotor_acceleration(before: Rotors, after: Rotors, dt: float) -> Rotors:
    """Mean acceleration of the rotors over `dt`; with the mean, body and rotors exchange angular momentum exactly."""
    return Rotors(*((b - a) * (1.0 / dt) for a, b in zip(before.parts, after.parts, strict=True)))


racer = Quadrotor()

crazyflie = Quadrotor(
    mass=0.027,
    inertia=(1.4e-5, 1.4e-5, 2.17e-5),
    arm=(0.0325, 0.0325),
    thrust_curve=(0.0, 2.88e-8),
    torque_curve=(0.0, 7.24e-10),
    max_speed=2272.0,
    lag_up=0.045,
    lag_down=0.060,
    rotor_inertia=2.0e-8,
    body_drag=(4.0e-4, 4.0e-4, 8.0e-4),
    rotor_drag=2.0e-6,
    radius=0.07,
    foot_drop=0.015,
)

iris = Quadrotor(
    mass=1.5,
    inertia=(0.029125, 0.029125, 0.055225),
    arm=(0.13, 0.21),
    thrust_curve=(0.0, 5.84e-6),
    torque_curve=(0.0, 3.504e-7),
    max_speed=1100.0,
    lag_up=0.0125,
    lag_down=0.025,
    rotor_inertia=2.6e-5,
    body_drag=(0.02, 0.02, 0.04),
    rotor_drag=1.75e-4,
    radius=0.35,
    foot_drop=0.12,
)

VEHICLES = {"racer": racer, "crazyflie": crazyflie, "iris": iris}
