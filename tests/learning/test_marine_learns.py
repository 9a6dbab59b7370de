"""Every agent of the bay learns its preset, by three seeds, better than it was published."""

import numpy as np
import pytest

pytestmark = pytest.mark.learning

SEEDS = range(3)
ORIGINAL = {"marine": 0.63, "marine-sac": 0.53, "marine-iqn": 0.48, "marine-ddpg": 0.25, "marine-dqn": 0.08}
WANTED = {name: score + 0.1 for name, score in ORIGINAL.items()} | {
    "marine": 0.8,
    "marine-sac": 0.7,
    "marine-iqn": 0.7,
}


def test_agents_of_the_bay_reach_more_than_their_originals(slipstream):
    rows = {row["name"]: row for row in slipstream("compare", "marine")["rows"]}
    reached = {name: row["metrics"]["all_reach"] for name, row in rows.items()}
    print({name: [seed["all_reach"] for seed in row["seeds"]] or reached[name] for name, row in rows.items()})
    assert {name for name, share in WANTED.items() if reached[name] < share} == set()
    assert reached["marine-rainbow"] >= reached["marine-iqn"] - 0.05
    assert rows["marine"]["metrics"]["success_rate"] >= 0.93
    assert max(row["seconds"] for row in rows.values() if "seconds" in row) < 30 * 60


@pytest.mark.parametrize(("vessels", "wanted"), [(3, 0.92), (5, 0.88), (7, 0.7)])
def test_points_in_whirling_water_reach_their_goals(crowds, vessels, wanted):
    print(crowds[vessels])
    assert np.mean(crowds[vessels]) >= wanted


@pytest.fixture(scope="module")
def crowds(tmp_path_factory, command):
    """Of each number of vessels, the share of worlds in which all arrive, by every seed."""
    found = {3: [], 5: [], 7: []}
    for seed in SEEDS:
        folder = tmp_path_factory.mktemp("icra")
        command(folder, "train", "marine-icra", "--run", "run", "--seed", seed)
        for vessels, reached in found.items():
            task = "--task.vessels", vessels, "--task.buoys", vessels + 1, "--task.vortices", vessels + 1
            words = "evaluate", "run", "--worlds", 500, "--no-baselines", *task
            reached.append(command(folder, *words)["all_reach"])
    return found


def test_a_vessel_alone_finds_its_way_by_sonar(slipstream):
    slipstream("train", "marine-iros", "--run", "run")
    assert slipstream("evaluate", "run", "--worlds", 500, "--no-baselines")["success_rate"] >= 0.883
