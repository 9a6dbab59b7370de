"""Specialists of tracks that nobody trained on: from the policy for all tracks, and from nothing, on the same starts.

    slipstream train racing-random-tracks
    python benchmarks/specialists.py runs/racing-random-tracks --tracks 20 --json specialists.json

Tracks are drawn from seeds that no training has, with 5 to 8 gates, and written as files, as a person would. Seconds
are wall time of the whole training, set-up included; the program of the first track of a length is compiled and stays
in the cache for the next ones, so compiling is told apart.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from slipstream.core.rng import Rng
from slipstream.experiment.registry import presets
from slipstream.pipeline import stages, training
from slipstream.runs.run import Run
from slipstream.tasks.racing import GeneratedTrack
from slipstream.tasks.racing.track import OUTER

SEED = 77_000_003


def write_track(folder, number):
    """A generated track as a file of gates."""
    gates, _ = GeneratedTrack(5 + number % 4).draw(Rng.from_seed(SEED, number))
    rows = [
        {
            "x": round(float(gate.center.x), 3),
            "y": round(float(gate.center.y), 3),
            "height": round(max(float(gate.center.z) - OUTER / 2, 0.0), 3),
            "heading_deg": round(float(np.degrees(np.arctan2(gate.sin, gate.cos))), 2),
        }
        for gate in gates
    ]
    path = folder / f"track{number}.json"
    path.write_text(json.dumps({"gates": rows}))
    return path


def trained(folder, path, steps, generalist=None):
    """A training on one track: its score on 512 unseen starts, and seconds of wall time and of compiling."""
    preset = presets()["racing"]
    experiment = replace(preset, task=replace(preset.task, track=str(path)), steps=steps)
    began = time.perf_counter()
    said = []
    run = Run.create(folder, training.prepared(experiment, generalist))
    training.run_training(run, say=said.append)
    seconds = time.perf_counter() - began
    compiling = next(float(text.split()[2]) for text in said if text.startswith("compiled in"))
    summary = stages.evaluate(run, worlds=512)
    return {
        "success": summary["success_rate"],
        "lap": summary["lap_time_mean"],
        "seconds": round(seconds - compiling, 1),
        "compiling": compiling,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generalist", type=Path)
    parser.add_argument("--tracks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2_000_000, help="of a specialist's training")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    training.configure(presets()["racing"])
    jax.config.update("jax_platforms", "cpu")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.tracks):
            path = write_track(Path(folder), number)
            special = trained(Path(folder) / f"special{number}", path, options.steps, options.generalist)
            scratch = trained(Path(folder) / f"scratch{number}", path, presets()["racing"].steps)
            rows.append({"track": number, "specialist": special, "from_nothing": scratch})
            print(json.dumps(rows[-1]), flush=True)
    ratios = [row["specialist"]["lap"] / row["from_nothing"]["lap"] for row in rows]
    print(f"success: lowest {min(row['specialist']['success'] for row in rows):.3f}, "
          f"mean {np.mean([row['specialist']['success'] for row in rows]):.4f}; "
          f"lap over one from nothing: mean {np.mean(ratios):.3f}, largest {max(ratios):.3f}; "
          f"seconds: largest {max(row['specialist']['seconds'] for row in rows)}")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
