"""What a step was worth: where it led, what was seen, and whether the sortie is over."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...core.geometry import Flag, Scalar, Vec2, Vec3
from ...core.rng import Rng
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from . import coverage, observation
from .behavior import EMERGENCY, LANDED
from .state import Sortie
from .world import HIGH, MEDIUM, Building, Hill, SurveyWorld, Target, Zone, fold, loop, one

if TYPE_CHECKING:
    from .task import Survey

GOOD = 0.7
"""Quality from which a view counts towards dwelling."""
RADIUS = 0.5
"""Of a drone, m."""


def judged(
    task: "Survey",
    sortie: Sortie,
    before: VelocityDroneState,
    drone: VelocityDroneState,
    gimbal: Gimbal,
    number: Array,
    rng: Rng,
    step: Array,
    country: SurveyWorld,
    clock: Scalar,
    ways: tuple[Vec3, Vec3, Array, Array],
) -> tuple[Sortie, Scalar, Flag]:
    """One drone: its sortie so far, the reward of the step, and whether it is over. `ways` are those of all."""
    plan, dt = task.plan, task.dt
    here = drone.position
    ground = country.terrain(here.x, here.y)
    speed = drone.velocity.norm()
    battery = sortie.battery - dt * task.discharge * country.drain * (0.9 + 0.3 * (speed / 12.0) ** 2)
    time = step.astype(jnp.float32) * dt
    dark = (time >= sortie.outage) & (time < sortie.outage + 60.0)
    drift, rng = drifted(task, sortie, dark, rng)
    medium, high, entered = threats(here, country, clock)
    entered = entered | (jnp.abs(here.x) > plan.land.east) | (jnp.abs(here.y) > plan.land.north)
    low = task.behavior.low(sortie.mode)
    hit = hits(before, drone, number, country, ways) | ((here.z - ground < RADIUS) & ~low)
    reward = dt * (plan.time_reward + plan.threat_reward * medium) + plan.overruled_reward * sortie.changed
    now = replace(
        sortie,
        battery=battery,
        drift=drift,
        dark=dark,
        medium=sortie.medium + dt * medium,
        high=sortie.high + dt * high,
        entered=sortie.entered | entered | high,
        hit=sortie.hit | hit,
    )
    failed = entered | high | hit | (battery <= 0.0)
    done = jnp.zeros_like(hit)
    if plan.transit:
        gap = (sortie.goal - here).norm()
        reward = reward + plan.nearer_reward * ((sortie.goal - before.position).norm() - gap)
        done = (gap < 10.0) & ~failed
        now = replace(now, arrived=done, success=done & (battery >= plan.reserve))
        reward = reward + plan.arrive_reward * done
    if plan.cover:
        axes = gimbal.attitude(drone.yaw).axes
        rows = coverage.footprint(here, axes, ground, plan.cover, task.lens)
        sharp = here.z - ground <= task.sharp
        rows = tuple(old | jnp.where(sharp, new, jnp.uint32(0)) for old, new in zip(sortie.covered, rows, strict=True))
        gain = coverage.share_of(rows) - coverage.share_of(sortie.covered)
        reward = reward + plan.cover_reward * 100.0 * gain
        now = replace(now, covered=rows)
    if plan.find_reward:
        now, gain, rng = looked(task, now, drone, gimbal, country, clock, rng)
        reward = reward + plan.find_reward * gain
    if plan.own:
        now, rng = dwelt_on(task, now, drone, gimbal, number, country, clock, rng)
        reward = reward + plan.view_reward * dt * (now.quality + (now.quality >= GOOD))
        # The sortie goes on: an end that took away what a good view still pays would be put off for ever.
        dwelt = now.best_dwell >= plan.dwell
        failed = failed | (now.unseen > 5.0) if plan.dwell else failed
        now = replace(now, success=dwelt & ~now.entered & ~now.hit)
        reward = reward + plan.finish_reward * (dwelt & (sortie.best_dwell < plan.dwell))
    if plan.value:
        left = achievable(country)
        done = now.value >= left
        enough = (now.value >= plan.value * left) & (now.medium <= plan.medium)
        now = replace(now, success=enough & ~now.entered & ~now.hit & (battery > 0.0))
        reward = reward + plan.finish_reward * done
    if plan.returns:
        enough = surveyed(task, now)
        reward = reward + plan.finish_reward * (enough & ~surveyed(task, sortie))
        away = Vec2(sortie.home.x - here.x, sortie.home.y - here.y).norm()
        done = now.mode == LANDED
        home = done & (away <= 3.0) & (battery >= plan.reserve)
        now = replace(now, success=home & enough & ~now.entered)
    done = done | ((now.mode >= EMERGENCY) & (here.z - ground < 0.5))
    reward = reward + plan.end_reward * failed
    return now, reward, done | failed


def drifted(task: "Survey", sortie: Sortie, dark: Flag, rng: Rng) -> tuple[Vec2, Rng]:
    """How far the drone is mistaken about where it is: a walk that pulls back, wider without satellites."""
    width = task.drift * jnp.where(dark, 4.0, 1.0)
    keep = math.exp(-task.dt / 10.0)
    parts = []
    for old in (sortie.drift.x, sortie.drift.y):
        kick, rng = rng.normal(math.sqrt(1.0 - keep**2))
        # Never beyond what the filter leaves room for.
        most = 2.8 * task.drift * 2.0
        parts.append(jnp.clip(keep * old + width * kick, -most, most))
    return Vec2(*parts), rng


def threats(here: Vec3, country: SurveyWorld, clock: Scalar) -> tuple[Flag, Flag, Flag]:
    """Whether a drone is under a medium threat, a high one, or in a no-fly zone."""

    def more(found: tuple[Flag, Flag, Flag], zone: Zone) -> tuple[Flag, Flag, Flag]:
        inside = zone.active(clock) & (zone.depth(here) > 0.0)
        medium, high, entered = found
        return (
            medium | (inside & (zone.level == MEDIUM)),
            high | (inside & (zone.level == HIGH)),
            entered | (inside & (zone.level > HIGH)),
        )

    no = here.x != here.x
    return fold(more, (no, no, no), country.zones)


def hits(
    before: VelocityDroneState,
    drone: VelocityDroneState,
    number: Array,
    country: SurveyWorld,
    ways: tuple[Vec3, Vec3, Array, Array],
) -> Flag:
    """Whether the drone touched a building, a hill or another drone on its way."""
    here = drone.position

    def house(hit: Flag, building: Building) -> Flag:
        return hit | (building.outward(here).norm() < RADIUS)

    def slope(hit: Flag, hill: Hill) -> Flag:
        return hit | ((here - hill.center).norm() < hill.radius)

    def other(hit: Flag, rest: tuple[Vec3, Vec3, Array, Array]) -> Flag:
        old, new, there, index = rest
        start, end = before.position - old, here - new
        way = end - start
        share = jnp.clip(-start.dot(way) / jnp.maximum(way.dot(way), 1e-6), 0.0, 1.0)
        gap = start + way * share
        return hit | (there & (index != number) & (gap.dot(gap) < (2.0 * RADIUS) ** 2))

    hit = fold(house, here.x != here.x, country.buildings)
    hit = fold(slope, hit, country.hills)
    return fold(other, hit, ways) & ways[2][number]


def looked(
    task: "Survey",
    sortie: Sortie,
    drone: VelocityDroneState,
    gimbal: Gimbal,
    country: SurveyWorld,
    clock: Scalar,
    rng: Rng,
) -> tuple[Sortie, Scalar, Rng]:
    """What the detector finds now that was not found before."""
    axes = gimbal.attitude(drone.yaw).axes
    eye, plan = drone.position, task.plan

    def one(carry: tuple[Array, Scalar, Scalar, Rng, Array], target: Target) -> Any:
        found, gain, value, rng, bit = carry
        at = target.mover.at(clock)
        point = Vec3(at.x, at.y, country.terrain(at.x, at.y) + 1.0)
        seen = axes.unrotate(point - eye)
        sure, rng = task.detector.finds(rng, task.lens.size(target.size, seen))
        new = task.lens.frames(seen) & sure & ((found & bit) == 0) & ~country.hidden(eye, point)
        if plan.known:
            new = new & (seen.dot(seen) < observation.CLOSE**2)
            worth = target.value * 0.01
        else:
            worth = target.weight
        found = jnp.where(new, found | bit, found)
        return found, gain + worth * new, value + target.value * new, rng, bit << 1

    start = (sortie.found, 0.0 * sortie.value, sortie.value, rng, jnp.uint32(1))
    found, gain, value, rng, _ = loop(one, start, country.targets)
    drawn, rng = rng.uniform()
    alarms = sortie.alarms + (drawn < task.detector.false_alarms * task.dt)
    return replace(sortie, found=found, value=value, alarms=alarms), gain, rng


def achievable(country: SurveyWorld) -> Scalar:
    """The value of the targets that can be viewed from outside the zones that must be kept out of."""

    def add(total: Scalar, target: Target) -> Scalar:
        place = target.mover.place
        point = Vec3(place.x, place.y, 0.0 * place.x)

        def deep(found: Flag, zone: Zone) -> Flag:
            return found | ((zone.level >= HIGH) & (zone.depth(point) > observation.CLOSE * 0.6))

        return total + jnp.where(fold(deep, place.x != place.x, country.zones), 0.0, target.value)

    return loop(add, 0.0 * country.drain, country.targets)


def dwelt_on(
    task: "Survey",
    sortie: Sortie,
    drone: VelocityDroneState,
    gimbal: Gimbal,
    number: Array,
    country: SurveyWorld,
    clock: Scalar,
    rng: Rng,
) -> tuple[Sortie, Rng]:
    """How good the view of the drone's own target is, and for how long it has been."""
    axes, dt = gimbal.attitude(drone.yaw).axes, task.dt
    target = one(country.targets, number % task.plan.land.targets)
    at = target.mover.at(clock)
    point = Vec3(at.x, at.y, country.terrain(at.x, at.y) + 1.0)
    seen = axes.unrotate(point - drone.position)
    sure, rng = task.detector.finds(rng, task.lens.size(target.size, seen) + 6.0)
    there = task.lens.frames(seen) & ~country.hidden(drone.position, point)
    told = there & sure
    distance = seen.norm()
    off = jnp.clip(task.lens.off_centre(seen), 0.0, 1.0)
    fit = jnp.clip(1.0 - jnp.abs(distance - 50.0) * 0.01, 0.0, 1.0)
    quality = jnp.where(there, (1.0 - off) * fit, 0.0)
    good = quality >= GOOD
    dwell = jnp.where(good, sortie.dwell + dt, 0.0)
    blur = []
    for _ in range(2):
        part, rng = rng.normal()
        blur.append(part * task.detector.blur * distance)
    track = Vec3(*(jnp.where(told, new, old) for new, old in zip(
        (point.x + blur[0], point.y + blur[1], point.z), sortie.track.parts, strict=True)))  # fmt: skip
    sortie = replace(
        sortie,
        track=track,
        unseen=jnp.where(there, 0.0, sortie.unseen + dt),
        dwell=dwell,
        best_dwell=jnp.maximum(sortie.best_dwell, dwell),
        quality=quality,
    )
    return sortie, rng


def surveyed(task: "Survey", sortie: Sortie) -> Flag:
    """Whether enough was covered and found."""
    plan = task.plan
    found = jax.lax.population_count(sortie.found).astype(jnp.float32)
    done = found >= plan.found * plan.land.targets
    if plan.cover:
        done = done & (coverage.share_of(sortie.covered) >= plan.coverage + 0.005)
    return done
