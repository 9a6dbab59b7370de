"""Several runs at once, each in a process with a core of its own.

Networks as small as those of a vessel gain little from a second core: two trainings beside each other take little
longer than one.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from ..core.device import cores
from .run import Run

LOG = "log.txt"
"""Where a run that has no terminal of its own writes what it has to say."""
PAUSE = 0.5

Work = Callable[[Path], int]
"""What is done with a run's folder; 0 if all went well. It must be a function of a module."""


@dataclass(frozen=True)
class Job:
    """A run that is under way."""

    folder: Path
    process: BaseProcess


def run_parallel(
    folders: list[Path], work: Work, jobs: int, watch: Callable[[int, list[tuple[Path, int]]], None]
) -> list[Path]:
    """Do the work for every folder, so many at a time; those that failed come back.

    `watch` is told how many are done, and of those under way how many steps they have behind them.
    """
    context, waiting, failed = multiprocessing.get_context("spawn"), list(folders), []
    slots: dict[int, Job] = {}
    try:
        while waiting or slots:
            for slot in range(jobs):
                if waiting and slot not in slots:
                    folder = waiting.pop(0)
                    process = context.Process(target=worker, args=(slot, jobs, folder, work))
                    process.start()
                    slots[slot] = Job(folder, process)
            time.sleep(PAUSE)
            for slot, job in list(slots.items()):
                if job.process.exitcode is not None:
                    del slots[slot]
                    failed += [job.folder] if job.process.exitcode else []
            done = len(folders) - len(waiting) - len(slots)
            watch(done, [(job.folder, steps_of(job.folder)) for job in slots.values()])
    except KeyboardInterrupt:
        # They were interrupted too, and store what they have.
        for job in slots.values():
            job.process.join()
        raise
    return failed


def steps_of(folder: Path) -> int:
    """Steps a run has behind it, as far as it has told."""
    return next((row["step"] for row in reversed(Run(folder).metrics)), 0)


def worker(slot: int, jobs: int, folder: Path, work: Work) -> None:
    """In a process of its own: the work, on the cores of this slot, with its words in a file."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        share = max(len(mine) // jobs, 1)
        first = slot * share % len(mine)
        os.sched_setaffinity(0, mine[first : first + share])
    with open(folder / LOG, "a", buffering=1) as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
        sys.exit(work(folder))


def default_jobs() -> int:
    """How many runs of one device each this machine takes at once: on a CPU, one for every core."""
    import jax

    return cores() if jax.default_backend() == "cpu" else 1
