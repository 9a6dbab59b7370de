"""Timing: the least of several runs."""

import time
from collections.abc import Callable
from typing import Any

import jax

REPEATS = 5
Say = Callable[[str], None]


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, float]:
    """Least wall and least CPU seconds of several runs: the others were disturbed."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(work())
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)
