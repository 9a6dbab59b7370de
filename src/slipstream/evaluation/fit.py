"""Fits the parameters of a fast model to a plant or to a flight log, by gradient descent and multiple shooting.

A flight is cut into shots. Each has an initial state that is fitted too, and a penalty on the gap between the end of a
shot and the start of the next; so the loss of a long flight stays smooth. The error is then measured on held-out
flights, each simulated as a whole from its first moment.
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
from jaxtyping import Array, PyTree

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
"""Error from which the Huber loss is linear, so that outliers do not dominate the fit."""


def simulate(model: FitModel, parameters: dict[str, Any], start: PyTree, commands: Array) -> tuple[Any, Array]:
    """The final state of the model after the commands, and its predicted outputs at every step."""

    def tick(state: PyTree, command: Array) -> tuple[Any, Array]:
        after = model.step(parameters, state, command)
        return after, model.predicted(after)

    return jax.lax.scan(tick, start, commands)


def error(model: FitModel, parameters: dict[str, float], recording: Recording, columns: slice = slice(0, 3)) -> float:
    """Root mean square error of some outputs over whole flights, each simulated from its first moment."""
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))
    run = jax.jit(jax.vmap(partial(simulate, model, {k: jnp.float32(v) for k, v in parameters.items()})))
    residual = np.asarray(run(start, jnp.asarray(recording.commands))[1]) - model.measured(recording)[:, 1:]
    return float(np.sqrt(np.mean(np.sum(residual[..., columns] ** 2, -1))))


@dataclass(frozen=True)
class Fit:
    """The result of a fit."""

    parameters: dict[str, float]
    relative_error: dict[str, float]
    """relative standard error of each parameter"""
    between_flight_std: dict[str, float]
    """relative standard deviation of each parameter between flights: how much training should randomize it"""
    error_before: float
    """held-out error of the nominal model"""
    error_after: float
    """held-out error of the fitted model"""
    step_error_before: float
    """error of the nominal model on horizontal velocity steps; NaN for a log"""
    step_error_after: float
    """error of the fitted model on horizontal velocity steps; NaN for a log"""
    source: str
    """plant or log file that the flights come from"""
    flights: int
    """number of all flights"""
    held_out: int
    """number of flights that were not fitted"""
    losses: list[float]
    """loss every 20 iterations"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def fit(
    model: FitModel,
    recording: Recording,
    shot: float = 3.0,
    iterations: int = 400,
    learning_rate: float = 0.03,
    watch: Callable[[int, int], None] = lambda done, total: None,
    steps: Recording | None = None,
) -> Fit:
    """Fit three quarters of the flights; the errors are measured on the others and on `steps`."""
    if recording.flights < 2:
        raise PlantError("a fit needs at least 2 flights: one to fit and one to hold out")
    held = max(1, recording.flights // 4)
    train, test = recording.select(slice(held, None)), recording.select(slice(0, held))
    length = min(max(2, round(shot / recording.dt)), train.commands.shape[1])
    shots = train.commands.shape[1] // length

    def cut(x: np.ndarray) -> Array:
        return jnp.asarray(x)[:, : shots * length].reshape(x.shape[0] * shots, length, *x.shape[2:])

    commands, measured = cut(train.commands), cut(model.measured(train)[:, 1:])
    starts = jax.tree.map(lambda x: x[:, : shots * length : length].reshape(-1), model.start(train))
    initial = {name: math.log(value) for name, value in model.initial.items()}

    def loss(variables: tuple[dict[str, Array], Any]) -> Array:
        logs, starts = variables
        parameters = {k: jnp.exp(v) for k, v in logs.items()}
        ends, predicted = jax.vmap(partial(simulate, model, parameters))(starts, commands)
        misfit = HUBER_DELTA * jnp.mean(jnp.sum(huber(predicted - measured, HUBER_DELTA), -1))
        gaps = jnp.float32(0.0)
        if shots > 1:
            for end, start in zip(jax.tree.leaves(ends), jax.tree.leaves(starts), strict=True):
                end, start = end.reshape(-1, shots), start.reshape(-1, shots)
                gaps = gaps + HUBER_DELTA * jnp.mean(huber((end[:, :-1] - start[:, 1:]) * 0.3, HUBER_DELTA))
        return misfit + gaps / length

    schedule = optax.cosine_decay_schedule(learning_rate, iterations, 0.02)
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))
    variables = ({k: jnp.float32(v) for k, v in initial.items()}, jax.tree.map(jnp.float32, starts))
    optimizer_state = optimizer.init(variables)

    @jax.jit
    def update(variables: PyTree, optimizer_state: optax.OptState) -> tuple[Any, optax.OptState, Array]:
        value, gradient = jax.value_and_grad(loss)(variables)
        gradient = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), gradient)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, variables)
        return optax.apply_updates(variables, updates), optimizer_state, value

    losses = []
    for k in range(iterations):
        variables, optimizer_state, value = update(variables, optimizer_state)
        if k % 20 == 0 or k == iterations - 1:
            losses.append(float(value))
            if not math.isfinite(losses[-1]):
                raise PlantError("the fit diverged; record gentler flights, or more of them")
            watch(k + 1, iterations)
    logs = variables[0]
    parameters = {k: float(jnp.exp(v)) for k, v in logs.items()}
    relative_error, between_flight_std = uncertainty(model, logs, train)
    nominal = model.nominal()
    return Fit(
        parameters=parameters,
        relative_error=relative_error,
        between_flight_std=between_flight_std,
        error_before=error(model, nominal, test),
        error_after=error(model, parameters, test),
        step_error_before=math.nan if steps is None else error(model, nominal, steps),
        step_error_after=math.nan if steps is None else error(model, parameters, steps),
        source=recording.source,
        flights=recording.flights,
        held_out=held,
        losses=losses,
    )


