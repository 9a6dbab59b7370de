"""Two plants are as far apart as they are, and no further."""

import numpy as np
import pytest

from slipstream.evaluation.episode import Episode
from slipstream.evaluation.parity import compared, distance, motions, path_error, paths, verdicts
from slipstream.runs.files import json_safe


def straight(speed, steps=101, dt=0.1):
    time = dt * np.arange(steps)[:, None]
    still = np.zeros((steps, 3))
    return Episode(
        {
            "position": still + np.array([speed, 0.0, 0.0]) * time,
            "velocity": still + np.array([speed, 0.0, 0.0]),
            "attitude": np.tile([1.0, 0.0, 0.0, 0.0], (steps, 1)),
            "rates": still,
        },
        {}, {}, dt,
    )  # fmt: skip


def test_the_distance_of_paths_is_that_of_the_same_moments():
    found = path_error([(straight(2.0), straight(2.2, steps=81))])
    assert found["after_1s"] == pytest.approx(0.2)
    assert found["after_5s"] == pytest.approx(1.0)
    assert found["share_after_5s"] == pytest.approx(0.1)
    assert found["time"][-1] <= 8.0


def test_a_ratio_has_an_interval_that_holds_it_and_shrinks_with_worlds():
    rng = np.random.default_rng(0)
    few, many = (
        compared(rng.random(n) < 0.9, rng.random(n) < 0.8, 1, rates=True) for n in (40, 4000)
    )  # fmt: skip
    for found in (few, many):
        assert found["low"] <= found["ratio"] <= found["high"]
    assert many["high"] - many["low"] < 0.3 * (few["high"] - few["low"])


def test_distances_of_distributions_are_in_their_own_units():
    a = np.linspace(0.0, 10.0, 1000)
    found = distance(a, a + 1.0)
    assert found["distance"] == pytest.approx(1.0)
    assert found["in_deviations"] == pytest.approx(1.0 / np.std(a))


def test_motions_of_both_plants_are_found():
    moved = motions([(straight(2.0), straight(3.0))])
    assert set(moved) == {"speed", "tilt", "rates"}
    assert [float(side.mean()) for side in moved["speed"]] == pytest.approx([2.0, 3.0])


def test_an_agent_that_ended_is_followed_to_its_end():
    place = np.zeros((5, 2, 3))
    ended = np.array([[False, False], [False, True], [False, True], [False, True], [True, True]])
    episode = Episode({"position": place, "velocity": place, "ended": ended}, {}, {}, 0.1)
    assert [len(track) for track in paths(episode)] == [5, 2]


def test_verdicts_say_good_fair_and_poor():
    def found(success, path, speed):
        return {
            "success_ratio": {"ratio": success}, "return_ratio": {"ratio": 0.5},
            "trajectory": {"share_after_5s": path}, "speed_distance": {"in_deviations": speed},
        }  # fmt: skip

    assert verdicts(found(0.95, 0.05, 0.1)) == {
        "success": "good", "return": "poor", "trajectory": "good", "speed": "good",
    }  # fmt: skip
    assert verdicts(found(0.8, 0.2, 0.4))["success"] == "fair"
    assert verdicts(found(0.8, 0.2, 0.4))["trajectory"] == "fair"
    assert verdicts(found(0.5, 0.5, 0.9))["speed"] == "poor"


def test_what_does_not_exist_is_null_on_disk():
    assert json_safe({"a": [float("nan"), 1.0]}) == {"a": [None, 1.0]}
