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
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ...core.geometry import Flag, Scalar, Vec2, Vec3
from ...core.struct import struct
from ...dynamics.velocity_drone import VelocityCommand, VelocityDrone, VelocityDroneState, commanded, fly
from .world import HIGH, Building, Hill, OscillatingMover, SurveyWorld, Zone, abreast, listed

C = TypeVar("C")
REASONS = ("", "other drone", "person", "building", "terrain", "ceiling", "zone", "geofence", "battery")
NOTHING, DRONE, WALKER, BUILDING, TERRAIN, CEILING, ZONE, FENCE, BATTERY = range(len(REASONS))


@struct
class FilterInput:
    """What drones have around them: the country, the time there, and each other."""

    country: SurveyWorld
    clock: Scalar
    fleet: VelocityDroneState  # of all drones
    flying: Bool[Array, "agents"]


@struct
class FilteredCommand:
    """What became of a command."""

    command: VelocityCommand
    changed: Scalar  # by how much the velocity was changed, m/s
    reason: Int[Array, ""]  # the hazard that took most of it away, by its place in REASONS


@dataclass(frozen=True)
class Constraint:
    """Hazards as drones see them: which way they lie, how fast one may fly that way, and what they are."""

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
    handling: VelocityDrone = field(default_factory=VelocityDrone)
    dt: float = 0.2
    """from one command to the next"""

    def approach(self, distance: Scalar) -> Scalar:
        """The fastest approach from which a drone still stops in time; negative well inside a margin.

        In the outer quarter of a margin a drone only comes no nearer: between two hazards it must not be pushed
        from one into the other.
        """
        a, wait = self.braking, self.reaction
        square = wait**2 + jnp.maximum(distance, 0.0) * (2.0 / a)
        root = square * jax.lax.rsqrt(square)
        deep = jnp.clip(distance + 0.25 * self.margin, -self.leaving, 0.0)
        return jnp.where(distance < 0.0, deep, a * (root - wait))

    @property
    def reaction(self) -> float:
        """From the moment a wall is seen until the drone brakes, s: one that has to lean over first takes longer."""
        lean = self.handling.lean
        return self.dt + (2.0 * (lean + self.handling.onset) + 0.5 * self.handling.lag if lean else 0.0)

    def stopping(self, speed: Scalar) -> Scalar:
        speed = jnp.maximum(speed, 0.0)
        return speed * self.reaction + speed * speed / (2.0 * self.braking)

    def check(self, command: VelocityCommand, low: Flag, around: FilterInput) -> FilteredCommand:
        """The commands of all drones, brought within all bounds. Only one that is `low` may come to the ground."""
        own, wind = around.fleet, around.country.weather.wind
        wanted = fly(own, command, self.handling, wind, self.dt).velocity
        walls = self._walls(low, around)
        found = past(walls, slid, Corrected(wanted, 0.0 * wanted.x, jnp.zeros_like(wanted.x, jnp.int32)))
        share = past(walls, lambda share, wall: jnp.minimum(share, allowed(found.velocity, wall)), 1.0 + 0.0 * wanted.x)
        safe = found.velocity * share
        change = (safe - wanted).norm()
        # A command that may stay stays exactly what it was.
        kept = change < 1e-3
        final = commanded(own, safe, self.handling, wind, self.dt, command.turn)
        told = VelocityCommand(*(jnp.where(kept, a, b) for a, b in zip(command.parts, final.parts, strict=True)))
        return FilteredCommand(told, jnp.where(kept, 0.0, change), jnp.where(kept, NOTHING, found.reason))

    def _walls(self, low: Flag, around: FilterInput) -> list[Constraint]:
        """All the walls around each drone, an axis of walls before that of drones; the last have the last word."""
        own, country, clock = around.fleet, around.country, around.clock
        here = own.position
        ground = country.terrain(here.x, here.y)
        one, zero = 1.0 + 0.0 * here.x, 0.0 * here.x

        def flat(place: Vec2, up: Scalar) -> Vec3:
            x, y, z = jnp.broadcast_arrays(place.x - here.x, place.y - here.y, up)
            return Vec3(x, y, z)

        def zone(zone: Zone) -> Constraint:
            towards, distance = direction(flat(zone.center, zero))
            keep_out = zone.known(clock) & (zone.level >= HIGH)
            return Constraint(
                towards, self.approach(jnp.where(keep_out, distance - zone.radius - self.margin, FAR)), ZONE
            )

        def drone(other: tuple[VelocityDroneState, Array, Array]) -> Constraint:
            glide, flying, number = other
            towards, distance = direction(glide.position - here)
            mine = self.stopping(own.velocity.dot(towards))
            yours = self.stopping(-glide.velocity.dot(towards))
            spare = distance - self.drones - mine - yours
            room = jnp.where(spare > 0.0, mine + 0.5 * spare, 0.5 * (distance - self.drones))
            return Constraint(towards, self.approach(jnp.where(flying & (number != numbers), room, FAR)), DRONE)

        def person(walker: OscillatingMover) -> Constraint:
            at = walker.at(clock)
            towards, distance = direction(flat(at, ground - here.z))
            room = distance - self.person - self.margin
            pace = jnp.where(room > 0.0, walker.span.norm() * walker.pulse, 0.0)
            return Constraint(towards, self.approach(room) - pace, WALKER)

        def building(house: Building) -> Constraint:
            towards, distance = direction(-house.outward(here))
            return Constraint(towards, self.approach(distance - self.margin), BUILDING)

        def hill(hill: Hill) -> Constraint:
            towards, distance = direction(hill.center - here)
            return Constraint(
                towards, self.approach(distance - hill.radius - jnp.where(low, 0.0, self.clearance)), TERRAIN
            )

        numbers = jnp.arange(around.flying.shape[0])
        floor = here.z - jnp.where(low, 0.0, self.clearance)
        sides = [
            (Vec3(zero, zero, -one), floor, TERRAIN),
            (Vec3(zero, zero, one), self.ceiling - here.z, CEILING),
            (Vec3(one, zero, zero), self.east - self.margin - here.x, FENCE),
            (Vec3(-one, zero, zero), self.east - self.margin + here.x, FENCE),
            (Vec3(zero, one, zero), self.north - self.margin - here.y, FENCE),
            (Vec3(zero, -one, zero), self.north - self.margin + here.y, FENCE),
        ]
        return [
            zone(abreast(country.zones)),
            drone(abreast((around.fleet, around.flying, numbers))),
            person(abreast(country.people)),
            building(abreast(country.buildings)),
            hill(abreast(country.hills)),
            *(Constraint(*alone((towards, self.approach(room))), kind) for towards, room, kind in sides),
        ]


