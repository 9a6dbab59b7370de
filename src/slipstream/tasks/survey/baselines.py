"""Flights that nobody has to learn: baselines on the missions, and profiles for validation.

A script is a function of the whole state and of the number of a drone, and gives that drone's action.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...core.geometry import Flag, Scalar, Vec2, Vec3, sin_cos
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState, wrapped
from . import coverage
from .observation import CLOSE, aimed, turned_to
from .state import Sortie, SurveyState
from .world import HIGH, Target, Zone, fold, loop, one

if TYPE_CHECKING:
    from .task import Survey

Script = Callable[["Survey", SurveyState, Array], Float[Array, "size"]]
GIMBAL_RATE = math.radians(60.0)


def fly_script(script: Script, task: "Survey", state: SurveyState) -> Float[Array, "agents size"]:
    """The actions of all drones of a world."""
    return jax.vmap(partial(script, task, state))(jnp.arange(task.agents))


def action(
    task: "Survey", drone: VelocityDroneState, velocity: Vec3, yaw: Scalar | None = None, gimbal: Vec2 | None = None
) -> Array:
    """The action that flies at a velocity over the ground, looking along `yaw`, or else along the way."""
    handling = task.handling
    x, y = velocity.x / handling.speed, velocity.y / handling.speed
    if task.plan.frame == "heading":
        sin, cos = sin_cos(drone.yaw)
        x, y = cos * x + sin * y, cos * y - sin * x
    up = velocity.z * jnp.where(velocity.z > 0.0, 1.0 / handling.climb, 1.0 / handling.sink)
    ahead = jnp.arctan2(velocity.y, velocity.x) if yaw is None else yaw
    turn = jnp.clip(wrapped(ahead - drone.yaw), -1.0, 1.0)
    parts = [x, y, up, turn]
    if task.spec.action.size == 6:  # pyright: ignore[reportAttributeAccessIssue]
        parts += [0.0 * x, 0.0 * x] if gimbal is None else [gimbal.x, gimbal.y]
    return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])


def towards(drone: VelocityDroneState, point: Vec3, speed: float) -> Vec3:
    """The velocity straight to a point, slowing down before it."""
    way = point - drone.position
    distance = way.norm()
    go = way * (jnp.minimum(speed, 0.5 * distance) / jnp.maximum(distance, 1e-3))
    return Vec3(go.x, go.y, jnp.clip(0.3 * way.z, -2.0, 2.0))


# Baselines

ROOM = 1.5
"""Distance that a planned way keeps from zones, in margins of the safety filter: it then has nothing to correct."""
DETOUR = 0.5 * math.pi - 1.0
"""Length that each metre through a zone adds to a way around it: half a circle instead of its diameter."""
TOLL = 5.0
"""The same for the leg that is flown now, which should not cross a zone at all."""
MEDIUM_SHARE = 0.2
"""Weight of a metre under a medium threat, which may be crossed, relative to one through a zone."""
LEAD = 0.4
"""Distance from the point where a tangent touches a zone to the corner that is flown to, in radii."""
STEP = 13.0
"""Difference in height between drones of even and odd number, m: more than the filter keeps between two drones."""
UNREACHED = 1e6
"""Length of a way that does not exist, m."""


def believed(state: SurveyState, number: Array) -> VelocityDroneState:
    """A drone where it believes itself to be: a script knows its place no better than a policy."""
    drone: VelocityDroneState = one(state.body.drones, number)
    drift: Vec2 = one(state.progress.drift, number)
    return replace(drone, position=drone.position + Vec3(drift.x, drift.y, 0.0 * drift.x))


def flat(point: Vec3) -> Vec2:
    return Vec2(point.x, point.y)


def unit(way: Vec2) -> tuple[Vec2, Scalar]:
    """Direction and length."""
    length = way.norm()
    return way * (1.0 / jnp.maximum(length, 1e-3)), length


def chord(zone: Zone, start: Vec2, end: Vec2, room: float) -> Scalar:
    """How much of the straight way from `start` to `end` lies within `room` of a zone, m."""
    way, length = unit(end - start)
    along = (zone.center - start).dot(way)
    radius, off = zone.radius + room, (start + way * along - zone.center).norm()
    half = jnp.sqrt(jnp.maximum(radius * radius - off * off, 0.0))
    return jnp.clip(along + half, 0.0, length) - jnp.clip(along - half, 0.0, length)


def way_length(task: "Survey", state: SurveyState, start: Vec2, end: Vec2, detour: float = DETOUR) -> Scalar:
    """The length of a straight way, and `detour` for each metre of it that lies in a zone that is known."""

    def inside(zone: Zone) -> Scalar:
        weight = jnp.where(zone.level >= HIGH, 1.0, MEDIUM_SHARE)
        length = weight * chord(zone, start, end, ROOM * task.filter.margin)
        return jnp.where(zone.known(state.body.clock), length, 0.0)

    return (end - start).norm() + detour * jnp.sum(jax.vmap(inside)(state.world.zones))


def next_corner(task: "Survey", state: SurveyState, here: Vec2, goal: Vec2) -> Vec2:
    """Where to fly first on the way to a goal: straight there, or along the tangent to a zone, whatever is shortest."""
    land, margin = task.plan.land, task.filter.margin
    length = partial(way_length, task, state)

    def around(zone: Zone, side: float) -> tuple[Scalar, Vec2]:
        out, distance = unit(here - zone.center)
        radius = zone.radius + (ROOM + 1.0) * margin
        cos = jnp.minimum(radius / jnp.maximum(distance, 1.0), 1.0)
        sin = side * jnp.sqrt(1.0 - cos * cos)
        touch = Vec2(cos * out.x - sin * out.y, sin * out.x + cos * out.y)
        # Beyond the point of contact: at the zone itself that would be where the drone already is.
        corner = zone.center + touch * radius + Vec2(-touch.y, touch.x) * (side * LEAD * radius)
        # Between this side of the zone and the geofence there may be no room.
        farthest = zone.center + Vec2(-out.y, out.x) * (side * radius)
        fits = (jnp.abs(farthest.x) < land.east - margin) & (jnp.abs(farthest.y) < land.north - margin)
        use = fits & zone.known(state.body.clock)
        return jnp.where(use, length(here, corner, TOLL) + length(corner, goal), jnp.inf), corner

    def shorter(best: tuple[Scalar, Vec2], zone: Zone) -> tuple[Scalar, Vec2]:
        for side in (1.0, -1.0):
            other = around(zone, side)
            best = jax.tree.map(partial(jnp.where, other[0] < best[0]), other, best)
        return best

    return loop(shorter, (length(here, goal, TOLL), goal), state.world.zones)[1]


def head_for(task: "Survey", state: SurveyState, drone: VelocityDroneState, point: Vec3) -> Vec3:
    """The velocity to a point around the zones that are known: full speed until the last second."""
    here, handling = flat(drone.position), task.handling
    way, _ = unit(next_corner(task, state, here, flat(point)) - here)
    speed = jnp.minimum(handling.speed, (flat(point) - here).norm())
    climb = jnp.clip(point.z - drone.position.z, -handling.sink, handling.climb)
    return Vec3(way.x * speed, way.y * speed, climb)


def straight(task: "Survey", state: SurveyState, number: Array) -> Array:
    """To the goal at full speed by the shortest way around the zones, above all buildings until the descent."""
    drone = believed(state, number)
    goal: Vec3 = one(state.progress.goal, number)
    cruise = task.plan.land.tallest + task.filter.margin + 2.0
    # A little flatter than the steepest descent at full speed.
    slope = 0.8 * task.handling.sink / task.handling.speed
    height = jnp.minimum(cruise, goal.z + slope * flat(goal - drone.position).norm())
    return action(task, drone, head_for(task, state, drone, replace(goal, z=height)))


def lawn_mower(task: "Survey", state: SurveyState, number: Array) -> Array:
    """To and fro in lanes as wide as the picture with a tenth of overlap, to the first cell not yet covered.

    Drones begin in different lanes: together they would stand in each other's way.
    """
    drone = believed(state, number)
    height = task.sharp - 5.0  # the ground may rise by so much before the drone does
    lanes = math.ceil(task.plan.cover / (height * task.lens.aside * 0.9))
    order, cell, middle = cells_in_lanes(task.plan.cover, lanes)
    rows = jnp.stack(one(state.progress.covered, number))
    seen = (rows[:, None] >> np.arange(coverage.SIDE, dtype=np.uint32)) & 1 == 1
    wait = (order - coverage.SIDE * (number % lanes)) % (coverage.SIDE * lanes)
    first = jnp.argmin(jnp.where(seen | closed(task, state, cell), order.size, wait))
    x = jnp.ravel(cell.x)[first]
    # In the middle of the lane, unless a zone is there.
    y = jnp.ravel(jnp.where(closed(task, state, middle), cell.y, middle.y))[first]
    ground = state.world.terrain(drone.position.x, drone.position.y)
    # The wide side of the picture lies across the lane.
    return action(task, drone, head_for(task, state, drone, Vec3(x, y, ground + height)), yaw=0.0 * drone.yaw)


def cells_in_lanes(half: float, lanes: int) -> tuple[np.ndarray, Vec2, Vec2]:
    """For each cell of the map: its place along the lanes, its centre, and the middle of its lane beside it."""
    side = coverage.SIDE
    row, column = np.mgrid[:side, :side]
    lane = row * lanes // side
    order = lane * side + np.where(lane % 2 == 0, column, side - 1 - column)
    x, y = (((index + 0.5) * (2.0 * half / side) - half).astype(np.float32) for index in (column, row))
    middle = ((lane + 0.5) * (2.0 * half / lanes) - half).astype(np.float32)
    return order, Vec2(x, y), Vec2(x, middle)  # pyright: ignore[reportArgumentType]


def closed(task: "Survey", state: SurveyState, place: Vec2) -> Array:
    """Which places lie in a known zone or too near to one."""

    def inside(found: Array, zone: Zone) -> Array:
        near = zone.depth(Vec3(place.x, place.y, 0.0 * place.x)) > -2.0 * task.filter.margin
        return found | (near & zone.known(state.body.clock) & (zone.level >= HIGH))

    return fold(inside, jnp.zeros(np.shape(place.x), bool), state.world.zones)


def shortest_tour(task: "Survey", state: SurveyState, number: Array) -> Array:
    """To the first target of the shortest tour that views enough value; once that is viewed, of the rest."""
    drone = believed(state, number)
    country, targets = state.world, state.world.targets
    hidden, deep = jax.vmap(partial(out_of_view, state))(targets)
    value, most = jnp.where(hidden | deep, 0.0, targets.value), jnp.sum(jnp.where(deep, 0.0, targets.value))
    at = targets.mover.at(state.body.clock)
    worth = jnp.asarray(viewed_sets(value.size), jnp.float32) @ value
    length = partial(way_length, task, state)
    legs = jnp.asarray(jax.vmap(lambda start: jax.vmap(partial(length, start))(at))(at))
    found = one(state.progress.found, number).astype(jnp.int32)
    asked = task.plan.value * most
    enough, everything = (left_to_fly(legs, worth >= need - 0.5) for need in (asked, jnp.sum(value)))
    numbers = np.arange(value.size)
    onward = jnp.where(worth[found] >= asked - 0.5, everything, enough)[found | (1 << numbers), numbers]
    here = flat(drone.position)
    tour = jax.vmap(partial(length, here))(at) + onward
    viewed = (found >> numbers) & 1 == 1
    tour = jnp.where(viewed | hidden | deep, jnp.inf, tour)
    goal: Vec2 = one(at, jnp.argmin(tour))
    height = country.terrain(goal.x, goal.y) + 35.0 + STEP * (number % 2)
    point = Vec3(goal.x, goal.y, height)
    # With nothing left to view it stays where it is.
    point = jax.tree.map(partial(jnp.where, jnp.isfinite(jnp.min(tour))), point, drone.position)
    return action(task, drone, head_for(task, state, drone, point))


def out_of_view(state: SurveyState, target: Target) -> tuple[Flag, Flag]:
    """Whether a building stands over a target, and whether it lies too deep in a known zone to be viewed."""
    at, country, clock = target.mover.at(state.body.clock), state.world, state.body.clock
    ground = country.terrain(at.x, at.y)
    point = Vec3(at.x, at.y, ground + 1.0)

    def inside(found: Flag, zone: Zone) -> Flag:
        return found | (zone.known(clock) & (zone.level >= HIGH) & (zone.depth(point) > 0.6 * CLOSE))

    return country.hidden(replace(point, z=ground + CLOSE), point), fold(inside, at.x != at.x, country.zones)


def viewed_sets(count: int) -> np.ndarray:
    """All sets of targets, one a row, by their bits: which targets are in it."""
    return (np.arange(2**count)[:, None] >> np.arange(count)) & 1 == 1


def left_to_fly(legs: Float[Array, "n n"], enough: Bool[Array, "sets"]) -> Float[Array, "sets n"]:
    """The shortest way on from each target, by the set of targets viewed, until that set is enough.

    Bellman's equation of the travelling salesman (Held and Karp):  L(S, i) = min over k ∉ S of  d(i, k) + L(S ∪ k, k).
    """
    numbers = np.arange(legs.shape[0])
    sets = viewed_sets(legs.shape[0])
    after = np.arange(len(sets))[:, None] | (1 << numbers)
    left = jnp.where(enough, 0.0, UNREACHED)[:, None] + jnp.zeros(legs.shape[0])
    for _ in numbers:
        onward = jnp.where(sets, UNREACHED, left[after, numbers])
        best = jnp.min(legs + onward[:, None, :], axis=-1)
        left = jnp.where(enough[:, None], 0.0, jnp.minimum(best, UNREACHED))
    return left


def stay_near(task: "Survey", state: SurveyState, number: Array) -> Array:
    """Beside and above the drone's own target, as fast as it goes, with the camera on where it was last seen.

    Steep from above few things hide a target; a drone that does not see its target flies right over it.
    """
    drone = believed(state, number)
    sortie: Sortie = one(state.progress, number)
    target: Target = one(state.world.targets, number % task.plan.land.targets)
    seen = sortie.unseen == 0.0
    going = target.mover.speed(state.body.clock) * seen
    out, _ = unit(flat(drone.position - sortie.track))
    # 20 m aside and 45 m above: 49 m away, and 50 is the best distance.
    post = flat(sortie.track) + out * (20.0 * seen)
    way = (post - flat(drone.position)) * 0.7 + going
    climb = jnp.clip(sortie.track.z + 45.0 - drone.position.z, -task.handling.sink, task.handling.climb)
    soon = replace(drone, position=drone.position + drone.velocity * task.dt)
    wanted = aimed(soon, sortie.track + Vec3(going.x, going.y, 0.0 * going.x) * task.dt)
    turn = turned_to(one(state.body.gimbals, number), wanted, GIMBAL_RATE, task.dt)
    return action(task, drone, Vec3(way.x, way.y, climb), drone.yaw, turn)


BASELINES: dict[str, dict[str, Script]] = {
    "transit": {"straight-line": straight},
    "coverage": {"lawn-mower": lawn_mower},
    "search": {"lawn-mower": lawn_mower},
    "multi-objective": {"shortest-tour": shortest_tour},
    "dwell": {"stay-near": stay_near},
}
"""What each mission's policy is measured against."""


