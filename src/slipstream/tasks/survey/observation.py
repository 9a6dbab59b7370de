"""What a drone observes, in named parts: the same encoder for training and for evaluation with full fidelity."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...core.geometry import Scalar, Vec2, Vec3, sin_cos
from ...core.struct import struct
from ...core.task import PackedImage
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from ...sensors.camera import Camera
from . import coverage
from .gimbal import target_bits
from .mission import Mission
from .scene import drone_camera, survey_scene
from .stacked import at, pairwise, unstack
from .state import Sortie, SurveyState
from .world import HIGH, Building, SurveyWorld, Target, Zone

if TYPE_CHECKING:
    from .task import Survey

ZONES, BUILDINGS, TARGETS = 4, 2, 5
"""How many of the nearest zones, buildings and targets a drone observes."""
TRACK_SIZE = 9
"""Numbers about a drone's own target."""

ToFrame = Callable[[Vec2], Vec2]
"""Rotation from the world to the frame of commands."""


def sizes(mission: Mission, camera: bool) -> dict[str, int]:
    """Names and sizes of the parts, in order."""
    parts = {"vehicle": 15, "zones": (9 if mission.has_goal else 6) * ZONES, "obstacles": 4 * BUILDINGS + 6}
    if mission.has_goal:
        parts["goal"] = 5
        parts["geofence"] = 8
    if mission.coverage_half_extent:
        parts["map"] = 25 + 4 + 2
    if mission.known_targets:
        parts["targets"] = 5 * TARGETS
    if mission.target_per_drone:
        parts["camera"] = 6
        if not camera:
            parts["track"] = TRACK_SIZE
    return parts


def encode(task: "Survey", state: SurveyState) -> dict[str, list[Float[Array, "agents"]]]:
    """The observation of all drones by part: each number as an array over drones."""
    drone, gimbal, sortie, step = state.body.drones, state.body.gimbals, state.progress, state.step
    world, clock, mission = state.world, state.body.clock, task.mission_spec
    number = jnp.arange(task.agents)
    position = drone.position + Vec3(sortie.drift.x, sortie.drift.y, 0.0 * drone.yaw)
    here = Vec2(position.x, position.y)
    sin, cos = sin_cos(drone.yaw) if mission.frame == "heading" else (0.0 * drone.yaw, 1.0 + 0.0 * drone.yaw)

    def to_frame(v: Vec2) -> Vec2:
        return Vec2(cos * v.x + sin * v.y, cos * v.y - sin * v.x)

    height = position.z - world.terrain(here.x, here.y)
    velocity = to_frame(Vec2(drone.velocity.x, drone.velocity.y))
    wind = to_frame(Vec2(world.weather.wind.x, world.weather.wind.y))
    center = to_frame(-here)
    time = step.astype(jnp.float32) * task.control_dt
    parts = {
        "vehicle": [
            velocity.x * 0.1, velocity.y * 0.1, drone.velocity.z * 0.2, drone.yaw_rate,
            height * 0.02, (task.filter.max_height - position.z) * 0.02, wind.x * 0.2, wind.y * 0.2,
            sortie.battery * 0.01, time / sortie.time_limit, center.x * 0.002, center.y * 0.002,
            sortie.filter_correction * 0.2, sortie.command.forward, sortie.command.left,
        ],
        "zones": _zones(task, here, sortie.goal, to_frame, world, clock),
        "obstacles": _obstacles(position, drone, to_frame, number, world, ~state.present),
    }  # fmt: skip
    if mission.has_goal:
        way = sortie.goal - position
        flat = Vec2(way.x, way.y)
        distance = flat.norm()
        towards = to_frame(flat * (1.0 / jnp.maximum(distance, 1.0)))
        parts["goal"] = [towards.x, towards.y, distance * 0.001, jnp.exp(distance * -0.02), way.z * 0.02]
        parts["geofence"] = _geofence(here, to_frame, mission.generator.east, mission.generator.north)
    if mission.coverage_half_extent:
        way, exists = coverage.nearest_uncovered(sortie.covered, here, mission.coverage_half_extent)
        distance = way.norm()
        scale = 1.0 / jnp.maximum(distance, 10.0)
        found = jax.lax.population_count(sortie.found).astype(jnp.float32) / mission.generator.targets
        parts["map"] = [
            *coverage.uncovered_windows(sortie.covered, here, mission.coverage_half_extent),
            way.x * scale * exists, way.y * scale * exists, distance * 0.01 * exists, 1.0 * exists,
            coverage.covered_fraction(sortie.covered), found,
        ]  # fmt: skip
    if mission.known_targets:
        parts["targets"] = _targets(here, to_frame, sortie, world, clock)
    if mission.target_per_drone:
        gimbal_sin, gimbal_cos = sin_cos(gimbal.yaw)
        parts["camera"] = [
            gimbal_sin, gimbal_cos, gimbal.pitch, sortie.dwell / 30.0, sortie.time_unseen * 0.2,
            sortie.best_dwell / 30.0,
        ]  # fmt: skip
        if not task.camera.on:
            parts["track"] = _track(position, drone, gimbal, to_frame, sortie, number, world, clock)
    return parts


