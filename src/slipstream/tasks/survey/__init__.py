"""Survey missions: a fleet of drones with cameras over a country that is different for every seed."""

from .mission import MISSIONS
from .task import Survey

__all__ = ["MISSIONS", "Survey"]
