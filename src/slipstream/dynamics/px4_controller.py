"""PX4's multicopter controller: position, velocity, attitude and rate loops, and control allocation.

Pure functions, so it flies the MuJoCo vehicle in evaluation and thousands of worlds in training. Frames are ours (world
east-north-up, body forward-left-up); thrust and torque are normalized as in PX4, where 1 is all the motors can give.
Gains, limits and filters are PX4's defaults; `Px4Controller.of_version` has the differences between releases.

Simplifications: all loops run at the gyroscope's rate (PX4's outer loops run at 100 Hz), a first-order filter
estimates the hover thrust instead of a Kalman filter, and there is no state estimator.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ..core.geometry import Quat, Scalar, Vec3, sin_cos
from ..core.struct import struct
from .control_modes import PositionSetpoint, RateSetpoint, Setpoint, VelocitySetpoint
from .quadrotor import GRAVITY, Quadrotor, QuadrotorState, Rotors, iris


@struct
class BiquadState:
    """Delay elements of a second-order low-pass filter on three axes."""

    newer: Vec3
    older: Vec3


@struct
class ControllerState:
    """The controller's filters, integrals and estimates between two steps."""

    velocity: Vec3  # m/s, of the previous step
    acceleration: Vec3  # m/s², filtered derivative of the velocity
    velocity_integral: Vec3  # m/s²
    gyroscope: BiquadState
    rates: Vec3  # rad/s, filtered, of the previous step
    angular_acceleration: Vec3  # rad/s², filtered derivative of the rates
    rate_integral: Vec3  # normalized torque
    yaw_torque: Scalar  # normalized, filtered
    hover_thrust: Scalar  # estimated, normalized
    unallocated_torque: Vec3  # normalized torque that the motors could not give


def low_pass_gain(frequency: float, dt: float) -> float:
    """The weight of a new sample in a first-order low-pass filter."""
    return dt / (dt + 1.0 / (2.0 * math.pi * frequency))


def biquad_low_pass(memory: BiquadState, sample: Vec3, frequency: float, dt: float) -> tuple[Vec3, BiquadState]:
    """A sample through a second-order Butterworth low-pass filter (bilinear transform), and the filter's next state."""
    warped = math.tan(math.pi * frequency * dt)
    scale = 1.0 + math.sqrt(2.0) * warped + warped**2
    gain = warped**2 / scale
    a1, a2 = 2.0 * (warped**2 - 1.0) / scale, (1.0 - math.sqrt(2.0) * warped + warped**2) / scale
    newest = sample - memory.newer * a1 - memory.older * a2
    return (newest + memory.newer * 2.0 + memory.older) * gain, BiquadState(newest, memory.newer)


