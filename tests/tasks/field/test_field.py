"""The field robot keeps its rules: course, queue, memory, touching, ends."""

from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2
from slipstream.core.rng import Rng
from slipstream.dynamics.rover import ACKERMANN, CRAB, SPIN
from slipstream.experiment.fields import from_dict, to_dict
from slipstream.sensors.lidar import Lidar
from slipstream.tasks.field import Field, course, sensing
from slipstream.tasks.field.rows import all_plants, lane_center
from slipstream.tasks.field.settings import Crop, FieldReward, Terrain
from slipstream.tasks.field.state import Queue

THREE_LANES = Field(lanes=3, max_rows=3).for_evaluation()
IDLE = jnp.array([1, 1, 0, 0, 0, 0, 0])
PRESS = jnp.array([1, 1, 1, 0, 0, 0, 0])


@lru_cache
def programs(task):
    """Compiled start, step, judge and observe of a task."""
    start = jax.jit(lambda seed, world: task.reset(Rng.from_seed(seed, world)))
    return start, jax.jit(task.step), jax.jit(task.judge), jax.jit(task.observe)


def states(task, count=64, seed=0):
    return jax.jit(jax.vmap(lambda k: task.reset(Rng.from_seed(seed, k))))(jnp.arange(count))


def carried(task, state, position):
    """The state once the robot has been put there."""
    body = replace(state.body, position=Vec2(*map(jnp.float32, position)))
    return programs(task)[2](state, body)


def goal_of(task, state):
    progress = state.progress
    goal = course.waypoint(task, state.world, progress.turns, progress.stage, progress.lane)
    return float(goal.x), float(goal.y)


# The course


@pytest.mark.parametrize("world", range(4))
def test_a_robot_carried_from_waypoint_to_waypoint_has_driven_all_lanes(world):
    task = THREE_LANES
    start, step, _, _ = programs(task)
    state = start(0, world)
    lanes, total = [int(state.progress.lane)], 0.0
    for _ in range(40):
        queue = state.world.queue
        while int(state.progress.stage) > int(course.legs(state.world)) and int(
            state.progress.advanced - state.progress.due
        ) < int(queue.rows_of(state.progress.turns)):
            state = step(step(state, PRESS), IDLE)
        state = carried(task, state, goal_of(task, state))
        total += float(state.reward)
        if int(state.progress.lane) != lanes[-1]:
            lanes.append(int(state.progress.lane))
        if bool(state.ended):
            break
    assert bool(state.terminated) and bool(state.progress.finished) and not bool(state.progress.touched)
    figures = task.episode_metrics(state)
    assert float(figures["success"]) == 1.0 and float(figures["lanes"]) == 3.0
    # The first turn goes to its side; the second lane is driven the other way, so there right is left.
    queue = state.world.queue
    right, rows = ([int(f(jnp.int32(k))) for k in range(2)] for f in (queue.is_right, queue.rows_of))
    wanted = [0, -rows[0] if right[0] else rows[0]]
    assert lanes == [*wanted, wanted[-1] + (rows[1] if right[1] else -rows[1])]


def test_waypoints_of_a_lane_lie_in_its_middle_and_that_of_a_turn_beyond_its_end():
    task = THREE_LANES
    made = states(task, 32)
    legs = int(course.legs(jax.tree.map(lambda x: x[0], made.world)))

    def places(world, stage):
        goal = course.waypoint(task, world, jnp.int32(1), stage, jnp.int32(-1))
        return goal.x, goal.y, lane_center(task.crop, world.rows, jnp.int32(-1), goal.x)

    x, y, middle = (
        np.asarray(part)
        for part in jax.vmap(lambda w: jax.vmap(lambda s: places(w, s))(jnp.arange(legs + 2)))(made.world)
    )
    np.testing.assert_allclose(y[:, :-1], middle[:, :-1], atol=1e-5)
    # The second lane is driven backward: from its far end to its near one.
    np.testing.assert_allclose(x[:, [0, legs, legs + 1]], np.tile([3.0, 0.0, -0.8], (32, 1)), atol=1e-5)


