from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec3
from slipstream.core.rng import Rng
from slipstream.core.task import advance, draw_restart
from slipstream.sensors.noise import SensorNoise
from slipstream.tasks.racing import RaceReward, Racing, Randomization, Start
from slipstream.tasks.racing.track import OPENING, seven

ENV = Racing()


def started(task=ENV, world=0, seed=0):
    return jax.jit(task.reset)(Rng.from_seed(seed, world))


def placed(state, x, y, z, vx=0.0, vy=0.0, vz=0.0):
    position = Vec3(jnp.float32(x), jnp.float32(y), jnp.float32(z))
    velocity = Vec3(jnp.float32(vx), jnp.float32(vy), jnp.float32(vz))
    return replace(state, body=replace(state.body, position=position, velocity=velocity))


def towards(state, index):
    return replace(state, progress=replace(state.progress, next_gate=jnp.int32(index)))


def judged(task, state, x, y, z):
    body = placed(state, x, y, z).body
    return jax.jit(task.judge)(state, body)


def through(task, state, index, aside=0.0):
    """The state after a step through the gate of that index."""
    gate = seven.fixed[index]
    ends = []
    for distance in (-0.05, 0.05):
        x = gate.center.x + gate.cos * distance - gate.sin * aside
        y = gate.center.y + gate.sin * distance + gate.cos * aside
        ends.append((x, y, gate.center.z))
    return judged(task, placed(state, *ends[0]), *ends[1])


def test_passing_a_gate_pays_and_makes_the_next_one_the_goal():
    state = through(ENV, towards(started(), 1), 1)
    assert int(state.progress.next_gate) == 2
    assert int(state.progress.passed) == 1
    assert not bool(state.terminated)
    assert float(state.reward) == pytest.approx(ENV.reward.gate, abs=0.1)


def test_a_lap_is_seven_gates_from_wherever_it_began():
    state = towards(started(), 3)
    for k in range(7):
        assert float(state.progress.first_lap) == 0.0
        state = through(ENV, state, (3 + k) % 7)
    assert int(state.progress.next_gate) == 3
    assert float(state.progress.first_lap) == pytest.approx(7 * 0.01, abs=1e-6)
    assert float(ENV.episode_metrics(state)["success"]) == 1.0


def test_the_frame_ends_the_attempt_and_costs():
    state = through(ENV, towards(started(), 1), 1, aside=OPENING / 2)
    assert bool(state.terminated)
    assert bool(state.progress.crashed)
    assert float(state.reward) == pytest.approx(ENV.reward.crash, abs=0.1)


def test_a_margin_makes_gates_narrower_in_training_and_not_in_an_evaluation():
    room = OPENING / 2 - ENV.quadrotor.radius
    training = replace(ENV, gate_margin=0.05)
    for task, aside, hit in ((training, room - 0.06, False), (training, room - 0.04, True), (ENV, room - 0.04, False)):
        assert bool(through(task, towards(started(), 1), 1, aside=aside).progress.crashed) == hit
    assert training.for_evaluation() == ENV.for_evaluation()
    with pytest.raises(ValueError, match="margin"):
        Racing(gate_margin=1.0)


def test_the_frame_of_a_gate_that_is_not_the_goal_is_as_hard():
    assert bool(through(ENV, towards(started(), 4), 1, aside=OPENING / 2).terminated)


def test_another_gate_than_the_next_gives_nothing():
    state = through(ENV, towards(started(), 4), 1)
    assert int(state.progress.passed) == 0
    assert abs(float(state.reward)) < 0.1


def test_passing_beside_the_gate_is_a_miss():
    state = through(ENV, towards(started(), 1), 1, aside=2.0)
    assert bool(state.progress.missed)
    assert bool(state.terminated)
    assert not bool(through(replace(ENV, terminate_on_miss=False), towards(started(), 1), 1, aside=2.0).terminated)


