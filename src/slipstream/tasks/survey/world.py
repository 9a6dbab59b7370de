"""The country that drones survey: hills, buildings, trees, people, targets and zones, another one for every seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from ...core.geometry import Flag, Scalar, Vec2, Vec3, sin_cos
from ...core.rng import Rng
from ...core.struct import struct
from ...sensors.detection import ball_between, box_between

C = TypeVar("C")
MEDIUM, HIGH, NO_FLY = 1, 2, 3
"""Levels of a zone: a threat that costs a little, one that must be kept out of, and one the law keeps drones out of."""
PERSON, VEHICLE = 0, 1
SIZES = (1.7, 4.5, 6.0)
"""Extents of the kinds of target, m."""
VALUES = (100.0, 100.0, 75.0, 75.0, 50.0, 50.0, 25.0, 25.0)
PRIORITIES = (4.0, 2.0, 1.5, 1.0)
"""What a find in an area is worth, by the area's priority."""


@struct
class Hill:
    """The cap of a ball whose centre lies below the ground: convex, and nowhere steep."""

    center: Vec3
    radius: Scalar


@struct
class Building:
    """An upright box; cosine and sine of its heading."""

    center: Vec2
    half: Vec2
    height: Scalar
    cos: Scalar
    sin: Scalar

    def local(self, v: Vec2) -> Vec2:
        return Vec2(self.cos * v.x + self.sin * v.y, self.cos * v.y - self.sin * v.x)

    def outward(self, point: Vec3) -> Vec3:
        """From the nearest point of the building to `point`; zero inside."""
        off = self.local(Vec2(point.x, point.y) - self.center)
        x = off.x - jnp.clip(off.x, -self.half.x, self.half.x)
        y = off.y - jnp.clip(off.y, -self.half.y, self.half.y)
        return Vec3(self.cos * x - self.sin * y, self.sin * x + self.cos * y, jnp.maximum(point.z - self.height, 0.0))

    def hides(self, eye: Vec3, point: Vec3) -> Flag:
        start, end = (self.local(Vec2(p.x, p.y) - self.center) for p in (eye, point))
        middle = 0.5 * self.height
        way = Vec3(end.x - start.x, end.y - start.y, point.z - eye.z)
        return box_between(Vec3(start.x, start.y, eye.z - middle), way, Vec3(self.half.x, self.half.y, middle))


@struct
class Tree:
    """A trunk and a round crown."""

    place: Vec2
    height: Scalar
    crown: Scalar


@struct
class OscillatingMover:
    """Something that goes to and fro about a place; with no span it stays there."""

    place: Vec2
    span: Vec2
    pulse: Scalar  # rad/s

    def at(self, clock: Scalar) -> Vec2:
        return self.place + self.span * sin_cos(self.pulse * clock)[0]

    def speed(self, clock: Scalar) -> Vec2:
        return self.span * (self.pulse * sin_cos(self.pulse * clock)[1])


@struct
class Target:
    """What is looked for."""

    mover: OscillatingMover
    kind: Int[Array, ""]
    size: Scalar
    value: Scalar
    weight: Scalar  # by the priority of its area


@struct
class Area:
    """A named area of interest: where targets are thought to be."""

    center: Vec2
    radius: Scalar
    priority: Int[Array, ""]  # 0 is the first


@struct
class Zone:
    """An upright cylinder that drones keep out of, from the time it is in force."""

    center: Vec2
    radius: Scalar
    told: Scalar  # when drones are told of it
    begins: Scalar
    ends: Scalar
    level: Int[Array, ""]

    def known(self, clock: Scalar) -> Flag:
        return (clock >= self.told) & (clock < self.ends)

    def active(self, clock: Scalar) -> Flag:
        return (clock >= self.begins) & (clock < self.ends)

    def depth(self, point: Vec3) -> Scalar:
        """How far inside a point is; negative outside."""
        return self.radius - (Vec2(point.x, point.y) - self.center).norm()


