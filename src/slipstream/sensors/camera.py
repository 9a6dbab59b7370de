"""A camera for every agent: colour, depth and segmentation of convex shapes in one pass."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8, UInt32

from ..core.errors import require_choice
from ..core.geometry import Quat, Scalar, Vec3
from ..core.rng import gaussian, mix
from ..core.struct import struct
from .rays import KINDS, Kind, PackedWords, Rays, apart, lit, pack
from .scene import GROUND, SKY, Ground, Light, Scene

STRIP = 8  # lines of a picture that are painted together on a CPU
Pixels = Float[Array, "h w"]


@struct
class View:
    """Where a camera is and where it looks: along its x axis, with z up in the picture."""

    position: Vec3
    attitude: Quat
    field: Scalar  # horizontal field of view, rad
    seed: UInt32[Array, ""]  # of the noise in the picture


@struct
class Frame:
    """A picture: red, green, blue and label in the bytes of a word, and the depth along the view."""

    packed: UInt32[Array, "*b h w"]
    depth: Float[Array, "*b h w"]  # m; infinite where there is sky

    @property
    def bytes(self) -> UInt8[Array, "*b h w 4"]:
        return jax.lax.bitcast_convert_type(self.packed, jnp.uint8)

    @property
    def rgb(self) -> UInt8[Array, "*b h w 3"]:
        return self.bytes[..., :3]

    @property
    def label(self) -> UInt8[Array, "*b h w"]:
        return (self.packed >> 24).astype(jnp.uint8)


@dataclass(frozen=True)
class CameraSettings:
    """The camera of an agent."""

    kind: Literal["none", "rgb", "depth"] = "none"
    """no camera, color images, or depth images"""
    resolution: int = 80
    """edge of the square image, pixels"""
    interval: int = 4
    """steps from one image to the next"""

    def __post_init__(self) -> None:
        require_choice("kind of camera", self.kind, ("none", "rgb", "depth"))
        if self.interval < 1 or self.resolution < 8:
            raise ValueError("a camera needs an interval of at least 1 and a resolution of at least 8")

    @property
    def on(self) -> bool:
        return self.kind != "none"

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels."""
        return (self.resolution, self.resolution, 3 if self.kind == "rgb" else 1) if self.on else None


