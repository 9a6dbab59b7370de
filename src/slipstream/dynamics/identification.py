"""Fast models whose parameters can be found from recorded flights."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..core.geometry import Quat, Vec2, Vec3
from .control_modes import FittedParameters, RateControl
from .quadrotor import PhysicsRandomization, Quadrotor, QuadrotorState, Rotors
from .recording import Recording
from .velocity_drone import VelocityDrone, VelocityDroneState, step_velocity

CommandKind = Literal["body_rates", "velocity"]


class FitModel(Protocol):
    """A fast model whose parameters are to be found."""

    command: ClassVar[CommandKind]
    """Kind of command in the flights that it is fitted to."""
    shot: ClassVar[float]
    """Seconds of a shot (multiple shooting): the interval that is simulated from one fitted initial state."""
    max_seconds: ClassVar[float]
    """Longest useful flight, s."""
    cruises: ClassVar[bool]
    """Whether the plant's largest speeds are measured too, and whether a flight log can be fitted."""

    @property
    def dt(self) -> float: ...

    @property
    def initial(self) -> dict[str, float]:
        """Parameters at the start of the fit."""
        ...

    def nominal(self) -> dict[str, float]:
        """The parameters before any fit."""
        ...

    def start(self, recording: Recording) -> Any:
        """The model's state at every recorded moment, zero where it was not recorded; axes: flights, moments."""
        ...

    def step(self, parameters: Mapping[str, Any], state: PyTree, command: Array) -> Any: ...

    def predicted(self, state: PyTree) -> Float[Array, "outputs"]:
        """The outputs that are compared, scaled so that errors in all of them weigh alike."""
        ...

    def measured(self, recording: Recording) -> np.ndarray:
        """The same outputs of a recording; axes: flights, moments, outputs."""
        ...


@dataclass(frozen=True)
class VelocityModel:
    """A drone that follows commands of velocity and yaw rate."""

    command: ClassVar[CommandKind] = "velocity"
    shot: ClassVar[float] = 6.0
    max_seconds: ClassVar[float] = 600.0
    cruises: ClassVar[bool] = True
    dt: float = 0.05

    @property
    def initial(self) -> dict[str, float]:
        return {
            "velocity_time_constant": 0.5,
            "tilt_time_constant": 0.25,
            "tilt_onset_time": 0.08,
            "drag": 0.2,
            "tilt_thrust_gain": 0.1,
            "tilt_lift_gain": 0.5,
            "velocity_integral_gain": 0.2,
            "max_acceleration": 6.0,
            "climb_time_constant": 0.3,
            "max_climb_acceleration": 4.0,
            "yaw_time_constant": 0.2,
        }

    def nominal(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(VelocityDrone()).items()}

    def start(self, recording: Recording) -> VelocityDroneState:
        p, v = (Vec3(*jnp.moveaxis(jnp.asarray(x), -1, 0)) for x in (recording.position, recording.velocity))
        w, x, y, z = jnp.moveaxis(jnp.asarray(recording.attitude), -1, 0)
        yaw = jnp.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
        change = np.gradient(recording.velocity, recording.dt, axis=1)
        return VelocityDroneState(
            p, v, yaw, jnp.asarray(recording.yaw_rate), Vec3(*jnp.moveaxis(jnp.asarray(change), -1, 0)),
            Vec2(0.0 * yaw, 0.0 * yaw), Vec2(0.0 * yaw, 0.0 * yaw),
        )  # fmt: skip

    def step(self, parameters: Mapping[str, Any], state: VelocityDroneState, command: Array) -> VelocityDroneState:
        # A fitted drone is limited by its acceleration; the nominal one has a max_tilt of its own.
        drone = replace(VelocityDrone(), **({"max_tilt": 1.2} | dict(parameters)))
        return step_velocity(state, Vec3(*command[:3]), command[3], drone, None, self.dt)

    def predicted(self, state: VelocityDroneState) -> Float[Array, "4"]:
        return jnp.stack([*state.velocity.parts, state.yaw_rate])

    def measured(self, recording: Recording) -> np.ndarray:
        return np.concatenate([recording.velocity, recording.yaw_rate[..., None]], -1)


@dataclass(frozen=True)
class RateModel:
    """The quadrotor with a proportional rate loop, commanded by thrust and body rates."""

    command: ClassVar[CommandKind] = "body_rates"
    shot: ClassVar[float] = 0.4
    max_seconds: ClassVar[float] = 3.0
    cruises: ClassVar[bool] = False
    vehicle: Quadrotor
    dt: float = 0.01
    """seconds of a command"""
    substeps: int = 4
    """physics steps for each command"""

    @property
    def initial(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(FittedParameters()).items()}

    def nominal(self) -> dict[str, float]:
        return self.initial

    def start(self, recording: Recording) -> QuadrotorState:
        def components(x: np.ndarray) -> Array:
            return jnp.moveaxis(jnp.asarray(x), -1, 0)

        return QuadrotorState(
            position=Vec3(*components(recording.position)),
            attitude=Quat(*components(recording.attitude)),
            velocity=Vec3(*components(recording.velocity)),
            rates=Vec3(*components(recording.rates)),
            rotors=Rotors(*components(recording.rotors)),
        )

    def step(self, parameters: Mapping[str, Any], state: QuadrotorState, command: Array) -> QuadrotorState:
        factors = PhysicsRandomization(
            thrust=parameters["thrust"], motor_lag=parameters["motor_lag"], drag=parameters["drag"]
        )
        # Unit lags make `rate_gain` the loop's bandwidth itself, so that the fitted lag can scale it.
        nominal = replace(self.vehicle, lag_up=1.0, lag_down=1.0)
        scale = parameters["motor_lag"] * 0.5 * (self.vehicle.lag_up + self.vehicle.lag_down)
        roll_pitch, yaw = (parameters[f"rate_gain_{axis}"] / scale for axis in ("roll_pitch", "yaw"))
        loop = RateControl(rate_gain=(roll_pitch, roll_pitch, yaw))
        for _ in range(self.substeps):
            rotors = loop.hold(nominal, state, command[0], Vec3(*command[1:]))
            state = self.vehicle.step(state, rotors, None, factors, self.dt / self.substeps)
        return state

    def predicted(self, state: QuadrotorState) -> Float[Array, "6"]:
        return jnp.stack([*state.rates.parts, *(state.velocity * 3.0).parts])

    def measured(self, recording: Recording) -> np.ndarray:
        return np.concatenate([recording.rates, 3.0 * recording.velocity], -1)
