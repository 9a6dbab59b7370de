"""The safety filter between policy and vehicle: it limits velocity commands, and says which hazard is the reason.

Every hazard is a constraint: a direction towards it and a distance. A drone that approaches no faster than it can
brake never reaches it, so each constraint bounds the speed of approach:  d = v Δt + v² / 2a.  Hazards are convex, so
while a drone passes one its speed of approach only falls. Standing still meets every bound, so there is always a
solution, except where a hazard appears around a drone or moves onto it: then the constraint commands an escape.

Two drones share the room between them: each may use its own stopping distance and half of the rest. Both can brake
within their shares, whatever the other does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ...core.geometry import Flag, Scalar, Vec2, Vec3
from ...core.struct import struct
from ...dynamics.velocity_drone import VelocityCommand, VelocityDrone, VelocityDroneState, command_for_velocity, fly
from .stacked import pairwise, unstack
from .world import HIGH, Building, Hill, OscillatingMover, SurveyWorld, Zone

C = TypeVar("C")
REASONS = ("", "other drone", "person", "building", "terrain", "ceiling", "zone", "geofence", "battery")
NOTHING, DRONE, PERSON, BUILDING, TERRAIN, CEILING, ZONE, GEOFENCE, BATTERY = range(len(REASONS))
FAR = 1e9
"""Distance of a hazard that does not count, m."""


@struct
class FilterInput:
    """What the filter knows: the world, its clock, and all drones."""

    world: SurveyWorld
    clock: Scalar
    fleet: VelocityDroneState  # of all drones
    flying: Bool[Array, "agents"]


@struct
class FilteredCommand:
    """A command after the filter."""

    command: VelocityCommand
    correction: Scalar  # change of velocity, m/s
    reason: Int[Array, ""]  # the hazard with the largest correction, as an index into REASONS


@dataclass(frozen=True)
class Constraint:
    """A bound on the speed towards hazards of one kind."""

    towards: Vec3
    bound: Scalar
    kind: int


@struct
class _Correction:
    """A velocity that is being corrected, with the largest correction so far and its reason."""

    velocity: Vec3
    largest: Scalar
    reason: Int[Array, ""]


@dataclass(frozen=True)
class SafetyFilter:
    """A velocity filter without memory, the same object in training and evaluation."""

    margin: float = 3.0
    """distance kept from buildings, zones and the geofence, m"""
    person_margin: float = 15.0
    """distance kept from people, m"""
    drone_margin: float = 8.0
    """distance kept between two drones, m"""
    min_height: float = 18.0
    """height above the ground below which a drone only takes off and lands, m; trees are lower"""
    max_height: float = 120.0
    """ceiling, m"""
    braking: float = 2.0
    """deceleration assumed, m/s²: less than half of the vehicle's, since several constraints may need it at once"""
    escape_speed: float = 11.0
    """largest speed at which a drone leaves a hazard that it is in, m/s"""
    east: float = 330.0
    """half the east-west extent of the geofence, m"""
    north: float = 330.0
    """half the north-south extent of the geofence, m"""
    velocity_model: VelocityDrone = VelocityDrone()
    dt: float = 0.2
    """control period, s"""

    def max_approach_speed(self, distance: Scalar) -> Scalar:
        """The largest speed of approach from which a drone still stops in time; negative well inside a margin.

        In the outer quarter of a margin the bound is zero and not negative: between two hazards a drone must not be
        pushed from one into the other.
        """
        a, wait = self.braking, self.reaction_time
        square = wait**2 + jnp.maximum(distance, 0.0) * (2.0 / a)
        root = square * jax.lax.rsqrt(square)
        escape = jnp.clip(distance + 0.25 * self.margin, -self.escape_speed, 0.0)
        return jnp.where(distance < 0.0, escape, a * (root - wait))

    @property
    def reaction_time(self) -> float:
        """Time from a constraint until the drone brakes, s: tilt dynamics make it longer."""
        model = self.velocity_model
        if not model.tilt_time_constant:
            return self.dt
        tilting = 2.0 * (model.tilt_time_constant + model.tilt_onset_time)
        return self.dt + (tilting + 0.5 * model.velocity_time_constant)

    def stopping_distance(self, speed: Scalar) -> Scalar:
        speed = jnp.maximum(speed, 0.0)
        return speed * self.reaction_time + speed * speed / (2.0 * self.braking)

    def check(self, command: VelocityCommand, low: Flag, inputs: FilterInput) -> FilteredCommand:
        """The commands of all drones within all constraints. Only a drone that is `low` may come to the ground."""
        fleet, wind = inputs.fleet, inputs.world.weather.wind
        wanted = fly(fleet, command, self.velocity_model, wind, self.dt).velocity
        constraints = self._constraints(low, inputs)
        start = _Correction(wanted, 0.0 * wanted.x, jnp.zeros_like(wanted.x, jnp.int32))
        found = apply_constraints(constraints, slide, start)
        fraction = apply_constraints(
            constraints,
            lambda fraction, constraint: jnp.minimum(fraction, allowed_fraction(found.velocity, constraint)),
            1.0 + 0.0 * wanted.x,
        )
        safe = found.velocity * fraction
        change = (safe - wanted).norm()
        # A safe command is returned bit for bit.
        kept = change < 1e-3
        final = command_for_velocity(fleet, safe, self.velocity_model, wind, self.dt, command.yaw_rate)
        result = VelocityCommand(*(jnp.where(kept, a, b) for a, b in zip(command.parts, final.parts, strict=True)))
        return FilteredCommand(result, jnp.where(kept, 0.0, change), jnp.where(kept, NOTHING, found.reason))

    def _constraints(self, low: Flag, inputs: FilterInput) -> list[Constraint]:
        """All constraints of each drone, with an axis of hazards before that of drones; later ones take precedence."""
        fleet, world, clock = inputs.fleet, inputs.world, inputs.clock
        here = fleet.position
        ground = world.terrain(here.x, here.y)
        one, zero = 1.0 + 0.0 * here.x, 0.0 * here.x
        numbers = jnp.arange(inputs.flying.shape[0])

        def way_to(place: Vec2, up: Scalar) -> Vec3:
            x, y, z = jnp.broadcast_arrays(place.x - here.x, place.y - here.y, up)
            return Vec3(x, y, z)

        def zone(zone: Zone) -> Constraint:
            towards, distance = direction(way_to(zone.center, zero))
            counts = zone.announced(clock) & (zone.level >= HIGH)
            room = jnp.where(counts, distance - zone.radius - self.margin, FAR)
            return Constraint(towards, self.max_approach_speed(room), ZONE)

        def drone(other: tuple[VelocityDroneState, Array, Array]) -> Constraint:
            state, flying, number = other
            towards, distance = direction(state.position - here)
            own = self.stopping_distance(fleet.velocity.dot(towards))
            others = self.stopping_distance(-state.velocity.dot(towards))
            spare = distance - self.drone_margin - own - others
            room = jnp.where(spare > 0.0, own + 0.5 * spare, 0.5 * (distance - self.drone_margin))
            room = jnp.where(flying & (number != numbers), room, FAR)
            return Constraint(towards, self.max_approach_speed(room), DRONE)

        def person(mover: OscillatingMover) -> Constraint:
            towards, distance = direction(way_to(mover.position_at(clock), ground - here.z))
            room = distance - self.person_margin - self.margin
            speed = jnp.where(room > 0.0, mover.amplitude.norm() * mover.angular_frequency, 0.0)
            return Constraint(towards, self.max_approach_speed(room) - speed, PERSON)

        def building(building: Building) -> Constraint:
            towards, distance = direction(-building.outward(here))
            return Constraint(towards, self.max_approach_speed(distance - self.margin), BUILDING)

        def hill(hill: Hill) -> Constraint:
            towards, distance = direction(hill.center - here)
            room = distance - hill.radius - jnp.where(low, 0.0, self.min_height)
            return Constraint(towards, self.max_approach_speed(room), TERRAIN)

        floor = here.z - jnp.where(low, 0.0, self.min_height)
        planes = [
            (Vec3(zero, zero, -one), floor, TERRAIN),
            (Vec3(zero, zero, one), self.max_height - here.z, CEILING),
            (Vec3(one, zero, zero), self.east - self.margin - here.x, GEOFENCE),
            (Vec3(-one, zero, zero), self.east - self.margin + here.x, GEOFENCE),
            (Vec3(zero, one, zero), self.north - self.margin - here.y, GEOFENCE),
            (Vec3(zero, -one, zero), self.north - self.margin + here.y, GEOFENCE),
        ]
        return [
            zone(pairwise(world.zones)),
            drone(pairwise((inputs.fleet, inputs.flying, numbers))),
            person(pairwise(world.people)),
            building(pairwise(world.buildings)),
            hill(pairwise(world.hills)),
            *(Constraint(*as_batch((towards, self.max_approach_speed(room))), kind) for towards, room, kind in planes),
        ]


