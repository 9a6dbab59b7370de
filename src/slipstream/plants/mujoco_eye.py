"""What policies see by MuJoCo's own renderer: OpenGL without a window, with textures, lights and shadows."""

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8, UInt32

from ..core.task import AnyState, AnyTask, MujocoCameraTask
from .plant import PlantError


def use_egl() -> None:
    """Draw without a window. MuJoCo reads this when it is imported."""
    if sys.platform.startswith("linux"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def require_eye(mujoco: ModuleType, task: AnyTask) -> MujocoCameraTask:
    """The task as one that can be seen so; raises a PlantError if it cannot, or if MuJoCo cannot draw here."""
    shape = task.spec.image_shape
    if shape is None:
        raise PlantError(f"{task.description} sees nothing: leave out --camera gl")
    if not isinstance(task, MujocoCameraTask) or shape[2] != 3:
        raise PlantError(f"{task.description} cannot see by MuJoCo's renderer, which gives colors; use --camera ours")
    try:
        mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 8, 8).close()
    except Exception as error:
        raise PlantError(
            f"MuJoCo cannot draw here ({str(error).splitlines()[0]}): install EGL (apt-get install libegl1), or set "
            "MUJOCO_GL=osmesa with libosmesa6"
        ) from error
    return task


class MujocoEye:
    """The cameras of many worlds, each with a model of its own looks."""

    def __init__(self, mujoco: ModuleType, task: MujocoCameraTask, worlds: Sequence[AnyState]) -> None:
        height, width, _ = task.spec.image_shape  # pyright: ignore[reportAttributeAccessIssue]
        self.mujoco, self.cameras, self.moments = mujoco, task.mujoco_cameras, task.frame_stack
        self.size = width
        assert height == width * len(self.cameras) * self.moments
        models = [mujoco.MjModel.from_xml_string(task.mujoco_looks_xml(world, width)) for world in worlds]
        self.data = [mujoco.MjData(model) for model in models]
        self.renderers = [mujoco.Renderer(model, width, width) for model in models]
        self.seen = np.zeros((len(models), self.moments, len(self.cameras), width, width, 3), np.uint8)
        self._first = True

    def look(
        self, positions: Float[np.ndarray, "worlds q"], ended: np.ndarray
    ) -> UInt32[np.ndarray, "worlds rows width"]:
        """The images of all worlds, those of each one above the other: the newest moment first, each camera."""
        earlier = self.seen[:, :-1].copy()
        for world in np.flatnonzero(~ended).tolist():
            newest = self._draw(world, positions[world])
            self.seen[world, 1:] = newest if self._first else earlier[world]
            self.seen[world, 0] = newest
        self._first = False
        return pack(self.seen).reshape(len(self.seen), -1, self.size)

    def _draw(self, world: int, positions: Float[np.ndarray, "q"]) -> UInt8[np.ndarray, "cameras h w 3"]:
        data, renderer = self.data[world], self.renderers[world]
        model: Any = data.model
        data.qpos[:] = positions
        self.mujoco.mj_kinematics(model, data)
        self.mujoco.mj_comPos(model, data)
        self.mujoco.mj_camlight(model, data)
        images = []
        for name in self.cameras:
            renderer.update_scene(data, name)
            images.append(renderer.render())
        return np.stack(images)

    def close(self) -> None:
        for renderer in self.renderers:
            renderer.close()


def pack(rgb: UInt8[np.ndarray, "*n 3"]) -> UInt32[np.ndarray, "*n"]:
    """Colors as the tasks' cameras have them: red in the lowest byte."""
    red, green, blue = np.moveaxis(rgb.astype(np.uint32), -1, 0)
    return red | (green << 8) | (blue << 16)