@dataclass(frozen=True)
class Px4Controller:
    """PX4's multicopter controller. Its fields are PX4's parameters, with the defaults of v1.17."""

    position_p: tuple[float, float] = (0.95, 1.0)
    """position gain, horizontal and vertical, 1/s: MPC_XY_P, MPC_Z_P"""
    velocity_p: tuple[float, float] = (1.8, 4.0)
    """proportional velocity gain, horizontal and vertical: MPC_XY_VEL_P_ACC, MPC_Z_VEL_P_ACC"""
    velocity_i: tuple[float, float] = (0.4, 2.0)
    """integral velocity gain: MPC_XY_VEL_I_ACC, MPC_Z_VEL_I_ACC"""
    velocity_d: tuple[float, float] = (0.2, 0.0)
    """derivative velocity gain: MPC_XY_VEL_D_ACC, MPC_Z_VEL_D_ACC"""
    max_speed: float = 12.0
    """largest horizontal velocity, m/s: MPC_XY_VEL_MAX"""
    max_climb: float = 3.0
    """largest upward velocity, m/s: MPC_Z_VEL_MAX_UP"""
    max_sink: float = 1.5
    """largest downward velocity, m/s: MPC_Z_VEL_MAX_DN"""
    max_tilt: float = math.radians(45.0)
    """largest tilt, rad: MPC_TILTMAX_AIR"""
    min_thrust: float = 0.12
    """smallest normalized thrust: MPC_THR_MIN"""
    max_thrust: float = 1.0
    """largest normalized thrust: MPC_THR_MAX"""
    thrust_margin: float = 0.3
    """normalized thrust reserved for horizontal acceleration while climbing at full power: MPC_THR_XY_MARG"""
    hover_thrust: float = 0.0
    """initial estimate of the normalized thrust at hover (MPC_THR_HOVER); 0 is the vehicle's true one"""
    hover_time_constant: float = 2.0
    """time constant of the hover thrust estimate, s"""
    attitude_p: tuple[float, float, float] = (4.0, 4.0, 2.8)
    """attitude gain of roll, pitch and yaw, 1/s: MC_ROLL_P, MC_PITCH_P, MC_YAW_P"""
    yaw_weight: float = 0.4
    """weight of the yaw error relative to roll and pitch: MC_YAW_WEIGHT"""
    max_rates: tuple[float, float, float] = (math.radians(220.0), math.radians(220.0), math.radians(200.0))
    """largest body rates, rad/s: MC_ROLLRATE_MAX, MC_PITCHRATE_MAX, MC_YAWRATE_MAX"""
    rate_p: tuple[float, float, float] = (0.15, 0.15, 0.2)
    """proportional rate gain of roll, pitch and yaw: MC_ROLLRATE_P and the like"""
    rate_i: tuple[float, float, float] = (0.2, 0.2, 0.1)
    """integral rate gain: MC_ROLLRATE_I and the like"""
    rate_d: tuple[float, float, float] = (0.003, 0.003, 0.0)
    """derivative rate gain: MC_ROLLRATE_D and the like"""
    rate_integral_limit: float = 0.3
    """largest normalized torque of the rate integrals: MC_RR_INT_LIM and the like"""
    gyro_cutoff: float = 40.0
    """cutoff frequency of the gyroscope's low-pass filter, Hz: IMU_GYRO_CUTOFF"""
    gyro_derivative_cutoff: float = 20.0
    """cutoff frequency of the angular acceleration's low-pass filter, Hz: IMU_DGYRO_CUTOFF"""
    yaw_torque_cutoff: float = 2.0
    """cutoff frequency of the yaw torque's low-pass filter, Hz (MC_YAW_TQ_CUTOFF); 0 is no filter, as up to v1.15"""
    acceleration_cutoff: float = 5.0
    """cutoff frequency of the acceleration that `velocity_d` acts on, Hz: MPC_VELD_LP"""
    thrust_model_factor: float = 0.0
    """quadratic fraction of the motors' thrust curve, inverted in the allocation: THR_MDL_FAC"""
    rate: float = 250.0
    """steps per second of all loops, Hz: the rate of the gyroscope"""

    def __post_init__(self) -> None:
        if self.rate <= 2.5 * self.gyro_cutoff:
            raise ValueError(
                f"a controller at {self.rate:g} Hz cannot filter at gyro_cutoff={self.gyro_cutoff:g} Hz; "
                "its rate must be more than 2.5 times as high"
            )

    @classmethod
    def of_version(cls, version: str, **changes: Any) -> "Px4Controller":
        """The controller with the defaults of a PX4 release, such as 1.14 or v1.17.0."""
        try:
            major, minor = (int(part) for part in version.removeprefix("v").split(".")[:2])
        except ValueError:
            raise ValueError(f"'{version}' is not a version of PX4; write it as 1.17") from None
        if (major, minor) < (1, 13):
            raise ValueError(f"gains are known from PX4 1.13 on, not for {version}")
        default = cls(**changes)
        if (major, minor) < (1, 17):
            default = replace(default, attitude_p=(6.5, 6.5, 2.8), gyro_derivative_cutoff=30.0)
        return replace(default, yaw_torque_cutoff=0.0) if (major, minor) < (1, 16) else default

    def tuned_for(self, vehicle: Quadrotor) -> "Px4Controller":
        """The controller with rate gains scaled to a vehicle; PX4's defaults for the iris.

        PX4's default gains suit the iris; a normalized torque of 1 accelerates a small racer four times as fast. The
        scaled loop corrects half of a rate error within the rotors' lag, and less in yaw: there the reaction of
        accelerating rotors acts at once, and a higher gain would oscillate. Integral and derivative gains scale along.
        """
        if vehicle.arm == iris.arm and vehicle.inertia == iris.inertia:
            return self
        lag = 0.5 * (vehicle.lag_up + vehicle.lag_down)
        wanted = [0.5 / (lag * acceleration) for acceleration in control_authority(vehicle)]
        wanted[2] = min(wanted[2], 1.5 / yaw_kick(vehicle))
        scale = [new / old for new, old in zip(wanted, self.rate_p, strict=True)]
        return replace(
            self,
            rate_p=tuple(wanted),
            rate_i=tuple(g * s for g, s in zip(self.rate_i, scale, strict=True)),
            rate_d=tuple(0.5 * g * s for g, s in zip(self.rate_d, scale, strict=True)),
            gyro_cutoff=80.0,
            gyro_derivative_cutoff=40.0,
            thrust_model_factor=1.0,
            yaw_torque_cutoff=0.0,
        )

    @property
    def dt(self) -> float:
        return 1.0 / self.rate

    def start(self, vehicle: Quadrotor, state: QuadrotorState) -> ControllerState:
        """The controller's state for a vehicle in steady flight at `state`."""
        zero = 0.0 * state.position.x
        still = Vec3(zero, zero, zero)
        hover_thrust = self.hover_thrust or self.thrust_curve(vehicle.hover_speed / vehicle.max_speed)
        # The filter starts in its steady state for these rates.
        warped = math.tan(math.pi * self.gyro_cutoff * self.dt)
        settled = state.rates * (0.25 * (1.0 + math.sqrt(2.0) * warped + warped**2) / warped**2)
        return ControllerState(
            velocity=state.velocity,
            acceleration=still,
            velocity_integral=still,
            gyroscope=BiquadState(settled, settled),
            rates=state.rates,
            angular_acceleration=still,
            rate_integral=still,
            yaw_torque=zero,
            hover_thrust=zero + hover_thrust,
            unallocated_torque=still,
        )

    def control(
        self, vehicle: Quadrotor, state: QuadrotorState, memory: ControllerState, setpoint: Setpoint
    ) -> tuple[Rotors, ControllerState]:
        """Target rotor speeds until the next call, and the controller's next state; `state` is the estimated one."""
        if isinstance(setpoint, Rotors):
            return setpoint, memory
        thrust, rates, memory = self.outer_loops(vehicle, state, memory, setpoint)
        torque, memory = self.rate_loop(state.rates, rates, memory)
        signals, unallocated_torque = self.allocate(vehicle, thrust, torque)
        return Rotors(*(self.inverse_thrust_curve(s) * vehicle.max_speed for s in signals.parts)), replace(
            memory, unallocated_torque=unallocated_torque
        )

    def inverse_thrust_curve(self, signal: Scalar) -> Scalar:
        """The motor signal for a normalized thrust."""
        f = self.thrust_model_factor
        if f == 0.0:
            return signal
        # The square root has no derivative at zero, and training by gradients needs one.
        return (jnp.sqrt(jnp.maximum((1.0 - f) ** 2 + 4.0 * f * signal, 4e-4)) - (1.0 - f)) * (0.5 / f)

    def thrust_curve(self, signal: Scalar) -> Scalar:
        """The normalized thrust that the thrust model assumes for a motor signal."""
        return signal * (self.thrust_model_factor * signal + (1.0 - self.thrust_model_factor))

    def outer_loops(
        self,
        vehicle: Quadrotor,
        state: QuadrotorState,
        memory: ControllerState,
        setpoint: RateSetpoint | VelocitySetpoint | PositionSetpoint,
    ) -> tuple[Scalar, Vec3, ControllerState]:
        """Normalized collective thrust and body rates from the position, velocity and attitude loops."""
        if isinstance(setpoint, RateSetpoint):
            return self.thrust_curve(vehicle.signal_for(setpoint.thrust)), setpoint.rates, memory
        memory = self.filter_acceleration(state, memory)
        nose = state.attitude.forward
        flat = jax.lax.rsqrt(jnp.maximum(nose.x**2 + nose.y**2, 1e-9))
        cos, sin, turn = nose.x * flat, nose.y * flat, 0.0
        if isinstance(setpoint, PositionSetpoint):
            across, up = self.position_p
            wanted = (setpoint.position - state.position) * Vec3(across, across, up) + setpoint.velocity
            sin, cos = sin_cos(setpoint.yaw)
        else:
            # A yaw rate is commanded, so the yaw setpoint is the current yaw.
            wanted, turn = setpoint.velocity, setpoint.yaw_rate
        push, memory = self.velocity_loop(self.limit_velocity(wanted), state.velocity, memory)
        rates = self.attitude_loop(state.attitude, push.unit(), cos, sin, turn)
        hover_thrust = self.estimate_hover_thrust(push.norm(), state, memory)
        return push.norm(), rates, replace(memory, hover_thrust=hover_thrust)

    def filter_acceleration(self, state: QuadrotorState, memory: ControllerState) -> ControllerState:
        """The controller's state with the acceleration updated: the velocity's derivative, low-pass filtered."""
        slope = (state.velocity - memory.velocity) * self.rate
        gain = low_pass_gain(self.acceleration_cutoff, self.dt)
        return replace(
            memory, velocity=state.velocity, acceleration=memory.acceleration + (slope - memory.acceleration) * gain
        )

    def limit_velocity(self, velocity: Vec3) -> Vec3:
        """A velocity setpoint clipped to the largest speed, climb and sink."""
        square = velocity.x**2 + velocity.y**2
        give = jnp.minimum(1.0, self.max_speed * jax.lax.rsqrt(jnp.maximum(square, 1e-9)))
        return Vec3(velocity.x * give, velocity.y * give, jnp.clip(velocity.z, -self.max_sink, self.max_climb))

    def velocity_loop(self, wanted: Vec3, velocity: Vec3, memory: ControllerState) -> tuple[Vec3, ControllerState]:
        """The normalized thrust vector in the world frame; vertical thrust has priority, up to `thrust_margin`."""
        gain, damping, integral = (
            Vec3(across, across, up) for across, up in (self.velocity_p, self.velocity_d, self.velocity_i)
        )
        error = wanted - velocity
        asked = error * gain + memory.velocity_integral - memory.acceleration * damping
        # The tilt follows from gravity alone, so that climbing does not change it.
        across = jnp.sqrt(jnp.maximum(asked.x**2 + asked.y**2, 1e-12))
        lean = jnp.minimum(1.0, GRAVITY * math.tan(self.max_tilt) / across)
        axis = Vec3(asked.x * lean, asked.y * lean, GRAVITY).unit()
        lift = memory.hover_thrust * (1.0 + asked.z * (1.0 / GRAVITY))
        collective = jnp.maximum(lift / axis.z, self.min_thrust)
        push = axis * collective
        saturated = ((push.z <= self.min_thrust) & (error.z <= 0.0)) | ((push.z >= self.max_thrust) & (error.z >= 0.0))
        flat = jnp.sqrt(jnp.maximum(push.x**2 + push.y**2, 1e-12))
        margin = jnp.minimum(flat, self.thrust_margin)
        up = jnp.minimum(push.z, jnp.sqrt(self.max_thrust**2 - margin**2))
        room = jnp.sqrt(jnp.maximum(self.max_thrust**2 - up**2, 0.0))
        give = jnp.minimum(1.0, room / flat)
        push = Vec3(push.x * give, push.y * give, up)
        # Tracking anti-windup: the horizontal integral follows the acceleration that saturation took away.
        scale = GRAVITY / memory.hover_thrust
        given = jnp.sqrt(push.x**2 + push.y**2) * scale
        lost = jnp.maximum(1.0 - given / across, 0.0) * (2.0 / self.velocity_p[0])
        error = Vec3(error.x - asked.x * lost, error.y - asked.y * lost, jnp.where(saturated, 0.0, error.z))
        total = memory.velocity_integral + error * integral * self.dt
        total = replace(total, z=jnp.clip(total.z, -GRAVITY, GRAVITY))
        return push, replace(memory, velocity_integral=total)

    def attitude_loop(self, attitude: Quat, axis: Vec3, cos: Scalar, sin: Scalar, turn: Scalar) -> Vec3:
        """Body rates that align the thrust with `axis`, and the yaw with its setpoint at a lower weight."""
        tilted = attitude.unrotate(axis)
        # The shortest rotation from the body's z axis to `axis`, in the body frame.
        lean = Quat(1.0 + jnp.maximum(tilted.z, -0.999), -tilted.y, tilted.x, 0.0 * tilted.x).unit()
        reduced = attitude * lean
        nose = Vec3(-sin, cos, 0.0 * cos).cross(axis).unit()
        off = jnp.arctan2(reduced.left.dot(nose), reduced.forward.dot(nose)) * self.yaw_weight
        s, c = sin_cos(0.5 * off)
        error = lean * Quat(c, 0.0 * c, 0.0 * c, s)
        error = Vec3(error.x, error.y, error.z) * jnp.where(error.w < 0.0, -2.0, 2.0)
        roll, pitch, yaw = self.attitude_p
        wanted = error * Vec3(roll, pitch, yaw / self.yaw_weight)
        wanted = wanted + attitude.unrotate(Vec3(0.0, 0.0, 1.0)) * turn
        return wanted.clipped(Vec3(*self.max_rates))

    def estimate_hover_thrust(self, signal: Scalar, state: QuadrotorState, memory: ControllerState) -> Scalar:
        """The estimated hover thrust: a first-order filter of thrust over measured vertical acceleration."""
        lift = signal * state.attitude.up.z
        now = lift * GRAVITY / jnp.clip(memory.acceleration.z + GRAVITY, 0.3 * GRAVITY, 2.0 * GRAVITY)
        level = (state.attitude.up.z > 0.9) & (jnp.abs(memory.acceleration.z) < 2.0)
        gain = jnp.where(level, self.dt / self.hover_time_constant, 0.0)
        return jnp.clip(memory.hover_thrust + gain * (now - memory.hover_thrust), 0.1, 0.9)

    def rate_loop(self, measured: Vec3, wanted: Vec3, memory: ControllerState) -> tuple[Vec3, ControllerState]:
        """The normalized torque. The derivative acts on measured rates; integrals stop where the motors saturate."""
        rates, gyroscope = biquad_low_pass(memory.gyroscope, measured, self.gyro_cutoff, self.dt)
        slope = (rates - memory.rates) * self.rate
        angular_acceleration = memory.angular_acceleration + (slope - memory.angular_acceleration) * low_pass_gain(
            self.gyro_derivative_cutoff, self.dt
        )
        error = wanted - rates
        torque = error * Vec3(*self.rate_p) + memory.rate_integral - angular_acceleration * Vec3(*self.rate_d)
        fade = error * (1.0 / math.radians(400.0))
        parts = []
        for e, f, i, gain, missing in zip(
            error.parts,
            fade.parts,
            memory.rate_integral.parts,
            self.rate_i,
            memory.unallocated_torque.parts,
            strict=True,
        ):
            held = (missing * e) > 1e-6  # the motors are saturated in the direction of the error
            grown = i + jnp.where(held, 0.0, jnp.maximum(1.0 - f * f, 0.0) * gain * e * self.dt)
            parts.append(jnp.clip(grown, -self.rate_integral_limit, self.rate_integral_limit))
        yaw = torque.z
        if self.yaw_torque_cutoff:
            yaw = memory.yaw_torque + (yaw - memory.yaw_torque) * low_pass_gain(self.yaw_torque_cutoff, self.dt)
        memory = replace(
            memory,
            gyroscope=gyroscope,
            rates=rates,
            angular_acceleration=angular_acceleration,
            rate_integral=Vec3(*parts),
            yaw_torque=yaw,
        )
        return Vec3(*(jnp.clip(part, -1.0, 1.0) for part in (torque.x, torque.y, yaw))), memory

    def allocate(self, vehicle: Quadrotor, thrust: Scalar, torque: Vec3) -> tuple[Rotors, Vec3]:
        """Motor signals in [0, 1], and the torque that could not be allocated.

        Saturation reduces yaw first, then thrust, roll and pitch in turn, as PX4's sequential desaturation does.
        """
        ahead, aside = vehicle.arm
        shorter = min(ahead, aside) * math.sqrt(0.5)
        roll, pitch = shorter / aside, shorter / ahead
        rolls, pitches, yaws = (roll, -roll, -roll, roll), (-pitch, -pitch, pitch, pitch), (1.0, -1.0, 1.0, -1.0)
        lifts = (1.0,) * 4
        signals = [thrust + r * torque.x + p * torque.y for r, p in zip(rolls, pitches, strict=True)]
        signals = desaturate(signals, lifts, only_less=True)
        signals = desaturate(desaturate(signals, rolls), pitches)
        signals = [s + y * torque.z for s, y in zip(signals, yaws, strict=True)]
        signals = desaturate(signals, yaws, top=1.15)
        signals = desaturate(signals, lifts, only_less=True)
        signals = [jnp.clip(s, 0.0, 1.0) for s in signals]
        given = Vec3(*(
            sum(w * s for w, s in zip(ways, signals, strict=True)) / sum(w * w for w in ways)
            for ways in (rolls, pitches, yaws)
        ))  # fmt: skip
        return Rotors(*signals), torque - given


