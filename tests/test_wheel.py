"""The package as people install it: a wheel in a venv of its own, far from the clone."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from test_cli import TINY

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The `slipstream` of a venv that has the wheel, and from this one everything it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT],
        check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site,
         *folder.glob("slipstream-*.whl")], check=True, capture_output=True,
    )  # fmt: skip
    # Only the folder is added: what makes this clone importable is a .pth file in it, and those are not followed.
    (Path(site) / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = subprocess.run(
        [python, "-c", "import slipstream; print(slipstream.__file__)"], check=True, capture_output=True, text=True,
        cwd=folder,
    ).stdout  # fmt: skip
    assert where.startswith(site)
    return python


def test_every_command_works_from_a_wheel(installed, tmp_path):
    def slipstream(*words):
        done = subprocess.run(
            [installed, "-m", "slipstream.cli", *map(str, words), "--json"],
            cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    assert "racing" in slipstream("list")["presets"]
    assert slipstream("doctor")["findings"]
    assert slipstream("train", "racing-ppo", "--run", "tiny", *TINY)["finished"]
    assert slipstream("evaluate", "tiny", "--worlds", 8)["episodes"] == 8
    assert (tmp_path / slipstream("video", "tiny", "--seconds", 1)["video"]).exists()
    assert (tmp_path / slipstream("report", "tiny")["report"]).exists()
    assert slipstream("bench", "sim", "--worlds", 256)["limit_ratio"] > 0.0


def test_hints_name_packages_that_an_index_has():
    text = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert "slipstream[" not in text
