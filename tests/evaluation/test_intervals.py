"""Intervals hold the truth as often as they say."""

import math

import numpy as np
import pytest

from slipstream.evaluation import intervals
from slipstream.evaluation.parity import compared, describe, verdicts

TRIALS = 1500


def held(truth, draw, interval):
    """How often an interval of what is drawn holds the truth."""
    rng = np.random.default_rng(0)
    bounds = np.array([interval(*draw(rng)) for _ in range(TRIALS)])
    return np.mean((bounds[:, 0] <= truth) & (truth <= bounds[:, 1]))


@pytest.mark.parametrize("worlds", [5, 16, 64])
def test_the_interval_of_a_rate_covers_95_per_cent(worlds):
    """Over rates from a half to one: for a single rate successes come in steps, and coverage with them."""
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.5, 1.0, TRIALS)
    bounds = np.array([intervals.rate(rng.random(worlds) < p) for p in rates])
    assert 0.94 <= np.mean((bounds[:, 0] <= rates) & (rates <= bounds[:, 1])) <= 0.995


@pytest.mark.parametrize("worlds", [8, 32])
def test_agents_that_share_the_luck_of_their_world_do_not_count_as_worlds(worlds):
    def draw(rng):
        luck = rng.beta(8.0, 2.0, (worlds, 1))
        return ((rng.random((worlds, 16)) < luck).astype(float), 16)

    assert held(0.8, draw, intervals.rate) >= 0.92


@pytest.mark.parametrize("worlds", [5, 16, 64])
def test_the_interval_of_a_mean_covers_95_per_cent(worlds):
    found = held(2.0, lambda rng: (rng.normal(2.0, 3.0, worlds),), intervals.mean)
    assert 0.935 <= found <= 0.965


@pytest.mark.parametrize("worlds", [5, 16, 64])
def test_the_interval_of_a_ratio_of_means_covers_95_per_cent(worlds):
    def draw(rng):
        ours = rng.normal(10.0, 2.0, worlds)
        return ours, 0.9 * ours + rng.normal(0.0, 1.0, worlds)

    assert 0.93 <= held(0.9, draw, intervals.ratio_of_means) <= 0.97


@pytest.mark.parametrize("worlds", [16, 64])
def test_the_interval_of_a_ratio_of_rates_covers_95_per_cent(worlds):
    def draw(rng):
        return rng.random(worlds) < 0.9, rng.random(worlds) < 0.72

    assert held(0.8, draw, intervals.ratio_of_rates) >= 0.93


def test_twenty_of_twenty_is_not_certainty():
    low, high = intervals.rate(np.ones(20))
    assert 0.8 < low < 0.9
    assert high == 1.0
    ratio = compared(np.ones(20), np.ones(20), 1, rates=True)
    assert ratio["low"] < 0.9 < 1.1 < ratio["high"]


def test_fewer_than_five_worlds_say_nothing_about_uncertainty():
    assert all(map(math.isnan, intervals.rate(np.ones(64), 16)))
    assert all(map(math.isnan, intervals.mean(np.arange(4.0))))
    assert "too few worlds" in describe(compared(np.ones(4), np.ones(4), 1, rates=True), "fast")


def test_a_score_that_gets_worse_below_zero_is_not_called_good():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(-1.0, 0.1, 50), rng.normal(-10.0, 0.1, 50)
    part = compared(ours, theirs, 1, rates=False)
    assert math.isnan(part["ratio"])
    assert part["difference_low"] < -9.0 < part["difference_high"]
    found = {"success_ratio": compared(np.ones(9), np.ones(9), 1, rates=True), "return_ratio": part,
             "trajectory": {"share_after_5s": 0.0}}  # fmt: skip
    assert verdicts(found)["return"] == "poor"
    assert verdicts(found)["success"] == "good"
    assert describe(part, "fast").startswith("-9.01 to fast (-9.05")
