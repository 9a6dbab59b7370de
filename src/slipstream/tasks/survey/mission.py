"""The missions: what a drone has to do, what success requires, and what is rewarded."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from .generator import WorldGenerator


@dataclass(frozen=True)
class Requirements:
    """What a successful sortie requires."""

    coverage: float = 0.0
    """fraction of the square to be covered"""
    found: float = 0.0
    """fraction of the targets to be found"""
    value: float = 0.0
    """fraction of the achievable value to be collected"""
    dwell_time: float = 0.0
    """time of good view of the drone's own target without a break, s"""
    max_threat_time: float = 30.0
    """longest time under a medium threat, s"""


@dataclass(frozen=True)
class MissionReward:
    """Terms of the reward. A term of zero weight is not computed."""

    arrival: float = 0.0
    """for arriving at the goal"""
    progress: float = 0.0
    """for each meter nearer to the goal"""
    coverage: float = 0.0
    """for each percent of the square"""
    detection: float = 0.0
    """for finding a target of weight or value one"""
    view: float = 0.0
    """for each second, times the quality of the view of the drone's own target"""
    completion: float = 5.0
    """for meeting the requirements"""
    time: float = -0.01
    """for each second"""
    failure: float = -5.0
    """for a crash, a violation, a lost target, an empty battery, or a missed deadline"""
    threat: float = -0.1
    """for each second under a medium threat"""
    filter_intervention: float = -0.002
    """for each m/s by which the safety filter changes the velocity in a step"""


@dataclass(frozen=True)
class Mission:
    """Settings of a mission. What a mission does not ask for is not computed."""

    generator: WorldGenerator
    """the worlds it is flown in"""
    time_limit: float
    """time of a sortie, s; a mission with a goal sets it by the distance"""
    deadline: bool = False
    """whether a sortie that runs out of time has failed (terminated); otherwise it is truncated"""
    gimbal: Literal["forward", "down", "nearest_target", "policy"] = "forward"
    """where the camera looks: forward, straight down, at the nearest target not yet found, or where the policy says"""
    frame: Literal["heading", "world"] = "heading"
    """horizontal axes of commands and observations"""
    has_goal: bool = False
    """whether the drone has to fly to a goal at the far side"""
    coverage_half_extent: float = 0.0
    """half the edge of the square to be covered, m; 0 is none"""
    known_targets: bool = False
    """whether the positions of the targets are known"""
    target_per_drone: bool = False
    """whether every drone has a target of its own to keep in view"""
    return_home: bool = False
    """whether the drone has to land at home at the end, with its reserve"""
    initial_battery: tuple[float, float] = (80.0, 100.0)
    """smallest and largest battery charge at the start, percent"""
    battery_reserve: float = 15.0
    """battery charge that must be left at the end, percent"""
    link_loss_time: float = math.inf
    """time at which the radio link is lost, s; from then on a drone keeps a fifth more charge for the way home"""
    required: Requirements = Requirements()
    reward: MissionReward = MissionReward()


transit = Mission(
    generator=WorldGenerator(
        east=1600.0,
        north=700.0,
        buildings=12,
        max_building_height=100.0,
        trees=24,
        fixed_zones=4,
        popup_zones=4,
        zone_radius=(100.0, 220.0),
        popup_time=(20.0, 140.0),
        zone_lanes=True,
    ),
    time_limit=400.0,
    deadline=True,
    has_goal=True,
    battery_reserve=20.0,
    reward=MissionReward(progress=0.02, arrival=5.0),
)

coverage = Mission(
    # No popup zones: a drone without a radio link could not be warned of one.
    generator=WorldGenerator(fixed_zones=2, popup_zones=0, zone_radius=(25.0, 45.0), interest_half_extent=250.0),
    time_limit=420.0,
    deadline=True,
    link_loss_time=30.0,
    gimbal="down",
    frame="world",
    coverage_half_extent=250.0,
    return_home=True,
    required=Requirements(coverage=0.85, found=0.8),
    reward=MissionReward(coverage=0.1, detection=0.1),
)

search = Mission(
    generator=WorldGenerator(
        east=280.0,
        north=280.0,
        targets=8,
        fixed_zones=0,
        popup_zones=1,
        zone_radius=(20.0, 35.0),
        interest_half_extent=200.0,
    ),
    time_limit=300.0,
    deadline=True,
    gimbal="down",
    frame="world",
    coverage_half_extent=200.0,
    return_home=True,
    required=Requirements(coverage=0.85, found=0.8),
    reward=MissionReward(coverage=0.1, detection=0.2),
)

multi_objective = Mission(
    generator=WorldGenerator(
        east=500.0,
        north=500.0,
        targets=8,
        fixed_zones=1,
        popup_zones=1,
        high_threats=2,
        medium_threats=1,
        zone_radius=(50.0, 100.0),
    ),
    # No deadline: values are rewarded as they are collected. With a penalty for being late 86.6 % succeeded instead of
    # 92.7 %.
    time_limit=220.0,
    gimbal="nearest_target",
    known_targets=True,
    required=Requirements(value=0.8),
    reward=MissionReward(detection=1.0),
)

dwell = Mission(
    generator=WorldGenerator(
        east=330.0,
        north=330.0,
        targets=16,
        fixed_zones=1,
        popup_zones=0,
        zone_radius=(25.0, 40.0),
        max_target_speed=3.0,
        grid_targets=True,
        max_building_height=30.0,
    ),
    time_limit=60.0,
    gimbal="policy",
    target_per_drone=True,
    required=Requirements(dwell_time=30.0),
    reward=MissionReward(view=0.2, failure=-2.0),
)

free = replace(
    dwell,
    time_limit=120.0,
    required=Requirements(),
    reward=replace(dwell.reward, view=0.0, completion=0.0),
)
"""Nothing is required: for scripted flights."""

MissionName = Literal["transit", "coverage", "multi-objective", "search", "dwell", "free"]
MISSIONS: dict[MissionName, Mission] = {
    "transit": transit,
    "coverage": coverage,
    "multi-objective": multi_objective,
    "search": search,
    "dwell": dwell,
    "free": free,
}
