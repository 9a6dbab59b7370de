"""The state of a race: its world, and the progress of each drone."""

from jaxtyping import Array, Int

from ...core.geometry import Flag, Scalar, Vec3
from ...core.struct import struct
from ...core.task import State
from ...dynamics.control_modes import NormalizedCommand
from ...dynamics.quadrotor import PhysicsRandomization, QuadrotorState
from ...sensors.noise import StateError
from .track import Gate


@struct
class RaceWorld:
    """What stays the same for an episode."""

    gates: tuple[Gate, ...]  # of a generated track; a fixed one is part of the program
    randomization: PhysicsRandomization
    wind: Vec3 | None
    action_delay: Int[Array, ""] | None  # steps between choosing an action and flying it
    time_limit: Scalar | None  # seconds this episode may take, in training
    sensor_bias: StateError | None = None


@struct
class RaceProgress:
    """The progress of one drone."""

    next_gate: Int[Array, ""]
    passed: Int[Array, ""]  # gates in this episode
    lap_start: Scalar  # time at which the lap now flown began
    first_lap: Scalar  # seconds for the first lap, from standing; 0 before it is done
    best_lap: Scalar  # fastest of the later laps; 0 before one is done
    crashed: Flag
    missed: Flag
    episode_return: Scalar
    recent_commands: tuple[NormalizedCommand, ...]  # the newest first
    gust: Vec3 | None


RaceState = State[RaceWorld, QuadrotorState, RaceProgress]
