"""The safety filter between policy and vehicle: what a drone may do next, and why it may not do more.

Every hazard is a wall: a direction towards it and a distance. A drone that comes no faster than it can brake never
reaches a wall, so each wall bounds the speed towards it:  d = v Δt + v² / 2a.  Hazards are convex, so
while a drone passes one its speed towards it only falls. Standing still meets every bound; so there always is
a way out, except where a hazard appears around a drone or moves onto it: then the wall asks for flight away from it.

Two drones share the room between them: each may use its own stopping distance and half of what is left. Both can
brake within their shares, whatever the other does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ...dynamics.velocity import Glide, Handling, VelocityCommand, commanded, fly
from ...geometry import Flag, Scalar, Vec3
from ...struct import struct
from .world import HIGH, Building, Country, Hill, Mover, Zone, fold

REASONS = ("", "other drone", "person", "building", "terrain", "ceiling", "zone", "geofence")
NOTHING, DRONE, WALKER, BUILDING, TERRAIN, CEILING, ZONE, FENCE = range(len(REASONS))


@struct
class Around:
    """What a drone has around it: the country, the time there, and the drones; this one is number `index`."""

    country: Country
    clock: Scalar
    fleet: Glide  # of all drones
    flying: Bool[Array, "agents"]


@struct
class Checked:
    """What became of a command."""

    command: VelocityCommand
    changed: Scalar  # by how much the velocity was changed, m/s
    reason: Int[Array, ""]  # the hazard that took most of it away, by its place in REASONS


@dataclass(frozen=True)
class Wall:
    """A hazard as one drone sees it: which way it lies, how fast one may fly that way, and what it is."""

    towards: Vec3
    bound: Scalar
    kind: int


@struct
class Corrected:
    """A velocity on its way through the walls."""

    velocity: Vec3
    most: Scalar
    reason: Int[Array, ""]


@dataclass(frozen=True)
class SafetyFilter:
    """Pure, and the same object in training and evaluation."""

    margin: float = 3.0
    """room left to anything but the ground, m"""
    person: float = 15.0
    """room left to people"""
    drones: float = 8.0
    """room left between two drones"""
    clearance: float = 18.0
    """height above the ground below which a drone only takes off and lands; trees are lower"""
    ceiling: float = 120.0
    braking: float = 2.0
    """deceleration counted on: under half of what the vehicle can do, since several walls may ask at once"""
    leaving: float = 11.0
    """speed at which a drone leaves a hazard that it finds itself in"""
    east: float = 330.0
    """half an edge of the geofence"""
    north: float = 330.0
    handling: Handling = field(default_factory=Handling)
    dt: float = 0.2
    """from one command to the next"""

    def approach(self, distance: Scalar) -> Scalar:
        """The fastest approach from which a drone still stops in time; negative well inside a margin.

        In the outer quarter of a margin a drone only comes no nearer: between two hazards it must not be pushed
        from one into the other.
        """
        a = self.braking
        square = self.dt**2 + jnp.maximum(distance, 0.0) * (2.0 / a)
        root = square * jax.lax.rsqrt(square)
        deep = jnp.clip(distance + 0.25 * self.margin, -self.leaving, 0.0)
        return jnp.where(distance < 0.0, deep, a * (root - self.dt))

    def stopping(self, speed: Scalar) -> Scalar:
        speed = jnp.maximum(speed, 0.0)
        return speed * self.dt + speed * speed / (2.0 * self.braking)

    def check(self, own: Glide, command: VelocityCommand, low: Flag, index: Int[Array, ""], around: Around) -> Checked:
        """The command for one drone, brought within all bounds. Only a drone that is `low` may come to the ground."""
        wind = around.country.weather.wind
        wanted = fly(own, command, self.handling, wind, self.dt).velocity
        past = self._walls(own, low, index, around)
        found = past(slid, Corrected(wanted, 0.0 * wanted.x, 0 * index))
        share = past(lambda share, wall: jnp.minimum(share, allowed(found.velocity, wall)), 1.0 + 0.0 * wanted.x)
        safe = found.velocity * share
        change = (safe - wanted).norm()
        # A command that may stay stays exactly what it was.
        kept = change < 1e-3
        final = commanded(own, safe, self.handling, wind, self.dt, command.turn)
        told = VelocityCommand(*(jnp.where(kept, a, b) for a, b in zip(command.parts, final.parts, strict=True)))
        return Checked(told, jnp.where(kept, 0.0, change), jnp.where(kept, NOTHING, found.reason))

    def _walls(self, own: Glide, low: Flag, index: Int[Array, ""], around: Around) -> Callable[..., Any]:
        """A function that leads something past all the walls around a drone; the last have the last word."""
        here, country, clock = own.position, around.country, around.clock
        ground = country.terrain(here.x, here.y)
        one, zero = 1.0 + 0.0 * here.x, 0.0 * here.x

        def zone(zone: Zone) -> Wall:
            towards, distance = direction(Vec3(zone.centre.x - here.x, zone.centre.y - here.y, zero))
            keep_out = zone.known(clock) & (zone.level >= HIGH)
            return Wall(towards, self.approach(jnp.where(keep_out, distance - zone.radius - self.margin, FAR)), ZONE)

        def drone(other: tuple[Glide, Array, Array]) -> Wall:
            glide, flying, number = other
            towards, distance = direction(glide.position - here)
            mine = self.stopping(own.velocity.dot(towards))
            yours = self.stopping(-glide.velocity.dot(towards))
            spare = distance - self.drones - mine - yours
            room = jnp.where(spare > 0.0, mine + 0.5 * spare, 0.5 * (distance - self.drones))
            return Wall(towards, self.approach(jnp.where(flying & (number != index), room, FAR)), DRONE)

        def person(walker: Mover) -> Wall:
            at = walker.at(clock)
            towards, distance = direction(Vec3(at.x - here.x, at.y - here.y, ground - here.z))
            room = distance - self.person - self.margin
            pace = jnp.where(room > 0.0, walker.span.norm() * walker.pulse, 0.0)
            return Wall(towards, self.approach(room) - pace, WALKER)

        def building(house: Building) -> Wall:
            towards, distance = direction(-house.outward(here))
            return Wall(towards, self.approach(distance - self.margin), BUILDING)

        def hill(hill: Hill) -> Wall:
            towards, distance = direction(hill.centre - here)
            return Wall(towards, self.approach(distance - hill.radius - jnp.where(low, 0.0, self.clearance)), TERRAIN)

        number = jnp.arange(around.flying.shape[0])
        floor = here.z - jnp.where(low, 0.0, self.clearance)
        things = [
            (zone, country.zones),
            (drone, (around.fleet, around.flying, number)),
            (person, country.people),
            (building, country.buildings),
            (hill, country.hills),
        ]
        box = [
            Wall(Vec3(zero, zero, -one), self.approach(floor), TERRAIN),
            Wall(Vec3(zero, zero, one), self.approach(self.ceiling - here.z), CEILING),
            Wall(Vec3(one, zero, zero), self.approach(self.east - self.margin - here.x), FENCE),
            Wall(Vec3(-one, zero, zero), self.approach(self.east - self.margin + here.x), FENCE),
            Wall(Vec3(zero, one, zero), self.approach(self.north - self.margin - here.y), FENCE),
            Wall(Vec3(zero, -one, zero), self.approach(self.north - self.margin + here.y), FENCE),
        ]

        def past(lead: Callable[[Any, Wall], Any], carry: Any) -> Any:
            for wall_of, some in things:
                carry = fold(lambda carry, thing: lead(carry, wall_of(thing)), carry, some)  # noqa: B023
            for wall in box:
                carry = lead(carry, wall)
            return carry

        return past


FAR = 1e9


def direction(way: Vec3) -> tuple[Vec3, Scalar]:
    """Direction and length; by the inverse root, which costs half of a root and a division."""
    square = jnp.maximum(way.dot(way), 1e-6)
    inverse = jax.lax.rsqrt(square)
    return way * inverse, square * inverse


def slid(now: Corrected, wall: Wall) -> Corrected:
    """What is too fast towards a wall is taken away; what goes along it stays."""
    over = jnp.maximum(now.velocity.dot(wall.towards) - wall.bound, 0.0)
    worse = over > now.most
    return Corrected(
        now.velocity - wall.towards * over, jnp.where(worse, over, now.most), jnp.where(worse, wall.kind, now.reason)
    )


def allowed(velocity: Vec3, wall: Wall) -> Scalar:
    """The share of a velocity that a wall allows: in a corner, sliding off one wall runs into another."""
    speed = velocity.dot(wall.towards)
    return jnp.where((speed > wall.bound) & (wall.bound >= 0.0), wall.bound / jnp.maximum(speed, 1e-3), 1.0)
