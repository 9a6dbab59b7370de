"""What a drone on a survey knows, in named parts: one encoder for training and for full-fidelity evaluation."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.geometry import Flag, Scalar, Vec2, Vec3, sin_cos
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState, wrapped
from . import coverage
from .mission import Mission
from .state import Sortie, SurveyState
from .world import HIGH, Building, SurveyWorld, Target, Zone, abreast, fold, listed, one

if TYPE_CHECKING:
    from .task import Survey

CLOSE = 80.0
"""Distance within which a known target counts as viewed, m."""
ZONES, HOUSES, TARGETS = 4, 2, 5
"""How many of the nearest are told of."""
TRACK = 9
"""Numbers about a drone's own target."""


def sizes(plan: Mission, pictures: bool) -> dict[str, int]:
    """Names and sizes of the parts, in order."""
    parts = {"vehicle": 15, "zones": 6 * ZONES, "obstacles": 4 * HOUSES + 6}
    if plan.transit:
        parts["goal"] = 5
    if plan.cover:
        parts["map"] = 25 + 4 + 2
    if plan.known:
        parts["targets"] = 5 * TARGETS
    if plan.own:
        parts["camera"] = 6
        if not pictures:
            parts["track"] = TRACK
    return parts


def told(task: "Survey", state: SurveyState) -> dict[str, list[Float[Array, "agents"]]]:
    """What drones know, by part: every number for all of them."""
    drone, gimbal, sortie, step = state.body.drones, state.body.gimbals, state.progress, state.step
    country, clock, plan = state.world, state.body.clock, task.plan
    number = jnp.arange(task.agents)
    position = drone.position + Vec3(sortie.drift.x, sortie.drift.y, 0.0 * drone.yaw)
    here = Vec2(position.x, position.y)
    sin, cos = sin_cos(drone.yaw) if plan.frame == "heading" else (0.0 * drone.yaw, 1.0 + 0.0 * drone.yaw)

    def into(v: Vec2) -> Vec2:
        """World to the frame of commands."""
        return Vec2(cos * v.x + sin * v.y, cos * v.y - sin * v.x)

    height = position.z - country.terrain(here.x, here.y)
    going = into(Vec2(drone.velocity.x, drone.velocity.y))
    wind = into(Vec2(country.weather.wind.x, country.weather.wind.y))
    middle = into(-here)
    time = step.astype(jnp.float32) * task.dt
    parts = {
        "vehicle": [
            going.x * 0.1, going.y * 0.1, drone.velocity.z * 0.2, drone.yaw_rate,
            height * 0.02, (task.filter.ceiling - position.z) * 0.02, wind.x * 0.2, wind.y * 0.2,
            sortie.battery * 0.01, time / sortie.limit, middle.x * 0.002, middle.y * 0.002,
            sortie.changed * 0.2, sortie.sent.ahead, sortie.sent.aside,
        ],
        "zones": _zones(here, into, country, clock),
        "obstacles": _obstacles(position, drone, into, number, country, ~state.present),
    }  # fmt: skip
    if plan.transit:
        way = sortie.goal - position
        flat = Vec2(way.x, way.y)
        distance = flat.norm()
        towards = into(flat * (1.0 / jnp.maximum(distance, 1.0)))
        parts["goal"] = [towards.x, towards.y, distance * 0.001, jnp.exp(distance * -0.02), way.z * 0.02]
    if plan.cover:
        way, there = coverage.nearest_open(sortie.covered, here, plan.cover)
        distance = way.norm()
        scale = 1.0 / jnp.maximum(distance, 10.0)
        found = jax.lax.population_count(sortie.found).astype(jnp.float32) / plan.land.targets
        parts["map"] = [
            *coverage.windows(sortie.covered, here, plan.cover),
            way.x * scale * there, way.y * scale * there, distance * 0.01 * there, 1.0 * there,
            coverage.share_of(sortie.covered), found,
        ]  # fmt: skip
    if plan.known:
        parts["targets"] = _targets(here, into, sortie, country, clock)
    if plan.own:
        gimbal_sin, gimbal_cos = sin_cos(gimbal.yaw)
        parts["camera"] = [
            gimbal_sin, gimbal_cos, gimbal.pitch, sortie.dwell / 30.0, sortie.unseen * 0.2, sortie.best_dwell / 30.0,
        ]  # fmt: skip
        if task.sight == "none":
            parts["track"] = _track(position, drone, gimbal, into, sortie, number, country, clock)
    return parts


