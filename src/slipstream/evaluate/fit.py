"""Tuning a fast model to a plant, or to a flight log: by gradient through the model, over many short shots.

A flight is cut into shots, each with a start of its own that is fitted too, and the ends of shots are drawn to the
starts of the next. So a long flight gives a smooth loss, and what was held back is then flown whole by the tuned model,
from its first moment.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ..core.geometry import Vec3
from ..core.task import FittableTask, QuadrotorTask
from ..dynamics.identification import FitModel
from ..dynamics.px4_controller import Px4Controller
from ..dynamics.recording import Recording
from ..dynamics.velocity_drone import VelocityDroneState
from ..experiment.experiment import Experiment
from ..learn.losses import huber
from ..plants.plant import Plant, PlantError
from ..plants.px4.log import from_log
from ..runs.files import json_text, write_text
from .excitation import FreeFlight, excitation, record

# Fitting

HUBER_DELTA = 0.3
"""Errors beyond this count straight and no longer by their square: one bad stretch does not decide."""


def simulate(model: FitModel, parameters: dict[str, Any], start: Any, commands: Any) -> tuple[Any, Array]:
    """One flight of the model from one state on: its end, and what is seen at every step."""

    def tick(state: Any, command: Any) -> tuple[Any, Array]:
        after = model.step(parameters, state, command)
        return after, model.predicted(after)

    return jax.lax.scan(tick, start, commands)


def error(model: FitModel, parameters: dict[str, float], recording: Recording, columns: slice = slice(0, 3)) -> float:
    """Root mean square of the vector of some columns over whole flights, each flown from its first moment."""
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))
    run = jax.jit(jax.vmap(partial(simulate, model, {k: jnp.float32(v) for k, v in parameters.items()})))
    off = np.asarray(run(start, jnp.asarray(recording.commands))[1]) - model.measured(recording)[:, 1:]
    return float(np.sqrt(np.mean(np.sum(off[..., columns] ** 2, -1))))


@dataclass(frozen=True)
class Fit:
    """What was found."""

    parameters: dict[str, float]
    relative_error: dict[str, float]
    """relative standard error of each"""
    between_flight_std: dict[str, float]
    """relative difference between flights: what training should vary"""
    before: float
    """held-out error of the untuned model"""
    after: float
    steps_before: float
    """the same for those held-out flights that are steps along the ground; NaN for a log, which has none"""
    steps_after: float
    source: str
    flights: int
    held_out: int
    losses: list[float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def fit(
    model: FitModel,
    recording: Recording,
    shot: float = 3.0,
    iterations: int = 400,
    rate: float = 0.03,
    watch: Callable[[int, int], None] = lambda done, all: None,
    steps: Recording | None = None,
) -> Fit:
    """Tune on three quarters of the flights; the rest, and `steps`, are held back for the errors that are told."""
    if recording.flights < 2:
        raise PlantError("at least 2 flights are needed: one to learn from and one to be held to")
    held = max(1, recording.flights // 4)
    learn, test = recording.part(slice(held, None)), recording.part(slice(0, held))
    length = min(max(2, round(shot / recording.dt)), learn.commands.shape[1])
    shots = learn.commands.shape[1] // length
    cut = lambda x: jnp.asarray(x)[:, : shots * length].reshape(x.shape[0] * shots, length, *x.shape[2:])  # noqa: E731
    commands, wanted = cut(learn.commands), cut(model.measured(learn)[:, 1:])
    starts = jax.tree.map(lambda x: x[:, : shots * length : length].reshape(-1), model.start(learn))
    begin = {name: math.log(value) for name, value in model.initial.items()}

    def loss(variables: tuple[dict[str, Array], Any]) -> Array:
        logs, starts = variables
        parameters = {k: jnp.exp(v) for k, v in logs.items()}
        ends, seen = jax.vmap(partial(simulate, model, parameters))(starts, commands)
        fitted = HUBER_DELTA * jnp.mean(jnp.sum(huber(seen - wanted, HUBER_DELTA), -1))
        gaps = jnp.float32(0.0)
        if shots > 1:
            for end, start in zip(jax.tree.leaves(ends), jax.tree.leaves(starts), strict=True):
                end, start = end.reshape(-1, shots), start.reshape(-1, shots)
                gaps = gaps + HUBER_DELTA * jnp.mean(huber((end[:, :-1] - start[:, 1:]) * 0.3, HUBER_DELTA))
        return fitted + gaps / length

    schedule = optax.cosine_decay_schedule(rate, iterations, 0.02)
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))
    variables = ({k: jnp.float32(v) for k, v in begin.items()}, jax.tree.map(jnp.float32, starts))
    memory = optimizer.init(variables)

    @jax.jit
    def improve(variables: Any, memory: Any) -> tuple[Any, Any, Array]:
        value, slope = jax.value_and_grad(loss)(variables)
        slope = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), slope)
        updates, memory = optimizer.update(slope, memory, variables)
        return optax.apply_updates(variables, updates), memory, value

    losses = []
    for k in range(iterations):
        variables, memory, value = improve(variables, memory)
        if k % 20 == 0 or k == iterations - 1:
            losses.append(float(value))
            if not math.isfinite(losses[-1]):
                raise PlantError("the fit diverged; record gentler flights, or more of them")
            watch(k + 1, iterations)
    logs = variables[0]
    parameters = {k: float(jnp.exp(v)) for k, v in logs.items()}
    sigma, spread = uncertainty(model, logs, learn)
    return Fit(
        parameters, sigma, spread, error(model, model.nominal(), test), error(model, parameters, test),
        math.nan if steps is None else error(model, model.nominal(), steps),
        math.nan if steps is None else error(model, parameters, steps),
        recording.source, recording.flights, held, losses,
    )  # fmt: skip


def uncertainty(
    model: FitModel, logs: dict[str, Array], recording: Recording
) -> tuple[dict[str, float], dict[str, float]]:
    """Standard errors of the parameters, and how much they differ from flight to flight; both relative.

    Errors along a flight hang together, so a flight counts as one observation (the sandwich estimate by flights).
    """
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))
    commands, wanted = jnp.asarray(recording.commands), jnp.asarray(model.measured(recording)[:, 1:])
    names = list(logs)

    def residuals(theta: Array, start: Any, commands: Any, wanted: Any) -> Array:
        parameters = {k: jnp.exp(theta[i]) for i, k in enumerate(names)}
        return (simulate(model, parameters, start, commands)[1] - wanted).reshape(-1)

    theta = jnp.stack([logs[k] for k in names])
    slopes = jax.jit(jax.vmap(jax.jacfwd(residuals), in_axes=(None, 0, 0, 0)))(theta, start, commands, wanted)
    off = jax.jit(jax.vmap(residuals, in_axes=(None, 0, 0, 0)))(theta, start, commands, wanted)
    slopes, off = np.asarray(slopes, float), np.asarray(off, float)
    weight = np.minimum(1.0, HUBER_DELTA / np.maximum(np.abs(off), 1e-9))
    curvature = np.einsum("erp,er,erq->epq", slopes, weight, slopes)
    pull = np.einsum("erp,er->ep", slopes, weight * off)
    total = curvature.sum(0)
    ridge = 1e-6 * np.trace(total) / len(names) * np.eye(len(names))
    inverse = np.linalg.inv(total + ridge)
    count = len(pull)
    covariance = inverse @ (pull.T @ pull) @ inverse * count / max(count - 1, 1)
    # One Newton step from all flights' answer towards each flight's own, held back where that flight says little.
    own = np.stack([-np.linalg.solve(c + 0.1 * total / count + ridge, p) for c, p in zip(curvature, pull, strict=True)])
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    spread = np.std(own, axis=0) if count > 1 else sigma
    return dict(zip(names, sigma.tolist(), strict=True)), dict(zip(names, spread.tolist(), strict=True))


def measure_limits(plant: Plant | None, task: FreeFlight, seconds: float = 30.0) -> dict[str, float]:
    """How fast a plant flies along the ground, up and down, and turns, if it is asked for more than it gives.

    Long enough for what it is slow to make good.
    """
    asked = np.array([[20.0, 0, 0, 0], [0, 0, 10.0, 0], [0, 0, -10.0, 0], [0, 0, 0, 6.0]], np.float32)
    commands = np.repeat(asked[:, None], round(seconds * task.control_rate), 1)
    done = record(plant, task, commands)
    late = slice(-round(2.0 * task.control_rate), None)
    across = np.linalg.norm(done.velocity[0, late, :2], axis=-1)
    return {
        "max_speed": float(np.median(across)),
        "max_climb_rate": float(np.median(done.velocity[1, late, 2])),
        "max_sink_rate": float(-np.median(done.velocity[2, late, 2])),
        "max_yaw_rate": float(min(np.median(done.yaw_rate[3, late]), 6.0)),
    }


# The whole of it


def fit_experiment(
    experiment: Experiment[Any, Any],
    plant: Plant | None = None,
    log: Path | None = None,
    flights: int = 24,
    seconds: float = 20.0,
    seed: int = 0,
    version: str = "1.17",
    watch: Callable[[str, int, int], None] = lambda what, done, all: None,
) -> tuple[Experiment[Any, Any], Fit]:
    """The experiment on a fast model that answers as the plant does, or as the vehicle of a log did."""
    task = experiment.task
    if not isinstance(task, FittableTask) or not isinstance(task, QuadrotorTask):
        raise PlantError(f"{experiment.task.description} has no model that can be fitted")
    model, vehicle = task.fit_model(), task.airframe
    rate = round(1.0 / model.dt)
    free = FreeFlight(vehicle, model.command, rate, Px4Controller.of_version(version).tuned_for(vehicle))
    steps, limits = None, {}
    if log is not None:
        if not model.cruises:
            raise PlantError("a flight log holds velocities, and this task's model is fitted by body rates")
        recording = from_log(log, rate, seconds)
    else:
        seconds = min(seconds, model.max_seconds)
        commands = excitation(model.command, flights, seconds, rate, vehicle, seed)
        recording = record(plant, free, commands, partial(watch, "flying"))
        if model.cruises:
            plain = excitation(model.command, max(3, flights // 2), seconds, rate, vehicle, seed + 1)[::3].copy()
            plain[..., 2:] = 0.0
            steps = record(plant, free, plain, partial(watch, "flying steps"))
            limits = measure_limits(plant, free)
    found = fit(model, recording, model.shot, watch=partial(watch, "fitting"), steps=steps)
    variation = {name: float(np.clip(std, 0.05, 0.3)) for name, std in found.between_flight_std.items()}
    if limits:
        limits["max_speed"] = commanded_speed(model, found.parameters, limits["max_speed"])
        limits = {name: round(0.99 * value, 2) for name, value in limits.items()}
    return replace(experiment, task=task.with_fit(found.parameters, variation, limits)), found


def commanded_speed(model: FitModel, parameters: dict[str, float], reached: float, seconds: float = 30.0) -> float:
    """The speed one has to command the fitted model, so that it gets as fast as the plant did."""
    steps = round(seconds / model.dt)
    zero = jnp.float32(0.0)
    start = VelocityDroneState.at(Vec3(zero, zero, zero), zero)
    held = {k: jnp.float32(v) for k, v in parameters.items()}

    @jax.jit
    def fastest(speed: Any) -> Array:
        rows = jnp.tile(jnp.stack([speed, zero, zero, zero]), (steps, 1))
        return simulate(model, held, start, rows)[1][-1, 0]

    low, high = reached, 1.5 * reached
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(fastest(jnp.float32(middle))) < reached else (low, middle)
    return high


def write(path: Path, experiment: Experiment[Any, Any], found: Fit) -> None:
    """The preset that `train` takes, with how it was found beside it."""
    write_text(path, json_text(experiment.as_dict() | {"fitted": found.as_dict()}))
