"""Flights that nobody has to learn: baselines on the missions, and profiles for validation.

A script is a function of the whole state and of the number of a drone, and gives that drone's action.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...dynamics.velocity import Gimbal, Glide, wrapped
from ...geometry import Scalar, Vec2, Vec3, sin_cos
from .observation import aimed, bits, turned_to
from .state import SurveyState
from .world import HIGH, Target, Zone, loop, one

if TYPE_CHECKING:
    from .task import Survey

Script = Callable[["Survey", SurveyState, Array], Float[Array, "size"]]
GIMBAL_RATE = math.radians(60.0)


def fly_script(script: Script, task: "Survey", state: SurveyState) -> Float[Array, "agents size"]:
    """The actions of all drones of a world."""
    return jax.vmap(partial(script, task, state))(jnp.arange(task.agents))


def action(
    task: "Survey", drone: Glide, velocity: Vec3, yaw: Scalar | None = None, gimbal: Vec2 | None = None
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


def towards(drone: Glide, point: Vec3, speed: float) -> Vec3:
    """The velocity straight to a point, slowing down before it."""
    way = point - drone.position
    distance = way.norm()
    go = way * (jnp.minimum(speed, 0.5 * distance) / jnp.maximum(distance, 1e-3))
    return Vec3(go.x, go.y, jnp.clip(0.3 * way.z, -2.0, 2.0))


# Baselines


def straight(task: "Survey", state: SurveyState, number: Array) -> Array:
    """Straight to the goal at full speed; near a zone, along its edge on the side that is less of a detour."""
    drone: Glide = one(state.body.drones, number)
    goal: Vec3 = one(state.progress.goal, number)
    return action(task, drone, avoiding(drone, towards(drone, goal, 12.0), state))


def avoiding(drone: Glide, velocity: Vec3, state: SurveyState) -> Vec3:
    """A velocity, turned along the edge of each zone that lies ahead within 80 m."""
    here = Vec2(drone.position.x, drone.position.y)

    def aside(go: Vec2, zone: Zone) -> Vec2:
        way = zone.centre - here
        distance = way.norm()
        out = way * (1.0 / jnp.maximum(distance, 1.0))
        closing = go.dot(out)
        near = zone.known(state.body.clock) & (zone.level >= HIGH) & (distance - zone.radius < 80.0) & (closing > 0.0)
        along = Vec2(-out.y, out.x)
        side = jnp.where(go.dot(along) >= 0.0, 1.0, -1.0)
        speed = go.norm()
        return Vec2(jnp.where(near, along.x * side * speed, go.x), jnp.where(near, along.y * side * speed, go.y))

    turned = loop(aside, Vec2(velocity.x, velocity.y), state.world.zones)
    return Vec3(turned.x, turned.y, velocity.z)


def lawn_mower(task: "Survey", state: SurveyState, number: Array) -> Array:
    """To and fro over the square, in lanes as wide as the picture, with a tenth of overlap."""
    drone: Glide = one(state.body.drones, number)
    half, speed, height = task.plan.cover, 10.0, 55.0
    lane = 2.0 * height * task.lens.aside * 0.9
    lanes = math.ceil(2.0 * half / lane)
    width, length = 2.0 * half / lanes, 2.0 * half - 30.0
    time = one(state.step, number).astype(jnp.float32) * task.dt - 30.0
    # Along the path at a steady pace: the drone chases a point that moves over the ground.
    # Each of the fleet begins elsewhere on the path: together they would stand in each other's way.
    whole = lanes * (length + width)
    path = jnp.maximum(time, 0.0) * speed + number * (whole / task.agents)
    path = path - whole * jnp.floor(path / whole)
    index = jnp.minimum(jnp.floor(path / (length + width)), lanes - 1.0)
    along = path - index * (length + width)
    up = index - 2.0 * jnp.floor(index * 0.5) == 0.0
    y = -half + 15.0 + jnp.clip(along, 0.0, length)
    x = -half + width * (index + 0.5) + jnp.clip(along - length, 0.0, width) * (index < lanes - 1.0)
    ground = state.world.terrain(drone.position.x, drone.position.y)
    point = Vec3(x, jnp.where(up, y, -y), ground + height)
    go = towards(drone, point, 12.0)
    go = avoiding(drone, Vec3(2.0 * go.x, 2.0 * go.y, go.z), state)
    return action(task, drone, go, yaw=jnp.float32(0.5 * math.pi))


def greedy_value(task: "Survey", state: SurveyState, number: Array) -> Array:
    """To the target of the highest value that is left; among equal ones to the nearer."""
    drone: Glide = one(state.body.drones, number)
    found = one(state.progress.found, number)
    here = Vec2(drone.position.x, drone.position.y)

    def better(best: tuple[Scalar, Vec2], thing: tuple[Target, Array]) -> tuple[Scalar, Vec2]:
        target, bit = thing
        at = target.mover.at(state.body.clock)
        worth = target.value - 0.001 * (at - here).norm()
        worth = jnp.where((found & bit) == 0, worth, -jnp.inf)  # pyright: ignore[reportOperatorIssue]
        more = worth > best[0]
        return jnp.maximum(worth, best[0]), Vec2(jnp.where(more, at.x, best[1].x), jnp.where(more, at.y, best[1].y))

    country = state.world
    _, goal = loop(better, (jnp.float32(-1e9) + 0.0 * here.x, here), (country.targets, bits(country)))
    point = Vec3(goal.x, goal.y, country.terrain(goal.x, goal.y) + 45.0)
    go = towards(drone, point, 12.0)
    return action(task, drone, avoiding(drone, Vec3(2.0 * go.x, 2.0 * go.y, go.z), state))


BASELINES: dict[str, dict[str, Script]] = {
    "transit": {"straight-line": straight},
    "coverage": {"lawn-mower": lawn_mower},
    "search": {"lawn-mower": lawn_mower},
    "multi-objective": {"greedy-value": greedy_value},
}
"""What each mission's policy is measured against."""


# Profiles


Path = Callable[[Scalar], Vec2]
Look = Callable[[Scalar], tuple[Scalar, Gimbal]]


@dataclass(frozen=True)
class Profile:
    """A flight for validation: how high, along which path over the ground, and where to look, by the time."""

    height: float
    path: Path
    look: Look | None = None
    """heading and gimbal; None keeps the camera on the drone's own target"""

    def __call__(self, task: "Survey", state: SurveyState, number: Array) -> Array:
        """The action of one drone; the task must leave the gimbal to the policy, as the mission free does."""
        drone: Glide = one(state.body.drones, number)
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


def looking(turn: float = 0.0, pan: float = 0.0, down: float = 0.8, nod: float = 0.0) -> Look:
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