Near = tuple[Scalar, ...]


def nearest_of(
    count: int, things: Any, measure: Callable[[Any], tuple[Scalar, Near]], told: Callable[..., list[Scalar]]
) -> list[Scalar]:
    """What `told` makes of each of the nearest things, zeros where there are fewer.

    `measure` gives the distance of a thing, infinite if it is left out, and what `told` needs to know of it. Each goes
    into the first of the places it beats, and what was there moves on.
    """
    places: list[tuple[Scalar, Near]] = []
    measured = measure(abreast(things))
    for moving in listed(measured):
        for k, held in enumerate(places):
            first = moving[0] < held[0]
            places[k] = jax.tree.map(partial(jnp.where, first), moving, held)
            moving = jax.tree.map(partial(jnp.where, first), held, moving)
        if len(places) < count:
            places.append(moving)
    nothing = (jnp.full(measured[0].shape[1:], jnp.inf), tuple(jnp.zeros(1) for _ in measured[1]))
    places += [nothing] * (count - len(places))
    return [jnp.where(jnp.isfinite(key), x, 0.0) for key, near in places for x in told(key, *near)]


def _zones(here: Vec2, into: Callable[[Vec2], Vec2], country: SurveyWorld, clock: Scalar) -> list[Scalar]:
    def measure(zone: Zone) -> tuple[Scalar, Near]:
        way = zone.center - here
        edge = way.norm() - zone.radius
        strict = jnp.where(zone.level >= HIGH, 1.0, 0.3)
        return jnp.where(zone.known(clock), edge, jnp.inf), (way.x, way.y, zone.radius, strict)

    def told(edge: Scalar, x: Scalar, y: Scalar, radius: Scalar, strict: Scalar) -> list[Scalar]:
        towards = into(Vec2(x, y) * (1.0 / jnp.maximum(edge + radius, 1.0)))
        near = jnp.exp(jnp.minimum(-edge, 0.0) * 0.01)
        return [towards.x, towards.y, edge * 0.003, near, radius * 0.005, strict]

    return nearest_of(ZONES, country.zones, measure, told)


def _obstacles(
    position: Vec3,
    drone: VelocityDroneState,
    into: Callable[[Vec2], Vec2],
    number: Array,
    country: SurveyWorld,
    ended: Array,
) -> list[Scalar]:
    """The buildings as high as the drone that are nearest, and the nearest other drone."""

    def house(building: Building) -> tuple[Scalar, Near]:
        away = building.outward(position)
        return away.norm(), (away.x, away.y, building.height)

    def of_house(distance: Scalar, x: Scalar, y: Scalar, height: Scalar) -> list[Scalar]:
        towards = into(Vec2(-x, -y) * (1.0 / jnp.maximum(distance, 1.0)))
        over = (height - position.z) * 0.05
        return [towards.x, towards.y, jnp.exp(distance * -0.02), jnp.clip(over, -2.0, 2.0)]

    def other(rest: tuple[VelocityDroneState, Array, Array]) -> tuple[Scalar, Near]:
        glide, gone, index = rest
        way, going = glide.position - drone.position, glide.velocity - drone.velocity
        distance = way.norm()
        key = jnp.where(gone | (index == number) | (distance > 200.0), jnp.inf, distance)
        return key, (*way.parts, going.x, going.y)

    def of_other(distance: Scalar, x: Scalar, y: Scalar, z: Scalar, east: Scalar, north: Scalar) -> list[Scalar]:
        near = jnp.exp(distance * -0.02) / jnp.maximum(distance, 1.0)
        towards, closing = into(Vec2(x, y) * near), into(Vec2(east, north) * 0.1)
        return [towards.x, towards.y, z * near, closing.x, closing.y, distance * 0.01]

    return [
        *nearest_of(HOUSES, country.buildings, house, of_house),
        *nearest_of(1, (drone, ended, number), other, of_other),
    ]


