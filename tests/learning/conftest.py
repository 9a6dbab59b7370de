"""The command line in a process of its own, as a user has it."""

import json
import subprocess
import sys
from functools import partial

import pytest


def run(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "slipstream.cli", *map(str, words), "--json"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def command():
    return run


@pytest.fixture
def slipstream(tmp_path):
    return partial(run, tmp_path)
