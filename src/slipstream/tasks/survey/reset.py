"""Where a sortie begins."""

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...core.geometry import Scalar, Vec2, Vec3, sin_cos
from ...core.rng import Rng
from ...dynamics.velocity_drone import Gimbal, VelocityCommand, VelocityDroneState
from . import coverage, observation
from .behavior import MISSION, TAKE_OFF
from .state import Sortie
from .world import HIGH, SurveyWorld, Target, loop, one

if TYPE_CHECKING:
    from .task import Survey


def start(
    task: "Survey", rng: Rng, number: Array, pad: Vec2, country: SurveyWorld, clock: Scalar
) -> tuple[VelocityDroneState, Gimbal, Sortie]:
    plan, land = task.plan, task.plan.land
    ground = country.terrain(pad.x, pad.y)
    target = one(country.targets, number % land.targets)
    place, height, on_pad = pad, ground, jnp.bool_(True)
    if task.starts != "pad":
        place, rng = spot(task, rng, country, clock, target, pad)
        above, rng = rng.uniform(task.filter.clearance + 7.0, 75.0)
        height, on_pad = country.terrain(place.x, place.y) + above, jnp.bool_(False)
    if task.starts == "both":
        coin, rng = rng.uniform()
        on_pad = coin < 0.5
        place = Vec2(*(jnp.where(on_pad, a, b) for a, b in ((pad.x, place.x), (pad.y, place.y))))
        height = jnp.where(on_pad, ground, height)
    far, rng = rng.uniform(-land.north + 60.0, land.north - 60.0)
    goal = Vec3(0.0 * far + (land.east - 40.0), far, 60.0 + 0.0 * far)
    home = Vec3(pad.x, pad.y, ground)
    here = Vec3(place.x, place.y, height)
    limit = jnp.float32(plan.time_limit)
    if plan.transit:
        home = goal
        limit = 10.0 + 1.2 * (goal - here).norm() / 10.0
    yaw, rng = rng.uniform(-math.pi, math.pi)
    battery, rng = rng.uniform(*plan.battery)
    lost, rng = rng.uniform()
    when, rng = rng.uniform(0.0, 0.5 * plan.time_limit)
    cue = []
    for _ in range(2):
        part, rng = rng.normal(4.0)
        cue.append(part)
    at = target.mover.at(clock)
    zero = 0.0 * far
    drone = VelocityDroneState.at(here, yaw)
    down = {"ahead": 0.5, "down": 0.5 * math.pi}.get(plan.gimbal, 0.8)
    gimbal = Gimbal(zero, zero + down)
    track = Vec3(at.x + cue[0], at.y + cue[1], country.terrain(at.x, at.y))
    if plan.own:
        # The camera is turned to where the target was reported.
        gimbal = observation.aimed(drone, track)
    sortie = Sortie(
        home=home,
        goal=goal,
        limit=limit,
        battery=battery,
        mode=jnp.where(on_pad, TAKE_OFF, MISSION).astype(jnp.int32),
        drift=Vec2(zero, zero),
        outage=jnp.where(lost < task.outage, when, jnp.inf),
        dark=jnp.bool_(False),
        blind=rng.fork(0).uniform()[0] < task.blind,
        found=jnp.uint32(0),
        value=zero,
        covered=(jnp.uint32(0),) * coverage.SIDE if plan.cover else (),
        track=track,
        unseen=zero,
        dwell=zero,
        best_dwell=zero,
        quality=zero,
        alarms=zero,
        medium=zero,
        high=zero,
        entered=jnp.bool_(False),
        hit=jnp.bool_(False),
        arrived=jnp.bool_(False),
        overruled=zero,
        reason=jnp.int32(0),
        changed=zero,
        sent=VelocityCommand(zero, zero, zero, zero),
        score=zero,
        success=jnp.bool_(False),
        agility=rng.fork(1).uniform(1.0 - vary, 1.0 + vary)[0] if (vary := task.vary_handling) else None,
    )
    return drone, gimbal, sortie


def spot(task: "Survey", rng: Rng, country: SurveyWorld, clock: Scalar, target: Target, pad: Vec2) -> tuple[Vec2, Rng]:
    """Somewhere clear of zones and buildings, if three tries find it; otherwise over the pad."""
    land = task.plan.land

    def attempt(carry: tuple[Vec2, Rng], _: None) -> tuple[tuple[Vec2, Rng], None]:
        spot, rng = carry
        x, rng = rng.uniform(-land.east + 20.0, land.east - 80.0)
        y, rng = rng.uniform(-land.north + 20.0, land.north - 20.0)
        if task.plan.own:
            turn, rng = rng.uniform(-math.pi, math.pi)
            away, rng = rng.uniform(25.0, 80.0)
            at = target.mover.at(clock)
            sin, cos = sin_cos(turn)
            x = jnp.clip(at.x + away * cos, -land.east + 20.0, land.east - 20.0)
            y = jnp.clip(at.y + away * sin, -land.north + 20.0, land.north - 20.0)
        here = Vec3(x, y, 0.0 * x)
        margin = 2.0 * task.filter.margin
        clear = loop(
            lambda ok, zone: ok & ((zone.depth(here) < -margin) | (zone.level < HIGH)),
            jnp.isfinite(x),
            country.zones,
        )
        clear = loop(lambda ok, house: ok & (house.outward(here).norm() > 25.0), clear, country.buildings)
        return (Vec2(jnp.where(clear, x, spot.x), jnp.where(clear, y, spot.y)), rng), None

    return jax.lax.scan(attempt, (pad, rng), length=3)[0]
