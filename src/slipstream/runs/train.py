"""The training of an experiment in a run directory: chunks on the device, and between them what the host has to do."""

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..core import device
from ..core.task import CurriculumTask
from ..experiment.experiment import Experiment
from ..learn.compiled import Compiled, Trainer
from ..learn.rollout import EpisodeStats
from ..learn.teacher import Teacher
from .profile import Looks
from .run import Run
from .utilization import NAMES as UTILIZATION
from .utilization import Utilization

KEEP = 2
"""Checkpoints that stay besides the best."""
CHUNK = 8
"""Updates between two looks of the host."""
PROFILED_SECONDS = 30.0
"""A training must take so long for its parts to be timed: the profiler costs about ten seconds."""
LESS = "Set --learner.worlds or --learner.capacity (rows of the replay) lower."
TOLD = ("step", "seconds", "steps_per_second", *UTILIZATION)
"""What a line of metrics says besides metrics."""


class TrainingError(Exception):
    """A training that must not go on, and what is left of it."""


@dataclass(frozen=True)
class TrainingStatus:
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


def updates_of(experiment: Experiment[Any, Any], chunk_length: int = CHUNK) -> tuple[int, int]:
    """Updates of the whole training, in whole chunks, and those of a chunk."""
    chunk_length = min(chunk_length, experiment.updates)
    return -(-experiment.updates // chunk_length) * chunk_length, chunk_length


def steps_of(experiment: Experiment[Any, Any]) -> int:
    """Steps of the whole training."""
    return updates_of(experiment)[0] * experiment.learner.steps_per_update


def trainer_of(experiment: Experiment[Any, Any], chunk_length: int = CHUNK, elsewhere: bool = False) -> Trainer:
    """The experiment on this machine's devices; `elsewhere` if it was begun on a machine that may have had others."""
    updates, chunk_length = updates_of(experiment, chunk_length)
    mesh = device.mesh(devices_for(experiment, elsewhere))
    return Trainer(
        experiment.task, experiment.learner, mesh, updates, experiment.seeds, chunk_length, experiment.average
    )


def devices_for(experiment: Experiment[Any, Any], elsewhere: bool = False) -> int:
    """As many devices as were asked for; without that, the largest number among which the worlds can be divided."""
    have, learner = len(jax.devices()), experiment.learner
    if experiment.devices and not (elsewhere and experiment.devices > have):
        return experiment.devices

    def divides(count: int) -> bool:
        try:
            learner.check(experiment.task, count)
        except ValueError:
            return False
        return learner.worlds % count == 0

    return next((count for count in range(have, 1, -1) if divides(count)), 1)


def train(
    run: Run,
    resume: bool = False,
    watch: Callable[[TrainingStatus], None] = lambda look: None,
    say: Callable[[str], None] = lambda text: None,
    save_seconds: float = 20.0,
    stop: Callable[[], bool] = lambda: False,
) -> TrainingStatus:
    """Train to the end of the experiment's steps, or until `stop` says so.

    Whatever happens, the newest checkpoint is whole, and going on from it gives bit for bit the training
    that was not interrupted.
    """
    with run.locked(), out_of_memory():
        return _train(run, resume, watch, say, save_seconds, stop)


def _train(
    run: Run,
    resume: bool,
    watch: Callable[[TrainingStatus], None],
    say: Callable[[str], None],
    save_seconds: float,
    stop: Callable[[], bool],
) -> TrainingStatus:
    began = time.perf_counter()
    experiment = run.experiment
    trainer = trainer_of(experiment, elsewhere=resume)
    chunk_steps = trainer.chunk_length * experiment.learner.steps_per_update
    total = trainer.updates * experiment.learner.steps_per_update
    if resume and run.checkpoint_steps and run.checkpoint_steps[-1] >= total:
        return finished(run, total)
    chunk = compile_chunk(trainer, say)
    step, before, state = start_or_resume(run, trainer, resume, say)
    run.truncate_metrics(step)
    if experiment.teacher is not None and not run.checkpoint_steps:
        # With the teacher's weights: from here on the run needs no other folder.
        run.save(step, state, seconds=before, selection_metric=None, devices=trainer.mesh.size)
    first = first_step = saved = saved_step = None
    pause, chunk_seconds = save_seconds, 0.0
    looks = Looks(chunk.program.as_text)
    utilization = Utilization()
    spent, selection = time.process_time(), SelectionMetric(experiment.task, step / total)
    look = TrainingStatus(step, total, before, 0.0, {})
    while step < total:
        started = time.perf_counter()
        state, metrics, stats = chunk(state)
        if first is not None and chunk_seconds * total / chunk_steps > PROFILED_SECONDS:
            looks.take(chunk_seconds)
        metrics, stats = jax.device_get((metrics, stats))
        step += chunk_steps
        now = time.perf_counter()
        if first is None:
            first, first_step, saved, spent = now, step, now, time.process_time()
        chunk_seconds = now - started
        rate = (step - first_step) / (now - first) if now > first and first_step is not None else 0.0
        seconds = before + now - began
        refuse_nan(metrics, step, run)
        selection = selection.counting(stats)
        metrics = to_scalars(metrics, stats, experiment.seeds)
        look = TrainingStatus(step, total, seconds, rate, metrics)
        told = {"step": step, "seconds": round(seconds, 3), "steps_per_second": round(rate, 1)}
        run.log(told | utilization.look() | metrics)
        watch(look)
        done, stopped = step >= total, stop()
        if done or stopped or now - (saved or now) >= pause:
            facts = {"seconds": seconds, "selection_metric": selection.value(metrics), "devices": trainer.mesh.size}
            run.save(step, state, keep=KEEP, **facts)
            selection = SelectionMetric(experiment.task, step / total)
            saved, saved_step = time.perf_counter(), step
            # A large replay takes a while to store: a few hundredths of the time go into that, and at most minutes are
            # lost in a crash.
            pause = max(save_seconds, min(30.0 * (saved - now), 15.0 * save_seconds))
        if stopped:
            break
    if saved_step is None and not run.checkpoint_steps:
        run.save(step, state, keep=KEEP, seconds=look.seconds, selection_metric=None, devices=trainer.mesh.size)
    if first_step is not None and step > first_step:
        agents = experiment.task.spec.agents * experiment.seeds
        cpu = max(time.process_time() - spent, 1e-9)
        run.write_profile(
            {
                "samples_per_second": round(look.rate * agents),
                "samples_per_cpu_second": round((step - first_step) * agents / cpu),
                "devices": trainer.mesh.size,
                "share": looks.share,
            }
        )
    return look


def compile_chunk(trainer: Trainer, say: Callable[[str], None]) -> Compiled:
    """The program of a chunk; refused before and after compiling if it does not fit into memory."""
    check_memory(trainer)
    say("compiling")
    chunk = trainer.compile()
    say(f"compiled in {chunk.seconds:.1f} s for {trainer.mesh.size} device(s), {chunk.memory / 1e6:.0f} MB each")
    refuse_more(chunk.memory * trainer.mesh.size, "it and what it computes on the way take")
    return chunk


def start_or_resume(run: Run, trainer: Trainer, resume: bool, say: Callable[[str], None]) -> tuple[int, float, PyTree]:
    """The step, the seconds of training before it, and the training state: of the newest checkpoint, or of step 0."""
    if not resume or not run.checkpoint_steps:
        return 0, 0.0, initial_state(trainer, run.experiment)
    step, state, complaints = run.load_newest(trainer.shape)
    for complaint in complaints:
        say(complaint)
    facts = run.facts(step)
    say(f"going on from step {step:,}{other_devices(facts.get('devices'), trainer.mesh.size)}")
    return step, float(facts.get("seconds", 0.0)), jax.device_put(state, trainer.shardings)


def finished(run: Run, total: int) -> TrainingStatus:
    """What is known of a training that needs nothing more."""
    rows = run.metrics
    last = rows[-1] if rows else {}
    known = {name: math.nan if value is None else value for name, value in last.items() if name not in TOLD}
    seconds, rate = (float(last.get(name) or 0.0) for name in ("seconds", "steps_per_second"))
    return TrainingStatus(run.checkpoint_steps[-1], total, seconds, rate, known)


def other_devices(before: int | None, now: int) -> str:
    """What to say of a training that goes on with another number of devices."""
    if before is None or before == now:
        return ""
    return f", begun on {before} device(s) and now on {now}: sums are rounded otherwise, so last bits may differ"


@dataclass(frozen=True)
class SelectionMetric:
    """How well the policy does since the last checkpoint: by this the best one is chosen."""

    task: Any
    share: float
    """Of the training, at that checkpoint."""
    stats: EpisodeStats | None = None

    def counting(self, stats: EpisodeStats) -> "SelectionMetric":
        return replace(self, stats=stats if self.stats is None else jax.tree.map(np.add, self.stats, stats))

    def value(self, metrics: dict[str, float]) -> float | None:
        """Success, or else the return, or else the reward; None if no episode told, or the worlds were easier ones."""
        if isinstance(self.task, CurriculumTask):
            now, then = (self.task.at_progress(jnp.float32(share)) for share in (self.share, 1.0))
            if now != then:
                return None
        with np.errstate(divide="ignore", invalid="ignore"):
            means = {} if self.stats is None else self.stats.means()
        known = np.asarray(means.get("success", means.get("episode_return", metrics["step_reward"])))
        return float(np.mean(known)) if np.all(np.isfinite(known)) else None


def check_memory(trainer: Trainer) -> None:
    """Refuse a training that does not fit into what is free, before any of it is made or compiled."""
    sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(trainer.shape)]
    spec = trainer.task.spec
    # What a rollout brings is computed on the way, once for every seed in turn: observations, and eight numbers more.
    rows = trainer.learner.steps_per_update * spec.agents * (spec.observation + spec.privileged_size + 8) * 4
    images = math.prod(spec.image_shape or (0,)) * trainer.learner.steps_per_update * spec.agents // spec.image_interval
    refuse_more(sum(sizes) + rows + images, "it keeps and collects at least")
    host = device.host_memory()
    if jax.default_backend() != "cpu" and host is not None and max(sizes) > 0.9 * host:
        raise TrainingError(
            f"checkpoints of this training pass through {max(sizes) / 1e9:.1f} GB of the host's memory, "
            f"of which {host / 1e9:.1f} GB are free. {LESS}"
        )


