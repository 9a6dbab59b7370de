"""Where a drone's camera points."""

import math

import jax.numpy as jnp
from jaxtyping import Array

from ...core.geometry import Flag, Scalar, Vec2, Vec3, wrap_angle
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from .stacked import fold
from .state import Sortie
from .world import SurveyWorld, Target

MAX_RATE = math.radians(60.0)
"""Largest rate of a gimbal about each axis, rad/s."""


def gimbal_towards(drone: VelocityDroneState, point: Vec3) -> Gimbal:
    """The gimbal angles that bring a point to the center of the image."""
    way = point - drone.position
    flat = Vec2(way.x, way.y).norm()
    down = jnp.clip(jnp.arctan2(-way.z, flat), -math.pi / 6, math.pi / 2)
    return Gimbal(wrap_angle(jnp.arctan2(way.y, way.x) - drone.yaw), down)


def gimbal_rates(gimbal: Gimbal, wanted: Gimbal, dt: float) -> Vec2:
    """The rates, as fractions of the largest, that turn a gimbal to other angles in `dt` or as fast as it can."""
    scale = 1.0 / (MAX_RATE * dt)
    return Vec2(
        jnp.clip(wrap_angle(wanted.yaw - gimbal.yaw) * scale, -1.0, 1.0),
        jnp.clip((wanted.pitch - gimbal.pitch) * scale, -1.0, 1.0),
    )


def target_bits(world: SurveyWorld) -> Array:
    """The bit of each target in `Sortie.found`."""
    return jnp.uint32(1) << jnp.arange(world.targets.kind.shape[-1], dtype=jnp.uint32)


def nearest_unfound(drone: VelocityDroneState, sortie: Sortie, world: SurveyWorld, clock: Scalar) -> Vec3:
    """The nearest target not yet found; the ground below if there is none."""
    here = drone.position

    def nearer(best: tuple[Scalar, Vec3], thing: tuple[Target, Array]) -> tuple[Scalar, Vec3]:
        target, bit = thing
        distance, point = best
        position = target.mover.position_at(clock)
        gap = (position - Vec2(here.x, here.y)).norm()
        better: Flag = ((sortie.found & bit) == 0) & (gap < distance)
        return (
            jnp.where(better, gap, distance),
            Vec3(jnp.where(better, position.x, point.x), jnp.where(better, position.y, point.y), point.z),
        )

    start = (jnp.inf + 0.0 * here.x, Vec3(here.x + 1.0, here.y, 0.0 * here.z))
    _, found = fold(nearer, start, (world.targets, target_bits(world)))
    return Vec3(found.x, found.y, world.terrain(found.x, found.y))
