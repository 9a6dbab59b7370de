"""The examples run, are short, and do what they say."""

import importlib
import sys
from pathlib import Path

import pytest

import slipstream as sl

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
LONGEST = {
    "own_task": 60,
    "so100_reach": 50,
    "train_with_rl_games": 50,
    "train_with_skrl": 50,
    "train_with_skrl_jax": 50,
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_is_short(path):
    source, documented = path.read_text().splitlines(), False
    code = []
    for line in source:
        quotes = line.count('"""')
        if line.strip() and not documented and not quotes and not line.lstrip().startswith("#"):
            code.append(line)
        documented = documented != (quotes % 2 == 1)
    code = [line for line in code if not line.startswith(("import", "from"))]
    assert len(code) <= LONGEST.get(path.stem, 40)


def test_an_own_task_learns(tmp_path):
    own_task = importlib.import_module("own_task")
    run = sl.train(own_task.Parking(), tmp_path / "run", steps=1_500_000)
    summary = sl.evaluate(run, worlds=256)
    assert summary["success_rate"] > 0.3
    assert summary["final_error_mean"] < 3.0


def test_thrust_is_identified_through_the_model():
    identify_thrust = importlib.import_module("identify_thrust")
    assert identify_thrust.main() == pytest.approx(0.93, abs=0.005)


def test_training_to_report_takes_a_few_lines_of_python(tmp_path, capsys):
    importlib.import_module("train_and_evaluate").main(str(tmp_path / "run"), 300_000)
    for name in ("episodes/fast/summary.json", "videos/fast.mp4", "report.html"):
        assert (tmp_path / "run" / name).exists()
    # The same policy in the reference as a Gymnasium environment.
    pytest.importorskip("gymnasium")
    importlib.import_module("fly_through_gymnasium").main(str(tmp_path / "run"), "mujoco", 2)
    assert "episode 1: reset in" in capsys.readouterr().out


def test_a_scripted_profile_is_filmed(tmp_path):
    importlib.import_module("flight_profile").main("gimbal", str(tmp_path / "gimbal.mp4"), "2")
    assert (tmp_path / "gimbal.mp4").stat().st_size > 10_000
