"""Flights to learn a model from: excitation flown on a plant, or the log of a real one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from ..dynamics.px4_controller import Px4Controller
from ..dynamics.quadrotor import GRAVITY, PhysicsRandomization, Quadrotor, QuadrotorState
from ..dynamics.recording import Recording
from ..plants.plant import Plant, PlantError
from ..sensors.scene import Color, Ground, Scene, daylight

HEIGHT = 60.0
"""Where excitation is flown."""


@dataclass(frozen=True)
class FreeFlight(Task[Any]):
    """No task at all: what is commanded is the setpoint, in an empty world."""

    airframe: Quadrotor
    command_kind: str = "velocity"
    """velocity (and yaw rate), or body_rates (thrust first)"""
    control_rate: int = 20
    controller: Px4Controller = Px4Controller()

    @property
    def description(self) -> str:
        return "free flight"

    @property
    def spec(self) -> Spec:
        return Spec(1, Box(4), 1.0 / self.control_rate)

    def without_controller(self) -> "FreeFlight":
        return self

    def reset(self, rng: Rng) -> State[Any, QuadrotorState, Any]:
        zero = jnp.float32(0.0)
        still = Vec3(zero, zero, zero)
        flight = self.airframe.hovering(
            Vec3(zero, zero, zero + HEIGHT), Quat(zero + 1.0, zero, zero, zero), still, still
        )
        flight = replace(flight, memory=self.controller.start(self.airframe, flight))
        no = jnp.bool_(False)
        return State(None, flight, None, rng, jnp.int32(0), zero, no, no)

    def setpoints(self, state: Any, command: Float[Array, "4"]) -> Setpoint:
        a, b, c, d = command
        return (
            RateSetpoint(a, Vec3(b, c, d)) if self.command_kind == "body_rates" else VelocitySetpoint(Vec3(a, b, c), d)
        )

    def vehicle_states(self, state: Any) -> QuadrotorState:
        return replace(state.body, memory=None)

    def wind_at(self, state: Any) -> Vec3:
        return jax.tree.map(jnp.zeros_like, state.body.position)

    def randomization(self, state: Any) -> PhysicsRandomization:
        return PhysicsRandomization()

    def body_from_vehicles(self, state: Any, command: Any, flights: QuadrotorState) -> QuadrotorState:
        return replace(flights, memory=None)

    def collision_scene(self, state: Any) -> Scene:
        """Flat ground, far below."""
        gray = Color(0.5, 0.5, 0.5)
        return Scene(**daylight(), ground=jax.tree.map(jnp.float32, Ground(0.0, 10.0, gray, gray)))

    def move(self, state: Any, command: Any) -> QuadrotorState:
        """PX4's controller on the device."""
        wanted = self.setpoints(state, command)

        def tick(_: Any, flight: QuadrotorState) -> QuadrotorState:
            rotors, memory = self.controller.control(self.airframe, flight, flight.memory, wanted)
            flight = replace(flight, memory=memory)
            for _ in range(2):
                flight = self.airframe.step(flight, rotors, None, PhysicsRandomization(), 0.5 * self.controller.dt)
            return flight

        return jax.lax.fori_loop(0, round(self.controller.rate / self.control_rate), tick, state.body)


def excitation(kind: str, flights: int, seconds: float, rate: int, vehicle: Quadrotor, seed: int) -> np.ndarray:
    """Commands of many flights: a third steps, a third sweeps, a third random; all axes at once, at their own times.

    The random ones go along the ground twice as fast, and hold longer.
    """
    rng = np.random.default_rng(seed)
    steps = round(seconds * rate)
    time = np.arange(steps) / rate
    reach = np.array([5.0, 5.0, 1.2, 0.8]) if kind == "velocity" else np.array([0.45, 4.0, 4.0, 2.0])
    hold = (1.5, 4.0) if kind == "velocity" else (0.08, 0.3)
    out = np.zeros((flights, steps, 4))
    for flight in range(flights):
        for axis in range(4):
            if flight % 3 == 1:
                low, high = (0.02, 0.2) if kind == "velocity" else (0.5, 4.0)
                turns = low * time + (high - low) * time**2 / (2.0 * seconds)
                out[flight, :, axis] = np.sin(2.0 * np.pi * (turns + rng.uniform()))
                continue
            at, slow = 0, 2.0 if kind == "velocity" and flight % 3 == 2 else 1.0
            while at < steps:
                length = max(1, round(slow * rng.uniform(*hold) * rate))
                level = rng.choice([-1.0, 0.0, 1.0]) if flight % 3 == 0 else rng.uniform(-1.0, 1.0)
                # Rates come in pairs that cancel: the vehicle stays upright.
                paired = kind == "body_rates" and axis > 0
                out[flight, at : at + length, axis] = level
                if paired:
                    out[flight, at + length : at + 2 * length, axis] = -level
                at += length * (2 if paired else 1)
    out *= reach
    if kind == "velocity":
        out[2::3, :, :2] *= 2.0
    if kind == "body_rates":
        out[..., 0] = vehicle.mass * GRAVITY * (1.0 + out[..., 0])
    return out.astype(np.float32)


def record(
    plant: Plant | None,
    task: FreeFlight,
    commands: np.ndarray,
    watch: Callable[[int, int], None] = lambda done, all: None,
) -> Recording:
    """Fly commands on a plant; without one, on the px4 controller on the device."""
    if plant is None:
        return _on_device(task, commands)
    flights, steps, _ = commands.shape
    plant.adapt(task)
    width = plant.max_worlds or flights
    parts = []
    for first in range(0, flights, width):
        rows = commands[first : first + width]
        states = jax.vmap(lambda k: task.reset(Rng.from_seed(0, k)))(jnp.arange(len(rows)))
        states = replace(states, body=replace(states.body, memory=None))
        try:
            kept = [plant.start(task, states)]
            for k in range(steps):
                states = replace(states, body=replace(kept[-1], memory=None))
                plant.command(states, jnp.asarray(rows[:, k]))
                kept.append(plant.truth())
                if plant.failed is not None and plant.failed.any():
                    raise PlantError(f"the plant {plant.name} failed while excitation was flown")
                watch(first * steps + (k + 1) * len(rows), flights * steps)
        finally:
            plant.close()
        parts.append(jax.tree.map(lambda *x: np.stack([np.asarray(v) for v in x], 1), *kept))
    flown = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return _recording(commands, flown, 1.0 / task.control_rate, plant.name)


def _on_device(task: FreeFlight, commands: np.ndarray) -> Recording:
    def fly(rows: Any) -> Any:
        start = task.reset(Rng.from_seed(0, 0))

        def tick(flight: QuadrotorState, command: Any) -> tuple[QuadrotorState, QuadrotorState]:
            after = task.move(replace(start, body=flight), command)
            return after, replace(after, memory=None)

        after = jax.lax.scan(tick, start.body, rows)[1]
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), replace(start.body, memory=None), after)

    flown = jax.device_get(jax.jit(jax.vmap(fly))(jnp.asarray(commands)))
    return _recording(commands, flown, 1.0 / task.control_rate, "px4-controller")


def _recording(commands: np.ndarray, flown: QuadrotorState, dt: float, source: str) -> Recording:
    q = flown.attitude
    stack = lambda parts: np.stack([np.asarray(p, np.float32) for p in parts], -1)  # noqa: E731
    return Recording(
        commands, stack(flown.position.parts), stack(flown.velocity.parts), stack((q.w, q.x, q.y, q.z)),
        stack(flown.rates.parts), stack(flown.rotors.parts), dt, source,
    )  # fmt: skip