def test_a_lane_counts_where_the_robot_is_inside_and_a_turn_where_it_is_half_way():
    """However wide the robot swings: no point has to be met."""
    task = THREE_LANES
    state = programs(task)[0](0, 0)
    count, rows = int(course.legs(state.world)), state.world.rows
    outside = carried(task, state, (-0.1, 0.2))
    assert int(outside.progress.stage) == 0
    assert int(carried(task, state, (0.1, 0.2)).progress.stage) == 1
    assert int(carried(task, state, (0.1, 0.95)).progress.stage) == 0, "that is another lane"
    turning = replace(state, progress=replace(state.progress, stage=jnp.int32(count + 1)))
    side = int(state.world.queue.lane_change(jnp.int32(0)))
    middle = 0.5 * side * float(rows.spacing)
    for x in (3.2, 3.9):
        assert int(carried(task, turning, (x, middle - 0.1 * side)).progress.turns) == 0
        assert int(carried(task, turning, (x, middle + 0.1 * side)).progress.turns) == 1
    assert int(carried(task, turning, (2.9, middle + 0.1 * side)).progress.turns) == 0, "still between the rows"


@pytest.mark.parametrize("ragged", [0, 1])
def test_a_lane_ends_where_the_last_plant_of_its_rows_may_be_missing(ragged):
    """Nobody can see where rows with ragged ends should end: a robot that leaves after the last plant is right."""
    task = replace(THREE_LANES, crop=Crop(bend=(0.0, 0.0), ragged_ends=ragged)).for_evaluation()
    state = programs(task)[0](0, 0)
    count = int(course.legs(state.world))
    last = replace(state, progress=replace(state.progress, stage=jnp.int32(count)))
    for x, before in ((2.6, True), (2.7, ragged == 0), (3.05, False)):
        assert (int(carried(task, last, (x, 0.0)).progress.stage) == count) == before
    turning = replace(state, progress=replace(state.progress, stage=jnp.int32(count + 1)))
    across = 0.7 * int(state.world.queue.lane_change(jnp.int32(0)))
    assert int(carried(task, turning, (2.7, across * float(state.world.rows.spacing))).progress.turns) == ragged


def test_half_way_across_a_headland_the_lane_to_drive_does_not_jump():
    """Its distance, by which a robot with memory learns to count rows, falls by what was crossed."""
    task = THREE_LANES
    state = programs(task)[0](0, 0)
    count, rows = int(course.legs(state.world)), state.world.rows
    turning = replace(state, progress=replace(state.progress, stage=jnp.int32(count + 1)))
    change = int(state.world.queue.lane_change(jnp.int32(0)))
    across = change * float(rows.spacing)
    lane = float(lane_center(task.crop, rows, jnp.int32(0), rows.length))
    for part in (0.1, 0.45, 0.55, 1.0):
        after = carried(task, turning, (3.6, lane + part * across))
        assert int(after.progress.turns) == int(part > 0.5)
        to_lane = float(sensing.privileged_observation(task, after)[3])
        np.testing.assert_allclose(to_lane, (1.0 - part) * across, atol=1e-5)


def test_leaving_the_way_ends_an_episode_and_the_clock_does_not_terminate_it():
    task = Field().for_evaluation()
    state = programs(task)[0](0, 0)
    x, y = float(state.body.position.x), float(state.body.position.y)
    here = carried(task, state, (x - 0.5, y))
    assert not bool(here.ended)
    away = carried(task, state, (x - 1.2, y))
    assert bool(away.terminated) and bool(away.progress.lost) and float(away.reward) < -2.0
    late = replace(state, step=jnp.int32(1499))
    late = programs(task)[1](late, IDLE)
    assert bool(late.truncated) and not bool(late.terminated)


