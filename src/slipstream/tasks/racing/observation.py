"""The observation of a racing drone: the next gates in its body frame, or a camera image."""

import math
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from ...core.geometry import Scalar, Vec3, sin_cos
from ...core.task import PackedImage, stack_features
from ...dynamics.quadrotor import QuadrotorState
from ...sensors.camera import Camera
from .scene import nose_camera, race_scene
from .state import RaceProgress, RaceState
from .track import Gate, gate_at

if TYPE_CHECKING:
    from .task import Racing

STATE_SIZE, CAMERA_SIZE, ISAAC_SIZE, OTHER_SIZE = 26, 15, 20, 6
"""Features with known gates, with a camera, as in isaac_drone_racer, and of the nearest other drone."""


def observe(task: "Racing", state: RaceState) -> Float[Array, "*agents features"]:
    """The features of each drone, scaled to about one."""
    read = partial(features, task, gates=task.course.gates(state.world.gates))
    if task.agents == 1:
        drone = task.sensor_noise.measure(state.body, state.rng.fork(0x0B5E), state.world.sensor_bias)
        return stack_features(read(drone, state.progress))
    rngs = jax.vmap(state.rng.fork)(jnp.arange(task.agents))
    measure = partial(task.sensor_noise.measure, bias=state.world.sensor_bias)
    drones = jax.vmap(lambda drone, rng: measure(drone, rng.fork(0x0B5E)))(state.body, rngs)
    own = jax.vmap(lambda drone, race: stack_features(read(drone, race)))(drones, state.progress)
    return jnp.concatenate([own, nearest_drone(task, state)], axis=-1)


def features(task: "Racing", drone: QuadrotorState, race: RaceProgress, gates: tuple[Gate, ...]) -> list[Scalar]:
    """The features of one drone, without other drones."""
    axes = drone.attitude.axes
    into = axes.unrotate
    if task.camera.on:
        sin, cos = sin_cos(race.next_gate.astype(jnp.float32) * (2.0 * math.pi / len(gates)))
        return [
            *(into(drone.velocity) * 0.1).parts, *axes.down_b.parts, *(drone.rates * 0.1).parts,
            sin, cos, *race.recent_commands[0].parts,
        ]  # fmt: skip
    goal = gate_at(gates, race.next_gate)
    if task.observation == "isaac_drone_racer":
        q, p = drone.attitude, drone.position
        ahead = into(goal.center - p)
        return [
            *(p * 0.1).parts, q.w, q.x, q.y, q.z, *(into(drone.velocity) * 0.1).parts,
            *(drone.rates * 0.1).parts, *(ahead * 0.1).parts, *race.recent_commands[0].parts,
        ]  # fmt: skip
    following = gate_at(gates, jnp.where(race.next_gate + 1 == len(gates), 0, race.next_gate + 1))
    return [
        *(into(drone.velocity) * 0.1).parts,
        *axes.down_b.parts,
        *(drone.rates * 0.1).parts,
        *(into(goal.center - drone.position) * 0.1).parts,
        *into(goal.normal).parts,
        *(into(following.center - drone.position) * 0.1).parts,
        *into(following.normal).parts,
        # Height matters near the ground; far up it should not drown the rest.
        jnp.minimum(drone.position.z, 4.0) * 0.5,
        *race.recent_commands[0].parts,
    ]


def nearest_drone(task: "Racing", state: RaceState) -> Float[Array, "agents 6"]:
    """Position and velocity of the nearest other drone still flying, relative and in the body frame; else zero."""
    p, v, flying = state.body.position, state.body.velocity, state.present
    gaps = [-jnp.subtract.outer(part, part) for part in (*p.parts, *v.parts)]
    distance = sum(gap**2 for gap in gaps[:3])
    distance = jnp.where(flying[None, :] & ~jnp.eye(task.agents, dtype=bool), distance, jnp.inf)
    nearest = jnp.argmin(distance, axis=1)
    own = jnp.arange(task.agents)
    there = jnp.isfinite(distance[own, nearest])
    x, y, z, vx, vy, vz = (jnp.where(there, gap[own, nearest], 0.0) * 0.1 for gap in gaps)
    into = state.body.attitude.unrotate
    return jnp.stack([*into(Vec3(x, y, z)).parts, *into(Vec3(vx, vy, vz)).parts], axis=-1)


def image(task: "Racing", state: RaceState) -> PackedImage:
    """The image of the nose camera: colors, or inverse depth in one channel."""
    scene = race_scene(task.course.gates(state.world.gates))
    seed = state.rng.stream + state.step.astype(jnp.uint32)
    view = nose_camera(state.body.position, state.body.attitude, seed)
    frame = Camera(task.camera.resolution, task.camera.resolution).render(scene, view)
    return frame.packed & 0xFFFFFF if task.camera.kind == "rgb" else inverse_depth(frame.depth)


def inverse_depth(depth: Float[Array, "h w"]) -> UInt8[Array, "h w"]:
    """Depth as a byte: 255 at the lens, half of it at five meters, 0 in the sky."""
    return (255.0 * 5.0 / (5.0 + jnp.minimum(depth, 1e6))).astype(jnp.uint8)
