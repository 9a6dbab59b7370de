"""The safety filter against everything one can throw at it."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2, Vec3
from slipstream.core.rng import Rng
from slipstream.dynamics.velocity_drone import (
    VelocityCommand,
    VelocityDrone,
    VelocityDroneState,
    command_for_velocity,
    fly,
)
from slipstream.tasks.survey import Navigation, Survey
from slipstream.tasks.survey.baselines import action
from slipstream.tasks.survey.safety import GEOFENCE, NOTHING, ZONE, FilterInput, SafetyFilter
from slipstream.tasks.survey.stacked import at, scan_fold
from slipstream.tasks.survey.world import HIGH, Building, Zone

STEPS, WORLDS = 210, 31


def adversary(task, state, number, noise):
    """A drone that tries to hit, by its number, a zone, a building, a drone, the ground, the ceiling, the geofence."""
    drone = at(state.body.drones, number)
    here, world = drone.position, state.world

    def nearest(things, gap):
        def nearer(best, thing):
            way = gap(thing)
            closer = way.dot(way) < best.dot(best)
            return jax.tree.map(partial(jnp.where, closer), way, best)

        return scan_fold(nearer, Vec3(here.x * 0 + 1e4, here.x * 0, here.x * 0), things)

    to_zone = nearest(world.zones, lambda z: Vec3(z.center.x - here.x, z.center.y - here.y, 0.0 * here.x))
    to_house = nearest(world.buildings, lambda b: -b.outward(here))
    fleet = (state.body.drones.position, jnp.arange(task.agents))
    to_drone = nearest(fleet, lambda f: jax.tree.map(lambda x: jnp.where(f[1] == number, 1e4, x), f[0] - here))
    wishes = [
        to_zone, to_house, to_drone, Vec3(0.0, 0.0, -1.0), Vec3(0.0, 0.0, 1.0), Vec3(1.0, 0.1, 0.0),
        Vec3(0.1, -1.0, -0.3),
    ]  # fmt: skip
    chosen = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v, jnp.float32) for v in x])[number % len(wishes)], *wishes)
    wild = number % 8 == 7
    full = chosen.unit() * 12.0
    asked = action(task, drone, full)
    return jnp.where(wild, noise, asked)


FITTED = VelocityDrone(
    max_speed=11.3,
    max_climb_rate=2.97,
    max_sink_rate=1.48,
    max_yaw_rate=3.46,
    velocity_time_constant=0.79,
    climb_time_constant=0.15,
    yaw_time_constant=0.115,
    max_acceleration=6.8,
    max_climb_acceleration=8.2,
    max_tilt=1.2,
    tilt_time_constant=0.173,
    tilt_onset_time=0.034,
    drag=0.347,
    tilt_thrust_gain=0.374,
    tilt_lift_gain=1.0,
    velocity_integral_gain=0.212,
)
"""What a fit to PX4's controller found."""


@pytest.mark.parametrize(
    ("mission", "model", "controller"),
    [
        ("transit", VelocityDrone(), "simple"),
        ("coverage", VelocityDrone(), "simple"),
        pytest.param("transit", FITTED, "simple", marks=pytest.mark.learning),
        pytest.param("coverage", FITTED, "simple", marks=pytest.mark.learning),
        pytest.param("transit", FITTED, "px4", marks=pytest.mark.learning),
        pytest.param("coverage", FITTED, "px4", marks=pytest.mark.learning),
    ],
)
def test_a_hundred_thousand_hostile_actions_violate_nothing(mission, model, controller):
    task = Survey(
        mission=mission,
        mean_world_lifetime=0.0,
        velocity_model=model,
        controller=controller,
        navigation=Navigation(gnss_outage_prob=0.5),
    )
    # PX4's controller takes a hundred times as long: it flies a quarter of the actions.
    worlds = WORLDS if controller == "simple" else 8
    assert STEPS * worlds * task.agents >= (100_000 if controller == "simple" else 25_000)
    numbers = jnp.arange(task.agents)

    def world(index):
        state = task.reset(Rng.from_seed(3, index))

        def tick(state, key):
            noise = jax.random.uniform(key, (task.agents, task.spec.action.size), minval=-1.0, maxval=1.0)
            actions = jax.vmap(partial(adversary, task, state))(numbers, noise)
            state, command = task.command(state, actions)
            after = task.judge(state, task.move(state, command))
            place = after.body.drones.position
            gaps = sum(jnp.subtract.outer(x, x) ** 2 for x in place.parts) + 1e9 * jnp.eye(task.agents)
            height = place.z - jax.vmap(after.world.terrain)(place.x, place.y)
            seen = (jnp.sqrt(gaps.min()), height.min(), after.progress.filter_correction > 0.0)
            # Ended drones go on: nothing but time may end one here.
            return replace(after, terminated=jnp.zeros_like(after.terminated)), seen

        keys = jax.random.split(jax.random.key(index), STEPS)
        state, seen = jax.lax.scan(tick, state, keys)
        return state.progress, seen

    sortie, (nearest, lowest, changed) = jax.jit(jax.vmap(world))(jnp.arange(worlds))
    # The filter must have intervened often: otherwise nothing was tested.
    assert float(jnp.mean(changed)) > 0.2
    assert int(jnp.sum(sortie.zone_violation)) == 0
    assert int(jnp.sum(sortie.crashed)) == 0
    assert float(jnp.min(lowest)) > 5.0
    assert float(jnp.min(nearest)) > 2.0


