"""The survey: worlds, missions, observations, rewards and metrics."""

import itertools
import math
from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2, Vec3
from slipstream.core.rng import Rng
from slipstream.core.task import advance, draw_restart
from slipstream.dynamics.velocity_drone import Gimbal, VelocityDrone
from slipstream.sensors.camera import CameraSettings
from slipstream.sensors.detection import Detector, Lens
from slipstream.tasks.survey import MISSIONS, Navigation, Randomization, Survey, coverage, observation
from slipstream.tasks.survey.baselines import BASELINES, fly_script, next_corner, remaining_length
from slipstream.tasks.survey.behavior import EMERGENCY, LAND, LANDED, MISSION, RETURN, TAKE_OFF, Behavior, BehaviorInput
from slipstream.tasks.survey.flight import perturbed_model
from slipstream.tasks.survey.generator import world_from_record
from slipstream.tasks.survey.profiles import PROFILES
from slipstream.tasks.survey.safety import BATTERY
from slipstream.tasks.survey.world import HIGH


@lru_cache
def started(mission, world=0, **settings):
    task = Survey(mission=mission, **settings)
    return task, jax.jit(task.reset)(Rng.from_seed(0, world))


def moved(state, drone, place):
    """The fleet with one drone elsewhere."""
    at = state.body.drones.position
    there = Vec3(*(part.at[drone].set(x) for part, x in zip(at.parts, place, strict=True)))
    return replace(state.body, drones=replace(state.body.drones, position=there), clock=state.body.clock + 0.2)


# Worlds


def test_the_same_seed_draws_the_same_world_and_another_another():
    generator = MISSIONS["coverage"].generator
    draw = jax.jit(lambda world: generator.draw(Rng.from_seed(5, world), 16))
    one, again, other = draw(0), draw(0), draw(1)
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), one, again)
    assert all(jax.tree.leaves(same))
    assert not np.allclose(one.buildings.center.x, other.buildings.center.x)


@pytest.mark.parametrize("mission", MISSIONS)
def test_everything_of_a_world_lies_within_its_fence_and_off_the_pads(mission):
    generator = MISSIONS[mission].generator
    draw = jax.jit(jax.vmap(lambda world: generator.draw(Rng.from_seed(1, world), 16)))
    world = draw(jnp.arange(200))
    for place in (world.buildings.center, world.trees.position, world.areas.center, world.pads):
        assert float(jnp.abs(place.x).max()) < generator.east
        assert float(jnp.abs(place.y).max()) < generator.north
    # No zone that ends a sortie reaches a pad.
    gap = jnp.hypot(
        world.zones.center.x[:, :, None] - world.pads.x[:, None, :],
        world.zones.center.y[:, :, None] - world.pads.y[:, None, :],
    )
    strict = (world.zones.level >= HIGH)[:, :, None]
    assert float(jnp.where(strict, gap - world.zones.radius[:, :, None], jnp.inf).min()) > 10.0


def test_hills_are_nowhere_steeper_than_a_drone_climbs():
    _, state = started("coverage")
    x, y = jnp.meshgrid(jnp.linspace(-300.0, 300.0, 301), jnp.linspace(-300.0, 300.0, 301))
    height = jax.jit(jax.vmap(jax.vmap(state.world.terrain)))(x, y)
    assert float(height.max()) > 5.0
    slope = float(jnp.abs(jnp.diff(height, axis=1)).max()) / 2.0
    assert slope < 5.0 / 12.0 + 0.2


def test_the_world_record_of_an_episode_gives_the_world_back():
    task, state = started("transit")
    kept = {name: np.asarray(value) for name, value in task.world_record(state).items()}
    again = world_from_record(kept, task.mission_spec.generator, task.agents)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), again, state.world)))


def test_a_zone_that_appears_is_announced_before_it_is_active():
    _, state = started("transit")
    zones = state.world.zones
    later = zones.starts_at > 0.0
    assert int(later.sum()) == 4
    np.testing.assert_allclose((zones.starts_at - zones.announced_at)[later], 30.0, rtol=1e-5)


# Restarts