# Profiles


Path = Callable[[Scalar], Vec2]
LookFn = Callable[[Scalar], tuple[Scalar, Gimbal]]


@dataclass(frozen=True)
class Profile:
    """A flight for validation: how high, along which path over the ground, and where to look, by the time."""

    height: float
    path: Path
    look: LookFn | None = None
    """heading and gimbal; None keeps the camera on the drone's own target"""

    def __call__(self, task: "Survey", state: SurveyState, number: Array) -> Array:
        """The action of one drone; the task must leave the gimbal to the policy, as the mission free does."""
        drone: VelocityDroneState = one(state.body.drones, number)
        gimbal: Gimbal = one(state.body.gimbals, number)
        start: Vec3 = one(state.progress.home, number)
        time = one(state.step, number).astype(jnp.float32) * task.dt
        off = self.path(time)
        ground = state.world.terrain(drone.position.x, drone.position.y)
        go = towards(drone, Vec3(start.x + 60.0 + off.x, start.y + off.y, ground + self.height), 12.0)
        if self.look is None:
            track: Vec3 = one(state.progress.track, number)
            yaw, wanted = drone.yaw, aimed(drone, track)
        else:
            yaw, wanted = self.look(time)
        return action(task, drone, go, yaw, turned_to(gimbal, wanted, GIMBAL_RATE, task.dt))


