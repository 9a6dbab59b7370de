"""The state of a survey: the fleet, and how far every drone of it has come."""

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
    """What moves: drones, their cameras, and with the clock everything that walks or drives."""

    drones: VelocityDroneState
    gimbals: Gimbal
    clock: Scalar
    airframes: QuadrotorState | None = None  # where the drones have rotors


@struct
class Sortie:
    """How far one drone has come."""

    home: Vec3
    goal: Vec3
    limit: Scalar  # seconds
    battery: Scalar  # percent
    mode: Int[Array, ""]
    drift: Vec2  # by how much the drone is mistaken about where it is
    outage: Scalar  # when satellites are lost; they are back a minute later
    dark: Flag  # whether they are lost now
    blind: Flag  # whether without them the drone does not know where it is
    found: UInt32[Array, ""]  # a bit a target
    value: Scalar  # of what was found
    covered: coverage.Rows
    track: Vec3  # where the drone's own target is thought to be
    unseen: Scalar  # seconds since it was in view
    dwell: Scalar  # seconds of good view without a break, up to now
    best_dwell: Scalar
    quality: Scalar
    alarms: Scalar  # false ones
    medium: Scalar  # seconds under a medium threat
    high: Scalar
    entered: Flag  # a no-fly zone or the outside of the geofence
    hit: Flag
    arrived: Flag
    overruled: Scalar  # steps on which the filter changed the command
    reason: Int[Array, ""]  # why, the last time
    changed: Scalar  # by how much, in this step
    sent: VelocityCommand
    score: Scalar
    success: Flag
    agility: Scalar | None = None  # factor on how slowly it answers


SurveyState = State[SurveyWorld, Fleet, Sortie]


@struct
class FleetCommand:
    """What the vehicles are told for one period."""

    commands: VelocityCommand
    gimbals: Vec2  # yaw and pitch rates, in [−1, 1]