@dataclass(frozen=True)
class Camera:
    """A pinhole camera of so many pixels."""

    width: int = 80
    height: int = 80

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1:
            raise ValueError("a picture has at least one pixel each way")

    @property
    def pixels(self) -> int:
        return self.width * self.height

    def rays(self, view: View) -> Rays:
        axes = view.attitude.axes
        reach = jnp.tan(view.field * 0.5)
        return Rays(view.position, axes.forward, axes.left * -reach, axes.up * (reach * (self.height / self.width)))

    def grid(self) -> tuple[Float[Array, "1 w"], Float[Array, "h 1"]]:
        """u and v of the pixels' centres, from the upper left."""
        u = (jnp.arange(self.width, dtype=jnp.float32) + 0.5) * (2.0 / self.width) - 1.0
        v = 1.0 - (jnp.arange(self.height, dtype=jnp.float32) + 0.5) * (2.0 / self.height)
        return u[None, :], v[:, None]

    def render(self, scene: Scene, view: View) -> Frame:
        """The picture of one camera in one world; mapped over cameras and worlds, all in one pass."""
        scenes = jax.tree.map(lambda x: jnp.asarray(x)[None], scene)
        views = jax.tree.map(lambda x: jnp.asarray(x)[None, None], view)
        return jax.tree.map(lambda x: x[0, 0], renderer(self)(scenes, views))

    def image(self, scene: Scene, view: View) -> Frame:
        """The same for one camera alone: strip after strip, and in each shape after shape that may be in it."""
        rays = self.rays(view)
        u, v = self.grid()
        groups = [
            Group.of(kind, getattr(scene, name), scene.light, rays)
            for name, kind in KINDS.items()
            if getattr(scene, name)
        ]
        # A strip and what is computed for it stay in the nearest cache.
        rows = STRIP if jax.default_backend() == "cpu" else self.height
        strips = -(-self.height // rows)
        lines = jnp.pad(v[:, 0], (0, strips * rows - self.height), mode="edge").reshape(strips, rows, 1)

        def strip(v: Array) -> tuple[Array, Array]:
            s, word = backdrop(scene, rays, u, v)
            for group in groups:
                s, word = group.painted(u, v, s, word)
            return s, word

        s, word = (x.reshape(strips * rows, self.width)[: self.height] for x in jax.lax.map(strip, lines))
        return finish(scene, view, s, word)


SIZES = {
    "80x80": Camera(80, 80),
    "128x128": Camera(128, 128),
    "320x240": Camera(320, 240),
    "640x480": Camera(640, 480),
}
"""The first two are meant for training, the others for evaluation."""


@lru_cache
def renderer(camera: Camera) -> Callable[[Scene, View], Frame]:
    """All cameras of all worlds: scenes have an axis of worlds, views and frames axes of worlds and cameras.

    On a CPU they are rendered one after the other, each passing over the shapes it sees: mapped by `vmap`, every
    camera would wait for the one that sees most. Whatever `vmap` stands outside only makes these axes longer.
    """

    @jax.custom_batching.custom_vmap
    def many(scenes: Scene, views: View) -> Frame:
        worlds, cameras = views.field.shape
        if jax.default_backend() != "cpu":
            return jax.vmap(jax.vmap(camera.image, in_axes=(None, 0)))(scenes, views)

        def one(index: Array) -> Frame:
            scene = jax.tree.map(lambda x: x[index // cameras], scenes)
            view = jax.tree.map(lambda x: x[index // cameras, index % cameras], views)
            return camera.image(scene, view)

        frames = jax.lax.map(one, jnp.arange(worlds * cameras))
        return jax.tree.map(lambda x: x.reshape(worlds, cameras, *x.shape[1:]), frames)

    @many.def_vmap
    def longer(size: int, batched: Any, scenes: Scene, views: View) -> tuple[Frame, Any]:
        def along(mapped: Any, tree: Any) -> Any:
            return jax.tree.map(lambda b, x: x if b else jnp.broadcast_to(x, (size, *x.shape)), mapped, tree)

        mapped_scenes, mapped_views = batched
        views = along(mapped_views, views)
        _, worlds, cameras = views.field.shape
        if any(jax.tree.leaves(mapped_scenes)):
            join = jax.tree.map(lambda x: x.reshape(size * worlds, *x.shape[2:]), (along(mapped_scenes, scenes), views))
            frames = many(*join)
            frames = jax.tree.map(lambda x: x.reshape(size, worlds, *x.shape[1:]), frames)
        else:
            side = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(worlds, size * cameras, *x.shape[3:]), views)
            frames = many(scenes, side)
            frames = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(worlds, size, cameras, *x.shape[2:]), 1, 0), frames)
        return frames, jax.tree.map(lambda _: True, frames)

    return many


@dataclass(frozen=True)
class Group:
    """The shapes of one kind, ready to be painted by one camera."""

    kind: Kind
    table: Array
    layout: tuple[Any, list[Any]]
    ahead: Array  # which may be in the picture at all
    low: Array  # the lowest v each may reach
    high: Array

    @classmethod
    def of(cls, kind: Kind, some: Any, light: Light, rays: Rays) -> "Group":
        table, layout = packed_rows(kind.prepare(some, light, rays))
        return cls(kind, table, layout, *in_view(some.position, kind.reach(some), rays))

    def painted(self, u: Array, v: Array, s: Pixels, word: PackedWords) -> tuple[Pixels, PackedWords]:
        """The strip with those shapes in it that are in view."""
        visible = self.ahead & (self.low <= v[0, 0]) & (self.high >= v[-1, 0])
        for first in range(0, visible.shape[0], 32):
            flags = visible[first : first + 32]
            bits = flags.astype(jnp.uint32) << jnp.arange(flags.shape[0], dtype=jnp.uint32)

            def step(carry: tuple[Array, Pixels, PackedWords], first: int = first) -> tuple[Array, Pixels, PackedWords]:
                mask, s, word = carry
                lowest = jax.lax.population_count((mask & (~mask + 1)) - 1).astype(jnp.int32)
                row = jax.lax.dynamic_index_in_dim(self.table, first + lowest, keepdims=False)
                near, color = self.kind.hit(unpacked_row(row, self.layout), u, v)
                nearer = near > s
                return mask & (mask - 1), jnp.where(nearer, near, s), jnp.where(nearer, color, word)

            mask = jnp.sum(bits, dtype=jnp.uint32)
            _, s, word = jax.lax.while_loop(lambda carry: carry[0] != 0, step, (mask, s, word))
        return s, word


def packed_rows(tree: Any) -> tuple[Array, tuple[Any, list[Any]]]:
    """A table with a row a shape, all as 32-bit words, so that one slice fetches a shape."""
    leaves, structure = jax.tree.flatten(tree)
    words = [jax.lax.bitcast_convert_type(leaf, jnp.int32) for leaf in leaves]
    return jnp.stack(jax.lax.optimization_barrier(words), axis=1), (structure, [leaf.dtype for leaf in leaves])


def unpacked_row(row: Array, shape: tuple[Any, list[Any]]) -> Any:
    structure, kinds = shape
    leaves = [jax.lax.bitcast_convert_type(row[i], kind) for i, kind in enumerate(kinds)]
    return jax.tree.unflatten(structure, leaves)


def in_view(center: Vec3, reach: Scalar, rays: Rays) -> tuple[Array, Array, Array]:
    """Which balls may be in the picture, and between which v."""
    offset = center - rays.origin
    ahead = offset.dot(rays.forward)
    square = rays.right.dot(rays.right)
    # Not behind, and not beyond the left or right side.
    slack = reach * jnp.sqrt(square * (1.0 + square))
    visible = (ahead > -reach) & (jnp.abs(offset.dot(rays.right)) - ahead * square <= slack)
    # The tangents from the camera to a circle in the plane of forward and up.
    length = jnp.sqrt(rays.up.dot(rays.up))
    height = offset.dot(rays.up) / length
    room = ahead * ahead + height * height - reach * reach
    below = ahead * ahead - reach * reach
    spread = reach * jnp.sqrt(jnp.maximum(room, 0.0))
    clear = (ahead > reach) & (room > 0.0)
    scale = 1.0 / (jnp.where(clear, below, 1.0) * length)
    # A hair wider than it is: no pixel may be lost to rounding.
    low = jnp.where(clear, (ahead * height - spread) * scale - 1e-4, -2.0)
    high = jnp.where(clear, (ahead * height + spread) * scale + 1e-4, 2.0)
    return visible, low, high


# Before and after the shapes


def backdrop(scene: Scene, rays: Rays, u: Array, v: Array) -> tuple[Pixels, PackedWords]:
    """Ground and sky."""
    up = rays.along(Vec3(0.0, 0.0, 1.0)).at(u, v)
    length = jnp.sqrt(1.0 + rays.right.dot(rays.right) * u * u + rays.up.dot(rays.up) * v * v)
    rise = jnp.clip(up / length, 0.0, 1.0)
    sky = [low + (high - low) * rise for low, high in zip(scene.horizon.parts, scene.zenith.parts, strict=True)]
    ground = scene.ground
    if ground is None:
        return jnp.zeros_like(up), pack(*sky, SKY)
    s = jnp.maximum(up * (-1.0 / apart(rays.origin.z - ground.height)), 0.0)
    seen = s > 0.0
    t = 1.0 / jnp.maximum(s, 1e-9)
    color = tiles(ground, rays, u, v, t)
    bright = lit(scene.light, scene.light.towards_sun.z)
    mixed = [jnp.where(seen, part * bright, other) for part, other in zip(color, sky, strict=True)]
    return s, pack(*mixed, jnp.where(seen, GROUND, SKY))


def tiles(ground: Ground, rays: Rays, u: Array, v: Array, t: Pixels) -> list[Pixels]:
    """Two colours in turn; where tiles become smaller than a pixel, their mean."""
    x, y = (
        (start + rays.along(axis).at(u, v) * t) / ground.tile
        for start, axis in ((rays.origin.x, Vec3(1.0, 0.0, 0.0)), (rays.origin.y, Vec3(0.0, 1.0, 0.0)))
    )
    odd = jnp.floor(x) + jnp.floor(y)
    odd = odd - 2.0 * jnp.floor(odd * 0.5)
    width = t * (2.0 / u.shape[1]) / ground.tile
    contrast = 1.0 / (1.0 + 4.0 * width * width)
    share = 0.5 + (odd - 0.5) * contrast
    return [a + (b - a) * share for a, b in zip(ground.color.parts, ground.other.parts, strict=True)]


def finish(scene: Scene, view: View, s: Pixels, word: PackedWords) -> Frame:
    """Haze in the distance and grain, then the frame."""
    clear = s * s / (s * s + 1.0 / (scene.sight * scene.sight))
    clear = jnp.where(s > 0.0, clear, 1.0)
    pixel = jnp.arange(s.size, dtype=jnp.uint32).reshape(s.shape)
    noise = gaussian(mix(mix(pixel + view.seed) ^ view.seed)) * scene.grain
    colors = []
    for shift, haze in zip((0, 8, 16), scene.horizon.parts, strict=True):
        part = ((word >> shift) & 0xFF).astype(jnp.int32).astype(jnp.float32) * (1.0 / 255.0)
        colors.append(haze + (part - haze) * clear + noise)
    return Frame(pack(*colors, (word >> 24).astype(jnp.int32)), 1.0 / s)
