"""Settings of marine navigation that belong together."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MarineReward:
    """What a step of a vessel is worth: the sum of these."""

    step: float = -0.1
    """each step"""
    progress: float = 1.0
    """for each meter nearer to the goal"""
    colregs: float = -0.1
    """each step, for each radian of the turn to the right that the COLREGs require"""
    collision: float = -5.0
    """for touching a vessel or a buoy"""
    goal: float = 10.0
    """for reaching the goal"""


@dataclass(frozen=True)
class SmoothMarineReward:
    """Weights of the smooth surrogate of a collision, for learners that differentiate the physics."""

    obstacle: float = 10.0
    """slope of the cost of being nearer to an obstacle than `clearance`, per meter and second"""
    clearance: float = 3.0
    """gap between hulls below which it becomes expensive, m"""
    width: float = 1.0
    """width of the transition, m"""

    def __post_init__(self) -> None:
        if self.width <= 0.0:
            raise ValueError("width must be positive")


@dataclass(frozen=True)
class Curriculum:
    """The worlds that a training starts with; they become full ones over its first half."""

    vessels: int = 3
    """vessels in a world at the start, unless the task has fewer"""
    buoys: int = 0
    """buoys in a world at the start, unless the task has fewer"""
    distance: float = 30.0
    """smallest distance from start to goal at the start of a training, m"""

    def __post_init__(self) -> None:
        if self.vessels < 1 or self.buoys < 0 or self.distance < 0.0:
            raise ValueError("a curriculum starts with at least 1 vessel; its buoys and distance are not negative")
