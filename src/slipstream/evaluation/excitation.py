"""Excitation flights for system identification: commands, and recordings of them on a plant."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.geometry import Quat, Vec3
from ..core.rng import Rng
from ..core.spaces import Box
from ..core.task import Spec, State, Task
from ..dynamics.control_modes import RateSetpoint, Setpoint, VelocitySetpoint
from ..dynamics.identification import CommandKind
from ..dynamics.px4_controller import Px4Controller
from ..dynamics.quadrotor import GRAVITY, PhysicsRandomization, Quadrotor, QuadrotorState
from ..dynamics.recording import Recording
from ..plants.plant import Plant, PlantError
from ..sensors.scene import Color, Ground, Scene, daylight

HEIGHT = 60.0
"""Height at which excitation flights start, m."""


FreeFlightState = State[None, QuadrotorState, None]


@dataclass(frozen=True)
class FreeFlight(Task[FreeFlightState]):
    """Flight in an empty world, where the command is the setpoint itself."""

    airframe: Quadrotor
    control_mode: CommandKind = "velocity"
    """velocity and yaw rate, or thrust and body rates"""
    control_rate: int = 20
    """commands a second"""
    controller: Px4Controller = Px4Controller()

    @cached_property
    def loop(self) -> Px4Controller:
        """The controller at the next rate that ticks a whole number of times in a control period."""
        ticks = math.ceil(self.controller.rate / self.control_rate)
        return replace(self.controller, rate=float(ticks * self.control_rate))

    @property
    def description(self) -> str:
        return "free flight"

    @cached_property
    def spec(self) -> Spec:
        return Spec(1, Box(4), 1.0 / self.control_rate)

    def without_controller(self) -> "FreeFlight":
        return self

    def reset(self, rng: Rng) -> FreeFlightState:
        zero = jnp.float32(0.0)
        still = Vec3(zero, zero, zero)
        body = self.airframe.hovering(Vec3(zero, zero, zero + HEIGHT), Quat(zero + 1.0, zero, zero, zero), still, still)
        body = replace(body, memory=self.loop.start(self.airframe, body))
        no = jnp.bool_(False)
        return State(None, body, None, rng, jnp.int32(0), zero, no, no)

    def setpoints(self, state: FreeFlightState, command: Float[Array, "4"]) -> Setpoint:
        if self.control_mode == "body_rates":
            thrust, roll, pitch, yaw = command
            return RateSetpoint(thrust, Vec3(roll, pitch, yaw))
        x, y, z, yaw_rate = command
        return VelocitySetpoint(Vec3(x, y, z), yaw_rate)

    def vehicle_states(self, state: FreeFlightState) -> QuadrotorState:
        return replace(state.body, memory=None)

    def wind_at(self, state: FreeFlightState) -> Vec3:
        return jax.tree.map(jnp.zeros_like, state.body.position)

    def randomization(self, state: FreeFlightState) -> PhysicsRandomization:
        return PhysicsRandomization()

    def body_from_vehicles(
        self, state: FreeFlightState, command: Float[Array, "4"], vehicles: QuadrotorState
    ) -> QuadrotorState:
        return replace(vehicles, memory=None)

    def collision_scene(self, state: FreeFlightState) -> Scene:
        """Flat ground, far below the flights."""
        gray = Color(0.5, 0.5, 0.5)
        return Scene(**daylight(), ground=jax.tree.map(jnp.float32, Ground(0.0, 10.0, gray, gray)))

    def move(self, state: FreeFlightState, command: Float[Array, "4"]) -> QuadrotorState:
        """The vehicle one control period later, under PX4's controller."""
        setpoint = self.setpoints(state, command)

        def tick(_: Array, body: QuadrotorState) -> QuadrotorState:
            rotors, memory = self.loop.control(self.airframe, body, body.memory, setpoint)
            body = replace(body, memory=memory)
            for _half in range(2):
                body = self.airframe.step(body, rotors, None, PhysicsRandomization(), 0.5 * self.loop.dt)
            return body

        return jax.lax.fori_loop(0, round(self.loop.rate / self.control_rate), tick, state.body)


