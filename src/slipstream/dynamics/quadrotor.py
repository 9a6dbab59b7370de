"""A quadrotor as a rigid body with four lagging rotors, drag, gyroscopic terms and feet that touch the ground."""

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
    """One number for each rotor, seen from above."""

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
        """Left minus right: what lifts the left side and rolls the body to the right."""
        return (self.front_left - self.front_right) + (self.rear_left - self.rear_right)

    @property
    def pitching(self) -> Scalar:
        """Rear minus front: what lifts the tail and pitches the nose down."""
        return (self.rear_right - self.front_left) + (self.rear_left - self.front_right)

    @property
    def yawing(self) -> Scalar:
        """The pair that turns clockwise minus the other: its reaction turns the body to the left."""
        return (self.front_left - self.front_right) + (self.rear_right - self.rear_left)


@struct
class QuadrotorState:
    """Where a quadrotor is and how it moves."""

    position: Vec3
    attitude: Quat
    velocity: Vec3  # m/s, world
    rates: Vec3  # rad/s, body
    rotors: Rotors  # rad/s
    memory: Any = None  # of the flight controller, if it has one


@struct
class PhysicsRandomization:
    """How this world's vehicle differs from its drawing, as factors; `None` where it does not."""

    mass: Scalar | None = None
    inertia: Scalar | None = None
    thrust: Scalar | None = None
    lag: Scalar | None = None
    drag: Scalar | None = None


def scaled(value: float, factor: Scalar | None) -> Scalar:
    return value if factor is None else value * factor


