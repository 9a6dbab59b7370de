"""A flight controller with the structure of PX4's: position, velocity, attitude and rate loops, and a mixer.

Pure, so that it flies the MuJoCo vehicle in evaluation and thousands of worlds in training. Written in our frames
(world east-north-up, body forward-left-up); thrust and torque are normalised as PX4 has them, 1 is all the motors give.
Gains, limits and filters are PX4's defaults; `Cascade.of_version` knows where releases differ.

What is simplified: all loops run at the rate of the gyroscope (PX4's outer ones run at 100 Hz), the hover thrust is
learned by a first-order law in place of a Kalman filter, and there is no estimator: what is told is believed.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ..core.geometry import Quat, Scalar, Vec3, sin_cos
from ..core.struct import struct
from .control_modes import PositionSetpoint, RateSetpoint, Setpoint
from .quadrotor import GRAVITY, Quadrotor, QuadrotorState, Rotors, iris


@struct
class BiquadState:
    """The memory of a second-order low-pass on three axes."""

    newer: Vec3
    older: Vec3


@struct
class ControllerState:
    """What the controller remembers from one step to the next."""

    velocity: Vec3  # of the step before
    acceleration: Vec3  # its filtered derivative
    velocity_integral: Vec3  # m/s²
    gyroscope: BiquadState
    rates: Vec3  # filtered, of the step before
    spin: Vec3  # their filtered derivative, rad/s²
    rate_integral: Vec3
    yaw_torque: Scalar  # filtered
    hover: Scalar  # signal at which the vehicle is thought to hover
    short: Vec3  # torque that the mixer could not give


def low_pass(frequency: float, dt: float) -> float:
    """The share of a new sample in a first-order low-pass."""
    return dt / (dt + 1.0 / (2.0 * math.pi * frequency))


def smoothed(memory: BiquadState, sample: Vec3, frequency: float, dt: float) -> tuple[Vec3, BiquadState]:
    """A second-order Butterworth low-pass, by the bilinear transform."""
    warped = math.tan(math.pi * frequency * dt)
    scale = 1.0 + math.sqrt(2.0) * warped + warped**2
    gain = warped**2 / scale
    a1, a2 = 2.0 * (warped**2 - 1.0) / scale, (1.0 - math.sqrt(2.0) * warped + warped**2) / scale
    newest = sample - memory.newer * a1 - memory.older * a2
    return (newest + memory.newer * 2.0 + memory.older) * gain, BiquadState(newest, memory.newer)


@dataclass(frozen=True)
class Px4Controller:
    """The controller; its fields are PX4's parameters, the defaults those of v1.17."""

    position_gain: tuple[float, float] = (0.95, 1.0)
    """along the ground and up; likewise the following: MPC_XY_P, MPC_Z_P"""
    velocity_gain: tuple[float, float] = (1.8, 4.0)
    velocity_integral: tuple[float, float] = (0.4, 2.0)
    velocity_damping: tuple[float, float] = (0.2, 0.0)
    max_speed: float = 12.0
    max_climb: float = 3.0
    max_sink: float = 1.5
    max_tilt: float = math.radians(45.0)
    min_thrust: float = 0.12
    max_thrust: float = 1.0
    thrust_margin: float = 0.3
    """thrust kept for going along the ground while climbing at full power: MPC_THR_XY_MARG"""
    hover: float = 0.0
    """signal at which the vehicle is first thought to hover; 0 is where it really does"""
    hover_time: float = 2.0
    """seconds in which that is learned"""
    attitude_gain: tuple[float, float, float] = (4.0, 4.0, 2.8)
    yaw_weight: float = 0.4
    max_rates: tuple[float, float, float] = (math.radians(220.0), math.radians(220.0), math.radians(200.0))
    rate_gain: tuple[float, float, float] = (0.15, 0.15, 0.2)
    rate_integral: tuple[float, float, float] = (0.2, 0.2, 0.1)
    rate_damping: tuple[float, float, float] = (0.003, 0.003, 0.0)
    integral_limit: float = 0.3
    gyroscope_cutoff: float = 40.0
    spin_cutoff: float = 20.0
    yaw_torque_cutoff: float = 2.0
    """0 is no filter, as up to v1.15"""
    acceleration_cutoff: float = 5.0
    thrust_model: float = 0.0
    """share of the square in how thrust follows a motor's signal, made good in the mixer: THR_MDL_FAC"""
    rate: float = 250.0
    """Hz at which it runs: that of the gyroscope"""

    def __post_init__(self) -> None:
        if self.rate <= 2.5 * self.gyroscope_cutoff:
            raise ValueError(f"a controller at {self.rate:g} Hz cannot filter at {self.gyroscope_cutoff:g} Hz")

    @classmethod
    def of_version(cls, version: str, **changes: Any) -> "Px4Controller":
        """The defaults of a release of PX4, such as 1.14 or v1.17.0."""
        try:
            major, minor = (int(part) for part in version.removeprefix("v").split(".")[:2])
        except ValueError:
            raise ValueError(f"'{version}' is no version of PX4; write it as 1.17") from None
        if (major, minor) < (1, 13):
            raise ValueError(f"gains are known from PX4 1.13 on, not for {version}")
        stock = cls(**changes)
        if (major, minor) < (1, 17):
            stock = replace(stock, attitude_gain=(6.5, 6.5, 2.8), spin_cutoff=30.0)
        return replace(stock, yaw_torque_cutoff=0.0) if (major, minor) < (1, 16) else stock

    def tuned_for(self, vehicle: Quadrotor) -> "Px4Controller":
        """The controller as the owner of another vehicle than the iris would set it up.

        A torque of 1 turns a small racer four times as fast as the iris that the stock gains are for. Here the loop
        closes half of an error within the lag of the rotors; in yaw less, where rotors that speed up kick the body
        round at once and a stiff loop would shake. The integral and the damping keep their shares.
        """
        if vehicle.arm == iris.arm and vehicle.inertia == iris.inertia:
            return self
        lag = 0.5 * (vehicle.lag_up + vehicle.lag_down)
        wanted = [0.5 / (lag * turned) for turned in authority(vehicle)]
        wanted[2] = min(wanted[2], 1.5 / kick(vehicle))
        scale = [new / old for new, old in zip(wanted, self.rate_gain, strict=True)]
        return replace(
            self,
            rate_gain=tuple(wanted),
            rate_integral=tuple(g * s for g, s in zip(self.rate_integral, scale, strict=True)),
            rate_damping=tuple(0.5 * g * s for g, s in zip(self.rate_damping, scale, strict=True)),
            gyroscope_cutoff=80.0,
            spin_cutoff=40.0,
            thrust_model=1.0,
            yaw_torque_cutoff=0.0,
        )

    @property
    def dt(self) -> float:
        return 1.0 / self.rate

    def start(self, vehicle: Quadrotor, flight: QuadrotorState) -> ControllerState:
        """Awake and flying like that."""
        zero = 0.0 * flight.position.x
        still = Vec3(zero, zero, zero)
        hover = self.hover or self.thrust_curve_of(vehicle.hover_speed / vehicle.max_speed)
        # Filters as if the rates had been these for ever.
        warped = math.tan(math.pi * self.gyroscope_cutoff * self.dt)
        settled = flight.rates * (0.25 * (1.0 + math.sqrt(2.0) * warped + warped**2) / warped**2)
        return ControllerState(
            velocity=flight.velocity,
            acceleration=still,
            velocity_integral=still,
            gyroscope=BiquadState(settled, settled),
            rates=flight.rates,
            spin=still,
            rate_integral=still,
            yaw_torque=zero,
            hover=zero + hover,
            short=still,
        )

    def control(
        self, vehicle: Quadrotor, flight: QuadrotorState, memory: ControllerState, setpoint: Setpoint
    ) -> tuple[Rotors, ControllerState]:
        """The rotor speeds to draw towards until the next call. `flight` is what the sensors say."""
        if isinstance(setpoint, Rotors):
            return setpoint, memory
        thrust, rates, memory = self.outer(vehicle, flight, memory, setpoint)
        torque, memory = self.rate_loop(flight.rates, rates, memory)
        signals, short = self.mixed(vehicle, thrust, torque)
        return Rotors(*(self.inverse_thrust_curve(s) * vehicle.max_speed for s in signals.parts)), replace(
            memory, short=short
        )

    def inverse_thrust_curve(self, signal: Scalar) -> Scalar:
        """The motor signal for a share of the thrust."""
        f = self.thrust_model
        if f == 0.0:
            return signal
        return (jnp.sqrt((1.0 - f) ** 2 + 4.0 * f * signal) - (1.0 - f)) * (0.5 / f)

    def thrust_curve_of(self, signal: Scalar) -> Scalar:
        """The share of the thrust that a motor signal is taken for."""
        return signal * (self.thrust_model * signal + (1.0 - self.thrust_model))

    def outer(
        self, vehicle: Quadrotor, flight: QuadrotorState, memory: ControllerState, setpoint: Setpoint
    ) -> tuple[Scalar, Vec3, ControllerState]:
        """The collective signal and the rates that the setpoint asks for."""
        if isinstance(setpoint, RateSetpoint):
            return self.thrust_curve_of(vehicle.signal_for(setpoint.thrust)), setpoint.rates, memory
        memory = self.noticed(flight, memory)
        nose = flight.attitude.forward
        flat = jax.lax.rsqrt(jnp.maximum(nose.x**2 + nose.y**2, 1e-9))
        cos, sin, turn = nose.x * flat, nose.y * flat, 0.0
        if isinstance(setpoint, PositionSetpoint):
            across, up = self.position_gain
            wanted = (setpoint.position - flight.position) * Vec3(across, across, up) + setpoint.velocity
            sin, cos = sin_cos(setpoint.yaw)
        else:
            # Nobody holds the heading: the yaw that is wanted is the one there is.
            wanted, turn = setpoint.velocity, setpoint.yaw_rate
        push, memory = self.velocity_loop(self.within(wanted), flight.velocity, memory)
        rates = self.attitude_loop(flight.attitude, push.unit(), cos, sin, turn)
        hover = self.learned_hover(push.norm(), flight, memory)
        return push.norm(), rates, replace(memory, hover=hover)

    def noticed(self, flight: QuadrotorState, memory: ControllerState) -> ControllerState:
        """How the velocity changes, through a low-pass."""
        slope = (flight.velocity - memory.velocity) * self.rate
        share = low_pass(self.acceleration_cutoff, self.dt)
        return replace(
            memory, velocity=flight.velocity, acceleration=memory.acceleration + (slope - memory.acceleration) * share
        )

    def within(self, velocity: Vec3) -> Vec3:
        """A velocity brought within the limits."""
        square = velocity.x**2 + velocity.y**2
        give = jnp.minimum(1.0, self.max_speed * jax.lax.rsqrt(jnp.maximum(square, 1e-9)))
        return Vec3(velocity.x * give, velocity.y * give, jnp.clip(velocity.z, -self.max_sink, self.max_climb))

    def velocity_loop(self, wanted: Vec3, velocity: Vec3, memory: ControllerState) -> tuple[Vec3, ControllerState]:
        """Thrust as a vector in the world, normalised: height first, but never all of it."""
        gain, damping, integral = (
            Vec3(across, across, up)
            for across, up in (self.velocity_gain, self.velocity_damping, self.velocity_integral)
        )
        error = wanted - velocity
        asked = error * gain + memory.velocity_integral - memory.acceleration * damping
        # The tilt is found against plain gravity, so that climbing does not change it.
        across = jnp.sqrt(jnp.maximum(asked.x**2 + asked.y**2, 1e-12))
        lean = jnp.minimum(1.0, GRAVITY * math.tan(self.max_tilt) / across)
        axis = Vec3(asked.x * lean, asked.y * lean, GRAVITY).unit()
        lift = memory.hover * (1.0 + asked.z * (1.0 / GRAVITY))
        collective = jnp.maximum(lift / axis.z, self.min_thrust)
        push = axis * collective
        stuck = ((push.z <= self.min_thrust) & (error.z <= 0.0)) | ((push.z >= self.max_thrust) & (error.z >= 0.0))
        flat = jnp.sqrt(jnp.maximum(push.x**2 + push.y**2, 1e-12))
        margin = jnp.minimum(flat, self.thrust_margin)
        up = jnp.minimum(push.z, jnp.sqrt(self.max_thrust**2 - margin**2))
        room = jnp.sqrt(jnp.maximum(self.max_thrust**2 - up**2, 0.0))
        give = jnp.minimum(1.0, room / flat)
        push = Vec3(push.x * give, push.y * give, up)
        # Anti-windup: the integral follows what could not be given along the ground.
        scale = GRAVITY / memory.hover
        given = jnp.sqrt(push.x**2 + push.y**2) * scale
        lost = jnp.maximum(1.0 - given / across, 0.0) * (2.0 / self.velocity_gain[0])
        error = Vec3(error.x - asked.x * lost, error.y - asked.y * lost, jnp.where(stuck, 0.0, error.z))
        total = memory.velocity_integral + error * integral * self.dt
        total = replace(total, z=jnp.clip(total.z, -GRAVITY, GRAVITY))
        return push, replace(memory, velocity_integral=total)

    def attitude_loop(self, attitude: Quat, axis: Vec3, cos: Scalar, sin: Scalar, turn: Scalar) -> Vec3:
        """Rates that bring the thrust to `axis` first, and the nose to the heading with less weight."""
        tilted = attitude.unrotate(axis)
        # The shortest turn that brings the body's z to the axis, as the body sees it.
        lean = Quat(1.0 + jnp.maximum(tilted.z, -0.999), -tilted.y, tilted.x, 0.0 * tilted.x).unit()
        reduced = attitude * lean
        nose = Vec3(-sin, cos, 0.0 * cos).cross(axis).unit()
        off = jnp.arctan2(reduced.left.dot(nose), reduced.forward.dot(nose)) * self.yaw_weight
        s, c = sin_cos(0.5 * off)
        error = lean * Quat(c, 0.0 * c, 0.0 * c, s)
        error = Vec3(error.x, error.y, error.z) * jnp.where(error.w < 0.0, -2.0, 2.0)
        roll, pitch, yaw = self.attitude_gain
        wanted = error * Vec3(roll, pitch, yaw / self.yaw_weight)
        wanted = wanted + attitude.unrotate(Vec3(0.0, 0.0, 1.0)) * turn
        return wanted.clipped(Vec3(*self.max_rates))

    def learned_hover(self, signal: Scalar, flight: QuadrotorState, memory: ControllerState) -> Scalar:
        """The signal at which the vehicle would not climb, judged by how it climbs."""
        lift = signal * flight.attitude.up.z
        now = lift * GRAVITY / jnp.clip(memory.acceleration.z + GRAVITY, 0.3 * GRAVITY, 2.0 * GRAVITY)
        level = (flight.attitude.up.z > 0.9) & (jnp.abs(memory.acceleration.z) < 2.0)
        share = jnp.where(level, self.dt / self.hover_time, 0.0)
        return jnp.clip(memory.hover + share * (now - memory.hover), 0.1, 0.9)

    def rate_loop(self, measured: Vec3, wanted: Vec3, memory: ControllerState) -> tuple[Vec3, ControllerState]:
        """Torque, normalised. Damping acts on what is measured; the integral stops where the mixer gave less."""
        rates, gyroscope = smoothed(memory.gyroscope, measured, self.gyroscope_cutoff, self.dt)
        slope = (rates - memory.rates) * self.rate
        spin = memory.spin + (slope - memory.spin) * low_pass(self.spin_cutoff, self.dt)
        error = wanted - rates
        torque = error * Vec3(*self.rate_gain) + memory.rate_integral - spin * Vec3(*self.rate_damping)
        fade = error * (1.0 / math.radians(400.0))
        parts = []
        for e, f, i, gain, short in zip(
            error.parts, fade.parts, memory.rate_integral.parts, self.rate_integral, memory.short.parts, strict=True
        ):
            held = (short * e) > 1e-6  # more of it would not be given either
            grown = i + jnp.where(held, 0.0, jnp.maximum(1.0 - f * f, 0.0) * gain * e * self.dt)
            parts.append(jnp.clip(grown, -self.integral_limit, self.integral_limit))
        yaw = torque.z
        if self.yaw_torque_cutoff:
            yaw = memory.yaw_torque + (yaw - memory.yaw_torque) * low_pass(self.yaw_torque_cutoff, self.dt)
        memory = replace(
            memory, gyroscope=gyroscope, rates=rates, spin=spin, rate_integral=Vec3(*parts), yaw_torque=yaw
        )
        return Vec3(*(jnp.clip(part, -1.0, 1.0) for part in (torque.x, torque.y, yaw))), memory

    def mixed(self, vehicle: Quadrotor, thrust: Scalar, torque: Vec3) -> tuple[Rotors, Vec3]:
        """Motor signals in [0, 1], and the torque that could not be given.

        What does not fit is taken away in turn: thrust, roll, pitch, and yaw before all of them.
        """
        ahead, aside = vehicle.arm
        shorter = min(ahead, aside) * math.sqrt(0.5)
        roll, pitch = shorter / aside, shorter / ahead
        rolls, pitches, yaws = (roll, -roll, -roll, roll), (-pitch, -pitch, pitch, pitch), (1.0, -1.0, 1.0, -1.0)
        lifts = (1.0,) * 4
        signals = [thrust + r * torque.x + p * torque.y for r, p in zip(rolls, pitches, strict=True)]
        signals = fitted(signals, lifts, only_less=True)
        signals = fitted(fitted(signals, rolls), pitches)
        signals = [s + y * torque.z for s, y in zip(signals, yaws, strict=True)]
        signals = fitted(signals, yaws, top=1.15)
        signals = fitted(signals, lifts, only_less=True)
        signals = [jnp.clip(s, 0.0, 1.0) for s in signals]
        given = Vec3(*(
            sum(w * s for w, s in zip(ways, signals, strict=True)) / sum(w * w for w in ways)
            for ways in (rolls, pitches, yaws)
        ))  # fmt: skip
        return Rotors(*signals), torque - given


