"""What a step is worth, and when a vessel's episode ends."""

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.geometry import Scalar
from ...dynamics.vessel import TwinThrusterVessel, VesselState
from .colregs import required_turn
from .sensing import obstacles
from .state import MarineState, VesselProgress

if TYPE_CHECKING:
    from .task import Marine


def judge(task: "Marine", state: MarineState, body: VesselState) -> MarineState:
    """The state once the vessels are there, whoever moved them."""
    step = state.step + 1
    before, radius, reward = state.progress, task.dynamics.radius, task.reward
    found = obstacles(task, state, body)
    distance = (state.world.goal - body.position).norm()
    collided = distance < -1.0
    for obstacle in found:
        touches = obstacle.offset.dot(obstacle.offset) < (obstacle.radius + radius) ** 2
        collided = collided | (obstacle.exists & touches)
    others = found[: task.vessels - 1]
    turn = required_turn(body.velocity_w, radius, others) if task.colregs and others else 0.0 * distance
    reached = (distance < task.goal_radius) & ~collided
    earned = (
        reward.step
        + reward.progress * (before.distance - distance)
        + reward.colregs * turn
        + reward.collision * collided
        + reward.goal * reached
    )
    over = collided | reached
    limit = min(task.train_time_limit, task.time_limit) if task.training else task.time_limit
    late = step.astype(jnp.float32) * task.control_dt >= limit
    running = ~state.ended
    progress = VesselProgress(
        distance=distance,
        reached=before.reached | (reached & running),
        collided=before.collided | (collided & running),
        required_turn=turn,
        time=before.time + jnp.where(running, task.control_dt, 0.0),
        give_way_time=before.give_way_time + jnp.where((turn > 0.0) & running, task.control_dt, 0.0),
        energy=before.energy + jnp.where(running, energy(task, body, before), 0.0),
        command=before.command,
        episode_return=before.episode_return + jnp.where(running, earned, 0.0),
    )
    return replace(
        state,
        body=body,
        progress=progress,
        rng=state.rng.bits()[1],
        step=step,
        reward=earned,
        terminated=over,
        truncated=jnp.broadcast_to(late, jnp.shape(over)) & ~over,
    )


def smooth_reward(task: "Marine", before: MarineState, after: MarineState) -> Float[Array, "*agents"]:
    """Progress, the turn the COLREGs require, and a cost of coming near obstacles where a collision is a jump."""
    reward, smooth, body = task.reward, task.smooth, after.body
    was, now = ((state.world.goal - state.body.position).norm() for state in (before, after))
    earned = reward.progress * (was - now)
    found = obstacles(task, after, body)
    for obstacle in found:
        gap = obstacle.offset.norm() - obstacle.radius - task.dynamics.radius
        near = jax.nn.softplus((smooth.clearance - gap) / smooth.width) * smooth.width
        earned = earned - jnp.where(obstacle.exists, smooth.obstacle * task.control_dt * near, 0.0)
    others = found[: task.vessels - 1]
    if task.colregs and others:
        earned = earned + reward.colregs * required_turn(body.velocity_w, task.dynamics.radius, others)
    return jnp.asarray(earned)


def energy(task: "Marine", body: VesselState, progress: VesselProgress) -> Scalar:
    """The effort of a step: thrust times time in kN s, or of a point the sum of its commands."""
    if isinstance(task.dynamics, TwinThrusterVessel):
        return (jnp.abs(body.left) + jnp.abs(body.right)) * (1e-3 * task.control_dt)
    return jnp.abs(progress.command.x) + jnp.abs(progress.command.y)