@struct
class Weather:
    """Wind and light."""

    wind: Vec3
    sun: Vec3
    haze: Scalar  # distance at which half of a colour is lost, m
    grain: Scalar  # noise of a pixel
    tint: Scalar  # how dry the ground looks, from 0 to 1


@struct
class SurveyWorld:
    """One world. Each of the plural leaves has an axis of its things."""

    hills: Hill
    buildings: Building
    trees: Tree
    people: OscillatingMover
    targets: Target
    areas: Area
    zones: Zone
    pads: Vec2  # where drones start and land
    weather: Weather
    drain: Scalar  # battery used, relative to the usual
    life: Scalar  # seconds until it is replaced by another, as a share of the usual

    def terrain(self, x: Scalar, y: Scalar) -> Scalar:
        """Height of the ground."""

        def higher(top: Scalar, hill: Hill) -> Scalar:
            off = Vec2(x - hill.center.x, y - hill.center.y)
            room = hill.radius**2 - off.dot(off)
            return jnp.maximum(top, hill.center.z + jnp.sqrt(jnp.maximum(room, 0.0)))

        return fold(higher, 0.0 * jnp.asarray(x), self.hills)

    def hidden(self, eye: Vec3, point: Vec3) -> Flag:
        """Whether a hill or a building stands between."""
        hidden = fold(lambda h, b: h | b.hides(eye, point), eye.x != eye.x, self.buildings)
        return fold(lambda h, hill: h | ball_between(eye, point, hill.center, hill.radius), hidden, self.hills)


def one(things: C, number: Array | int) -> C:
    """One of many things, or what belongs to one of many drones."""
    return jax.tree.map(lambda x: x[number], things)


def listed(things: C) -> list[C]:
    """All of many things."""
    return [one(things, i) for i in range(jax.tree.leaves(things)[0].shape[0])]


def abreast(things: C) -> C:
    """Things with an axis for the drones that look at them: what is computed of both has all pairs.

    The axis of drones is the last, so it is the one that becomes vectors.
    """
    return jax.tree.map(lambda x: x[:, None], things)


def fold(function: Callable[[C, Any], C], start: C, things: Any) -> C:
    """`function(carry, thing)` over the things of a world, written out: what is carried stays in registers."""
    for thing in listed(things):
        start = function(start, thing)
    return start


def loop(function: Callable[[C, Any], C], start: C, things: Any) -> C:
    """As `fold`, but as a loop: several times slower, where written out it would take minutes to compile."""
    return jax.lax.scan(lambda carry, thing: (function(carry, thing), None), start, things)[0]


def many(count: int, rng: Rng, draw: Callable[[Rng, Array], Any]) -> Any:
    """`count` things, each drawn from a stream of its own."""
    return jax.vmap(lambda i: draw(rng.fork(i), i))(jnp.arange(count))