def _targets(
    here: Vec2, into: Callable[[Vec2], Vec2], sortie: Sortie, country: SurveyWorld, clock: Scalar
) -> list[Scalar]:
    """The nearest targets not yet viewed, with their values."""

    def measure(thing: tuple[Target, Array]) -> tuple[Scalar, Near]:
        target, bit = thing
        way = target.mover.at(clock) - here
        return jnp.where((sortie.found & bit) == 0, way.norm(), jnp.inf), (way.x, way.y, target.value)

    def told(distance: Scalar, x: Scalar, y: Scalar, value: Scalar) -> list[Scalar]:
        towards = into(Vec2(x, y) * (1.0 / jnp.maximum(distance, 10.0)))
        return [towards.x, towards.y, distance * 0.005, value * 0.01, jnp.exp(distance * -0.02)]

    return nearest_of(TARGETS, (country.targets, bits(country)), measure, told)


def bits(country: SurveyWorld) -> Array:
    """The bit of each target."""
    return jnp.uint32(1) << jnp.arange(country.targets.value.shape[-1], dtype=jnp.uint32)


def _track(
    position: Vec3,
    drone: VelocityDroneState,
    gimbal: Gimbal,
    into: Callable[[Vec2], Vec2],
    sortie: Sortie,
    number: Array,
    country: SurveyWorld,
    clock: Scalar,
) -> list[Scalar]:
    """Where the drone's own target was last seen: from the vehicle, and in the picture."""
    way = sortie.track - position
    flat = into(Vec2(way.x, way.y))
    seen = gimbal.attitude(drone.yaw).axes.unrotate(way)
    ahead = jnp.maximum(jnp.abs(seen.x), 1.0)
    target = one(country.targets, number % country.targets.value.shape[0])
    going = into(target.mover.speed(clock))
    seen_now = sortie.unseen == 0.0
    return [
        flat.x * 0.02, flat.y * 0.02, way.z * 0.02, (way.norm() - 50.0) * 0.02,
        jnp.clip(seen.y / ahead, -2.0, 2.0), jnp.clip(seen.z / ahead, -2.0, 2.0), jnp.sign(seen.x),
        going.x * 0.3 * seen_now, going.y * 0.3 * seen_now,
    ]  # fmt: skip


# Where to look


def aimed(drone: VelocityDroneState, point: Vec3) -> Gimbal:
    """The gimbal's angles that bring a point to the middle of the picture."""
    way = point - drone.position
    flat = Vec2(way.x, way.y).norm()
    down = jnp.clip(jnp.arctan2(-way.z, flat), -math.pi / 6, math.pi / 2)
    return Gimbal(wrapped(jnp.arctan2(way.y, way.x) - drone.yaw), down)


def turned_to(gimbal: Gimbal, wanted: Gimbal, rate: float, dt: float) -> Vec2:
    """The rates, in [−1, 1], that turn a gimbal there, as fast as it goes."""
    scale = 1.0 / (rate * dt)
    return Vec2(
        jnp.clip(wrapped(wanted.yaw - gimbal.yaw) * scale, -1.0, 1.0),
        jnp.clip((wanted.pitch - gimbal.pitch) * scale, -1.0, 1.0),
    )


def nearest_left(drone: VelocityDroneState, sortie: Sortie, country: SurveyWorld, clock: Scalar) -> Vec3:
    """The nearest target that was not viewed yet; the ground below if there is none."""
    here = drone.position

    def nearer(best: tuple[Scalar, Vec3], thing: tuple[Target, Array]) -> tuple[Scalar, Vec3]:
        target, bit = thing
        distance, point = best
        at = target.mover.at(clock)
        gap = (at - Vec2(here.x, here.y)).norm()
        better: Flag = ((sortie.found & bit) == 0) & (gap < distance)
        return (
            jnp.where(better, gap, distance),
            Vec3(jnp.where(better, at.x, point.x), jnp.where(better, at.y, point.y), point.z),
        )

    start = (jnp.inf + 0.0 * here.x, Vec3(here.x + 1.0, here.y, 0.0 * here.z))
    _, found = fold(nearer, start, (country.targets, bits(country)))
    return Vec3(found.x, found.y, country.terrain(found.x, found.y))
