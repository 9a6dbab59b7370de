"""Slipstream trains robot policies where the data already is.

    import slipstream as sl

    run = sl.train("racing")
    sl.evaluate(run, plant="mujoco")
    sl.film(run)
    sl.report(run)

Importing this touches no device, file or environment variable; what is used is imported when it is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "adapters.mjcf": ("MjcfTask",),
    "core.rng": ("Rng",),
    "core.spaces": ("Box", "Discrete", "MultiDiscrete"),
    "core.struct": ("struct",),
    "core.task": ("Spec", "State", "Task"),
    "experiment.experiment": ("Experiment",),
    "experiment.registry": ("presets",),
    "learn.ac_iqn": ("AcIqn",),
    "learn.ddpg": ("Ddpg", "Td3"),
    "learn.distill": ("Distill",),
    "learn.dqn": ("Dqn",),
    "learn.iqn": ("Iqn",),
    "learn.ppo": ("Ppo",),
    "learn.pqn": ("Pqn",),
    "learn.rainbow": ("Rainbow",),
    "learn.sac": ("Sac",),
    "learn.shac": ("Shac",),
    "pipeline.comparison": ("compare",),
    "pipeline.plants": ("fit", "parity"),
    "pipeline.stages": ("evaluate", "film", "report"),
    "pipeline.training": ("load", "train"),
    "runs.run": ("Run",),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}

if TYPE_CHECKING:
    from .adapters.mjcf import MjcfTask
    from .core.rng import Rng
    from .core.spaces import Box, Discrete, MultiDiscrete
    from .core.struct import struct
    from .core.task import Spec, State, Task
    from .experiment.experiment import Experiment
    from .experiment.registry import presets
    from .learn.ac_iqn import AcIqn
    from .learn.ddpg import Ddpg, Td3
    from .learn.distill import Distill
    from .learn.dqn import Dqn
    from .learn.iqn import Iqn
    from .learn.ppo import Ppo
    from .learn.pqn import Pqn
    from .learn.rainbow import Rainbow
    from .learn.sac import Sac
    from .learn.shac import Shac
    from .pipeline.comparison import compare
    from .pipeline.plants import fit, parity
    from .pipeline.stages import evaluate, film, report
    from .pipeline.training import load, train
    from .runs.run import Run

__all__ = [
    "AcIqn", "Box", "Ddpg", "Discrete", "Distill", "Dqn", "Experiment", "Iqn", "MjcfTask", "MultiDiscrete", "Ppo",
    "Pqn", "Rainbow", "Rng", "Run", "Sac", "Shac", "Spec", "State", "Task", "Td3", "compare", "evaluate", "film",
    "fit", "load", "parity", "presets", "report", "struct", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
