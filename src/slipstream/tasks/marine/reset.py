"""How a world starts: vessels with their goals, buoys and vortices, placed by rejection sampling."""

import math
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from ...core.geometry import Scalar, Vec2
from ...core.rng import Rng
from ...core.task import State
from ...dynamics.vessel import CORE_RADIUS, VesselState, Vortices
from .state import FAR_AWAY, MarineState, MarineWorld, VesselProgress

if TYPE_CHECKING:
    from .task import Marine

CANDIDATES = 128
T = TypeVar("T")


def reset(task: "Marine", rng: Rng) -> MarineState:
    """A world at its start. In training its size depends on the stage of the curriculum."""
    easiest = task.curriculum
    stage = task.stage if task.training else 1.0
    distance = easiest.distance + (task.min_goal_distance - easiest.distance) * stage
    starts, goals, rng = place_vessels(rng, task.vessels, task.arena_size, distance, task.min_separation)
    vessels, rng = draw_count(task, rng, easiest.vessels, task.vessels, stage)
    buoy_count, rng = draw_count(task, rng, easiest.buoys, task.buoys, stage)
    separation = task.min_separation + task.buoy_radius[1]
    buoys, radii, rng = place_buoys(
        rng, task.buoys, buoy_count, task.arena_size, task.buoy_radius, starts + goals, separation
    )
    vortices = None
    if task.vortices:
        vortices, rng = place_vortices(rng, task.vortices, task.arena_size, task.vortex_speed, starts + goals)
    yaws = []
    for _ in range(task.vessels):
        yaw, rng = rng.uniform(-math.pi, math.pi)
        yaws.append(yaw)
    start, goal = stack_vessels(starts), stack_vessels(goals)
    yaw = stack_vessels(yaws)
    boat = VesselState.at(start, yaw)
    zero, no = 0.0 * yaw, jnp.asarray(yaw > 10.0)
    absent = stack_vessels([jnp.asarray(k >= vessels) for k in range(task.vessels)])
    progress = VesselProgress((goal - start).norm(), no, no, zero, zero, zero, zero, Vec2(zero, zero), zero)
    # A vessel that is absent has ended before it began: no vessel sees it and nothing is learned from it.
    return State(MarineWorld(goal, buoys, radii, vortices), boat, progress, rng, jnp.int32(0), zero, absent, no)


def draw_count(task: "Marine", rng: Rng, first: int, last: int, stage: Scalar) -> tuple[Scalar, Rng]:
    """How many vessels or buoys a world has: in training half of the time the most at this stage, else fewer."""
    if not task.training or first >= last:
        return jnp.float32(last), rng
    most = first + (last - first) * stage
    unit, rng = rng.uniform()
    fewer = first + jnp.maximum(2.0 * unit - 1.0, 0.0) * (most - first)
    return jnp.round(jnp.where(unit < 0.5, most, fewer)), rng


def stack_vessels(parts: list[T]) -> T:
    """One tree of all vessels' values: with an axis of vessels if there are several."""
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: jnp.stack(x), *parts)


def candidates(rng: Rng, low: float, high: float, count: int = CANDIDATES) -> tuple[Vec2, Rng]:
    """Uniform positions in a square, with an axis of candidates."""

    def draw(branch: Integer[Array, ""]) -> tuple[Scalar, Scalar]:
        own = rng.fork(branch)
        x, own = own.uniform(low, high)
        y, _ = own.uniform(low, high)
        return x, y

    x, y = jax.vmap(draw)(jnp.arange(count, dtype=jnp.uint32))
    return Vec2(x, y), rng.bits()[1]


def first_feasible(margin: Float[Array, "candidates"], tree: T) -> T:
    """The first candidate of a tree whose margin is not negative; if there is none, the one with the largest margin."""
    index = jnp.arange(margin.shape[0])
    order = jnp.where(margin >= 0.0, (margin.shape[0] - index).astype(jnp.float32), margin)
    # Not by `argmax`, whose two results in one loop XLA's CPU compiler cannot always build.
    best = jnp.min(jnp.where(order == jnp.max(order), index, margin.shape[0] - 1))
    return jax.tree.map(lambda part: part[best], tree)


