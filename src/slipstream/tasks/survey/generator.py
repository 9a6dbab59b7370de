"""How worlds are drawn: another one for every seed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...core.geometry import Vec2, Vec3, sin_cos
from ...core.rng import Rng
from .stacked import at, draw_many
from .world import (
    HIGH,
    MEDIUM,
    NO_FLY,
    Area,
    Building,
    Hill,
    OscillatingMover,
    SurveyWorld,
    Target,
    Tree,
    Weather,
    Zone,
)

TARGET_SIZES = (1.7, 4.5, 6.0)
"""Extents of persons, vehicles and objects, m."""
TARGET_VALUES = (100.0, 100.0, 75.0, 75.0, 50.0, 50.0, 25.0, 25.0)
PRIORITY_WEIGHTS = (4.0, 2.0, 1.5, 1.0)
"""Weight of a target by the priority of its area."""


@dataclass(frozen=True)
class WorldGenerator:
    """Settings of the random worlds of a mission."""

    east: float = 330.0
    """half the east-west extent of the geofence, m"""
    north: float = 330.0
    """half the north-south extent of the geofence, m"""
    pad_strip_width: float = 60.0
    """width of the strip along the west edge that is kept clear for landing pads, m"""
    hills: int = 4
    buildings: int = 8
    max_building_height: float = 45.0
    """height of the tallest building possible, m"""
    trees: int = 12
    people: int = 4
    targets: int = 16
    areas: int = 4
    """areas of interest"""
    fixed_zones: int = 2
    """no-fly zones that are active from the start"""
    popup_zones: int = 2
    """no-fly zones that appear later"""
    high_threats: int = 0
    """zones that end a sortie"""
    medium_threats: int = 0
    """zones with a small penalty"""
    zone_radius: tuple[float, float] = (40.0, 80.0)
    """smallest and largest radius of a zone, m"""
    popup_time: tuple[float, float] = (20.0, 120.0)
    """earliest and latest time at which a zone that appears later is announced, s"""
    zone_warning_time: float = 30.0
    """time between the announcement of a zone and its activation, s"""
    max_target_speed: float = 0.0
    """largest speed of targets, m/s; half of them stand still"""
    max_wind: float = 5.0
    """largest wind speed, m/s"""
    zone_lanes: bool = False
    """whether each zone has a lane of its own, so that there is always a way between them"""
    interest_half_extent: float = 0.0
    """half the edge of the square that holds areas of interest and targets, m; 0 is the whole world"""
    grid_targets: bool = False
    """whether targets are spread over a grid, instead of lying in the areas of interest"""

    @property
    def zones(self) -> int:
        return self.fixed_zones + self.popup_zones + self.high_threats + self.medium_threats

    def draw(self, rng: Rng, pads: int) -> SurveyWorld:
        """A random world."""
        streams = [rng.fork(100 + k) for k in range(9)]
        areas = draw_many(self.areas, streams[0], self._area)
        return SurveyWorld(
            hills=draw_many(self.hills, streams[1], self._hill),
            buildings=draw_many(self.buildings, streams[2], self._building),
            trees=draw_many(self.trees, streams[3], self._tree),
            people=draw_many(self.people, streams[4], lambda own, i: self._mover(*self._position(own), 1.5)),
            targets=draw_many(self.targets, streams[5], lambda own, i: self._target(own, i, areas)),
            areas=areas,
            zones=draw_many(self.zones, streams[6], self._zone),
            pads=self._pads(pads),
            weather=self._weather(streams[8]),
            drain=streams[8].fork(1).uniform(0.9, 1.3)[0],
            lifetime=streams[8].fork(2).uniform(0.6, 1.4)[0],
        )

    def _position(self, rng: Rng, inset: float = 30.0) -> tuple[Vec2, Rng]:
        """A position off the pad strip."""
        x, rng = rng.uniform(-self.east + self.pad_strip_width + inset, self.east - inset)
        y, rng = rng.uniform(-self.north + inset, self.north - inset)
        return Vec2(x, y), rng

    def _of_interest(self, position: Vec2, inset: float) -> Vec2:
        """The position, clipped to the square of interest."""
        if not self.interest_half_extent:
            return position
        limit = self.interest_half_extent - inset
        return Vec2(jnp.clip(position.x, -limit, limit), jnp.clip(position.y, -limit, limit))

    def _hill(self, rng: Rng, _: Array) -> Hill:
        position, rng = self._position(rng, 60.0)
        base, rng = rng.uniform(80.0, 180.0)
        top, rng = rng.uniform(6.0, 22.0)
        radius = (base * base + top * top) / (2.0 * top)
        return Hill(Vec3(position.x, position.y, top - radius), radius)

    def _building(self, rng: Rng, _: Array) -> Building:
        position, rng = self._position(rng)
        x, rng = rng.uniform(6.0, 16.0)
        y, rng = rng.uniform(6.0, 16.0)
        unit, rng = rng.uniform()
        yaw, rng = rng.uniform(0.0, math.pi)
        sin, cos = sin_cos(yaw)
        # The cube makes most of them low and a few tall.
        return Building(position, Vec2(x, y), 8.0 + (self.max_building_height - 8.0) * unit**3, cos, sin)

    def _tree(self, rng: Rng, _: Array) -> Tree:
        position, rng = self._position(rng, 10.0)
        height, rng = rng.uniform(6.0, 14.0)
        crown, rng = rng.uniform(2.0, 4.0)
        return Tree(position, height, crown)

    def _mover(self, center: Vec2, rng: Rng, max_speed: float) -> OscillatingMover:
        yaw, rng = rng.uniform(-math.pi, math.pi)
        amplitude, rng = rng.uniform(15.0, 60.0)
        speed, rng = rng.uniform(-max_speed, max_speed)
        sin, cos = sin_cos(yaw)
        # Negative speeds are set to zero: half of the movers stand still.
        return OscillatingMover(center, Vec2(cos * amplitude, sin * amplitude), jnp.maximum(speed, 0.0) / amplitude)

    def _area(self, rng: Rng, index: Array) -> Area:
        radius, rng = rng.uniform(30.0, 60.0)
        position, rng = self._position(rng, 60.0)
        position = self._of_interest(position, 60.0)
        return Area(position, radius, index % len(PRIORITY_WEIGHTS))

    def _target(self, rng: Rng, index: Array, areas: Area) -> Target:
        """A target: most lie in an area of interest, every eighth lies anywhere."""
        number, rng = rng.integer(self.areas)
        area = at(areas, number)
        east, rng = rng.normal(0.5)
        north, rng = rng.normal(0.5)
        anywhere, rng = self._position(rng)
        surprise = index % 8 == 7
        limit = 1.2
        x = area.center.x + area.radius * jnp.clip(east, -limit, limit)
        y = area.center.y + area.radius * jnp.clip(north, -limit, limit)
        position = Vec2(jnp.where(surprise, anywhere.x, x), jnp.where(surprise, anywhere.y, y))
        position = self._of_interest(position, 5.0)
        if self.grid_targets:
            side = math.ceil(math.sqrt(self.targets))
            width, depth = (2.0 * self.east - self.pad_strip_width) / side, 2.0 * self.north / side
            position = Vec2(
                -self.east + self.pad_strip_width + width * (index % side + 0.5 + 0.1 * east),
                -self.north + depth * (index // side + 0.5 + 0.1 * north),
            )
        mover = self._mover(position, rng, self.max_target_speed) if self.max_target_speed else standing_at(position)
        kind = index % len(TARGET_SIZES)
        return Target(
            mover=mover,
            kind=kind,
            size=jnp.asarray(TARGET_SIZES, jnp.float32)[kind],
            value=jnp.asarray(TARGET_VALUES, jnp.float32)[index % len(TARGET_VALUES)],
            weight=jnp.where(surprise, 1.0, jnp.asarray(PRIORITY_WEIGHTS, jnp.float32)[area.priority]),
        )

    def _zone(self, rng: Rng, index: Array) -> Zone:
        radius, rng = rng.uniform(*self.zone_radius)
        inset = self.pad_strip_width + self.zone_radius[1] + 40.0
        position, rng = self._position(rng, 0.0)
        x = position.x
        if self.zone_lanes:
            # Each zone has its own section from west to east, so that there is room between any two.
            along, rng = rng.uniform(0.3, 0.7)
            x = -self.east + inset + (index + along) * ((2.0 * self.east - 2.0 * inset) / self.zones)
        popup = (index >= self.fixed_zones) & (index < self.fixed_zones + self.popup_zones)
        announced_at, rng = rng.uniform(*self.popup_time)
        announced_at = jnp.where(popup, announced_at, 0.0)
        level = jnp.where(index < self.fixed_zones + self.popup_zones, NO_FLY, HIGH)
        level = jnp.where(index >= self.zones - self.medium_threats, MEDIUM, level)
        return Zone(
            center=Vec2(jnp.clip(x, -self.east + inset, self.east - inset), position.y),
            radius=radius,
            announced_at=announced_at,
            starts_at=jnp.where(popup, announced_at + self.zone_warning_time, 0.0),
            ends_at=jnp.float32(1e9),
            level=level,
        )

    def _pads(self, count: int) -> Vec2:
        """Pads in one row on the pad strip, or in two rows where one is too short."""
        number = jnp.arange(count)
        rows = 1 if 2.0 * self.north / count > 20.0 else 2
        spacing = 2.0 * (self.north - 20.0) * rows / count
        y = -self.north + 20.0 + spacing * (number // rows + 0.5)
        x = -self.east + 15.0 + 22.0 * (number % rows)
        return Vec2(x.astype(jnp.float32), y.astype(jnp.float32))

    def _weather(self, rng: Rng) -> Weather:
        speed, rng = rng.uniform(0.0, self.max_wind)
        yaw, rng = rng.uniform(-math.pi, math.pi)
        sin, cos = sin_cos(yaw)
        hour, rng = rng.uniform(-1.0, 1.0)
        azimuth, rng = rng.uniform(-math.pi, math.pi)
        haze, rng = rng.uniform(400.0, 1500.0)
        grain, rng = rng.uniform(0.0, 0.03)
        tint, rng = rng.uniform()
        sun_sin, sun_cos = sin_cos(azimuth)
        up = 1.0 - 0.5 * hour * hour
        level = jnp.sqrt(jnp.maximum(1.0 - up * up, 0.0))
        wind = Vec3(cos * speed, sin * speed, 0.0 * speed)
        return Weather(wind, Vec3(sun_cos * level, sun_sin * level, up), haze, grain, tint)


def standing_at(position: Vec2) -> OscillatingMover:
    """A mover that does not move."""
    zero = 0.0 * position.x
    return OscillatingMover(position, Vec2(zero, zero), zero)


def world_from_record(record: Mapping[str, Any], generator: WorldGenerator, pads: int) -> SurveyWorld:
    """The world that an episode recorded leaf by leaf."""
    like = jax.eval_shape(lambda: generator.draw(Rng.from_seed(0, 0), pads))
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.asarray(record[jax.tree_util.keystr(path, simple=True, separator=".")]), like
    )
