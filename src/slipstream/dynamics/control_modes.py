"""Control modes: the setpoint that a normalized command stands for, and simple loops that follow it."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from ..core.geometry import Scalar, Vec3
from ..core.struct import struct
from .quadrotor import GRAVITY, Quadrotor, QuadrotorState, Rotors


@struct
class NormalizedCommand:
    """A command of four channels, each in [−1, 1]; their meaning depends on the control mode.

    | mode         | a                | b               | c                | d              |
    |--------------|------------------|-----------------|------------------|----------------|
    | body_rates   | thrust (0 hover) | roll rate       | pitch rate       | yaw rate       |
    | motor_speeds | front left       | front right     | rear right       | rear left      |
    | velocity     | forward velocity | left velocity   | upward velocity  | yaw rate       |

    Rates and velocities are fractions of the mode's limits; motor speeds go from 0 at −1 to the largest at 1.
    Velocities are in the heading frame: horizontal, turned by the yaw.
    """

    a: Scalar
    b: Scalar
    c: Scalar
    d: Scalar

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        return self.a, self.b, self.c, self.d


@struct
class RateSetpoint:
    """Collective thrust and body rates."""

    thrust: Scalar  # N, sum of all rotors
    rates: Vec3  # rad/s, body


@struct
class VelocitySetpoint:
    """Velocity and yaw rate."""

    velocity: Vec3  # m/s, world
    yaw_rate: Scalar  # rad/s, counter-clockwise


@struct
class PositionSetpoint:
    """Position and yaw."""

    position: Vec3  # m, world
    velocity: Vec3  # m/s, world, feed-forward
    yaw: Scalar  # rad, counter-clockwise from east


Setpoint = RateSetpoint | VelocitySetpoint | PositionSetpoint | Rotors
"""What a flight controller accepts. Rotor speeds (rad/s) bypass its loops."""


@runtime_checkable
class ControlMode(Protocol):
    """The meaning of a normalized command, and a loop that follows it."""

    def setpoint(self, vehicle: Quadrotor, state: QuadrotorState, command: NormalizedCommand) -> Setpoint:
        """The setpoint for a flight controller."""
        ...

    def rotors(self, vehicle: Quadrotor, state: QuadrotorState, command: NormalizedCommand) -> Rotors:
        """Target rotor speeds of a simple loop, computed every physics step."""
        ...


@dataclass(frozen=True)
class RotorControl:
    """Motor speeds; 0 is half of the largest speed."""

    def setpoint(self, vehicle: Quadrotor, state: QuadrotorState, command: NormalizedCommand) -> Rotors:
        return self.rotors(vehicle, state, command)

    def rotors(self, vehicle: Quadrotor, state: QuadrotorState, command: NormalizedCommand) -> Rotors:
        return Rotors(*((0.5 + 0.5 * jnp.clip(part, -1.0, 1.0)) * vehicle.max_speed for part in command.parts))


@dataclass(frozen=True)
class RateControl:
    """Collective thrust and body rates, followed by a proportional loop.

    A thrust command of 0 is hover, so that an untrained policy stays near its start.
    """

    max_rates: tuple[float, float, float] = (10.0, 10.0, 4.0)
    """roll, pitch and yaw rate at a full command, rad/s"""
    rate_gain: tuple[float, float, float] = (0.5, 0.5, 0.2)
    """fraction of a rate error that is corrected within the rotors' time constant; near 1 the loop oscillates"""

    def setpoint(self, vehicle: Quadrotor, state: QuadrotorState, command: NormalizedCommand) -> RateSetpoint:
        roll, pitch, yaw = (
            jnp.clip(part, -1.0, 1.0) * limit
            for part, limit in zip((command.b, command.c, command.d), self.max_rates, strict=True)
        )
        return RateSetpoint(collective(vehicle, command.a), Vec3(roll, pitch, yaw))

    def rotors(self, vehicle: Quadrotor, state: QuadrotorState, command: NormalizedCommand) -> Rotors:
        wanted = self.setpoint(vehicle, state, command)
        return self.hold(vehicle, state, wanted.thrust, wanted.rates)

    def hold(self, vehicle: Quadrotor, state: QuadrotorState, thrust: Scalar, rates: Vec3) -> Rotors:
        """Rotor speeds that drive the body rates to `rates` at a collective `thrust`."""
        inertia = Vec3(*vehicle.inertia)
        bandwidth = Vec3(*self.rate_gain) * (2.0 / (vehicle.lag_up + vehicle.lag_down))
        torque = inertia * bandwidth * (rates - state.rates)
        torque = torque + state.rates.cross(inertia * state.rates)
        # Roll and pitch may use half of the available torque, yaw a fifth: in saturation, yaw matters least.
        reach = 4.0 * vehicle.max_thrust
        limit = Vec3(
            0.5 * reach * vehicle.arm[1] * 0.5,
            0.5 * reach * vehicle.arm[0] * 0.5,
            0.2 * reach * vehicle.torque_per_thrust,
        )
        return vehicle.mix(thrust, torque.clipped(limit))


