"""The command line in a process of its own, as a user has it."""

import json
import subprocess
import sys

import pytest


@pytest.fixture
def slipstream(tmp_path):
    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "slipstream.cli", *map(str, words), "--json"],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    return run
