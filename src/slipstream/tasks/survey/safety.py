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

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ...dynamics.velocity import Glide, Handling, VelocityCommand, commanded, fly
from ...geometry import Flag, Scalar, Vec3
from ...struct import struct
from .world import HIGH, Building, Country, Hill, Mover, Zone, fold

REASONS = ("", "other drone", "person", "building", "terrain", "ceiling", "zone", "geofence", "battery")
Past = Callable[[Any, Vec3, Scalar, int], Any]
NOTHING, DRONE, WALKER, BUILDING, TERRAIN, CEILING, ZONE, FENCE, BATTERY = range(len(REASONS))


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
    leaving: float = 6.0
    """speed at which a drone leaves a hazard that it finds itself in"""
    east: float = 330.0
    """half an edge of the geofence"""
    north: float = 330.0
    handling: Handling = field(default_factory=Handling)
    dt: float = 0.2
    """from one command to the next"""

    def approach(self, distance: Scalar) -> Scalar:
        """The fastest approach from which a drone still stops in time; negative well inside a margin.

        In the outer half of a margin a drone only comes no nearer: between two hazards it must not be pushed from
        one into the other.
        """
        a = self.braking
        root = jnp.sqrt(self.dt**2 + 2.0 * jnp.maximum(distance, 0.0) / a)
        deep = jnp.clip(distance + 0.5 * self.margin, -self.leaving, 0.0)
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
        _, share = past(shrunk, (found.velocity, 1.0 + 0.0 * wanted.x))
        safe = found.velocity * share
        change = (safe - wanted).norm()
        # A command that may stay stays exactly what it was.
        kept = change < 1e-3
        allowed = commanded(own, safe, self.handling, wind, self.dt, command.turn)
        final = VelocityCommand(*(jnp.where(kept, a, b) for a, b in zip(command.parts, allowed.parts, strict=True)))
        return Checked(final, jnp.where(kept, 0.0, change), jnp.where(kept, NOTHING, found.reason))

    def _walls(self, own: Glide, low: Flag, index: Int[Array, ""], around: Around) -> Callable[[Past, Any], Any]:
        """A function that leads something past all the walls around a drone, one after the other."""
        here, country, clock = own.position, around.country, around.clock
        ground = country.terrain(here.x, here.y)
        one, zero = 1.0 + 0.0 * here.x, 0.0 * here.x

        def past(lead: Past, carry: Any) -> Any:
            def zone(carry: Any, zone: Zone) -> Any:
                towards, distance = direction(Vec3(zone.centre.x - here.x, zone.centre.y - here.y, zero))
                keep_out = zone.known(clock) & (zone.level >= HIGH)
                room = jnp.where(keep_out, distance - zone.radius - self.margin, jnp.inf)
                return lead(carry, towards, self.approach(room), ZONE)

            def drone(carry: Any, other: tuple[Glide, Array, Array]) -> Any:
                glide, flying, number = other
                towards, distance = direction(glide.position - here)
                mine = self.stopping(own.velocity.dot(towards))
                yours = self.stopping(-glide.velocity.dot(towards))
                spare = distance - self.drones - mine - yours
                room = jnp.where(spare > 0.0, mine + 0.5 * spare, 0.5 * (distance - self.drones))
                room = jnp.where(flying & (number != index), room, jnp.inf)
                return lead(carry, towards, self.approach(room), DRONE)

            def person(carry: Any, walker: Mover) -> Any:
                at = walker.at(clock)
                towards, distance = direction(Vec3(at.x - here.x, at.y - here.y, ground - here.z))
                room = distance - self.person - self.margin
                pace = jnp.where(room > 0.0, walker.span.norm() * walker.pulse, 0.0)
                return lead(carry, towards, self.approach(room) - pace, WALKER)

            def building(carry: Any, house: Building) -> Any:
                towards, distance = direction(-house.outward(here))
                return lead(carry, towards, self.approach(distance - self.margin), BUILDING)

            def hill(carry: Any, hill: Hill) -> Any:
                towards, distance = direction(hill.centre - here)
                room = distance - hill.radius - jnp.where(low, 0.0, self.clearance)
                return lead(carry, towards, self.approach(room), TERRAIN)

            number = jnp.arange(around.flying.shape[0])
            carry = fold(zone, carry, country.zones)
            carry = fold(drone, carry, (around.fleet, around.flying, number))
            carry = fold(person, carry, country.people)
            carry = fold(building, carry, country.buildings)
            carry = fold(hill, carry, country.hills)
            for towards, room, kind in (
                (Vec3(zero, zero, -one), here.z - jnp.where(low, 0.0, self.clearance), TERRAIN),
                (Vec3(zero, zero, one), self.ceiling - here.z, CEILING),
                (Vec3(one, zero, zero), self.east - self.margin - here.x, FENCE),
                (Vec3(-one, zero, zero), self.east - self.margin + here.x, FENCE),
                (Vec3(zero, one, zero), self.north - self.margin - here.y, FENCE),
                (Vec3(zero, -one, zero), self.north - self.margin + here.y, FENCE),
            ):
                carry = lead(carry, towards, self.approach(room), kind)
            return carry

        return past


def direction(way: Vec3) -> tuple[Vec3, Scalar]:
    length = way.norm()
    return way * (1.0 / jnp.maximum(length, 1e-3)), length


def slid(now: Corrected, towards: Vec3, bound: Scalar, kind: int) -> Corrected:
    """What is too fast towards a wall is taken away; what goes along it stays."""
    over = jnp.maximum(now.velocity.dot(towards) - bound, 0.0)
    worse = over > now.most
    return Corrected(
        now.velocity - towards * over, jnp.where(worse, over, now.most), jnp.where(worse, kind, now.reason)
    )


def shrunk(now: tuple[Vec3, Scalar], towards: Vec3, bound: Scalar, _: int) -> tuple[Vec3, Scalar]:
    """The share of a velocity that every wall allows: in a corner, sliding off one runs into another."""
    velocity, share = now
    speed = velocity.dot(towards)
    asked = jnp.where((speed > bound) & (bound >= 0.0), bound / jnp.maximum(speed, 1e-3), 1.0)
    return velocity, jnp.minimum(share, asked)
