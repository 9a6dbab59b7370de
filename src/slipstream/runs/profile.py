"""Where the time of a training goes: a few short looks at the program while it runs, and nothing compiled for it.

The parts of a rollout are named where they are written (`jax.named_scope`); XLA keeps those names with every operation,
and JAX's profiler tells how long each operation took.
"""

import contextlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

PARTS = ("physics", "observation", "camera", "policy")
"""Names of scopes; what stands in none of them is learning."""
LEARNING = "learning"
WINDOW = 0.04
"""Seconds of a look: long enough for a thousand operations, short enough to cost less than a second to read."""
OPERATION = re.compile(r'^\s*(?:ROOT )?%?([\w.-]+) = .*? ([\w-]+)\(.*metadata=\{.*?op_name="([^"]*)"', re.MULTILINE)
CONTAINERS = ("while", "call", "conditional")
"""Operations whose time is that of others inside them."""


def parts_of(program: str) -> dict[str, str]:
    """For every operation of a compiled program, by its text, the part it belongs to."""
    found = {}
    for name, kind, scope in OPERATION.findall(program):
        if kind not in CONTAINERS:
            inner = re.findall(rf"\b({'|'.join(PARTS)})\b", scope)
            found[name] = inner[-1] if inner else LEARNING
    return found


def look(parts: dict[str, str], seconds: float = WINDOW) -> dict[str, float]:
    """Seconds that each part took of a program that is running, on all its threads."""
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        jax.profiler.start_trace(folder, profiler_options=options)
        time.sleep(seconds)
        jax.profiler.stop_trace()
        traces = list(Path(folder).rglob("*.xplane.pb"))
        data = jax.profiler.ProfileData.from_file(str(traces[0])) if traces else None
        return summed(parts, _events(data)) if data else {}


def _events(data: Any) -> Iterable[tuple[str, float]]:
    for plane in data.planes:
        for line in plane.lines:
            yield from ((event.name, event.duration_ns * 1e-9) for event in line.events)


def summed(parts: dict[str, str], events: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds by part of the operations among those events."""
    total: dict[str, float] = {}
    for name, seconds in events:
        if name in parts:
            total[parts[name]] = total.get(parts[name], 0.0) + seconds
    return total


class Looks:
    """A few looks, each in a chunk of its own, at times spread over the chunk."""

    def __init__(self, program: Callable[[], str], count: int = 24) -> None:
        self.program, self.left = program, count
        self.shortest = math.inf  # seconds of a chunk
        self.total: dict[str, float] = {}

    @cached_property
    def parts(self) -> dict[str, str]:
        """The part of every operation; a short training is never looked at, and does not wait for this."""
        return parts_of(self.program())

    def take(self, chunk_seconds: float) -> None:
        """Look once at a chunk that has just been started, after one that took so long."""
        if not self.left:
            return
        self.left -= 1
        self.shortest = min(self.shortest, chunk_seconds)
        # Multiples of the golden ratio fall evenly, however many there are and whatever a chunk repeats.
        time.sleep(max(0.9 * self.shortest - WINDOW, 0.0) * (self.left * 0.618034 % 1.0))
        # A profiler that another tool uses, or that this JAX does not have, must not end a training.
        with contextlib.suppress(Exception):
            for part, seconds in look(self.parts).items():
                self.total[part] = self.total.get(part, 0.0) + seconds

    @property
    def share(self) -> dict[str, float]:
        """Of every part in the time of all; empty if nothing was seen."""
        whole = sum(self.total.values())
        order = [part for part in (*PARTS, LEARNING) if self.total.get(part)]
        return {part: round(self.total[part] / whole, 4) for part in order}