def direction(way: Vec3) -> tuple[Vec3, Scalar]:
    """Direction and length; by the inverse root, at half the cost of a root and a division."""
    square = jnp.maximum(way.dot(way), 1e-6)
    inverse = jax.lax.rsqrt(square)
    return way * inverse, square * inverse


def as_batch(thing: C) -> C:
    """An object with an axis of objects."""
    return jax.tree.map(lambda x: x[None], thing)


def apply_constraints(constraints: list[Constraint], function: Callable[[C, Constraint], C], carry: C) -> C:
    """`function(carry, constraint)` over single constraints. Unrolled, which is faster than a loop."""
    for group in constraints:
        for towards, bound in unstack((group.towards, group.bound)):
            carry = function(carry, Constraint(towards, bound, group.kind))
    return carry


def slide(now: _Correction, constraint: Constraint) -> _Correction:
    """The velocity without its excess towards a hazard; the component along the hazard stays."""
    excess = jnp.maximum(now.velocity.dot(constraint.towards) - constraint.bound, 0.0)
    worse = excess > now.largest
    return _Correction(
        now.velocity - constraint.towards * excess,
        jnp.where(worse, excess, now.largest),
        jnp.where(worse, constraint.kind, now.reason),
    )


def allowed_fraction(velocity: Vec3, constraint: Constraint) -> Scalar:
    """The fraction of a velocity that a constraint allows: in a corner, sliding off one hazard meets another.

    Where a drone should escape but is hemmed in, it stops: it must not go on into a gap that closes.
    """
    speed, bound = velocity.dot(constraint.towards), jnp.maximum(constraint.bound, 0.0)
    return jnp.where(speed > bound, bound / jnp.maximum(speed, 1e-3), 1.0)