def test_touching_a_plant_ends_an_episode_and_a_missing_one_is_not_there():
    task = Field().for_evaluation()
    state = programs(task)[0](0, 0)
    # From below the lowest row, where no other plant is near.
    x, y, _ = min(np.asarray(all_plants(task.crop, state.world.rows, 1))[10:15], key=lambda plant: plant[1])
    reach = task.rover.radius + task.crop.plant_radius
    for distance, touches in ((reach - 0.01, True), (reach + 0.01, False)):
        after = carried(task, state, (x, y - distance))
        assert bool(after.progress.touched) == touches
        assert (float(task.episode_metrics(after)["touched"]) == 1.0) == touches
    bare = replace(Field(), crop=Crop(missing=(0.999, 0.999))).for_evaluation()
    assert not bool(carried(bare, programs(bare)[0](0, 0), (x, y)).progress.touched)


def test_the_reward_of_a_step_is_the_sum_of_its_terms():
    task = Field(reward=FieldReward(step=-0.5, progress=2.0, waypoint=7.0)).for_evaluation()
    state = programs(task)[0](0, 0)
    goal, here = np.array(goal_of(task, state)), np.array([float(p) for p in state.body.position.parts])
    toward = here + 0.4 * (goal - here) / np.linalg.norm(goal - here)
    assert float(carried(task, state, toward).reward) == pytest.approx(-0.5 + 2.0 * 0.4, abs=1e-4)
    left = np.linalg.norm(goal - here)
    assert float(carried(task, state, goal).reward) == pytest.approx(-0.5 + 2.0 * left + 7.0, abs=1e-4)


def test_in_training_most_robots_start_on_the_way_and_know_it():
    made = states(Field(lanes=5, max_rows=2), 400)
    turns = np.asarray(made.progress.turns)
    assert 0.3 < np.mean(turns == 0) < 0.5 and set(turns) == {0, 1, 2, 3, 4}
    np.testing.assert_array_equal(made.progress.command, turns)
    np.testing.assert_array_equal(made.progress.due, made.progress.advanced)
    rows = jax.vmap(lambda q, n: jax.vmap(q.rows_of)(jnp.arange(4)) * (jnp.arange(4) < n))(made.world.queue, turns)
    np.testing.assert_array_equal(made.progress.due, np.asarray(rows).sum(1))
    fresh = states(Field(lanes=5, max_rows=2).for_evaluation(), 100)
    assert (np.asarray(fresh.progress.turns) == 0).all()
    np.testing.assert_allclose(fresh.body.position.x, -course.MARGIN, atol=1e-6)


# The queue of commands


def queue_of(commands):
    """A queue of those turns: R or L, and rows."""
    right = sum((side == "R") << k for k, (side, _) in enumerate(commands))
    rows = sum((count - 1) << (2 * k) for k, (_, count) in enumerate(commands))
    return Queue(jnp.uint32(right), jnp.uint32(rows))


def shown(task, state):
    rows, side, parity = sensing.command(task, state)
    return [float(x) for x in rows], float(side), float(parity)


def test_the_queue_counts_rows_down_and_goes_on_to_the_next_command():
    task = THREE_LANES
    start, step, _, _ = programs(task)
    state = start(0, 0)
    state = replace(state, world=replace(state.world, queue=queue_of([("R", 2), ("L", 3)])))
    state = replace(state, progress=replace(state.progress, rows_left=jnp.int32(2)))
    found = [shown(task, state)]
    for _ in range(6):
        state = step(step(state, PRESS), IDLE)
        found.append(shown(task, state))
    assert found == [
        ([0.0, 1.0, 0.0], -1.0, 1.0),  # to the right, two rows on
        ([1.0, 0.0, 0.0], -1.0, 1.0),
        ([0.0, 0.0, 1.0], 1.0, -1.0),  # in the next lane: to the left, three rows on
        ([0.0, 1.0, 0.0], 1.0, -1.0),
        ([1.0, 0.0, 0.0], 1.0, -1.0),
        ([0.0, 0.0, 0.0], 0.0, 1.0),  # no command is left
        ([0.0, 0.0, 0.0], 0.0, 1.0),
    ]
    assert int(state.progress.advanced) == 5