FAR = 1e9


def direction(way: Vec3) -> tuple[Vec3, Scalar]:
    """Direction and length; by the inverse root, which costs half of a root and a division."""
    square = jnp.maximum(way.dot(way), 1e-6)
    inverse = jax.lax.rsqrt(square)
    return way * inverse, square * inverse


def alone(thing: C) -> C:
    """A thing with an axis of things."""
    return jax.tree.map(lambda x: x[None], thing)


def past(walls: list[Constraint], lead: Callable[[C, Constraint], C], carry: C) -> C:
    """`lead` something past one wall after the other. Written out, which is faster than a loop."""
    for wall in walls:
        for towards, bound in listed((wall.towards, wall.bound)):
            carry = lead(carry, Constraint(towards, bound, wall.kind))
    return carry


def slid(now: Corrected, wall: Constraint) -> Corrected:
    """What is too fast towards a wall is taken away; what goes along it stays."""
    over = jnp.maximum(now.velocity.dot(wall.towards) - wall.bound, 0.0)
    worse = over > now.most
    return Corrected(
        now.velocity - wall.towards * over, jnp.where(worse, over, now.most), jnp.where(worse, wall.kind, now.reason)
    )


def allowed(velocity: Vec3, wall: Constraint) -> Scalar:
    """The share of a velocity that a wall allows: in a corner, sliding off one wall runs into another."""
    speed = velocity.dot(wall.towards)
    return jnp.where((speed > wall.bound) & (wall.bound >= 0.0), wall.bound / jnp.maximum(speed, 1e-3), 1.0)
