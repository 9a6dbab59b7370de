"""What a vessel observes: its own motion, and around it the nearest obstacles or the echoes of a sonar."""

import math
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.geometry import Scalar, Vec2, sin_cos, wrap_angle
from ...core.rng import Rng
from ...core.task import stack_features
from ...dynamics.vessel import TwinThrusterVessel, VesselState
from .state import MarineState, Obstacle

if TYPE_CHECKING:
    from .task import Marine

OBSTACLE_SIZE = 9
"""Numbers observed of each obstacle."""
BEAMS, BEAM_SPAN = 11, math.radians(120.0)
"""Beams of the sonar, and the angle between the first and the last."""
BEAM_SIZE = 3
"""Numbers observed of each beam."""
MEASURED_RADIUS = 0.8
"""Mean of a measured radius, as a fraction of the true one."""
RADIUS_NOISE = 1.27
"""Standard deviation of a wrapped Gaussian with the spread of a von Mises distribution of concentration 1."""
SENSOR_STREAM = 0x0B5E
"""Branch of a world's generator from which sensor noise is drawn."""


def observe(task: "Marine", state: MarineState) -> Float[Array, "*agents features"]:
    """What each vessel observes, scaled to about one."""
    boat = state.body
    sin, cos = sin_cos(boat.yaw)
    offset = state.world.goal - boat.position
    goal = offset.rotated(-sin, cos)
    parts = [goal.x * 0.05, goal.y * 0.05, boat.velocity_b.x * 0.5, boat.velocity_b.y * 0.5]
    if isinstance(task.dynamics, TwinThrusterVessel):
        parts += [boat.yaw_rate, boat.left * 1e-3, boat.right * 1e-3]
    if task.sensing == "sonar":
        parts += sonar(obstacles(task, state, boat), boat.yaw, task.sensor_range)
    else:
        for obstacle in measured_obstacles(task, state):
            parts += encode(obstacle, boat, task.dynamics.radius, sin, cos)
    shape = jnp.shape(boat.yaw)
    return stack_features([jnp.broadcast_to(part, shape) for part in parts])


def obstacles(task: "Marine", state: MarineState, boat: VesselState) -> list[Obstacle]:
    """Everything a vessel can collide with: the other vessels that have not ended, then the buoys."""
    present, velocity, found = state.present, boat.velocity_w, []
    # The k-th other of every vessel at once, by a roll along the axis of vessels.
    for k in range(1, task.vessels):
        other = jax.tree.map(lambda x, k=k: jnp.roll(x, -k), (boat.position, velocity, present))
        found.append(Obstacle(other[0] - boat.position, other[1], jnp.float32(task.dynamics.radius), other[2]))
    for k in range(task.buoys):
        place = jax.tree.map(lambda x, k=k: x[k], state.world.buoys)
        still = Vec2(jnp.float32(0.0), jnp.float32(0.0))
        radius = state.world.buoy_radii[k]
        found.append(Obstacle(place - boat.position, still, radius, radius > 0.0))
    # Without the barrier XLA rolls and broadcasts them again for every use.
    return jax.lax.optimization_barrier(found)


def measured_obstacles(task: "Marine", state: MarineState) -> list[Obstacle]:
    """The nearest obstacles of each vessel, with sensor noise."""
    rng = state.rng.fork(SENSOR_STREAM)
    if task.vessels > 1:
        rng = jax.vmap(rng.fork)(jnp.arange(task.vessels, dtype=jnp.uint32))
    measured = []
    for obstacle in nearest(obstacles(task, state, state.body), task.max_obstacles, task.sensor_range):
        obstacle, rng = _measure_each(task, obstacle, rng)
        measured.append(obstacle)
    # Drawn once: fused into the features, noise would be computed again for each of them.
    return jax.lax.optimization_barrier(measured)


def _measure_each(task: "Marine", obstacle: Obstacle, rng: Rng) -> tuple[Obstacle, Rng]:
    """`measure` for every vessel."""
    one = partial(measure, noise=task.sensor_noise)
    if task.vessels == 1:
        return one(obstacle, rng)
    shape = (task.vessels,)
    return jax.vmap(one)(jax.tree.map(lambda x: jnp.broadcast_to(x, shape), obstacle), rng)


