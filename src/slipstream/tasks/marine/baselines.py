"""Classical planners: a potential field, reciprocal velocity obstacles, and model predictive control (MPC)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.geometry import Scalar, Vec2, wrap_angle
from ...dynamics.vessel import TwinThrusterVessel, VesselModel, VesselState
from .sensing import MEASURED_RADIUS, measured_obstacles
from .state import ACTION_LEVELS, THRUST_RATE, MarineState, Obstacle

if TYPE_CHECKING:
    from .task import Marine

RVO_HEADINGS, RVO_SPEEDS, RVO_HORIZON = 24, (1.0, 0.6, 0.25), 12.0
"""Candidate headings, candidate speeds as fractions of the preferred one, and seconds ahead that count."""
RVO_CLEARANCE = 0.9
"""Clearance from others, as a fraction of the own radius."""
REACTION_TIME = 2.0
"""Seconds until a vessel has the velocity that it steers for."""
MPC_HOLD_TIMES, MPC_HORIZON, MPC_DT = (0.5, 1.5, 3.0), 8.0, 0.25
"""Seconds for which a plan may hold its action, seconds of prediction, and of a prediction step."""
CLEARANCE, CLEARANCE_COST = 2.5, 20.0
"""Meters to keep from others, and the cost of each meter less in a second."""


def obstacles(task: "Marine", state: MarineState) -> list[Obstacle]:
    """What the sensors measure, with the bias of the radius removed."""
    scale = 1.0 / MEASURED_RADIUS if task.sensor_noise else 1.0
    return [replace(obstacle, radius=obstacle.radius * scale) for obstacle in measured_obstacles(task, state)]


def predicted_gap(boat: VesselState, obstacle: Obstacle) -> Vec2:
    """The offset to an obstacle after the reaction time, if both keep their velocities until then."""
    return obstacle.offset + (obstacle.velocity - boat.velocity_w) * REACTION_TIME


def potential_field(task: "Marine", state: MarineState) -> Array:
    """Attracted by the goal, repelled by obstacles that will be near."""
    boat, dynamics = state.body, task.dynamics
    gap = state.world.goal - boat.position
    force = gap * (1.0 / jnp.maximum(gap.norm(), 1e-3))
    for obstacle in obstacles(task, state):
        gap = predicted_gap(boat, obstacle)
        distance = gap.norm()
        room = jnp.maximum(distance - obstacle.radius - dynamics.radius, 0.3)
        push = jnp.where(obstacle.exists & (room < 8.0), 4.0 * (1.0 / room - 1.0 / 8.0), 0.0)
        force = force - gap * (push / jnp.maximum(distance, 1e-3))
    speed = dynamics.top_speed * jnp.clip(force.norm(), 0.3, 0.7)
    return steer(task, boat, force * (speed / jnp.maximum(force.norm(), 1e-3)))


def reciprocal_velocity_obstacles(task: "Marine", state: MarineState) -> Array:
    """The velocity nearest to the preferred one that leads to no collision soon, if both sides share the avoiding."""
    boat, dynamics = state.body, task.dynamics
    gap = state.world.goal - boat.position
    top_speed = 0.8 * dynamics.top_speed
    preferred = gap * (top_speed / jnp.maximum(gap.norm(), 1e-3))
    heading = jnp.arctan2(preferred.y, preferred.x)
    turns = np.linspace(0.0, 2.0 * math.pi, RVO_HEADINGS, endpoint=False)
    pairs = np.array([(turn, top_speed * fraction) for fraction in RVO_SPEEDS for turn in turns])
    # An axis of candidates before that of the vessels.
    turn, speed = (jnp.asarray(x).reshape(-1, *[1] * heading.ndim) for x in pairs.T)
    candidate = Vec2(speed * jnp.cos(heading + turn), speed * jnp.sin(heading + turn))
    cost = (candidate - preferred).norm()
    for obstacle in obstacles(task, state):
        time = time_to_collision(boat, dynamics.radius, obstacle, candidate)
        cost = cost + jnp.where(obstacle.exists, 12.0 / time, 0.0)
    best = jnp.argmin(cost, 0)[None]
    velocity = [jnp.take_along_axis(jnp.asarray(part), best, 0)[0] for part in (candidate.x, candidate.y)]
    return steer(task, boat, Vec2(*velocity))


def time_to_collision(boat: VesselState, radius: float, obstacle: Obstacle, velocity: Vec2) -> Scalar:
    """Seconds until a vessel with that velocity collides, if a moving obstacle does its half of the avoiding."""
    moving = obstacle.velocity.norm() > 0.05
    own = velocity * jnp.where(moving, 2.0, 1.0) - boat.velocity_w * jnp.where(moving, 1.0, 0.0)
    relative = own - obstacle.velocity
    gap, reach = predicted_gap(boat, obstacle), obstacle.radius + (1.0 + RVO_CLEARANCE) * radius
    a, b = relative.dot(relative), gap.dot(relative)
    c = gap.dot(gap) - reach**2
    discriminant = b * b - a * c
    first = (b - jnp.sqrt(jnp.maximum(discriminant, 0.0))) / jnp.maximum(a, 1e-6)
    collides = (discriminant > 0.0) & (first > 0.0)
    time = jnp.where(collides, first, jnp.inf)
    # Already too near: only velocities that lead away are good.
    time = jnp.where(c < 0.0, jnp.where(b > 0.0, 0.1, 2.0 * RVO_HORIZON), time)
    return jnp.where(time > RVO_HORIZON, jnp.inf, jnp.maximum(time, 0.1))


def mpc(task: "Marine", state: MarineState) -> Array:
    """The first action of the best plan, predicted by the vessel's own equations.

    All others are assumed to keep their velocities. A plan holds one action for a while; after that the thrusts stay
    as they are, and a point goes straight on.
    """
    boat, dynamics = state.body, task.dynamics
    levels = ACTION_LEVELS[type(dynamics)]
    plans = np.array([(x, y, time) for x in levels for y in levels for time in MPC_HOLD_TIMES])
    # An axis of plans before that of the vessels.
    first, second, hold = (jnp.asarray(x, jnp.float32).reshape(-1, *[1] * jnp.ndim(boat.yaw)) for x in plans.T)
    found = obstacles(task, state)
    # A point knows how much of its velocity is the current's; a hull assumes still water.
    current = (
        boat.velocity_w * 0.0
        if isinstance(dynamics, TwinThrusterVessel)
        else (boat.velocity_b - Vec2(boat.speed, 0.0)).turned(boat.yaw)
    )
    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(plans), *jnp.shape(x))), boat)

    def predict(
        carry: tuple[VesselState, Scalar, Scalar], time: Scalar
    ) -> tuple[tuple[VesselState, Scalar, Scalar], None]:
        boat_then, cost, least = carry
        holding = time < hold
        rest = 0.0 if isinstance(dynamics, TwinThrusterVessel) else 1.0
        command = Vec2(jnp.where(holding, first, rest), jnp.where(holding, second, 0.0))
        boat_then = step_vessel(dynamics, boat_then, command, current, MPC_DT)
        moved = boat_then.position - boat.position
        for obstacle in found:
            gap = (obstacle.offset + obstacle.velocity * (time + MPC_DT) - moved).norm()
            room = gap - obstacle.radius - dynamics.radius
            # What is near in time weighs more: there will be other plans.
            lacking = jnp.maximum(CLEARANCE - room, 0.0) * jnp.exp(-0.15 * time)
            cost = cost + jnp.where(obstacle.exists, CLEARANCE_COST * MPC_DT * lacking, 0.0)
        least = jnp.minimum(least, (state.world.goal - boat_then.position).norm())
        return (boat_then, cost + MPC_DT / MPC_HORIZON * least, least), None

    zero = jnp.zeros(jnp.shape(start.yaw))
    times = jnp.arange(0.0, MPC_HORIZON, MPC_DT)
    (_, cost, least), _ = jax.lax.scan(predict, (start, zero, zero + 1e3), times)
    best = jnp.argmin(cost + least, 0)[None]
    command = [jnp.take_along_axis(jnp.broadcast_to(x, jnp.shape(cost)), best, 0)[0] for x in (first, second)]
    return to_action(task, Vec2(*command))


def step_vessel(dynamics: VesselModel, boat: VesselState, command: Vec2, current: Vec2, dt: float) -> VesselState:
    """The vessel after `dt` with that command in that current."""
    if isinstance(dynamics, TwinThrusterVessel):
        change = THRUST_RATE * dt
        return dynamics.step(dynamics.change_thrust(boat, change * command.x, change * command.y), current, dt)
    acceleration, turn_rate = dynamics.max_acceleration * command.x, dynamics.max_turn_rate * command.y
    return dynamics.step(boat, acceleration, turn_rate, current, dt)


def steer(task: "Marine", boat: VesselState, velocity: Vec2) -> Array:
    """The action that brings a vessel to a velocity over ground."""
    dynamics = task.dynamics
    if isinstance(dynamics, TwinThrusterVessel):
        # A hull slides on in its old direction: the nose has to point past the new one by the difference.
        velocity = velocity * 2.0 - boat.velocity_w
    heading_error = wrap_angle(jnp.arctan2(velocity.y, velocity.x) - boat.yaw)
    speed = jnp.minimum(velocity.norm() * jnp.maximum(jnp.cos(heading_error), 0.0), dynamics.top_speed)
    if isinstance(dynamics, TwinThrusterVessel):
        drag = (dynamics.linear_drag[0] + dynamics.quadratic_drag[0] * speed) * speed
        ahead = 0.5 * (drag + 400.0 * (speed - boat.velocity_b.x))
        turn = 900.0 * jnp.clip(heading_error, -1.0, 1.0) - 700.0 * boat.yaw_rate
        change = THRUST_RATE * task.control_dt
        command = Vec2((ahead - turn - boat.left) / change, (ahead + turn - boat.right) / change)
    else:
        command = Vec2((speed - boat.speed) / 0.2, heading_error / (dynamics.max_turn_rate * task.control_dt))
    return to_action(task, Vec2(jnp.clip(command.x, -1.0, 1.0), jnp.clip(command.y, -1.0, 1.0)))


def to_action(task: "Marine", command: Vec2) -> Array:
    """The action of the task's action space that is nearest to a command."""
    return task.spec.action.encode([jnp.asarray(command.x), jnp.asarray(command.y)], task.levels)


BASELINES: dict[str, Callable[["Marine", MarineState], Array]] = {
    "potential field": potential_field,
    "reciprocal velocity obstacles": reciprocal_velocity_obstacles,
    "mpc": mpc,
}
