"""Recovery to hover: a quadrotor that was thrown comes to rest at a point, or follows a moving reference."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import require_choice
from ...core.geometry import Flag, Quat, Scalar, Vec3, sin_cos
from ...core.rng import Rng
from ...core.spaces import Box
from ...core.struct import struct
from ...core.task import Spec, State, Task, stack_features
from ...dynamics.control_modes import CONTROL_MODES, NormalizedCommand, Setpoint
from ...dynamics.flight import ControlledFlight
from ...dynamics.px4_controller import Px4Controller
from ...dynamics.quadrotor import VEHICLES, PhysicsRandomization, Quadrotor, QuadrotorState
from ...sensors.scene import Scene, daylight

FEATURES, REFERENCE_FEATURES = 16, 3
"""Numbers that are observed, and those more with a moving reference."""


@dataclass(frozen=True)
class HoverStart:
    """How a drone is thrown: in any attitude, at any speed and spin up to these."""

    position: float = 1.0
    """largest distance from the reference along each axis, m"""
    speed: float = 5.0
    """largest speed, m/s"""
    spin: float = 10.0
    """largest rate of rotation, rad/s"""
    worst: bool = False
    """start with exactly the largest speed and spin"""


@dataclass(frozen=True)
class HoverReward:
    """Weights of the costs whose sum over a second is the negative reward."""

    position: float = 1.0
    """for each meter from the reference"""
    velocity: float = 0.1
    """for each m/s relative to the reference"""
    tilt: float = 0.1
    """times one minus the cosine of the tilt"""
    body_rates: float = 0.002
    """times the square of the body rates"""
    terminal: float = 0.2
    """of the state at the end of a window, for learners that take the task's own terminal value"""
    lookahead: float = 0.4
    """seconds of coasting after which the terminal cost takes the distance"""


@struct
class Reference:
    """A point that moves on an ellipse: center, amplitudes, angular frequency and phase."""

    amplitude: Vec3
    frequency: Scalar
    phase: Scalar

    def at(self, time: Scalar) -> tuple[Vec3, Vec3, Vec3]:
        """Position, velocity and acceleration."""
        sin, cos = sin_cos(self.frequency * time + self.phase)
        a, w = self.amplitude, self.frequency
        position = Vec3(a.x * cos, a.y * sin, a.z * sin)
        velocity = Vec3(-a.x * sin, a.y * cos, a.z * cos) * w
        return position, velocity, position * (-w * w)


@struct
class HoverWorld:
    """What stays the same for an episode."""

    reference: Reference | None  # None is the origin
    time_limit: Scalar | None  # seconds this episode may take, in training


@struct
class HoverProgress:
    """What an episode counts."""

    settled: Scalar  # seconds since the drone has been at its reference without a break
    episode_return: Scalar
    command: NormalizedCommand  # the last one


HoverState = State[HoverWorld, QuadrotorState, HoverProgress]


