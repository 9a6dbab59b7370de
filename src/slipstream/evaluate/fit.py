"""Tuning a fast model to a plant, or to a flight log: by gradient through the model, over many short shots.

A flight is cut into shots, each with a start of its own that is fitted too, and the ends of shots are drawn to the
starts of the next. So a long flight gives a smooth loss, and what was held back is then flown whole by the tuned model,
from its first moment.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from ..core.geometry import Quat, Vec2, Vec3
from ..dynamics.control_modes import RateControl, Tuning
from ..dynamics.px4_controller import Cascade
from ..dynamics.quadrotor import Flight, Quadrotor, Rotors, Variation
from ..dynamics.velocity_drone import Glide, Handling, drawn_to
from ..experiment.experiment import Experiment
from ..learn.off_policy import huber
from ..plants.plant import Plant, PlantError
from ..plants.px4.log import from_log
from ..plants.recording import Recording
from ..runs.run import finite, write_text
from ..tasks.racing import Racing
from ..tasks.survey import Survey
from .excitation import FreeFlight, excitation, record

# Models


class Model(Protocol):
    """A fast model whose numbers are to be found."""

    @property
    def first(self) -> dict[str, float]:
        """Where the search begins."""
        ...

    def untuned(self) -> dict[str, float]: ...

    def start(self, recording: Recording) -> Any:
        """The model's state at every recorded moment, as far as it was recorded; axes: flights, moments."""
        ...

    def step(self, numbers: dict[str, Any], state: Any, command: Any) -> Any: ...

    def seen(self, state: Any) -> Float[Array, "outputs"]:
        """What is compared, each output divided by the error that matters."""
        ...

    def measured(self, recording: Recording) -> np.ndarray: ...


@dataclass(frozen=True)
class VelocityModel:
    """The drone of the survey, which answers a velocity."""

    dt: float = 0.05

    @property
    def first(self) -> dict[str, float]:
        return {
            "lag": 0.5, "lean": 0.25, "onset": 0.08, "drag": 0.2, "surge": 0.1, "heave": 0.5, "trim": 0.2,
            "acceleration": 6.0, "climb_lag": 0.3, "climb_acceleration": 4.0, "turn_lag": 0.2,
        }  # fmt: skip

    def untuned(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(Handling()).items()}

    def start(self, recording: Recording) -> Glide:
        p, v = (Vec3(*jnp.moveaxis(jnp.asarray(x), -1, 0)) for x in (recording.position, recording.velocity))
        w, x, y, z = jnp.moveaxis(jnp.asarray(recording.attitude), -1, 0)
        yaw = jnp.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
        change = np.gradient(recording.velocity, recording.dt, axis=1)
        return Glide(
            p, v, yaw, jnp.asarray(recording.yaw_rate), Vec3(*jnp.moveaxis(jnp.asarray(change), -1, 0)),
            Vec2(0.0 * yaw, 0.0 * yaw), Vec2(0.0 * yaw, 0.0 * yaw),
        )  # fmt: skip

    def step(self, numbers: dict[str, Any], state: Glide, command: Any) -> Glide:
        # A tuned drone is limited by its acceleration; the untuned one brings its own tilt.
        handling = replace(Handling(), **({"tilt": 1.2} | numbers))
        return drawn_to(state, Vec3(*command[:3]), command[3], handling, None, self.dt)

    def seen(self, state: Glide) -> Float[Array, "4"]:
        return jnp.stack([*state.velocity.parts, state.yaw_rate])

    def measured(self, recording: Recording) -> np.ndarray:
        return np.concatenate([recording.velocity, recording.yaw_rate[..., None]], -1)


@dataclass(frozen=True)
class RateModel:
    """The racer: rotors, drag and a rate loop."""

    vehicle: Quadrotor
    dt: float = 0.01
    substeps: int = 4

    @property
    def first(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(Tuning()).items()}

    def untuned(self) -> dict[str, float]:
        return self.first

    def start(self, recording: Recording) -> Flight:
        part = lambda kind, x: kind(*jnp.moveaxis(jnp.asarray(x), -1, 0))  # noqa: E731
        return Flight(
            part(Vec3, recording.position), part(Quat, recording.attitude), part(Vec3, recording.velocity),
            part(Vec3, recording.rates), part(Rotors, recording.rotors),
        )  # fmt: skip

    def step(self, numbers: dict[str, Any], state: Flight, command: Any) -> Flight:
        factors = Variation(thrust=numbers["thrust"], lag=numbers["lag"], drag=numbers["drag"])
        # The loop is as stiff as the drawing's rotors allow, times the tuned lag.
        drawn = replace(self.vehicle, lag_up=1.0, lag_down=1.0)
        scale = numbers["lag"] * 0.5 * (self.vehicle.lag_up + self.vehicle.lag_down)
        loop = RateControl(stiffness=tuple(numbers[axis] / scale for axis in ("roll", "roll", "yaw")))
        for _ in range(self.substeps):
            rotors = loop.hold(drawn, state, command[0], Vec3(*command[1:]))
            state = self.vehicle.step(state, rotors, None, factors, self.dt / self.substeps)
        return state

    def seen(self, state: Flight) -> Float[Array, "6"]:
        return jnp.stack([*state.rates.parts, *(state.velocity * 3.0).parts])

    def measured(self, recording: Recording) -> np.ndarray:
        return np.concatenate([recording.rates, 3.0 * recording.velocity], -1)