@dataclass(frozen=True)
class VelocityControl:
    """Velocity in the heading frame and yaw rate, followed by cascaded proportional loops."""

    max_velocity: tuple[float, float, float] = (8.0, 8.0, 4.0)
    """forward, left and upward velocity at a full command, m/s"""
    max_yaw_rate: float = 3.0
    """yaw rate at a full command, rad/s"""
    velocity_gain: float = 4.0
    """acceleration per velocity error, 1/s"""
    attitude_gain: float = 12.0
    """body rate per attitude error, 1/s"""
    max_tilt: float = 1.05
    """rad"""
    rate_control: RateControl = RateControl()

    def setpoint(self, vehicle: Quadrotor, state: QuadrotorState, command: NormalizedCommand) -> VelocitySetpoint:
        ahead, aside, up = (
            jnp.clip(part, -1.0, 1.0) * limit
            for part, limit in zip((command.a, command.b, command.c), self.max_velocity, strict=True)
        )
        nose = state.attitude.forward
        level = jax.lax.rsqrt(jnp.maximum(nose.x**2 + nose.y**2, 1e-6))
        cos, sin = nose.x * level, nose.y * level
        wanted = Vec3(cos * ahead - sin * aside, sin * ahead + cos * aside, up)
        return VelocitySetpoint(wanted, jnp.clip(command.d, -1.0, 1.0) * self.max_yaw_rate)

    def rotors(self, vehicle: Quadrotor, state: QuadrotorState, command: NormalizedCommand) -> Rotors:
        setpoint = self.setpoint(vehicle, state, command)
        wanted = setpoint.velocity
        pull = (wanted - state.velocity) * self.velocity_gain + Vec3(0.0, 0.0, GRAVITY)
        lift = jnp.maximum(pull.z, 0.3 * GRAVITY)
        # Vertical thrust has priority: the horizontal part is limited by the largest tilt.
        across = jnp.sqrt(pull.x**2 + pull.y**2 + 1e-9)
        give = jnp.minimum(1.0, lift * jnp.tan(self.max_tilt) / across)
        pull = Vec3(pull.x * give, pull.y * give, lift)
        error = Vec3(0.0, 0.0, 1.0).cross(state.attitude.unrotate(pull.unit())) * self.attitude_gain
        thrust = vehicle.mass * jnp.maximum(pull.dot(state.attitude.up), 0.0)
        return self.rate_control.hold(vehicle, state, thrust, Vec3(error.x, error.y, setpoint.yaw_rate))


def collective(vehicle: Quadrotor, command: Scalar) -> Scalar:
    """Total thrust of a normalized command: −1 is none, 0 is hover, 1 is the largest."""
    hover = vehicle.mass * GRAVITY
    command = jnp.clip(command, -1.0, 1.0)
    return jnp.where(command > 0.0, hover + command * (4.0 * vehicle.max_thrust - hover), hover * (1.0 + command))


@dataclass(frozen=True)
class FittedParameters:
    """Parameters identified by a fit: factors on the nominal vehicle, and the gains of its rate loop."""

    thrust: float = 1.0
    """factor on the nominal thrust"""
    motor_lag: float = 1.0
    """factor on the nominal time constants of the rotors"""
    drag: float = 1.0
    """factor on the nominal drag"""
    rate_gain_roll_pitch: float = 0.5
    """fraction of a roll or pitch rate error that is corrected within the rotors' time constant"""
    rate_gain_yaw: float = 0.2
    """fraction of a yaw rate error that is corrected within the rotors' time constant"""

    def __post_init__(self) -> None:
        if min(self.thrust, self.motor_lag, self.rate_gain_roll_pitch, self.rate_gain_yaw) <= 0.0 or self.drag < 0.0:
            raise ValueError("fitted thrust, motor_lag and rate gains must be positive, and drag not negative")

    def apply(self, vehicle: Quadrotor) -> Quadrotor:
        """The vehicle with these factors, except thrust: a controller that knew the true thrust would compensate it."""
        return replace(
            vehicle,
            lag_up=self.motor_lag * vehicle.lag_up,
            lag_down=self.motor_lag * vehicle.lag_down,
            body_drag=tuple(self.drag * c for c in vehicle.body_drag),
            rotor_drag=self.drag * vehicle.rotor_drag,
        )

    @property
    def rate_control(self) -> RateControl:
        """The rate loop with the fitted gains."""
        return RateControl(rate_gain=(self.rate_gain_roll_pitch, self.rate_gain_roll_pitch, self.rate_gain_yaw))


CONTROL_MODES: dict[str, ControlMode] = {
    "motor_speeds": RotorControl(), "body_rates": RateControl(), "velocity": VelocityControl(),
}  # fmt: skip
"""Control modes by the name of the setting `control_mode`."""