@dataclass(frozen=True)
class Quadrotor:
    """A vehicle in X configuration. The defaults are the 5-inch racer."""

    mass: float = 0.6076
    inertia: tuple[float, float, float] = (0.003, 0.003, 0.006)
    arm: tuple[float, float] = (0.0883, 0.0883)
    """Distance of the rotors from the centre, ahead and aside."""
    thrust_curve: tuple[float, float] = (0.0, 2.25e-7)
    """Thrust of a rotor: linear and quadratic coefficient of its speed."""
    torque_curve: tuple[float, float] = (0.0, 1.5e-9)
    """Drag torque of a rotor: linear and quadratic coefficient of its speed."""
    max_speed: float = 5145.0
    lag_up: float = 0.012
    lag_down: float = 0.018
    rotor_inertia: float = 3.0e-6
    body_drag: tuple[float, float, float] = (0.006, 0.006, 0.012)
    """Quadratic drag, N/(m/s)², along the body's axes."""
    rotor_drag: float = 1.0e-5
    """Drag of the spinning rotors across their discs, N/(m/s) for each rad/s."""
    radius: float = 0.15
    """How far the vehicle reaches from its centre: what must fit through a gate."""
    ground: bool = False
    """Whether the feet touch the ground. Tasks that end at a touch need not compute it."""
    foot_drop: float = 0.04
    ground_frequency: float = 25.0
    """Stiffness of the feet, as the frequency in Hz at which the vehicle bounces on them."""
    ground_friction: float = 0.6
    integrator: Literal["euler", "rk4"] = "euler"
    """Integration: 1 is semi-implicit Euler, 4 is Runge-Kutta."""

    def __post_init__(self) -> None:
        if min(self.mass, *self.inertia, *self.arm, self.max_speed, self.lag_up, self.lag_down) <= 0.0:
            raise ValueError("mass, inertia, arm, max_speed and rotor lags of a quadrotor must be positive")
        if self.integrator not in ("euler", "rk4"):
            raise ValueError(f"there is no integrator '{self.integrator}'; choose euler or rk4")

    @property
    def max_thrust(self) -> float:
        """Of one rotor, N."""
        return self.thrust_curve[0] * self.max_speed + self.thrust_curve[1] * self.max_speed**2

    @property
    def hover_speed(self) -> float:
        linear, quadratic = self.thrust_curve
        return (math.sqrt(linear**2 + quadratic * self.mass * GRAVITY) - linear) / (2.0 * quadratic)

    @property
    def torque_per_thrust(self) -> float:
        """Drag torque for each newton of thrust at hover, m."""
        ω = self.hover_speed
        linear, quadratic = self.torque_curve
        return (linear * ω + quadratic * ω**2) / (self.mass * GRAVITY / 4.0)

    def speed_for(self, thrust: Scalar) -> Scalar:
        """The rotor speed that gives `thrust` once settled: the inverse of the thrust curve."""
        linear, quadratic = self.thrust_curve
        if linear == 0.0:
            # The bound is 1 mrad/s; at zero itself a root has no slope, and a fit needs one.
            return jnp.sqrt(jnp.maximum(thrust * (1.0 / quadratic), 1e-6))
        return (jnp.sqrt(linear**2 + 4.0 * quadratic * thrust) - linear) * (0.5 / quadratic)

    def hovering(self, position: Vec3, attitude: Quat, velocity: Vec3, rates: Vec3) -> QuadrotorState:
        """The vehicle there, with its rotors at hover speed."""
        return QuadrotorState(position, attitude, velocity, rates, Rotors(*[self.hover_speed + 0.0 * position.x] * 4))

    def mix(self, thrust: Scalar, torque: Vec3) -> Rotors:
        """The settled rotor speeds for a total thrust and a torque, each rotor within its limits."""
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

    def decay(self, variation: PhysicsRandomization, dt: float) -> tuple[Scalar, Scalar]:
        """What remains of a difference in rotor speed after `dt`, going up and going down."""
        up, down = (scaled(lag, variation.lag) for lag in (self.lag_up, self.lag_down))
        return jnp.exp(-dt / up), jnp.exp(-dt / down)

    def followed(self, rotors: Rotors, target: Rotors, variation: PhysicsRandomization, dt: float) -> Rotors:
        """Rotors drawn towards the `target` speeds for `dt`."""
        up, down = self.decay(variation, dt)
        return Rotors(
            *(t + (ω - t) * jnp.where(t > ω, up, down) for ω, t in zip(rotors.parts, target.parts, strict=True))
        )

    def thrusts(self, rotors: Rotors, variation: PhysicsRandomization) -> Rotors:
        """Of each rotor, N."""
        lift = scaled(1.0, variation.thrust)
        return Rotors(*(self._curve(self.thrust_curve, ω) * lift for ω in rotors.parts))

    def spin_torque(self, flight: QuadrotorState, slope: Rotors) -> Vec3:
        """What rotors do to the body by spinning: they resist being tilted, and turn it as they speed up by `slope`."""
        # Clockwise rotors (those that yaw the body left) carry spin along −z.
        spin = -self.rotor_inertia * flight.rotors.yawing
        return Vec3(-flight.rates.y * spin, flight.rates.x * spin, self.rotor_inertia * slope.yawing)

    def signal_for(self, thrust: Scalar) -> Scalar:
        """The share of full speed at which all rotors together give `thrust`, or come nearest to it."""
        return self.speed_for(jnp.clip(0.25 * thrust, 0.0, self.max_thrust)) / self.max_speed

    def step(
        self, flight: QuadrotorState, target: Rotors, wind: Vec3 | None, variation: PhysicsRandomization, dt: float
    ) -> QuadrotorState:
        """The vehicle after `dt`, its rotors drawn towards the `target` speeds."""
        if self.integrator == "rk4":
            return self._runge_kutta(flight, target, wind, variation, dt)
        rotors = self.followed(flight.rotors, target, variation, dt)
        slope = mean_slope(flight.rotors, rotors, dt)
        flight = replace(flight, rotors=rotors)
        acceleration, spin = self.accelerations(flight, slope, wind, variation)
        velocity = flight.velocity + acceleration * dt
        rates = flight.rates + spin * dt
        return replace(
            flight,
            position=flight.position + velocity * dt,
            attitude=flight.attitude.spun(rates, dt),
            velocity=velocity,
            rates=rates,
        )

    def _runge_kutta(
        self, flight: QuadrotorState, target: Rotors, wind: Vec3 | None, variation: PhysicsRandomization, dt: float
    ) -> QuadrotorState:
        """Fourth order in everything, the quaternion as four plain numbers."""
        memory, flight = flight.memory, replace(flight, memory=None)

        def slope(at: QuadrotorState) -> QuadrotorState:
            rotor_slope = self.rotor_slope(at.rotors, target, variation)
            acceleration, spin = self.accelerations(at, rotor_slope, wind, variation)
            ω = at.rates * 0.5
            return QuadrotorState(
                position=at.velocity,
                attitude=at.attitude * Quat(0.0, ω.x, ω.y, ω.z),
                velocity=acceleration,
                rates=spin,
                rotors=rotor_slope,
            )

        def moved(by: QuadrotorState, h: float) -> QuadrotorState:
            return jax.tree.map(lambda x, dx: x + h * dx, flight, by)

        k1 = slope(flight)
        k2 = slope(moved(k1, dt / 2))
        k3 = slope(moved(k2, dt / 2))
        k4 = slope(moved(k3, dt))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2.0 * (b + c) + d) * (1.0 / 6.0), k1, k2, k3, k4)
        after = moved(mean, dt)
        return replace(after, attitude=after.attitude.unit(), memory=memory)

    def rotor_slope(self, rotors: Rotors, target: Rotors, variation: PhysicsRandomization) -> Rotors:
        up, down = (1.0 / scaled(lag, variation.lag) for lag in (self.lag_up, self.lag_down))
        return Rotors(*((t - ω) * jnp.where(t > ω, up, down) for ω, t in zip(rotors.parts, target.parts, strict=True)))

    def accelerations(
        self, flight: QuadrotorState, slope: Rotors, wind: Vec3 | None, variation: PhysicsRandomization
    ) -> tuple[Vec3, Vec3]:
        """Of the centre of mass in the world, and of the body rates:  J ω̇ = τ − ω × J ω − rotor terms.

        `slope` is how fast the rotors speed up, rad/s².
        """
        mass = scaled(self.mass, variation.mass)
        ix, iy, iz = (scaled(i, variation.inertia) for i in self.inertia)
        force_b, torque = self.wrench(flight, wind, variation)
        ω = flight.rates
        torque = torque - ω.cross(Vec3(ix * ω.x, iy * ω.y, iz * ω.z))
        if self.rotor_inertia:
            torque = torque + self.spin_torque(flight, slope)
        acceleration = flight.attitude.rotate(force_b) * (1.0 / mass) - Vec3(0.0, 0.0, GRAVITY)
        if self.ground:
            push, turn = self.ground_reaction(flight)
            acceleration = acceleration + push * (1.0 / mass)
            torque = torque + turn
        return acceleration, torque * Vec3(1.0 / ix, 1.0 / iy, 1.0 / iz)

    def wrench(self, flight: QuadrotorState, wind: Vec3 | None, variation: PhysicsRandomization) -> tuple[Vec3, Vec3]:
        """Force and torque of rotors and air, in the body."""
        thrust = Rotors(*(self._curve(self.thrust_curve, ω) for ω in flight.rotors.parts))
        drag_torque = Rotors(*(self._curve(self.torque_curve, ω) for ω in flight.rotors.parts))
        lift = scaled(1.0, variation.thrust)
        airspeed = flight.attitude.unrotate(flight.velocity if wind is None else flight.velocity - wind)
        speed = airspeed.norm()
        across = self.rotor_drag * flight.rotors.total
        drag = Vec3(
            airspeed.x * (self.body_drag[0] * speed + across),
            airspeed.y * (self.body_drag[1] * speed + across),
            airspeed.z * (self.body_drag[2] * speed),
        ) * scaled(1.0, variation.drag)
        torque = Vec3(
            self.arm[1] * thrust.rolling * lift, self.arm[0] * thrust.pitching * lift, drag_torque.yawing * lift
        )
        return Vec3(0.0, 0.0, thrust.total * lift) - drag, torque

    def ground_reaction(self, flight: QuadrotorState) -> tuple[Vec3, Vec3]:
        """Force in the world and torque in the body of four damped, rubbing feet on the plane z = 0."""
        stiffness = 0.25 * self.mass * (2.0 * jnp.pi * self.ground_frequency) ** 2
        damping = 0.25 * self.mass * 2.0 * (2.0 * jnp.pi * self.ground_frequency) * 0.5
        force, torque = Vec3(0.0, 0.0, 0.0), Vec3(0.0, 0.0, 0.0)
        for ahead, aside in ((1, 1), (1, -1), (-1, -1), (-1, 1)):
            foot_b = Vec3(ahead * self.arm[0], aside * self.arm[1], -self.foot_drop)
            depth = -(flight.position.z + flight.attitude.rotate(foot_b).z)
            slip = flight.velocity + flight.attitude.rotate(flight.rates.cross(foot_b))
            touching = depth > 0.0
            normal = jnp.where(touching, jnp.maximum(stiffness * depth - damping * slip.z, 0.0), 0.0)
            # Coulomb friction, made smooth below 5 cm/s.
            rub = self.ground_friction * normal * jax.lax.rsqrt(slip.x**2 + slip.y**2 + 0.05**2)
            push = Vec3(-rub * slip.x, -rub * slip.y, normal)
            force = force + push
            torque = torque + foot_b.cross(flight.attitude.unrotate(push))
        return force, torque

    def specific_force(self, flight: QuadrotorState, wind: Vec3 | None, variation: PhysicsRandomization) -> Vec3:
        """What an accelerometer at the centre of mass feels, in the body."""
        force_b, _ = self.wrench(flight, wind, variation)
        if self.ground:
            force_b = force_b + flight.attitude.unrotate(self.ground_reaction(flight)[0])
        return force_b * (1.0 / scaled(self.mass, variation.mass))

    def _curve(self, coefficients: tuple[float, float], speed: Scalar) -> Scalar:
        linear, quadratic = coefficients
        return quadratic * speed * speed if linear == 0.0 else speed * (linear + quadratic * speed)


def mean_slope(before: Rotors, after: Rotors, dt: float) -> Rotors:
    """How fast rotors sped up over `dt`, on average: what the body gets back of their angular momentum, exactly."""
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
