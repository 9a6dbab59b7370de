"""A robot learns to drive rows by commands: by memory cells on the easy field, by a recurrent policy on a hard one."""

import pytest

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_robot_with_memory_cells_drives_all_lanes_of_unseen_fields(slipstream, seed):
    slipstream("train", "field", "--run", "rows", "--seed", seed, "--devices", 1)
    summary = slipstream("evaluate", "rows", "--worlds", 512, "--seed", 9_000_017, "--no-baselines")
    print(summary)
    assert summary["success_rate"] >= 0.95


def test_a_recurrent_robot_drives_gaps_slopes_and_slip(slipstream):
    slipstream("train", "field-hard", "--run", "rows", "--devices", 1)
    summary = slipstream("evaluate", "rows", "--worlds", 512, "--seed", 9_000_017, "--no-baselines")
    print(summary)
    assert summary["success_rate"] >= 0.85