def image(task: "Survey", state: SurveyState) -> PackedImage:
    """The image of every drone's camera: colors, or inverse depth in one channel."""
    scene = survey_scene(state.world, state.body.clock, state.body.drones.position, task.mission_spec.target_per_drone)
    seeds = state.rng.stream + state.step.astype(jnp.uint32)
    views = jax.vmap(drone_camera)(state.body.drones, state.body.gimbals, seeds)
    frames = jax.vmap(partial(Camera(task.camera.resolution, task.camera.resolution).render, scene))(views)
    if task.camera.kind == "rgb":
        return frames.packed & 0xFFFFFF
    return (255.0 * 40.0 / (40.0 + jnp.minimum(frames.depth, 1e6))).astype(jnp.uint8)


Features = tuple[Scalar, ...]


def nearest(
    count: int,
    objects: Any,
    measure: Callable[[Any], tuple[Scalar, Features]],
    encode: Callable[..., list[Scalar]],
) -> list[Scalar]:
    """`encode` of each of the nearest `count` objects, zeros where there are fewer.

    `measure` gives the distance of an object, infinite if it is left out, and the features that `encode` needs. An
    insertion sort keeps the nearest.
    """
    kept: list[tuple[Scalar, Features]] = []
    measured = measure(pairwise(objects))
    for moving in unstack(measured):
        for k, held in enumerate(kept):
            nearer = moving[0] < held[0]
            kept[k] = jax.tree.map(partial(jnp.where, nearer), moving, held)
            moving = jax.tree.map(partial(jnp.where, nearer), held, moving)
        if len(kept) < count:
            kept.append(moving)
    nothing = (jnp.full(jnp.shape(measured[0])[1:], jnp.inf), tuple(jnp.zeros(1) for _ in measured[1]))
    kept += [nothing] * (count - len(kept))
    return [jnp.where(jnp.isfinite(distance), x, 0.0) for distance, own in kept for x in encode(distance, *own)]


def _zones(
    task: "Survey", here: Vec2, goal: Vec3, to_frame: ToFrame, world: SurveyWorld, clock: Scalar
) -> list[Scalar]:
    """The nearest announced zones; with a goal, also how to pass each."""
    barrier = barriers(world.zones, clock, task.filter.margin) if task.mission_spec.has_goal else None

    def measure(thing: tuple[Zone, Barrier | None]) -> tuple[Scalar, Features]:
        zone, barrier = thing
        way = zone.center - here
        edge = way.norm() - zone.radius
        severity = jnp.where(zone.level >= HIGH, 1.0, 0.3)
        features: Features = (way.x, way.y, zone.radius, severity)
        if barrier is not None:
            beside, blocks = _way_around(task, goal, here, zone, barrier)
            features = (*features, *(beside - here).unit().parts, blocks)
        return jnp.where(zone.announced(clock), edge, jnp.inf), features

    def encode(edge: Scalar, x: Scalar, y: Scalar, radius: Scalar, severity: Scalar, *passing: Scalar) -> list[Scalar]:
        towards = to_frame(Vec2(x, y) * (1.0 / jnp.maximum(edge + radius, 1.0)))
        near = jnp.exp(jnp.minimum(-edge, 0.0) * 0.01)
        features = [towards.x, towards.y, edge * 0.003, near, radius * 0.005, severity]
        if passing:
            east, north, blocks = passing
            beside = to_frame(Vec2(east, north))
            features += [beside.x, beside.y, blocks]
        return features

    return nearest(ZONES, (world.zones, barrier), measure, encode)