def excitation(
    kind: CommandKind, flights: int, seconds: float, rate: int, vehicle: Quadrotor, seed: int
) -> Float[np.ndarray, "flights steps 4"]:
    """Excitation commands: a third of the flights steps, a third frequency sweeps, a third random; all axes at once.

    The random velocities are twice as high along the ground, and are held longer.
    """
    rng = np.random.default_rng(seed)
    steps = round(seconds * rate)
    time = np.arange(steps) / rate
    amplitude = np.array([5.0, 5.0, 1.2, 0.8]) if kind == "velocity" else np.array([0.45, 4.0, 4.0, 2.0])
    hold = (1.5, 4.0) if kind == "velocity" else (0.08, 0.3)
    out = np.zeros((flights, steps, 4))
    for flight in range(flights):
        for axis in range(4):
            if flight % 3 == 1:
                low, high = (0.02, 0.2) if kind == "velocity" else (0.5, 4.0)
                cycles = low * time + (high - low) * time**2 / (2.0 * seconds)
                out[flight, :, axis] = np.sin(2.0 * np.pi * (cycles + rng.uniform()))
                continue
            at, stretch = 0, 2.0 if kind == "velocity" and flight % 3 == 2 else 1.0
            while at < steps:
                length = max(1, round(stretch * rng.uniform(*hold) * rate))
                level = rng.choice([-1.0, 0.0, 1.0]) if flight % 3 == 0 else rng.uniform(-1.0, 1.0)
                # Rates come in pairs that cancel, so that the vehicle stays upright.
                paired = kind == "body_rates" and axis > 0
                out[flight, at : at + length, axis] = level
                if paired:
                    out[flight, at + length : at + 2 * length, axis] = -level
                at += length * (2 if paired else 1)
    out *= amplitude
    if kind == "velocity":
        out[2::3, :, :2] *= 2.0
    if kind == "body_rates":
        out[..., 0] = vehicle.mass * GRAVITY * (1.0 + out[..., 0])
    return out.astype(np.float32)


def record(
    plant: Plant | None,
    task: FreeFlight,
    commands: np.ndarray,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Recording:
    """A recording of these commands on a plant; without one, on the fast model of vehicle and PX4 controller."""
    if plant is None:
        return _record_on_device(task, commands)
    flights, steps, _ = commands.shape
    plant.adapt(task)
    width = plant.max_worlds or flights
    parts = []
    for first in range(0, flights, width):
        rows = commands[first : first + width]
        states = jax.vmap(lambda k: task.reset(Rng.from_seed(0, k)))(jnp.arange(len(rows)))
        states = replace(states, body=replace(states.body, memory=None))
        try:
            bodies = [plant.start(task, states)]
            for k in range(steps):
                states = replace(states, body=replace(bodies[-1], memory=None))
                plant.command(states, jnp.asarray(rows[:, k]))
                bodies.append(plant.truth())
                if plant.failed is not None and plant.failed.any():
                    raise PlantError(f"the plant {plant.name} failed during an excitation flight")
                watch(first * steps + (k + 1) * len(rows), flights * steps)
        finally:
            plant.close()
        parts.append(jax.tree.map(lambda *x: np.stack([np.asarray(v) for v in x], 1), *bodies))
    trajectories = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return _recording(commands, trajectories, 1.0 / task.control_rate, plant.name)


def _record_on_device(task: FreeFlight, commands: np.ndarray) -> Recording:
    def fly(rows: Float[Array, "steps 4"]) -> QuadrotorState:
        start = task.reset(Rng.from_seed(0, 0))

        def tick(body: QuadrotorState, command: Float[Array, "4"]) -> tuple[QuadrotorState, QuadrotorState]:
            after = task.move(replace(start, body=body), command)
            return after, replace(after, memory=None)

        after = jax.lax.scan(tick, start.body, rows)[1]
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), replace(start.body, memory=None), after)

    trajectories = jax.device_get(jax.jit(jax.vmap(fly))(jnp.asarray(commands)))
    return _recording(commands, trajectories, 1.0 / task.control_rate, "px4-controller")


def _recording(commands: np.ndarray, trajectories: QuadrotorState, dt: float, source: str) -> Recording:
    def stack(parts: Iterable[Any]) -> np.ndarray:
        return np.stack([np.asarray(p, np.float32) for p in parts], -1)

    q = trajectories.attitude
    return Recording(
        commands=commands,
        position=stack(trajectories.position.parts),
        velocity=stack(trajectories.velocity.parts),
        attitude=stack((q.w, q.x, q.y, q.z)),
        rates=stack(trajectories.rates.parts),
        rotors=stack(trajectories.rotors.parts),
        dt=dt,
        source=source,
    )
