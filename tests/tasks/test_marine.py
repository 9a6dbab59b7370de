"""Marine navigation keeps its rules: starts, COLREGs, sensing, ends."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2
from slipstream.core.rng import Rng
from slipstream.core.task import CurriculumTask, advance
from slipstream.evaluation.pilot import scripted_pilot
from slipstream.evaluation.runner import run_episodes
from slipstream.experiment.fields import from_dict, to_dict
from slipstream.learn.rollout import in_blocks
from slipstream.plants.fast import FastPlant
from slipstream.tasks.marine import Marine
from slipstream.tasks.marine.colregs import must_give_way, required_turn
from slipstream.tasks.marine.sensing import nearest
from slipstream.tasks.marine.settings import Curriculum, MarineReward
from slipstream.tasks.marine.state import Obstacle

ICRA = Marine(
    vessels=3, buoys=4, vehicle="point", action_space="discrete", colregs=False, vortices=4, arena_size=50.0,
    min_goal_distance=30.0, sensor_range=15.0,
)  # fmt: skip


def states(task, count=64, seed=0):
    return jax.jit(jax.vmap(lambda k: task.reset(Rng.from_seed(seed, k))))(jnp.arange(count))


def obstacle(x, y, vx, vy, exists=True):
    f = jnp.float32
    return Obstacle(Vec2(f(x), f(y)), Vec2(f(vx), f(vy)), f(2.795), jnp.bool_(exists))


def test_starts_and_goals_keep_their_distances():
    task = Marine().for_evaluation()
    made = states(task, 200)
    start = np.stack([made.body.position.x, made.body.position.y], -1)
    goal = np.stack([made.world.goal.x, made.world.goal.y], -1)
    buoys = np.stack([made.world.buoys.x, made.world.buoys.y], -1)
    away = np.linalg.norm(goal - start, axis=-1)
    gaps = lambda a, b: np.linalg.norm(a[:, :, None] - b[:, None], axis=-1)  # noqa: E731
    others = ~np.eye(5, dtype=bool)
    # Drawn by so many tries; where none fits, which is rare, the nearest miss is taken.
    kept = (away >= 40.0).all(1) & (gaps(start, start)[:, others] >= 10.0).all(1) & (
        gaps(goal, goal)[:, others] >= 10.0
    ).all(1)  # fmt: skip
    assert np.mean(kept) > 0.98 and away.min() > 38.0
    assert np.mean((gaps(buoys, start) >= 11.0).all((1, 2))) > 0.98
    assert not made.ended.any()


def test_worlds_grow_in_training_and_absent_vessels_have_ended():
    task = Marine()
    assert isinstance(task, CurriculumTask)
    young, grown = states(task.at_progress(jnp.float32(0.0))), states(task.at_progress(jnp.float32(1.0)))
    assert set(np.sum(~np.asarray(young.ended), 1)) == {3}
    assert np.asarray(young.world.buoy_radii).max() == 0.0
    counts = np.sum(~np.asarray(grown.ended), 1)
    assert counts.min() >= 3 and counts.max() == 5 and np.mean(counts == 5) > 0.4
    reward = jax.vmap(partial(advance, task))(young, jnp.ones((64, 5, 2))).reward
    assert (np.asarray(reward)[np.asarray(young.ended)] == 0.0).all()


def test_stage_and_training_are_no_settings():
    task = Marine()
    derived = task.for_evaluation().at_progress(jnp.float32(0.1))
    assert not derived.training and float(derived.stage) == pytest.approx(0.2)
    assert not {"stage", "training"} & set(to_dict(derived))
    assert to_dict(derived) == to_dict(task)
    with pytest.raises(ValueError, match="no setting 'stage'"):
        from_dict(Marine, {"stage": 0.5}, "task")
    # Every setting survives the way through JSON.
    other = Marine(vehicle="point", reward=MarineReward(goal=3.0), curriculum=Curriculum(vessels=1))
    assert from_dict(Marine, to_dict(other), "task") == other


def test_tasks_are_equal_once_the_curriculum_is_complete():
    task = Marine()
    early, half, late, end = (task.at_progress(jnp.float32(p)) for p in (0.1, 0.5, 0.8, 1.0))
    assert early != end and half == late == end == task
    assert early.for_evaluation() == end.for_evaluation() == task.for_evaluation() != task


def test_a_derived_task_leaves_the_original_as_it_was():
    task = Marine()
    _ = task.spec
    derived = task.for_evaluation()
    assert task.training and task == Marine()
    assert derived.spec is task.spec and derived.baselines().keys() == task.baselines().keys()


def test_evaluation_has_every_vessel_and_its_full_time_at_any_stage():
    task = Marine(vessels=4, buoys=2, time_limit=80.0)
    made = states(task.at_progress(jnp.float32(0.0)).for_evaluation())
    assert not made.ended.any() and (np.asarray(made.world.buoy_radii) > 0.0).all()
    state = placed(task, [(0.0, 0.0), (15.0, 0.0), (30.0, 0.0), (45.0, 0.0)], [(0.0, 40.0)] * 4)
    late = replace(state, step=jnp.int32(139), terminated=jnp.zeros(4, bool))  # 70 s after this step
    assert task.step(late, jnp.zeros((4, 2))).truncated.all()
    assert not task.for_evaluation().step(late, jnp.zeros((4, 2))).truncated.any()


@pytest.mark.parametrize(
    ("other", "yields"),
    [
        (obstacle(12.0, 0.0, -2.0, 0.0), True),  # head on
        (obstacle(12.0, 8.0, -2.0, 0.0), False),  # head on, but well to the left
        (obstacle(8.0, -6.0, 0.0, 2.0), True),  # from the right: give way
        (obstacle(8.0, 6.0, 0.0, -2.0), False),  # from the left: it gives way
        (obstacle(4.0, -8.0, 0.0, 2.0), False),  # from the right, but to pass before its bow would be too late
        (obstacle(12.0, 0.0, 2.0, 0.0), False),  # same way
        (obstacle(12.0, 0.0, -0.2, 0.0), False),  # not under way
        (obstacle(12.0, 0.0, -2.0, 0.0, exists=False), False),
    ],
)
def test_who_gives_way(other, yields):
    course = Vec2(jnp.float32(2.0), jnp.float32(0.0))
    assert bool(must_give_way(course, other)) == yields
    turn = float(required_turn(course, 2.795, [other]))
    assert (turn > 0.0) == yields
    if yields:
        assert turn < math.pi


def test_a_vessel_that_is_not_under_way_gives_way_to_nobody():
    other = obstacle(12.0, 0.0, -2.0, 0.0)
    for speed, yields in ((0.55, True), (0.45, False)):
        course = Vec2(jnp.float32(speed), jnp.float32(0.0))
        assert bool(must_give_way(course, other)) == yields
        assert (float(required_turn(course, 2.795, [other])) > 0.0) == yields


def test_the_turn_asked_for_is_enough():
    other = obstacle(12.0, 0.0, -2.0, 0.0)
    course = Vec2(jnp.float32(2.0), jnp.float32(0.0))
    # A tangent to the other's circle and its margin, and room for the own circle beside it.
    wide, own = 2.795 + 1.0, 2.795
    wanted = math.asin(wide / 12.0) + math.atan2(own, math.sqrt(12.0**2 - wide**2))
    assert float(required_turn(course, own, [other])) == pytest.approx(wanted, abs=2e-4)
    # The nearest of several is what counts, and one that asks for nothing does not.
    farther, aside = obstacle(15.0, 1.0, -2.0, 0.0), obstacle(6.0, 0.0, 2.0, 0.0)
    for others in ([farther, other, aside], [other, farther, aside], [aside, other, farther]):
        assert float(required_turn(course, own, others)) == pytest.approx(wanted, abs=2e-4)
    # Once the way past it is clear on the right, nothing more is asked.
    passing = Vec2(jnp.float32(1.0), jnp.float32(-2.5))
    assert float(required_turn(passing, 2.795, [other])) == 0.0


def test_the_nearest_obstacles_come_first_and_the_rest_is_empty():
    rows = ((9.0, True), (30.0, True), (5.0, True), (2.0, False))
    found = nearest([obstacle(x, 0.0, 0.0, 0.0, exists) for x, exists in rows], 3, 20.0)
    assert [float(t.offset.x) for t in found] == [5.0, 9.0, 0.0]
    assert [bool(t.exists) for t in found] == [True, True, False]


def placed(task, places, goals=None):
    state = task.reset(Rng.from_seed(0, 0))
    x, y = (jnp.asarray([p[k] for p in places], jnp.float32) for k in range(2))
    state = replace(state, body=replace(state.body, position=Vec2(x, y)))
    if goals is not None:
        gx, gy = (jnp.asarray([p[k] for p in goals], jnp.float32) for k in range(2))
        state = replace(state, world=replace(state.world, goal=Vec2(gx, gy)))
    distance = (state.world.goal - state.body.position).norm()
    return replace(state, progress=replace(state.progress, distance=distance))


def test_vessels_that_touch_have_ended_and_are_gone_from_sight():
    task = Marine(vessels=3, buoys=0).for_evaluation()
    far = [(30.0, 30.0)] * 3
    state = placed(task, [(0.0, 0.0), (4.0, 0.0), (15.0, 0.0)], far)
    before = task.observe(state).reshape(3, -1)
    after = advance(task, state, jnp.zeros((3, 2)))
    assert after.terminated.tolist() == [True, True, False]
    assert after.reward.tolist()[0] < -4.0 and after.reward.tolist()[2] > -2.0
    seen = task.observe(after)
    assert float(before[2, 15]) == 1.0  # the third saw somebody
    assert float(seen[2, 15]) == 0.0


def test_a_goal_is_an_end_and_the_clock_is_none():
    task = Marine(vessels=3, buoys=0, time_limit=0.5).for_evaluation()
    state = placed(task, [(0.0, 0.0), (20.0, 0.0), (40.0, 0.0)], [(1.0, 0.0), (40.0, 40.0), (0.0, 40.0)])
    after = advance(task, state, jnp.zeros((3, 2)))
    assert after.terminated.tolist() == [True, False, False]
    assert after.truncated.tolist() == [False, True, True]
    assert task.episode_metrics(after)["success"].tolist() == [1.0, 0.0, 0.0]


def test_choices_numbers_and_components_are_the_same_thrust():
    sent = {}
    for space, action in (
        ("box", jnp.array([[0.5, -1.0]] * 5)),
        ("discrete", jnp.full(5, 17)),
        ("multidiscrete", jnp.array([[3, 2]] * 5)),
    ):
        task = Marine(action_space=space)
        _, command = task.command(task.reset(Rng.from_seed(0, 0)), action)
        sent[space] = (float(command.x[0]), float(command.y[0]))
    assert set(sent.values()) == {(0.5, -1.0)}


def test_starts_and_goals_have_nothing_to_do_with_each_other():
    easiest = Curriculum(vessels=2, buoys=1, distance=1.0)
    task = Marine(vessels=2, buoys=1, min_goal_distance=1.0, min_separation=0.1, curriculum=easiest)
    made = states(task, 3000)
    boat, world = made.body.position, made.world
    numbers = np.concatenate([np.asarray(x) for x in (boat.x, boat.y, world.goal.x, world.goal.y)], 1)
    numbers = np.concatenate([numbers, np.asarray(world.buoys.x), np.asarray(world.buoys.y)], 1)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(10)).max() < 0.08


def test_noise_is_new_in_every_step():
    task = Marine(vessels=3, buoys=0).for_evaluation()
    state, seen = placed(task, [(0.0, 0.0), (10.0, 0.0), (18.0, 0.0)], [(30.0, 30.0)] * 3), []
    for _ in range(6):
        first = task.measured_obstacles(state)[0]
        seen.append([float(first.radius[0]), float(first.offset.x[0])])
        state = task.step(state, jnp.zeros((3, 2)))
    assert np.unique(seen).size == 12 and np.ptp(seen, axis=0).min() > 0.05


def test_a_vessel_alone_sees_by_sonar():
    task = Marine(
        vessels=1, buoys=6, vehicle="point", action_space="discrete", sensing="sonar", colregs=False, vortices=4,
        arena_size=50.0, min_goal_distance=25.0, sensor_range=10.0, buoy_radius=(1.0, 3.0),
        curriculum=Curriculum(vessels=1, buoys=6, distance=25.0),
    )  # fmt: skip
    made = states(task)
    seen = jax.vmap(task.observe)(made)
    assert seen.shape == (64, task.spec.observation) and bool(jnp.isfinite(seen).all())
    near = jax.vmap(task.spec.obstacle_distance)(seen)
    assert float(near.min()) >= 0.0 and float(near.max()) == 10.0
    # A hull knows more of itself than a point does.
    hull = replace(task, vehicle="wamv")
    near = hull.spec.obstacle_distance(jax.vmap(hull.observe)(states(hull)))
    assert float(near.min()) >= 0.0 and float(near.max()) == 10.0


@pytest.mark.parametrize(
    "changes",
    [
        {"buoy_radius": 3}, {"buoy_radius": [1.0]}, {"buoy_radius": ["a", "b"]}, {"sensor_noise": math.nan},
        {"sensor_noise": 10**400}, {"time_limit": -1.0}, {"vessels": True}, {"sensor_range": "far"},
        {"vehicle": "dot"}, {"reward": {"goal": "much"}}, {"curriculum": {"vessels": 1.5}},
    ],
)  # fmt: skip
def test_settings_of_a_bay_that_cannot_be_are_refused_in_words(changes):
    with pytest.raises(ValueError, match="takes|must be positive"):
        from_dict(Marine, changes, "task")


def test_a_bay_may_have_fewer_vessels_than_a_training_begins_with():
    task = from_dict(Marine, {"vessels": 2, "buoys": 0}, "task")
    assert not bool(jnp.any(states(task).ended))


@pytest.mark.parametrize("task", [ICRA.for_evaluation(), Marine().for_evaluation()], ids=["points", "hulls"])
def test_classical_planners_sail_the_same_worlds(task):
    for script in task.baselines().values():
        done = run_episodes(task, scripted_pilot(script), FastPlant(), 24, 3, 1)
        summary = task.summary(done.metrics)
        assert summary["all_reach"] > 0.5
        assert float(np.mean(done.metrics["success"])) > 0.8


def test_a_vessel_that_has_arrived_keeps_its_own_time_and_not_that_of_the_last_one():
    task = Marine(vessels=3, buoys=0).for_evaluation()
    flown = run_episodes(task, scripted_pilot(task.baselines()["reciprocal velocity obstacles"]), FastPlant(), 16, 5)
    times = flown.metrics["duration"].reshape(-1, 3)
    both = np.all(np.isfinite(times), axis=1)
    assert both.any() and np.all(np.ptp(times[both], axis=1) > 0.0)


def test_a_bay_without_buoys_is_cut_into_blocks_and_joined_again():
    made = states(Marine(vessels=3, buoys=0), 170)
    parts = in_blocks(lambda part: part, made, agents=3)
    assert parts.body.yaw.shape == (2, 85, 3) and parts.world.buoy_radii.shape == (2, 85, 0)


def test_the_clock_that_ends_all_voyages_hides_no_vessel():
    task = Marine(sensor_noise=0.0, sensor_range=100.0).for_evaluation()
    state = jax.jit(task.reset)(Rng.from_seed(0, 0))
    over = replace(state, truncated=jnp.ones(5, bool))
    assert np.array_equal(task.observe(state), task.observe(over))
    # One that has arrived is gone all the same.
    arrived = replace(over, terminated=jnp.arange(5) == 2, truncated=jnp.arange(5) != 2)
    there = np.sum(np.asarray(task.observe(arrived))[0, 7:].reshape(5, 9)[:, -1])
    others = sum(bool(other.exists[0]) for other in task.obstacles(arrived, arrived.body)[:4])
    assert (others, there) == (3, 5)
