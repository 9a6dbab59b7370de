"""What can be set about plants. Nothing heavy is imported here: the command line reads it to show its help."""

from dataclasses import dataclass
from typing import Literal

DEFAULT_EPISODES = {"fast": 512, "mujoco": 128, "betaflight": 10, "px4": 20}
"""Episodes of an evaluation, as many as a plant flies in minutes; every agent of a world flies one."""


@dataclass(frozen=True)
class PlantSettings:
    """What can be set about plants; each uses what concerns it."""

    sensors: Literal["real", "perfect"] = "real"
    """of mujoco: whether controller and policy fly by noisy, late readings; of px4: whether the policy flies by PX4's
    own estimate, or by the truth as motion capture would tell it"""
    gains: str = "1.17"
    """of mujoco: the version of PX4 whose gains it flies with"""
    px4: str = ""
    """executable or build folder of PX4; else SLIPSTREAM_PX4 names it"""
    instances: int = 2
    """PX4s that run at once"""
    instance: int = 0
    """number of the first of them: ports are 4560 and 14540 plus that"""
    betaflight: str = ""
    """executable of Betaflight's simulator build; else the package's"""