def alone(place, velocity=(0.0, 0.0, 0.0)):
    drone = VelocityDroneState.at(Vec3(*map(jnp.float32, place)), jnp.float32(0.0))
    return replace(drone, velocity=Vec3(*map(jnp.float32, velocity)))


def surroundings(drone, zones=((500.0, 0.0, 100.0),)):
    """A world that is empty except for zones."""
    task = Survey(mission="coverage")
    world = task.mission_spec.generator.draw(Rng.from_seed(0, 0), task.agents)
    far = lambda tree: jax.tree.map(lambda x: x * 0.0 - 5e3, tree)  # noqa: E731
    x, y, radius = (jnp.asarray(v, jnp.float32) for v in zip(*zones, strict=True))
    nothing = jnp.zeros_like(x)
    world = replace(
        world,
        hills=replace(world.hills, center=far(world.hills.center)),
        buildings=replace(world.buildings, center=far(world.buildings.center)),
        people=replace(world.people, center=far(world.people.center)),
        zones=Zone(Vec2(x, y), radius, nothing, nothing, nothing + 1e9, (nothing + HIGH + 1).astype(jnp.int32)),
        weather=replace(world.weather, wind=Vec3(*[jnp.float32(0.0)] * 3)),
    )
    fleet = jax.tree.map(lambda x: jnp.asarray(x)[None], drone)
    return FilterInput(world, jnp.float32(0.0), fleet, jnp.ones(1, bool))


def checked_alone(safe, drone, asked):
    """The filtered command of a drone alone in a world."""
    fleet = jax.tree.map(lambda x: jnp.asarray(x)[None], asked)
    return jax.tree.map(lambda x: x[0], safe.check(fleet, jnp.zeros(1, bool), surroundings(drone)))


def test_a_command_that_is_safe_is_left_exactly_as_it_was():
    drone = alone((0.0, 0.0, 50.0))
    asked = VelocityCommand(*map(jnp.float32, (0.31, -0.2, 0.1, 0.7)))
    checked = checked_alone(SafetyFilter(), drone, asked)
    assert [float(x) for x in checked.command.parts] == [float(x) for x in asked.parts]
    assert int(checked.reason) == NOTHING


@pytest.mark.parametrize("way", [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)])
def test_the_fence_stops_a_drone_on_every_side(way):
    safe, drone = SafetyFilter(), alone((326.9 * way[0], 326.9 * way[1], 50.0))
    checked = checked_alone(safe, drone, VelocityCommand(*map(jnp.float32, (*way, 0.0, 0.0))))
    assert int(checked.reason) == GEOFENCE
    back = checked_alone(safe, drone, VelocityCommand(*map(jnp.float32, (-way[0], -way[1], 0.0, 0.0))))
    assert int(back.reason) == NOTHING


def flown_past(safe, drones, asked, around, low=False, steps=150):
    """Positions of drones under a constant command."""

    def tick(fleet, _):
        checked = safe.check(asked, jnp.full(fleet.yaw.shape, low), replace(around, fleet=fleet))
        return fly(fleet, checked.command, safe.velocity_model, None, safe.dt), fleet.position

    return jax.jit(lambda fleet: jax.lax.scan(tick, fleet, length=steps)[1])(drones)


def test_two_drones_head_on_at_full_speed_keep_their_room():
    # They brake no harder than the filter assumes, so that they need all of the room.
    safe = replace(SafetyFilter(), east=2000.0, velocity_model=replace(VelocityDrone(), max_acceleration=2.2))
    both = [alone((x, y, 50.0), (v, 0.0, 0.0)) for x, y, v in ((-60.0, 0.0, 12.0), (60.0, 0.3, -12.0))]
    around = surroundings(both[0])
    fleet = jax.tree.map(lambda *x: jnp.stack(x), *both)
    around = replace(around, flying=jnp.ones(2, bool))
    asked = VelocityCommand(jnp.array([1.0, -1.0]), *[jnp.zeros(2)] * 3)
    place = flown_past(safe, fleet, asked, around)
    gap = np.sqrt(sum(np.diff(np.asarray(part), axis=1) ** 2 for part in place.parts))
    assert gap.min() > safe.drone_margin - 0.5


