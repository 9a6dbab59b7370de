"""The core of all adapters: ends, last observations, restarts, statistics, images and agents that wait."""

import jax.numpy as jnp
import numpy as np
import pytest
from ladder import Ladder

from slipstream.adapters.arrays import mean_of
from slipstream.adapters.tasks import find_task
from slipstream.adapters.vector import Worlds
from slipstream.tasks.racing import Racing

UP, STAY = 1.0, 0.0


def climb(worlds, rows):
    """One step of a batch whose rows climb by these amounts."""
    return worlds.step(jnp.asarray(rows, jnp.float32)[:, None])


def test_a_same_step_restart_keeps_the_true_last_observation():
    worlds = Worlds(Ladder(), 2, autoreset="same_step")
    worlds.reset()
    climb(worlds, [UP, STAY])
    climb(worlds, [UP, STAY])
    step = climb(worlds, [UP, STAY])
    assert step.final.features.tolist() == [[3.0, 3.0], [0.0, 3.0]]
    assert step.observation.features.tolist() == [[0.0, 0.0], [0.0, 3.0]]
    assert step.terminated.tolist() == [True, False] and step.truncated.tolist() == [False, False]
    climb(worlds, [UP, STAY])
    step = climb(worlds, [UP, 0.5])
    assert step.final.features.tolist() == [[2.0, 2.0], [0.5, 5.0]]
    assert step.terminated.tolist() == [False, False] and step.truncated.tolist() == [False, True]
    assert step.observation.features.tolist() == [[2.0, 2.0], [0.0, 0.0]]


def test_a_next_step_restart_ignores_the_action_and_is_no_experience():
    worlds = Worlds(Ladder(), 1, autoreset="next_step")
    worlds.reset()
    steps = [climb(worlds, [UP]) for _ in range(5)]
    assert [s.observation.features[0].tolist() for s in steps] == [[1, 1], [2, 2], [3, 3], [0, 0], [1, 1]]
    assert [bool(s.terminated[0]) for s in steps] == [False, False, True, False, False]
    assert [bool(s.valid[0]) for s in steps] == [True, True, True, False, True]
    assert [float(s.reward[0]) for s in steps] == [1.0, 1.0, 1.0, 0.0, 1.0]


def test_a_world_that_is_never_restarted_stays_as_it_ended():
    worlds = Worlds(Ladder(), 1, autoreset="never")
    worlds.reset()
    for _ in range(3):
        step = climb(worlds, [UP])
    again = climb(worlds, [UP])
    assert bool(step.over[0]) and not bool(again.over[0])
    assert again.observation.features.tolist() == [[3.0, 3.0]] and float(again.reward[0]) == 0.0


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_statistics_of_episodes_come_from_the_device(autoreset):
    worlds = Worlds(Ladder(), 2, autoreset=autoreset)
    worlds.reset()
    ends = []
    for _ in range(12):
        step = climb(worlds, [UP, 0.25])
        ends += [(row, float(step.episode_return[row]), int(step.episode_length[row]))
                 for row in np.flatnonzero(step.over)]  # fmt: skip
    assert set(ends) == {(0, 3.0, 3), (1, 1.25, 5)}
    own = worlds.take_statistics()
    first, second = (sum(row == k for row, *_ in ends) for k in (0, 1))
    assert float(own["success"]) == pytest.approx(first / (first + second))
    assert np.isnan(float(worlds.take_statistics()["success"]))


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_an_agent_that_has_ended_waits_for_the_others(autoreset):
    worlds = Worlds(Ladder(agents=2), 1, autoreset=autoreset)
    worlds.reset()
    for _ in range(3):
        step = climb(worlds, [UP, STAY])
    assert step.terminated.tolist() == [True, False] and step.over.tolist() == [True, False]
    step = climb(worlds, [UP, STAY])
    assert step.terminated.tolist() == [True, False] and step.over.tolist() == [False, False]
    assert step.valid.tolist() == [False, True] and step.reward.tolist() == [0.0, 0.0]
    step = climb(worlds, [UP, STAY])
    assert step.over.tolist() == [False, True] and step.truncated.tolist() == [False, True]
    if autoreset == "next_step":
        step = climb(worlds, [UP, STAY])
    assert step.observation.features[:, 1].tolist() == [0.0, 0.0]


def test_images_are_bytes_and_stay_for_their_interval():
    worlds = Worlds(Ladder(camera=True, interval=2), 1)
    first = worlds.reset()
    assert first.image.shape == (1, 4, 4, 3) and first.image.dtype == jnp.uint8
    assert worlds.features == 4
    steps = [climb(worlds, [STAY]) for _ in range(5)]
    assert [int(s.final.image[0, 0, 0, 1]) for s in steps] == [0, 2, 2, 4, 4]
    assert [s.final.features[0, 2:].tolist() for s in steps] == [[0.5, 0], [0, 0], [0.5, 0], [0, 0], [0.5, 0]]
    # The restart shows the old image, and says that it is from before.
    assert steps[-1].observation.features[0].tolist() == [0.0, 0.0, 0.5, 1.0]


def test_rows_are_restarted_when_told_and_others_go_on():
    worlds = Worlds(Ladder(critic=True), 2)
    worlds.reset()
    climb(worlds, [UP, UP])
    observed = worlds.restart(jnp.asarray([True, False]))
    assert observed.features.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert observed.privileged.tolist() == [[0.0], [10.0]]


def test_the_clock_of_an_episode_can_be_set():
    worlds = Worlds(Ladder(), 2)
    worlds.reset()
    worlds.episode_steps = jnp.asarray([4, 0])
    assert climb(worlds, [STAY, STAY]).truncated.tolist() == [True, False]
    assert worlds.episode_steps.tolist() == [0, 1]


def test_the_same_seed_gives_the_same_episode_and_no_seed_another():
    worlds = Worlds(Racing(), 4)
    first, again, other = worlds.reset(3), worlds.reset(3), worlds.reset()
    assert jnp.array_equal(first.features, again.features)
    assert not jnp.array_equal(first.features, other.features)


def test_many_steps_compile_once():
    worlds = Worlds(Ladder(), 4)
    worlds.reset()
    for _ in range(40):
        climb(worlds, [UP] * 4)
    worlds.reset()
    climb(worlds, [UP] * 4)
    assert worlds._step._cache_size() == worlds._reset._cache_size() == worlds._draw._cache_size() == 1


def test_bad_requests_are_refused_in_words():
    worlds = Worlds(Ladder(), 2)
    with pytest.raises(RuntimeError, match="call reset"):
        worlds.step(jnp.zeros((2, 1)))
    worlds.reset()
    with pytest.raises(ValueError, match=r"\(2, 1\) was expected"):
        worlds.step(jnp.zeros((3, 1)))
    with pytest.raises(ValueError, match="did you mean 'same_step'"):
        Worlds(Ladder(), 2, autoreset="samestep")
    with pytest.raises(ValueError, match="at least 1 world"):
        Worlds(Ladder(), 0)
    with pytest.raises(ValueError, match="did you mean 'racing'"):
        find_task("racin")
    with pytest.raises(ValueError, match="no setting 'gate'"):
        find_task("racing", gate=3)
    with pytest.raises(ValueError, match="a seed lies between"):
        worlds.reset(-1)


def test_a_metric_that_does_not_apply_has_no_mean():
    assert np.isnan(mean_of([np.nan, np.nan])) and mean_of([1.0, np.nan, 3.0]) == 2.0