def test_a_drone_that_ended_starts_anew_and_the_others_go_on():
    task, state = started("transit")
    over = replace(state, terminated=jnp.arange(16) == 3, step=state.step + 7)
    step = jax.jit(lambda s, a: advance(task, s, a, draw_restart(task, s)))
    after = step(over, jnp.zeros((16, 4)))
    assert int(after.step[3]) == 0
    assert list(np.asarray(after.step[4:])) == [8] * 12
    assert not bool(after.ended[3])
    np.testing.assert_array_equal(after.world.buildings.height, state.world.buildings.height)
    moved_by = after.body.drones.position - state.body.drones.position
    gone = np.hypot(moved_by.x, moved_by.y)
    assert gone[3] > 5.0
    assert gone[np.arange(16) != 3].max() < 3.0


def test_a_world_is_replaced_when_its_life_is_over():
    task, state = started("coverage")
    old = replace(state, body=replace(state.body, clock=jnp.float32(1e4)))
    step = jax.jit(lambda s, a: advance(task, s, a, draw_restart(task, s)))
    ended = step(old, jnp.zeros((16, 4)))
    assert bool(jnp.all(ended.truncated))
    fresh = step(ended, jnp.zeros((16, 4)))
    assert float(fresh.body.clock) == 0.0
    assert not np.allclose(fresh.world.buildings.height, state.world.buildings.height)


def test_starts_of_both_kinds_are_half_on_the_pads_and_half_in_the_air():
    task = Survey(start_mode="both", agents=4)
    states = jax.jit(jax.vmap(lambda world: task.reset(Rng.from_seed(3, world))))(jnp.arange(64))
    grounded = np.asarray(states.progress.mode) == TAKE_OFF
    assert 0.35 < grounded.mean() < 0.65
    position, pads = states.body.drones.position, states.world.pads
    on_pad = np.asarray(jnp.hypot(position.x - pads.x, position.y - pads.y)) < 1e-3
    np.testing.assert_array_equal(on_pad[grounded], True)
    assert on_pad[~grounded].mean() < 0.05
    ground = np.asarray(jax.vmap(lambda w, p: w.terrain(p.x, p.y))(states.world, position))
    np.testing.assert_allclose(np.asarray(position.z)[grounded], ground[grounded], atol=1e-3)
    assert ((np.asarray(position.z) - ground)[~grounded] > 5.0).all()


def test_a_drone_that_starts_anew_as_a_world_ends_does_not_keep_it_alive():
    task, state = started("transit")
    one = jnp.arange(task.agents) == 3
    old = replace(state, body=replace(state.body, clock=jnp.float32(1e4)), terminated=one)
    step = jax.jit(lambda s, a: advance(task, s, a, draw_restart(task, s)))
    ended = step(old, jnp.zeros((task.agents, 4)))
    assert bool(jnp.all(ended.truncated))
    assert float(step(ended, jnp.zeros((task.agents, 4))).body.clock) == 0.0


def test_a_late_drone_has_failed_where_the_mission_has_a_deadline():
    for mission, failed in (("transit", True), ("coverage", True), ("multi-objective", False), ("dwell", False)):
        task, state = started(mission)
        sortie = replace(state.progress, time_limit=jnp.full(16, 10.0), success=jnp.arange(16) == 5)
        step = jax.jit(task.step)
        size = task.spec.action.size
        early = step(replace(state, progress=sortie, step=jnp.full(16, 40)), jnp.zeros((16, size)))
        late = step(replace(state, progress=sortie, step=jnp.full(16, 49)), jnp.zeros((16, size)))
        assert not bool(jnp.any(early.ended))
        assert bool(jnp.all(late.terminated)) == failed
        assert bool(jnp.all(late.truncated)) != failed
        paid = np.asarray(late.reward - early.reward)
        np.testing.assert_allclose(
            paid, task.mission_spec.reward.failure * (failed & ~np.asarray(late.progress.success)), atol=1e-4
        )


# Judging


