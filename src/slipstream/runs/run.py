"""The run directory: what a training writes and everything after it reads. Plain files only."""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from jaxtyping import PyTree

from ..core.errors import suggest
from ..experiment.experiment import Experiment
from . import checkpoint, tensorboard
from .files import json_safe, json_text, write_text


class RunError(Exception):
    """Something about a run directory that the user can put right."""


@dataclass(frozen=True)
class Run:
    """A folder: experiment.json, metrics.jsonl, tensorboard/, checkpoints/, episodes/, videos/, report.html."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, experiment: Experiment[Any, Any]) -> "Run":
        """A new run; a folder that already holds one is left alone."""
        run = cls(folder)
        if run._file("experiment.json").exists():
            raise RunError(f"{folder} already holds a run. Go on with it by --resume, or choose another --run folder.")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} exists and is not empty; choose another --run folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(run._file("experiment.json"), json_text(experiment.as_dict()))
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror}") from error
        return run

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """A run that exists."""
        if not (folder / "experiment.json").is_file():
            beside = [path.name for path in folder.parent.glob("*") if (path / "experiment.json").is_file()]
            raise RunError(f"{folder} is not a run: it has no experiment.json{suggest(folder.name, beside)}")
        return cls(folder)

    def _file(self, name: str) -> Path:
        return self.folder / name

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def experiment(self) -> Experiment[Any, Any]:
        path = self._file("experiment.json")
        try:
            return Experiment.from_dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path} cannot be used: {error}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains this run meanwhile; the lock ends with the process, however that ends."""
        with open(self._file(".lock"), "a+") as file:
            try:
                lock(file)
            except OSError:
                file.seek(0)
                who = file.read().strip()
                raise RunError(
                    f"{self.folder} is being trained by another process{f' ({who})' if who else ''}. "
                    "Wait until it has finished, or choose another --run folder."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    # Metrics

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What was written so far; a line cut off by a crash is passed over."""
        path = self._file("metrics.jsonl")
        rows = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        return [row for row in rows if isinstance(row, dict) and "step" in row]

    def truncate_metrics(self, step: int) -> None:
        """Forget what came after `step`: a resumed training writes it again."""
        kept = [row for row in self.metrics if row["step"] <= step]
        write_text(self._file("metrics.jsonl"), "".join(json.dumps(row) + "\n" for row in kept))
        for old in self._file("tensorboard").glob("events.*"):
            old.unlink()
        for row in kept:
            self._to_tensorboard(row)

    def log(self, row: dict[str, Any]) -> None:
        """One line of metrics, and the same for TensorBoard."""
        row = json_safe(row)
        try:
            with open(self._file("metrics.jsonl"), "a") as file:
                file.write(json.dumps(row) + "\n")
            self._to_tensorboard(row)
        except OSError as error:
            raise RunError(f"cannot write metrics to {self.folder}: {error.strerror}") from error

    def _to_tensorboard(self, row: dict[str, Any]) -> None:
        folder = self._file("tensorboard")
        folder.mkdir(exist_ok=True)
        path = next(iter(sorted(folder.glob("events.*"))), None)
        if path is None:
            path = folder / f"events.out.tfevents.{int(time.time())}.slipstream"
            path.write_bytes(tensorboard.record(tensorboard.event(row["step"], {}, version=True)))
        values = {name: value for name, value in row.items() if isinstance(value, float | int) and name != "step"}
        with open(path, "ab") as file:
            file.write(tensorboard.record(tensorboard.event(row["step"], values)))

    # Checkpoints

    def save(self, step: int, train: PyTree, keep: int | None = None, **facts: Any) -> None:
        """Store the training state; of the older ones only the best and `keep` others stay."""
        checkpoint.write(self._checkpoint(step), train, step=step, **facts)
        best = self.best_step
        if keep is not None:
            for old in self.checkpoint_steps[: -keep or None]:
                if old not in (best, step):
                    shutil.rmtree(self._checkpoint(old), ignore_errors=True)

    def _checkpoint(self, step: int) -> Path:
        return self._file("checkpoints") / f"{step:012d}"

    @property
    def checkpoint_steps(self) -> list[int]:
        """Of the checkpoints there are, in order."""
        folders = self._file("checkpoints").glob("*")
        return sorted(int(path.name) for path in folders if re.fullmatch(r"\d{12}", path.name))

    @property
    def best_step(self) -> int | None:
        """Of the checkpoint with the highest selection metric among those that have one; None if none has."""
        values = {}
        for step in self.checkpoint_steps:
            with contextlib.suppress(checkpoint.CheckpointError):
                value = checkpoint.manifest(self._checkpoint(step)).get("selection_metric")
                if isinstance(value, int | float):
                    values[step] = value
        return max(values, key=lambda step: (values[step], step), default=None)

    def load(self, like: PyTree, which: str | int = "last", prefix: str = "") -> tuple[int, Any]:
        """A stored tree: of the `last` or `best` checkpoint, or of a step."""
        if not self.checkpoint_steps:
            raise RunError(f"{self.folder} has no checkpoint yet; train it first")
        named = {"last": self.checkpoint_steps[-1], "best": self.best_step or self.checkpoint_steps[-1]}
        if isinstance(which, str) and which.isdigit():
            which = int(which)
        step = named.get(which, which) if isinstance(which, str) else which
        if step not in self.checkpoint_steps:
            known = ["average", "last", "best", *map(str, self.checkpoint_steps)]
            raise RunError(f"there is no checkpoint '{which}'{suggest(str(which), known)}")
        assert isinstance(step, int)
        return step, checkpoint.read(self._checkpoint(step), like, prefix)

    def load_policy(self, like: PyTree, which: str | int = "average") -> tuple[int, Any]:
        """The policy that is handed over: the average over the last part of the training, or that of a checkpoint."""
        if which != "average":
            return self.load(like, which, ".policy")
        if not self.experiment.average:
            return self.load(like, "last", ".policy")
        try:
            return self.load(like, "last", ".average")
        except checkpoint.CheckpointError:
            # A run of before there were averages has none.
            return self.load(like, "last", ".policy")

    def load_newest(self, like: PyTree) -> tuple[int, Any, list[str]]:
        """The newest checkpoint that is whole, and what was wrong with those after it."""
        complaints: list[str] = []
        for step in reversed(self.checkpoint_steps):
            try:
                return *self.load(like, step), complaints
            except checkpoint.CheckpointError as error:
                complaints.append(str(error))
        raise RunError("\n".join([f"{self.folder} has no usable checkpoint", *complaints]))

    def facts(self, step: int) -> dict[str, Any]:
        """What was stored beside a checkpoint: its `seconds` of training, `selection_metric` and `devices`."""
        return checkpoint.manifest(self._checkpoint(step))

    # What comes after training

    @property
    def profile(self) -> dict[str, Any] | None:
        """How fast the training was and where its time went; None if it never was measured."""
        path = self._file("profile.json")
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is damaged; remove it") from error

    def write_profile(self, profile: dict[str, Any]) -> None:
        write_text(self._file("profile.json"), json_text(profile))

    def episodes(self, plant: str) -> Path:
        return self._file("episodes") / plant

    def summaries(self) -> dict[str, dict[str, Any]]:
        """By plant."""
        found = {}
        for path in sorted(self._file("episodes").glob("*/summary.json")):
            try:
                found[path.parent.name] = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise RunError(f"{path} is damaged; evaluate again") from error
        return found

    @property
    def videos(self) -> Iterator[Path]:
        yield from sorted(self._file("videos").glob("*.mp4"))

    @property
    def report(self) -> Path:
        return self._file("report.html")


def lock(file: IO[str]) -> None:
    """Lock an open file for this process alone, or raise OSError."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
