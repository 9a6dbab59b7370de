"""Trials of libraries: processes that train, watched from outside, and what they found as figures."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ..runs.files import json_text, write_text
from .work import Work

PAUSE, KEPT = 0.5, 200
"""Seconds from one look at a process to the next, and how many of them are kept at most."""
Watch = Callable[[str, float], None]
"""Told what a trial has reached, and its seconds so far."""


@dataclass(frozen=True)
class Trial:
    """One training by one library."""

    folder: Path
    library: str
    work: Work

    @property
    def name(self) -> str:
        return f"{self.library}, seed {self.work.seed}"

    @property
    def looks(self) -> list[dict[str, Any]]:
        """What its meter has written."""
        file = self.folder / "looks.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def done(self) -> bool:
        """Whether this very work has been done."""
        return json.loads(json_text(self._asked)) == self._kept("trial.json").get("asked")

    @property
    def _asked(self) -> dict[str, Any]:
        return {"library": self.library, "work": self.work.to_json()}

    def _kept(self, name: str) -> dict[str, Any]:
        file = self.folder / name
        return json.loads(file.read_text()) if file.exists() else {}

    @property
    def usage(self) -> dict[str, list[float]]:
        """Seconds, cores in use and bytes of memory over time."""
        return self._kept("trial.json").get("usage", {})

    @property
    def failure(self) -> str:
        """Why it failed, or nothing."""
        return self._kept("trial.json").get("failure", "")

    def run(self, watch: Watch, core: int | None = None) -> None:
        """Do the work in a process of its own, on one core if that is given."""
        self.folder.mkdir(parents=True, exist_ok=True)
        out, asked, log = (self.folder / name for name in ("looks.jsonl", "work.json", "log.txt"))
        out.unlink(missing_ok=True)
        write_text(asked, json_text(self.work.to_json()))
        command = [sys.executable, "-W", "ignore", "-m", "slipstream.comparison.trial"]
        with log.open("w") as text:
            process = subprocess.Popen([*command, self.library, str(asked), str(out)], stdout=text, stderr=text)
            try:
                if core is not None and hasattr(os, "sched_setaffinity"):
                    os.sched_setaffinity(process.pid, {core})
                usage = follow(process, self.looks_of, watch, self.name)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        failure = "" if process.returncode == 0 else (lines[-1] if lines else f"exit code {process.returncode}")
        write_text(self.folder / "trial.json", json_text({"asked": self._asked, "usage": usage, "failure": failure}))

    def looks_of(self) -> int:
        """Samples so far."""
        looks = self.looks
        return int(looks[-1]["samples"]) if looks else 0


def follow(process: Any, samples: Callable[[], int], watch: Watch, name: str) -> dict[str, list[float]]:
    """What a process uses until it ends: seconds, cores, bytes of memory."""
    seen = psutil.Process(process.pid)
    began, last = time.time(), (time.time(), 0.0)
    usage: dict[str, list[float]] = {"seconds": [], "cores": [], "memory": []}
    while process.poll() is None:
        time.sleep(PAUSE)
        try:
            spent, memory = sum(seen.cpu_times()[:2]), seen.memory_info().rss
        except psutil.NoSuchProcess:
            break
        if not memory:  # it is ending
            continue
        now = time.time()
        usage["seconds"].append(round(now - began, 2))
        usage["cores"].append(round((spent - last[1]) / (now - last[0]), 3))
        usage["memory"].append(float(memory))
        last = now, spent
        watch(f"{name}: {samples() / 1e6:.2f} M samples", now - began)
    process.wait()
    every = -(-len(usage["seconds"]) // KEPT) or 1
    return {name: values[::every] for name, values in usage.items()}


def figures(trials: Sequence[Trial]) -> dict[str, Any]:
    """What the trials of a library say: means over seeds; what was not reached is None."""
    good = [trial for trial in trials if trial.looks and not trial.failure]
    if not good:
        return {"failure": trials[0].failure or "it has not been run"}
    rates, walls, firsts, memory, ends, skills = [], [], [], [], [], []
    for trial in good:
        first, last = trial.looks[0], trial.looks[-1]
        samples = last["samples"] - first["samples"]
        if samples:
            rates.append(samples / (last["cpu"] - first["cpu"]))
            walls.append(samples / (last["wall"] - first["wall"]))
        firsts.append(first["cpu"])
        memory.append(max(row["memory"] for row in trial.looks))
        ends.append(last.get("score", {}))
        skills.append(next((row for row in trial.looks if trial.work.reached(row.get("score", {}))), None))
    known = [row for row in skills if row is not None]
    all_reached = len(known) == len(good) > 0
    return {
        "samples_per_cpu_second": mean(rates),
        "samples_per_second": mean(walls),
        "cpu_seconds_to_first_update": mean(firsts),
        "memory": mean(memory),
        "score": {key: mean([end[key] for end in ends if key in end]) for key in ends[0]},
        "seeds": [end.get("success") for end in ends],
        "skill": {key: [row[key] for row in known] for key in ("wall", "cpu", "samples")} if known else None,
        "skill_reached": f"{len(known)} of {len(good)}",
        "skill_cpu_seconds": mean([row["cpu"] for row in known]) if all_reached else None,
        "skill_wall_seconds": mean([row["wall"] for row in known]) if all_reached else None,
        "cpu_seconds": mean([trial.looks[-1]["cpu"] for trial in good]),
    }


def mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(finite)) if finite else None
