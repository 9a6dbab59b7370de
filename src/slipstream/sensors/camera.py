"""A camera for every agent: color, depth and segmentation of convex shapes in one pass."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt8, UInt32

from ..core.errors import require_choice
from ..core.geometry import Quat, Scalar, Vec3
from ..core.rng import gaussian, mix
from ..core.struct import struct
from .rays import KINDS, Kind, PackedPixels, Rays, illumination, nonzero, pack
from .scene import GROUND, SKY, Color, Ground, Hulls, Light, Scene, Shapes

STRIP_ROWS = 8
"""Most rows of an image that are drawn together on a CPU."""
LANES = 16
"""Pixels in a vector of 512 bits. A loop whose length is not a multiple of it ends pixel by pixel."""
Pixels = Float[Array, "h w"]
Layout = tuple[jax.tree_util.PyTreeDef, list[np.dtype]]
"""How to read a row of a table: the structure of a prepared shape, and the types of its leaves."""
T = TypeVar("T")


@struct
class View:
    """The pose of a camera, which looks along its x axis with z up in the image."""

    position: Vec3
    attitude: Quat
    horizontal_fov: Scalar  # rad
    seed: UInt32[Array, ""]  # of the pixel noise


@struct
class Frame:
    """An image: red, green, blue and label in the bytes of a word, and the depth along the optical axis."""

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
    """width and height of the square image, pixels"""
    interval: int = 4
    """control steps from one image to the next"""

    def __post_init__(self) -> None:
        require_choice("camera kind", self.kind, ("none", "rgb", "depth"))
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
    """A pinhole camera with an image of `width` times `height` pixels."""

    width: int = 80
    height: int = 80

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1:
            raise ValueError("the width and height of an image are at least one pixel")

    @property
    def pixels(self) -> int:
        return self.width * self.height

    def rays(self, view: View) -> Rays:
        axes = view.attitude.axes
        reach = jnp.tan(view.horizontal_fov * 0.5)
        return Rays(view.position, axes.forward, axes.left * -reach, axes.up * (reach * (self.height / self.width)))

    @property
    def strip_rows(self) -> int:
        """Rows of a strip: whole vectors of pixels, and as few rows beyond the image as can be."""
        if jax.default_backend() != "cpu":
            return self.height
        rows = [n for n in range(1, STRIP_ROWS + 1) if n * self.width % LANES == 0] or [STRIP_ROWS]
        return min(rows, key=lambda n: (-self.height % n, -n))

    def grid(self) -> tuple[Float[Array, "1 w"], Float[Array, "h 1"]]:
        """u and v of the pixels' centers, from the upper left."""
        u = (jnp.arange(self.width, dtype=jnp.float32) + 0.5) * (2.0 / self.width) - 1.0
        v = 1.0 - (jnp.arange(self.height, dtype=jnp.float32) + 0.5) * (2.0 / self.height)
        return u[None, :], v[:, None]

    def render(self, scene: Scene, view: View) -> Frame:
        """The image of one camera in one world. Under `vmap`, all cameras and worlds are rendered in one pass."""
        scenes = jax.tree.map(lambda x: jnp.asarray(x)[None], scene)
        views = jax.tree.map(lambda x: jnp.asarray(x)[None, None], view)
        return jax.tree.map(lambda x: x[0, 0], batched_renderer(self)(scenes, views))

    def render_alone(self, scene: Scene, view: View) -> Frame:
        """The image of one camera, strip by strip; each strip draws only the shapes that may be in it."""
        rays = self.rays(view)
        u, v = self.grid()
        groups = [
            ShapeGroup.prepare(kind, getattr(scene, name), scene.light, rays)
            for name, kind in KINDS.items()
            if getattr(scene, name)
        ]
        # A strip and its intermediate results stay in the L1 cache.
        rows = self.strip_rows
        strips = -(-self.height // rows)
        v_strips = jnp.pad(v[:, 0], (0, strips * rows - self.height), mode="edge").reshape(strips, rows, 1)
        if self.width % LANES:
            # All pixels of a strip as one line: whole vectors, where each of its rows would end in single pixels.
            u = jnp.broadcast_to(u, (rows, self.width)).reshape(1, -1)
            v_strips = jnp.broadcast_to(v_strips, (strips, rows, self.width)).reshape(strips, 1, -1)

        def draw_strip(v: Array) -> tuple[Array, Array]:
            s, packed = draw_background(scene, rays, 2.0 / self.width, u, v)
            for group in groups:
                s, packed = group.draw(u, v, s, packed)
            return s, packed

        s, packed = (x.reshape(strips * rows, self.width)[: self.height] for x in jax.lax.map(draw_strip, v_strips))
        return add_haze(scene, view, s, packed)


SIZES = {
    "80x80": Camera(80, 80),
    "128x128": Camera(128, 128),
    "320x240": Camera(320, 240),
    "640x480": Camera(640, 480),
}
"""The first two are meant for training, the others for evaluation."""


@lru_cache
def batched_renderer(camera: Camera) -> Callable[[Scene, View], Frame]:
    """The renderer of all cameras of all worlds: scenes have a worlds axis, views and frames worlds and cameras axes.

    On a CPU the cameras are rendered one after another, each looping over the shapes it sees: under `vmap`, every
    camera would wait for the one that sees most. A `vmap` around the renderer only makes these axes longer.
    """

    @jax.custom_batching.custom_vmap
    def render(scenes: Scene, views: View) -> Frame:
        worlds, cameras = jnp.shape(views.horizontal_fov)
        if jax.default_backend() != "cpu":
            return jax.vmap(jax.vmap(camera.render_alone, in_axes=(None, 0)))(scenes, views)

        def render_index(index: Array) -> Frame:
            scene = jax.tree.map(lambda x: x[index // cameras], scenes)
            view = jax.tree.map(lambda x: x[index // cameras, index % cameras], views)
            return camera.render_alone(scene, view)

        frames = jax.lax.map(render_index, jnp.arange(worlds * cameras))
        return jax.tree.map(lambda x: x.reshape(worlds, cameras, *x.shape[1:]), frames)

    @render.def_vmap
    def render_mapped(size: int, batched: Any, scenes: Scene, views: View) -> tuple[Frame, Any]:
        def broadcast(mapped: T, tree: T) -> T:
            return jax.tree.map(lambda b, x: x if b else jnp.broadcast_to(x, (size, *x.shape)), mapped, tree)

        mapped_scenes, mapped_views = batched
        views = broadcast(mapped_views, views)
        _, worlds, cameras = jnp.shape(views.horizontal_fov)
        if any(jax.tree.leaves(mapped_scenes)):
            longer = jax.tree.map(
                lambda x: x.reshape(size * worlds, *x.shape[2:]), (broadcast(mapped_scenes, scenes), views)
            )
            frames = render(*longer)
            frames = jax.tree.map(lambda x: x.reshape(size, worlds, *x.shape[1:]), frames)
        else:
            wider = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(worlds, size * cameras, *x.shape[3:]), views)
            frames = render(scenes, wider)
            frames = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(worlds, size, cameras, *x.shape[2:]), 1, 0), frames)
        return frames, jax.tree.map(lambda _: True, frames)

    return render


@dataclass(frozen=True)
class ShapeGroup:
    """The shapes of one kind, prepared for one camera."""

    kind: Kind[Any, Any]
    table: Array  # one row a shape
    layout: Layout
    visible: Array  # which shapes may be in the image
    v_low: Array  # bounds of v for each shape
    v_high: Array

    @classmethod
    def prepare(cls, kind: Kind[Any, Any], shapes: Shapes | Hulls, light: Light, rays: Rays) -> "ShapeGroup":
        table, layout = pack_rows(kind.prepare(shapes, light, rays))
        return cls(kind, table, layout, *visible_range(shapes.position, kind.bounding_radius(shapes), rays))

    def draw(self, u: Array, v: Array, s: Pixels, packed: PackedPixels) -> tuple[Pixels, PackedPixels]:
        """The strip with the shapes of this group drawn into it."""
        visible = self.visible & (self.v_low <= v[0, 0]) & (self.v_high >= v[-1, -1])
        for first in range(0, visible.shape[0], 32):
            flags = visible[first : first + 32]
            bits = flags.astype(jnp.uint32) << jnp.arange(flags.shape[0], dtype=jnp.uint32)

            def step(
                carry: tuple[Array, Pixels, PackedPixels], first: int = first
            ) -> tuple[Array, Pixels, PackedPixels]:
                mask, s, packed = carry
                lowest = jax.lax.population_count((mask & (~mask + 1)) - 1).astype(jnp.int32)
                row = jax.lax.dynamic_index_in_dim(self.table, first + lowest, keepdims=False)
                near, color = self.kind.intersect(unpack_row(row, self.layout), u, v)
                nearer = near > s
                return mask & (mask - 1), jnp.where(nearer, near, s), jnp.where(nearer, color, packed)

            mask = jnp.sum(bits, dtype=jnp.uint32)
            _, s, packed = jax.lax.while_loop(lambda carry: carry[0] != 0, step, (mask, s, packed))
        return s, packed


def pack_rows(tree: PyTree) -> tuple[Array, Layout]:
    """A table of 32-bit words with one row a shape, so that one slice fetches a shape."""
    leaves, structure = jax.tree.flatten(tree)
    words = [jax.lax.bitcast_convert_type(leaf, jnp.int32) for leaf in leaves]
    return jnp.stack(jax.lax.optimization_barrier(words), axis=1), (structure, [leaf.dtype for leaf in leaves])


def unpack_row(row: Array, layout: Layout) -> Any:
    """The prepared shape in a row of a table."""
    structure, dtypes = layout
    leaves = [jax.lax.bitcast_convert_type(row[i], dtype) for i, dtype in enumerate(dtypes)]
    return jax.tree.unflatten(structure, leaves)


def visible_range(center: Vec3, radius: Scalar, rays: Rays) -> tuple[Array, Array, Array]:
    """Which spheres may be in the image, and the lowest and highest v of each."""
    offset = center - rays.origin
    ahead = offset.dot(rays.forward)
    square = rays.right.dot(rays.right)
    # Not behind, and not beyond the left or right side.
    slack = radius * jnp.sqrt(square * (1.0 + square))
    visible = jnp.asarray((ahead > -radius) & (jnp.abs(offset.dot(rays.right)) - ahead * square <= slack))
    # The tangents from the camera to a circle in the plane of forward and up.
    length = jnp.sqrt(rays.up.dot(rays.up))
    height = offset.dot(rays.up) / length
    tangent_square = ahead * ahead + height * height - radius * radius
    below = ahead * ahead - radius * radius
    spread = radius * jnp.sqrt(jnp.maximum(tangent_square, 0.0))
    clear = (ahead > radius) & (tangent_square > 0.0)
    scale = 1.0 / (jnp.where(clear, below, 1.0) * length)
    # Slightly wider than exact: no pixel may be lost to rounding.
    low = jnp.where(clear, (ahead * height - spread) * scale - 1e-4, -2.0)
    high = jnp.where(clear, (ahead * height + spread) * scale + 1e-4, 2.0)
    return visible, low, high


# Before and after the shapes


def draw_background(scene: Scene, rays: Rays, pixel: float, u: Array, v: Array) -> tuple[Pixels, PackedPixels]:
    """Ground and sky. `pixel` is the width of one in units of u."""
    up = rays.component(Vec3(0.0, 0.0, 1.0)).at(u, v)
    length = jnp.sqrt(1.0 + rays.right.dot(rays.right) * u * u + rays.up.dot(rays.up) * v * v)
    sky = scene.horizon.blend(scene.zenith, jnp.clip(up / length, 0.0, 1.0))
    ground = scene.ground
    if ground is None:
        return jnp.zeros_like(up), pack(sky, SKY)
    s = jnp.maximum(up * (-1.0 / nonzero(rays.origin.z - ground.height)), 0.0)
    below_horizon = s > 0.0
    t = 1.0 / jnp.maximum(s, 1e-9)
    color = checkerboard(ground, rays, pixel, u, v, t)
    lit = color * illumination(scene.light, scene.light.towards_sun.z)
    drawn = Color(*(jnp.where(below_horizon, a, b) for a, b in zip(lit.parts, sky.parts, strict=True)))
    return s, pack(drawn, jnp.where(below_horizon, GROUND, SKY))


def checkerboard(ground: Ground, rays: Rays, pixel: float, u: Array, v: Array, t: Pixels) -> Color:
    """Tiles of two alternating colors, faded to their mean where tiles are smaller than a pixel."""
    x, y = (
        (start + rays.component(axis).at(u, v) * t) / ground.tile
        for start, axis in ((rays.origin.x, Vec3(1.0, 0.0, 0.0)), (rays.origin.y, Vec3(0.0, 1.0, 0.0)))
    )
    odd = jnp.floor(x) + jnp.floor(y)
    odd = odd - 2.0 * jnp.floor(odd * 0.5)
    width = t * pixel / ground.tile
    contrast = 1.0 / (1.0 + 4.0 * width * width)
    return ground.color.blend(ground.other_color, 0.5 + (odd - 0.5) * contrast)


def add_haze(scene: Scene, view: View, s: Pixels, packed: PackedPixels) -> Frame:
    """The frame, with haze in the distance and pixel noise."""
    clarity = s * s / (s * s + 1.0 / (scene.visibility * scene.visibility))
    clarity = jnp.where(s > 0.0, clarity, 1.0)
    pixel = jnp.arange(s.size, dtype=jnp.uint32).reshape(s.shape)
    noise = gaussian(mix(mix(pixel + view.seed) ^ view.seed)) * scene.pixel_noise
    drawn = Color(
        *(((packed >> shift) & 0xFF).astype(jnp.int32).astype(jnp.float32) * (1.0 / 255.0) for shift in (0, 8, 16))
    )
    hazy = Color(*(part + noise for part in scene.horizon.blend(drawn, clarity).parts))
    return Frame(pack(hazy, (packed >> 24).astype(jnp.int32)), 1.0 / s)