@dataclass(frozen=True)
class Hover(Task[HoverState]):
    """Come to rest at a point from any attitude, speed and spin; or follow a moving reference."""

    progress_bar: ClassVar[Mapping[str, str]] = {"success": "success {:.0%}", "final_distance": "distance {:.2f} m"}

    vehicle: Literal["racer", "crazyflie", "iris"] = "racer"
    """the quadrotor: a 5-inch racer, a Crazyflie or an Iris"""
    control_mode: Literal["body_rates", "motor_speeds"] = "body_rates"
    """what an action commands: thrust and body rates, or motor speeds"""
    controller: Literal["simple", "px4"] = "simple"
    """what turns a command into motor speeds: proportional loops, or PX4's controller with its filters and limits"""
    reference: Literal["point", "moving"] = "point"
    """what to hold: a point, or a point that moves on an ellipse that differs between worlds"""
    reference_size: float = 1.0
    """largest amplitude of a moving reference along each axis, m"""
    reference_speed: float = 2.0
    """largest speed of a moving reference, m/s"""
    physics_rate: int = 400
    """physics steps a second"""
    control_rate: int = 50
    """actions a second"""
    time_limit: float = 4.0
    """seconds of an episode"""
    train_time_limit: float = 0.0
    """if positive, an episode in training is cut off at a random time before this, so that starts are practiced more"""
    start: HoverStart = HoverStart()
    """how the drone is thrown"""
    reward: HoverReward = HoverReward()
    """weights of the reward's terms"""
    max_error: float = 0.2
    """largest distance from the reference that counts as hovering, m"""
    max_speed: float = 0.3
    """largest speed relative to the reference that counts as hovering, m/s"""
    hold_time: float = 1.0
    """seconds at the end of an episode for which a drone must hover to succeed"""

    def __post_init__(self) -> None:
        require_choice("vehicle", self.vehicle, VEHICLES)
        require_choice("control mode", self.control_mode, ("body_rates", "motor_speeds"))
        require_choice("controller", self.controller, ("simple", "px4"))
        require_choice("reference", self.reference, ("point", "moving"))
        if min(self.physics_rate, self.control_rate) < 1 or self.physics_rate % self.control_rate:
            raise ValueError(
                f"physics at {self.physics_rate} Hz is not a whole multiple of control at {self.control_rate} Hz"
            )
        if not 0.0 < self.hold_time <= self.time_limit:
            raise ValueError("hold_time must be positive and at most time_limit")

    # Parts

    @property
    def airframe(self) -> Quadrotor:
        return VEHICLES[self.vehicle]

    @cached_property
    def autopilot(self) -> Px4Controller | None:
        if self.controller == "simple":
            return None
        return Px4Controller(rate=float(self.physics_rate)).tuned_for(self.airframe)

    @cached_property
    def flight(self) -> ControlledFlight:
        control, substeps = CONTROL_MODES[self.control_mode], self.physics_rate // self.control_rate
        return ControlledFlight(self.airframe, control, self.autopilot, self.physics_rate, substeps)

    @property
    def control_dt(self) -> float:
        return 1.0 / self.control_rate

    @cached_property
    def spec(self) -> Spec:
        size = FEATURES + REFERENCE_FEATURES * (self.reference == "moving")
        return Spec(size, Box(4), self.control_dt)

    @property
    def description(self) -> str:
        return "recovery to hover" if self.reference == "point" else "recovery to a moving reference"

    def for_evaluation(self) -> "Hover":
        return replace(self, train_time_limit=0.0)

    # Flying

    def reset(self, rng: Rng) -> HoverState:
        world, rng = self._draw_world(rng)
        offset, rng = draw_vector(rng, self.start.position)
        attitude, rng = draw_attitude(rng)
        velocity, rng = self._draw_velocity(rng, self.start.speed)
        rates, rng = self._draw_velocity(rng, self.start.spin)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        position = offset
        if world.reference is not None:
            there, along, _ = world.reference.at(zero)
            position, velocity = offset + there, velocity + along
        drone = self.airframe.hovering(position, attitude, velocity, rates)
        if self.autopilot:
            drone = replace(drone, memory=self.autopilot.start(self.airframe, drone))
        progress = HoverProgress(zero, zero, NormalizedCommand(*[zero] * 4))
        return State(world, drone, progress, rng, jnp.int32(0), zero, no, no)

    def _draw_world(self, rng: Rng) -> tuple[HoverWorld, Rng]:
        limit = reference = None
        if self.train_time_limit:
            limit, rng = rng.uniform(0.25 * self.train_time_limit, self.train_time_limit)
        if self.reference == "moving":
            amplitude, rng = draw_vector(rng, self.reference_size)
            speed, rng = rng.uniform(0.25 * self.reference_speed, self.reference_speed)
            phase, rng = rng.uniform(-math.pi, math.pi)
            reference = Reference(amplitude, speed / jnp.maximum(amplitude.norm(), 0.3), phase)
        return HoverWorld(reference, limit), rng

    def _draw_velocity(self, rng: Rng, largest: float) -> tuple[Vec3, Rng]:
        """A vector of any direction, whose length is uniform up to the largest."""
        direction, rng = draw_direction(rng)
        length, rng = rng.uniform(0.0, largest)
        return direction * (largest if self.start.worst else length), rng

    def step(self, state: HoverState, action: Array) -> HoverState:
        state, command = self.command(state, action)
        return self.judge(state, self.move(state, command))

    def command(self, state: HoverState, action: Array) -> tuple[HoverState, NormalizedCommand]:
        command = NormalizedCommand(*self.spec.action.decode(action, ()))
        return replace(state, progress=replace(state.progress, command=command), rng=state.rng.bits()[1]), command

    def move(self, state: HoverState, command: NormalizedCommand) -> QuadrotorState:
        return self.flight.step(state.body, command, None, PhysicsRandomization())

    def errors(self, state: HoverState, drone: QuadrotorState) -> tuple[Vec3, Vec3, Vec3]:
        """Position and velocity relative to the reference, and the reference's acceleration, in the world."""
        if state.world.reference is None:
            return drone.position, drone.velocity, Vec3(0.0, 0.0, 0.0)
        position, velocity, acceleration = state.world.reference.at(state.step.astype(jnp.float32) * self.control_dt)
        return drone.position - position, drone.velocity - velocity, acceleration

    def judge(self, state: HoverState, body: QuadrotorState) -> HoverState:
        state = replace(state, body=body, step=state.step + 1)
        reward = self._reward(state)
        settled = jnp.where(self.hovering(state), state.progress.settled + self.control_dt, 0.0)
        limit = self.time_limit if state.world.time_limit is None else state.world.time_limit
        return replace(
            state,
            progress=replace(state.progress, settled=settled, episode_return=state.progress.episode_return + reward),
            reward=reward,
            truncated=state.step.astype(jnp.float32) * self.control_dt >= limit - 1e-4,
        )

    def hovering(self, state: HoverState) -> Flag:
        """Whether the drone is at its reference, slow, and upright where the reference stands still."""
        position, velocity, _ = self.errors(state, state.body)
        there = (position.norm() < self.max_error) & (velocity.norm() < self.max_speed)
        return there if self.reference == "moving" else there & (state.body.attitude.up.z > 0.9)

    def _reward(self, state: HoverState) -> Scalar:
        """Minus the cost of one control period in this state."""
        drone, weights = state.body, self.reward
        position, velocity, _ = self.errors(state, drone)
        cost = (
            weights.position * smooth_norm(position, 0.1)
            + weights.velocity * smooth_norm(velocity, 0.2)
            + weights.tilt * (1.0 - drone.attitude.up.z)
            + weights.body_rates * drone.rates.dot(drone.rates)
        )
        return -self.control_dt * cost

    # Differentiating

    def differentiable_state(self, state: HoverState) -> tuple[QuadrotorState, NormalizedCommand]:
        return state.body, state.progress.command

    def with_differentiable_state(
        self, state: HoverState, part: tuple[QuadrotorState, NormalizedCommand]
    ) -> HoverState:
        body, command = part
        return replace(state, body=body, progress=replace(state.progress, command=command))

    def smooth_reward(self, before: HoverState, after: HoverState) -> Scalar:
        """The reward itself: it is smooth."""
        return self._reward(after)

    def terminal_value(self, state: HoverState) -> Scalar:
        """Minus the distance after coasting for a while, with a cost of speed and tilt."""
        position, velocity, _ = self.errors(state, state.body)
        ahead = position + velocity * self.reward.lookahead
        cost = smooth_norm(ahead, 0.1) + 0.2 * smooth_norm(velocity, 0.2) + 0.3 * (1.0 - state.body.attitude.up.z)
        return -self.reward.terminal * cost

    # Observing

    def observe(self, state: HoverState) -> Float[Array, "features"]:
        """Errors, gravity and rates in the body frame, then rotor speeds, or the last command."""
        drone, axes = state.body, state.body.attitude.axes
        position, velocity, acceleration = self.errors(state, drone)
        # Far away the direction matters more than the distance.
        scale = 1.0 / jnp.sqrt(1.0 + 0.1 * position.dot(position))
        if self.control_mode == "motor_speeds":
            last = [speed / self.airframe.hover_speed - 1.0 for speed in drone.rotors.parts]
        else:
            last = list(state.progress.command.parts)
        moving = [*(axes.unrotate(acceleration) * 0.2).parts] if state.world.reference is not None else []
        return stack_features(
            [
                *(axes.unrotate(position) * scale).parts,
                *(axes.unrotate(velocity) * 0.3).parts,
                *axes.down_b.parts,
                *(drone.rates * 0.15).parts,
                *last,
                *moving,
            ]
        )

    # On another plant

    def without_controller(self) -> "Hover":
        return replace(self, controller="simple")

    def vehicle_states(self, state: HoverState) -> QuadrotorState:
        return state.body

    def setpoints(self, state: HoverState, command: NormalizedCommand) -> Setpoint:
        return self.flight.control.setpoint(self.airframe, state.body, command)

    def wind_at(self, state: HoverState) -> Vec3:
        return Vec3(*[jnp.zeros_like(state.body.position.x)] * 3)

    def randomization(self, state: HoverState) -> PhysicsRandomization:
        return PhysicsRandomization()

    def body_from_vehicles(
        self, state: HoverState, command: NormalizedCommand, vehicles: QuadrotorState
    ) -> QuadrotorState:
        return vehicles

    def collision_scene(self, state: HoverState) -> Scene:
        return Scene(**daylight())

    # Reporting

    def episode_metrics(self, state: HoverState) -> dict[str, Float[Array, ""]]:
        position, velocity, _ = self.errors(state, state.body)
        hovered = jnp.asarray(state.progress.settled >= self.hold_time - 1e-3).astype(jnp.float32)
        counts = jnp.bool_(True)
        if state.world.time_limit is not None:
            # An episode that is cut off early cannot succeed, and does not count.
            counts = state.world.time_limit >= 0.8 * self.train_time_limit
        return {
            "success": jnp.where(counts, hovered, jnp.nan),
            "final_distance": jnp.where(counts, position.norm(), jnp.nan),
            "final_speed": jnp.where(counts, velocity.norm(), jnp.nan),
            "episode_return": jnp.asarray(state.progress.episode_return),
        }

    def record(self, state: HoverState) -> dict[str, Array]:
        drone = state.body
        position, _, _ = self.errors(state, drone)
        q = drone.attitude
        return {
            "position": jnp.stack(drone.position.parts, -1),
            "attitude": jnp.stack([q.w, q.x, q.y, q.z], -1),
            "velocity": jnp.stack(drone.velocity.parts, -1),
            "rates": jnp.stack(drone.rates.parts, -1),
            "rotors": jnp.stack(drone.rotors.parts, -1),
            "command": jnp.stack(state.progress.command.parts, -1),
            "reference": jnp.stack((drone.position - position).parts, -1),
            "reward": state.reward,
        }

    def summary(self, metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            "final_distance_median": float(np.nanmedian(metrics["final_distance"])),
            "final_speed_median": float(np.nanmedian(metrics["final_speed"])),
        }


def smooth_norm(v: Vec3, radius: float) -> Scalar:
    """The length, rounded off within `radius` of zero."""
    return jnp.sqrt(v.dot(v) + radius**2)


def draw_vector(rng: Rng, reach: float) -> tuple[Vec3, Rng]:
    """A uniform point of a cube."""
    parts = []
    for _ in range(3):
        part, rng = rng.uniform(-reach, reach)
        parts.append(part)
    return Vec3(*parts), rng


def draw_direction(rng: Rng) -> tuple[Vec3, Rng]:
    """A uniform unit vector."""
    parts = []
    for _ in range(3):
        part, rng = rng.normal()
        parts.append(part)
    return Vec3(*parts).unit(), rng


def draw_attitude(rng: Rng) -> tuple[Quat, Rng]:
    """A uniform rotation."""
    parts = []
    for _ in range(4):
        part, rng = rng.normal()
        parts.append(part)
    return Quat(*parts).unit(), rng
