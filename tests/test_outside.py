"""A task from outside: a file, a module, and an installed package, through the same commands as our own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from test_cli import slipstream

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_task.py"
TINY = (
    "--steps", 8192, "--learner.worlds", 64, "--learner.rollout-length", 16, "--learner.minibatches", 2,
    "--learner.shuffle-block", 16, "--learner.hidden-sizes", 16,
)  # fmt: skip
PACKAGE = '''
"""A robot that Slipstream has never heard of: a lamp that is to be switched on."""
from dataclasses import dataclass, replace
from functools import cached_property

import jax.numpy as jnp
import slipstream as sl


@dataclass(frozen=True)
class Lamp(sl.Task):
    """Switch the lamp on and leave it on."""

    patience: int = 10
    """steps of an episode"""

    @cached_property
    def spec(self):
        return sl.Spec(observation=1, action=sl.Discrete(2), control_dt=0.1)

    def reset(self, rng):
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return sl.State(None, zero, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state, action):
        on, step = action.astype(jnp.float32), state.step + 1
        state = replace(state, body=on, progress=state.progress + on, step=step)
        return replace(state, reward=on, truncated=step >= self.patience)

    def observe(self, state):
        return state.body[None]

    def episode_metrics(self, state):
        return {"success": (state.progress > 0.8 * self.patience).astype(jnp.float32), "bright": state.progress}


TASK = Lamp
PRESETS = {"lamp": sl.Experiment(Lamp(), sl.Dqn(worlds=8, capacity=2000, learning_starts=64), steps=2048, devices=1)}
'''
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "brightbot"
version = "0.1"
[project.entry-points."slipstream.tasks"]
lamp = "brightbot"
[tool.setuptools]
py-modules = ["brightbot"]
"""


def test_a_task_in_one_file_gets_a_run_a_film_and_a_page(tmp_path):
    done = slipstream("pipeline", f"{EXAMPLE}:Parking", *TINY, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {"success_rate", "return_mean", "final_error_mean"} <= set(result["evaluation"])
    assert (tmp_path / result["video"]).stat().st_size > 1000
    page = (tmp_path / result["report"]).read_text()
    assert "Paths" in page and "final error" in page
    kept = json.loads((tmp_path / "runs/parking/experiment.json").read_text())
    assert kept["task"]["class"] == f"{EXAMPLE}:Parking"

    # The run names a file; nobody has named it in this process, so it is not run.
    done = slipstream("evaluate", "runs/parking", "--worlds", 4, cwd=tmp_path)
    assert done.returncode == 2
    assert "not loaded unless you name it" in done.stderr and f"--task-class {EXAMPLE}:Parking" in done.stderr
    named = ("--task-class", f"{EXAMPLE}:Parking", "--json")
    done = slipstream("evaluate", "runs/parking", "--worlds", 4, "--task.time-limit", 3.0, *named, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plant"] == "fast-time_limit=3.0"
    done = slipstream("train", "--resume", "--run", "runs/parking", *named, cwd=tmp_path)
    assert json.loads(done.stdout)["finished"]


def test_a_file_that_is_gone_is_said_to_be_gone(tmp_path):
    copy = tmp_path / "mine.py"
    copy.write_text(EXAMPLE.read_text())
    done = slipstream("train", "mine.py:Parking", *TINY, "--run", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    copy.unlink()
    done = slipstream("report", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "not there any more" in done.stderr and "Traceback" not in done.stderr


def test_a_run_cannot_make_us_import_a_module_that_is_not_installed(tmp_path):
    done = slipstream("train", f"{EXAMPLE}:Parking", *TINY, "--run", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "run/experiment.json"
    kept = json.loads(path.read_text())
    (tmp_path / "evil.py").write_text("open('pwned', 'w').write('yes')\nclass Parking: ...\n")
    kept["task"]["class"] = "evil:Parking"
    path.write_text(json.dumps(kept))
    done = slipstream("report", "run", cwd=tmp_path)  # python -m puts this folder on the path
    assert done.returncode == 2
    assert "no installed package has it" in done.stderr
    assert not (tmp_path / "pwned").exists()


def test_learners_are_compared_and_measured_on_a_task_from_a_file(tmp_path):
    words = ("--learners", "ppo,sac", "--seeds", 1, "--worlds", 8, "--steps", 40_000, "--json")
    done = slipstream("compare", f"{EXAMPLE}:Parking", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {row["name"] for row in result["rows"]} == {"ppo", "sac"}
    assert (tmp_path / "runs/compare-parking/hardest.mp4").stat().st_size > 1000
    done = slipstream("bench", "sim", "--task", f"{EXAMPLE}:Parking", "--worlds", 256, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["steps_per_cpu_second"] > 0


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with a package installed that brings a task by an entry point."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "source").mkdir()
    (folder / "source/brightbot.py").write_text(PACKAGE)
    (folder / "source/pyproject.toml").write_text(PROJECT)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target",
         folder / "site", folder / "source"], check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_an_installed_package_brings_a_task_that_has_everything(installed):
    import os

    paths = [str(installed / "site"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(*words):
        done = slipstream(*words, "--json", cwd=installed, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    told = run("list")
    assert "lamp" in told["presets"] and "lamp" in told["tasks"]
    assert told["presets"]["lamp"]["task"]["class"] == "brightbot:Lamp"
    assert run("train", "lamp", "--run", "lamp")["finished"]
    # The package is installed, so its run needs no name on the command line.
    assert run("evaluate", "lamp", "--worlds", 16)["bright_mean"] >= 0.0
    assert (installed / run("video", "lamp", "--seconds", 1)["video"]).stat().st_size > 1000
    page = (installed / run("report", "lamp")["report"]).read_text()
    assert "One episode" in page
    assert run("bench", "sim", "--task", "lamp", "--worlds", 256)["task"] == "lamp"
    assert run("train", "brightbot:Lamp", "--run", "by-module", *TINY)["finished"]
