"""Drone racing from states: fly through the gates in order, fast, and touch nothing."""

from .task import Race, RaceState, RaceWorld, Racing
from .track import TRACKS, Gate, GeneratedTrack, Track

__all__ = ["TRACKS", "Gate", "GeneratedTrack", "Race", "RaceState", "RaceWorld", "Racing", "Track"]
