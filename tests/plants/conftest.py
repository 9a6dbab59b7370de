"""A PX4 that is not one, for tests of the bridge."""

import sys
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_px4.py")


@pytest.fixture
def fake_px4(tmp_path, monkeypatch):
    """A build folder whose px4 keeps the protocol. Call it with a fault to have it misbehave."""
    build = tmp_path / "build"
    (build / "bin").mkdir(parents=True)
    (build / "etc" / "init.d-posix").mkdir(parents=True)
    program = build / "bin" / "px4"
    program.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')\n")
    program.chmod(0o755)

    def named(fault=""):
        monkeypatch.setenv("FAKE_PX4", fault)
        return str(build)

    return named
