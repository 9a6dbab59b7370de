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

from ..chance import Chance
from ..dynamics.cascade import Cascade
from ..dynamics.control import RateControl, RateSetpoint, Setpoint, Tuning, VelocitySetpoint
from ..dynamics.quadrotor import Flight, Quadrotor, Rotors, Variation
from ..dynamics.velocity import Glide, Handling, drawn_to
from ..env import Box, Spec, State
from ..experiment import Experiment
from ..geometry import Quat, Vec2, Vec3
from ..run import finite, write_text
from ..sensors.scene import Colour, Ground, Scene, daylight
from ..tasks.racing import Racing
from ..tasks.survey import Survey
from .plant import Plant, PlantError

HEIGHT = 60.0
"""Where excitation is flown."""


# Flying freely


@dataclass(frozen=True)
class FreeFlight:
    """No task at all: what is commanded is the setpoint, in an empty world."""

    airframe: Quadrotor
    kind: str = "velocity"
    """velocity (and yaw rate), or rates (thrust first)"""
    control_rate: int = 20
    cascade: Cascade = Cascade()

    about = "free flight"

    @property
    def spec(self) -> Spec:
        return Spec(1, Box(4), 1.0 / self.control_rate)

    def bare(self) -> "FreeFlight":
        return self

    def exam(self) -> "FreeFlight":
        return self

    def reset(self, chance: Chance) -> State[Any, Flight, Any]:
        zero = jnp.float32(0.0)
        still = Vec3(zero, zero, zero)
        flight = self.airframe.at(Vec3(zero, zero, zero + HEIGHT), Quat(zero + 1.0, zero, zero, zero), still, still)
        flight = replace(flight, memory=self.cascade.start(self.airframe, flight))
        no = jnp.bool_(False)
        return State(None, flight, None, chance, jnp.int32(0), zero, no, no)

    def command(self, state: Any, action: Any) -> tuple[Any, Any]:
        return state, action

    def setpoints(self, state: Any, command: Float[Array, "4"]) -> Setpoint:
        a, b, c, d = command
        return RateSetpoint(a, Vec3(b, c, d)) if self.kind == "rates" else VelocitySetpoint(Vec3(a, b, c), d)

    def flights(self, state: Any) -> Flight:
        return replace(state.body, memory=None)

    def air(self, state: Any) -> Vec3:
        return jax.tree.map(jnp.zeros_like, state.body.position)

    def variations(self, state: Any) -> Variation:
        return Variation()

    def settled(self, state: Any, command: Any, flights: Flight) -> Flight:
        return replace(flights, memory=None)

    def surroundings(self, state: Any) -> Scene:
        """Flat ground, far below."""
        grey = Colour(0.5, 0.5, 0.5)
        return Scene(**daylight(), ground=jax.tree.map(jnp.float32, Ground(0.0, 10.0, grey, grey)))

    def move(self, state: Any, command: Any) -> Flight:
        """The cascade on the device."""
        wanted = self.setpoints(state, command)

        def tick(_: Any, flight: Flight) -> Flight:
            rotors, memory = self.cascade.control(self.airframe, flight, flight.memory, wanted)
            flight = replace(flight, memory=memory)
            for _ in range(2):
                flight = self.airframe.step(flight, rotors, None, Variation(), 0.5 * self.cascade.dt)
            return flight

        return jax.lax.fori_loop(0, round(self.cascade.rate / self.control_rate), tick, state.body)


def excitation(kind: str, flights: int, seconds: float, rate: int, vehicle: Quadrotor, seed: int) -> np.ndarray:
    """Commands of many flights: a third steps, a third sweeps, a third random; all axes at once, at their own times.

    The random ones go along the ground twice as fast, and hold longer.
    """
    rng = np.random.default_rng(seed)
    steps = round(seconds * rate)
    time = np.arange(steps) / rate
    reach = np.array([5.0, 5.0, 1.2, 0.8]) if kind == "velocity" else np.array([0.45, 4.0, 4.0, 2.0])
    hold = (1.5, 4.0) if kind == "velocity" else (0.08, 0.3)
    out = np.zeros((flights, steps, 4))
    for flight in range(flights):
        for axis in range(4):
            if flight % 3 == 1:
                low, high = (0.02, 0.2) if kind == "velocity" else (0.5, 4.0)
                turns = low * time + (high - low) * time**2 / (2.0 * seconds)
                out[flight, :, axis] = np.sin(2.0 * np.pi * (turns + rng.uniform()))
                continue
            at, slow = 0, 2.0 if kind == "velocity" and flight % 3 == 2 else 1.0
            while at < steps:
                length = max(1, round(slow * rng.uniform(*hold) * rate))
                level = rng.choice([-1.0, 0.0, 1.0]) if flight % 3 == 0 else rng.uniform(-1.0, 1.0)
                # Rates come in pairs that cancel: the vehicle stays upright.
                paired = kind == "rates" and axis > 0
                out[flight, at : at + length, axis] = level
                if paired:
                    out[flight, at + length : at + 2 * length, axis] = -level
                at += length * (2 if paired else 1)
    out *= reach
    if kind == "velocity":
        out[2::3, :, :2] *= 2.0
    if kind == "rates":
        out[..., 0] = vehicle.mass * 9.80665 * (1.0 + out[..., 0])
    return out.astype(np.float32)


