"""The state of marine navigation: the world, the progress of each vessel, and obstacles as a vessel sees them."""

from jaxtyping import Array, Float

from ...core.geometry import Flag, Scalar, Vec2
from ...core.struct import struct
from ...core.task import State
from ...dynamics.vessel import PointVessel, TwinThrusterVessel, VesselState, Vortices

FAR_AWAY = 1e4
"""Coordinate of a buoy that does not exist in this world."""
ACTION_LEVELS = {TwinThrusterVessel: (0.0, -0.5, -1.0, 0.5, 1.0), PointVessel: (-1.0, 0.0, 1.0)}
"""Values of each component of a discrete action, as fractions of the largest: the change of a thrust, or of a point's
acceleration and turn rate."""
THRUST_RATE = 1000.0
"""Largest change of a thrust in a second, N."""


@struct
class MarineWorld:
    """What stays the same for an episode."""

    goal: Vec2  # of every vessel
    buoys: Vec2  # leaves have an axis of buoys
    buoy_radii: Float[Array, "buoys"]  # 0 of a buoy that does not exist
    vortices: Vortices | None = None


@struct
class VesselProgress:
    """How far a vessel has come."""

    distance: Scalar  # to its goal, m
    reached: Flag
    collided: Flag
    required_turn: Scalar  # to the right by the COLREGs, now, rad
    time: Scalar  # since the start, s
    give_way_time: Scalar  # during which the COLREGs required a turn, s
    energy: Scalar  # thrust times time, kN s; of a point, the sum of its commands
    command: Vec2  # the last one
    episode_return: Scalar


MarineState = State[MarineWorld, VesselState, VesselProgress]


@struct
class Obstacle:
    """Something that a vessel can collide with, relative to the vessel."""

    offset: Vec2  # from the vessel, east and north
    velocity: Vec2  # over ground, east and north
    radius: Scalar
    exists: Flag
