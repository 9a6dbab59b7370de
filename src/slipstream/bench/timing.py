"""Timing: the least of several runs."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax

REPEATS = 5
SHORTEST = 0.1
"""Seconds that a run lasts at least."""
Say = Callable[[str], None]


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, float]:
    """Least wall and least CPU seconds of several runs: the others were disturbed.

    Short work is repeated within a run, because CPU time is counted in ticks.
    """
    began = time.perf_counter()
    jax.block_until_ready(work())
    inner = max(1, math.ceil(SHORTEST / (time.perf_counter() - began)))
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(inner):
            jax.block_until_ready(work())
        walls.append((time.perf_counter() - wall) / inner)
        cpus.append((time.process_time() - cpu) / inner)
    return min(walls), min(cpus)
