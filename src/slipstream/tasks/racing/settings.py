"""Groups of settings of a race."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Start:
    """Where a drone starts."""

    mode: Literal["gates", "line", "grid"] = "gates"
    """behind a random gate, anywhere on the track, or in front of the first gate"""
    position_noise: float = 0.5
    """largest offset of a start along each axis, m"""
    tilt: float = math.pi / 4
    """largest roll and pitch at a start, rad"""
    yaw: float = math.pi / 4
    """largest angle between a start's heading and the next gate, rad"""
    speed: float = 0.0
    """largest speed at a start, towards the next gate, m/s"""


@dataclass(frozen=True)
class RaceReward:
    """Weights of the terms whose sum is the reward of a step."""

    progress: float = 0.2
    """for each meter nearer to the next gate"""
    gate: float = 4.0
    """for a gate flown through"""
    gate_offset: float = 0.0
    """subtracted from a gate's reward at the edge of its opening, and less towards the center"""
    miss: float = -4.0
    """for passing beside a gate"""
    crash: float = -5.0
    """for touching a gate, the ground or another drone"""
    facing: float = 0.001
    """each step, for facing the next gate"""
    body_rates: float = -1e-6
    """each step, times the square of the body rates"""
    action_rate: float = 0.0
    """each step, times the square of the change of action"""


@dataclass(frozen=True)
class SmoothRaceReward:
    """Weights of the smooth surrogate of the reward, which learners that differentiate the physics maximize."""

    gate_offset: float = 0.5
    """subtracted where a gate's plane is crossed, times the offset from its center in half openings"""
    gate_edge: float = 12.0
    """slope of the cost of a crossing beyond `edge_start`, per half opening"""
    edge_start: float = 0.7
    """offset from which a crossing becomes expensive, in half openings"""
    edge_width: float = 0.15
    """width of the transition to the slope of `gate_edge`, in half openings"""
    ground: float = 20.0
    """slope of the cost of flying below `ground_height`, per meter and second"""
    ground_height: float = 0.35
    """height below which flying becomes expensive, m"""

    def __post_init__(self) -> None:
        if self.edge_width <= 0.0:
            raise ValueError("edge_width must be positive")


@dataclass(frozen=True)
class Randomization:
    """Ranges of domain randomization; 0 turns a term off."""

    mass: float = 0.0
    """largest relative change of the mass"""
    inertia: float = 0.0
    """largest relative change of the moments of inertia"""
    thrust: float = 0.0
    """largest relative change of the rotors' thrust"""
    motor_lag: float = 0.0
    """largest relative change of the motors' time constant"""
    drag: float = 0.0
    """largest relative change of the air drag"""
    max_wind: float = 0.0
    """largest steady wind, m/s"""
    gust_std: float = 0.0
    """standard deviation of gusts, m/s"""
    gust_time_constant: float = 0.5
    """correlation time of gusts, s"""
    max_action_delay: int = 0
    """largest delay of an action, in steps"""

    def __post_init__(self) -> None:
        factors = (self.mass, self.inertia, self.thrust, self.motor_lag, self.drag)
        if min(factors) < 0.0 or max(factors) >= 1.0:
            raise ValueError("a relative randomization lies between 0 and 1")
        if self.max_action_delay < 0 or min(self.max_wind, self.gust_std) < 0.0 or self.gust_time_constant <= 0.0:
            raise ValueError("max_action_delay, max_wind and gust_std are not negative, gust_time_constant is positive")