def test_the_ground_ends_the_attempt():
    state = judged(ENV, placed(towards(started(), 1), 5.0, 0.0, 0.1), 5.0, 0.0, 0.01)
    assert bool(state.terminated)
    assert bool(state.progress.crashed)


def test_coming_nearer_pays_by_the_meter():
    task = Racing(reward=RaceReward(facing=0.0, body_rates=0.0))
    state = judged(task, placed(towards(started(task), 1), 0.0, 5.0, 1.0668), 0.5, 5.0, 1.0668)
    assert float(state.reward) == pytest.approx(task.reward.progress * 0.5, abs=1e-4)


def test_facing_the_gate_pays_what_the_angle_says():
    task = Racing(reward=RaceReward(progress=0.0, body_rates=0.0, facing=1.0))
    for world in range(5):
        state = judged(task, placed(towards(started(task, world), 1), 1.0, 2.0, 2.0), 1.0, 2.0, 2.0)
        nose = np.array([float(p) for p in state.body.attitude.forward.parts])
        ahead = np.array([10.0, 5.0, 1.0668]) - [1.0, 2.0, 2.0]
        angle = np.arccos(nose @ ahead / np.linalg.norm(ahead))
        assert float(state.reward) == pytest.approx(np.exp(-angle / 0.5), abs=1e-3)


def test_the_clock_truncates_and_does_not_terminate():
    state = replace(started(), step=jnp.int32(1999))
    state = judged(ENV, placed(towards(state, 1), 5.0, 2.5, 2.0), 5.0, 2.5, 2.0)
    assert bool(state.truncated)
    assert not bool(state.terminated)


def test_an_episode_is_cut_short_in_training_and_not_in_an_evaluation():
    task = Racing(train_time_limit=1.0)
    state = placed(towards(replace(started(task), step=jnp.int32(99)), 1), 5.0, 2.5, 2.0)
    assert bool(judged(task, state, 5.0, 2.5, 2.0).truncated)
    assert np.isnan(task.episode_metrics(judged(task, state, 5.0, 2.5, 2.0))["success"])
    state = replace(state, world=replace(state.world, time_limit=None))
    assert not bool(judged(task.for_evaluation(), state, 5.0, 2.5, 2.0).truncated)


def test_an_ended_world_restarts_on_the_step_after_its_end():
    state = judged(ENV, placed(towards(started(), 1), 5.0, 0.0, 0.1), 5.0, 0.0, 0.01)
    last = ENV.observe(state)
    after = jax.jit(lambda s: advance(ENV, s, jnp.zeros(4)))(state)
    assert bool(state.ended)
    assert not bool(after.ended)
    assert int(after.step) == 0
    assert not np.allclose(last, ENV.observe(after))


def test_a_prepared_start_is_where_a_world_restarts():
    state = judged(ENV, placed(towards(started(), 1), 5.0, 0.0, 0.1), 5.0, 0.0, 0.01)
    now = jax.jit(lambda s: advance(ENV, s, jnp.zeros(4)))(state)
    ahead = jax.jit(lambda s, fresh: advance(ENV, s, jnp.zeros(4), fresh))(state, draw_restart(ENV, state))
    # Compiled apart, they may round differently.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), now, ahead)


def test_two_restarts_from_one_prepared_start_draw_different_numbers_afterwards():
    task = replace(ENV, randomize=Randomization(gust_std=1.0))
    state = replace(started(task), terminated=jnp.bool_(True))
    fresh = draw_restart(task, state)
    go = jax.jit(lambda s: advance(task, s, jnp.zeros(4), fresh))
    first = go(state)
    second = go(replace(go(first), terminated=jnp.bool_(True)))
    assert float(first.body.position.x) == float(second.body.position.x)
    assert float(go(first).progress.gust.x) != float(go(second).progress.gust.x)
    assert float(draw_restart(task, second).state.body.position.x) != float(fresh.state.body.position.x)