def test_entering_an_active_zone_ends_the_sortie_and_one_not_yet_active_does_not():
    task, state = started("transit")
    zones = state.world.zones
    judge = jax.jit(task.judge)
    for index, ends in ((0, True), (5, False)):
        place = (float(zones.center.x[index]), float(zones.center.y[index]), 110.0)
        after = judge(state, moved(state, 2, place))
        assert bool(after.terminated[2]) is ends
        assert bool(after.progress.zone_violation[2]) is ends


def test_arriving_at_the_goal_is_success():
    task, state = started("transit")
    goal = [float(part[4]) for part in state.progress.goal.parts]
    after = jax.jit(task.judge)(state, moved(state, 4, (goal[0] - 3.0, goal[1], goal[2])))
    assert bool(after.progress.success[4])
    assert bool(after.terminated[4])
    assert not bool(after.progress.success[5])


def test_two_drones_whose_paths_cross_within_a_step_have_collided():
    task, state = started("dwell")
    # They swap places within one step: neither before nor after it are they near each other.
    start = replace(state, body=moved(replace(state, body=moved(state, 0, (0.0, 0.0, 60.0))), 1, (2.4, 0.1, 60.0)))
    swapped = moved(replace(start, body=moved(start, 0, (2.4, 0.0, 60.0))), 1, (0.0, 0.1, 60.0))
    after = jax.jit(task.judge)(start, swapped)
    assert list(np.asarray(after.progress.crashed[:3])) == [True, True, False]


def test_a_battery_drains_by_how_fast_a_drone_flies():
    task, state = started("transit")
    speeds = jnp.zeros(16).at[1].set(12.0)
    drones = replace(state.body.drones, velocity=Vec3(speeds, 0.0 * speeds, 0.0 * speeds))
    after = jax.jit(task.judge)(state, replace(state.body, drones=drones))
    spent = np.asarray(state.progress.battery - after.progress.battery)
    assert (spent > 0.0).all()
    # Hovering drains 0.9 of the nominal rate, flying at 12 m/s 1.2.
    assert spent[1] / spent[0] == pytest.approx(1.2 / 0.9, rel=2e-2)
    flat = replace(state.progress, battery=state.progress.battery.at[3].set(1e-4))
    assert np.flatnonzero(jax.jit(task.judge)(replace(state, progress=flat), state.body).terminated).tolist() == [3]


@pytest.mark.parametrize("side", ["east", "north"])
def test_the_geofence_ends_a_sortie_on_every_side_and_is_not_forgotten(side):
    task, state = started("transit")
    judge, axis, edge = jax.jit(task.judge), ["east", "north"].index(side), getattr(task.mission_spec.generator, side)
    for sign in (-1.0, 1.0):
        for beyond in (-1.0, 1.0):
            place = [0.0, 0.0, 110.0]
            place[axis] = sign * (edge + beyond)
            if axis == 1:
                place[0] = -task.mission_spec.generator.east + 20.0  # off the zones, which stand farther east
            after = judge(state, moved(state, 2, place))
            assert bool(after.progress.zone_violation[2]) is (beyond > 0.0)
            assert bool(after.terminated[2]) is (beyond > 0.0)
    assert bool(judge(after, state.body).progress.zone_violation[2])


def test_an_arrival_without_its_reserve_is_no_success():
    task, state = started("transit")
    goal = [float(part[4]) for part in state.progress.goal.parts]
    for spare in (-1.0, 1.0):
        battery = state.progress.battery.at[4].set(task.mission_spec.battery_reserve + spare)
        there = replace(state, progress=replace(state.progress, battery=battery))
        after = jax.jit(task.judge)(there, moved(there, 4, (goal[0] - 3.0, goal[1], goal[2])))
        assert bool(after.progress.arrived[4])
        assert bool(after.progress.success[4]) is (spare > 0.0)


def test_coming_nearer_to_the_goal_pays_by_the_meter():
    task, state = started("transit")
    at, goal = ([float(part[4]) for part in place.parts] for place in (state.body.drones.position, state.progress.goal))
    way = (np.array(goal) - at) / np.linalg.norm(np.array(goal) - at)
    near, far = (
        float(jax.jit(task.judge)(state, moved(state, 4, np.array(at) + step * way)).reward[4]) for step in (2.0, -2.0)
    )
    assert near - far == pytest.approx(4.0 * task.mission_spec.reward.progress, rel=1e-2)


