"""The examples run, are short, and do what they say."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_is_short(path):
    code = [
        line
        for line in path.read_text().splitlines()
        if line.strip() and not line.startswith(('"""', "import", "from"))
    ]
    assert len(code) <= 40


def test_an_own_task_learns():
    import own_task

    assert own_task.main(160) > 0.5


def test_thrust_is_identified_through_the_model():
    import identify_thrust

    assert identify_thrust.main() == pytest.approx(0.93, abs=0.005)


def test_training_and_evaluating_takes_ten_lines(tmp_path):
    import train_and_evaluate

    train_and_evaluate.main(tmp_path / "run", 300_000)
    assert (tmp_path / "run/episodes/fast/summary.json").exists()


def test_a_scripted_profile_is_filmed(tmp_path):
    import flight_profile

    flight_profile.main("gimbal", str(tmp_path / "gimbal.mp4"), "2")
    assert (tmp_path / "gimbal.mp4").stat().st_size > 10_000
