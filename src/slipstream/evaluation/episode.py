"""The record of one episode on disk."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.run import Run, RunError

DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""What reading a damaged .npz file raises."""
METRICS_FILE = "episode_metrics.npz"


@dataclass(frozen=True)
class Episode:
    """One episode: arrays over time, its world, and its metrics."""

    trajectory: dict[str, np.ndarray]
    world: dict[str, np.ndarray]
    metrics: dict[str, float]
    control_dt: float

    @property
    def length(self) -> int:
        return len(next(iter(self.trajectory.values())))

    def save(self, path: Path) -> None:
        arrays = {f"trajectory/{name}": value for name, value in self.trajectory.items()}
        arrays |= {f"world/{name}": value for name, value in self.world.items()}
        arrays |= {f"metrics/{name}": np.asarray(value, np.float32) for name, value in self.metrics.items()}
        arrays["control_dt"] = np.asarray(self.control_dt, np.float32)
        save_arrays(path, arrays)

    @classmethod
    def load(cls, path: Path) -> "Episode":
        stored = load_arrays(path)
        parts: dict[str, dict[str, Any]] = {"trajectory": {}, "world": {}, "metrics": {}}
        for name, value in stored.items():
            group, _, rest = name.partition("/")
            if rest and group in parts:
                parts[group][rest] = value
        if "control_dt" not in stored or not parts["trajectory"]:
            raise RunError(f"{path} is damaged; evaluate again")
        metrics = {name: float(value) for name, value in parts["metrics"].items()}
        return cls(parts["trajectory"], parts["world"], metrics, float(stored["control_dt"]))


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A compressed .npz file with those names, whatever characters they have."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(value), allow_pickle=False)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; it is data, and never unpickled."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except DAMAGE as error:
        raise RunError(f"{path} is damaged or missing; evaluate again") from error


def load_episodes(run: Run, plant: str, most: int | None = None) -> list[Episode]:
    """The recorded episodes of the last evaluation on a plant."""
    return [Episode.load(path) for path in sorted(run.episodes(plant).glob("[0-9]*.npz"))[:most]]


def load_metrics(run: Run, plant: str) -> dict[str, np.ndarray]:
    """One number an episode, of every metric of the last evaluation on a plant."""
    return load_arrays(run.episodes(plant) / METRICS_FILE)
