"""Gates, fixed tracks, and a generator that draws a new track for every world."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from ...core.geometry import Flag, Scalar, Vec3, sin_cos
from ...core.rng import Rng
from ...core.struct import struct

OPENING, OUTER, DEPTH = 1.524, 2.1336, 0.132
"""Edge of the square opening of a gate, outer edge of its frame, and thickness of the frame, m."""


@struct
class Crossing:
    """The motion of a drone relative to a gate in one step."""

    through: Flag  # it flew through the opening in the right direction
    hit: Flag  # it touched the frame
    forward: Flag  # it crossed the plane of the gate in the right direction, at any point
    offset: Scalar  # distance of the crossing from the center, as a fraction of the largest possible


@struct
class Gate:
    """A vertical square frame, to be flown through along its heading."""

    center: Vec3
    cos: Scalar  # cosine and sine of its heading
    sin: Scalar

    def local(self, point: Vec3) -> Vec3:
        """`point` in the gate's frame: x through the gate, y to its left, z up."""
        # In this order the second term is a compile-time constant for a fixed gate.
        return self.unrotate(point) - self.unrotate(self.center)

    def unrotate(self, v: Vec3) -> Vec3:
        """World to gate."""
        return Vec3(self.cos * v.x + self.sin * v.y, self.cos * v.y - self.sin * v.x, v.z)

    @property
    def normal(self) -> Vec3:
        return Vec3(self.cos, self.sin, 0.0)

    @partial(jax.jit, static_argnames="radius")  # traced once for all gates
    def crossing(self, before: Vec3, after: Vec3, radius: float) -> Crossing:
        """The crossing by a vehicle of that radius which moves from `before` to `after`."""
        b, a = self.local(before), self.local(after)
        cross = (b.x < 0.0) != (a.x < 0.0)
        # The path meets the plane at (b.x a − a.x b) / (b.x − a.x). Both sides of every comparison are multiplied by
        # the divisor, which saves the division.
        depth = jnp.abs(b.x - a.x)
        aside = jnp.maximum(jnp.abs(b.x * a.y - a.x * b.y), jnp.abs(b.x * a.z - a.x * b.z))
        room = OPENING / 2 - radius
        inside = aside < room * depth
        forward = cross & (b.x < 0.0)
        near = jnp.maximum(jnp.abs(a.y), jnp.abs(a.z))
        in_slab = (jnp.abs(a.x) < DEPTH / 2) & (near < OUTER / 2 + radius) & (near > room)
        hit = (cross & ~inside & (aside < (OUTER / 2 + radius) * depth)) | in_slab
        return Crossing(forward & inside, hit, forward, aside / jnp.maximum(room * depth, 1e-9))


def gate_at(gates: Sequence[Gate], index: Int[Array, ""]) -> Gate:
    """`gates[index]` as a chain of selects, which vectorizes where a gather would not."""
    chosen = gates[0]
    for i, gate in enumerate(gates[1:], start=1):
        chosen = jax.tree.map(partial(jnp.where, index == i), gate, chosen)
    return chosen


@dataclass(frozen=True)
class Track:
    """A closed track, the same in every world: gates in the order they are flown."""

    poses: tuple[tuple[float, float, float, float], ...]
    """for each gate x, y and z of the middle of its lower edge, m, and its heading, rad"""

    def __post_init__(self) -> None:
        if len(self.poses) < 3:
            raise ValueError(f"a track needs at least 3 gates, not {len(self.poses)}")

    @property
    def count(self) -> int:
        return len(self.poses)

    @cached_property
    def fixed(self) -> tuple[Gate, ...]:
        return tuple(
            Gate(Vec3(x, y, z + OUTER / 2), round(math.cos(yaw), 7), round(math.sin(yaw), 7))
            for x, y, z, yaw in self.poses
        )

    def draw(self, rng: Rng) -> tuple[tuple[Gate, ...], Rng]:
        """The gates that a world has to store: none, because a fixed track is part of the program."""
        return (), rng

    def gates(self, drawn: tuple[Gate, ...]) -> tuple[Gate, ...]:
        """The gates of a world that has stored `drawn`."""
        return self.fixed


@dataclass(frozen=True)
class PlacedTrack:
    """A track whose gates may be traced numbers: a program that is compiled for it serves all tracks of its length."""

    fixed: tuple[Gate, ...]

    @property
    def count(self) -> int:
        return len(self.fixed)

    def draw(self, rng: Rng) -> tuple[tuple[Gate, ...], Rng]:
        return (), rng

    def gates(self, drawn: tuple[Gate, ...]) -> tuple[Gate, ...]:
        return self.fixed


