"""What is measured of a training: samples, seconds and memory, with the clocks stopped while a policy is scored."""

import json
import resource
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from ..adapters.tasks import find_task
from ..adapters.trial import fly
from ..adapters.vector import Observation, Worlds
from .work import Work

Act = Callable[[Observation], Any]
WORLDS = 512
"""On which policies are scored."""


class Enough(Exception):  # noqa: N818
    """The training has done what was asked for; not an error."""


class Meter:
    """Looks at a training between two rollouts, and writes down what it has cost by then.

    A row for each look has samples, wall and CPU seconds since the process began, and what the policy scores if it
    was scored.
    """

    def __init__(self, work: Work, file: Path, began: float) -> None:
        self.work, self.file = work, file
        self._began, self._paused = (began, 0.0), (0.0, 0.0)
        self._looks = 0
        # On a CPU other work may take the core away: what counts is what the training has had of it.
        self._by_cpu = jax.default_backend() == "cpu"

    @cached_property
    def _unseen(self) -> Worlds:
        """Worlds that no training begins with, as the task is evaluated; made once, since they are compiled."""
        return Worlds(find_task(self.work.preset, evaluation=True), WORLDS, self.work.score_seed, "never")

    def clocks(self) -> tuple[float, float]:
        """Wall and CPU seconds of the training."""
        return time.time() - self._began[0] - self._paused[0], time.process_time() - self._paused[1]

    def look(self, samples: int, act: Act) -> None:
        """Between two updates. Raises `Enough` at the end of the training."""
        wall, cpu = self.clocks()
        spent = cpu if self._by_cpu else wall
        over = spent >= self.work.seconds or 0 < self.work.samples <= samples
        row: dict[str, Any] = {"samples": samples, "wall": wall, "cpu": cpu, "memory": peak_memory()}
        due = self.work.looks and spent >= (self._looks + 1) * self.work.seconds / (self.work.looks + 1)
        if over or due:
            self._looks += 1
            before = time.time(), time.process_time()
            row["score"] = fly(self._unseen, act)
            after = time.time(), time.process_time()
            self._paused = tuple(p + b - a for p, a, b in zip(self._paused, before, after, strict=True))
        with self.file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        if over or self.work.reached(row.get("score", {})):
            raise Enough

    def watch(self, worlds: Worlds, act: Act) -> None:
        """Look after each rollout of these worlds, which a library steps."""
        step, rollout, count = worlds.step, self.work.rollout_length, 0

        def counted(action: Any) -> Any:
            nonlocal count
            if count and count % rollout == 0:
                self.look(count * worlds.rows, act)
            count += 1
            return step(action)

        worlds.step = counted  # pyright: ignore[reportAttributeAccessIssue]


def peak_memory() -> int:
    """Most bytes of main memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
