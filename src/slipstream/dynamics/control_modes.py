"""What four numbers in [−1, 1] ask of a vehicle, and simple loops that turn it into rotor speeds."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from ..core.geometry import Scalar, Vec3
from ..core.struct import struct
from .quadrotor import GRAVITY, Quadrotor, QuadrotorState, Rotors


@struct
class NormalizedCommand:
    """The four numbers of a command, each in [−1, 1]; what they mean is the control's affair."""

    a: Scalar
    b: Scalar
    c: Scalar
    d: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        return self.a, self.b, self.c, self.d


@struct
class RateSetpoint:
    """Turn at these rates and push that much."""

    thrust: Scalar  # N, of all rotors
    rates: Vec3  # rad/s, body


@struct
class VelocitySetpoint:
    """Fly at this velocity, turning."""

    velocity: Vec3  # m/s, world
    yaw_rate: Scalar  # rad/s, counter-clockwise


@struct
class PositionSetpoint:
    """Be there, and look that way."""

    position: Vec3
    velocity: Vec3  # added to what closes the gap
    yaw: Scalar


Setpoint = RateSetpoint | VelocitySetpoint | PositionSetpoint | Rotors
"""What a vehicle can be told. Rotor speeds bypass the controller."""


@runtime_checkable
class ControlMode(Protocol):
    """What a stick means, and a loop that does it."""

    def setpoint(self, vehicle: Quadrotor, flight: QuadrotorState, stick: NormalizedCommand) -> Setpoint:
        """What a flight controller would be told."""
        ...

    def rotors(self, vehicle: Quadrotor, flight: QuadrotorState, stick: NormalizedCommand) -> Rotors:
        """The rotor speeds of our own loop, once a physics step."""
        ...


@dataclass(frozen=True)
class RotorControl:
    """Each number is the speed of a rotor; 0 is half of the full speed."""

    def setpoint(self, vehicle: Quadrotor, flight: QuadrotorState, stick: NormalizedCommand) -> Rotors:
        return self.rotors(vehicle, flight, stick)

    def rotors(self, vehicle: Quadrotor, flight: QuadrotorState, stick: NormalizedCommand) -> Rotors:
        return Rotors(*((0.5 + 0.5 * jnp.clip(part, -1.0, 1.0)) * vehicle.max_speed for part in stick.parts))


@dataclass(frozen=True)
class RateControl:
    """Collective thrust (0 is hover) and roll, pitch and yaw rate, held by a proportional loop.

    With 0 at hover an untrained policy stays near where it is, instead of shooting up at twice its weight.
    """

    max_rates: tuple[float, float, float] = (10.0, 10.0, 4.0)
    rate_gain: tuple[float, float, float] = (0.5, 0.5, 0.2)
    """How much of an error in rate the loop closes within the rotors' own lag; towards 1 it would ring."""

    def setpoint(self, vehicle: Quadrotor, flight: QuadrotorState, stick: NormalizedCommand) -> RateSetpoint:
        roll, pitch, yaw = (
            jnp.clip(part, -1.0, 1.0) * limit
            for part, limit in zip((stick.b, stick.c, stick.d), self.max_rates, strict=True)
        )
        return RateSetpoint(collective(vehicle, stick.a), Vec3(roll, pitch, yaw))

    def rotors(self, vehicle: Quadrotor, flight: QuadrotorState, stick: NormalizedCommand) -> Rotors:
        wanted = self.setpoint(vehicle, flight, stick)
        return self.hold(vehicle, flight, wanted.thrust, wanted.rates)

    def hold(self, vehicle: Quadrotor, flight: QuadrotorState, thrust: Scalar, rates: Vec3) -> Rotors:
        """The rotor speeds that turn the body at `rates` while giving `thrust`."""
        inertia = Vec3(*vehicle.inertia)
        bandwidth = Vec3(*self.rate_gain) * (2.0 / (vehicle.lag_up + vehicle.lag_down))
        torque = inertia * bandwidth * (rates - flight.rates)
        torque = torque + flight.rates.cross(inertia * flight.rates)
        # Roll and pitch may use half of what the rotors have, yaw a fifth: it is the first to give way.
        reach = 4.0 * vehicle.max_thrust
        limit = Vec3(
            0.5 * reach * vehicle.arm[1] * 0.5,
            0.5 * reach * vehicle.arm[0] * 0.5,
            0.2 * reach * vehicle.torque_per_thrust,
        )
        return vehicle.mix(thrust, torque.clipped(limit))


