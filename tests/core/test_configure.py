"""No command compiles anything before JAX is set up."""

import os
import subprocess
import sys

import pytest

from test_cli import TINY, slipstream

PROBE = """
import sys
import jax.monitoring
from slipstream.core import device
from slipstream.cli.main import main

order, configure = [], device.configure
device.configure = lambda *words, **named: (order.append("set up"), configure(*words, **named))
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: order.append("compiled") if "backend_compile" in event else None
)
code = main(sys.argv[1:])
assert code == 0, code
assert order[:1] == ["set up"], order[:3]
"""
COMMANDS = {
    "list": (),
    "doctor": (),
    "train": ("racing-ppo", "--run", "other", *TINY),
    "evaluate": ("tiny", "--worlds", "4"),
    "video": ("tiny", "--seconds", "0.5"),
    "report": ("tiny",),
    "parity": ("tiny", "--plants", "fast,mujoco", "--worlds", "2"),
    "fit": ("--flights", "4", "--seconds", "1"),
    "bench": ("render", "--cameras", "2", "--width", "16", "--height", "16", "--shapes", "4"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    done = slipstream("train", "racing-ppo", "--run", "tiny", *TINY, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_jax_is_set_up_before_a_command_compiles_anything(place, command):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, command, *COMMANDS[command]],
        cwd=place, capture_output=True, text=True, timeout=600, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_page_without_a_profile_measures_nothing(place):
    (place / "tiny" / "profile.json").unlink(missing_ok=True)
    done = slipstream("report", "tiny", cwd=place)
    assert done.returncode == 0, done.stderr
    assert not (place / "tiny" / "profile.json").exists()
