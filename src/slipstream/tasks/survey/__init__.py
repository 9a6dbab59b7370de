"""Survey missions: a fleet of drones with cameras over a world that is different for every seed."""

from .generator import WorldGenerator
from .mission import MISSIONS, Mission, MissionReward, Requirements
from .settings import Navigation, Randomization
from .state import Fleet, FleetCommand, Sortie, SurveyState
from .task import Survey
from .world import SurveyWorld

__all__ = [
    "MISSIONS",
    "Fleet",
    "FleetCommand",
    "Mission",
    "MissionReward",
    "Navigation",
    "Randomization",
    "Requirements",
    "Sortie",
    "Survey",
    "SurveyState",
    "SurveyWorld",
    "WorldGenerator",
]
