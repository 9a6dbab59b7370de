"""Scripted policies that learned ones are compared with, one for each mission.

A script is a function of the whole state and the number of a drone, and returns that drone's action.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ...core.geometry import Flag, Scalar, Vec2, Vec3, sin_cos, wrap_angle
from ...dynamics.velocity_drone import VelocityDroneState
from . import coverage
from .gimbal import gimbal_rates, gimbal_towards
from .mission import MissionName
from .rewards import VIEW_DISTANCE
from .stacked import at, fold, scan_fold
from .state import Sortie, SurveyState, believed
from .world import HIGH, Target, Zone

if TYPE_CHECKING:
    from .task import Survey

Script = Callable[["Survey", SurveyState, Int[Array, ""]], Float[Array, "size"]]


def fly_script(script: Script, task: "Survey", state: SurveyState) -> Float[Array, "agents size"]:
    """The actions of all drones of a world."""
    return jax.vmap(partial(script, task, state))(jnp.arange(task.agents))


def action(
    task: "Survey", drone: VelocityDroneState, velocity: Vec3, yaw: Scalar | None = None, gimbal: Vec2 | None = None
) -> Float[Array, "size"]:
    """The action that commands a velocity over the ground, with the heading `yaw` or else along the velocity."""
    model = task.velocity_model
    x, y = velocity.x / model.max_speed, velocity.y / model.max_speed
    if task.mission_spec.frame == "heading":
        sin, cos = sin_cos(drone.yaw)
        x, y = cos * x + sin * y, cos * y - sin * x
    up = velocity.z * jnp.where(velocity.z > 0.0, 1.0 / model.max_climb_rate, 1.0 / model.max_sink_rate)
    heading = jnp.arctan2(velocity.y, velocity.x) if yaw is None else yaw
    yaw_rate = jnp.clip(wrap_angle(heading - drone.yaw), -1.0, 1.0)
    parts = [x, y, up, yaw_rate]
    if task.mission_spec.gimbal == "policy":
        parts += [0.0 * x, 0.0 * x] if gimbal is None else [gimbal.x, gimbal.y]
    return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])


CLEARANCE = 1.5
"""Distance of a planned path from zones, in margins of the safety filter: the filter then has nothing to correct."""
DETOUR_COST = 0.5 * math.pi - 1.0
"""Extra length of a path for each meter that it crosses a zone: half a circle instead of its diameter."""
CROSSING_COST = 5.0
"""The same for the leg that is flown now, which should not cross a zone at all."""
MEDIUM_THREAT_WEIGHT = 0.2
"""Weight of a meter under a medium threat, which may be crossed, relative to a meter in any other zone."""
LEAD = 0.4
"""Distance from the point of contact of a tangent to the corner that is flown to, in radii of the zone."""
HEIGHT_STEP = 13.0
"""Difference in height between drones of even and odd number, m: more than the filter's margin between drones."""
UNREACHABLE = 1e6
"""Length of a path that does not exist, m."""


def believed_drone(state: SurveyState, number: Int[Array, ""]) -> VelocityDroneState:
    """A drone at the position it believes to be at: a script knows its position no better than a policy."""
    return believed(at(state.body.drones, number), at(state.progress.drift, number))


def flat(point: Vec3) -> Vec2:
    return Vec2(point.x, point.y)


def unit(way: Vec2) -> tuple[Vec2, Scalar]:
    """Direction and length."""
    length = way.norm()
    return way * (1.0 / jnp.maximum(length, 1e-3)), length


def chord(zone: Zone, start: Vec2, end: Vec2, clearance: float) -> Scalar:
    """The length of the straight path from `start` to `end` that lies within `clearance` of a zone, m."""
    way, length = unit(end - start)
    along = (zone.center - start).dot(way)
    radius, offset = zone.radius + clearance, (start + way * along - zone.center).norm()
    half = jnp.sqrt(jnp.maximum(radius * radius - offset * offset, 0.0))
    return jnp.clip(along + half, 0.0, length) - jnp.clip(along - half, 0.0, length)


