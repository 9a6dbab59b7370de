"""A library that is not installed is named, with the line that installs it; importing Slipstream imports none."""

import importlib
import subprocess
import sys

import pytest

from slipstream.adapters.libraries import MissingLibraryError

ADAPTERS = {
    "gymnasium": "gymnasium", "pettingzoo": "pettingzoo", "sb3": "stable_baselines3", "skrl": "skrl",
    "skrl_jax": "flax", "rsl_rl": "rsl_rl", "rl_games": "rl_games", "torchrl": "torchrl",
}  # fmt: skip


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_missing_library_is_named_with_the_line_that_installs_it(adapter, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == ADAPTERS[adapter]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, ADAPTERS[adapter], None)
    monkeypatch.delitem(sys.modules, f"slipstream.adapters.{adapter}", raising=False)
    with pytest.raises(MissingLibraryError, match=f"needs {ADAPTERS[adapter]}: pip install .*[a-z]"):
        importlib.import_module(f"slipstream.adapters.{adapter}")


def test_the_command_line_needs_no_other_library():
    script = (
        "import sys, slipstream.pipeline.comparison, slipstream.cli.main\n"
        "found = {'torch', 'gymnasium', 'stable_baselines3', 'brax', 'mujoco_playground'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_training_imports_no_film_no_page_and_no_special_functions():
    script = (
        "import sys, slipstream.cli.train\n"
        "late = {'av', 'jinja2', 'scipy.special', 'PIL', 'slipstream.reports', 'slipstream.adapters'}\n"
        "found = late & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
