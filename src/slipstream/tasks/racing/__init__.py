"""Drone racing: fly through the gates in order, fast, and touch nothing."""

from .settings import RaceReward, Randomization, Start
from .state import RaceProgress, RaceState, RaceWorld
from .task import Racing
from .track import TRACKS, Gate, GeneratedTrack, Track

__all__ = [
    "TRACKS",
    "Gate",
    "GeneratedTrack",
    "RaceProgress",
    "RaceReward",
    "RaceState",
    "RaceWorld",
    "Racing",
    "Randomization",
    "Start",
    "Track",
]
