"""CPU-seconds of training until a policy races with skill: SHAC beside PPO, turn about, one core.

    python benchmarks/time_to_skill.py --json skill.json

Skill is 95 % of 512 starts with a finished first lap, and 6.0 s a lap or less. Each training is scored by the average
of the weights at twenty moments (by the current weights before averaging begins), on starts that no training and
no choice of settings used. Compiling and scoring are not counted. `first` is the first moment with skill, `kept` the
first from which on it is never lost, `end` the figures at the end: a training that has skill and loses it has only
`first`. `--presets` names other pairs.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from slipstream.core import device

STARTS, SEED = 512, 31_000_003
MOMENTS = 20


def score(runner, policy):
    """Success rate and mean lap of a policy."""
    from slipstream.plants.fast import FastPlant

    pilot = replace(runner.pilot, policy=policy)
    metrics = replace(runner, pilot=pilot).run(FastPlant(), np.arange(STARTS), SEED).metrics
    return float(np.mean(metrics["success"])), float(np.nanmean(metrics["lap_time"]))


def trained(experiment):
    """CPU-seconds, success and lap at each moment of a training."""
    import jax

    from slipstream.evaluation.pilot import trained_pilot
    from slipstream.evaluation.runner import EpisodeRunner
    from slipstream.runs.train import trainer_of

    trainer = trainer_of(experiment)
    chunk, state = trainer.compile(), trainer.start(experiment.seed)
    task = experiment.task.for_evaluation()
    runner = EpisodeRunner(task, trained_pilot(task, jax.device_get(state.policy)), keep=1)
    chunks, spent, curve = trainer.updates // trainer.chunk_length, 0.0, []
    for k in range(chunks):
        began = time.process_time()
        state, *_ = chunk(state)
        jax.block_until_ready(state)
        spent += time.process_time() - began
        if (k + 1) * MOMENTS // chunks > k * MOMENTS // chunks:
            curve.append((round(spent, 2), *score(runner, jax.device_get(state.average))))
    return curve


def summary(curve):
    skilled = [success >= 0.95 and lap <= 6.0 for _, success, lap in curve]
    last_bad = max((k for k, good in enumerate(skilled) if not good), default=-1)
    return {
        "first": next((row[0] for row, good in zip(curve, skilled, strict=True) if good), None),
        "kept": curve[last_bad + 1][0] if last_bad + 1 < len(curve) else None,
        "end": {"cpu_seconds": curve[-1][0], "success": round(curve[-1][1], 4), "lap": round(curve[-1][2], 3)},
        "curve": curve,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["racing", "racing-ppo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device.configure(1, wide_vectors=True)

    from slipstream.experiment.registry import presets

    rows = {}
    for seed in options.seeds:
        for name in options.presets:
            found = summary(trained(replace(presets()[name], seed=seed, devices=1)))
            rows[f"{name} {seed}"] = found
            print(name, seed, {key: value for key, value in found.items() if key != "curve"}, flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