def control_authority(vehicle: Quadrotor) -> tuple[float, float, float]:
    """The angular acceleration at hover for a normalized torque of 1, rad/s²."""
    slope = 2.0 * vehicle.max_thrust * vehicle.hover_speed / vehicle.max_speed
    lever = min(vehicle.arm) * math.sqrt(0.5)
    ix, iy, iz = vehicle.inertia
    return 4.0 * slope * lever / ix, 4.0 * slope * lever / iy, 4.0 * slope * vehicle.torque_per_thrust / iz


def yaw_kick(vehicle: Quadrotor) -> float:
    """The immediate yaw rate from the rotors' reaction to a normalized torque of 1, rad/s; their drag acts later."""
    return max(4.0 * vehicle.rotor_inertia * vehicle.max_speed / vehicle.inertia[2], 1e-9)


def desaturate(
    signals: list[Scalar], direction: tuple[float, ...], only_less: bool = False, top: float = 1.0
) -> list[Scalar]:
    """Signals shifted along `direction` into [0, `top`], or as near as shifting can; `only_less` never adds."""
    for weight in (1.0, 0.5):
        least, most = 0.0, 0.0
        for signal, way in zip(signals, direction, strict=True):
            over = jnp.minimum(top - signal, 0.0) + jnp.maximum(-signal, 0.0)  # back to the violated limit
            k = over / way
            least, most = jnp.minimum(least, k), jnp.maximum(most, k)
        gain = (least + most) * weight
        if only_less:
            gain = jnp.minimum(gain, 0.0)
        signals = [signal + gain * way for signal, way in zip(signals, direction, strict=True)]
    return signals