def uncertainty(
    model: FitModel, logs: dict[str, Array], recording: Recording
) -> tuple[dict[str, float], dict[str, float]]:
    """Relative standard errors of the parameters, and their relative standard deviations between flights.

    Errors within a flight are correlated, so each flight is one observation (cluster-robust sandwich estimator).
    """
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))
    commands, measured = jnp.asarray(recording.commands), jnp.asarray(model.measured(recording)[:, 1:])
    names = list(logs)

    def residuals(theta: Array, start: PyTree, commands: Array, measured: Array) -> Array:
        parameters = {k: jnp.exp(theta[i]) for i, k in enumerate(names)}
        return (simulate(model, parameters, start, commands)[1] - measured).reshape(-1)

    theta = jnp.stack([logs[k] for k in names])
    arguments = theta, start, commands, measured
    jacobian = np.asarray(jax.jit(jax.vmap(jax.jacfwd(residuals), in_axes=(None, 0, 0, 0)))(*arguments), float)
    residual = np.asarray(jax.jit(jax.vmap(residuals, in_axes=(None, 0, 0, 0)))(*arguments), float)
    weight = np.minimum(1.0, HUBER_DELTA / np.maximum(np.abs(residual), 1e-9))
    curvature = np.einsum("erp,er,erq->epq", jacobian, weight, jacobian)
    gradient = np.einsum("erp,er->ep", jacobian, weight * residual)
    total = curvature.sum(0)
    ridge = 1e-6 * np.trace(total) / len(names) * np.eye(len(names))
    inverse = np.linalg.inv(total + ridge)
    count = len(gradient)
    covariance = inverse @ (gradient.T @ gradient) @ inverse * count / max(count - 1, 1)
    # One Newton step from the common parameters towards those of each flight alone, damped where it says little.
    shifts = np.stack(
        [-np.linalg.solve(c + 0.1 * total / count + ridge, p) for c, p in zip(curvature, gradient, strict=True)]
    )
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    between = np.std(shifts, axis=0) if count > 1 else sigma
    return dict(zip(names, sigma.tolist(), strict=True)), dict(zip(names, between.tolist(), strict=True))


