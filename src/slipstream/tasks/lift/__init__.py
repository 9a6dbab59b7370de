"""Lifting a cube with an arm: from the state, or from the pictures of a camera at the wrist or beside the mat."""

from .settings import LiftCamera, LiftRandomization, LiftReward
from .state import LiftState
from .task import Lift

__all__ = ["Lift", "LiftCamera", "LiftRandomization", "LiftReward", "LiftState"]
