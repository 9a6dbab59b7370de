"""Fits factors of a fast model to probes recorded on a plant, by the cross-entropy method.

Contacts make a trajectory discontinuous in its parameters, so nothing is differentiated: every candidate runs all
probes on the device, some thousand worlds at a time, and the next candidates are drawn around the best.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..core.rng import Rng
from ..core.task import ProbedTask
from ..plants.plant import Plant
from .fit import Fit

CANDIDATES, ELITES = 48, 8
"""Candidates of a generation, and how many of them the next one is drawn around."""
WORST = 9.0
"""Largest squared error of an output that counts: where one lifts and the other drops, more says no more."""
SMOOTHING = 0.7
"""Share of the new mean and spread in each generation."""
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Probes:
    """What a plant did: starts, commands and outputs over time, of each probe."""

    starts: PyTree
    commands: PyTree  # probes × steps
    outputs: Float[Array, "probes steps outputs"]

    def __len__(self) -> int:
        return int(self.outputs.shape[0])


def record(task: Any, plant: Plant, count: int, seed: int, watch: Watch) -> Probes:
    """Run the scripts of so many worlds on a plant."""
    task = plant.adapt(task)
    worlds = jnp.arange(count)
    states = jax.jit(jax.vmap(lambda world: task.reset(Rng.from_seed(seed, world))))(worlds)
    scripts = jax.jit(jax.vmap(lambda state, world: task.probe(state, Rng.from_seed(seed + 1, world))))(states, worlds)
    command, judge = jax.jit(jax.vmap(task.command)), jax.jit(jax.vmap(task.judge))
    outputs_of = jax.jit(jax.vmap(task.probe_outputs))
    starts, commands, outputs = states, [], []
    try:
        states = replace(states, body=plant.start(task, states))
        for step in range(scripts.shape[1]):
            commanded, given = command(states, scripts[:, step])
            plant.command(commanded, given)
            body = plant.truth()
            states = judge(commanded, body)
            commands.append(given)
            outputs.append(outputs_of(body))
            watch("probing", step + 1, scripts.shape[1])
    finally:
        plant.close()
    return Probes(starts, jax.tree.map(lambda *x: jnp.stack(x, 1), *commands), jnp.stack(outputs, 1))


def losses(task: Any, probes: Probes) -> Callable[[Float[Array, "parameters"]], Float[Array, "probes"]]:
    """From logarithms of factors to the loss of each probe, on the fast model."""
    names = list(task.factor_ranges())

    def of(logs: Array) -> Array:
        model = task.with_factors({name: jnp.exp(log) for name, log in zip(names, logs, strict=True)})

        def one(start: Any, commands: PyTree, outputs: Array) -> Array:
            def tick(body: Any, row: tuple[PyTree, Array]) -> tuple[Any, Array]:
                command, wanted = row
                body = model.move(replace(start, body=body), command)
                return body, jnp.mean(jnp.minimum((model.probe_outputs(body) - wanted) ** 2, WORST))

            return jnp.mean(jax.lax.scan(tick, start.body, (commands, outputs))[1])

        return jax.vmap(one)(probes.starts, probes.commands, probes.outputs)

    return of


def fit_probes(task: Any, probes: Probes, source: str, watch: Watch, generations: int = 15, seed: int = 0) -> Fit:
    """The factors by which the model does what the plant did; a quarter of the probes is held out."""
    ranges = task.factor_ranges()
    low, high = (np.log([pair[k] for pair in ranges.values()]) for k in (0, 1))
    held = max(1, len(probes) // 4)
    # One program for all: candidates are chosen by what they make of the probes that are not held out.
    score = jax.jit(jax.vmap(losses(task, probes)))
    rng = np.random.default_rng(seed)
    mean, spread = np.zeros(len(ranges)), 0.25 * (high - low)
    history, tried, scored = [], [], []
    for generation in range(generations):
        drawn = np.clip(mean + spread * rng.standard_normal((CANDIDATES, len(ranges))), low, high)
        drawn[0] = np.clip(mean, low, high)
        found = np.asarray(score(jnp.float32(drawn)))[:, held:]
        best = np.argsort(found.mean(1))[:ELITES]
        mean = (1.0 - SMOOTHING) * mean + SMOOTHING * drawn[best].mean(0)
        spread = (1.0 - SMOOTHING) * spread + SMOOTHING * (drawn[best].std(0) + 1e-3)
        history.append(float(found.mean(1)[best[0]]))
        tried.append(drawn)
        scored.append(found)
        watch("fitting", generation + 1, generations)
    error, between = _uncertainty(np.concatenate(tried), np.concatenate(scored), rng)
    names = list(ranges)
    ends = np.zeros((CANDIDATES, len(ranges)))
    ends[1:] = mean
    before, after = np.sqrt(np.asarray(score(jnp.float32(ends)))[:2, :held].mean(1)).tolist()
    return Fit(
        parameters=dict(zip(names, np.exp(mean).tolist(), strict=True)),
        relative_error=dict(zip(names, error.tolist(), strict=True)),
        between_flight_std=dict(zip(names, between.tolist(), strict=True)),
        error_before=before,
        error_after=after,
        step_error_before=math.nan,
        step_error_after=math.nan,
        source=source,
        flights=len(probes),
        held_out=held,
        losses=history,
    )


def _uncertainty(
    tried: Float[np.ndarray, "candidates parameters"], scored: Float[np.ndarray, "candidates probes"], rng: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of what other draws of as many probes, and of an eighth as many, would have chosen."""
    count = scored.shape[1]

    def chosen(size: int) -> np.ndarray:
        rows = []
        for _ in range(60):
            means = scored[:, rng.integers(0, count, size)].mean(1)
            rows.append(tried[np.argsort(means)[:ELITES]].mean(0))
        return np.std(rows, axis=0)

    return chosen(count), chosen(max(1, count // 8))


def fit_probed_experiment(experiment: Any, plant: Plant, probes: int, seed: int, watch: Watch) -> tuple[Any, Fit]:
    """The experiment with its fast model fitted to a plant by probes."""
    task = experiment.task
    assert isinstance(task, ProbedTask)
    probed = task.probe_task()
    recorded = record(probed, plant, probes, seed, watch)
    found = fit_probes(probed, recorded, plant.name, partial(watch))
    variation: Mapping[str, float] = {
        name: float(np.clip(std, 0.05, 0.3)) for name, std in found.between_flight_std.items()
    }
    return replace(experiment, task=task.with_fit(found.parameters, dict(variation), {})), found