@pytest.mark.parametrize("mode", ["gates", "line", "grid"])
@pytest.mark.parametrize("track", ["seven", "ring", "eight", "long", "generated"])
def test_a_drone_starts_clear_of_everything_and_facing_the_next_gate(track, mode):
    task = Racing(track=track, start=Start(mode, yaw=0.0, tilt=0.0))
    states = jax.jit(jax.vmap(lambda w: task.reset(Rng.from_seed(0, w))))(jnp.arange(512))
    still = jax.jit(jax.vmap(lambda s: task.judge(s, s.body)))(states)
    assert not bool(still.ended.any())
    seen = np.asarray(jax.jit(jax.vmap(task.observe))(states))
    ahead = seen[:, 9:12]
    assert (ahead[:, 0] > 0.0).all()
    np.testing.assert_allclose(ahead[:, 1], 0.0, atol=1e-3)


def test_starts_are_spread_over_all_gates():
    states = jax.jit(jax.vmap(lambda w: ENV.reset(Rng.from_seed(0, w))))(jnp.arange(7000))
    counts = np.bincount(np.asarray(states.progress.next_gate), minlength=7)
    assert counts.min() > 850


def test_two_drones_that_meet_both_crash():
    task = Racing(agents=3)
    state = started(task)
    position = Vec3(jnp.array([5.0, 5.1, 0.0]), jnp.array([2.0, 2.0, 3.0]), jnp.array([2.0, 2.0, 2.0]))
    state = replace(state, body=replace(state.body, position=position))
    after = jax.jit(task.judge)(state, state.body)
    assert after.terminated.tolist() == [True, True, False]
    assert after.progress.crashed.tolist() == [True, True, False]


def test_a_drone_out_of_the_race_is_no_longer_in_the_way():
    task = Racing(agents=2)
    state = started(task)
    position = Vec3(jnp.array([5.0, 5.1]), jnp.array([2.0, 2.0]), jnp.array([2.0, 2.0]))
    state = replace(state, body=replace(state.body, position=position), terminated=jnp.array([True, False]))
    after = jax.jit(task.judge)(state, state.body)
    assert not bool(after.progress.crashed[1])


def test_a_race_restarts_when_the_last_drone_has_ended():
    task = Racing(agents=2)
    state = replace(started(task), terminated=jnp.array([True, False]), step=jnp.int32(5))
    step = jax.jit(lambda s: advance(task, s, jnp.zeros((2, 4))))
    waiting = step(state)
    assert bool(waiting.terminated[0])
    assert float(waiting.reward[0]) == 0.0
    assert int(waiting.step) == 6
    assert int(step(replace(waiting, terminated=jnp.array([True, True]))).step) == 0


def test_the_observation_of_isaac_drone_racer_is_its_twenty_numbers():
    task = Racing(observation="isaac_drone_racer")
    state = started(task)
    seen = np.asarray(task.observe(state))
    assert seen.shape == (20,)
    np.testing.assert_allclose(seen[:3] * 10, [float(p) for p in state.body.position.parts], rtol=1e-5)
    q = state.body.attitude
    np.testing.assert_allclose(seen[3:7], [float(q.w), float(q.x), float(q.y), float(q.z)], rtol=1e-6)


@pytest.mark.parametrize(
    ("setting", "drawn", "value"),
    [
        ("mass", "mass", 0.2),
        ("inertia", "inertia", 0.2),
        ("thrust", "thrust", 0.2),
        ("motor_lag", "motor_lag", 0.3),
        ("drag", "drag", 0.5),
    ],
)
def test_randomization_is_drawn_for_every_world_within_its_range(setting, drawn, value):
    task = Racing(randomize=Randomization(**{setting: value}))
    states = jax.jit(jax.vmap(lambda w: task.reset(Rng.from_seed(0, w))))(jnp.arange(2000))
    factor = np.asarray(getattr(states.world.randomization, drawn))
    assert factor.min() >= 1 - value
    assert factor.max() <= 1 + value
    assert np.std(factor) == pytest.approx(value / np.sqrt(3), rel=0.05)


