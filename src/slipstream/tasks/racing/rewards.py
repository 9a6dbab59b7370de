"""Reward, termination and lap counting of a race."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax.nn import softplus
from jaxtyping import Array, Bool, Float

from ...core.geometry import Flag, Scalar, Vec3, angle_of
from ...core.task import vmap_agents
from ...dynamics.quadrotor import QuadrotorState
from .state import RaceProgress, RaceState
from .track import DEPTH, OPENING, Gate, gate_at

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


def smooth_reward(task: "Racing", before: RaceState, after: RaceState) -> Float[Array, "*agents"]:
    """The surrogate of the reward that has a useful slope everywhere."""
    one = partial(smooth_reward_of_drone, task, gates=task.course.gates(before.world.gates))
    return vmap_agents(task.agents, one)(before.progress, before.body, after.progress, after.body, after.terminated)


def smooth_reward_of_drone(
    task: "Racing",
    race: RaceProgress,
    before: QuadrotorState,
    race_after: RaceProgress,
    after: QuadrotorState,
    terminated: Flag,
    gates: tuple[Gate, ...],
) -> Float[Array, ""]:
    """Progress to the gate that is next after the step, costs of crossing a gate far from its center, of flying low.

    Progress is continuous over the switch to the next gate, so that a drone is not drawn back to the center of the
    gate it has just passed.
    """
    weights, smooth = task.reward, task.smooth
    goal, following = gate_at(gates, race.next_gate), gate_at(gates, race_after.next_gate)
    reward = weights.progress * (
        smooth_norm(goal.center - before.position) - smooth_norm(following.center - after.position)
    )
    b, a = goal.local(before.position), goal.local(after.position)
    forward = (b.x < 0.0) & (a.x >= 0.0)
    depth = jnp.where(forward, a.x - b.x, 1.0)
    y, z = (a.x * b.y - b.x * a.y) / depth, (a.x * b.z - b.x * a.z) / depth
    # Who hits the frame from inside its thickness crosses no plane.
    in_frame = terminated & (jnp.abs(a.x) < DEPTH / 2) & ~forward
    y, z = jnp.where(in_frame, a.y, y), jnp.where(in_frame, a.z, z)
    room = OPENING / 2 - task.quadrotor.radius - task.gate_margin

    def crossing_cost(offset: Scalar) -> Scalar:
        offset = jnp.sqrt(offset * offset + 1e-4)
        edge = (jnp.minimum(offset, 4.0) - smooth.edge_start) / smooth.edge_width
        return smooth.gate_offset * offset + smooth.gate_edge * smooth.edge_width * softplus(edge)

    cost = crossing_cost(y / room) + crossing_cost(z / room)
    reward = reward - jnp.where(forward | in_frame, cost, 0.0)
    low = softplus((smooth.ground_height - after.position.z) / 0.1) * 0.1
    reward = reward - smooth.ground * low * task.control_dt + weights.body_rates * after.rates.dot(after.rates)
    if weights.action_rate:
        new, old = race_after.recent_commands[0].parts, race.recent_commands[0].parts
        reward = reward + weights.action_rate * sum((p - q) ** 2 for p, q in zip(new, old, strict=True))
    return jnp.asarray(reward)


def smooth_norm(v: Vec3) -> Scalar:
    """The length, rounded off within 10 cm of zero, where its slope would jump."""
    return jnp.sqrt(v.dot(v) + 0.01)


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
