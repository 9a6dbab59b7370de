"""The state of a survey: the fleet, and the progress of every drone."""

from dataclasses import replace

from jaxtyping import Array, Int, UInt32

from ...core.geometry import Flag, Scalar, Vec2, Vec3
from ...core.struct import struct
from ...core.task import State
from ...dynamics.quadrotor import QuadrotorState
from ...dynamics.velocity_drone import Gimbal, VelocityCommand, VelocityDroneState
from . import coverage
from .world import SurveyWorld


@struct
class Fleet:
    """Everything that moves: drones, their gimbals, and the clock that moves people and targets."""

    drones: VelocityDroneState
    gimbals: Gimbal
    clock: Scalar
    airframes: QuadrotorState | None = None  # with controller=px4


@struct
class Sortie:
    """The progress of one drone."""

    home: Vec3
    goal: Vec3
    time_limit: Scalar  # s
    battery: Scalar  # percent
    mode: Int[Array, ""]
    drift: Vec2  # error of the position that the drone believes, m
    outage_start: Scalar  # time at which GNSS is lost for a minute, s
    gnss_lost: Flag  # in this step
    vio_failed: Flag  # whether the drone does not know its position without GNSS
    found: UInt32[Array, ""]  # one bit for each target
    value: Scalar  # of the targets found
    covered: coverage.Rows
    track: Vec3  # last detected position of the drone's own target
    time_unseen: Scalar  # s since the own target was in view
    dwell: Scalar  # s of good view without a break, up to now
    best_dwell: Scalar
    view_quality: Scalar
    false_alarms: Scalar
    medium_threat_time: Scalar  # s
    high_threat_time: Scalar
    zone_violation: Flag  # whether the drone entered a no-fly zone or a high threat, or left the geofence
    crashed: Flag
    arrived: Flag
    filter_interventions: Scalar  # steps in which the safety filter changed the command
    filter_reason: Int[Array, ""]  # of the last intervention
    filter_correction: Scalar  # change of velocity in this step, m/s
    command: VelocityCommand  # of the last step, after the filter
    episode_return: Scalar
    success: Flag
    response_factor: Scalar | None = None  # on the time constants of the drone


SurveyState = State[SurveyWorld, Fleet, Sortie]


@struct
class FleetCommand:
    """Commands to the vehicles for one control period."""

    commands: VelocityCommand
    gimbals: Vec2  # yaw and pitch rates, in [−1, 1]


def believed(drone: VelocityDroneState, drift: Vec2) -> VelocityDroneState:
    """The drone at the position it believes to be at."""
    return replace(drone, position=drone.position + Vec3(drift.x, drift.y, 0.0 * drift.x))