def refuse_more(needed: float, what: str) -> None:
    """Refuse what does not fit into nine tenths of the memory that is free."""
    free = device.free_memory()
    if free is not None and needed > 0.9 * free:
        raise TrainingError(
            f"this training does not fit: {what} {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free. {LESS}"
        )


@contextlib.contextmanager
def out_of_memory() -> Iterator[None]:
    """Whatever runs out of memory says so in one line."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        text = lack_of_memory(error)
        if text is None:
            raise
        raise TrainingError(text) from error


def lack_of_memory(error: Exception) -> str | None:
    """What to say of an error if it is that memory ran out; None if it is another."""
    if not isinstance(error, MemoryError) and not re.search("RESOURCE_EXHAUSTED|[Oo]ut of memory", str(error)):
        return None
    told = str(error).splitlines()
    return f"the memory ran out{f' ({told[0]})' if told else ''}. {LESS}"


def initial_state(trainer: Trainer, experiment: Experiment[Any, Any]) -> Any:
    """The training state at step 0: with weights of its own, or with those of the run it comes from."""
    state = trainer.start(experiment.seed)
    if experiment.teacher is not None:
        weights = teacher_weights(experiment.teacher, experiment.seeds)
        placed = jax.device_put(weights, trainer.shardings.teacher.policy)
        state = replace(state, teacher=replace(state.teacher, policy=placed))
    if not experiment.init_from:
        return state
    _, policy = Run.open(Path(experiment.init_from)).load_policy(trainer.shape.policy)
    # What it is compared with and averaged to begins there, too: as copies, for all are written into.
    names = [name for name in ("policy", "target", "average") if getattr(state, name, None) is not None]
    placed = {name: jax.device_put(jax.tree.map(np.copy, policy), getattr(trainer.shardings, name)) for name in names}
    return replace(state, **placed)


def teacher_weights(teacher: Teacher, seeds: int) -> Any:
    """The policy of a teacher's run, for every seed of its student."""
    shape = jax.eval_shape(lambda: teacher.learner.policy(teacher.task.spec))
    if teacher.seeds > 1:
        shape = jax.tree.map(lambda x: jax.ShapeDtypeStruct((teacher.seeds, *x.shape), x.dtype), shape)
    _, policy = Run.open(Path(teacher.run)).load_policy(shape)
    if teacher.seeds == seeds:
        return policy
    return jax.tree.map(lambda x: np.broadcast_to(x, (seeds, *x.shape)), policy)