@struct
class Barrier:
    """How far north and south a zone reaches with all zones that it overlaps, so that nothing passes between them."""

    north: Scalar  # m; with an axis of zones
    south: Scalar


def barriers(zones: Zone, clock: Scalar, clear: float) -> Barrier:
    """The barrier that each announced zone is part of."""
    x, y, radius = (jnp.asarray(value) for value in (*zones.center.parts, zones.radius))
    distances = jnp.sqrt(jnp.subtract.outer(x, x) ** 2 + jnp.subtract.outer(y, y) ** 2)
    gaps = distances - jnp.add.outer(radius, radius)
    known = jnp.asarray(zones.announced(clock))
    joined = (gaps < 2.0 * clear) & known[:, None] & known[None, :]
    north, south = y + radius, y - radius
    # A barrier of three zones is found in two rounds; longer ones are rare.
    for _ in range(2):
        north = jnp.maximum(north, jnp.max(jnp.where(joined, north[None, :], -jnp.inf), axis=1))
        south = jnp.minimum(south, jnp.min(jnp.where(joined, south[None, :], jnp.inf), axis=1))
    return Barrier(north, south)


def _way_around(task: "Survey", goal: Vec3, here: Vec2, zone: Zone, barrier: Barrier) -> tuple[Vec2, Scalar]:
    """A point north or south of a zone's barrier, and whether the zone is in the way.

    The one on the shorter way to the goal, or the other where the geofence is too near. A policy without memory that
    is stopped head-on by a zone, or between two of them, needs one side to be told from the other.
    """
    generator, clear = task.mission_spec.generator, task.filter.margin
    top, bottom = barrier.north + 2.0 * clear, barrier.south - 2.0 * clear
    over = jnp.maximum(top - here.y, 0.0) + jnp.maximum(top - goal.y, 0.0)
    under = jnp.maximum(here.y - bottom, 0.0) + jnp.maximum(goal.y - bottom, 0.0)
    closed = 1e4
    over = over + jnp.where(top > generator.north - 2.0 * clear, closed, 0.0)
    under = under + jnp.where(bottom < 2.0 * clear - generator.north, closed, 0.0)
    beside = Vec2(zone.center.x, jnp.where(over < under, top, bottom))
    west, east = jnp.minimum(here.x, goal.x), jnp.maximum(here.x, goal.x)
    between = (zone.center.x + zone.radius > west) & (zone.center.x - zone.radius < east)
    return beside, jnp.where(between & (jnp.minimum(over, under) > 0.0), 1.0, 0.0)


def _geofence(here: Vec2, to_frame: ToFrame, east: float, north: float) -> list[Scalar]:
    """The nearer of the east and west sides, then of the north and south sides: between a side and a zone there may
    be no way."""
    features: list[Scalar] = []
    for place, half, axis in ((here.x, east, Vec2(1.0, 0.0)), (here.y, north, Vec2(0.0, 1.0))):
        towards = to_frame(axis * jnp.where(place > 0.0, 1.0, -1.0))
        distance = half - jnp.abs(place)
        features += [towards.x, towards.y, distance * 0.003, jnp.exp(jnp.minimum(-distance, 0.0) * 0.01)]
    return features