def test_buildings_are_hit_and_hills_even_by_a_drone_that_lands():
    task, state = started("transit")
    judge = jax.jit(task.judge)
    house = jax.tree.map(lambda x: float(x[0]), state.world.buildings)
    for up, hit in ((-1.0, True), (0.4, True), (3.0, False)):
        after = judge(state, moved(state, 2, (house.center.x, house.center.y, house.height + up)))
        assert bool(after.progress.crashed[2]) is hit
    hill = jax.tree.map(lambda x: float(x[0]), state.world.hills)
    landing = replace(state, progress=replace(state.progress, mode=jnp.full(16, LAND)))
    top = hill.center.z + hill.radius
    after = judge(landing, moved(landing, 2, (hill.center.x, hill.center.y, top - 1.0)))
    assert bool(after.progress.crashed[2])


def test_only_what_is_seen_from_low_enough_is_covered():
    task, state = started("coverage")
    judge = jax.jit(task.judge)
    shares = []
    for above in (task.max_coverage_height - 1.0, task.max_coverage_height + 1.0):
        ground = float(state.world.terrain(jnp.float32(0.0), jnp.float32(0.0)))
        after = judge(state, moved(state, 2, (0.0, 0.0, ground + above)))
        covered = [jax.tree.map(lambda x: x[2], sortie.covered) for sortie in (after.progress, state.progress)]
        shares.append(float(coverage.covered_fraction(covered[0]) - coverage.covered_fraction(covered[1])))
    assert shares[0] > 0.01
    assert shares[1] == 0.0


def test_dwelling_begins_anew_when_the_view_is_lost_and_the_longest_time_is_kept():
    task, state = started("dwell")
    sortie = replace(
        state.progress, dwell=jnp.full(16, 5.0), best_dwell=jnp.full(16, 7.0), time_unseen=jnp.full(16, 1.0)
    )
    state = replace(state, progress=sortie)
    after = jax.jit(task.judge)(state, moved(state, 2, (-320.0, 320.0, 110.0)))
    assert float(after.progress.view_quality[2]) == 0.0
    assert float(after.progress.dwell[2]) == 0.0
    assert float(after.progress.best_dwell[2]) == 7.0
    assert float(after.progress.time_unseen[2]) == pytest.approx(1.0 + task.control_dt)


# Observing


def test_the_footprint_of_a_camera_that_looks_down_is_its_field_of_view():
    lens, half = Lens(), 250.0
    axes = Gimbal(jnp.float32(0.0), jnp.float32(math.pi / 2)).attitude(jnp.float32(0.0)).axes
    rows = coverage.footprint(Vec3(0.0, 0.0, 50.0), axes, jnp.float32(0.0), half, lens)
    seen = np.array([[int(row) >> k & 1 for k in range(coverage.SIDE)] for row in rows], bool)
    center = -half + (np.arange(coverage.SIDE) + 0.5) * 25.0
    # Looking along east, the image is 50 tan 45° to each side and 50 tan 30° ahead and behind.
    expected = (np.abs(center)[:, None] <= 50.0) & (np.abs(center)[None, :] <= 50.0 * math.tan(math.pi / 6))
    np.testing.assert_array_equal(seen, expected)


def test_the_footprint_agrees_with_the_frustum_cell_by_cell():
    lens, half, rng = Lens(max_range=1e6), 200.0, np.random.default_rng(0)
    cells = -half + (np.arange(coverage.SIDE) + 0.5) * (2 * half / coverage.SIDE)

    @jax.jit
    def both(eye, yaw, pitch):
        axes = Gimbal(yaw, pitch).attitude(0.3).axes
        rows = coverage.footprint(Vec3(*eye), axes, jnp.float32(0.0), half, lens)
        bits = jnp.stack(rows)[:, None] >> jnp.arange(coverage.SIDE, dtype=jnp.uint32) & 1
        x, y = jnp.meshgrid(jnp.asarray(cells, jnp.float32), jnp.asarray(cells, jnp.float32))
        seen = axes.unrotate(Vec3(x, y, 0.0 * x) - Vec3(*eye))
        return bits.astype(bool), lens.in_view(seen)

    for _ in range(30):
        eye = jnp.asarray([*rng.uniform(-200, 200, 2), rng.uniform(20, 100)], jnp.float32)
        got, wanted = both(eye, jnp.float32(rng.uniform(-3, 3)), jnp.float32(rng.uniform(0.6, math.pi / 2)))
        assert int(jnp.sum(got != wanted)) <= 1


