"""Gates, the tracks they make, and a generator that draws a new flyable track for every world."""

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

OPENING = 1.524
OUTER = 2.1336
DEPTH = 0.132


@struct
class Crossing:
    """What happened between a drone and a gate in one step."""

    through: Flag  # flown through, the right way
    hit: Flag  # touched the frame
    forward: Flag  # the plane of the gate was crossed the right way, wherever
    offset: Scalar  # of the crossing from the centre, as a share of the room there is


@struct
class Gate:
    """A square frame standing upright, to be flown through along its heading."""

    center: Vec3
    cos: Scalar  # of its heading
    sin: Scalar

    def local(self, point: Vec3) -> Vec3:
        """`point` in the gate's own frame: through, aside, up."""
        # In this order a fixed gate's own part is a constant of the program.
        return self.turned_in(point) - self.turned_in(self.center)

    def turned_in(self, v: Vec3) -> Vec3:
        """A direction of the world in the gate's frame."""
        return Vec3(self.cos * v.x + self.sin * v.y, self.cos * v.y - self.sin * v.x, v.z)

    @property
    def normal(self) -> Vec3:
        return Vec3(self.cos, self.sin, 0.0)

    @partial(jax.jit, static_argnames="radius")  # traced once for all gates
    def crossing(self, before: Vec3, after: Vec3, radius: float) -> Crossing:
        """What going from `before` to `after` meant for a vehicle that reaches `radius` from its centre."""
        b, a = self.local(before), self.local(after)
        cross = (b.x < 0.0) != (a.x < 0.0)
        # The plane is met at (b.x a − a.x b) / (b.x − a.x); all is compared times the divisor, to divide nowhere.
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
    """The gate of that index: a chain of selects, which vectorises where a gather would not."""
    chosen = gates[0]
    for i, gate in enumerate(gates[1:], start=1):
        chosen = jax.tree.map(partial(jnp.where, index == i), gate, chosen)
    return chosen


@dataclass(frozen=True)
class Track:
    """Gates in the order they are flown; the last is followed by the first. The same in every world."""

    places: tuple[tuple[float, float, float, float], ...]
    """For each gate x, y and z of the middle of its lower edge, and its heading."""

    def __post_init__(self) -> None:
        if len(self.places) < 3:
            raise ValueError(f"a track needs at least 3 gates, not {len(self.places)}")

    @property
    def count(self) -> int:
        return len(self.places)

    @cached_property
    def fixed(self) -> tuple[Gate, ...]:
        return tuple(
            Gate(Vec3(x, y, z + OUTER / 2), round(math.cos(yaw), 7), round(math.sin(yaw), 7))
            for x, y, z, yaw in self.places
        )

    def draw(self, rng: Rng) -> tuple[tuple[Gate, ...], Rng]:
        """What a world has to remember of its track: of a fixed one, nothing."""
        return (), rng

    def gates(self, drawn: tuple[Gate, ...]) -> tuple[Gate, ...]:
        return self.fixed


@dataclass(frozen=True)
class GeneratedTrack:
    """A closed track around the origin, different in every world.

    Gates stand on a circle whose radius is modulated twice or three times around, jittered along it, at random
    heights; each faces from the gate before towards the gate after. The bounds keep neighbours 3 m apart.
    """

    count: int = 6
    radius: tuple[float, float] = (6.0, 9.0)
    height: tuple[float, float] = (0.0, 2.5)
    """Of the lower edge of a gate."""
    modulation: float = 0.2
    jitter: float = 0.15
    """Along the circle, as a share of the spacing."""
    turn: float = 0.3
    """How far a gate is turned away from the ideal line, rad."""

    def __post_init__(self) -> None:
        if not 4 <= self.count <= 16:
            raise ValueError(f"a generated track has 4 to 16 gates, not {self.count}")

    def draw(self, rng: Rng) -> tuple[tuple[Gate, ...], Rng]:
        radius, rng = rng.uniform(*self.radius)
        phase, rng = rng.uniform(0.0, 2.0 * math.pi)
        lobe_phase, rng = rng.uniform(0.0, 2.0 * math.pi)
        depth, rng = rng.uniform(0.0, self.modulation)
        coin, rng = rng.uniform()
        lobes = jnp.where(coin < 0.5, 2.0, 3.0)
        side, rng = rng.uniform()
        way = jnp.where(side < 0.5, 1.0, -1.0)
        centers: list[Vec3] = []
        for k in range(self.count):
            slip, rng = rng.uniform(-self.jitter, self.jitter)
            height, rng = rng.uniform(*self.height)
            around = (k + slip) * (2.0 * math.pi / self.count)
            sin, cos = sin_cos(phase + way * around)
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
    """A lemniscate whose second pass through the middle is flown above the first."""

    def at(t: float) -> tuple[float, float]:
        return length * math.cos(t), width * math.sin(2.0 * t)

    places = []
    for k in range(gates):
        t = 2.0 * math.pi * (k + 0.5) / gates
        (x, y), (ahead_x, ahead_y) = at(t), at(t + 1e-4)
        upper = math.sin(t) < 0.0 and abs(x) < 0.6 * length
        places.append((x, y, lift if upper else 0.0, math.atan2(ahead_y - y, ahead_x - x)))
    return Track(tuple(places))


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

TRACKS: dict[str, Track | GeneratedTrack] = {
    "seven": seven,
    "ring": ring(6, 5.0, 1.0),
    "eight": figure_eight(),
    "long": long,
    "generated": GeneratedTrack(),
}
