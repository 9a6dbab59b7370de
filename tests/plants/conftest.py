"""A fake PX4 for tests of the plant."""

import runpy
from pathlib import Path

import pytest

FAKE = runpy.run_path(str(Path(__file__).with_name("fake_px4.py")))


@pytest.fixture
def fake_px4(tmp_path, monkeypatch):
    """A build folder whose px4 keeps the protocol. Call it with a fault to have it misbehave."""
    build = FAKE["install"](tmp_path)

    def named(fault=""):
        monkeypatch.setenv("FAKE_PX4", fault)
        return str(build)

    return named