@dataclass(frozen=True)
class Recording:
    """Flights: what was commanded at each step, and how the vehicle flew before the first and after every step."""

    commands: Float[np.ndarray, "flights steps 4"]
    position: Float[np.ndarray, "flights moments 3"]
    velocity: Float[np.ndarray, "flights moments 3"]
    attitude: Float[np.ndarray, "flights moments 4"]
    rates: Float[np.ndarray, "flights moments 3"]
    rotors: Float[np.ndarray, "flights moments 4"]
    dt: float
    source: str

    def part(self, which: slice) -> "Recording":
        fields = ("commands", "position", "velocity", "attitude", "rates", "rotors")
        return replace(self, **{name: getattr(self, name)[which] for name in fields})

    @property
    def flights(self) -> int:
        return len(self.commands)

    @property
    def yaw_rate(self) -> np.ndarray:
        return self.rates[..., 2]


def record(
    plant: Plant | None,
    task: FreeFlight,
    commands: np.ndarray,
    watch: Callable[[int, int], None] = lambda done, all: None,
) -> Recording:
    """Fly commands on a plant; without one, on the cascade on the device."""
    if plant is None:
        return _on_device(task, commands)
    flights, steps, _ = commands.shape
    width = plant.width or flights
    plant.adapt(task)  # pyright: ignore[reportArgumentType]
    width = plant.width or width
    parts = []
    for first in range(0, flights, width):
        rows = commands[first : first + width]
        states = jax.vmap(lambda k: task.reset(Chance.of(0, k)))(jnp.arange(len(rows)))
        states = replace(states, body=replace(states.body, memory=None))
        try:
            kept = [plant.start(task, states)]  # pyright: ignore[reportArgumentType]
            for k in range(steps):
                states = replace(states, body=replace(kept[-1], memory=None))
                plant.command(states, jnp.asarray(rows[:, k]))
                kept.append(plant.sense())
                if plant.lost is not None and plant.lost.any():
                    raise PlantError(f"the plant {plant.name} failed while excitation was flown")
                watch(first * steps + (k + 1) * len(rows), flights * steps)
        finally:
            plant.close()
        parts.append(jax.tree.map(lambda *x: np.stack([np.asarray(v) for v in x], 1), *kept))
    flown = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return _recording(commands, flown, 1.0 / task.control_rate, plant.name)


def _on_device(task: FreeFlight, commands: np.ndarray) -> Recording:
    def fly(rows: Any) -> Any:
        start = task.reset(Chance.of(0, 0))

        def tick(flight: Flight, command: Any) -> tuple[Flight, Flight]:
            after = task.move(replace(start, body=flight), command)
            return after, replace(after, memory=None)

        after = jax.lax.scan(tick, start.body, rows)[1]
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), replace(start.body, memory=None), after)

    flown = jax.device_get(jax.jit(jax.vmap(fly))(jnp.asarray(commands)))
    return _recording(commands, flown, 1.0 / task.control_rate, "cascade")


def _recording(commands: np.ndarray, flown: Flight, dt: float, source: str) -> Recording:
    q = flown.attitude
    stack = lambda parts: np.stack([np.asarray(p, np.float32) for p in parts], -1)  # noqa: E731
    return Recording(
        commands, stack(flown.position.parts), stack(flown.velocity.parts), stack((q.w, q.x, q.y, q.z)),
        stack(flown.rates.parts), stack(flown.rotors.parts), dt, source,
    )  # fmt: skip


