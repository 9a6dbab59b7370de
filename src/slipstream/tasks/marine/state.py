"""The state of a bay: its waters, its vessels, and how far each has come."""

from jaxtyping import Array, Float

from ...core.geometry import Flag, Scalar, Vec2
from ...core.struct import struct
from ...core.task import State
from ...dynamics.vessel import PointVessel, TwinThrusterVessel, VesselState, Vortices

NOWHERE = 1e4
"""Where a buoy is that is not there."""


ACTION_LEVELS = {TwinThrusterVessel: (0.0, -0.5, -1.0, 0.5, 1.0), PointVessel: (-1.0, 0.0, 1.0)}
"""What a choice does to a thruster of a vessel, or to its speed or turn, as a share of the most it can."""
THRUST_RATE = 1000.0
"""Newtons a second by which a thruster can change."""


@struct
class MarineWorld:
    """What stays: goals, buoys and whirls."""

    goal: Vec2  # of every vessel
    buoys: Vec2  # leaves have an axis of buoys
    sizes: Float[Array, "buoys"]  # radii
    vortices: Vortices | None = None


@struct
class VesselProgress:
    """How far one vessel has come."""

    distance: Scalar  # to its goal
    reached: Flag
    hit: Flag
    duty: Scalar  # the turn to the right that the rules ask for now, rad
    time: Scalar  # seconds under way
    yielding: Scalar  # seconds under such a duty
    energy: Scalar  # thrust times time, kN s; of a point, speed asked for
    sent: Vec2  # the last action
    score: Scalar


MarineState = State[MarineWorld, VesselState, VesselProgress]


@struct
class Obstacle:
    """Something a vessel could run into, seen from the vessel."""

    gap: Vec2  # from vessel to thing, east and north
    course: Vec2  # its velocity over ground
    radius: Scalar
    there: Flag