def test_the_queue_advances_when_the_button_goes_down_and_not_while_it_is_held():
    start, step, _, _ = programs(THREE_LANES)
    state, counts = start(0, 0), []
    for action in (PRESS, PRESS, PRESS, IDLE, PRESS, IDLE):
        state = step(state, action)
        counts.append(int(state.progress.advanced))
    assert counts == [1, 1, 1, 1, 2, 2]


def test_a_queue_ahead_or_behind_costs_in_every_step_and_in_a_headland_passed_rows_may_count():
    task = THREE_LANES
    state = programs(task)[0](0, 0)
    world = replace(state.world, queue=queue_of([("R", 2), ("L", 1)]))
    legs = course.legs(world)

    def error(**progress):
        return int(course.queue_error(world, replace(state.progress, **{k: jnp.int32(v) for k, v in progress.items()})))

    assert [error(advanced=n) for n in (0, 1, 3)] == [0, 1, 3]
    assert [error(advanced=n, stage=int(legs) + 1) for n in (0, 1, 2, 3)] == [0, 0, 0, 1]
    entering = {"turns": 1, "due": 2, "stage": 0}
    assert [error(advanced=n, **entering) for n in (0, 1, 2, 3)] == [0, 0, 0, 1]
    inside = {"turns": 1, "due": 2, "stage": 1}
    assert [error(advanced=n, **inside) for n in (0, 1, 2, 3)] == [2, 1, 0, 1]


def test_odometry_counts_from_the_last_press_of_the_button():
    start, step, _, _ = programs(THREE_LANES)
    state = start(0, 0)
    ahead, ahead_and_press = jnp.array([1, 2, 0, 0, 0, 0, 0]), jnp.array([1, 2, 1, 0, 0, 0, 0])
    for _ in range(10):
        state = step(state, ahead)
    yaw, moved = float(state.body.yaw), float(state.progress.odometry.x)
    assert 0.5 < moved < 0.8 and float(state.progress.odometry.y) == pytest.approx(0.0, abs=1e-5)
    assert float(state.body.position.x) + course.MARGIN == pytest.approx(moved * np.cos(yaw), rel=0.05)
    state = step(state, ahead_and_press)
    assert float(state.progress.odometry.x) == pytest.approx(0.08, abs=0.01)


# Actions


def test_numbers_choices_and_components_mean_the_same():
    found = {}
    for space, action in (
        ("box", jnp.array([-1.0, 1.0, 0.3, 1.0, -1.0, 1.0, 1.0])),
        ("multidiscrete", jnp.array([0, 2, 1, 1, 0, 1, 1])),
        ("discrete", jnp.int32(np.ravel_multi_index((0, 2, 1, 1, 0, 1, 1), (3, 3, 2, 2, 2, 2, 2)))),
    ):
        task = Field(action_space=space)
        _, controls = task.command(programs(task)[0](0, 0), action)
        found[space] = [float(x) for x in jax.tree.leaves(controls)]
    assert found["box"] == found["multidiscrete"] == found["discrete"]
    assert Field().spec.action.components == (3, 3, 2, 2, 2, 2, 2)
    assert Field(action_space="discrete").spec.action.components == (288,)


@pytest.mark.parametrize(("choice", "mode"), [(0, CRAB), (1, ACKERMANN), (2, SPIN)])
def test_a_robot_with_all_modes_chooses_one_with_every_action(choice, mode):
    task = Field(steering="all")
    _, controls = task.command(programs(task)[0](0, 0), jnp.array([1, 1, choice, 0, 0, 0, 0, 0]))
    assert int(controls.mode) == mode