def path_cost(task: "Survey", state: SurveyState, start: Vec2, end: Vec2, crossing_cost: float = DETOUR_COST) -> Scalar:
    """The length of a straight path, plus a cost for each meter of it that lies in an announced zone."""

    def inside(zone: Zone) -> Scalar:
        weight = jnp.where(zone.level >= HIGH, 1.0, MEDIUM_THREAT_WEIGHT)
        length = weight * chord(zone, start, end, CLEARANCE * task.filter.margin)
        return jnp.where(zone.announced(state.body.clock), length, 0.0)

    return (end - start).norm() + crossing_cost * jnp.sum(jax.vmap(inside)(state.world.zones))


def next_corner(task: "Survey", state: SurveyState, here: Vec2, goal: Vec2) -> Vec2:
    """The first corner of the cheapest path to a goal: the goal itself, or a corner on the tangent to a zone."""
    generator, margin = task.mission_spec.generator, task.filter.margin
    cost = partial(path_cost, task, state)

    def around(zone: Zone, side: float) -> tuple[Scalar, Vec2]:
        out, distance = unit(here - zone.center)
        radius = zone.radius + (CLEARANCE + 1.0) * margin
        cos = jnp.minimum(radius / jnp.maximum(distance, 1.0), 1.0)
        sin = side * jnp.sqrt(1.0 - cos * cos)
        touch = Vec2(cos * out.x - sin * out.y, sin * out.x + cos * out.y)
        # Beyond the point of contact, which for a drone at the edge of the zone is where it already is.
        corner = zone.center + touch * radius + Vec2(-touch.y, touch.x) * (side * LEAD * radius)
        # There may be no room between this side of the zone and the geofence.
        farthest = zone.center + Vec2(-out.y, out.x) * (side * radius)
        fits = (jnp.abs(farthest.x) < generator.east - margin) & (jnp.abs(farthest.y) < generator.north - margin)
        use = fits & zone.announced(state.body.clock)
        return jnp.where(use, cost(here, corner, CROSSING_COST) + cost(corner, goal), jnp.inf), corner

    def cheaper(best: tuple[Scalar, Vec2], zone: Zone) -> tuple[Scalar, Vec2]:
        for side in (1.0, -1.0):
            other = around(zone, side)
            best = jax.tree.map(partial(jnp.where, other[0] < best[0]), other, best)
        return best

    return scan_fold(cheaper, (cost(here, goal, CROSSING_COST), goal), state.world.zones)[1]


def velocity_towards(task: "Survey", state: SurveyState, drone: VelocityDroneState, point: Vec3) -> Vec3:
    """The velocity towards a point on a path around announced zones: full speed until the last second."""
    here, model = flat(drone.position), task.velocity_model
    way, _ = unit(next_corner(task, state, here, flat(point)) - here)
    speed = jnp.minimum(model.max_speed, (flat(point) - here).norm())
    climb = jnp.clip(point.z - drone.position.z, -model.max_sink_rate, model.max_climb_rate)
    return Vec3(way.x * speed, way.y * speed, climb)


def straight_line(task: "Survey", state: SurveyState, number: Int[Array, ""]) -> Float[Array, "size"]:
    """To the goal at full speed by the shortest path around the zones, above all buildings until the descent."""
    drone = believed_drone(state, number)
    goal = at(state.progress.goal, number)
    cruise = task.mission_spec.generator.max_building_height + task.filter.margin + 2.0
    # A little flatter than the steepest descent at full speed.
    slope = 0.8 * task.velocity_model.max_sink_rate / task.velocity_model.max_speed
    height = jnp.minimum(cruise, goal.z + slope * flat(goal - drone.position).norm())
    return action(task, drone, velocity_towards(task, state, drone, replace(goal, z=height)))


