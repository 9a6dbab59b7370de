"""The training of an experiment in a run directory: chunks on the device, and between them what the host has to do."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from . import device
from .experiment import Experiment
from .learn.trainer import Trainer
from .run import Run

KEEP = 2
"""Checkpoints that stay besides the best."""


class TrainingError(Exception):
    """A training that must not go on, and what is left of it."""


@dataclass(frozen=True)
class Look:
    """What the host sees between two chunks."""

    step: int
    steps: int
    seconds: float
    """Of training in all, with compiling and earlier sittings."""
    rate: float
    """Steps a second since this sitting's first chunk."""
    metrics: dict[str, float]

    @property
    def left(self) -> float:
        """Seconds to go, as far as one can tell."""
        return (self.steps - self.step) / self.rate if self.rate else math.nan


def trainer_of(experiment: Experiment[Any, Any], chunk_length: int = 8) -> Trainer:
    """The experiment on this machine's devices."""
    mesh = device.mesh(experiment.devices or None)
    chunk_length = min(chunk_length, experiment.updates)
    updates = -(-experiment.updates // chunk_length) * chunk_length
    return Trainer(experiment.task, experiment.learner, mesh, updates, experiment.seeds, chunk_length)


def train(
    run: Run,
    resume: bool = False,
    watch: Callable[[Look], None] = lambda look: None,
    say: Callable[[str], None] = lambda text: None,
    save_seconds: float = 20.0,
    stop: Callable[[], bool] = lambda: False,
) -> Look:
    """Train to the end of the experiment's steps, or until `stop` says so.

    Whatever happens, the newest checkpoint is whole, and going on from it gives bit for bit the training
    that was not interrupted.
    """
    began = time.perf_counter()
    experiment = run.experiment
    trainer = trainer_of(experiment)
    check_memory(trainer)
    chunk_steps = trainer.chunk_length * experiment.learner.samples
    total = trainer.updates * experiment.learner.samples
    step, before = 0, 0.0
    if resume and run.steps:
        step, state, complaints = run.load_newest(trainer.shape)
        for complaint in complaints:
            say(complaint)
        state = jax.device_put(state, trainer.shardings)
        before = run.elapsed(step)
        say(f"going on from step {step:,}")
    else:
        state = begun(trainer, experiment)
    run.keep_metrics(step)
    say("compiling")
    chunk = trainer.compile()
    say(f"compiled in {chunk.seconds:.1f} s for {trainer.mesh.size} device(s), {chunk.memory / 1e6:.0f} MB each")

    first = first_step = saved = saved_step = None
    pause = save_seconds
    look = Look(step, total, before, 0.0, {})
    while step < total:
        state, metrics, tally = chunk(state)
        metrics = readable(*jax.device_get((metrics, tally)), experiment.seeds)
        step += chunk_steps
        now = time.perf_counter()
        if first is None:
            first, first_step, saved = now, step, now
        rate = (step - first_step) / (now - first) if now > first and first_step is not None else 0.0
        seconds = before + now - began
        look = Look(step, total, seconds, rate, metrics)
        refuse_nan(metrics, step, run)
        run.log({"step": step, "seconds": round(seconds, 3), "steps_per_second": round(rate, 1), **metrics})
        watch(look)
        done, stopped = step >= total, stop()
        if done or stopped or now - (saved or now) >= pause:
            skill = metrics.get("success", metrics.get("score", metrics["reward"]))
            run.save(step, state, keep=KEEP, seconds=seconds, skill=None if math.isnan(skill) else skill)
            saved, saved_step = time.perf_counter(), step
            # A large replay takes a while to store: a few hundredths of the time go into that, and at most minutes are
            # lost in a crash.
            pause = max(save_seconds, min(30.0 * (saved - now), 15.0 * save_seconds))
        if stopped:
            break
    if saved_step is None and not run.steps:
        run.save(step, state, keep=KEEP, seconds=look.seconds, skill=None)
    return look


def check_memory(trainer: Trainer) -> None:
    """Refuse a training whose state does not fit into what is free, before any of it is made."""
    needed = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(trainer.shape))
    free = device.free_memory()
    if free is not None and needed > 0.9 * free:
        raise TrainingError(
            f"this training keeps {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free. "
            "Set --learner.capacity (rows of the replay) or --learner.worlds lower."
        )


def begun(trainer: Trainer, experiment: Experiment[Any, Any]) -> Any:
    """The training state at step 0: with weights of its own, or with those of the run it comes from."""
    state = trainer.start(experiment.seed)
    if not experiment.origin:
        return state
    _, policy = Run.open(Path(experiment.origin)).load(trainer.shape.policy, "last", prefix=".policy")
    state = replace(state, policy=jax.device_put(policy, trainer.shardings.policy))
    if not hasattr(state, "target"):
        return state
    # What it is compared with begins there, too: as a copy, for both are written into.
    return replace(state, target=jax.device_put(jax.tree.map(np.copy, policy), trainer.shardings.target))


def readable(metrics: dict[str, Any], tally: Any, seeds: int) -> dict[str, float]:
    """Plain numbers: means over the chunk, and with several seeds over them, with the spread beside."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {**metrics, **tally.means()}
    if seeds == 1:
        return {name: float(value) for name, value in values.items()}
    flat = {}
    for name, value in values.items():
        known = value[np.isfinite(value)]
        flat[name] = float(np.mean(known)) if known.size else math.nan
        flat[f"{name}_spread"] = float(np.std(known)) if known.size else math.nan
    return flat


def refuse_nan(metrics: dict[str, float], step: int, run: Run) -> None:
    """Stop at the first quantity that is no number: weights that follow from it are worth nothing."""
    for name in ("loss", "gradient", "reward", "value_loss"):
        if name in metrics and not math.isfinite(metrics[name]):
            last = (
                f"The last good checkpoint is step {run.steps[-1]:,}." if run.steps else "There is no checkpoint yet."
            )
            raise TrainingError(
                f"training stopped at step {step:,}: {name} is {metrics[name]}. {last} "
                "A smaller --learner.rate or --learner.gradient-norm usually helps."
            )
