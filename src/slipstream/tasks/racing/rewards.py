"""Reward, termination and lap counting of a race."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Bool

from ...core.geometry import Flag, Scalar, angle_of
from ...core.task import vmap_agents
from ...dynamics.quadrotor import QuadrotorState
from .state import RaceProgress, RaceState
from .track import Gate, gate_at

if TYPE_CHECKING:
    from .task import Racing


def judge(task: "Racing", state: RaceState, body: QuadrotorState) -> RaceState:
    """The state after the drones have moved, by our physics or by a plant's."""
    step = state.step + 1
    time = step.astype(jnp.float32) * task.control_dt
    gates = task.course.gates(state.world.gates)
    limit = task.time_limit if state.world.time_limit is None else state.world.time_limit
    one = partial(judge_drone, task, gates=gates, time=time)
    race, reward, over = vmap_agents(task.agents, one)(state.progress, state.body, body)
    if task.agents > 1:
        hit = collisions(task, state, body)
        race = replace(race, crashed=race.crashed | hit)
        reward = reward + jnp.where(hit & ~over, task.reward.crash, 0.0)
        over = over | hit
    race = replace(race, episode_return=state.progress.episode_return + jnp.where(state.ended, 0.0, reward))
    return replace(
        state,
        body=body,
        progress=race,
        step=step,
        reward=reward,
        terminated=over,
        truncated=jnp.broadcast_to(time >= limit, jnp.shape(over)) & ~over,
    )


def judge_drone(
    task: "Racing",
    race: RaceProgress,
    before: QuadrotorState,
    after: QuadrotorState,
    gates: tuple[Gate, ...],
    time: Scalar,
) -> tuple[RaceProgress, Scalar, Flag]:
    """Progress, reward and termination of one drone after a step."""
    weights = task.reward
    goal = gate_at(gates, race.next_gate)
    radius = task.quadrotor.radius + task.gate_margin
    crossing = goal.crossing(before.position, after.position, radius)
    hit = jnp.asarray(after.position.z < task.quadrotor.foot_drop)
    for gate in gates:
        hit = hit | gate.crossing(before.position, after.position, radius).hit
    through = crossing.through & ~hit
    missed = crossing.forward & ~through & ~hit
    ahead = goal.center - after.position
    distance = ahead.norm()
    gain = (goal.center - before.position).norm() - distance
    reward = (
        weights.progress * gain
        + (weights.gate - weights.gate_offset * crossing.offset) * through
        + weights.miss * missed
        + weights.crash * hit
        + weights.body_rates * after.rates.dot(after.rates)
    )
    if weights.facing:
        facing = jnp.clip(after.attitude.forward.dot(ahead) / jnp.maximum(distance, 1e-3), -1.0, 1.0)
        reward = reward + weights.facing * jnp.exp(-2.0 * angle_of(facing))
    if weights.action_rate:
        new, old = race.recent_commands[0].parts, race.recent_commands[1].parts
        reward = reward + weights.action_rate * sum((a - b) ** 2 for a, b in zip(new, old, strict=True))
    over = hit | (distance > task.max_gate_distance)
    if task.terminate_on_miss:
        over = over | missed
    return laps(race, through, len(gates), time, hit, missed), reward, over


def laps(race: RaceProgress, through: Flag, count: int, time: Scalar, hit: Flag, missed: Flag) -> RaceProgress:
    """The progress of a drone after a step, with gates and laps counted."""
    passed = race.passed + through
    lap_done = through & (passed % count == 0)
    lap = time - race.lap_start
    first = lap_done & (passed == count)
    following = jnp.where(race.next_gate + 1 == count, 0, race.next_gate + 1)
    faster = (race.best_lap == 0.0) | (lap < race.best_lap)
    return replace(
        race,
        next_gate=jnp.where(through, following, race.next_gate),
        passed=passed,
        lap_start=jnp.where(lap_done, time, race.lap_start),
        first_lap=jnp.where(first, lap, race.first_lap),
        best_lap=jnp.where(lap_done & ~first & faster, lap, race.best_lap),
        crashed=race.crashed | hit,
        missed=race.missed | missed,
    )


def collisions(task: "Racing", state: RaceState, body: QuadrotorState) -> Bool[Array, "agents"]:
    """Which drones, of those still flying, touch another one."""
    x, y, z = (jnp.subtract.outer(part, part) for part in body.position.parts)
    flying = ~state.ended
    pairs = flying[:, None] & flying[None, :] & ~jnp.eye(task.agents, dtype=bool)
    return jnp.any(pairs & (x**2 + y**2 + z**2 < (2.0 * task.quadrotor.radius) ** 2), axis=1)