def lawn_mower(task: "Survey", state: SurveyState, number: Int[Array, ""]) -> Float[Array, "size"]:
    """Back and forth in lanes as wide as the image with a tenth of overlap, to the first cell not yet covered.

    Drones begin in different lanes, so that they do not block each other.
    """
    drone = believed_drone(state, number)
    height = task.max_coverage_height - 5.0  # the ground may rise by that much before the drone does
    half_extent = task.mission_spec.coverage_half_extent
    lanes = math.ceil(half_extent / (height * task.camera_model.half_width * 0.9))
    order, cell, middle = cells_in_lanes(half_extent, lanes)
    rows = jnp.stack(at(state.progress.covered, number))
    covered = (rows[:, None] >> np.arange(coverage.SIDE, dtype=np.uint32)) & 1 == 1
    wait = (order - coverage.SIDE * (number % lanes)) % (coverage.SIDE * lanes)
    first = jnp.argmin(jnp.where(covered | near_zone(task, state, cell), order.size, wait))
    x = jnp.ravel(cell.x)[first]
    # Along the middle of the lane, unless a zone is there.
    y = jnp.ravel(jnp.where(near_zone(task, state, middle), cell.y, middle.y))[first]
    ground = state.world.terrain(drone.position.x, drone.position.y)
    # The wide side of the image lies across the lane.
    return action(task, drone, velocity_towards(task, state, drone, Vec3(x, y, ground + height)), yaw=0.0 * drone.yaw)


def cells_in_lanes(half_extent: float, lanes: int) -> tuple[np.ndarray, Vec2, Vec2]:
    """For each cell of the map: its rank along the lanes, its center, and the middle of its lane beside it."""
    side = coverage.SIDE
    row, column = np.mgrid[:side, :side]
    lane = row * lanes // side
    order = lane * side + np.where(lane % 2 == 0, column, side - 1 - column)
    x, y = (((index + 0.5) * (2.0 * half_extent / side) - half_extent).astype(np.float32) for index in (column, row))
    middle = ((lane + 0.5) * (2.0 * half_extent / lanes) - half_extent).astype(np.float32)
    return order, Vec2(jnp.asarray(x), jnp.asarray(y)), Vec2(jnp.asarray(x), jnp.asarray(middle))


def near_zone(task: "Survey", state: SurveyState, positions: Vec2) -> Bool[Array, "rows columns"]:
    """Which positions lie in an announced zone or too near to one."""

    def inside(found: Array, zone: Zone) -> Array:
        near = zone.depth(Vec3(positions.x, positions.y, 0.0 * positions.x)) > -2.0 * task.filter.margin
        return found | (near & zone.announced(state.body.clock) & (zone.level >= HIGH))

    return fold(inside, jnp.zeros(np.shape(positions.x), bool), state.world.zones)


def shortest_tour(task: "Survey", state: SurveyState, number: Int[Array, ""]) -> Float[Array, "size"]:
    """To the first target of the shortest tour that collects the required value, and then of a tour of the rest."""
    drone = believed_drone(state, number)
    world, targets = state.world, state.world.targets
    hidden, deep = jax.vmap(partial(out_of_view, state))(targets)
    value, most = jnp.where(hidden | deep, 0.0, targets.value), jnp.sum(jnp.where(deep, 0.0, targets.value))
    places = targets.mover.position_at(state.body.clock)
    worth = jnp.asarray(subsets(value.size), jnp.float32) @ value
    cost = partial(path_cost, task, state)
    legs = jnp.asarray(jax.vmap(lambda start: jax.vmap(partial(cost, start))(places))(places))
    found = at(state.progress.found, number).astype(jnp.int32)
    required = task.mission_spec.required.value * most
    enough, everything = (remaining_length(legs, worth >= need - 0.5) for need in (required, jnp.sum(value)))
    numbers = np.arange(value.size)
    onward = jnp.where(worth[found] >= required - 0.5, everything, enough)[found | (1 << numbers), numbers]
    here = flat(drone.position)
    tour = jax.vmap(partial(cost, here))(places) + onward
    viewed = (found >> numbers) & 1 == 1
    tour = jnp.where(viewed | hidden | deep, jnp.inf, tour)
    goal = at(places, jnp.argmin(tour))
    height = world.terrain(goal.x, goal.y) + 35.0 + HEIGHT_STEP * (number % 2)
    point = Vec3(goal.x, goal.y, height)
    # With nothing left to view, it stays where it is.
    point = jax.tree.map(partial(jnp.where, jnp.isfinite(jnp.min(tour))), point, drone.position)
    return action(task, drone, velocity_towards(task, state, drone, point))