def measure_limits(plant: Plant | None, task: FreeFlight, seconds: float = 30.0) -> dict[str, float]:
    """The largest speed, climb rate, sink rate and yaw rate of a plant, measured with commands beyond its limits.

    `seconds` is long enough for slow integrators to settle.
    """
    excessive = np.array([[20.0, 0, 0, 0], [0, 0, 10.0, 0], [0, 0, -10.0, 0], [0, 0, 0, 6.0]], np.float32)
    commands = np.repeat(excessive[:, None], round(seconds * task.control_rate), 1)
    recording = record(plant, task, commands)
    late = slice(-round(2.0 * task.control_rate), None)
    speed = np.linalg.norm(recording.velocity[0, late, :2], axis=-1)
    return {
        "max_speed": float(np.median(speed)),
        "max_climb_rate": float(np.median(recording.velocity[1, late, 2])),
        "max_sink_rate": float(-np.median(recording.velocity[2, late, 2])),
        "max_yaw_rate": float(min(np.median(recording.yaw_rate[3, late]), 6.0)),
    }


# Fitting an experiment


def fit_experiment(
    experiment: Experiment[Any, Any],
    plant: Plant | None = None,
    log: Path | None = None,
    flights: int = 24,
    seconds: float = 20.0,
    seed: int = 0,
    px4_version: str = "1.17",
    watch: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[Experiment[Any, Any], Fit]:
    """The experiment with its fast model fitted to a plant or to a flight log.

    Without either, it is fitted to the simulated vehicle under PX4's controller of `px4_version`.
    """
    task = experiment.task
    if not isinstance(task, FittableTask) or not isinstance(task, QuadrotorTask):
        raise PlantError(f"{experiment.task.description} has no model that can be fitted")
    model, vehicle = task.fit_model(), task.airframe
    rate = round(1.0 / model.dt)
    free = FreeFlight(vehicle, model.command, rate, Px4Controller.of_version(px4_version).tuned_for(vehicle))
    steps, limits = None, {}
    if log is not None:
        if not model.cruises:
            raise PlantError("a flight log holds velocities, but this task's model is fitted by body rates")
        recording = from_log(log, rate, seconds)
    else:
        seconds = min(seconds, model.max_seconds)
        commands = excitation(model.command, flights, seconds, rate, vehicle, seed)
        recording = record(plant, free, commands, partial(watch, "flying"))
        if model.cruises:
            horizontal = excitation(model.command, max(3, flights // 2), seconds, rate, vehicle, seed + 1)[::3].copy()
            horizontal[..., 2:] = 0.0
            steps = record(plant, free, horizontal, partial(watch, "flying steps"))
            limits = measure_limits(plant, free)
    result = fit(model, recording, model.shot, watch=partial(watch, "fitting"), steps=steps)
    variation = {name: float(np.clip(std, 0.05, 0.3)) for name, std in result.between_flight_std.items()}
    if limits:
        limits["max_speed"] = commanded_speed(model, result.parameters, limits["max_speed"])
        limits = {name: round(0.99 * value, 2) for name, value in limits.items()}
    return replace(experiment, task=task.with_fit(result.parameters, variation, limits)), result


def commanded_speed(model: FitModel, parameters: dict[str, float], reached: float, seconds: float = 30.0) -> float:
    """The commanded speed at which the fitted model reaches the plant's largest speed, by bisection."""
    steps = round(seconds / model.dt)
    zero = jnp.float32(0.0)
    start = VelocityDroneState.at(Vec3(zero, zero, zero), zero)
    traced = {k: jnp.float32(v) for k, v in parameters.items()}

    @jax.jit
    def final_speed(speed: Array) -> Array:
        rows = jnp.tile(jnp.stack([speed, zero, zero, zero]), (steps, 1))
        return simulate(model, traced, start, rows)[1][-1, 0]

    low, high = reached, 1.5 * reached
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(final_speed(jnp.float32(middle))) < reached else (low, middle)
    return high


def write(path: Path, experiment: Experiment[Any, Any], result: Fit) -> None:
    """Write a preset for `slipstream train`, with the result of the fit under `fitted`."""
    write_text(path, json_text(experiment.as_dict() | {"fitted": result.as_dict()}))