def to_scalars(metrics: dict[str, Any], stats: EpisodeStats, seeds: int) -> dict[str, float]:
    """Plain numbers: means over the chunk, and with several seeds over them, with the spread beside."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {**metrics, **stats.means()}
    if seeds == 1:
        return {name: float(value) for name, value in values.items()}
    flat = {}
    for name, value in values.items():
        known = value[np.isfinite(value)]
        flat[name] = float(np.mean(known)) if known.size else math.nan
        flat[f"{name}_std"] = float(np.std(known)) if known.size else math.nan
    return flat


def refuse_nan(metrics: dict[str, Any], step: int, run: Run) -> None:
    """Stop at the first quantity that is no number, of any seed: weights that follow from it are worth nothing."""
    for name in ("loss", "grad_norm", "step_reward", "value_loss"):
        values = np.atleast_1d(metrics.get(name, 0.0))
        bad = np.flatnonzero(~np.isfinite(values))
        if not bad.size:
            continue
        last = (
            f"The last good checkpoint is step {run.checkpoint_steps[-1]:,}."
            if run.checkpoint_steps
            else "There is no checkpoint yet."
        )
        which = f" of seed {run.experiment.seed + int(bad[0])}" if values.size > 1 else ""
        raise TrainingError(
            f"training stopped at step {step:,}: {name}{which} is {values[bad[0]]}. {last} "
            "A smaller --learner.learning-rate or --learner.max-grad-norm usually helps."
        )