def test_memory_cells_follow_their_bits_within_their_limits():
    start, step, _, observe = programs(THREE_LANES)
    state = start(0, 0)
    for _ in range(3):
        state = step(state, jnp.array([1, 1, 0, 1, 0, 1, 0]))
    np.testing.assert_allclose(state.progress.memory, [0.3, -0.3, 0.3, -0.3], atol=1e-6)
    for _ in range(12):
        state = step(state, jnp.array([1, 1, 0, 1, 0, 0, 1]))
    np.testing.assert_allclose(state.progress.memory, [1.0, -1.0, -0.9, 0.9], atol=1e-5)
    before_ranges = 3 + 3 + 2 + 3
    np.testing.assert_allclose(observe(state)[before_ranges : before_ranges + 4], state.progress.memory)


def test_the_steering_angle_changes_by_a_step_for_each_action():
    start, step, _, _ = programs(THREE_LANES)
    state, angles = start(0, 0), []
    for action in (2, 2, 1, 0):
        state = step(state, jnp.array([action, 1, 0, 0, 0, 0, 0]))
        angles.append(np.degrees(float(state.body.steering)))
    assert angles == pytest.approx([15.0, 30.0, 30.0, 15.0], abs=1e-3)


# What differs between worlds


RANGES = {
    "slope": Field(terrain=Terrain(slope=(0.0, 0.2))),
    "slip": Field(terrain=Terrain(slip=(0.0, 0.3))),
    "noise": Field(lidar=Lidar(noise=0.02)),
    "dropout": Field(lidar=Lidar(dropout=0.2)),
    "curvature": Field(crop=Crop(curvature=(0.0, 0.06))),
    "missing": Field(crop=Crop(missing=(0.0, 0.2))),
}


@lru_cache
def driven_ahead(task, steps=15):
    """Positions and observed ranges of some worlds in which the robot drives straight ahead."""
    task = task.for_evaluation()

    def play(world):
        def tick(state, _):
            state = task.step(state, jnp.array([1, 2, 0, 0, 0, 0, 0]))
            return state, (jnp.stack(state.body.position.parts), task.observe(state)[-40:])

        return jax.lax.scan(tick, task.reset(Rng.from_seed(3, world)), length=steps)[1]

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(play))(jnp.arange(24)))


@pytest.mark.parametrize("name", RANGES)
def test_a_range_that_is_zero_changes_nothing_and_another_does(name):
    plain, other = driven_ahead(Field()), driven_ahead(RANGES[name])
    moved, looked = (np.abs(a - b).max() > 1e-3 for a, b in zip(plain, other, strict=True))
    assert moved == (name in ("slope", "slip")) and looked
    zero = {
        "slope": Field(terrain=Terrain(slope=(0.0, 0.0))), "slip": Field(terrain=Terrain(slip=(0.0, 0.0))),
        "noise": Field(lidar=Lidar(noise=0.0)), "dropout": Field(lidar=Lidar(dropout=0.0)),
        "curvature": Field(crop=Crop(curvature=(0.0, 0.0))), "missing": Field(crop=Crop(missing=(0.0, 0.0))),
    }[name]  # fmt: skip
    assert zero == Field()


def test_slopes_pull_to_any_side_and_slip_is_as_large_as_set():
    ground = states(Field(terrain=Terrain(slope=(0.1, 0.1), slip=(0.1, 0.3))), 400).world.ground
    np.testing.assert_allclose(np.hypot(ground.slide.x, ground.slide.y), 0.1, rtol=1e-4)
    assert abs(np.mean(ground.slide.x)) < 0.01 and abs(np.mean(ground.slide.y)) < 0.01
    assert np.min(ground.slip) >= 0.1 and np.max(ground.slip) <= 0.3 and np.ptp(ground.slip) > 0.18


