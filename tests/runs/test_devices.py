"""Machines with other numbers of cores: trainings start, move and are looked at there."""

import json
import os
import subprocess
import sys

import pytest

PRELUDE = """
import json, sys
from dataclasses import replace
from pathlib import Path
from slipstream.core import device
device.configure()
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import presets
from slipstream.learn.distill import Distill
from slipstream.learn.ppo import Ppo
from slipstream.runs.run import Run
from slipstream.tasks.racing import Racing
from slipstream.runs.train import train, trainer_of
SMALL = Experiment(
    Racing(),
    Ppo(worlds=48, rollout_length=8, epochs=1, minibatches=2, hidden_sizes=(16,), shuffle_block=8),
    steps=48 * 8 * 8 * 2,
)
"""


def python(devices, code, *words):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *map(str, words)],
        capture_output=True, text=True, timeout=600, check=False, env={**os.environ, "XLA_FLAGS": flags},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(("devices", "racing"), [(3, 2), (6, 4), (12, 8)])
def test_every_preset_starts_on_the_largest_number_of_devices_that_divides(devices, racing):
    code = """
alone = {name: preset for name, preset in presets().items() if not isinstance(preset.learner, Distill)}  # no teacher
print(json.dumps({name: trainer_of(preset).mesh.size for name, preset in alone.items()}))
"""
    sizes = json.loads(python(devices, code))
    assert sizes["racing"] == sizes["racing-demo"] == racing
    assert all(1 <= size <= devices for size in sizes.values())


def test_a_number_of_devices_that_was_asked_for_and_does_not_divide_is_refused():
    code = """
try:
    trainer_of(replace(presets()["racing-ppo"], devices=3))
except ValueError as error:
    print(error)
"""
    assert "2048 worlds do not divide over 3 devices" in python(3, code)


def test_a_training_moves_to_a_machine_with_other_cores_and_is_evaluated_on_one(tmp_path):
    begin = (
        "train(Run.create(Path(sys.argv[1]), SMALL), stop=lambda: True); print(Run(Path(sys.argv[1])).checkpoint_steps)"
    )
    assert python(2, begin, tmp_path / "run").strip() == "[3072]"
    go_on = "train(Run.open(Path(sys.argv[1])), resume=True, say=print)"
    assert "begun on 2 device(s) and now on 3: sums are rounded otherwise" in python(3, go_on, tmp_path / "run")
    asked = "train(Run.create(Path(sys.argv[1]), replace(SMALL, devices=2)), stop=lambda: True)"
    python(2, asked, tmp_path / "two")
    look = """
from slipstream.evaluation.score import evaluate
print(json.dumps(evaluate(Run.open(Path(sys.argv[1])), worlds=6)))
"""
    assert json.loads(python(1, look, tmp_path / "two"))["episodes"] == 6
    # Nor does a machine with fewer devices than were asked for stop a training that is under way.
    assert "now on 1" in python(1, go_on, tmp_path / "two")