@dataclass(frozen=True)
class VelocityControl:
    """Velocity ahead, aside and up in the frame of the heading, and yaw rate."""

    max_velocity: tuple[float, float, float] = (8.0, 8.0, 4.0)
    max_yaw_rate: float = 3.0
    velocity_gain: float = 4.0
    attitude_gain: float = 12.0
    max_tilt: float = 1.05
    loop: RateControl = RateControl()

    def setpoint(self, vehicle: Quadrotor, flight: QuadrotorState, stick: NormalizedCommand) -> VelocitySetpoint:
        ahead, aside, up = (
            jnp.clip(part, -1.0, 1.0) * limit
            for part, limit in zip((stick.a, stick.b, stick.c), self.max_velocity, strict=True)
        )
        nose = flight.attitude.forward
        level = jax.lax.rsqrt(jnp.maximum(nose.x**2 + nose.y**2, 1e-6))
        cos, sin = nose.x * level, nose.y * level
        wanted = Vec3(cos * ahead - sin * aside, sin * ahead + cos * aside, up)
        return VelocitySetpoint(wanted, jnp.clip(stick.d, -1.0, 1.0) * self.max_yaw_rate)

    def rotors(self, vehicle: Quadrotor, flight: QuadrotorState, stick: NormalizedCommand) -> Rotors:
        told = self.setpoint(vehicle, flight, stick)
        wanted = told.velocity
        pull = (wanted - flight.velocity) * self.velocity_gain + Vec3(0.0, 0.0, GRAVITY)
        lift = jnp.maximum(pull.z, 0.3 * GRAVITY)
        # Height before speed: the horizontal part gives way at the largest tilt.
        across = jnp.sqrt(pull.x**2 + pull.y**2 + 1e-9)
        give = jnp.minimum(1.0, lift * jnp.tan(self.max_tilt) / across)
        pull = Vec3(pull.x * give, pull.y * give, lift)
        error = Vec3(0.0, 0.0, 1.0).cross(flight.attitude.unrotate(pull.unit())) * self.attitude_gain
        thrust = vehicle.mass * jnp.maximum(pull.dot(flight.attitude.up), 0.0)
        return self.loop.hold(vehicle, flight, thrust, Vec3(error.x, error.y, told.yaw_rate))


def collective(vehicle: Quadrotor, stick: Scalar) -> Scalar:
    """Total thrust: −1 is none, 0 is hover, 1 is all there is."""
    hover = vehicle.mass * GRAVITY
    stick = jnp.clip(stick, -1.0, 1.0)
    return jnp.where(stick > 0.0, hover + stick * (4.0 * vehicle.max_thrust - hover), hover * (1.0 + stick))


@dataclass(frozen=True)
class FittedParameters:
    """What a fit to a plant found: factors on the vehicle's numbers, and the gains of its rate loop."""

    thrust: float = 1.0
    """factor on the vehicle's thrust; likewise the following"""
    motor_lag: float = 1.0
    drag: float = 1.0
    rate_gain_roll_pitch: float = 0.5
    """fraction of an error in roll or pitch rate that is closed within the rotors' lag"""
    rate_gain_yaw: float = 0.2
    """the same for yaw"""

    def __post_init__(self) -> None:
        if min(self.thrust, self.motor_lag, self.rate_gain_roll_pitch, self.rate_gain_yaw) <= 0.0 or self.drag < 0.0:
            raise ValueError("fitted thrust, motor_lag and rate gains must be positive, and drag not negative")

    def applied(self, vehicle: Quadrotor) -> Quadrotor:
        """The vehicle with those factors, but for thrust: a vehicle that knew of it would make it good."""
        return replace(
            vehicle,
            lag_up=self.motor_lag * vehicle.lag_up,
            lag_down=self.motor_lag * vehicle.lag_down,
            body_drag=tuple(self.drag * c for c in vehicle.body_drag),
            rotor_drag=self.drag * vehicle.rotor_drag,
        )

    @property
    def loop(self) -> RateControl:
        return RateControl(rate_gain=(self.rate_gain_roll_pitch, self.rate_gain_roll_pitch, self.rate_gain_yaw))


CONTROL_MODES: dict[str, ControlMode] = {
    "motor_speeds": RotorControl(), "body_rates": RateControl(), "velocity": VelocityControl(),
}  # fmt: skip
"""What an action can command."""