def test_the_nearest_uncovered_cell_is_the_nearest():
    rng = np.random.default_rng(1)
    find = jax.jit(lambda rows, place: coverage.nearest_uncovered(rows, place, 250.0))
    center = -250.0 + (np.arange(coverage.SIDE) + 0.5) * 25.0
    for share in (0.3, 0.9, 0.99):
        seen = rng.random((coverage.SIDE, coverage.SIDE)) < share
        seen[7, 11] = False
        rows = tuple(jnp.uint32(sum(1 << k for k in range(coverage.SIDE) if row[k])) for row in seen)
        place = rng.uniform(-250, 250, 2)
        gaps = np.hypot(center[None, :] - place[0], center[:, None] - place[1])
        way, there = find(rows, Vec2(*map(jnp.float32, place)))
        assert bool(there)
        # Only the next uncovered cell to either side is considered in each row: that is the nearest of the row.
        assert float(way.norm()) == pytest.approx(gaps[~seen].min(), abs=1e-2)


def test_a_smaller_target_is_found_less_often_and_a_hidden_one_not_at_all():
    detector = Detector()
    odds = [float(detector.detection_prob(jnp.float32(size))) for size in (4.0, 10.0, 20.0)]
    assert odds[0] < 0.1 < odds[1] < 0.6 < odds[2]
    _, state = started("coverage")
    house = jax.tree.map(lambda x: x[0], state.world.buildings)
    center = house.center
    behind = Vec3(center.x + 40.0, center.y, jnp.float32(1.0))
    eye = Vec3(center.x - 40.0, center.y, jnp.float32(3.0))
    assert bool(state.world.occluded(eye, behind))
    high = Vec3(center.x + 40.0, center.y, jnp.float32(150.0))
    assert not bool(state.world.occluded(replace(eye, z=jnp.float32(150.0)), high))


@pytest.mark.parametrize("mission", MISSIONS)
def test_an_observation_is_its_named_parts(mission):
    task, state = started(mission)
    parts = jax.jit(task.observation_parts)(state)
    assert {name: part.shape for name, part in parts.items()} == {
        name: (16, size) for name, size in observation.sizes(task.mission_spec, False).items()
    }
    assert sum(part.shape[1] for part in parts.values()) == task.spec.observation
    assert all(bool(jnp.isfinite(part).all()) for part in parts.values())


def test_an_image_shows_the_target_the_gimbal_points_at():
    task, state = started("dwell", camera=CameraSettings("rgb"))
    image = np.asarray(jax.jit(task.image)(state))
    red, green = image & 0xFF, image >> 8 & 0xFF
    signal = (red > 120) & (green < 60)
    # At the start the camera points at the reported position: nearly every drone has its target in view.
    assert (signal.reshape(16, -1).sum(axis=1) > 0).mean() > 0.7


# Behavior


def condition(**settings):
    usual = {"battery": 80.0, "reserve": 30.0, "home": Vec3(100.0, 0.0, -50.0), "height": 50.0}
    usual |= {"done": False, "lost": False} | settings
    return BehaviorInput(**{k: v if isinstance(v, Vec3) else jnp.asarray(v) for k, v in usual.items()})


