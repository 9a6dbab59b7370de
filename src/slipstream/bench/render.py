"""Cameras alone: color, depth and segmentation of one scene by many cameras."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..core import device
from ..core.geometry import Quat, Vec3
from ..sensors.camera import Camera, View
from ..sensors.scene import Color, Ground, Scene, daylight, shapes
from .timing import REPEATS, timed


def arena(count: int, cameras: int) -> tuple[Scene, View]:
    """A scene of so many shapes, three quarters of them boxes, and cameras around it that look inward, tilted."""
    rng = np.random.default_rng(0)

    def rows(number: int, low: float, high: float) -> list[dict[str, Any]]:
        turns = rng.normal(size=(number, 4))
        return [
            {
                "position": (*rng.uniform(-10.0, 10.0, 2), rng.uniform(0.0, 4.0)),
                "size": rng.uniform(low, high, 3),
                "color": rng.uniform(0.2, 1.0, 3),
                "label": k,
                "attitude": turn / np.linalg.norm(turn),
            }
            for k, turn in enumerate(turns)
        ]

    each = max(count // 8, 1)
    green = Ground(jnp.float32(0.0), jnp.float32(1.0), Color(0.3, 0.5, 0.3), Color(0.4, 0.6, 0.4))
    scene = Scene(
        **daylight(),
        ground=jax.tree.map(jnp.float32, green),
        boxes=shapes(rows(max(count - 2 * each, 1), 0.1, 1.0)),
        ellipsoids=shapes(rows(each, 0.5, 1.0)),
        cylinders=shapes(rows(each, 0.5, 1.0)),
    )
    yaw, height, roll, pitch = (
        jnp.asarray(rng.uniform(low, high, cameras), jnp.float32)
        for low, high in ((-np.pi, np.pi), (1.0, 5.0), (-0.4, 0.4), (0.0, 0.3))
    )
    place = Vec3(-12.0 * jnp.cos(yaw), -12.0 * jnp.sin(yaw), height)
    turn = jax.vmap(Quat.from_euler)(roll, pitch, yaw)
    return scene, View(place, turn, jnp.full(cameras, np.pi / 2, jnp.float32), jnp.arange(cameras, dtype=jnp.uint32))


def render(cameras: int, width: int, height: int, count: int) -> dict[str, Any]:
    """Colour, depth and segmentation of a scene by all cameras."""
    mesh = device.mesh()
    if cameras % mesh.size:
        raise ValueError(f"{cameras} cameras do not divide over {mesh.size} devices")
    scene, views = arena(count, cameras)
    camera = Camera(width, height)
    split = PartitionSpec(device.AXIS)
    take = jax.vmap(camera.render, in_axes=(None, 0))
    mapped = jax.shard_map(take, mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=split, check_vma=False)
    began = time.perf_counter()
    program = jax.jit(mapped).lower(scene, views).compile()
    compiling = time.perf_counter() - began
    scene = jax.device_put(scene, NamedSharding(mesh, PartitionSpec()))
    views = jax.device_put(views, NamedSharding(mesh, split))
    jax.block_until_ready(program(scene, views))
    wall, cpu = timed(lambda: program(scene, views), 6 * REPEATS)
    pixels = cameras * camera.pixels
    plan: Any = program.memory_analysis()
    return {
        "cameras": cameras,
        "width": width,
        "height": height,
        "shapes": count,
        "devices": mesh.size,
        "megapixels_per_second": round(pixels / wall / 1e6, 1),
        "megapixels_per_cpu_second": round(pixels / cpu / 1e6, 1),
        "frames_per_second": round(cameras / wall),
        "compile_seconds": round(compiling, 2),
        "memory_mb": round((plan.output_size_in_bytes + plan.temp_size_in_bytes) / 1e6, 2),
    }
