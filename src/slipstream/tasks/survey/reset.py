"""How worlds and sorties start."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ...core.geometry import Scalar, Vec2, Vec3, sin_cos
from ...core.rng import Rng
from ...core.task import State, select_agents
from ...dynamics.velocity_drone import Gimbal, VelocityCommand, VelocityDroneState
from . import coverage, flight
from .behavior import MISSION, TAKE_OFF
from .gimbal import gimbal_towards
from .rewards import world_over
from .stacked import at, scan_fold
from .state import Fleet, Sortie, SurveyState
from .world import HIGH, SurveyWorld, Target

if TYPE_CHECKING:
    from .task import Survey

Start = tuple[VelocityDroneState, Gimbal, Sortie]


def reset(task: "Survey", rng: Rng) -> SurveyState:
    """A new world, with every drone at the start of a sortie."""
    world = task.mission_spec.generator.draw(rng.fork(0), task.agents)
    clock = jnp.float32(0.0)
    drones, gimbals, sorties = draw_starts(task, rng.fork(1), world, clock)
    shape = (task.agents,)
    return State(
        world=world,
        body=Fleet(drones, gimbals, clock, flight.airframes(task, drones)),
        progress=sorties,
        rng=rng,
        step=jnp.zeros(shape, jnp.int32),
        reward=jnp.zeros(shape),
        terminated=jnp.zeros(shape, bool),
        truncated=jnp.zeros(shape, bool),
    )


def draw_starts(task: "Survey", rng: Rng, world: SurveyWorld, clock: Scalar) -> Start:
    """A start for every drone in this world."""
    numbers = jnp.arange(task.agents)
    return jax.vmap(lambda own, shared: draw_start(task, *own, *shared), in_axes=(0, None))(
        (jax.vmap(rng.fork)(numbers), numbers, world.pads), (world, clock)
    )


def respawn(task: "Survey", state: SurveyState, starts: Start, who: Bool[Array, "agents"]) -> SurveyState:
    """The state in which the drones `who` are at their starts."""
    drones, gimbals, sorties = starts
    body = replace(
        state.body,
        drones=select_agents(who, drones, state.body.drones),
        gimbals=select_agents(who, gimbals, state.body.gimbals),
        airframes=select_agents(who, flight.airframes(task, drones), state.body.airframes),
    )
    return replace(
        state,
        body=body,
        progress=select_agents(who, sorties, state.progress),
        step=jnp.where(who, 0, state.step),
        reward=jnp.where(who, 0.0, state.reward),
        terminated=state.terminated & ~who,
        # A drone that respawns in a world whose lifetime is over ends with the others.
        truncated=(state.truncated & ~who) | world_over(task, state.world, state.body.clock),
    )


def draw_start(task: "Survey", rng: Rng, number: Array, pad: Vec2, world: SurveyWorld, clock: Scalar) -> Start:
    """One drone at the start of a sortie: on its pad or in the air."""
    mission, generator = task.mission_spec, task.mission_spec.generator
    ground = world.terrain(pad.x, pad.y)
    target = at(world.targets, number % generator.targets)
    place, height, on_pad = pad, ground, jnp.bool_(True)
    if task.start_mode != "pad":
        place, rng = draw_position(task, rng, world, clock, target, pad)
        above, rng = rng.uniform(task.filter.min_height + 7.0, 75.0)
        height, on_pad = world.terrain(place.x, place.y) + above, jnp.bool_(False)
    if task.start_mode == "both":
        coin, rng = rng.uniform()
        on_pad = coin < 0.5
        place = Vec2(*(jnp.where(on_pad, a, b) for a, b in ((pad.x, place.x), (pad.y, place.y))))
        height = jnp.where(on_pad, ground, height)
    goal_y, rng = rng.uniform(-generator.north + 60.0, generator.north - 60.0)
    goal = Vec3(0.0 * goal_y + (generator.east - 40.0), goal_y, 60.0 + 0.0 * goal_y)
    home = Vec3(pad.x, pad.y, ground)
    here = Vec3(place.x, place.y, height)
    time_limit = jnp.float32(mission.time_limit)
    if mission.has_goal:
        home = goal
        time_limit = 10.0 + 1.2 * (goal - here).norm() / 10.0
    yaw, rng = rng.uniform(-math.pi, math.pi)
    battery, rng = rng.uniform(*mission.initial_battery)
    outage, rng = rng.uniform()
    outage_start, rng = rng.uniform(0.0, 0.5 * mission.time_limit)
    cue = []
    for _ in range(2):
        part, rng = rng.normal(4.0)
        cue.append(part)
    target_position = target.mover.position_at(clock)
    zero = 0.0 * goal_y
    drone = VelocityDroneState.at(here, yaw)
    pitch = {"forward": 0.5, "down": 0.5 * math.pi}.get(mission.gimbal, 0.8)
    gimbal = Gimbal(zero, zero + pitch)
    track = Vec3(
        target_position.x + cue[0],
        target_position.y + cue[1],
        world.terrain(target_position.x, target_position.y),
    )
    if mission.target_per_drone:
        # The camera looks at the reported position of the target.
        gimbal = gimbal_towards(drone, track)
    sortie = Sortie(
        home=home,
        goal=goal,
        time_limit=time_limit,
        battery=battery,
        mode=jnp.where(on_pad, TAKE_OFF, MISSION).astype(jnp.int32),
        drift=Vec2(zero, zero),
        outage_start=jnp.where(outage < task.navigation.gnss_outage_prob, outage_start, jnp.inf),
        gnss_lost=jnp.bool_(False),
        vio_failed=rng.fork(0).uniform()[0] < task.navigation.vio_failure_prob,
        found=jnp.uint32(0),
        value=zero,
        covered=(jnp.uint32(0),) * coverage.SIDE if mission.coverage_half_extent else (),
        track=track,
        time_unseen=zero,
        dwell=zero,
        best_dwell=zero,
        view_quality=zero,
        false_alarms=zero,
        medium_threat_time=zero,
        high_threat_time=zero,
        zone_violation=jnp.bool_(False),
        crashed=jnp.bool_(False),
        arrived=jnp.bool_(False),
        filter_interventions=zero,
        filter_reason=jnp.int32(0),
        filter_correction=zero,
        command=VelocityCommand(zero, zero, zero, zero),
        episode_return=zero,
        success=jnp.bool_(False),
        response_factor=draw_response(task, rng),
    )
    return drone, gimbal, sortie


def draw_response(task: "Survey", rng: Rng) -> Scalar | None:
    """The factor on a drone's time constants."""
    reach = task.randomize.response
    return rng.fork(1).uniform(1.0 - reach, 1.0 + reach)[0] if reach else None