@pytest.mark.parametrize(
    ("mode", "now", "expected"),
    [
        (TAKE_OFF, {"height": 5.0}, TAKE_OFF),
        (TAKE_OFF, {"height": 28.0}, MISSION),
        (MISSION, {}, MISSION),
        (MISSION, {"battery": 29.0}, RETURN),
        (MISSION, {"done": True}, RETURN),
        (RETURN, {"battery": 90.0}, RETURN),
        (RETURN, {"home": Vec3(1.0, 1.0, -50.0)}, LAND),
        (LAND, {"home": Vec3(4.0, 0.0, -20.0), "height": 20.0}, LAND),
        (LAND, {"home": Vec3(8.0, 0.0, -20.0), "height": 20.0}, RETURN),
        (LAND, {"home": Vec3(0.5, 0.0, 0.0), "height": 0.1}, LANDED),
        (MISSION, {"battery": 4.0}, EMERGENCY),
        (RETURN, {"lost": True}, EMERGENCY),
        (EMERGENCY, {"lost": False}, RETURN),
        (LANDED, {"battery": 4.0}, LANDED),
    ],
)
def test_the_mode_that_follows(mode, now, expected):
    assert int(Behavior().next(jnp.int32(mode), condition(**now))) == expected


def test_a_drone_takes_off_flies_home_and_lands_on_its_pad():
    """Its battery runs low in flight, so that it returns."""
    task = replace(Survey(mission="coverage").for_evaluation(), randomize=Randomization(gust_std=0.2))
    state = jax.jit(task.reset)(Rng.from_seed(0, 4))
    assert float(jnp.max(state.body.drones.position.z - state.progress.home.z)) < 0.1

    @jax.jit
    def fly(state):
        def tick(state, k):
            go = jnp.where(k < 250, jnp.asarray([0.8, 0.1, 0.0, 0.0]), 0.0)
            spent = jnp.where(k == 250, 16.0, state.progress.battery)
            state = replace(state, progress=replace(state.progress, battery=spent))
            over = state.ended
            after = task.step(state, jnp.broadcast_to(go, (16, 4)))
            kept = jnp.where(over, state.progress.mode, after.progress.mode)
            return replace(after, terminated=after.terminated | over, progress=replace(after.progress, mode=kept)), kept

        return jax.lax.scan(tick, state, jnp.arange(1200))

    after, modes = fly(state)
    for mode in (TAKE_OFF, MISSION, RETURN, LAND, LANDED):
        assert int(jnp.sum(jnp.any(modes == mode, axis=0))) >= 14
    home = after.progress.home - after.body.drones.position
    away = jnp.hypot(home.x, home.y)
    assert float(jnp.median(away)) < 3.0


def test_a_drone_that_has_lost_its_position_lands_where_it_is():
    navigation = Navigation(gnss_outage_prob=1.0, vio_failure_prob=1.0)
    task = Survey(mission="transit", navigation=navigation, mean_world_lifetime=0.0)
    state = jax.jit(task.reset)(Rng.from_seed(0, 2))
    state = replace(state, progress=replace(state.progress, outage_start=jnp.full(16, 1.0)))
    fly = jax.jit(
        lambda s: jax.lax.scan(lambda s, _: (task.step(s, jnp.zeros((16, 4))), s.progress.mode), s, length=20)
    )
    _, modes = fly(state)
    assert set(np.asarray(modes[:4]).ravel()) == {MISSION}
    assert set(np.asarray(modes[-1])) == {EMERGENCY}


def test_a_drone_without_a_link_turns_home_earlier_and_gives_the_reason():
    task, state = started("coverage")
    home = state.progress.home
    away = Vec3(home.x + 100.0, home.y, home.z + 40.0)
    drones = replace(state.body.drones, position=away)
    # Charge between the reserve for the way home and a fifth more.
    sortie = replace(state.progress, battery=jnp.full(task.agents, 20.0), mode=jnp.full(task.agents, MISSION))
    state = replace(state, body=replace(state.body, drones=drones), progress=sortie)
    command = jax.jit(task.command)
    hover = jnp.zeros((task.agents, task.spec.action.size))
    after, _ = command(state, hover)
    assert (after.progress.mode == MISSION).all()
    after, _ = command(replace(state, step=jnp.full(task.agents, int(31.0 / task.control_dt))), hover)
    assert (after.progress.mode == RETURN).all()
    assert (after.progress.filter_reason[after.progress.filter_correction == 0.0] == BATTERY).all()
    assert (after.progress.filter_correction == 0.0).any()


