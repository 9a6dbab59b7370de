"""Progress on a terminal: a live bar where there is one, a line now and then where there is not."""

import math
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
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


def told(look: TrainingStatus) -> str:
    """What a person wants to know while waiting."""
    metrics = look.metrics
    parts = [f"{brief(look.rate)} steps/s", f"reward {metrics.get('reward', math.nan):+.3f}"]
    if "success" in metrics:
        share = metrics["success"]
        parts.append(f"success {'-' if math.isnan(share) else f'{100 * share:.0f} %'}")
    if not math.isnan(metrics.get("lap_time", math.nan)):
        parts.append(f"lap {metrics['lap_time']:.2f} s")
    return " · ".join(parts)


class TellColumn(ProgressColumn):
    """Whatever the task's `tell` field says."""

    def render(self, task: Any) -> Text:
        return Text(task.fields["tell"])


class Live:
    """Something that moves on a terminal while a `with` lasts, and keeps still where there is no terminal."""

    live: bool
    progress: Progress

    def __enter__(self) -> Self:
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if self.live:
            self.progress.stop()


class Bar(Live):
    """The live bar of a training."""

    def __init__(self, name: str) -> None:
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal
        columns = TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.percentage:>3.0f} %"), TellColumn()
        self.progress = Progress(*columns, console=self.console, transient=False, refresh_per_second=4)
        self.task = self.progress.add_task(name, total=1.0, tell="starting")
        self.told = time.monotonic()

    def look(self, look: TrainingStatus) -> None:
        text = f"{told(look)} · {clock(look.left)} left"
        if self.live:
            self.progress.update(self.task, completed=look.step / look.steps, tell=text)
        elif time.monotonic() - self.told > 10.0 or look.step >= look.steps:
            self.told = time.monotonic()
            print(
                f"{100 * look.step / look.steps:3.0f} %  {brief(look.step)} steps  {text}", file=sys.stderr, flush=True
            )

    def say(self, text: str) -> None:
        if self.live:
            self.progress.update(self.task, tell=text)
        else:
            print(text, file=sys.stderr, flush=True)


class Count(Live):
    """A bar that counts to an end."""

    def __init__(self, name: str, total: int) -> None:
        console = Console(stderr=True)
        self.live = console.is_terminal
        self.progress = Progress(TextColumn("{task.description}"), BarColumn(24), TellColumn(), console=console)
        self.task = self.progress.add_task(name, total=total, tell="")

    def look(self, done: int, total: int) -> None:
        if self.live:
            self.progress.update(self.task, completed=done, total=total, tell=f"{done} of {total}")

    def tell(self, what: str, done: int, total: int) -> None:
        """The same for work in several parts."""
        if self.live:
            self.progress.update(self.task, completed=done, total=total, tell=f"{what}: {done} of {total}")


class Runs(Live):
    """A bar for many runs at once: how far all of them are, and which are under way."""

    def __init__(self, name: str, steps: dict[Path, int]) -> None:
        console = Console(stderr=True)
        self.live, self.steps, self.done = console.is_terminal, steps, -1
        columns = TextColumn("{task.description}"), BarColumn(24), TellColumn(), TimeElapsedColumn()
        self.progress = Progress(*columns, console=console)
        self.task = self.progress.add_task(name, total=sum(steps.values()), tell="")

    def look(self, done: int, active: list[tuple[Path, int]]) -> None:
        """`active` are the folders under way and their steps."""
        parts = [
            f"{folder.parent.name}/{folder.name} {100 * min(step / self.steps[folder], 1.0):.0f} %"
            for folder, step in active
        ]
        text = " · ".join([f"{done} of {len(self.steps)} done", *parts])
        if self.live:
            # Runs come in the order of `steps`, so what is done and under way is its beginning.
            behind = sum(list(self.steps.values())[: done + len(active)]) - sum(self.steps[f] for f, _ in active)
            self.progress.update(self.task, completed=behind + sum(step for _, step in active), tell=text)
        elif done != self.done:
            self.done = done
            print(text, file=sys.stderr, flush=True)
