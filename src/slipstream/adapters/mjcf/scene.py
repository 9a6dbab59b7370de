"""What cameras see of a robot: the geoms of its model as our shapes.

Boxes, spheres, ellipsoids, cylinders and capsules are exact, a horizontal plane is the ground, a mesh is its convex
hull with a bounded number of faces. Colors are those of geoms and materials; textures are not drawn.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ...core.geometry import Quat, Vec3
from ...sensors.camera import View
from ...sensors.scene import Color, Ground, Hulls, Plane, Scene, Shapes, daylight
from .model import Model, load_mujoco
from .robot import Part, Robot

FACES = 24
"""Most faces of the hull of a mesh."""
HIDDEN = 3
"""Geoms of this group and above are not drawn, as in MuJoCo's viewer: by custom they are for collisions."""
WIDE = 50.0
"""Half the edge of a plane without an end that is not horizontal, m."""
THIN = 1e-3
"""Half the thickness of such a plane, m."""
KINDS = {
    "sphere": "ellipsoids",
    "ellipsoid": "ellipsoids",
    "capsule": "capsules",
    "cylinder": "cylinders",
    "box": "boxes",
}
"""Our shapes by MuJoCo's types of geoms."""
WORDS = {"hfield": "height field", "sdf": "signed distance field", "flex": "flexible body", "skin": "skin"}
CAMERA_TURN = Quat(0.5, -0.5, 0.5, 0.5)
"""From MuJoCo's cameras, which look along −z with y up, to ours, which look along x with z up."""


class Drawing:
    """The shapes of a model, found once; the scene of a moment puts them in their places."""

    def __init__(self, model: Model) -> None:
        self.model, mj = model, model.mj
        self.shapes: dict[str, list[int]] = {name: [] for name in sorted(set(KINDS.values()))}
        self.meshes: list[int] = []
        self.ground: int | None = None
        missing = []
        visible = [k for k in range(mj.ngeom) if self._color(k)[3] > 0.0]
        shown = [k for k in visible if mj.geom_group[k] < HIDDEN]
        for geom in shown or visible:
            kind = self._kind(geom)
            if kind == "plane" and self.ground is None and self._is_ground(geom):
                self.ground = geom
            elif kind == "plane":
                self.shapes["boxes"].append(geom)
            elif kind == "mesh":
                self.meshes.append(geom)
            elif kind in KINDS:
                self.shapes[KINDS[kind]].append(geom)
            else:
                missing.append(f"{WORDS.get(kind, kind)} '{mj.geom(geom).name or geom}'")
        missing += [
            f"{WORDS[kind]} {k}" for kind, count in (("flex", mj.nflex), ("skin", mj.nskin)) for k in range(count)
        ]
        self.missing = tuple(missing)
        """What cannot be drawn, in words."""

    def _kind(self, geom: int) -> str:
        return load_mujoco().mjtGeom(self.model.mj.geom_type[geom]).name.removeprefix("mjGEOM_").lower()

    def _is_ground(self, geom: int) -> bool:
        mj = self.model.mj
        upright = abs(mj.geom_quat[geom][0]) ** 2 + abs(mj.geom_quat[geom][3]) ** 2 > 1.0 - 1e-6
        return mj.geom_bodyid[geom] == 0 and bool(upright)

    def _color(self, geom: int) -> np.ndarray:
        """Of its material, if it has one and no color of its own."""
        mj = self.model.mj
        material = int(mj.geom_matid[geom])
        own = mj.geom_rgba[geom]
        return mj.mat_rgba[material] if material >= 0 and np.allclose(own, (0.5, 0.5, 0.5, 1.0)) else own

    def scene(self, robot: Robot) -> Scene:
        """What cameras see of that moment."""
        ground = None
        if self.ground is not None:
            shade = Color(*map(float, self._color(self.ground)[:3]))
            height = float(self.model.mj.geom_pos[self.ground][2])
            ground = jax.tree.map(jnp.float32, Ground(height, 0.5, shade, shade * 1.15))
        return Scene(
            **daylight(),
            ground=ground,
            **{name: self._shapes(robot, geoms) for name, geoms in self.shapes.items() if geoms},
            hulls=self._hulls(robot) if self.meshes else None,
        )

    def _shapes(self, robot: Robot, geoms: Sequence[int]) -> Shapes:
        return Shapes(*placed(robot, geoms), vectors([self._size(k) for k in geoms]), *self._looks(geoms))

    def _looks(self, geoms: Sequence[int]) -> tuple[Color, Any]:
        """Colors, and labels: the number of the body."""
        colors = jnp.asarray([self._color(k)[:3] for k in geoms], jnp.float32)
        return Color(*colors.T), jnp.asarray([min(int(self.model.mj.geom_bodyid[k]), 253) for k in geoms], jnp.int32)

    def _size(self, geom: int) -> tuple[float, float, float]:
        """As our shapes have it."""
        x, y, z = map(float, self.model.mj.geom_size[geom])
        kind = self._kind(geom)
        if kind == "plane":
            return x or WIDE, y or WIDE, THIN
        return {"sphere": (x, x, x), "capsule": (x, x, y), "cylinder": (x, x, y)}.get(kind, (x, y, z))

    @cached_property
    def _faces(self) -> tuple[tuple[Plane, ...], Any]:
        """Faces of the hull of each mesh, and how far its farthest corner is."""
        mj = self.model.mj
        clouds = []
        for geom in self.meshes:
            mesh = int(mj.geom_dataid[geom])
            first, count = int(mj.mesh_vertadr[mesh]), int(mj.mesh_vertnum[mesh])
            clouds.append(np.asarray(mj.mesh_vert[first : first + count], float))
        faces = [half_spaces(cloud) for cloud in clouds]
        most = max(len(face) for face in faces)
        padded = np.stack([np.concatenate([face, np.repeat(face[-1:], most - len(face), 0)]) for face in faces])
        with jax.ensure_compile_time_eval():
            planes = jnp.asarray(padded, jnp.float32)
            made = tuple(Plane(Vec3(*planes[:, k, :3].T), planes[:, k, 3]) for k in range(most))
            # Few faces reach beyond the mesh they hold.
            reach = [2.0 * np.linalg.norm(cloud, axis=1).max() for cloud in clouds]
            return made, jnp.asarray(reach, jnp.float32)

    def _hulls(self, robot: Robot) -> Hulls:
        planes, radius = self._faces
        return Hulls(*placed(robot, self.meshes), planes, radius, *self._looks(self.meshes))

    # Cameras

    def view(self, robot: Robot, name: str, aspect: float = 1.0) -> View:
        """What a camera of the model sees, for images that are `aspect` times as wide as high."""
        mj, number = self.model.mj, self.model.index("camera", name)
        part = robot.part("cam", number)
        mode = load_mujoco().mjtCamLight(mj.cam_mode[number]).name.removeprefix("mjCAMLIGHT_").lower()
        fov = 2.0 * np.arctan(np.tan(np.radians(float(mj.cam_fovy[number])) / 2.0) * aspect)
        position, attitude = part.position, part.attitude * CAMERA_TURN
        if mode == "track":
            position = robot.body(int(mj.cam_bodyid[number])).position + Vec3(*map(float, mj.cam_pos0[number]))
            attitude = Quat(*matrix_to_quat(mj.cam_mat0[number])) * CAMERA_TURN
        elif mode == "targetbody":
            return look_at(position, robot.body(int(mj.cam_targetbodyid[number])).position, float(fov))
        elif mode != "fixed":
            raise ValueError(
                f"camera '{name}' of {self.model.path.name} has the mode {mode}: use fixed, track or targetbody"
            )
        return as_view(position, attitude, float(fov))


