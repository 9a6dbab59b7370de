"""The safety filter against everything one can throw at it."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2, Vec3
from slipstream.core.rng import Rng
from slipstream.dynamics.velocity_drone import VelocityCommand, VelocityDrone, VelocityDroneState, commanded, fly
from slipstream.tasks.survey import Survey
from slipstream.tasks.survey.baselines import action
from slipstream.tasks.survey.safety import FENCE, NOTHING, ZONE, FilterInput, SafetyFilter
from slipstream.tasks.survey.world import HIGH, Building, Zone, loop, one

STEPS, WORLDS = 210, 31


def adversary(task, state, number, noise):
    """A drone that wants to hit what its number says: a zone, a building, a drone, the ground, the sky, the fence."""
    drone = one(state.body.drones, number)
    here, country = drone.position, state.world

    def nearest(things, gap):
        def nearer(best, thing):
            way = gap(thing)
            closer = way.dot(way) < best.dot(best)
            return jax.tree.map(partial(jnp.where, closer), way, best)

        return loop(nearer, Vec3(here.x * 0 + 1e4, here.x * 0, here.x * 0), things)

    to_zone = nearest(country.zones, lambda z: Vec3(z.center.x - here.x, z.center.y - here.y, 0.0 * here.x))
    to_house = nearest(country.buildings, lambda b: -b.outward(here))
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
    speed=11.3, climb=2.97, sink=1.48, turn=3.46, lag=0.79, climb_lag=0.15, turn_lag=0.115, acceleration=6.8,
    climb_acceleration=8.2, tilt=1.2, lean=0.173, onset=0.034, drag=0.347, surge=0.374, heave=1.0, trim=0.212,
)  # fmt: skip
"""What a fit to the cascade found."""


@pytest.mark.parametrize(
    ("mission", "handling", "model"),
    [
        ("transit", VelocityDrone(), "fast"),
        ("coverage", VelocityDrone(), "fast"),
        pytest.param("transit", FITTED, "fast", marks=pytest.mark.learning),
        pytest.param("coverage", FITTED, "fast", marks=pytest.mark.learning),
        pytest.param("transit", FITTED, "cascade", marks=pytest.mark.learning),
        pytest.param("coverage", FITTED, "cascade", marks=pytest.mark.learning),
    ],
)
def test_a_hundred_thousand_hostile_actions_violate_nothing(mission, handling, model):
    task = replace(Survey(mission=mission, world_life=0.0, handling=handling, model=model), outage=0.5)
    # Rotors take a hundred times as long: a quarter of that is flown with them.
    worlds = WORLDS if model == "fast" else 8
    assert STEPS * worlds * task.agents >= (100_000 if model == "fast" else 25_000)
    numbers = jnp.arange(task.agents)

    def world(index):
        state = task.reset(Rng.from_seed(3, index))

        def tick(state, key):
            noise = jax.random.uniform(key, (task.agents, task.spec.action.size), minval=-1.0, maxval=1.0)
            actions = jax.vmap(partial(adversary, task, state))(numbers, noise)
            state, orders = task.command(state, actions)
            after = task.judge(state, task.move(state, orders))
            place = after.body.drones.position
            gaps = sum(jnp.subtract.outer(x, x) ** 2 for x in place.parts) + 1e9 * jnp.eye(task.agents)
            height = place.z - jax.vmap(after.world.terrain)(place.x, place.y)
            seen = (jnp.sqrt(gaps.min()), height.min(), after.progress.changed > 0.0)
            # Whoever ended goes on: nothing here may end a drone but time.
            return replace(after, terminated=jnp.zeros_like(after.terminated)), seen

        keys = jax.random.split(jax.random.key(index), STEPS)
        state, seen = jax.lax.scan(tick, state, keys)
        return state.progress, seen

    sortie, (nearest, lowest, changed) = jax.jit(jax.vmap(world))(jnp.arange(worlds))
    # The policy's wish was taken away often: otherwise nothing was tested.
    assert float(jnp.mean(changed)) > 0.2
    assert int(jnp.sum(sortie.entered)) == 0
    assert int(jnp.sum(sortie.hit)) == 0
    assert float(jnp.min(lowest)) > 5.0
    assert float(jnp.min(nearest)) > 2.0


def alone(place, velocity=(0.0, 0.0, 0.0)):
    drone = VelocityDroneState.at(Vec3(*map(jnp.float32, place)), jnp.float32(0.0))
    return replace(drone, velocity=Vec3(*map(jnp.float32, velocity)))


def collision_scene(drone, zones=((500.0, 0.0, 100.0),)):
    """An empty country, but for zones."""
    task = Survey(mission="coverage")
    country = task.plan.land.draw(Rng.from_seed(0, 0), task.agents)
    far = lambda tree: jax.tree.map(lambda x: x * 0.0 - 5e3, tree)  # noqa: E731
    x, y, radius = (jnp.asarray(v, jnp.float32) for v in zip(*zones, strict=True))
    nothing = jnp.zeros_like(x)
    country = replace(
        country,
        hills=replace(country.hills, center=far(country.hills.center)),
        buildings=replace(country.buildings, center=far(country.buildings.center)),
        people=replace(country.people, place=far(country.people.place)),
        zones=Zone(Vec2(x, y), radius, nothing, nothing, nothing + 1e9, (nothing + HIGH + 1).astype(jnp.int32)),
        weather=replace(country.weather, wind=Vec3(*[jnp.float32(0.0)] * 3)),
    )
    fleet = jax.tree.map(lambda x: jnp.asarray(x)[None], drone)
    return FilterInput(country, jnp.float32(0.0), fleet, jnp.ones(1, bool))


def checked_alone(safe, drone, asked):
    """What becomes of the command of a drone that has a country to itself."""
    fleet = jax.tree.map(lambda x: jnp.asarray(x)[None], asked)
    return jax.tree.map(lambda x: x[0], safe.check(fleet, jnp.zeros(1, bool), collision_scene(drone)))


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
    assert int(checked.reason) == FENCE
    back = checked_alone(safe, drone, VelocityCommand(*map(jnp.float32, (-way[0], -way[1], 0.0, 0.0))))
    assert int(back.reason) == NOTHING


def flown_past(safe, drones, asked, around, low=False, steps=150):
    """Where drones were that ask for the same all the time."""

    def tick(fleet, _):
        checked = safe.check(asked, jnp.full(fleet.yaw.shape, low), replace(around, fleet=fleet))
        return fly(fleet, checked.command, safe.handling, None, safe.dt), fleet.position

    return jax.jit(lambda fleet: jax.lax.scan(tick, fleet, length=steps)[1])(drones)


def test_two_drones_head_on_at_full_speed_keep_their_room():
    # They brake no harder than the filter counts on, so that all of the room is needed.
    safe = replace(SafetyFilter(), east=2000.0, handling=replace(VelocityDrone(), acceleration=2.2))
    both = [alone((x, y, 50.0), (v, 0.0, 0.0)) for x, y, v in ((-60.0, 0.0, 12.0), (60.0, 0.3, -12.0))]
    around = collision_scene(both[0])
    fleet = jax.tree.map(lambda *x: jnp.stack(x), *both)
    around = replace(around, flying=jnp.ones(2, bool))
    asked = VelocityCommand(jnp.array([1.0, -1.0]), *[jnp.zeros(2)] * 3)
    place = flown_past(safe, fleet, asked, around)
    gap = np.sqrt(sum(np.diff(np.asarray(part), axis=1) ** 2 for part in place.parts))
    assert gap.min() > safe.drones - 0.5


def test_a_drone_keeps_its_room_to_people_and_counts_on_their_pace():
    safe = SafetyFilter()
    drone = alone((-60.0, 0.0, 3.0))
    around, room = collision_scene(drone), safe.person + safe.margin
    people = around.country.people
    here = lambda tree, *to: jax.tree.map(lambda x, v: 0.0 * x + v, tree, Vec2(*to))  # noqa: E731
    asked = jax.tree.map(lambda x: jnp.float32(x)[None], VelocityCommand(1.0, 0.0, 0.0, 0.0))
    ends = []
    for pulse in (0.0, 1e-4):
        # Somebody who stands, and somebody who is as good as there but might come at 2 m/s.
        standing = replace(people, place=here(people.place, 0.0, 0.0), pulse=0.0 * people.pulse + pulse)
        span = here(people.span, 2.0 / pulse if pulse else 0.0, 0.0)
        country = replace(around.country, people=replace(standing, span=span))
        place = flown_past(safe, around.fleet, asked, replace(around, country=country), low=True)
        ends.append(float(jnp.hypot(place.x, place.z)[-1, 0]))
    assert ends[0] == pytest.approx(room, abs=1.0)
    assert ends[1] > room + 0.5


def test_a_drone_that_finds_itself_in_a_zone_leaves_it():
    safe = replace(SafetyFilter(), east=2000.0)
    drone = alone((430.0, 0.0, 50.0))
    asked = jax.tree.map(lambda x: jnp.float32(x)[None], VelocityCommand(0.0, 0.0, 0.0, 0.0))
    place = flown_past(safe, collision_scene(drone).fleet, asked, collision_scene(drone))
    assert float(place.x[-1, 0]) < 400.0


@pytest.mark.parametrize(("place", "reason"), [((396.9, 0.0, 50.0), ZONE), ((-326.9, 0.0, 50.0), FENCE)])
def test_a_command_into_a_hazard_is_changed_and_the_reason_is_told(place, reason):
    drone = alone(place)
    towards = 1.0 if place[0] > 0 else -1.0
    asked = VelocityCommand(*map(jnp.float32, (towards, 0.0, 0.0, 0.0)))
    safe = replace(SafetyFilter(), east=2000.0) if reason == ZONE else SafetyFilter()
    checked = checked_alone(safe, drone, asked)
    assert int(checked.reason) == reason
    assert float(checked.changed) > 0.1


def test_a_drone_at_full_speed_stops_before_a_zone():
    safe = replace(SafetyFilter(), east=2000.0)
    drone = alone((200.0, 0.0, 50.0), (12.0, 0.0, 0.0))
    asked = VelocityCommand(*map(jnp.float32, (1.0, 0.0, 0.0, 0.0)))

    def tick(drone, _):
        checked = checked_alone(safe, drone, asked)
        return fly(drone, checked.command, safe.handling, None, safe.dt), drone.position.x

    drone, xs = jax.lax.scan(tick, drone, length=200)
    edge = 400.0 - safe.margin
    assert float(xs.max()) <= edge + 0.1
    assert float(xs[-1]) > edge - 2.0


def test_the_command_for_a_velocity_gives_that_velocity():
    handling, wind = VelocityDrone(), Vec3(*map(jnp.float32, (3.0, -2.0, 0.6)))
    drone = replace(alone((0.0, 0.0, 50.0), (4.0, 1.0, 0.5)), yaw=jnp.float32(0.8))
    wanted = Vec3(*map(jnp.float32, (4.3, 0.6, 0.2)))
    command = commanded(drone, wanted, handling, wind, 0.2)
    flown = fly(drone, command, handling, wind, 0.2).velocity
    np.testing.assert_allclose([float(x) for x in flown.parts], [4.3, 0.6, 0.2], atol=1e-4)


def test_the_way_out_of_a_building_is_the_shortest():
    house = Building(Vec2(0.0, 0.0), Vec2(10.0, 5.0), jnp.float32(20.0), jnp.float32(1.0), jnp.float32(0.0))
    way = house.outward(Vec3(*map(jnp.float32, (13.0, 9.0, 10.0))))
    np.testing.assert_allclose([float(x) for x in way.parts], [3.0, 4.0, 0.0], atol=1e-5)
