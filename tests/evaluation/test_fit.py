"""A fit finds the numbers it should, says how sure it is, and writes a preset that can be trained."""

import json
import math
import struct
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.cli.main import main
from slipstream.dynamics.identification import RateModel, VelocityModel
from slipstream.dynamics.quadrotor import iris, racer
from slipstream.evaluation.excitation import FreeFlight, excitation, record
from slipstream.evaluation.fit import Fit, fit, fit_experiment, simulate, write
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import presets
from slipstream.plants.plant import PlantError
from slipstream.plants.px4.log import from_log


def by_model(model, numbers, commands, dt):
    """A recording of the model itself, with known numbers."""
    like = record(None, FreeFlight(iris), commands)
    start = jax.tree.map(lambda x: x[:, 0], model.start(like))
    _, seen = jax.jit(jax.vmap(partial(simulate, model, {k: jnp.float32(v) for k, v in numbers.items()})))(
        start, jnp.asarray(commands)
    )
    seen = np.concatenate([model.measured(like)[:, :1], np.asarray(seen)], 1)
    rates = np.zeros_like(like.rates)
    rates[..., 2] = seen[..., 3]
    return replace(like, velocity=seen[..., :3], rates=rates, dt=dt)


def test_numbers_that_are_known_are_found_again():
    model = VelocityModel()
    truth = model.initial | {
        "velocity_time_constant": 0.7, "tilt_time_constant": 0.18, "drag": 0.3, "climb_time_constant": 0.2,
    }  # fmt: skip
    found = fit(model, by_model(model, truth, excitation("velocity", 8, 8.0, 20, iris, 0), 0.05), 4.0, 200)
    for name in ("velocity_time_constant", "tilt_time_constant", "climb_time_constant"):
        assert found.parameters[name] == pytest.approx(truth[name], rel=0.1), name
    assert found.error_after < 0.2 * found.error_before


def test_the_velocity_model_follows_px4s_controller_within_a_quarter_of_a_meter_per_second():
    experiment, found = fit_experiment(presets()["survey-transit"])
    assert found.step_error_after <= 0.25
    assert found.step_error_after * 5.0 <= found.step_error_before
    assert found.error_after < 0.35 * found.error_before
    assert all(0.0 < s < 1.0 for s in found.relative_error.values())
    model = experiment.task.velocity_model
    assert model.max_climb_rate == pytest.approx(2.97, abs=0.05)
    assert model.max_sink_rate == pytest.approx(1.48, abs=0.05)
    assert 10.0 < model.max_speed < 12.5
    assert 0.05 <= experiment.task.randomize.response <= 0.3


def test_a_preset_that_was_fitted_is_read_again(tmp_path):
    found = Fit(
        {"drag": 0.7}, {"drag": 0.01}, {"drag": 0.1}, 1.0, 0.1, math.nan, math.nan, "px4-controller", 4, 1, [0.1]
    )
    path = tmp_path / "fitted.json"
    experiment = presets()["survey-transit"]
    write(path, experiment, found)
    assert Experiment.from_dict(json.loads(path.read_text())) == experiment


def test_rates_are_excited_in_pairs_that_cancel():
    commands = excitation("body_rates", 3, 2.0, 100, racer, 0)
    assert np.abs(commands[0, :, 1:].mean(0)).max() < 1.0
    assert commands[..., 0].min() > 0.4 * racer.mass * 9.8


def test_the_rate_model_has_a_slope_everywhere():
    model = RateModel(racer)
    task = FreeFlight(racer, "body_rates", 100)
    recording = record(None, task, excitation("body_rates", 2, 0.3, 100, racer, 0))
    start = jax.tree.map(lambda x: x[:, 0], model.start(recording))

    def loss(numbers):
        _, seen = jax.vmap(partial(simulate, model, numbers))(start, jnp.asarray(recording.commands))
        return jnp.mean((seen - model.measured(recording)[:, 1:]) ** 2)

    slope = jax.jit(jax.grad(loss))({k: jnp.float32(v) for k, v in model.initial.items()})
    assert all(math.isfinite(float(s)) and float(s) != 0.0 for s in slope.values())


def log_of(path, tables):
    """A PX4 log with those tables: microseconds first, then floats or arrays of them by name."""

    def message(kind, body):
        return struct.pack("<HB", len(body), ord(kind)) + body

    data = b"ULog\x01\x12\x35\x01" + struct.pack("<Q", 0)
    for name, columns in tables.items():
        rest = list(columns.items())[1:]
        fields = "".join(f"float{'[3]' if np.ndim(column) > 1 else ''} {field};" for field, column in rest)
        data += message("F", f"{name}:uint64_t timestamp;{fields}".encode())
    for number, (name, columns) in enumerate(tables.items()):
        data += message("A", struct.pack("<BH", 0, number) + name.encode())
        stamps, *rest = columns.values()
        for stamp, values in zip(stamps, np.column_stack(rest), strict=True):
            data += message("D", struct.pack(f"<HQ{len(values)}f", number, int(stamp), *values))
    path.write_bytes(data)


def test_a_log_gives_the_stretches_in_which_a_velocity_was_commanded(tmp_path):
    seconds, nan = np.arange(0.0, 30.0, 0.02), float("nan")
    still, placed = 0.0 * seconds, np.where(seconds < 10.0, 1.0, nan)  # at first a place is commanded
    north, east = np.sin(seconds), still + 2.0
    path = tmp_path / "flight.ulg"
    log_of(
        path,
        {
            "vehicle_local_position": {
                "timestamp": 1e6 * seconds, "x": still, "y": 2.0 * seconds, "z": still - 5.0,
                "vx": north, "vy": east, "vz": still + 0.5, "heading": 0.3 * seconds,
            },
            "trajectory_setpoint": {
                "timestamp": 1e6 * seconds, "position": np.stack([placed] * 3, -1),
                "velocity": np.stack([north, east, still + 0.5], -1), "yawspeed": still + 0.3,
            },
        },
    )  # fmt: skip
    flights = from_log(path, seconds=4.0)
    assert flights.flights == 4
    assert flights.commands.shape == (4, 80, 4)
    assert np.allclose(flights.commands[..., 0], 2.0, atol=1e-3)  # east
    assert np.allclose(flights.commands[..., 2], -0.5, atol=1e-3)  # up
    assert np.allclose(flights.commands[..., 3], -0.3, atol=1e-3)  # to the left
    assert np.allclose(flights.velocity[..., 0], 2.0, atol=1e-3)
    assert np.allclose(flights.yaw_rate, -0.3, atol=1e-2)
    assert (flights.position[:, 0, 0] > 19.0).all()


def test_what_is_no_log_is_refused(tmp_path):
    path = tmp_path / "flight.ulg"
    path.write_bytes(b"not a log at all")
    with pytest.raises(PlantError, match="not a PX4 flight log"):
        from_log(path)
    path.write_bytes(b"ULog\x01\x12\x35\x01" + b"\x07" * 200)
    with pytest.raises(PlantError):
        from_log(path)
    with pytest.raises(PlantError, match="cannot be read"):
        from_log(tmp_path / "nowhere.ulg")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fit", "--plant", "gazebo"], "no plant 'gazebo'"),
        (["fit", "--flights", "2"], "at least 4 flights"),
        (["fit", "--preset", "nonsense"], "no preset 'nonsense'"),
        (["fit", "--preset", "racing", "--log", "x.ulg"], "a flight log holds velocities"),
    ],
)
def test_a_wrong_request_is_refused_in_words(words, told, capsys):
    assert main(words) != 0
    assert told in capsys.readouterr().err