def from_log(path: Path, rate: int = 20, seconds: float = 20.0) -> Recording:
    """Flights from a PX4 log: the stretches in which a velocity was commanded, cut to equal lengths."""
    try:
        from pyulog import ULog
    except ImportError as error:
        raise PlantError('reading a flight log needs pyulog: pip install "slipstream[px4]"') from error
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"ULog":
                raise PlantError(f"{path} is no PX4 flight log: it does not begin like one")
        log = ULog(str(path), ["vehicle_local_position", "trajectory_setpoint", "vehicle_attitude"])
        tables = {table.name: table.data for table in log.data_list}
    except PlantError:
        raise
    except OSError as error:
        raise PlantError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:
        # The reader meets a damaged file with whatever goes wrong first.
        raise PlantError(f"{path} is damaged and cannot be read as a flight log ({type(error).__name__})") from error
    missing = {"vehicle_local_position", "trajectory_setpoint"} - tables.keys()
    if missing:
        raise PlantError(f"{path} has no {' and no '.join(sorted(missing))}; log with the default set of topics")
    place, told = tables["vehicle_local_position"], tables["trajectory_setpoint"]
    when = told["timestamp"] * 1e-6
    wanted = np.stack([told[f"velocity[{k}]"] for k in range(3)] + [told["yawspeed"]], -1)
    wanted[:, 3] = np.nan_to_num(wanted[:, 3])
    good: np.ndarray = np.all(np.isfinite(wanted), axis=1)
    if good.sum() < 2:
        raise PlantError(f"in {path} no velocity is ever commanded; fly it in offboard mode by velocities")
    grid = np.arange(max(when[0], place["timestamp"][0] * 1e-6), when[-1], 1.0 / rate)
    held = np.clip(np.searchsorted(when, grid, "right") - 1, 0, len(when) - 1)
    fresh = good[held] & (grid - when[held] < 0.5)
    at = place["timestamp"] * 1e-6
    value = {name: np.interp(grid, at, place[name]) for name in ("x", "y", "z", "vx", "vy", "vz")}
    yaw = np.interp(grid, at, np.unwrap(place["heading"]))
    turn = np.gradient(yaw, 1.0 / rate)
    rows, length = [], round(seconds * rate)
    at = 0
    while at + length < len(grid):
        if fresh[at : at + length].all():
            rows.append(slice(at, at + length + 1))
            at += length
        else:
            at += max(1, length // 8)
    if not rows:
        raise PlantError(
            f"{path} holds no {seconds:g} s of commanded velocity without a break; try --seconds with less"
        )
    enu = lambda n, e, d: np.stack([e, n, -d], -1).astype(np.float32)  # noqa: E731
    cut = lambda x: np.stack([x[r] for r in rows])  # noqa: E731
    w = wanted[held]
    commands = np.concatenate([enu(w[:, 0], w[:, 1], w[:, 2]), -w[:, 3:]], -1).astype(np.float32)
    rates = np.stack([0 * turn, 0 * turn, -turn], -1).astype(np.float32)
    heading = 0.5 * (0.5 * np.pi - yaw)
    q = np.stack([np.cos(heading), 0 * yaw, 0 * yaw, np.sin(heading)], -1).astype(np.float32)
    return Recording(
        commands=cut(commands)[:, :-1],
        position=cut(enu(value["x"], value["y"], value["z"])),
        velocity=cut(enu(value["vx"], value["vy"], value["vz"])),
        attitude=cut(q),
        rates=cut(rates),
        rotors=np.zeros((len(rows), length + 1, 4), np.float32),
        dt=1.0 / rate,
        source=path.name,
    )


# Models


class Model(Protocol):
    """A fast model whose numbers are to be found."""

    @property
    def names(self) -> tuple[str, ...]: ...

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
    names = (
        "lag", "lean", "onset", "drag", "surge", "heave", "trim", "acceleration", "climb_lag", "climb_acceleration",
        "turn_lag",
    )  # fmt: skip

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
    names = ("thrust", "lag", "drag", "roll", "yaw")

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
        loop = RateControl(stiffness=(numbers["roll"], numbers["roll"], numbers["yaw"]))
        factors = Variation(thrust=numbers["thrust"], lag=numbers["lag"], drag=numbers["drag"])
        # The loop is as stiff as the drawing's rotors allow, times the tuned lag.
        drawn = replace(self.vehicle, lag_up=1.0, lag_down=1.0)
        scale = numbers["lag"] * 0.5 * (self.vehicle.lag_up + self.vehicle.lag_down)
        loop = RateControl(stiffness=tuple(s / scale for s in loop.stiffness))
        for _ in range(self.substeps):
            rotors = loop.hold(drawn, state, command[0], Vec3(*command[1:]))
            state = self.vehicle.step(state, rotors, None, factors, self.dt / self.substeps)
        return state

    def seen(self, state: Flight) -> Float[Array, "6"]:
        return jnp.stack([*state.rates.parts, *(state.velocity * 3.0).parts])

    def measured(self, recording: Recording) -> np.ndarray:
        return np.concatenate([recording.rates, 3.0 * recording.velocity], -1)


# Fitting


def huber(x: Array, width: float = 0.3) -> Array:
    """Square near zero, straight far out: one bad stretch does not decide."""
    size = jnp.abs(x)
    return jnp.where(size < width, 0.5 * x * x, width * (size - 0.5 * width))


def flown(model: Model, numbers: dict[str, Any], start: Any, commands: Any) -> Array:
    """What is seen at every step of one flight of the model, from one state on."""

    def tick(state: Any, command: Any) -> tuple[Any, Array]:
        after = model.step(numbers, state, command)
        return after, model.seen(after)

    return jax.lax.scan(tick, start, commands)[1]


def error(model: Model, numbers: dict[str, float], recording: Recording, columns: slice = slice(0, 3)) -> float:
    """Root mean square of the vector of some columns over whole flights, each flown from its first moment."""
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))
    run = jax.jit(jax.vmap(partial(flown, model, {k: jnp.float32(v) for k, v in numbers.items()})))
    off = np.asarray(run(start, jnp.asarray(recording.commands))) - model.measured(recording)[:, 1:]
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
    names = model.names
    begin = {name: math.log(max(model.first[name], 1e-3)) for name in names}
    fixed = {k: v for k, v in model.first.items() if k not in names}

    def simulate(numbers: dict[str, Any], starts: Any) -> tuple[Array, Any]:
        def one(start: Any, rows: Any) -> tuple[Array, Any]:
            def tick(state: Any, command: Any) -> tuple[Any, Array]:
                after = model.step(numbers, state, command)
                return after, model.seen(after)

            end, seen = jax.lax.scan(tick, start, rows)
            return seen, end

        return jax.vmap(one)(starts, commands)

    def loss(variables: tuple[dict[str, Array], Any]) -> Array:
        logs, starts = variables
        numbers = {k: jnp.exp(v) for k, v in logs.items()} | fixed
        seen, ends = simulate(numbers, starts)
        fitted = jnp.mean(jnp.sum(huber(seen - wanted), -1))
        gaps = jnp.float32(0.0)
        if shots > 1:
            for end, start in zip(jax.tree.leaves(ends), jax.tree.leaves(starts), strict=True):
                end, start = end.reshape(-1, shots), start.reshape(-1, shots)
                gaps = gaps + jnp.mean(huber((end[:, :-1] - start[:, 1:]) * 0.3))
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
    sigma, spread = uncertainty(model, logs, learn, fixed)
    return Fit(
        numbers, sigma, spread, error(model, model.untuned(), test), error(model, numbers | fixed, test),
        math.nan if steps is None else error(model, model.untuned(), steps),
        math.nan if steps is None else error(model, numbers | fixed, steps),
        recording.source, recording.flights, held, losses,
    )  # fmt: skip


