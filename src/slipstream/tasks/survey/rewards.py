"""The reward of a step, what it detected, and whether the sortie is over."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from ...core.geometry import Flag, Scalar, Vec2, Vec3
from ...core.rng import Rng
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from . import coverage
from .behavior import EMERGENCY, LANDED
from .stacked import at, fold, scan_fold
from .state import Fleet, Sortie, SurveyState
from .world import HIGH, MEDIUM, Building, Hill, SurveyWorld, Target, Zone

if TYPE_CHECKING:
    from .task import Survey

GOOD_VIEW = 0.7
"""View quality from which a step counts as dwelling."""
RADIUS = 0.5
"""Radius of a drone, m."""
VIEW_DISTANCE = 80.0
"""Distance within which a known target can be found, m."""
OUTAGE_TIME = 60.0
"""Duration of a GNSS outage, s."""

Looking = tuple[UInt32[Array, ""], Scalar, Scalar, Rng, UInt32[Array, ""]]
"""Targets found, their weight in this step, their value so far, the generator, and the bit of the next target."""
Paths = tuple[Vec3, Vec3, Array, Array]
"""Of all drones: position before and after the step, whether it flies, and number."""


def judge(task: "Survey", state: SurveyState, body: Fleet) -> SurveyState:
    """The state once the fleet has moved, by our model or by a plant."""
    mission = task.mission_spec
    step = state.step + 1
    flying = ~state.ended & (state.progress.mode != LANDED)
    rngs = jax.vmap(lambda i: state.rng.fork(i + 64))(jnp.arange(task.agents))
    numbers = jnp.arange(task.agents)
    before, after = state.body.drones, body.drones
    sortie, reward, over = jax.vmap(lambda own, shared: score_drone(task, *own, *shared), in_axes=(0, None))(
        (state.progress, before, after, body.gimbals, numbers, rngs, step),
        (state.world, body.clock, (before.position, after.position, flying, numbers)),
    )
    late = step.astype(jnp.float32) * task.control_dt >= sortie.time_limit
    truncated = world_over(task, state.world, body.clock)
    if mission.deadline:
        # A drone observes its clock, and can earn nothing after the limit: that is an end, not a truncation.
        reward = reward + mission.reward.failure * (late & ~over & ~sortie.success)
        over = over | late
    else:
        truncated = truncated | late
    episode_return = state.progress.episode_return + jnp.where(state.ended, 0.0, reward)
    sortie = replace(sortie, episode_return=episode_return)
    truncated = truncated & ~over
    return replace(state, body=body, progress=sortie, step=step, reward=reward, terminated=over, truncated=truncated)


def world_over(task: "Survey", world: SurveyWorld, clock: Scalar) -> Flag:
    """Whether the lifetime of a world is over."""
    return clock >= task.mean_world_lifetime * world.lifetime if task.mean_world_lifetime else jnp.bool_(False)


def score_drone(
    task: "Survey",
    sortie: Sortie,
    before: VelocityDroneState,
    drone: VelocityDroneState,
    gimbal: Gimbal,
    number: Int[Array, ""],
    rng: Rng,
    step: Int[Array, ""],
    world: SurveyWorld,
    clock: Scalar,
    paths: Paths,
) -> tuple[Sortie, Scalar, Flag]:
    """One drone: its sortie after the step, the reward of the step, and whether the sortie is over."""
    mission, dt = task.mission_spec, task.control_dt
    weights, required = mission.reward, mission.required
    here = drone.position
    ground = world.terrain(here.x, here.y)
    speed = drone.velocity.norm()
    battery = sortie.battery - dt * task.battery_drain * world.drain * (0.9 + 0.3 * (speed / 12.0) ** 2)
    time = step.astype(jnp.float32) * dt
    gnss_lost = (time >= sortie.outage_start) & (time < sortie.outage_start + OUTAGE_TIME)
    drift, rng = step_drift(task, sortie, gnss_lost, rng)
    medium, high, no_fly = threats(here, world, clock)
    no_fly = no_fly | (jnp.abs(here.x) > mission.generator.east) | (jnp.abs(here.y) > mission.generator.north)
    low = task.behavior.may_be_low(sortie.mode)
    crashed = collides(before, drone, number, world, paths) | ((here.z - ground < RADIUS) & ~low)
    reward = dt * (weights.time + weights.threat * medium) + weights.filter_intervention * sortie.filter_correction
    now = replace(
        sortie,
        battery=battery,
        drift=drift,
        gnss_lost=gnss_lost,
        medium_threat_time=sortie.medium_threat_time + dt * medium,
        high_threat_time=sortie.high_threat_time + dt * high,
        zone_violation=sortie.zone_violation | no_fly | high,
        crashed=sortie.crashed | crashed,
    )
    failed = no_fly | high | crashed | (battery <= 0.0)
    done = jnp.zeros_like(crashed)
    if mission.has_goal:
        distance = (sortie.goal - here).norm()
        reward = reward + weights.progress * ((sortie.goal - before.position).norm() - distance)
        done = (distance < 10.0) & ~failed
        now = replace(now, arrived=done, success=done & (battery >= mission.battery_reserve))
        reward = reward + weights.arrival * done
    if mission.coverage_half_extent:
        axes = gimbal.attitude(drone.yaw).axes
        rows = coverage.footprint(here, axes, ground, mission.coverage_half_extent, task.camera_model)
        low_enough = here.z - ground <= task.max_coverage_height
        rows = tuple(
            old | jnp.where(low_enough, new, jnp.uint32(0)) for old, new in zip(sortie.covered, rows, strict=True)
        )
        gain = coverage.covered_fraction(rows) - coverage.covered_fraction(sortie.covered)
        reward = reward + weights.coverage * 100.0 * gain
        now = replace(now, covered=rows)
    if weights.detection:
        now, gain, rng = update_detections(task, now, drone, gimbal, world, clock, rng)
        reward = reward + weights.detection * gain
    if mission.target_per_drone:
        now, rng = update_dwell(task, now, drone, gimbal, number, world, clock, rng)
        reward = reward + weights.view * dt * (now.view_quality + (now.view_quality >= GOOD_VIEW))
        # The sortie goes on: if success ended it, a policy would put it off to keep earning the reward of a good view.
        dwelt = now.best_dwell >= required.dwell_time
        failed = failed | (now.time_unseen > 5.0) if required.dwell_time else failed
        now = replace(now, success=dwelt & ~now.zone_violation & ~now.crashed)
        reward = reward + weights.completion * (dwelt & (sortie.best_dwell < required.dwell_time))
    if required.value:
        achievable = achievable_value(world)
        done = now.value >= achievable
        enough = (now.value >= required.value * achievable) & (now.medium_threat_time <= required.max_threat_time)
        now = replace(now, success=enough & ~now.zone_violation & ~now.crashed & (battery > 0.0))
        reward = reward + weights.completion * done
    if mission.return_home:
        enough = mission_complete(task, now)
        reward = reward + weights.completion * (enough & ~mission_complete(task, sortie))
        home_distance = Vec2(sortie.home.x - here.x, sortie.home.y - here.y).norm()
        done = now.mode == LANDED
        home = done & (home_distance <= 3.0) & (battery >= mission.battery_reserve)
        now = replace(now, success=home & enough & ~now.zone_violation)
    done = done | ((now.mode >= EMERGENCY) & (here.z - ground < 0.5))
    reward = reward + weights.failure * failed
    return now, reward, done | failed


def step_drift(task: "Survey", sortie: Sortie, gnss_lost: Flag, rng: Rng) -> tuple[Vec2, Rng]:
    """The position error after one more step: a clipped Ornstein-Uhlenbeck process, wider during a GNSS outage."""
    std = task.navigation.position_drift_std
    scale = std * jnp.where(gnss_lost, 4.0, 1.0)
    keep = math.exp(-task.control_dt / 10.0)
    parts = []
    for old in (sortie.drift.x, sortie.drift.y):
        kick, rng = rng.normal(math.sqrt(1.0 - keep**2))
        # Never beyond the margins of the safety filter.
        limit = 2.8 * std * 2.0
        parts.append(jnp.clip(keep * old + scale * kick, -limit, limit))
    return Vec2(*parts), rng


def threats(here: Vec3, world: SurveyWorld, clock: Scalar) -> tuple[Flag, Flag, Flag]:
    """Whether a position is under a medium threat, under a high one, or in a no-fly zone."""

    def add(found: tuple[Flag, Flag, Flag], zone: Zone) -> tuple[Flag, Flag, Flag]:
        inside = zone.active(clock) & (zone.depth(here) > 0.0)
        medium, high, no_fly = found
        return (
            medium | (inside & (zone.level == MEDIUM)),
            high | (inside & (zone.level == HIGH)),
            no_fly | (inside & (zone.level > HIGH)),
        )

    no = here.x != here.x
    return fold(add, (no, no, no), world.zones)


def collides(
    before: VelocityDroneState, drone: VelocityDroneState, number: Int[Array, ""], world: SurveyWorld, paths: Paths
) -> Flag:
    """Whether the drone touched a building, a hill or another drone in this step."""
    here = drone.position

    def building(hit: Flag, building: Building) -> Flag:
        return hit | (building.outward(here).norm() < RADIUS)

    def hill(hit: Flag, hill: Hill) -> Flag:
        return hit | ((here - hill.center).norm() < hill.radius)

    def other(hit: Flag, path: Paths) -> Flag:
        old, new, flying, index = path
        start, end = before.position - old, here - new
        way = end - start
        nearest = jnp.clip(-start.dot(way) / jnp.maximum(way.dot(way), 1e-6), 0.0, 1.0)
        gap = start + way * nearest
        return hit | (flying & (index != number) & (gap.dot(gap) < (2.0 * RADIUS) ** 2))

    hit = fold(building, here.x != here.x, world.buildings)
    hit = fold(hill, hit, world.hills)
    return fold(other, hit, paths) & paths[2][number]


def update_detections(
    task: "Survey",
    sortie: Sortie,
    drone: VelocityDroneState,
    gimbal: Gimbal,
    world: SurveyWorld,
    clock: Scalar,
    rng: Rng,
) -> tuple[Sortie, Scalar, Rng]:
    """The sortie with the targets that the detector finds in this step, and their weight or value."""
    axes = gimbal.attitude(drone.yaw).axes
    eye, lens = drone.position, task.camera_model

    def look(carry: Looking, target: Target) -> Looking:
        found, gain, value, rng, bit = carry
        position = target.mover.position_at(clock)
        point = Vec3(position.x, position.y, world.terrain(position.x, position.y) + 1.0)
        relative = axes.unrotate(point - eye)
        detected, rng = task.detector.detect(rng, lens.size_in_pixels(target.size, relative))
        new = lens.in_view(relative) & detected & ((found & bit) == 0) & ~world.occluded(eye, point)
        if task.mission_spec.known_targets:
            new = new & (relative.dot(relative) < VIEW_DISTANCE**2)
            worth = target.value * 0.01
        else:
            worth = target.weight
        found = jnp.where(new, found | bit, found)
        return found, gain + worth * new, value + target.value * new, rng, bit << 1

    start = (sortie.found, 0.0 * sortie.value, sortie.value, rng, jnp.uint32(1))
    found, gain, value, rng, _ = scan_fold(look, start, world.targets)
    drawn, rng = rng.uniform()
    false_alarms = sortie.false_alarms + (drawn < task.detector.false_alarm_rate * task.control_dt)
    return replace(sortie, found=found, value=value, false_alarms=false_alarms), gain, rng


def achievable_value(world: SurveyWorld) -> Scalar:
    """The value of the targets that can be viewed from outside the zones that end a sortie."""

    def add(total: Scalar, target: Target) -> Scalar:
        center = target.mover.center
        point = Vec3(center.x, center.y, 0.0 * center.x)

        def deep(found: Flag, zone: Zone) -> Flag:
            return found | ((zone.level >= HIGH) & (zone.depth(point) > VIEW_DISTANCE * 0.6))

        return total + jnp.where(fold(deep, center.x != center.x, world.zones), 0.0, target.value)

    return scan_fold(add, 0.0 * world.drain, world.targets)


def update_dwell(
    task: "Survey",
    sortie: Sortie,
    drone: VelocityDroneState,
    gimbal: Gimbal,
    number: Int[Array, ""],
    world: SurveyWorld,
    clock: Scalar,
    rng: Rng,
) -> tuple[Sortie, Rng]:
    """The sortie with the view of the drone's own target: its quality, duration, and the tracked position."""
    axes, dt, lens = gimbal.attitude(drone.yaw).axes, task.control_dt, task.camera_model
    target = at(world.targets, number % task.mission_spec.generator.targets)
    position = target.mover.position_at(clock)
    point = Vec3(position.x, position.y, world.terrain(position.x, position.y) + 1.0)
    relative = axes.unrotate(point - drone.position)
    detected, rng = task.detector.detect(rng, lens.size_in_pixels(target.size, relative) + 6.0)
    visible = lens.in_view(relative) & ~world.occluded(drone.position, point)
    tracked = visible & detected
    distance = relative.norm()
    offset = jnp.clip(lens.center_offset(relative), 0.0, 1.0)
    closeness = jnp.clip(1.0 - jnp.abs(distance - 50.0) * 0.01, 0.0, 1.0)
    quality = jnp.where(visible, (1.0 - offset) * closeness, 0.0)
    dwell = jnp.where(quality >= GOOD_VIEW, sortie.dwell + dt, 0.0)
    noise = []
    for _ in range(2):
        part, rng = rng.normal()
        noise.append(part * task.detector.position_noise_ratio * distance)
    measured = (point.x + noise[0], point.y + noise[1], point.z)
    sortie = replace(
        sortie,
        track=Vec3(*(jnp.where(tracked, new, old) for new, old in zip(measured, sortie.track.parts, strict=True))),
        time_unseen=jnp.where(visible, 0.0, sortie.time_unseen + dt),
        dwell=dwell,
        best_dwell=jnp.maximum(sortie.best_dwell, dwell),
        view_quality=quality,
    )
    return sortie, rng


def mission_complete(task: "Survey", sortie: Sortie) -> Flag:
    """Whether enough is covered and found."""
    mission = task.mission_spec
    found = jax.lax.population_count(sortie.found).astype(jnp.float32)
    done = found >= mission.required.found * mission.generator.targets
    if mission.coverage_half_extent:
        done = done & (coverage.covered_fraction(sortie.covered) >= mission.required.coverage + 0.005)
    return done
