"""Recovery from any attitude is learned within a second, by every seed."""

import pytest

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("preset", ["hover", "hover-motors", "hover-crazyflie", "hover-crazyflie-motors"])
def test_a_thrown_drone_comes_to_rest(slipstream, preset, seed):
    slipstream("train", preset, "--run", "thrown", "--seed", seed)
    summary = slipstream("evaluate", "thrown", "--worlds", 1024)
    worst = slipstream("evaluate", "thrown", "--worlds", 1024, "--task.start.worst", "True")
    print(summary, worst)
    assert summary["success_rate"] >= 0.97
    assert worst["success_rate"] >= 0.93
