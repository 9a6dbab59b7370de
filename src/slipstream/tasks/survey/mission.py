"""The missions: what a drone is sent out for, what it gets for it, and when it has done it."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from .world import WorldGenerator


@dataclass(frozen=True)
class Mission:
    """A mission as settings. What a mission does not ask for has no weight and is not computed."""

    land: WorldGenerator
    time_limit: float
    """seconds, of a mission that goes nowhere in particular"""
    deadline: bool = False
    """whether who is late has failed, and the future is worth nothing; else the clock cuts a sortie off"""
    gimbal: Literal["ahead", "down", "nearest", "policy"] = "ahead"
    """where the camera looks: ahead, straight down, at the nearest target left, or where the policy turns it"""
    frame: Literal["heading", "area"] = "heading"
    """whose axes commands and observations are in"""
    transit: bool = False
    """whether there is a place to go to, at the far side"""
    cover: float = 0.0
    """half an edge of the square to be covered, m"""
    known: bool = False
    """whether the places of the targets are known beforehand"""
    own: bool = False
    """whether every drone has one target of its own, and stays with it"""
    returns: bool = False
    """whether the drone has to be home at the end, with its reserve"""
    battery: tuple[float, float] = (80.0, 100.0)
    reserve: float = 15.0
    """percent of battery that must be left"""
    silent: float = math.inf
    """seconds after which nobody can reach the drone: it then keeps a fifth more of its battery for the way home"""

    # What success is
    coverage: float = 0.0
    """share of the square"""
    found: float = 0.0
    """share of the targets"""
    value: float = 0.0
    """share of the value that can be had"""
    dwell: float = 0.0
    """seconds of good view without a break"""
    medium: float = 30.0
    """seconds under a medium threat that are put up with"""

    # What is paid
    arrive_reward: float = 0.0
    nearer_reward: float = 0.0
    """for each metre nearer to the goal"""
    cover_reward: float = 0.0
    """for each percent of the square"""
    find_reward: float = 0.0
    """for a target of weight or value one"""
    view_reward: float = 0.0
    """for each second, times the quality of the view"""
    finish_reward: float = 5.0
    time_reward: float = -0.01
    """each second"""
    end_reward: float = -5.0
    """for a crash, a violation, a lost target, an empty battery, or time that ran out before success"""
    threat_reward: float = -0.1
    """each second under a medium threat"""
    overruled_reward: float = -0.002
    """each step, for each m/s by which the safety filter had to change the velocity"""


transit = Mission(
    land=WorldGenerator(
        east=1600.0, north=700.0, buildings=12, tallest=100.0, trees=24, fixed_zones=4, popup_zones=4,
        zone_radius=(100.0, 220.0), popup_between=(20.0, 140.0), lanes=True,
    ),
    time_limit=400.0,
    deadline=True,
    transit=True,
    reserve=20.0,
    nearer_reward=0.02,
    arrive_reward=5.0,
)  # fmt: skip

coverage = Mission(
    # Nobody could tell a silent drone of a zone that appears.
    land=WorldGenerator(fixed_zones=2, popup_zones=0, zone_radius=(25.0, 45.0), inner=250.0),
    time_limit=420.0,
    deadline=True,
    silent=30.0,
    gimbal="down",
    frame="area",
    cover=250.0,
    returns=True,
    coverage=0.85,
    found=0.8,
    cover_reward=0.1,
    find_reward=0.1,
)

search = Mission(
    land=WorldGenerator(
        east=280.0, north=280.0, targets=8, fixed_zones=0, popup_zones=1, zone_radius=(20.0, 35.0), inner=200.0
    ),
    time_limit=300.0,
    deadline=True,
    gimbal="down",
    frame="area",
    cover=200.0,
    returns=True,
    coverage=0.85,
    found=0.8,
    cover_reward=0.1,
    find_reward=0.2,
)

objectives = Mission(
    land=WorldGenerator(
        east=500.0, north=500.0, targets=8, fixed_zones=1, popup_zones=1, high_threats=2, medium_threats=1,
        zone_radius=(50.0, 100.0),
    ),
    # No deadline: what is viewed pays as it comes, and with a penalty for being late 86.6 % succeeded instead of 92.7.
    time_limit=220.0,
    gimbal="nearest",
    known=True,
    value=0.8,
    find_reward=1.0,
)  # fmt: skip

dwell = Mission(
    land=WorldGenerator(
        east=330.0, north=330.0, targets=16, fixed_zones=1, popup_zones=0, zone_radius=(25.0, 40.0), roaming=3.0,
        meadow=True, tallest=30.0,
    ),
    time_limit=60.0,
    gimbal="policy",
    own=True,
    dwell=30.0,
    view_reward=0.2,
    end_reward=-2.0,
)  # fmt: skip

free = replace(dwell, time_limit=120.0, dwell=0.0, view_reward=0.0, finish_reward=0.0)
"""Nothing is asked: for scripted flights."""

MISSIONS = {
    "transit": transit,
    "coverage": coverage,
    "multi-objective": objectives,
    "search": search,
    "dwell": dwell,
    "free": free,
}