def test_a_delayed_action_arrives_late():
    task = Racing(randomize=Randomization(max_action_delay=2))
    state = started(task)
    state = replace(state, world=replace(state.world, action_delay=jnp.int32(2)))
    commands = []
    for k in range(4):
        state, command = task.command(state, jnp.full(4, 0.1 * (k + 1)))
        commands.append(float(command.parts[0]))
    assert commands == pytest.approx([0.0, 0.0, 0.1, 0.2])


def test_gusts_have_the_strength_they_are_given():
    task = Racing(randomize=Randomization(gust_std=2.0, gust_time_constant=0.1))
    states = jax.vmap(lambda w: task.reset(Rng.from_seed(0, w)))(jnp.arange(4000))
    step = jax.jit(jax.vmap(lambda s: task.command(s, jnp.zeros(4))[0]))
    for _ in range(60):
        states = step(states)
    assert np.std(states.progress.gust.x) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("space", ["discrete", "multidiscrete"])
def test_discrete_actions_reach_every_corner_of_the_command(space):
    task = Racing(action_space=space, action_levels=3)
    if space == "discrete":
        actions = jnp.arange(81)
    else:
        actions = jnp.stack(jnp.meshgrid(*[jnp.arange(3)] * 4, indexing="ij"), -1).reshape(-1, 4)
    commands = jax.vmap(task.decode_action)(actions)
    rows = {tuple(round(float(p[i]), 3) for p in commands.parts) for i in range(81)}
    assert len(rows) == 81
    assert {x for row in rows for x in row} == {-1.0, 0.0, 1.0}


def test_the_first_component_of_a_discrete_action_is_the_most_significant_digit():
    one, several = (Racing(action_space=space, action_levels=3) for space in ("discrete", "multidiscrete"))
    digits = jnp.stack(jnp.meshgrid(*[jnp.arange(3)] * 4, indexing="ij"), -1).reshape(-1, 4)
    numbered, chosen = jax.vmap(one.decode_action)(jnp.arange(81)), jax.vmap(several.decode_action)(digits)
    for a, b in zip(numbered.parts, chosen.parts, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"track": "sevne"}, "did you mean 'seven'"),
        ({"vehicle": "racr"}, "did you mean 'racer'"),
        ({"physics_rate": 410}, "not a whole multiple"),
        ({"agents": 0}, "1 to 64 drones"),
        ({"action_levels": 1}, "action_levels must be at least 2"),
        ({"control_mode": "body_rate"}, "did you mean 'body_rates'"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(settings, words):
    with pytest.raises(ValueError, match=words):
        Racing(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mass": 1.5}, "between 0 and 1"),
        ({"max_action_delay": -1}, "max_action_delay"),
        ({"gust_time_constant": 0.0}, "gust_time_constant is positive"),
    ],
)
def test_a_wrong_randomization_is_refused_in_words(settings, words):
    with pytest.raises(ValueError, match=words):
        Randomization(**settings)


NOTHING_PAYS = RaceReward(**{part.name: 0.0 for part in fields(RaceReward)})


def paying(agents=1, randomize=Randomization(), **rewards):
    """A race in which only these parts of the reward are not zero."""
    return Racing(agents=agents, randomize=randomize, reward=replace(NOTHING_PAYS, **rewards))


def test_a_gate_pays_less_the_farther_from_its_middle_it_is_passed():
    task = paying(gate=4.0, gate_offset=1.5)
    room = OPENING / 2 - task.quadrotor.radius
    for share in (0.0, 0.5, 0.9):
        state = through(task, towards(started(task), 1), 1, aside=share * room)
        assert float(state.reward) == pytest.approx(4.0 - 1.5 * share, abs=1e-3)


def test_a_miss_costs_what_it_is_set_to():
    task = paying(miss=-4.0, crash=-5.0)
    assert float(through(task, towards(started(task), 1), 1, aside=2.0).reward) == -4.0
    assert float(through(task, towards(started(task), 1), 1, aside=OPENING / 2).reward) == -5.0


