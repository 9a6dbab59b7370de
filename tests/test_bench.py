"""That the limit is the same physics: its worlds end where ours do. Nothing is timed here."""

import shutil
import subprocess

import jax
import numpy as np
import pytest

from slipstream.bench.sim import LIMIT, dynamics_program, run_limit
from slipstream.dynamics.quadrotor import racer


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the C++ limit")
def test_the_hand_written_limit_flies_where_our_dynamics_fly(tmp_path):
    binary = tmp_path / "limit"
    subprocess.run(["g++", "-O2", "-fopenmp-simd", "-o", str(binary), str(LIMIT)], check=True)
    worlds, steps = 510 // 64 * 64, 100
    _, ends = run_limit(binary, racer, worlds, steps)
    program, flight, targets = dynamics_program(racer, worlds)(steps)
    after = jax.tree.map(lambda x: np.asarray(x).reshape(-1), program(flight, targets))
    for ours, theirs in ((0, ends[:7]), (worlds - 1, ends[7:])):
        position = [float(p[ours]) for p in after.position.parts]
        attitude = [float(getattr(after.attitude, part)[ours]) for part in "wxyz"]
        np.testing.assert_allclose(position, theirs[:3], atol=2e-3)
        np.testing.assert_allclose(attitude, theirs[3:], atol=2e-3)
