"""An MJCF model: where its file is, what MuJoCo makes of it, and what cannot be done with it, in words."""

import hashlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...core.errors import suggest

INSTALL = "pip install mujoco"
COUNTS = {
    "body": "nbody", "joint": "njnt", "geom": "ngeom", "site": "nsite", "sensor": "nsensor", "camera": "ncam",
    "actuator": "nu", "key": "nkey",
}  # fmt: skip
"""What is found by its name, and where MuJoCo keeps how many there are."""


def load_mujoco() -> ModuleType:
    """The MuJoCo package."""
    try:
        import mujoco
        import mujoco.rollout
    except ImportError as error:
        raise ValueError(f"tasks over an MJCF model need MuJoCo: {INSTALL}") from error
    # A robot that explodes would print warnings and write them to a file.
    mujoco.set_mju_user_warning(lambda text: None)  # pyright: ignore[reportAttributeAccessIssue]
    return mujoco


def find_file(name: str, owner: type, install: str = "") -> Path:
    """The file of a model: beside the file of the task's class, in an installed package (`package:path`), or as it is.

    `install` is how the package is installed, if not by its own name.
    """
    package, colon, inside = name.partition(":")
    if colon and package.isidentifier():
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise ValueError(f"the model {name} is in a package that is not installed: {install or _pip(package)}")
        path = Path(next(iter(found.submodule_search_locations))) / inside
    else:
        beside = Path(inspect.getfile(owner)).resolve().parent / name
        path = beside if beside.is_file() else Path(name).resolve()
    if not name or not path.is_file():
        raise ValueError(f"{owner.__name__} has no MJCF model: there is no file {path}" if name else _unnamed(owner))
    return path


def _pip(package: str) -> str:
    return f"pip install {package.replace('_', '-')}"


def _unnamed(owner: type) -> str:
    return f'{owner.__name__} does not say which robot it is over: give it `model: str = "robot.xml"`'


def load_model(path: Path, edit: Callable[[Any], None]) -> "Model":
    """The model of an MJCF file, whose specification `edit` may change before it is compiled.

    The file is data: MuJoCo alone reads it, with its includes and meshes beside it.
    """
    mujoco = load_mujoco()
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        edit(spec)
        # A world that explodes shall be found out, and not start again unnoticed.
        spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        made = spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        raise ValueError(f"{path} cannot be compiled by MuJoCo: {' '.join(str(error).split())}") from error
    model = Model(path, made)
    model.check()
    return model


@dataclass(frozen=True, eq=False)
class Model:
    """A compiled model and the names in it."""

    path: Path
    mj: Any
    """of MuJoCo, which has no types"""

    def check(self) -> None:
        """Refuse what cannot be simulated or acted on."""
        mujoco, mj = load_mujoco(), self.mj
        if mj.nu == 0:
            raise ValueError(f"{self.path} has no actuators: there is nothing that a policy could move")
        states = mujoco.mjtState
        known = states.mjSTATE_TIME | states.mjSTATE_QPOS | states.mjSTATE_QVEL | states.mjSTATE_ACT
        if mujoco.mj_stateSize(mj, states.mjSTATE_FULLPHYSICS) != mujoco.mj_stateSize(mj, known):
            raise ValueError(
                f"{self.path} keeps state besides positions, velocities and activations (a plugin, or a delay of an "
                "actuator or sensor), and that is not carried from step to step here"
            )
        data = mujoco.MjData(mj)
        if mj.nkey:
            mujoco.mj_resetDataKeyframe(mj, data, 0)
        mujoco.mj_forward(mj, data)
        warnings = mujoco.mjtWarning
        if data.warning[warnings.mjWARN_CONTACTFULL].number or data.warning[warnings.mjWARN_CNSTRFULL].number:
            raise ValueError(
                f"{self.path} has more contacts at its start than fit into MuJoCo's memory ({data.ncon} were found): "
                'take geoms out of collisions by contype="0" conaffinity="0", or give it more by <size memory="…"/>'
            )
        if not np.isfinite(data.qacc).all():
            raise ValueError(f"{self.path} has accelerations at its start that are no numbers: do bodies overlap?")

    @cached_property
    def digest(self) -> str:
        """What tells this model from others."""
        mujoco = load_mujoco()
        buffer = np.empty(mujoco.mj_sizeModel(self.mj), np.uint8)
        mujoco.mj_saveModel(self.mj, None, buffer)
        return hashlib.sha256(buffer.tobytes() + mujoco.__version__.encode()).hexdigest()[:16]

    @cached_property
    def names(self) -> dict[str, dict[str, int]]:
        """Number of everything that has a name, by its kind."""
        found = {
            kind: [getattr(self.mj, kind)(k).name for k in range(getattr(self.mj, n))] for kind, n in COUNTS.items()
        }
        return {kind: {name: k for k, name in enumerate(names) if name} for kind, names in found.items()}

    def index(self, kind: str, name: str) -> int:
        """The number of what has that name; refused with the nearest name that exists."""
        known = self.names[kind]
        if name not in known:
            raise ValueError(f"{self.path.name} has no {kind} '{name}'{suggest(name, known)}")
        return known[name]

    def keyframe(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Positions, velocities, activations and controls of a keyframe; of the default pose if there is no `home`."""
        mj = self.mj
        if name == "home" and name not in self.names["key"]:
            return mj.qpos0.copy(), np.zeros(mj.nv), np.zeros(mj.na), np.zeros(mj.nu)
        key = self.index("key", name)
        return tuple(np.array(row[key]) for row in (mj.key_qpos, mj.key_qvel, mj.key_act, mj.key_ctrl))  # pyright: ignore[reportReturnType]
