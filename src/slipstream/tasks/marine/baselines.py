"""Classical navigation on the same worlds: a potential field, velocity obstacles, and predictive control."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.geometry import Scalar, Vec2
from ...dynamics.vessel import PointVessel, TwinThrusterVessel, VesselState, wrapped
from .sensing import SEEN
from .state import ACTION_LEVELS, THRUST_RATE, MarineState, Obstacle

HEADINGS, SPEEDS, HORIZON = 24, (1.0, 0.6, 0.25), 12.0
REACTION, CLEARANCE = 2.0, 0.9
"""Seconds until a vessel goes as it is told, and what is kept from others, as a share of the own radius."""


def told_of(task: Any, state: MarineState) -> list[Obstacle]:
    """What the sensors measure, as large as it must be for them to see it so."""
    scale = 1.0 / SEEN if task.noise else 1.0
    return [replace(thing, radius=thing.radius * scale) for thing in task.sensed(state)]


def foreseen(boat: VesselState, thing: Obstacle) -> Vec2:
    """The way to a thing once a vessel goes as it is told now: until then both go on as they do."""
    return thing.gap + (thing.course - boat.course) * REACTION


def potential_field(task: Any, state: MarineState) -> Array:
    """Drawn by the goal, pushed off by what will be near."""
    boat, hull = state.body, task.hull
    gap = state.world.goal - boat.position
    wish = gap * (1.0 / jnp.maximum(gap.norm(), 1e-3))
    for thing in told_of(task, state):
        gap = foreseen(boat, thing)
        away = gap.norm()
        room = jnp.maximum(away - thing.radius - hull.radius, 0.3)
        push = jnp.where(thing.there & (room < 8.0), 4.0 * (1.0 / room - 1.0 / 8.0), 0.0)
        wish = wish - gap * (push / jnp.maximum(away, 1e-3))
    speed = hull.top_speed * jnp.clip(wish.norm(), 0.3, 0.7)
    return steered(task, boat, wish * (speed / jnp.maximum(wish.norm(), 1e-3)))


def velocity_obstacles(task: Any, state: MarineState) -> Array:
    """The velocity nearest to the wished one that meets nothing soon, if each side takes half the effort."""
    boat, hull = state.body, task.hull
    gap = state.world.goal - boat.position
    top = 0.8 * hull.top_speed
    wish = gap * (top / jnp.maximum(gap.norm(), 1e-3))
    heading = jnp.arctan2(wish.y, wish.x)
    turns = np.linspace(0.0, 2.0 * math.pi, HEADINGS, endpoint=False)
    pairs = np.array([(turn, top * share) for share in SPEEDS for turn in turns])
    # An axis of candidates before that of the vessels.
    turn, speed = (jnp.asarray(x).reshape(-1, *[1] * heading.ndim) for x in pairs.T)
    tried = Vec2(speed * jnp.cos(heading + turn), speed * jnp.sin(heading + turn))
    price = (tried - wish).norm()
    for thing in told_of(task, state):
        price = price + jnp.where(thing.there, 12.0 / time_to_meet(boat, hull.radius, thing, tried), 0.0)
    best = jnp.argmin(price, 0)[None]
    chosen = [jnp.take_along_axis(part, best, 0)[0] for part in (tried.x, tried.y)]
    return steered(task, boat, Vec2(*chosen))


def time_to_meet(boat: VesselState, radius: float, thing: Obstacle, velocity: Vec2) -> Scalar:
    """Seconds until a vessel of that velocity would touch a thing; of a vessel, half of the avoiding is its own."""
    moving = thing.course.norm() > 0.05
    relative = velocity * jnp.where(moving, 2.0, 1.0) - boat.course * jnp.where(moving, 1.0, 0.0) - thing.course
    gap, reach = foreseen(boat, thing), thing.radius + (1.0 + CLEARANCE) * radius
    a, b = relative.dot(relative), gap.dot(relative)
    c = gap.dot(gap) - reach**2
    under = b * b - a * c
    first = (b - jnp.sqrt(jnp.maximum(under, 0.0))) / jnp.maximum(a, 1e-6)
    meets = (under > 0.0) & (first > 0.0)
    soon = jnp.where(meets, first, jnp.inf)
    # Already too near: only velocities that lead away are good.
    soon = jnp.where(c < 0.0, jnp.where(b > 0.0, 0.1, 2.0 * HORIZON), soon)
    return jnp.where(soon > HORIZON, jnp.inf, jnp.maximum(soon, 0.1))


def predictive_control(task: Any, state: MarineState) -> Array:
    """The first action of the best plan, foreseen by the vessel's own equations while all others keep their courses.

    A plan is an action that is kept for a while; then thrusters stay as they are, and a point goes straight on.
    """
    boat, hull = state.body, task.hull
    levels = ACTION_LEVELS[type(hull)]
    plans = np.array([(x, y, time) for x in levels for y in levels for time in KEPT])
    # An axis of plans before that of the vessels.
    left, right, kept = (jnp.asarray(x, jnp.float32).reshape(-1, *[1] * jnp.ndim(boat.yaw)) for x in plans.T)
    things = told_of(task, state)
    # A point knows how much of its velocity is the water's; a hull takes it to be still.
    flow = (
        boat.course * 0.0
        if isinstance(hull, TwinThrusterVessel)
        else (boat.velocity - Vec2(boat.left, 0.0)).turned(boat.yaw)
    )
    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(plans), *jnp.shape(x))), boat)

    def ahead(
        carry: tuple[VesselState, Scalar, Scalar], time: Scalar
    ) -> tuple[tuple[VesselState, Scalar, Scalar], None]:
        there, price, least = carry
        going = time < kept
        rest = 0.0 if isinstance(hull, TwinThrusterVessel) else 1.0
        there = sailed(hull, there, Vec2(jnp.where(going, left, rest), jnp.where(going, right, 0.0)), flow, STRIDE)
        way = there.position - boat.position
        for thing in things:
            room = (thing.gap + thing.course * (time + STRIDE) - way).norm() - thing.radius - hull.radius
            # What is near in time weighs more: there will be other plans.
            near = jnp.maximum(ROOM - room, 0.0) * jnp.exp(-0.15 * time)
            price = price + jnp.where(thing.there, FEAR * STRIDE * near, 0.0)
        least = jnp.minimum(least, (state.world.goal - there.position).norm())
        return (there, price + STRIDE / FORESIGHT * least, least), None

    nothing = jnp.zeros(start.yaw.shape)
    times = jnp.arange(0.0, FORESIGHT, STRIDE)
    (_, price, least), _ = jax.lax.scan(ahead, (start, nothing, nothing + 1e3), times)
    best = jnp.argmin(price + least, 0)[None]
    sent = [jnp.take_along_axis(jnp.broadcast_to(x, price.shape), best, 0)[0] for x in (left, right)]
    return chosen(task, Vec2(*sent))


KEPT, FORESIGHT, STRIDE = (0.5, 1.5, 3.0), 8.0, 0.25
"""Seconds for which a plan's action may be kept, that are foreseen, and of a step of foresight."""
ROOM, FEAR = 2.5, 20.0
"""Metres to keep from others, and what a metre less is worth in a second."""