@dataclass(frozen=True)
class GeneratedTrack:
    """A random closed track around the origin for every world.

    Gates stand around the curve r = radius (1 + m sin(kφ + φ₀)) with k of 2 or 3, at random heights. Each faces from
    the gate before it towards the gate after it. The default ranges keep neighboring gates at least 3 m apart.
    """

    count: int = 6
    """number of gates"""
    radius: tuple[float, float] = (6.0, 9.0)
    """smallest and largest mean radius of the curve, m"""
    height: tuple[float, float] = (0.0, 2.5)
    """smallest and largest height of the lower edge of a gate, m"""
    modulation: float = 0.2
    """largest relative modulation of the radius"""
    jitter: float = 0.15
    """largest displacement of a gate along the curve, as a fraction of the spacing"""
    turn: float = 0.3
    """largest angle between a gate's normal and the line between its neighbors, rad"""

    def __post_init__(self) -> None:
        if not 4 <= self.count <= 16:
            raise ValueError(f"a generated track has 4 to 16 gates, not {self.count}")

    def draw(self, rng: Rng) -> tuple[tuple[Gate, ...], Rng]:
        """The gates of one world."""
        radius, rng = rng.uniform(*self.radius)
        phase, rng = rng.uniform(0.0, 2.0 * math.pi)
        lobe_phase, rng = rng.uniform(0.0, 2.0 * math.pi)
        depth, rng = rng.uniform(0.0, self.modulation)
        coin, rng = rng.uniform()
        lobes = jnp.where(coin < 0.5, 2.0, 3.0)
        side, rng = rng.uniform()
        direction = jnp.where(side < 0.5, 1.0, -1.0)
        centers: list[Vec3] = []
        for k in range(self.count):
            slip, rng = rng.uniform(-self.jitter, self.jitter)
            height, rng = rng.uniform(*self.height)
            around = (k + slip) * (2.0 * math.pi / self.count)
            sin, cos = sin_cos(phase + direction * around)
            reach = radius * (1.0 + depth * sin_cos(lobes * around + lobe_phase)[0])
            centers.append(Vec3(reach * cos, reach * sin, height + OUTER / 2))
        gates: list[Gate] = []
        for k, center in enumerate(centers):
            ahead = centers[(k + 1) % self.count] - centers[k - 1]
            along = Vec3(ahead.x, ahead.y, 0.0).unit()
            turn, rng = rng.uniform(-self.turn, self.turn)
            sin, cos = sin_cos(turn)
            gates.append(Gate(center, cos * along.x - sin * along.y, sin * along.x + cos * along.y))
        return tuple(gates), rng

    def gates(self, drawn: tuple[Gate, ...]) -> tuple[Gate, ...]:
        return drawn


def ring(gates: int, radius: float, step: float = 0.0) -> Track:
    """Gates on a circle, every second one raised by `step`."""
    angles = [2.0 * math.pi * k / gates for k in range(gates)]
    return Track(
        tuple(
            (radius * math.cos(a), radius * math.sin(a), step * (k % 2), a + math.pi / 2) for k, a in enumerate(angles)
        )
    )


def figure_eight(gates: int = 8, length: float = 8.0, width: float = 5.0, lift: float = 2.4) -> Track:
    """A lemniscate whose second pass through the crossing lies above the first."""

    def at(t: float) -> tuple[float, float]:
        return length * math.cos(t), width * math.sin(2.0 * t)

    poses = []
    for k in range(gates):
        t = 2.0 * math.pi * (k + 0.5) / gates
        (x, y), (ahead_x, ahead_y) = at(t), at(t + 1e-4)
        upper = math.sin(t) < 0.0 and abs(x) < 0.6 * length
        poses.append((x, y, lift if upper else 0.0, math.atan2(ahead_y - y, ahead_x - x)))
    return Track(tuple(poses))


seven = Track(
    (
        (0.0, 0.0, 1.0, 0.0),
        (10.0, 5.0, 0.0, 0.0),
        (10.0, -5.0, 0.0, 5.0 * math.pi / 4),
        (-5.0, -5.0, 2.5, math.pi),
        (-5.0, -5.0, 0.0, 0.0),
        (5.0, 0.0, 0.0, math.pi / 2),
        (0.0, 5.0, 0.0, math.pi),
    )
)

long = Track(
    (
        (0.0, 0.0, 0.0, 0.0),
        (9.0, 1.0, 0.5, 0.3),
        (17.0, 6.0, 1.5, 0.8),
        (20.0, 14.0, 0.0, math.pi / 2),
        (15.0, 21.0, 0.0, 2.6),
        (6.0, 22.0, 2.0, math.pi),
        (-2.0, 18.0, 0.0, -2.4),
        (-3.0, 10.0, 0.0, -0.9),
        (4.0, 8.0, 1.0, 0.2),
        (10.0, 12.0, 0.0, 1.9),
        (3.0, 15.0, 2.5, math.pi),
        (-9.0, 12.0, 0.5, -2.2),
        (-12.0, 3.0, 0.0, -1.2),
    )
)

AnyTrack = Track | PlacedTrack | GeneratedTrack
TRACKS: dict[str, Track | GeneratedTrack] = {
    "seven": seven,
    "ring": ring(6, 5.0, 1.0),
    "eight": figure_eight(),
    "long": long,
    "generated": GeneratedTrack(),
}