# Models


def climbing(task, world=0, seconds=4.0):
    """A fleet that takes off."""
    state = jax.jit(task.reset)(Rng.from_seed(0, world))
    step = jax.jit(lambda s: task.step(s, jnp.zeros((task.agents, task.spec.action.size))))
    for _ in range(round(seconds / task.control_dt)):
        state = step(state)
    return state


def test_a_fleet_with_rotors_takes_off_under_px4s_controller():
    task = Survey(mission="free", agents=2, controller="px4", start_mode="pad", mean_world_lifetime=0.0)
    state = climbing(task)
    height = np.asarray(state.body.drones.position.z - state.progress.home.z)
    assert (height > 4.0).all()
    assert not np.asarray(state.progress.crashed).any()
    assert np.asarray(state.body.airframes.position.z) == pytest.approx(np.asarray(state.body.drones.position.z))


def test_drones_of_different_response_factors_answer_differently():
    state = jax.jit(Survey(mission="free", agents=8, randomize=Randomization(response=0.3)).reset)(Rng.from_seed(0, 0))
    factor = np.asarray(state.progress.response_factor)
    assert factor.min() < 1.0 < factor.max()
    assert (np.abs(factor - 1.0) <= 0.3).all()
    task = Survey(randomize=Randomization(response=0.3))
    assert float(perturbed_model(task, jnp.float32(1.2)).velocity_time_constant) == pytest.approx(
        1.2 * task.velocity_model.velocity_time_constant
    )
    assert perturbed_model(task, None) is task.velocity_model


def test_a_drone_with_tilt_dynamics_is_given_more_room_by_the_filter():
    simple, tilting = (
        Survey(velocity_model=replace(VelocityDrone(), tilt_time_constant=time)).filter for time in (0.0, 0.2)
    )
    assert tilting.reaction_time > simple.reaction_time == simple.dt
    assert float(tilting.max_approach_speed(jnp.float32(20.0))) < float(simple.max_approach_speed(jnp.float32(20.0)))


# Scripts


def test_every_baseline_and_profile_gives_actions_of_its_task():
    scripts = {(m, n): s for m, some in BASELINES.items() for n, s in some.items()}
    scripts |= {("free", name): profile for name, profile in PROFILES.items()}
    for (mission, _), script in scripts.items():
        task, state = started(mission)
        actions = fly_script(script, task, state)
        assert actions.shape == (16, task.spec.action.size)
        assert bool(jnp.isfinite(actions).all())


def test_a_script_flies_around_a_zone_from_the_moment_it_is_announced():
    task, state = started("transit")
    zones = state.world.zones
    far = jnp.full_like(zones.radius, 1e4)
    alone = replace(
        zones,
        center=Vec2(far.at[0].set(0.0), far.at[0].set(10.0)),
        radius=jnp.full_like(far, 150.0),
        announced_at=jnp.full_like(far, 20.0),
        level=jnp.full_like(zones.level, HIGH),
    )
    here, goal = Vec2(jnp.float32(-600.0), jnp.float32(0.0)), Vec2(jnp.float32(600.0), jnp.float32(0.0))

    def corner(clock):
        body = replace(state.body, clock=jnp.float32(clock))
        return next_corner(task, replace(state, world=replace(state.world, zones=alone), body=body), here, goal)

    assert float(corner(10.0).x) == 600.0
    around = corner(30.0)
    # South of the zone, whose center lies a little to the north, and the path there is clear of it.
    assert float(around.y) < 0.0
    way = around - here
    gap = abs(way.x * (10.0 - here.y) - way.y * (0.0 - here.x)) / way.norm()
    assert float(gap) > 150.0 + task.filter.margin