def test_turning_costs_by_the_square_of_its_rate():
    task = paying(body_rates=-0.1)
    state = placed(towards(started(task), 1), 5.0, 2.5, 2.0)
    body = replace(state.body, rates=Vec3(*map(jnp.float32, (1.0, -2.0, 3.0))))
    assert float(jax.jit(task.judge)(state, body).reward) == pytest.approx(-1.4, abs=1e-5)


def test_a_change_of_the_command_costs_by_its_square():
    task = paying(action_rate=-0.5, randomize=Randomization(max_action_delay=1))
    state = placed(towards(started(task), 1), 5.0, 2.5, 2.0)
    actions = (jnp.array([0.5, 0.0, 0.2, 0.0]), jnp.array([-0.5, 0.0, 0.2, 0.4]))
    for action in actions:
        state, _ = task.command(state, action)
    assert float(jax.jit(task.judge)(state, state.body).reward) == pytest.approx(-0.5 * (1.0 + 0.16), abs=1e-5)


def test_a_drone_too_far_from_its_gate_has_ended_without_a_crash():
    gate = seven.fixed[1].center
    for away, over in ((0.99, False), (1.01, True)):
        x = gate.x + away * ENV.max_gate_distance
        state = judged(ENV, placed(towards(started(), 1), x, gate.y, gate.z), x, gate.y, gate.z)
        assert bool(state.terminated) is over
        assert not bool(state.progress.crashed) and not bool(state.progress.missed)


def test_a_gate_passed_on_the_way_into_the_ground_does_not_count():
    task, gate = paying(gate=4.0, crash=-5.0), seven.fixed[1]
    state = placed(towards(started(task), 1), gate.center.x - 0.01, gate.center.y, 0.55)
    state = judged(task, state, gate.center.x + 0.3, gate.center.y, 0.01)
    assert bool(state.progress.crashed) and not bool(state.progress.missed)
    assert int(state.progress.passed) == 0
    assert float(state.reward) == -5.0


def test_the_best_lap_is_the_fastest_but_for_the_first():
    state, found = towards(started(), 0), []
    for pause in (0, 10, 3, 20):
        state = replace(state, step=state.step + pause)
        for index in range(7):
            state = through(ENV, state, index)
        found.append((float(state.progress.first_lap), float(state.progress.best_lap)))
    assert np.array(found) == pytest.approx(np.array([(0.07, 0.0), (0.07, 0.17), (0.07, 0.10), (0.07, 0.10)]), abs=1e-5)


def test_two_drones_that_meet_in_the_ground_pay_for_one_crash_each():
    task = paying(crash=-5.0, agents=2)
    state = started(task)
    position = Vec3(jnp.array([5.0, 5.1]), jnp.array([2.0, 2.0]), jnp.array([0.01, 0.01]))
    after = jax.jit(task.judge)(state, replace(state.body, position=position))
    assert after.reward.tolist() == [-5.0, -5.0]


def test_a_crash_in_the_last_moment_terminates_and_does_not_truncate():
    state = placed(towards(replace(started(), step=jnp.int32(1999)), 1), 5.0, 0.0, 0.1)
    state = judged(ENV, state, 5.0, 0.0, 0.01)
    assert bool(state.terminated) and not bool(state.truncated)


def test_the_return_is_the_sum_of_rewards_until_the_end():
    task = paying(body_rates=-1.0, agents=2)
    state = started(task)
    ones = jnp.ones(2)
    position = Vec3(jnp.array([5.0, 9.0]), 2.0 * ones, 2.0 * ones)
    body = replace(state.body, position=position, rates=Vec3(ones, 0.0 * ones, 0.0 * ones))
    judge = jax.jit(task.judge)
    state = judge(judge(replace(state, body=body), body), body)
    assert state.progress.episode_return.tolist() == [-2.0, -2.0]
    state = judge(replace(state, terminated=jnp.array([True, False])), body)
    assert state.progress.episode_return.tolist() == [-2.0, -3.0]


