"""Progress on a terminal: a live bar where there is one, a line now and then where there is not."""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Task as ProgressTask
from rich.text import Text

from .runs.train import TrainingStatus


def brief(number: float) -> str:
    """1 234 567 as 1.2 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-:--"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def format_metrics(metrics: Mapping[str, float], formats: Mapping[str, str]) -> list[str]:
    """The metrics that a task shows while it is trained, as far as they are known."""
    known = {name: metrics[name] for name in formats if math.isfinite(metrics.get(name, math.nan))}
    return [formats[name].format(value) for name, value in known.items()]


def status_line(status: TrainingStatus, formats: Mapping[str, str]) -> str:
    """What a person wants to know while waiting."""
    reward = f"reward {status.metrics.get('step_reward', math.nan):+.3f}"
    return " · ".join([f"{brief(status.rate)} steps/s", reward, *format_metrics(status.metrics, formats)])


class MessageColumn(ProgressColumn):
    """The text of a task's `message` field."""

    def render(self, task: ProgressTask) -> Text:
        return Text(task.fields["message"])


class Live:
    """Something that moves on a terminal while a `with` lasts, and keeps still where there is no terminal."""

    live: bool
    progress: Progress

    def __enter__(self) -> Self:
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self.live:
            self.progress.stop()


class TrainingBar(Live):
    """The live bar of a training."""

    def __init__(self, name: str, formats: Mapping[str, str]) -> None:
        self.console, self.formats = Console(stderr=True), formats
        self.live = self.console.is_terminal
        percent = TextColumn("{task.percentage:>3.0f} %")
        columns = TextColumn("{task.description}"), BarColumn(24), percent, MessageColumn()
        self.progress = Progress(*columns, console=self.console, transient=False, refresh_per_second=4)
        self.task = self.progress.add_task(name, total=1.0, message="starting")
        self.printed = time.monotonic()

    def update(self, status: TrainingStatus) -> None:
        text = f"{status_line(status, self.formats)} · {clock(status.left)} left"
        if self.live:
            self.progress.update(self.task, completed=status.step / status.steps, message=text)
        elif time.monotonic() - self.printed > 10.0 or status.step >= status.steps:
            self.printed = time.monotonic()
            done = f"{100 * status.step / status.steps:3.0f} %  {brief(status.step)} steps  {text}"
            print(done, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if self.live:
            self.progress.update(self.task, message=text)
        else:
            print(text, file=sys.stderr, flush=True)


class CountingBar(Live):
    """A bar that counts to an end."""

    def __init__(self, name: str, total: int = 1) -> None:
        console = Console(stderr=True)
        self.live = console.is_terminal
        self.progress = Progress(TextColumn("{task.description}"), BarColumn(24), MessageColumn(), console=console)
        self.task = self.progress.add_task(name, total=total, message="")

    def update(self, done: int, total: int) -> None:
        if self.live:
            self.progress.update(self.task, completed=done, total=total, message=f"{done} of {total}")

    def say(self, text: str) -> None:
        """What is under way, where nothing counts."""
        if self.live:
            self.progress.update(self.task, message=text)

    def update_part(self, part: str, done: int, total: int) -> None:
        """The same for work in several parts."""
        if self.live:
            self.progress.update(self.task, completed=done, total=total, message=f"{part}: {done} of {total}")


class ParallelBar(Live):
    """A bar for many runs at once: how far all of them are, and which are under way."""

    def __init__(self, name: str, steps: dict[Path, int]) -> None:
        console = Console(stderr=True)
        self.live, self.steps, self.done = console.is_terminal, steps, -1
        columns = TextColumn("{task.description}"), BarColumn(24), MessageColumn(), TimeElapsedColumn()
        self.progress = Progress(*columns, console=console)
        self.task = self.progress.add_task(name, total=sum(steps.values()), message="")

    def update(self, done: int, active: list[tuple[Path, int]]) -> None:
        """`active` are the folders under way and their steps."""
        parts = [
            f"{folder.parent.name}/{folder.name} {100 * min(step / self.steps[folder], 1.0):.0f} %"
            for folder, step in active
        ]
        text = " · ".join([f"{done} of {len(self.steps)} done", *parts])
        if self.live:
            # Runs come in the order of `steps`, so what is done and under way is its beginning.
            behind = sum(list(self.steps.values())[: done + len(active)]) - sum(self.steps[f] for f, _ in active)
            self.progress.update(self.task, completed=behind + sum(step for _, step in active), message=text)
        elif done != self.done:
            self.done = done
            print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def on_interrupt(handler: Callable[..., None]) -> Iterator[None]:
    """Ctrl-C calls `handler` while a `with` lasts; outside the main thread, where that is not possible, nothing."""
    try:
        before = signal.signal(signal.SIGINT, handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