def draw_position(
    task: "Survey", rng: Rng, world: SurveyWorld, clock: Scalar, target: Target, pad: Vec2
) -> tuple[Vec2, Rng]:
    """A position clear of zones and buildings, if one of three tries is; otherwise the pad."""
    generator = task.mission_spec.generator

    def attempt(carry: tuple[Vec2, Rng], _: Any) -> tuple[tuple[Vec2, Rng], None]:
        best, rng = carry
        x, rng = rng.uniform(-generator.east + 20.0, generator.east - 80.0)
        y, rng = rng.uniform(-generator.north + 20.0, generator.north - 20.0)
        if task.mission_spec.target_per_drone:
            angle, rng = rng.uniform(-math.pi, math.pi)
            distance, rng = rng.uniform(25.0, 80.0)
            center = target.mover.position_at(clock)
            sin, cos = sin_cos(angle)
            x = jnp.clip(center.x + distance * cos, -generator.east + 20.0, generator.east - 20.0)
            y = jnp.clip(center.y + distance * sin, -generator.north + 20.0, generator.north - 20.0)
        here = Vec3(x, y, 0.0 * x)
        margin = 2.0 * task.filter.margin
        clear = scan_fold(
            lambda ok, zone: ok & ((zone.depth(here) < -margin) | (zone.level < HIGH)), jnp.isfinite(x), world.zones
        )
        clear = scan_fold(lambda ok, building: ok & (building.outward(here).norm() > 25.0), clear, world.buildings)
        return (Vec2(jnp.where(clear, x, best.x), jnp.where(clear, y, best.y)), rng), None

    return jax.lax.scan(attempt, (pad, rng), length=3)[0]