# Fitting

WIDTH = 0.3
"""Errors beyond this count straight and no longer by their square: one bad stretch does not decide."""


def flown(model: Model, numbers: dict[str, Any], start: Any, commands: Any) -> tuple[Any, Array]:
    """One flight of the model from one state on: its end, and what is seen at every step."""

    def tick(state: Any, command: Any) -> tuple[Any, Array]:
        after = model.step(numbers, state, command)
        return after, model.seen(after)

    return jax.lax.scan(tick, start, commands)


def error(model: Model, numbers: dict[str, float], recording: Recording, columns: slice = slice(0, 3)) -> float:
    """Root mean square of the vector of some columns over whole flights, each flown from its first moment."""
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))
    run = jax.jit(jax.vmap(partial(flown, model, {k: jnp.float32(v) for k, v in numbers.items()})))
    off = np.asarray(run(start, jnp.asarray(recording.commands))[1]) - model.measured(recording)[:, 1:]
    return float(np.sqrt(np.mean(np.sum(off[..., columns] ** 2, -1))))


@dataclass(frozen=True)
class Fit:
    """What was found."""

    numbers: dict[str, float]
    sigma: dict[str, float]
    """relative standard error"""
    spread: dict[str, float]
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
    model: Model,
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
    begin = {name: math.log(value) for name, value in model.first.items()}

    def loss(variables: tuple[dict[str, Array], Any]) -> Array:
        logs, starts = variables
        numbers = {k: jnp.exp(v) for k, v in logs.items()}
        ends, seen = jax.vmap(partial(flown, model, numbers))(starts, commands)
        fitted = WIDTH * jnp.mean(jnp.sum(huber(seen - wanted, WIDTH), -1))
        gaps = jnp.float32(0.0)
        if shots > 1:
            for end, start in zip(jax.tree.leaves(ends), jax.tree.leaves(starts), strict=True):
                end, start = end.reshape(-1, shots), start.reshape(-1, shots)
                gaps = gaps + WIDTH * jnp.mean(huber((end[:, :-1] - start[:, 1:]) * 0.3, WIDTH))
        return fitted + gaps / length

    schedule = optax.cosine_decay_schedule(rate, iterations, 0.02)
    optimiser = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))
    variables = ({k: jnp.float32(v) for k, v in begin.items()}, jax.tree.map(jnp.float32, starts))
    memory = optimiser.init(variables)

    @jax.jit
    def improve(variables: Any, memory: Any) -> tuple[Any, Any, Array]:
        value, slope = jax.value_and_grad(loss)(variables)
        slope = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), slope)
        updates, memory = optimiser.update(slope, memory, variables)
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
    numbers = {k: float(jnp.exp(v)) for k, v in logs.items()}
    sigma, spread = uncertainty(model, logs, learn)
    return Fit(
        numbers, sigma, spread, error(model, model.untuned(), test), error(model, numbers, test),
        math.nan if steps is None else error(model, model.untuned(), steps),
        math.nan if steps is None else error(model, numbers, steps),
        recording.source, recording.flights, held, losses,
    )  # fmt: skip


def uncertainty(
    model: Model, logs: dict[str, Array], recording: Recording
) -> tuple[dict[str, float], dict[str, float]]:
    """Standard errors of the numbers, and how much they differ from flight to flight; both relative.

    Errors along a flight hang together, so a flight counts as one observation (the sandwich estimate by flights).
    """
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))
    commands, wanted = jnp.asarray(recording.commands), jnp.asarray(model.measured(recording)[:, 1:])
    names = list(logs)

    def residuals(theta: Array, start: Any, commands: Any, wanted: Any) -> Array:
        numbers = {k: jnp.exp(theta[i]) for i, k in enumerate(names)}
        return (flown(model, numbers, start, commands)[1] - wanted).reshape(-1)

    theta = jnp.stack([logs[k] for k in names])
    slopes = jax.jit(jax.vmap(jax.jacfwd(residuals), in_axes=(None, 0, 0, 0)))(theta, start, commands, wanted)
    off = jax.jit(jax.vmap(residuals, in_axes=(None, 0, 0, 0)))(theta, start, commands, wanted)
    slopes, off = np.asarray(slopes, float), np.asarray(off, float)
    weight = np.minimum(1.0, WIDTH / np.maximum(np.abs(off), 1e-9))
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


