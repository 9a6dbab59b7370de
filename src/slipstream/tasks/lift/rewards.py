"""What a step was worth, and whether the cube is where it should be."""

from dataclasses import replace
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ...core.geometry import Flag, Scalar, Vec3
from ...dynamics.grasp import GraspState
from .reset import CENTER
from .state import LiftState

if TYPE_CHECKING:
    from .task import Lift

GRASP_FORCE = 0.2
"""With how much each finger must push the cube for it to count as grasped, N."""
LIFTED = 0.08
"""Height of the cube's center from which it counts as lifted, m."""
LIFTED_TO_PLACE = 0.05
"""The same if it is to be placed somewhere."""
HOLD_STEPS = 10
"""Steps in a row for which the goal must be met."""
PLACED = 0.02
"""Distance from the target within which a cube counts as placed, m."""
LOST = 0.25
"""Distance from the middle of the mat at which a cube counts as lost, m."""


def judge(task: "Lift", state: LiftState, body: GraspState) -> LiftState:
    """The state once arm and cube are there."""
    before, cube, half = state.progress, body.cube.position, state.world.cube.half
    grasped = (body.forces.fixed > GRASP_FORCE) & (body.forces.jaw > GRASP_FORCE)
    high = grasped & (cube.z > (LIFTED if task.goal == "lift" else LIFTED_TO_PLACE))
    lifted = before.lifted | high
    met = high if state.world.target is None else lifted & ~grasped & at_rest_on_target(state, body)
    held = jnp.where(met, before.held + 1, 0)
    success = held >= HOLD_STEPS
    # Not a number anywhere is a cube that is lost, too.
    away = ~((cube.x - CENTER[0]) ** 2 + (cube.y - CENTER[1]) ** 2 + (cube.z - half) ** 2 < LOST**2)
    step = state.step + 1
    reward = step_reward(task, state, body, grasped, high, lifted)
    reward = reward + jnp.where(success, task.reward.success, 0.0)
    reward = jnp.where(away, task.reward.lost, reward)
    return replace(
        state,
        body=body,
        progress=replace(
            before,
            grasped=grasped,
            lifted=lifted,
            held=held,
            success=success,
            lost=away,
            highest=jnp.maximum(before.highest, cube.z),
            episode_return=before.episode_return + reward,
            earlier=(state.body, *before.earlier)[: len(before.earlier)],
        ),
        step=step,
        reward=reward,
        terminated=success | away,
        truncated=step >= task.step_limit,
    )


def step_reward(task: "Lift", state: LiftState, body: GraspState, grasped: Flag, high: Flag, lifted: Flag) -> Scalar:
    """The reward of a step but for success and loss."""
    weights, cube, half = task.reward, body.cube.position, state.world.cube.half
    gripper = task.model.gripper(body).position
    reach = closeness(cube - gripper, 0.1)
    held = jnp.where(grasped, 1.0, 0.0)
    goal = LIFTED if task.goal == "lift" else LIFTED_TO_PLACE
    height = jnp.clip((cube.z - half) * (1.0 / (goal + 0.01 - half)), 0.0, 1.0)
    carried = held * (weights.grasp + weights.lift * height) + jnp.where(high, weights.high, 0.0)
    rate = weights.action_rate * state.progress.change
    if state.world.target is None:
        return weights.reach * reach + carried + rate
    target = state.world.target
    there = closeness(Vec3(cube.x - target.x, cube.y - target.y, cube.z - half), 0.15)
    # What was earned on the way up stays earned: to set the cube down must not cost.
    best = weights.reach + weights.grasp + weights.lift
    placed = at_rest_on_target(state, body) & ~grasped
    brought = best + weights.high * there + jnp.where(placed, weights.high, 0.0)
    return jnp.where(lifted, brought, weights.reach * reach + carried) + rate


def at_rest_on_target(state: LiftState, body: GraspState) -> Flag:
    """Whether the cube lies on its target."""
    target, cube = state.world.target, body.cube
    assert target is not None
    aside = (cube.position.x - target.x) ** 2 + (cube.position.y - target.y) ** 2
    low = cube.position.z < state.world.cube.half + 0.004
    return (aside < PLACED**2) & low & (cube.velocity.dot(cube.velocity) < 0.05**2)


def closeness(offset: Vec3, scale: float) -> Scalar:
    """One at no distance, and less than a half beyond about half of the scale: 1 − tanh(distance / scale)."""
    return 1.0 - jnp.tanh(offset.norm() * (1.0 / scale))