def as_view(position: Vec3, attitude: Quat, fov: float) -> View:
    position, attitude = jax.tree.map(jnp.float32, (position, attitude))
    return View(position, attitude, jnp.float32(fov), jnp.uint32(0))


def look_at(position: Vec3, target: Vec3, fov: float) -> View:
    """The view of a level camera that looks at a point."""
    ahead = target - position
    flat = jnp.sqrt(jnp.asarray(ahead.x**2 + ahead.y**2))
    # Straight down the top of the image is north, as in MuJoCo.
    yaw = jnp.where(flat > 1e-6, jnp.arctan2(jnp.asarray(ahead.y), jnp.asarray(ahead.x)), 0.5 * np.pi)
    return as_view(position, Quat.from_euler(0.0, -jnp.arctan2(jnp.asarray(ahead.z), flat), yaw), fov)


def matrix_to_quat(matrix: np.ndarray) -> list[float]:
    quat = np.zeros(4)
    load_mujoco().mju_mat2Quat(quat, np.asarray(matrix, float))
    return quat.tolist()


def placed(robot: Robot, geoms: Sequence[int]) -> tuple[Vec3, Quat]:
    """Positions and attitudes of geoms, with an axis of geoms."""
    parts: list[Part] = [robot.part("geom", k) for k in geoms]

    def stack(*numbers: Any) -> Any:
        return jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])

    return jax.tree.map(stack, *[p.position for p in parts]), jax.tree.map(stack, *[p.attitude for p in parts])


def vectors(rows: Sequence[tuple[float, float, float]]) -> Vec3:
    return Vec3(*jnp.asarray(rows, jnp.float32).T)


def half_spaces(points: Float[np.ndarray, "n 3"], most: int = FACES) -> Float[np.ndarray, "p 4"]:
    """Normals and offsets of a convex body around the points: their hull, or one of its most telling faces.

    Beginning with a box along the main axes, the face is taken next that is large and turned away from those there are.
    """
    from scipy.spatial import ConvexHull, QhullError

    axes = np.linalg.svd(points - points.mean(0), full_matrices=False)[2]
    chosen = [*axes, *-axes]
    try:
        hull = ConvexHull(points)
    except QhullError:  # flat: the box will do
        return _touching(points, chosen)
    a, b, c = (points[hull.simplices[:, k]] for k in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    normals, inverse = np.unique(np.round(hull.equations[:, :3], 3), axis=0, return_inverse=True)
    weight = np.bincount(inverse.ravel(), area)
    normals = normals / np.linalg.norm(normals, axis=1, keepdims=True)
    if len(normals) <= most:
        return _touching(points, list(normals))
    away = 1.0 - (normals @ np.stack(chosen).T).max(1)
    while len(chosen) < most:
        best = int(np.argmax(np.sqrt(weight) * away))
        chosen.append(normals[best])
        away = np.minimum(away, 1.0 - normals @ normals[best])
    return _touching(points, chosen)


def _touching(points: np.ndarray, normals: Sequence[np.ndarray]) -> np.ndarray:
    """Half-spaces of those normals that just hold the points."""
    stacked = np.stack(normals)
    return np.concatenate(
        [stacked, np.maximum((points @ stacked.T).max(0), (points @ stacked.T).min(0) + 1e-4)[:, None]], 1
    )