def _obstacles(
    position: Vec3,
    drone: VelocityDroneState,
    to_frame: ToFrame,
    number: Int[Array, "agents"],
    world: SurveyWorld,
    ended: Bool[Array, "agents"],
) -> list[Scalar]:
    """The nearest buildings, by their distance from the drone in space, and the nearest other drone."""

    def measure_building(building: Building) -> tuple[Scalar, Features]:
        away = building.outward(position)
        return away.norm(), (away.x, away.y, building.height)

    def encode_building(distance: Scalar, x: Scalar, y: Scalar, height: Scalar) -> list[Scalar]:
        towards = to_frame(Vec2(-x, -y) * (1.0 / jnp.maximum(distance, 1.0)))
        above = (height - position.z) * 0.05
        return [towards.x, towards.y, jnp.exp(distance * -0.02), jnp.clip(above, -2.0, 2.0)]

    def measure_drone(other: tuple[VelocityDroneState, Array, Array]) -> tuple[Scalar, Features]:
        state, gone, index = other
        way, velocity = state.position - drone.position, state.velocity - drone.velocity
        distance = way.norm()
        key = jnp.where(gone | (index == number) | (distance > 200.0), jnp.inf, distance)
        return key, (*way.parts, velocity.x, velocity.y)

    def encode_drone(distance: Scalar, x: Scalar, y: Scalar, z: Scalar, east: Scalar, north: Scalar) -> list[Scalar]:
        near = jnp.exp(distance * -0.02) / jnp.maximum(distance, 1.0)
        towards, closing = to_frame(Vec2(x, y) * near), to_frame(Vec2(east, north) * 0.1)
        return [towards.x, towards.y, z * near, closing.x, closing.y, distance * 0.01]

    return [
        *nearest(BUILDINGS, world.buildings, measure_building, encode_building),
        *nearest(1, (drone, ended, number), measure_drone, encode_drone),
    ]


def _targets(here: Vec2, to_frame: ToFrame, sortie: Sortie, world: SurveyWorld, clock: Scalar) -> list[Scalar]:
    """The nearest targets not yet found, with their values."""

    def measure(thing: tuple[Target, Array]) -> tuple[Scalar, Features]:
        target, bit = thing
        way = target.mover.position_at(clock) - here
        return jnp.where((sortie.found & bit) == 0, way.norm(), jnp.inf), (way.x, way.y, target.value)

    def encode(distance: Scalar, x: Scalar, y: Scalar, value: Scalar) -> list[Scalar]:
        towards = to_frame(Vec2(x, y) * (1.0 / jnp.maximum(distance, 10.0)))
        return [towards.x, towards.y, distance * 0.005, value * 0.01, jnp.exp(distance * -0.02)]

    return nearest(TARGETS, (world.targets, target_bits(world)), measure, encode)


def _track(
    position: Vec3,
    drone: VelocityDroneState,
    gimbal: Gimbal,
    to_frame: ToFrame,
    sortie: Sortie,
    number: Int[Array, "agents"],
    world: SurveyWorld,
    clock: Scalar,
) -> list[Scalar]:
    """The tracked position of the drone's own target: relative to the drone, and in the image."""
    way = sortie.track - position
    flat = to_frame(Vec2(way.x, way.y))
    relative = gimbal.attitude(drone.yaw).axes.unrotate(way)
    forward = jnp.maximum(jnp.abs(relative.x), 1.0)
    target = at(world.targets, number % world.targets.kind.shape[0])
    velocity = to_frame(target.mover.velocity_at(clock))
    visible = sortie.time_unseen == 0.0
    return [
        flat.x * 0.02, flat.y * 0.02, way.z * 0.02, (way.norm() - 50.0) * 0.02,
        jnp.clip(relative.y / forward, -2.0, 2.0), jnp.clip(relative.z / forward, -2.0, 2.0), jnp.sign(relative.x),
        velocity.x * 0.3 * visible, velocity.y * 0.3 * visible,
    ]  # fmt: skip
