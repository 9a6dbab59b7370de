"""What a camera over the country sees."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...core.geometry import Quat, Scalar, Vec3
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from ...sensors.camera import View
from ...sensors.detection import Lens
from ...sensors.scene import Color, Ground, Light, Scene, Shapes
from .world import PERSON, VEHICLE, SurveyWorld

HILL, BUILDING, TREE, MAN, PAD, DRONE, TARGET = 200, 10, 40, 80, 90, 150, 100
"""The first label of each kind; of targets, each has its own."""


def survey_scene(country: SurveyWorld, clock: Scalar, drones: Vec3, bright: bool = False) -> Scene:
    """The country at that time, with the drones over it. `bright` targets are all of one signal colour."""
    fixed = standing(country)
    targets = country.targets
    at = jax.vmap(lambda mover: mover.at(clock))(targets.mover)
    height = jax.vmap(country.terrain)(at.x, at.y)
    size = targets.size
    signal = Color(0.95, 0.08, 0.05)
    person, vehicle = targets.kind == PERSON, targets.kind == VEHICLE
    plain = Color(
        jnp.where(vehicle, 0.15, 0.9), jnp.where(person, 0.35, 0.3), jnp.where(person | vehicle, 0.8, 0.1)
    )  # fmt: skip
    kinds = signal if bright else plain
    tall = 0.35 * size if not bright else 0.5 * size + 1.0
    wide = 0.5 * size if not bright else 0.5 * size + 1.5
    marks = alike(Vec3(at.x, at.y, height + tall), Vec3(wide, 0.6 * wide, tall), kinds, TARGET)
    pads = country.pads
    flat = jax.vmap(country.terrain)(pads.x, pads.y)
    slabs = alike(
        Vec3(pads.x, pads.y, flat),
        Vec3(2.0 + 0.0 * flat, 2.0 + 0.0 * flat, 0.15 + 0.0 * flat),
        Color(0.9, 0.9, 0.95),
        PAD,
    )
    walk = jax.vmap(lambda mover: mover.at(clock))(country.people)
    feet = jax.vmap(country.terrain)(walk.x, walk.y)
    men = alike(
        Vec3(walk.x, walk.y, feet + 0.9),
        Vec3(0.3 + 0.0 * feet, 0.0 * feet, 0.6 + 0.0 * feet),
        Color(0.95, 0.8, 0.2),
        MAN,
    )
    fleet = alike(
        drones, Vec3(0.5 + 0.0 * drones.x, 0.5 + 0.0 * drones.x, 0.15 + 0.0 * drones.x), Color(0.1, 0.1, 0.12), DRONE
    )
    return replace(
        fixed,
        boxes=stack_features(fixed.boxes, marks, slabs),
        ellipsoids=stack_features(fixed.ellipsoids, fleet),
        capsules=men,
    )


def standing(country: SurveyWorld) -> Scene:
    """What stands in a country whatever happens: hills, buildings and trees, in its light."""
    weather = country.weather
    green, dry = Color(0.30, 0.42, 0.22), Color(0.55, 0.50, 0.34)
    soil = mixed(green, dry, weather.tint)
    b = country.buildings
    half = 0.5 * b.height
    turn = Quat(
        jnp.sqrt(0.5 * (1.0 + b.cos)), 0.0 * b.cos, 0.0 * b.cos, jnp.sqrt(jnp.maximum(0.5 * (1.0 - b.cos), 0.0))
    )
    houses = alike(
        Vec3(b.center.x, b.center.y, half), Vec3(b.half.x, b.half.y, half), Color(0.62, 0.58, 0.55), BUILDING, turn
    )
    trees = country.trees
    root = jax.vmap(country.terrain)(trees.place.x, trees.place.y)
    crown = alike(
        Vec3(trees.place.x, trees.place.y, root + trees.height - trees.crown),
        Vec3(trees.crown, trees.crown, 1.2 * trees.crown), Color(0.16, 0.34, 0.14), TREE,
    )  # fmt: skip
    trunk = alike(
        Vec3(trees.place.x, trees.place.y, root + 0.4 * trees.height),
        Vec3(0.3 + 0.0 * root, 0.0 * root, 0.4 * trees.height), Color(0.35, 0.25, 0.18), TREE,
    )  # fmt: skip
    hills = country.hills
    knolls = alike(hills.center, Vec3(hills.radius, hills.radius, hills.radius), dimmed(soil, 0.95), HILL)
    level = jnp.maximum(weather.sun.z, 0.2)
    return Scene(
        light=Light(weather.sun, 0.4 + 0.3 * level, 0.35 + 0.05 * level),
        horizon=jax.tree.map(jnp.float32, Color(0.78, 0.85, 0.92)),
        zenith=jax.tree.map(jnp.float32, Color(0.35, 0.55, 0.85)),
        visibility=weather.haze,
        pixel_noise=weather.grain,
        ground=Ground(jnp.float32(0.0), jnp.float32(25.0), soil, dimmed(soil, 0.85)),
        boxes=houses,
        ellipsoids=stack_features(knolls, crown),
        cylinders=trunk,
    )


def alike(position: Vec3, size: Vec3, color: Color, label: int, turn: Quat | None = None) -> Shapes:
    """Shapes of one kind of thing, numbered from `label`."""
    like = jnp.zeros_like(position.x)
    turn = Quat(like + 1.0, like, like, like) if turn is None else turn
    count = like.shape[0]
    spread = jax.tree.map(lambda x: like + x, (position, turn, size, color))
    return Shapes(*spread, label + jnp.arange(count, dtype=jnp.int32))


def stack_features(*kinds: Shapes | None) -> Shapes:
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *(kind for kind in kinds if kind is not None))


def mixed(a: Color, b: Color, share: Scalar) -> Color:
    return Color(*(x + (y - x) * share for x, y in zip(a.parts, b.parts, strict=True)))


def dimmed(color: Color, factor: float) -> Color:
    return Color(*(part * factor for part in color.parts))


def look_of(drone: VelocityDroneState, gimbal: Gimbal, seed: Array) -> View:
    """The camera under a drone: 0.1 m ahead of it and 0.05 m below, kept level by its gimbal."""
    attitude = gimbal.attitude(drone.yaw)
    ahead = attitude.forward
    eye = drone.position + Vec3(0.1 * ahead.x, 0.1 * ahead.y, jnp.float32(-0.05))
    return View(eye, attitude, jnp.float32(Lens().width), seed)
