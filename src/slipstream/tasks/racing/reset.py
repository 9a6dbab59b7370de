"""The start of an episode: randomized worlds and initial states of the drones."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ...core.geometry import Quat, Scalar, Vec3, heading
from ...core.rng import Rng
from ...core.task import State
from ...dynamics.control_modes import NormalizedCommand
from ...dynamics.quadrotor import PhysicsRandomization, QuadrotorState
from .state import RaceProgress, RaceState, RaceWorld
from .track import Gate, gate_at

if TYPE_CHECKING:
    from .task import Racing

Start = tuple[QuadrotorState, RaceProgress, PhysicsRandomization]


def reset(task: "Racing", rng: Rng) -> RaceState:
    """A new world, with every drone at its start."""
    drawn, rng = task.course.draw(rng)
    wind, rng = draw_wind(task.randomize.max_wind, rng)
    delay = None
    if task.randomize.max_action_delay:
        delay, rng = rng.integer(task.randomize.max_action_delay + 1)
    time_limit = None
    if task.train_time_limit:
        time_limit, rng = rng.uniform(0.15 * task.train_time_limit, task.train_time_limit)
    if task.agents == 1:
        start, rng = draw_start(task, rng, task.course.gates(drawn))
    else:
        own = jax.vmap(rng.fork)(jnp.arange(task.agents))
        start, _ = jax.vmap(partial(draw_start, task, gates=task.course.gates(drawn)))(own)
    drone, race, randomization = start
    bias, rng = task.sensor_noise.draw_bias(rng)
    shape = (task.agents,) if task.agents > 1 else ()
    return State(
        world=RaceWorld(drawn, randomization, wind, delay, time_limit, bias),
        body=drone,
        progress=race,
        rng=rng,
        step=jnp.int32(0),
        reward=jnp.zeros(shape),
        terminated=jnp.zeros(shape, bool),
        truncated=jnp.zeros(shape, bool),
    )


def draw_start(task: "Racing", rng: Rng, gates: tuple[Gate, ...]) -> tuple[Start, Rng]:
    """The start of one drone: behind a gate, on the line to the next one, or in front of the first."""
    where = task.start
    randomization, rng = draw_randomization(task, rng)
    index, rng = (jnp.int32(0), rng) if where.mode == "grid" else rng.integer(len(gates))
    last = gate_at(gates, jnp.where(index == 0, len(gates) - 1, index - 1))
    goal = gate_at(gates, index)
    away = goal.center - goal.normal * 2.5 if where.mode == "grid" else last.center + last.normal
    if where.mode == "line":
        along, rng = rng.uniform()
        away = away + (goal.center - goal.normal * 1.5 - away) * along
    offset = []
    for _ in range(3):
        part, rng = rng.uniform(-where.position_noise, where.position_noise)
        offset.append(part)
    position = away + Vec3(*offset)
    position = replace(position, z=jnp.maximum(position.z, 0.5))
    ahead = goal.center - position
    roll, rng = rng.uniform(-where.tilt, where.tilt)
    pitch, rng = rng.uniform(-where.tilt, where.tilt)
    turn, rng = rng.uniform(-where.yaw, where.yaw)
    speed, rng = rng.uniform(0.0, where.speed) if where.speed else (0.0, rng)
    facing = Vec3(ahead.x, ahead.y, 0.0).unit()
    attitude = heading(facing) * Quat.from_euler(roll, pitch, turn)
    zero = 0.0 * position.x
    drone = task.quadrotor.hovering(position, attitude, ahead.unit() * speed, Vec3(zero, zero, zero))
    if task.autopilot:
        drone = replace(drone, memory=task.autopilot.start(task.quadrotor, drone))
    race = RaceProgress(
        next_gate=index,
        passed=jnp.int32(0),
        lap_start=jnp.float32(0.0),
        first_lap=jnp.float32(0.0),
        best_lap=jnp.float32(0.0),
        crashed=jnp.bool_(False),
        missed=jnp.bool_(False),
        episode_return=jnp.float32(0.0),
        recent_commands=(NormalizedCommand(*[jnp.float32(0.0)] * 4),) * task.commands_kept,
        gust=Vec3(*[jnp.float32(0.0)] * 3) if task.randomize.gust_std else None,
    )
    return (drone, race, randomization), rng


def draw_randomization(task: "Racing", rng: Rng) -> tuple[PhysicsRandomization, Rng]:
    """Factors on the physical parameters of one drone."""
    drawn: dict[str, Scalar | None] = {}
    for name, factor in (
        ("mass", "mass"),
        ("inertia", "inertia"),
        ("thrust", "thrust"),
        ("motor_lag", "motor_lag"),
        ("drag", "drag"),
    ):
        reach = getattr(task.randomize, factor)
        if reach:
            drawn[name], rng = rng.uniform(1.0 - reach, 1.0 + reach)
    return PhysicsRandomization(**drawn), rng


def draw_wind(strongest: float, rng: Rng) -> tuple[Vec3 | None, Rng]:
    """A steady wind of at most that speed along each axis, and a fifth of it vertically."""
    if not strongest:
        return None, rng
    x, rng = rng.uniform(-strongest, strongest)
    y, rng = rng.uniform(-strongest, strongest)
    z, rng = rng.uniform(-0.2 * strongest, 0.2 * strongest)
    return Vec3(x, y, z), rng
