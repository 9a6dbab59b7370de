"""What a learner that differentiates the survey follows: the moving parts of a fleet, and a smooth surrogate of the
reward, for missions whose reward is a function of where the drones are."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.geometry import Scalar, Vec3
from ...core.struct import struct
from ...dynamics.quadrotor import QuadrotorState
from ...dynamics.velocity_drone import Gimbal, VelocityCommand, VelocityDroneState
from .rewards import GOOD_VIEW
from .stacked import at
from .state import SurveyState

if TYPE_CHECKING:
    from .task import Survey

BEST_DISTANCE = 50.0
"""Distance from which a target is seen best, m."""


@struct
class DifferentiableFleet:
    """What carries a gradient from step to step, for each drone."""

    drones: VelocityDroneState
    gimbals: Gimbal
    airframes: QuadrotorState | None
    command: VelocityCommand  # after the safety filter
    filter_correction: Scalar


def differentiable_state(state: SurveyState) -> DifferentiableFleet:
    fleet, sortie = state.body, state.progress
    return DifferentiableFleet(fleet.drones, fleet.gimbals, fleet.airframes, sortie.command, sortie.filter_correction)


def with_differentiable_state(state: SurveyState, part: DifferentiableFleet) -> SurveyState:
    body = replace(state.body, drones=part.drones, gimbals=part.gimbals, airframes=part.airframes)
    sortie = replace(state.progress, command=part.command, filter_correction=part.filter_correction)
    return replace(state, body=body, progress=sortie)


def smooth_reward(task: "Survey", before: SurveyState, after: SurveyState) -> Float[Array, "agents"]:
    """Progress to the goal, the view of the own target, and what the safety filter had to change."""
    mission = task.mission_spec
    weights = mission.reward
    reward = weights.filter_intervention * after.progress.filter_correction
    if mission.has_goal:
        was, now = (after.progress.goal - state.body.drones.position for state in (before, after))
        reward = reward + weights.progress * (was.norm() - now.norm())
    elif mission.target_per_drone and weights.view:
        numbers = jnp.arange(task.agents)
        quality = jax.vmap(partial(smooth_view_quality, task, after))(after.body.drones, after.body.gimbals, numbers)
        good = jax.nn.sigmoid((quality - GOOD_VIEW) * 10.0)
        reward = reward + weights.view * task.control_dt * (quality + good)
    else:
        raise ValueError(
            f"the mission '{task.mission}' has no smooth reward: what it counts (areas and targets found) does not "
            "change with a small change of a path"
        )
    return jnp.asarray(reward)


def smooth_view_quality(
    task: "Survey", state: SurveyState, drone: VelocityDroneState, gimbal: Gimbal, number: Array
) -> Scalar:
    """The quality of a view, with a slope towards the target where the true one is zero: beyond the image."""
    world, lens = state.world, task.camera_model
    target = at(world.targets, number % task.mission_spec.generator.targets)
    place = target.mover.position_at(state.body.clock)
    point = Vec3(place.x, place.y, world.terrain(place.x, place.y) + 1.0)
    relative = gimbal.attitude(drone.yaw).axes.unrotate(point - drone.position)
    across = jnp.arctan2(relative.y, relative.x) * (2.0 / lens.horizontal_fov)
    flat = jnp.sqrt(relative.x**2 + relative.y**2 + 1.0)
    upwards = jnp.arctan2(relative.z, flat) * (2.0 / lens.vertical_fov)
    offset = jnp.sqrt(across**2 + upwards**2 + 0.01)
    distance = jnp.sqrt(relative.dot(relative) + 1.0)
    closeness = 1.0 - 0.01 * jnp.sqrt((distance - BEST_DISTANCE) ** 2 + 9.0)
    return closeness - offset
