"""Every survey mission is learned from its preset, nearly as well as a script flies that knows zones and targets."""

import pytest

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("preset", "share"),
    [
        ("survey-transit", 0.97),
        ("survey-coverage", 0.93),
        ("survey-search", 0.93),
        ("survey-multi", 0.89),
        ("survey-dwell", 0.85),
    ],
)
def test_a_mission_is_learned(slipstream, preset, share, seed):
    slipstream("train", preset, "--run", "run", "--seed", seed)
    summary = slipstream("evaluate", "run", "--worlds", 512)
    print(summary)
    assert summary["success_rate"] >= share
    for script in summary.get("baselines", {}).values():
        assert summary["success_rate"] > script["success_rate"] - 0.05


def test_dwelling_is_learned_from_pixels(slipstream):
    slipstream("train", "survey-dwell-vision", "--run", "run")
    summary = slipstream("evaluate", "run", "--worlds", 128)
    print(summary)
    assert summary["success_rate"] >= 0.9