def limits_of(plant: Plant | None, task: FreeFlight, seconds: float = 30.0) -> dict[str, float]:
    """How fast a plant flies along the ground, up and down, and turns, if it is asked for more than it gives.

    Long enough for what it is slow to make good.
    """
    asked = np.array([[20.0, 0, 0, 0], [0, 0, 10.0, 0], [0, 0, -10.0, 0], [0, 0, 0, 6.0]], np.float32)
    commands = np.repeat(asked[:, None], round(seconds * task.control_rate), 1)
    done = record(plant, task, commands)
    late = slice(-round(2.0 * task.control_rate), None)
    across = np.linalg.norm(done.velocity[0, late, :2], axis=-1)
    return {
        "speed": float(np.median(across)),
        "climb": float(np.median(done.velocity[1, late, 2])),
        "sink": float(-np.median(done.velocity[2, late, 2])),
        "turn": float(min(np.median(done.yaw_rate[3, late]), 6.0)),
    }


# The whole of it


def tuned(
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
    if not isinstance(task, Survey | Racing):
        raise PlantError(f"{task.about} has no quadrotor to fit")
    racing = isinstance(task, Racing)
    if racing and task.action != "rates":
        raise PlantError("a race is fitted by thrust and body rates: choose a preset with action=rates")
    kind, rate = ("rates", task.control_rate) if racing else ("velocity", 20)
    vehicle = task.airframe
    free = FreeFlight(vehicle, kind, rate, Cascade.of_version(version).suited(vehicle))
    steps, limits = None, {}
    if log is not None:
        if racing:
            raise PlantError("a log is fitted to the survey's drones: it tells velocities, not what a racer needs")
        recording = from_log(log, rate, seconds)
    else:
        seconds = min(seconds, 3.0) if racing else seconds
        commands = excitation(kind, flights, seconds, rate, vehicle, seed)
        recording = record(plant, free, commands, partial(watch, "flying"))
        if not racing:
            plain = excitation(kind, max(3, flights // 2), seconds, rate, vehicle, seed + 1)[::3].copy()
            plain[..., 2:] = 0.0
            steps = record(plant, free, plain, partial(watch, "flying steps"))
            limits = limits_of(plant, free)
    model: Model = RateModel(vehicle, 1.0 / rate) if racing else VelocityModel(1.0 / rate)
    found = fit(model, recording, 0.4 if racing else 6.0, watch=partial(watch, "fitting"), steps=steps)
    reach = {name: float(np.clip(found.spread[name], 0.05, 0.3)) for name in found.numbers}
    if racing:
        part = replace(task.tuning, **found.numbers)
        task = replace(task, tuning=part, vary_thrust=reach["thrust"], vary_lag=reach["lag"], vary_drag=reach["drag"])
    else:
        if limits:
            limits["speed"] = asked_speed(model, found.numbers, limits["speed"])
        part = replace(task.handling, **(found.numbers | rounded(limits)), tilt=1.2)
        task = replace(task, handling=part, vary_handling=float(np.mean([reach["lag"], reach["lean"]])))
    return replace(experiment, task=task), found


def asked_speed(model: Model, numbers: dict[str, float], reached: float, seconds: float = 30.0) -> float:
    """The speed one has to ask the tuned model for, so that it gets as fast as the plant did."""
    steps = round(seconds / 0.05)
    zero = jnp.float32(0.0)
    start = Glide.at(Vec3(zero, zero, zero), zero)
    held = {k: jnp.float32(v) for k, v in numbers.items()}

    @jax.jit
    def fastest(speed: Any) -> Array:
        rows = jnp.tile(jnp.stack([speed, zero, zero, zero]), (steps, 1))
        return flown(model, held, start, rows)[1][-1, 0]

    low, high = reached, 1.5 * reached
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(fastest(jnp.float32(middle))) < reached else (low, middle)
    return high


def rounded(limits: dict[str, float]) -> dict[str, float]:
    """Limits as they are meant: what a plant reaches, a little less so that it can."""
    return {name: round(0.99 * value, 2) for name, value in limits.items()}


def write(path: Path, experiment: Experiment[Any, Any], found: Fit) -> None:
    """The preset that `train` takes, with how it was found beside it."""
    told = {name: finite(value) for name, value in found.as_dict().items()}
    write_text(path, json.dumps(experiment.as_dict() | {"fitted": told}, indent=1) + "\n")