def test_a_searching_script_does_not_know_where_targets_are():
    for mission in ("coverage", "search"):
        task, state = started(mission, start_mode="pad")
        (script,) = BASELINES[mission].values()
        targets = state.world.targets
        elsewhere = replace(targets, mover=replace(targets.mover, center=targets.mover.center * -0.5))
        other = replace(state, world=replace(state.world, targets=elsewhere))
        assert bool(jnp.all(fly_script(script, task, state) == fly_script(script, task, other)))


def test_the_planned_tour_is_the_shortest_of_all_orders():
    rng = np.random.default_rng(0)
    places, values = rng.uniform(-400.0, 400.0, (5, 2)), np.array([4.0, 3.0, 2.0, 2.0, 1.0])
    legs = np.linalg.norm(places[:, None] - places, axis=-1)
    worth = ((np.arange(32)[:, None] >> np.arange(5)) & 1) @ values
    left = remaining_length(jnp.asarray(legs, jnp.float32), jnp.asarray(worth >= 9.0))

    def flown(order):
        """The length of a tour in that order, from its first target until the value is enough."""
        count = next(n for n in range(1, 6) if values[list(order[:n])].sum() >= 9.0)
        return sum(legs[a, b] for a, b in itertools.pairwise(order[:count]))

    for first in range(5):
        best = min(flown(order) for order in itertools.permutations(range(5)) if order[0] == first)
        assert float(left[1 << first, first]) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mission": "transitt"}, "there is no mission 'transitt'.*transit"),
        ({"agents": 1}, "2 to 32"),
        ({"camera": lambda: CameraSettings("lidar")}, "there is no camera kind 'lidar'.*rgb"),
        ({"navigation": lambda: Navigation(gnss_outage_prob=1.5)}, "gnss_outage_prob is a probability"),
        ({"randomize": lambda: Randomization(response=1.5)}, "response is a relative change"),
        ({"start_mode": "sea"}, "there is no start mode 'sea'"),
        ({"controller": "fast"}, "there is no controller 'fast'"),
        ({"battery_drain": -1.0}, "battery_drain"),
        ({"control_rate": 100}, "between 2 and 50"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(settings, words):
    with pytest.raises(ValueError, match=words):
        Survey(**{name: value() if callable(value) else value for name, value in settings.items()})


def test_the_clock_of_a_world_hides_no_drone_when_it_ends_all_sorties():
    task, state = started("search")
    over = replace(state, truncated=jnp.ones(16, bool))
    see = jax.jit(task.observe)
    assert np.array_equal(see(state), see(over))
    waiting = see(replace(state, truncated=jnp.arange(16) > 0))
    assert not np.array_equal(see(state)[0], waiting[0])


def test_a_drone_that_crashed_has_not_done_its_mission_whatever_it_collected():
    task, state = started("multi-objective")
    rich = replace(state.progress, value=jnp.full(16, 1e6))
    judge = jax.jit(task.judge)
    well = judge(replace(state, progress=rich), replace(state.body, clock=state.body.clock + 0.2))
    assert bool(well.progress.success[0])
    house = jax.tree.map(lambda x: x[0], state.world.buildings)
    crash = judge(replace(state, progress=rich), moved(state, 0, (float(house.center.x), float(house.center.y), 1.0)))
    assert bool(crash.progress.crashed[0]) and not bool(crash.progress.success[0])
    empty = judge(replace(state, progress=replace(rich, battery=jnp.zeros(16))), well.body)
    assert not bool(empty.progress.success[0])


@pytest.mark.parametrize("crashed", [True, False])
def test_a_sortie_counts_by_the_time_its_world_left_it_and_not_by_how_it_ended(crashed):
    task, state = started("search")
    ends = float(task.mean_world_lifetime * state.world.lifetime)
    limit = float(state.progress.time_limit[0])

    def success(began):
        clock = jnp.float32(began + 10.0)
        ended = replace(
            state,
            body=replace(state.body, clock=clock),
            step=jnp.full(16, round(10.0 / task.control_dt)),
            terminated=jnp.full(16, crashed),
            truncated=jnp.full(16, not crashed),
        )
        return float(task.episode_metrics(ended)["success"][0])

    assert success(ends - limit) == 0.0
    assert np.isnan(success(ends - 0.5 * limit))
