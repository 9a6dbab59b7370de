"""The state of the field robot: a field of crop rows, the queue of commands, and how far the robot has come."""

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from ...core.geometry import Flag, Scalar, Vec2
from ...core.struct import struct
from ...core.task import State
from ...dynamics.rover import Ground, RoverState

Word = UInt32[Array, ""]
Count = Int[Array, ""]


@struct
class Rows:
    """A field of rows. Plants are not stored: where each stands is a hash of its row and number."""

    salt: Word  # of all plants
    spacing: Scalar  # m
    length: Scalar  # m
    bend: Scalar  # largest offset of a control point, m
    curvature: Scalar  # 1/m
    missing: Scalar  # fraction of plants
    gaps: Scalar  # fraction of stretches


@struct
class Queue:
    """The commands of an episode: at the end of each lane, to which side to turn and how many rows to go on."""

    right: Word  # a bit for each command
    rows: Word  # two bits for each command: rows less one

    def is_right(self, command: Count) -> Flag:
        return ((self.right >> command.astype(jnp.uint32)) & 1) == 1

    def rows_of(self, command: Count) -> Count:
        return ((self.rows >> (2 * command).astype(jnp.uint32)) & 3).astype(jnp.int32) + 1

    def lane_change(self, turn: Count) -> Count:
        """Lanes to the left of the first one's direction. Every second lane is driven backward: there right is left."""
        back = (turn % 2) == 1
        return jnp.where(self.is_right(turn) == back, self.rows_of(turn), -self.rows_of(turn))


@struct
class FieldWorld:
    """What stays the same for an episode."""

    rows: Rows
    queue: Queue
    ground: Ground


@struct
class Controls:
    """A decoded action."""

    steer: Scalar  # −1 to 1: the change of the steering angle
    throttle: Scalar  # −1 to 1
    mode: Count  # of steering
    advance: Flag  # whether the button that advances the queue is pressed
    memory: tuple[Scalar, ...]  # −1 to 1: the change of each memory cell


@struct
class FieldProgress:
    """How far the robot has come."""

    turns: Count  # made; one fewer than the number of the lane being driven
    stage: Count  # number of the waypoint in this lane; after the last one comes the waypoint of the turn
    lane: Count  # counted to the left of the first one
    leg: Scalar  # distance at which the waypoint was approached first, m
    distance: Scalar  # to the waypoint, m
    due: Count  # how often the queue should have been advanced when this lane began
    advanced: Count  # how often it was
    command: Count  # the command that it shows
    rows_left: Count  # of that command
    memory: tuple[Scalar, ...]  # cells that the robot writes and observes
    controls: Controls  # the last ones
    odometry: Vec2  # driven since the queue was advanced last, by the wheels, in the frame of the body, m
    touched: Flag
    lost: Flag
    finished: Flag
    episode_return: Scalar


FieldState = State[FieldWorld, RoverState, FieldProgress]
