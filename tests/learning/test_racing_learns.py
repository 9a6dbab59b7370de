"""Learning is part of correctness: the presets reach their skill, for every seed, within their time."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.learning


def slipstream(*words, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "slipstream.cli", *map(str, words), "--json"],
        cwd=cwd, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_racing_flies_laps_from_random_starts(tmp_path, seed):
    slipstream("train", "racing", "--run", "race", "--seed", seed, cwd=tmp_path)
    summary = slipstream("evaluate", "race", "--episodes", 512, cwd=tmp_path)
    print(summary)
    assert summary["success_rate"] >= 0.95
    assert summary["lap_time_mean"] <= 6.0


def test_one_policy_flies_tracks_it_has_never_seen(tmp_path):
    slipstream("train", "racing-generated", "--run", "any", cwd=tmp_path)
    summary = slipstream("evaluate", "any", "--episodes", 512, cwd=tmp_path)
    print(summary)
    assert summary["success_rate"] >= 0.85
