"""Learning is part of correctness: the presets reach their skill, for every seed, within their time."""

import pytest

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_racing_flies_laps_from_random_starts(slipstream, seed):
    slipstream("train", "racing", "--run", "race", "--seed", seed)
    summary = slipstream("evaluate", "race", "--worlds", 512)
    print(summary)
    assert summary["success_rate"] >= 0.99
    assert summary["lap_time_mean"] <= 5.8 and summary["crash_rate"] <= 0.02


def test_racing_is_learned_from_images(slipstream):
    slipstream("train", "racing-vision", "--run", "seeing")
    summary = slipstream("evaluate", "seeing", "--worlds", 512)
    print(summary)
    assert summary["success_rate"] >= 0.97 and summary["lap_time_mean"] <= 6.0


def test_one_policy_flies_tracks_it_has_never_seen(slipstream):
    slipstream("train", "racing-random-tracks", "--run", "any")
    summary = slipstream("evaluate", "any", "--worlds", 512)
    print(summary)
    assert summary["success_rate"] >= 0.985