def test_a_drone_keeps_its_room_to_people_and_counts_on_their_pace():
    safe = SafetyFilter()
    drone = alone((-60.0, 0.0, 3.0))
    around, room = surroundings(drone), safe.person_margin + safe.margin
    people = around.world.people
    here = lambda tree, *to: jax.tree.map(lambda x, v: 0.0 * x + v, tree, Vec2(*to))  # noqa: E731
    asked = jax.tree.map(lambda x: jnp.float32(x)[None], VelocityCommand(1.0, 0.0, 0.0, 0.0))
    ends = []
    for frequency in (0.0, 1e-4):
        # A person who stands still, and one who hardly moves in this time but might come at 2 m/s.
        person = replace(
            people,
            center=here(people.center, 0.0, 0.0),
            amplitude=here(people.amplitude, 2.0 / frequency if frequency else 0.0, 0.0),
            angular_frequency=0.0 * people.angular_frequency + frequency,
        )
        world = replace(around.world, people=person)
        place = flown_past(safe, around.fleet, asked, replace(around, world=world), low=True)
        ends.append(float(jnp.hypot(place.x, place.z)[-1, 0]))
    assert ends[0] == pytest.approx(room, abs=1.0)
    assert ends[1] > room + 0.5


def test_a_drone_that_finds_itself_in_a_zone_leaves_it():
    safe = replace(SafetyFilter(), east=2000.0)
    drone = alone((430.0, 0.0, 50.0))
    asked = jax.tree.map(lambda x: jnp.float32(x)[None], VelocityCommand(0.0, 0.0, 0.0, 0.0))
    place = flown_past(safe, surroundings(drone).fleet, asked, surroundings(drone))
    assert float(place.x[-1, 0]) < 400.0


@pytest.mark.parametrize(("place", "reason"), [((396.9, 0.0, 50.0), ZONE), ((-326.9, 0.0, 50.0), GEOFENCE)])
def test_a_command_into_a_hazard_is_changed_and_the_reason_is_given(place, reason):
    drone = alone(place)
    towards = 1.0 if place[0] > 0 else -1.0
    asked = VelocityCommand(*map(jnp.float32, (towards, 0.0, 0.0, 0.0)))
    safe = replace(SafetyFilter(), east=2000.0) if reason == ZONE else SafetyFilter()
    checked = checked_alone(safe, drone, asked)
    assert int(checked.reason) == reason
    assert float(checked.correction) > 0.1


def test_a_drone_at_full_speed_stops_before_a_zone():
    safe = replace(SafetyFilter(), east=2000.0)
    drone = alone((200.0, 0.0, 50.0), (12.0, 0.0, 0.0))
    asked = VelocityCommand(*map(jnp.float32, (1.0, 0.0, 0.0, 0.0)))

    def tick(drone, _):
        checked = checked_alone(safe, drone, asked)
        return fly(drone, checked.command, safe.velocity_model, None, safe.dt), drone.position.x

    drone, xs = jax.lax.scan(tick, drone, length=200)
    edge = 400.0 - safe.margin
    assert float(xs.max()) <= edge + 0.1
    assert float(xs[-1]) > edge - 2.0


def test_the_command_for_a_velocity_gives_that_velocity():
    model, wind = VelocityDrone(), Vec3(*map(jnp.float32, (3.0, -2.0, 0.6)))
    drone = replace(alone((0.0, 0.0, 50.0), (4.0, 1.0, 0.5)), yaw=jnp.float32(0.8))
    wanted = Vec3(*map(jnp.float32, (4.3, 0.6, 0.2)))
    command = command_for_velocity(drone, wanted, model, wind, 0.2)
    flown = fly(drone, command, model, wind, 0.2).velocity
    np.testing.assert_allclose([float(x) for x in flown.parts], [4.3, 0.6, 0.2], atol=1e-4)


def test_the_way_out_of_a_building_is_the_shortest():
    house = Building(Vec2(0.0, 0.0), Vec2(10.0, 5.0), jnp.float32(20.0), jnp.float32(1.0), jnp.float32(0.0))
    way = house.outward(Vec3(*map(jnp.float32, (13.0, 9.0, 10.0))))
    np.testing.assert_allclose([float(x) for x in way.parts], [3.0, 4.0, 0.0], atol=1e-5)