def uncertainty(
    model: Model, logs: dict[str, Array], recording: Recording, fixed: dict[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Standard errors of the numbers, and how much they differ from flight to flight; both relative.

    Errors along a flight hang together, so a flight counts as one observation (the sandwich estimate by flights).
    """
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))
    commands, wanted = jnp.asarray(recording.commands), jnp.asarray(model.measured(recording)[:, 1:])
    names = list(logs)

    def residuals(theta: Array, start: Any, commands: Any, wanted: Any) -> Array:
        numbers = {k: jnp.exp(theta[i]) for i, k in enumerate(names)} | fixed
        return (flown(model, numbers, start, commands) - wanted).reshape(-1)

    theta = jnp.stack([logs[k] for k in names])
    slopes = jax.jit(jax.vmap(jax.jacfwd(residuals), in_axes=(None, 0, 0, 0)))(theta, start, commands, wanted)
    off = jax.jit(jax.vmap(residuals, in_axes=(None, 0, 0, 0)))(theta, start, commands, wanted)
    slopes, off = np.asarray(slopes, float), np.asarray(off, float)
    weight = np.minimum(1.0, 0.3 / np.maximum(np.abs(off), 1e-9))
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
    fixed = {k: jnp.float32(v) for k, v in numbers.items()}

    @jax.jit
    def fastest(speed: Any) -> Array:
        rows = jnp.tile(jnp.stack([speed, zero, zero, zero]), (steps, 1))
        return flown(model, fixed, start, rows)[-1, 0]

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