def measure(obstacle: Obstacle, rng: Rng, noise: float) -> tuple[Obstacle, Rng]:
    """An obstacle as noisy sensors show it."""
    if not noise:
        return obstacle, rng
    parts = []
    for _ in range(4):
        part, rng = rng.approx_normal(noise)
        parts.append(part)
    x, y, vx, vy = parts
    spread, rng = rng.approx_normal(RADIUS_NOISE)
    spread = wrap_angle(spread) * (1.0 / math.pi)
    radius = obstacle.radius * (MEASURED_RADIUS + (1.0 - MEASURED_RADIUS) * spread)
    return Obstacle(obstacle.offset + Vec2(x, y), obstacle.velocity + Vec2(vx, vy), radius, obstacle.exists), rng


def nearest(obstacles: list[Obstacle], count: int, sensor_range: float) -> list[Obstacle]:
    """The `count` obstacles whose surfaces are nearest, in order; those out of range do not exist.

    By ranks and selection instead of a sort, which would be a loop of its own for every vessel.
    """
    far = 1e6
    gaps = [jnp.where(obstacle.exists, obstacle.offset.norm() - obstacle.radius, far) for obstacle in obstacles]
    gaps = [jnp.where(gap < sensor_range, gap, far) for gap in gaps]
    obstacles, gaps = jax.lax.optimization_barrier((obstacles, gaps))
    ranks = []
    for k, gap in enumerate(gaps):
        before = [jnp.where(other <= gap if j < k else other < gap, 1, 0) for j, other in enumerate(gaps) if j != k]
        ranks.append(sum(before, jnp.zeros(jnp.shape(gap), jnp.int32)))
    ranks = jax.lax.optimization_barrier(ranks)
    found = []
    for slot in range(count):
        parts = [jnp.float32(0.0)] * 5
        exists = jnp.bool_(False)
        for obstacle, rank, gap in zip(obstacles, ranks, gaps, strict=True):
            here = (rank == slot) & (gap < far)
            offset, velocity = obstacle.offset, obstacle.velocity
            values = (offset.x, offset.y, velocity.x, velocity.y, obstacle.radius)
            parts = [jnp.where(here, value, part) for value, part in zip(values, parts, strict=True)]
            exists = exists | here
        x, y, vx, vy, radius = parts
        found.append(Obstacle(Vec2(x, y), Vec2(vx, vy), radius, exists))
    return jax.lax.optimization_barrier(found)


def encode(obstacle: Obstacle, boat: VesselState, radius: float, sin: Scalar, cos: Scalar) -> list[Scalar]:
    """The features of an obstacle: position, velocity and radius in the body frame, and last whether it exists.

    Between them are the distance now and the closest point of approach, surface to surface, and how soon that is.
    """
    exists = jnp.where(obstacle.exists, 1.0, 0.0)
    offset, velocity = obstacle.offset.rotated(-sin, cos), obstacle.velocity.rotated(-sin, cos)
    closing = velocity - boat.velocity_b
    square = jnp.maximum(closing.dot(closing), 1e-3)
    time = jnp.clip(-offset.dot(closing) / square, 0.0, 20.0)
    radii = obstacle.radius + radius
    miss = (offset + closing * time).norm() - radii
    parts = [
        offset.x * 0.05,
        offset.y * 0.05,
        velocity.x * 0.5,
        velocity.y * 0.5,
        obstacle.radius * 0.3,
        (offset.norm() - radii) * 0.1,
        jnp.clip(miss * 0.2, -1.0, 2.0),
        jnp.where(time > 0.0, jnp.exp(-0.2 * time), 0.0),
    ]
    return [part * exists for part in parts] + [exists]


def sonar(obstacles: list[Obstacle], yaw: Scalar, sensor_range: float) -> list[Scalar]:
    """For each beam, from right to left, where its echo is (forward and left) and whether there is one."""
    features: list[Scalar] = []
    for angle in np.linspace(-0.5 * BEAM_SPAN, 0.5 * BEAM_SPAN, BEAMS):
        s, c = sin_cos(yaw + angle)
        best = jnp.full(jnp.shape(yaw), sensor_range)
        for obstacle in obstacles:
            along = obstacle.offset.x * c + obstacle.offset.y * s
            aside = obstacle.offset.x * s - obstacle.offset.y * c
            under = obstacle.radius**2 - aside**2
            hit = along - jnp.sqrt(jnp.maximum(under, 0.0))
            meets = obstacle.exists & (under > 0.0) & (hit > 0.0)
            best = jnp.where(meets & (hit < best), hit, best)
        echo = jnp.where(best < sensor_range, 1.0, 0.0)
        x, y = math.cos(angle) / sensor_range, math.sin(angle) / sensor_range
        features += [best * echo * x, best * echo * y, echo]
    return features