def clearance(places: Vec2, others: list[Vec2], separation: Scalar) -> Float[Array, "candidates"]:
    """By how much each candidate's distance from the nearest of the others exceeds `separation`."""
    margin = jnp.full(jnp.shape(places.x), jnp.inf)
    for other in others:
        margin = jnp.minimum(margin, (places - other).norm() - separation)
    return margin


def place_vessels(
    rng: Rng, count: int, arena_size: float, distance: Scalar, separation: float
) -> tuple[list[Vec2], list[Vec2], Rng]:
    """Starts and goals: each goal at least `distance` from its start, starts and goals apart from each other."""
    starts: list[Vec2] = []
    goals: list[Vec2] = []
    for _ in range(count):
        start, rng = candidates(rng, 2.0, arena_size - 2.0)
        goal, rng = candidates(rng, 2.0, arena_size - 2.0)
        margin = jnp.minimum((goal - start).norm() - distance, clearance(start, starts, separation))
        margin = jnp.minimum(margin, clearance(goal, goals, separation))
        start, goal = first_feasible(margin, (start, goal))
        starts.append(start)
        goals.append(goal)
    return starts, goals, rng


def place_buoys(
    rng: Rng,
    most: int,
    count: Scalar,
    arena_size: float,
    radius_range: tuple[float, float],
    taken: list[Vec2],
    separation: float,
) -> tuple[Vec2, Float[Array, "buoys"], Rng]:
    """Positions and radii of buoys, apart from what is taken and from each other; only the first `count` exist."""
    placed: list[Vec2] = []
    radii: list[Scalar] = []
    for k in range(most):
        place, rng = candidates(rng, 5.0, arena_size - 5.0)
        margin = jnp.minimum(clearance(place, taken, separation), clearance(place, placed, 2.0 * radius_range[1]))
        best = first_feasible(margin, place)
        radius, rng = rng.uniform(*radius_range)
        exists = k < count
        placed.append(Vec2(jnp.where(exists, best.x, FAR_AWAY), jnp.where(exists, best.y, FAR_AWAY)))
        radii.append(jnp.where(exists, radius, 0.0))
    return Vec2(_stack([p.x for p in placed]), _stack([p.y for p in placed])), _stack(radii), rng


def place_vortices(
    rng: Rng, count: int, arena_size: float, speed_range: tuple[float, float], taken: list[Vec2]
) -> tuple[Vortices, Rng]:
    """Vortices so far apart that equal ones do not merge and a strong one does not cover a weak one."""
    places: list[Vec2] = []
    strengths: list[Scalar] = []
    for _ in range(count):
        place, rng = candidates(rng, 0.0, arena_size)
        speed, rng = rng.uniform(*speed_range)
        side, rng = rng.uniform()
        strength = speed * CORE_RADIUS
        margin = clearance(place, taken, 5.0)
        for other, known in zip(places, strengths, strict=True):
            same_sense = (known > 0.0) == (side < 0.5)
            stronger, weaker = jnp.maximum(jnp.abs(known), strength), jnp.minimum(jnp.abs(known), strength)
            covered = stronger / (0.8 * weaker / CORE_RADIUS) + 2.0 * CORE_RADIUS
            separation = jnp.where(same_sense, jnp.abs(known) + strength, covered)
            margin = jnp.minimum(margin, (place - other).norm() - separation)
        places.append(first_feasible(margin, place))
        strengths.append(jnp.where(side < 0.5, strength, -strength))
    return Vortices(_stack([p.x for p in places]), _stack([p.y for p in places]), _stack(strengths)), rng


def _stack(parts: list[Scalar]) -> Float[Array, "count"]:
    return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts]) if parts else jnp.zeros(0)
