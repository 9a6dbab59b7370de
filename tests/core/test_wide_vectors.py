"""Vectors of 512 bits are asked for where the CPU has them and the program gains, and nowhere else."""

import os
import subprocess
import sys

import pytest

PROBE = """
import os, sys
from slipstream.core import device
device.has_wide_vectors = lambda: sys.argv[1] == "wide"
device.configure(1, wide_vectors=sys.argv[2] == "gains")
import jax.numpy as jnp
assert float(jnp.ones(8).sum()) == 8.0
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.parametrize(
    ("cpu", "program", "asked"), [("wide", "gains", True), ("wide", "loses", False), ("narrow", "gains", False)]
)
def test_wide_vectors_are_asked_for_only_where_they_are_there_and_gain(cpu, program, asked):
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, cpu, program], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert ("xla_cpu_prefer_vector_width=512" in done.stdout) == asked


def test_what_the_user_has_set_stays():
    env = {**os.environ, "XLA_FLAGS": "--xla_cpu_prefer_vector_width=128"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "wide", "gains"], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert "=128" in done.stdout and "=512" not in done.stdout