def out_of_view(state: SurveyState, target: Target) -> tuple[Flag, Flag]:
    """Whether a building covers a target, and whether it lies too deep in an announced zone to be viewed."""
    world, clock = state.world, state.body.clock
    place = target.mover.position_at(clock)
    ground = world.terrain(place.x, place.y)
    point = Vec3(place.x, place.y, ground + 1.0)

    def inside(found: Flag, zone: Zone) -> Flag:
        return found | (zone.announced(clock) & (zone.level >= HIGH) & (zone.depth(point) > 0.6 * VIEW_DISTANCE))

    return world.occluded(replace(point, z=ground + VIEW_DISTANCE), point), fold(
        inside, place.x != place.x, world.zones
    )


def subsets(count: int) -> Bool[np.ndarray, "sets n"]:
    """All subsets of `count` targets: row k contains the targets whose bits are set in k."""
    return (np.arange(2**count)[:, None] >> np.arange(count)) & 1 == 1


def remaining_length(legs: Float[Array, "n n"], enough: Bool[Array, "sets"]) -> Float[Array, "sets n"]:
    """The length of the shortest tour on from each target, for each set of viewed targets, until the set is enough.

    Held and Karp's dynamic program of the traveling salesman:  L(S, i) = min over k ∉ S of  d(i, k) + L(S ∪ k, k).
    """
    numbers = np.arange(legs.shape[0])
    sets = subsets(legs.shape[0])
    after = np.arange(len(sets))[:, None] | (1 << numbers)
    left = jnp.where(enough, 0.0, UNREACHABLE)[:, None] + jnp.zeros(legs.shape[0])
    for _ in numbers:
        onward = jnp.where(sets, UNREACHABLE, left[after, numbers])
        best = jnp.min(legs + onward[:, None, :], axis=-1)
        left = jnp.where(enough[:, None], 0.0, jnp.minimum(best, UNREACHABLE))
    return left


def stay_near(task: "Survey", state: SurveyState, number: Int[Array, ""]) -> Float[Array, "size"]:
    """Beside and above the drone's own target, at its velocity, with the camera on its tracked position.

    Little hides a target from a steep view above; a drone that does not see its target flies right over it.
    """
    drone = believed_drone(state, number)
    sortie: Sortie = at(state.progress, number)
    target = at(state.world.targets, number % task.mission_spec.generator.targets)
    visible = sortie.time_unseen == 0.0
    velocity = target.mover.velocity_at(state.body.clock) * visible
    out, _ = unit(flat(drone.position - sortie.track))
    # 20 m beside and 45 m above: 49 m away, and 50 m is the best distance.
    post = flat(sortie.track) + out * (20.0 * visible)
    way = (post - flat(drone.position)) * 0.7 + velocity
    model, dt = task.velocity_model, task.control_dt
    climb = jnp.clip(sortie.track.z + 45.0 - drone.position.z, -model.max_sink_rate, model.max_climb_rate)
    soon = replace(drone, position=drone.position + drone.velocity * dt)
    wanted = gimbal_towards(soon, sortie.track + Vec3(velocity.x, velocity.y, 0.0 * velocity.x) * dt)
    rates = gimbal_rates(at(state.body.gimbals, number), wanted, dt)
    return action(task, drone, Vec3(way.x, way.y, climb), drone.yaw, rates)


BASELINES: dict[MissionName, dict[str, Script]] = {
    "transit": {"straight-line": straight_line},
    "coverage": {"lawn-mower": lawn_mower},
    "search": {"lawn-mower": lawn_mower},
    "multi-objective": {"shortest-tour": shortest_tour},
    "dwell": {"stay-near": stay_near},
}
"""The scripts of each mission."""