@dataclass(frozen=True)
class WorldGenerator:
    """How a country is drawn. Lengths are half edges of the geofence."""

    east: float = 330.0
    north: float = 330.0
    apron: float = 60.0
    """strip along the west edge that is kept clear for landing pads"""
    hills: int = 4
    buildings: int = 8
    tallest: float = 45.0
    trees: int = 12
    people: int = 4
    targets: int = 16
    areas: int = 4
    fixed_zones: int = 2
    popup_zones: int = 2
    high_threats: int = 0
    medium_threats: int = 0
    zone_radius: tuple[float, float] = (40.0, 80.0)
    popup_between: tuple[float, float] = (20.0, 120.0)
    """when a zone that appears later is told of, s"""
    notice: float = 30.0
    """from telling of a zone until it is in force, s"""
    roaming: float = 0.0
    """largest speed of targets that move, m/s; half of them stand still"""
    wind: float = 5.0
    lanes: bool = False
    """zones in lanes of their own, so that there is always a way between them"""
    inner: float = 0.0
    """half an edge of the square that holds areas of interest and targets; 0 is all of the country"""
    meadow: bool = False
    """targets each in a square of its own, instead of in the areas of interest"""

    @property
    def zones(self) -> int:
        return self.fixed_zones + self.popup_zones + self.high_threats + self.medium_threats

    def draw(self, rng: Rng, pads: int) -> SurveyWorld:
        """A country of this kind."""
        parts = [rng.fork(100 + k) for k in range(9)]
        areas = many(self.areas, parts[0], self._area)
        return SurveyWorld(
            hills=many(self.hills, parts[1], self._hill),
            buildings=many(self.buildings, parts[2], self._building),
            trees=many(self.trees, parts[3], self._tree),
            people=many(self.people, parts[4], lambda c, i: self._mover(*self._spot(c), 1.5)),
            targets=many(self.targets, parts[5], lambda c, i: self._target(c, i, areas)),
            areas=areas,
            zones=many(self.zones, parts[6], self._zone),
            pads=self._pads(pads),
            weather=self._weather(parts[8]),
            drain=parts[8].fork(1).uniform(0.9, 1.3)[0],
            life=parts[8].fork(2).uniform(0.6, 1.4)[0],
        )

    def _spot(self, rng: Rng, inset: float = 30.0) -> tuple[Vec2, Rng]:
        """Somewhere off the apron."""
        x, rng = rng.uniform(-self.east + self.apron + inset, self.east - inset)
        y, rng = rng.uniform(-self.north + inset, self.north - inset)
        return Vec2(x, y), rng

    def _within(self, spot: Vec2, inset: float) -> Vec2:
        """The spot, brought into the square that is looked at."""
        if not self.inner:
            return spot
        most = self.inner - inset
        return Vec2(jnp.clip(spot.x, -most, most), jnp.clip(spot.y, -most, most))

    def _hill(self, rng: Rng, _: Array) -> Hill:
        spot, rng = self._spot(rng, 60.0)
        base, rng = rng.uniform(80.0, 180.0)
        top, rng = rng.uniform(6.0, 22.0)
        radius = (base * base + top * top) / (2.0 * top)
        return Hill(Vec3(spot.x, spot.y, top - radius), radius)

    def _building(self, rng: Rng, _: Array) -> Building:
        spot, rng = self._spot(rng)
        x, rng = rng.uniform(6.0, 16.0)
        y, rng = rng.uniform(6.0, 16.0)
        low, rng = rng.uniform()
        turn, rng = rng.uniform(0.0, math.pi)
        sin, cos = sin_cos(turn)
        # Most are low; a few tower.
        return Building(spot, Vec2(x, y), 8.0 + (self.tallest - 8.0) * low**3, cos, sin)

    def _tree(self, rng: Rng, _: Array) -> Tree:
        spot, rng = self._spot(rng, 10.0)
        height, rng = rng.uniform(6.0, 14.0)
        crown, rng = rng.uniform(2.0, 4.0)
        return Tree(spot, height, crown)

    def _mover(self, spot: Vec2, rng: Rng, fastest: float) -> OscillatingMover:
        turn, rng = rng.uniform(-math.pi, math.pi)
        span, rng = rng.uniform(15.0, 60.0)
        speed, rng = rng.uniform(-fastest, fastest)
        sin, cos = sin_cos(turn)
        # Half of them stand still.
        return OscillatingMover(spot, Vec2(cos * span, sin * span), jnp.maximum(speed, 0.0) / span)

    def _area(self, rng: Rng, index: Array) -> Area:
        radius, rng = rng.uniform(30.0, 60.0)
        spot, rng = self._spot(rng, 60.0)
        spot = self._within(spot, 60.0)
        return Area(spot, radius, index % len(PRIORITIES))

    def _target(self, rng: Rng, index: Array, areas: Area) -> Target:
        """Most lie in an area of interest; every eighth is a surprise anywhere."""
        near, rng = rng.integer(self.areas)
        area = one(areas, near)
        east, rng = rng.normal(0.5)
        north, rng = rng.normal(0.5)
        anywhere, rng = self._spot(rng)
        surprise = index % 8 == 7
        reach = 1.2
        x = area.center.x + area.radius * jnp.clip(east, -reach, reach)
        y = area.center.y + area.radius * jnp.clip(north, -reach, reach)
        spot = Vec2(jnp.where(surprise, anywhere.x, x), jnp.where(surprise, anywhere.y, y))
        spot = self._within(spot, 5.0)
        if self.meadow:
            side = math.ceil(math.sqrt(self.targets))
            width, depth = (2.0 * self.east - self.apron) / side, 2.0 * self.north / side
            spot = Vec2(
                -self.east + self.apron + width * (index % side + 0.5 + 0.1 * east),
                -self.north + depth * (index // side + 0.5 + 0.1 * north),
            )
        mover = self._mover(spot, rng, self.roaming) if self.roaming else still(spot)
        kind = index % len(SIZES)
        return Target(
            mover=mover,
            kind=kind,
            size=jnp.asarray(SIZES, jnp.float32)[kind],
            value=jnp.asarray(VALUES, jnp.float32)[index % len(VALUES)],
            weight=jnp.where(surprise, 1.0, jnp.asarray(PRIORITIES, jnp.float32)[area.priority]),
        )

    def _zone(self, rng: Rng, index: Array) -> Zone:
        radius, rng = rng.uniform(*self.zone_radius)
        first = self.apron + self.zone_radius[1] + 40.0
        spot, rng = self._spot(rng, 0.0)
        along = spot.x
        if self.lanes:
            # Each in its own part of the way east, so that between any two there is room.
            share, rng = rng.uniform(0.3, 0.7)
            along = -self.east + first + (index + share) * ((2.0 * self.east - 2.0 * first) / self.zones)
        later = (index >= self.fixed_zones) & (index < self.fixed_zones + self.popup_zones)
        told, rng = rng.uniform(*self.popup_between)
        told = jnp.where(later, told, 0.0)
        level = jnp.where(index < self.fixed_zones + self.popup_zones, NO_FLY, HIGH)
        level = jnp.where(index >= self.zones - self.medium_threats, MEDIUM, level)
        return Zone(
            center=Vec2(jnp.clip(along, -self.east + first, self.east - first), spot.y),
            radius=radius,
            told=told,
            begins=jnp.where(later, told + self.notice, 0.0),
            ends=jnp.float32(1e9),
            level=level,
        )

    def _pads(self, count: int) -> Vec2:
        """In a row on the apron, or in two where that is short."""
        number = jnp.arange(count)
        rows = 1 if 2.0 * self.north / count > 20.0 else 2
        room = 2.0 * (self.north - 20.0) * rows / count
        y = -self.north + 20.0 + room * (number // rows + 0.5)
        x = -self.east + 15.0 + 22.0 * (number % rows)
        return Vec2(x.astype(jnp.float32), y.astype(jnp.float32))

    def _weather(self, rng: Rng) -> Weather:
        speed, rng = rng.uniform(0.0, self.wind)
        turn, rng = rng.uniform(-math.pi, math.pi)
        sin, cos = sin_cos(turn)
        hour, rng = rng.uniform(-1.0, 1.0)
        round_, rng = rng.uniform(-math.pi, math.pi)
        haze, rng = rng.uniform(400.0, 1500.0)
        grain, rng = rng.uniform(0.0, 0.03)
        tint, rng = rng.uniform()
        flat, aside = sin_cos(round_)
        up = 1.0 - 0.5 * hour * hour
        level = jnp.sqrt(jnp.maximum(1.0 - up * up, 0.0))
        wind = Vec3(cos * speed, sin * speed, 0.0 * speed)
        return Weather(wind, Vec3(aside * level, flat * level, up), haze, grain, tint)


def still(spot: Vec2) -> OscillatingMover:
    zero = 0.0 * spot.x
    return OscillatingMover(spot, Vec2(zero, zero), zero)


def country_of(scenery: dict[str, Any], land: WorldGenerator, pads: int) -> SurveyWorld:
    """The country that an episode's scenery holds, leaf by leaf."""
    like = jax.eval_shape(lambda: land.draw(Rng.from_seed(0, 0), pads))
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.asarray(scenery[jax.tree_util.keystr(path, simple=True, separator=".")]), like
    )
