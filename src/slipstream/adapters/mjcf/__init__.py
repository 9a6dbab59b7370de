"""Robots of MJCF files as tasks: MuJoCo C on CPUs, MJX on accelerators, drawn by our camera."""

from .robot import Robot, RobotState
from .task import MjcfCamera, MjcfProgress, MjcfState, MjcfTask

__all__ = ["MjcfCamera", "MjcfProgress", "MjcfState", "MjcfTask", "Robot", "RobotState"]
