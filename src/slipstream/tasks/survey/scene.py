"""What cameras see of a survey world."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from ...core.geometry import Quat, Scalar, Vec3
from ...dynamics.velocity_drone import Gimbal, VelocityDroneState
from ...sensors.camera import View
from ...sensors.detection import Lens
from ...sensors.scene import Color, Ground, Light, Scene, Shapes
from .world import PERSON, VEHICLE, SurveyWorld

BUILDING, TREE, WALKER, PAD, TARGET, DRONE, HILL = 10, 40, 80, 90, 100, 150, 200
"""First segmentation label of each kind of object; the objects of a kind are numbered from there."""


def survey_scene(world: SurveyWorld, clock: Scalar, drones: Vec3, bright: bool = False) -> Scene:
    """The world at that time with the drones over it. `bright` targets are larger and all of one signal color."""
    static = static_scene(world)
    targets = world.targets
    position = jax.vmap(lambda mover: mover.position_at(clock))(targets.mover)
    ground = jax.vmap(world.terrain)(position.x, position.y)
    size = targets.size
    person, vehicle = targets.kind == PERSON, targets.kind == VEHICLE
    by_kind = Color(
        jnp.where(vehicle, 0.15, 0.9), jnp.where(person, 0.35, 0.3), jnp.where(person | vehicle, 0.8, 0.1)
    )  # fmt: skip
    color = Color(0.95, 0.08, 0.05) if bright else by_kind
    tall = 0.35 * size if not bright else 0.5 * size + 1.0
    wide = 0.5 * size if not bright else 0.5 * size + 1.5
    marks = shapes(Vec3(position.x, position.y, ground + tall), Vec3(wide, 0.6 * wide, tall), color, TARGET)
    pads = world.pads
    base = jax.vmap(world.terrain)(pads.x, pads.y)
    slabs = shapes(
        Vec3(pads.x, pads.y, base),
        Vec3(2.0 + 0.0 * base, 2.0 + 0.0 * base, 0.15 + 0.0 * base),
        Color(0.9, 0.9, 0.95),
        PAD,
    )
    walk = jax.vmap(lambda mover: mover.position_at(clock))(world.people)
    feet = jax.vmap(world.terrain)(walk.x, walk.y)
    people = shapes(
        Vec3(walk.x, walk.y, feet + 0.9),
        Vec3(0.3 + 0.0 * feet, 0.0 * feet, 0.6 + 0.0 * feet),
        Color(0.95, 0.8, 0.2),
        WALKER,
    )
    fleet = shapes(
        drones, Vec3(0.5 + 0.0 * drones.x, 0.5 + 0.0 * drones.x, 0.15 + 0.0 * drones.x), Color(0.1, 0.1, 0.12), DRONE
    )
    return replace(
        static,
        boxes=concatenate(static.boxes, marks, slabs),
        ellipsoids=concatenate(static.ellipsoids, fleet),
        capsules=people,
    )


def static_scene(world: SurveyWorld) -> Scene:
    """What does not move: hills, buildings and trees, with the world's light."""
    weather = world.weather
    green, dry = Color(0.30, 0.42, 0.22), Color(0.55, 0.50, 0.34)
    soil = green.blend(dry, weather.tint)
    b = world.buildings
    half = 0.5 * b.height
    heading = Quat(
        jnp.sqrt(0.5 * (1.0 + b.cos)), 0.0 * b.cos, 0.0 * b.cos, jnp.sqrt(jnp.maximum(0.5 * (1.0 - b.cos), 0.0))
    )
    buildings = shapes(
        Vec3(b.center.x, b.center.y, half), Vec3(b.half.x, b.half.y, half), Color(0.62, 0.58, 0.55), BUILDING, heading
    )
    trees = world.trees
    root = jax.vmap(world.terrain)(trees.position.x, trees.position.y)
    crowns = shapes(
        Vec3(trees.position.x, trees.position.y, root + trees.height - trees.crown),
        Vec3(trees.crown, trees.crown, 1.2 * trees.crown), Color(0.16, 0.34, 0.14), TREE,
    )  # fmt: skip
    trunks = shapes(
        Vec3(trees.position.x, trees.position.y, root + 0.4 * trees.height),
        Vec3(0.3 + 0.0 * root, 0.0 * root, 0.4 * trees.height), Color(0.35, 0.25, 0.18), TREE,
    )  # fmt: skip
    hills = world.hills
    caps = shapes(hills.center, Vec3(hills.radius, hills.radius, hills.radius), soil * 0.95, HILL)
    level = jnp.maximum(weather.sun.z, 0.2)
    return Scene(
        light=Light(weather.sun, 0.4 + 0.3 * level, 0.35 + 0.05 * level),
        horizon=jax.tree.map(jnp.float32, Color(0.78, 0.85, 0.92)),
        zenith=jax.tree.map(jnp.float32, Color(0.35, 0.55, 0.85)),
        visibility=weather.haze,
        pixel_noise=weather.grain,
        ground=Ground(jnp.float32(0.0), jnp.float32(25.0), soil, soil * 0.85),
        boxes=buildings,
        ellipsoids=concatenate(caps, crowns),
        cylinders=trunks,
    )


def shapes(position: Vec3, size: Vec3, color: Color, label: int, attitude: Quat | None = None) -> Shapes:
    """Shapes of one kind of object, labeled from `label` on."""
    zeros = jnp.zeros_like(position.x)
    level = Quat(zeros + 1.0, zeros, zeros, zeros) if attitude is None else attitude
    position, level, size, color = jax.tree.map(lambda x: zeros + x, (position, level, size, color))
    return Shapes(position, level, size, color, label + jnp.arange(zeros.shape[0], dtype=jnp.int32))


def concatenate(*kinds: Shapes | None) -> Shapes:
    """All shapes along one axis."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *(kind for kind in kinds if kind is not None))


def drone_camera(drone: VelocityDroneState, gimbal: Gimbal, seed: UInt32[Array, ""]) -> View:
    """The view of the camera under a drone: 0.1 m ahead and 0.05 m below its center, stabilized by the gimbal."""
    attitude = gimbal.attitude(drone.yaw)
    forward = attitude.forward
    eye = drone.position + Vec3(0.1 * forward.x, 0.1 * forward.y, jnp.float32(-0.05))
    return View(eye, attitude, jnp.float32(Lens().horizontal_fov), seed)
