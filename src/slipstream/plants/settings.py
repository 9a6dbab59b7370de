"""Settings of plants. This module imports nothing heavy: the command line reads it to show its help."""

from dataclasses import dataclass
from typing import Literal

DEFAULT_EPISODES = {"fast": 512, "mujoco": 128, "betaflight": 10, "px4": 20}
"""Episodes of an evaluation on each plant: as many as it runs within minutes. Every agent of a world counts as one."""


@dataclass(frozen=True)
class PlantSettings:
    """Settings of all plants; each plant uses those that concern it."""

    state_estimate: Literal["sensors", "truth"] = "sensors"
    """state that the policy observes on mujoco and px4: estimated from noisy sensors (on px4 by PX4's own estimator),
    or the true one, as from motion capture; on mujoco the flight controller gets the same"""
    camera: Literal["ours", "gl"] = "ours"
    """camera of a policy that sees, on mujoco: ours, as in training, or MuJoCo's own renderer (OpenGL) with textures,
    lights and shadows that no training has"""
    px4_version: str = "1.17"
    """PX4 release whose default gains the controller on mujoco has"""
    px4: str = ""
    """PX4 executable or build folder; by default the one that the environment variable SLIPSTREAM_PX4 names"""
    instances: int = 2
    """PX4 processes that run at the same time"""
    first_instance: int = 0
    """number of the first PX4 instance; choose another one if its ports (4560 and 14540 plus this) are in use"""
    betaflight: str = ""
    """executable of Betaflight's simulator build; by default the one that the package betaflight has built"""