def test_commands_turn_to_either_side_and_skip_every_number_of_rows_alike():
    queue = states(Field(max_rows=3).for_evaluation(), 600).world.queue
    turns = jnp.arange(7)
    right = np.asarray(jax.vmap(lambda q: jax.vmap(q.is_right)(turns))(queue))
    rows = np.asarray(jax.vmap(lambda q: jax.vmap(q.rows_of)(turns))(queue))
    assert np.abs(right.mean(0) - 0.5).max() < 0.07
    assert set(rows.ravel()) == {1, 2, 3}
    for count in (1, 2, 3):
        assert np.mean(rows == count) == pytest.approx(1 / 3, abs=0.03)


# What is observed


def test_the_robot_knows_neither_where_it_is_nor_where_it_looks():
    task = Field(crop=Crop(missing=(0.999, 0.999))).for_evaluation()
    state = programs(task)[0](0, 0)
    moved = replace(
        state, body=replace(state.body, position=Vec2(jnp.float32(1.5), jnp.float32(0.7)), yaw=jnp.float32(2.0))
    )
    observe = programs(task)[3]
    np.testing.assert_array_equal(observe(state), observe(moved))
    assert (np.asarray(observe(state))[-40:] == 0.0).all()


def test_odometry_is_observed_if_asked_for_and_is_that_of_the_wheels():
    task = replace(THREE_LANES, odometry=True)
    state = programs(THREE_LANES)[0](0, 0)
    driven = replace(state, progress=replace(state.progress, odometry=Vec2(jnp.float32(1.25), jnp.float32(-0.5))))
    elsewhere = replace(driven, body=replace(driven.body, position=Vec2(jnp.float32(50.0), jnp.float32(0.0))))
    for one in (driven, elsewhere):
        more, less = (np.asarray(programs(which)[3](one)) for which in (task, THREE_LANES))
        at = len(more) - task.lidar.beams - task.memory_cells - 2
        np.testing.assert_array_equal(more[at : at + 2], [1.25, -0.5])
        np.testing.assert_array_equal(np.delete(more, [at, at + 1]), less)
    assert len(more) == task.spec.observation == THREE_LANES.spec.observation + 2


def test_observed_ranges_are_nearness_to_the_plants_that_there_are():
    task = Field().for_evaluation()
    made = states(task, 16)
    body = replace(made.body, position=Vec2(0.0 * made.body.yaw + 1.5, made.body.position.y))
    made = replace(made, body=body)
    seen = 1.0 - np.asarray(jax.vmap(task.observe)(made))[:, -40:]
    every = np.asarray(jax.vmap(lambda rows: all_plants(task.crop, rows, 1))(made.world.rows))[:, :, :2]
    for ranges, plants, x, y, yaw in zip(seen, every, body.position.x, body.position.y, body.yaw, strict=True):
        angles = np.asarray(yaw) + task.lidar.angles
        hits = np.array([x, y]) + ranges[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)
        gap = np.linalg.norm(hits[:, None] - plants[None], axis=-1).min(1)
        assert gap[ranges < 0.999] == pytest.approx(task.crop.plant_radius, abs=2e-3)
        assert (gap[ranges > 0.999] > task.crop.plant_radius - 1e-3).all() and (ranges < 0.999).sum() > 8


# Settings


def test_every_setting_survives_the_way_through_json():
    other = Field(lanes=3, crop=Crop(bend=(0.0, 0.1)), reward=FieldReward(touch=-9.0), lidar=Lidar(noise=0.1))
    assert from_dict(Field, to_dict(other), "task") == other
    assert "training" not in to_dict(Field())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lanes": 17}, "1 to 16 lanes"), ({"max_rows": 5}, "4 rows apart"), ({"memory_cells": 9}, "memory cells"),
        ({"steering": "sideways"}, "steering"), ({"action_space": "boxes"}, "action space"),
        ({"midway_starts": 1.5}, "fraction"), ({"lost_distance": 0.0}, "positive"), ({"substeps": 0}, "at least 1"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_are_refused_in_words(changes, words):
    with pytest.raises(ValueError, match=words):
        Field(**changes)