def sailed(hull: TwinThrusterVessel | PointVessel, boat: VesselState, told: Vec2, flow: Vec2, dt: float) -> VesselState:
    """The vessel after `dt` in water that moves like that."""
    if isinstance(hull, TwinThrusterVessel):
        return hull.step(hull.throttled(boat, THRUST_RATE * dt * told.x, THRUST_RATE * dt * told.y), flow, dt)
    return hull.step(boat, hull.acceleration * told.x, hull.turn * told.y, flow, dt)


def steered(task: Any, boat: VesselState, wish: Vec2) -> Array:
    """The action that brings a vessel to a velocity."""
    hull = task.hull
    if isinstance(hull, TwinThrusterVessel):
        # A hull slides on where it went: it has to point to the other side of its wish by as much as it is off.
        wish = wish * 2.0 - boat.course
    off = wrapped(jnp.arctan2(wish.y, wish.x) - boat.yaw)
    speed = jnp.minimum(wish.norm() * jnp.maximum(jnp.cos(off), 0.0), hull.top_speed)
    if isinstance(hull, TwinThrusterVessel):
        drag = (hull.drag[0] + hull.square_drag[0] * speed) * speed
        ahead = 0.5 * (drag + 400.0 * (speed - boat.velocity.x))
        turn = 900.0 * jnp.clip(off, -1.0, 1.0) - 700.0 * boat.yaw_rate
        change = THRUST_RATE * task.control_dt
        sent = Vec2((ahead - turn - boat.left) / change, (ahead + turn - boat.right) / change)
    else:
        sent = Vec2((speed - boat.left) / 0.2, off / (hull.turn * task.control_dt))
    return chosen(task, Vec2(jnp.clip(sent.x, -1.0, 1.0), jnp.clip(sent.y, -1.0, 1.0)))


def chosen(task: Any, sent: Vec2) -> Array:
    """Two numbers between −1 and 1 as an action of the task."""
    if task.space == "box":
        return jnp.stack([sent.x, sent.y], -1)
    levels = jnp.asarray(ACTION_LEVELS[type(task.hull)])
    first, second = (
        jnp.argmin(jnp.abs(x[..., None] - levels), -1).astype(jnp.int32) for x in map(jnp.asarray, (sent.x, sent.y))
    )
    if task.space == "multidiscrete":
        return jnp.stack([first, second], -1)
    return first * len(levels) + second


BASELINES: dict[str, Callable[[Any, MarineState], Array]] = {
    "potential field": potential_field, "velocity obstacles": velocity_obstacles,
    "predictive control": predictive_control,
}  # fmt: skip