def line(speed: float) -> Path:
    return lambda time: Vec2(speed * time, 0.0 * time)


def square(edge: float, speed: float) -> Path:
    def at(time: Scalar) -> Vec2:
        path = speed * time / edge
        side = path - 4.0 * jnp.floor(path / 4.0)
        x = jnp.clip(side, 0.0, 1.0) - jnp.clip(side - 2.0, 0.0, 1.0)
        y = jnp.clip(side - 1.0, 0.0, 1.0) - jnp.clip(side - 3.0, 0.0, 1.0)
        return Vec2(edge * x, edge * y)

    return at


def eight(size: float, speed: float) -> Path:
    def at(time: Scalar) -> Vec2:
        sin, cos = sin_cos(speed * time / size)
        return Vec2(size * sin, size * sin * cos)

    return at


def looking(turn: float = 0.0, pan: float = 0.0, down: float = 0.8, nod: float = 0.0) -> LookFn:
    """Turning with the vehicle at `turn`, panning at `pan` (rad/s), and nodding by so much about a look down."""

    def at(time: Scalar) -> tuple[Scalar, Gimbal]:
        return wrapped(turn * time), Gimbal(wrapped(pan * time), down + nod * sin_cos(0.5 * time)[0])

    return at


PROFILES: dict[str, Profile] = {
    "detection": Profile(50.0, line(0.0), looking(turn=0.3)),
    "tracking": Profile(60.0, line(2.5)),
    "navigation": Profile(60.0, square(120.0, 6.0), looking(down=0.4)),
    "gimbal": Profile(30.0, line(0.0), looking(pan=0.6, down=0.6, nod=0.5)),
    "stress": Profile(50.0, eight(80.0, 4.0), looking(turn=0.8, pan=-0.8, down=0.5)),
    "full": Profile(75.0, square(400.0, 8.0), looking(pan=0.2, down=0.9, nod=0.3)),
}