def authority(vehicle: Quadrotor) -> tuple[float, float, float]:
    """How fast the rates change at hover for a torque of 1 in the mixer, rad/s²."""
    slope = 2.0 * vehicle.max_thrust * vehicle.hover_speed / vehicle.max_speed
    lever = min(vehicle.arm) * math.sqrt(0.5)
    ix, iy, iz = vehicle.inertia
    return 4.0 * slope * lever / ix, 4.0 * slope * lever / iy, 4.0 * slope * vehicle.torque_per_thrust / iz


def kick(vehicle: Quadrotor) -> float:
    """The yaw rate that a vehicle gets at once, before any drag of the rotors acts, for a torque of 1 in the mixer."""
    return max(4.0 * vehicle.rotor_inertia * vehicle.max_speed / vehicle.inertia[2], 1e-9)


def fitted(signals: list[Scalar], ways: tuple[float, ...], only_less: bool = False, top: float = 1.0) -> list[Scalar]:
    """Signals moved along `ways` until they fit between 0 and `top`, or as far as moving helps."""
    for share in (1.0, 0.5):
        least, most = 0.0, 0.0
        for signal, way in zip(signals, ways, strict=True):
            over = jnp.minimum(top - signal, 0.0) + jnp.maximum(-signal, 0.0)  # what takes it back to its limit
            k = over / way
            least, most = jnp.minimum(least, k), jnp.maximum(most, k)
        gain = (least + most) * share
        if only_less:
            gain = jnp.minimum(gain, 0.0)
        signals = [signal + gain * way for signal, way in zip(signals, ways, strict=True)]
    return signals