def test_sensor_noise_is_drawn_anew_every_step_in_still_air_too():
    task = Racing(sensor_noise=SensorNoise(position=0.1, velocity=0.1, attitude=0.1, body_rates=0.1))
    state, errors = started(task), []
    step, measure = jax.jit(task.step), jax.jit(task.sensor_noise.measure)
    for _ in range(20):
        state = step(state, jnp.zeros(4))
        seen = measure(state.body, state.rng.fork(0x0B5E))
        errors.append([*(seen.position - state.body.position).parts, *(seen.rates - state.body.rates).parts])
    errors = np.array(errors)
    assert np.unique(errors, axis=0).shape[0] == 20
    assert np.all(np.abs(errors.mean(0)) < 0.1)


@pytest.mark.parametrize("delay", [0, 2])
def test_a_change_of_action_costs_its_square_whatever_the_delay(delay):
    delayed = Racing(randomize=Randomization(max_action_delay=delay))
    plain, smooth = (replace(delayed, reward=RaceReward(action_rate=price)) for price in (0.0, -0.5))
    first, second = jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([0.4, 0.2, -0.3, 0.4])
    costs = []
    for task in (plain, smooth):
        step = jax.jit(task.step)
        costs.append(float(step(step(started(task), first), second).reward))
    assert costs[1] - costs[0] == pytest.approx(-0.5 * (0.3**2 + 0.6**2), rel=1e-3)


@pytest.mark.parametrize(("limit", "tells"), [(7.9, True), (3.0, False)])
@pytest.mark.parametrize("crashed", [True, False])
def test_an_attempt_counts_by_the_time_it_was_given_and_not_by_how_it_ended(limit, tells, crashed):
    task = Racing(train_time_limit=8.0)
    state = started(task)
    state = replace(
        state,
        world=replace(state.world, time_limit=jnp.float32(limit)),
        terminated=jnp.bool_(crashed),
        truncated=jnp.bool_(not crashed),
        progress=replace(state.progress, crashed=jnp.bool_(crashed)),
    )
    success = float(task.episode_metrics(state)["success"])
    assert success == 0.0 if tells else np.isnan(success)


def test_the_clock_that_ends_all_drones_hides_none_of_them():
    task = Racing(agents=3)
    state = started(task)
    over = replace(state, truncated=jnp.ones(3, bool))
    assert np.array_equal(task.observe(state), task.observe(over))
    # Who has crashed is gone, and who has ended while others fly on is waiting.
    alone = task.observe(replace(state, truncated=jnp.array([False, True, True])))[0, -6:]
    assert np.all(np.asarray(alone) == 0.0)


def test_a_bias_of_the_sensors_stays_for_an_episode_and_differs_between_worlds():
    task = Racing(sensor_noise=SensorNoise(position_bias=0.1, velocity_bias=0.1, attitude_bias=0.02), time_limit=0.05)
    states = jax.vmap(lambda world: task.reset(Rng.from_seed(0, world)))(jnp.arange(500))
    drift = states.world.sensor_bias.position.x
    assert float(jnp.std(drift)) == pytest.approx(0.1, rel=0.15)
    assert states.world.sensor_bias.body_rates is None
    after = jax.vmap(task.step)(states, jnp.zeros((500, 4)))
    exact = [replace(s, world=replace(s.world, sensor_bias=None)) for s in (states, after)]
    errors = [jax.vmap(task.observe)(s) - jax.vmap(task.observe)(t) for s, t in zip((states, after), exact)]
    # The height, scaled by one half and clipped at 4 m, is off by the same amount in both steps.
    low = np.asarray(states.body.position.z) < 3.0
    for error in errors:
        np.testing.assert_allclose(error[low, 21], 0.5 * states.world.sensor_bias.position.z[low], atol=1e-5)
