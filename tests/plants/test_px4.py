"""The PX4 plant: frames, sensors, the protocol against a fake PX4, and its faults.

With SLIPSTREAM_PX4 naming a real PX4, the last test flies that.
"""

import math
import os
import socket
import time
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec3
from slipstream.core.rng import Rng
from slipstream.dynamics.px4_controller import Px4Controller
from slipstream.dynamics.quadrotor import PhysicsRandomization, Rotors, iris
from slipstream.evaluate.excitation import FreeFlight
from slipstream.evaluate.pilot import scripted_pilot
from slipstream.evaluate.runner import run_episodes
from slipstream.plants.mujoco import states_from_columns
from slipstream.plants.plant import PlantError
from slipstream.plants.px4 import Px4, Px4Plant
from slipstream.plants.px4 import plant as module
from slipstream.plants.px4.autopilot import Autopilot, parameters, version_of
from slipstream.plants.px4.frames import attitude_to_ned, enu_to_ned, flu_to_frd
from slipstream.plants.px4.plant import LinkStats
from slipstream.plants.px4.sensors import HilSensors, gps_values
from slipstream.plants.sitl import MOTORS
from slipstream.tasks.racing import Racing

FREE = FreeFlight(iris, control_rate=50)


def started(plant, worlds=1, task=FREE, height=3.0):
    states = jax.vmap(lambda k: task.reset(Rng.from_seed(0, k)))(jnp.arange(worlds))
    states = replace(
        states,
        body=replace(states.body, memory=None, position=replace(states.body.position, z=jnp.full(worlds, height))),
    )
    plant.adapt(task)
    body = plant.start(task, states)
    return replace(states, body=body)


def flown(plant, states, command, seconds, task=FREE):
    commands = jnp.tile(jnp.asarray(command, jnp.float32), (states.step.shape[0], 1))
    for _ in range(round(seconds * task.control_rate)):
        plant.command(states, commands)
        states = replace(states, body=plant.truth())
    return states


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Frames and sensors


def test_frames_turn_there_and_back():
    v = np.array([1.0, 2.0, 3.0])
    assert enu_to_ned(v).tolist() == [2.0, 1.0, -3.0]
    assert enu_to_ned(enu_to_ned(v)).tolist() == v.tolist()
    assert flu_to_frd(v).tolist() == [1.0, -2.0, -3.0]
    q = np.array([0.9, 0.1, -0.2, 0.3742])
    assert attitude_to_ned(attitude_to_ned(q)) == pytest.approx(q)


def test_a_vehicle_that_looks_north_has_no_yaw_in_px4_and_one_that_looks_east_a_quarter_turn():
    north = np.array([math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)])
    east = np.array([1.0, 0.0, 0.0, 0.0])
    assert attitude_to_ned(north) == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert attitude_to_ned(east) == pytest.approx([math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)])


def felt(columns, before=(0.0, 0.0, 0.0)):
    flight = states_from_columns([jnp.float32(c) for c in columns], Rotors(*[0.0] * 4))
    quiet = HilSensors(accelerometer_noise=0.0, gyroscope_noise=0.0, magnetometer_noise=0.0)
    return [float(x) for x in quiet.read_sensors(flight, Vec3(*map(jnp.float32, before)), jnp.zeros(9))]


def test_at_rest_gravity_is_felt_upward_and_the_field_points_north_and_down():
    rest = felt((0, 0, 0, math.sqrt(0.5), 0, 0, math.sqrt(0.5), *[0] * 6))
    assert rest[:3] == pytest.approx([0.0, 0.0, -9.80665], abs=1e-4)
    assert rest[6:] == pytest.approx([0.2151, 0.0102, 0.4297], abs=1e-4)


def test_a_blow_is_clipped_to_what_px4_can_hold():
    hit = felt((0, 0, 0, 1, 0, 0, 0, 8.0, 0, 0, 90.0, 0, 0))
    assert 14 * 9.8 < hit[0] < 16 * 9.8
    assert hit[3] < math.radians(2000.0)


def test_satellites_say_where_and_how_fast():
    fix = gps_values(7, np.array([100.0, 0.0, -10.0]), np.array([3.0, 4.0, -1.0]))
    assert fix[1] == 3
    assert fix[2] - 473977420 == pytest.approx(8993, abs=2)  # 1e-7 degrees
    assert fix[4] == 498_000
    assert fix[7:11] == (500, 300, 400, -100)


def test_parameters_are_stock_for_the_iris_and_told_for_another_vehicle():
    assert "PX4_PARAM_MC_ROLLRATE_P" not in parameters(iris, Px4Controller())
    from slipstream.dynamics.quadrotor import racer

    told = parameters(racer, Px4Controller().tuned_for(racer))
    assert float(told["PX4_PARAM_MC_ROLLRATE_P"]) < 0.1
    assert float(told["PX4_PARAM_CA_ROTOR0_PX"]) == pytest.approx(racer.arm[0])
    # PX4 does not use rotors to yaw whose torque is below 0.05 of its units, 6.5 a unit of thrust.
    assert float(told["PX4_PARAM_CA_ROTOR2_KM"]) < -0.05 / 6.5 < 0.05 / 6.5 < float(told["PX4_PARAM_CA_ROTOR0_KM"])


@pytest.mark.parametrize(
    ("motor", "roll", "pitch", "yaw"),
    # front right, rear left, front left, rear right: forward-left-up torques of a single motor
    [(0, -1, -1, -1), (1, 1, 1, -1), (2, 1, -1, 1), (3, -1, 1, 1)],
)
def test_a_pulse_of_one_motor_turns_the_body_as_px4_expects(motor, roll, pitch, yaw):
    speeds = [0.0] * 4
    speeds[MOTORS[motor]] = 500.0
    level = states_from_columns([0.0] * 3 + [1.0] + [0.0] * 9, Rotors(*speeds))
    flight = jax.tree.map(jnp.float32, level)
    _, torque = iris.wrench(flight, None, PhysicsRandomization())
    assert [math.copysign(1, float(t)) for t in torque.parts] == [roll, pitch, yaw]


# The program


def test_a_px4_that_is_not_named_is_asked_for_in_words(monkeypatch):
    monkeypatch.delenv("SLIPSTREAM_PX4", raising=False)
    with pytest.raises(PlantError, match="location of PX4 is not set.*git clone"):
        Px4.find()


def test_a_px4_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PlantError, match="not an executable file"):
        Px4.find(str(tmp_path / "px4"))


def test_a_px4_without_its_etc_is_told_apart(fake_px4, tmp_path):
    (tmp_path / "build" / "etc" / "init.d-posix").rmdir()
    with pytest.raises(PlantError, match="SLIPSTREAM_PX4_ETC"):
        Px4.find(fake_px4())


def test_a_version_that_is_too_old_is_refused(fake_px4, tmp_path):
    build = fake_px4()
    with open(tmp_path / "build" / "bin" / "px4", "ab") as file:
        file.write(b"\n#\0v1.12.3\0\n")
    with pytest.raises(PlantError, match="this is PX4 v1.12.3.*needs 1.14"):
        Px4Plant(build)


def test_the_version_is_that_of_the_build_and_not_of_its_tests(tmp_path):
    binary = tmp_path / "bin" / "px4"
    binary.parent.mkdir()
    binary.write_bytes(b"\0v255.255.255-11\0v1.1.1\0v255.255.255-11\0localhost\0v1.15.4\0Linux\0")
    assert version_of(binary) == "v1.15.4"
    header = tmp_path / "src" / "lib" / "version" / "build_git_version.h"
    header.parent.mkdir(parents=True)
    header.write_text('#define PX4_GIT_TAG_STR "v1.17.0"\n')
    assert version_of(binary) == "v1.17.0"


def test_a_taken_port_is_named(fake_px4):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 4560 + 31))
        other.listen()
        plant = Px4Plant(fake_px4(), first_instance=31)
        with pytest.raises(PlantError, match="port 4591 is taken"):
            started(plant)
        plant.close()


# The protocol, against the fake


def test_it_boots_arms_takes_off_flies_and_leaves_nothing_behind(fake_px4):
    plant = Px4Plant(fake_px4(), first_instance=20)
    states = started(plant)
    pid, folder = plant.autopilots[0].process.pid, plant.autopilots[0].process.folder
    assert float(states.body.position.z[0]) == pytest.approx(3.0, abs=0.5)
    states = flown(plant, states, (2.0, 0.0, 0.0, 0.0), 3.0)
    assert float(states.body.velocity.x[0]) == pytest.approx(2.0, abs=0.5)
    seen = plant.estimate()
    assert float((seen.position - states.body.position).norm()[0]) < 0.5
    told = plant.diagnostics()["px4"]
    assert told["version"] == "v1.14.3"
    assert told["missed_replies"] == 0
    assert told["times_real_time"] > 0.0
    assert plant.autopilots[0].replies > 1000
    plant.close()
    assert not running(pid)
    assert not folder.exists()


def test_two_fly_at_once_each_by_its_own_commands(fake_px4):
    plant = Px4Plant(fake_px4(), instances=2, first_instance=22)
    states = started(plant, worlds=2)
    for _ in range(100):
        plant.command(states, jnp.asarray([[2.0, 0, 0, 0], [0, -2.0, 0, 0]], jnp.float32))
        states = replace(states, body=plant.truth())
    plant.close()
    v = states.body.velocity
    assert [round(float(x)) for x in (v.x[0], v.y[0], v.x[1], v.y[1])] == [2, 0, 0, -2]


def test_body_rates_and_thrust_are_followed(fake_px4):
    task = FreeFlight(iris, command_kind="body_rates", control_rate=50)
    plant = Px4Plant(fake_px4(), first_instance=24)
    states = started(plant, task=task)
    assert float(states.body.position.z[0]) == pytest.approx(3.0, abs=0.4)
    # At once: the change from places to rates is over when the flight begins.
    states = flown(plant, states, (iris.mass * 9.80665, 0.0, 0.0, 0.5), 0.3, task)
    plant.close()
    assert float(states.body.rates.z[0]) == pytest.approx(0.5, abs=0.25)


def test_a_racer_is_taken_up_and_down_again_before_its_start(fake_px4, monkeypatch):
    plant, heights = Px4Plant(fake_px4(), first_instance=33), []
    advance = plant._advance_startup
    spy = lambda k, pilot, startup, column: (heights.append(column[2]), advance(k, pilot, startup, column))  # noqa: E731
    monkeypatch.setattr(plant, "_advance_startup", spy)
    states = started(plant, task=FreeFlight(iris, command_kind="body_rates", control_rate=50), height=1.5)
    plant.close()
    assert max(heights) > 2.1
    assert float(states.body.position.z[0]) == pytest.approx(1.5, abs=0.5)


def test_rotor_speeds_are_refused(fake_px4):
    plant = Px4Plant(fake_px4(), first_instance=25)
    with pytest.raises(PlantError, match="no rotor speeds"):
        Autopilot(plant.px4, 25, {}, {}).send_setpoint(Rotors(*[1.0] * 4), iris, Px4Controller(), np.zeros(3))


def stream_stopped(plant, states):
    """Physics and sensors go on, but nobody speaks to PX4."""
    silent = SimpleNamespace(send_setpoint=lambda *_: None)
    pilot = plant.autopilots[0]
    kept, pilot.send_setpoint = pilot.send_setpoint, silent.send_setpoint
    states = flown(plant, states, (0.0, 0.0, 0.0, 0.0), 2.0)
    pilot.send_setpoint = kept
    return states


def test_setpoints_that_stop_are_noticed_within_a_second_of_simulated_time(fake_px4):
    plant = Px4Plant(fake_px4(), first_instance=26)
    states = started(plant)
    stream_stopped(plant, states)
    pilot = plant.autopilots[0]
    for _ in range(5):
        time.sleep(0.02)
        pilot.offboard_socket.receive()
    plant.close()
    assert not pilot.offboard
    assert any("lost" in text for text in pilot.status_texts)


# Faults


def test_one_that_dies_in_flight_is_a_lost_episode_with_its_reason(fake_px4):
    plant = Px4Plant(fake_px4("die:25"), first_instance=27)
    states = started(plant)
    flown(plant, states, (1.0, 0.0, 0.0, 0.0), 25.0)
    assert plant.failed.tolist() == [True]
    assert "ended" in plant.diagnostics()["px4"]["failures"][-1]
    assert plant.autopilots[0].process is None
    plant.close()


def test_one_that_hangs_is_ended_by_the_watchdog(fake_px4):
    plant = Px4Plant(fake_px4("hang:25"), first_instance=28, reply_timeout=0.05)
    states = started(plant)
    pid = plant.autopilots[0].process.pid
    flown(plant, states, (1.0, 0.0, 0.0, 0.0), 25.0)
    assert plant.failed.all()
    assert not running(pid)
    told = plant.diagnostics()["px4"]
    assert "has not answered" in told["failures"][-1]
    assert told["missed_replies"] > 10
    plant.close()


def test_one_that_never_answers_is_started_again_twice_and_then_lost(fake_px4, monkeypatch):
    monkeypatch.setattr(module, "BOOT_TIMEOUT", 1.0)
    plant = Px4Plant(fake_px4("mute"), first_instance=29)
    started(plant)
    assert plant.failed.all()
    assert plant.diagnostics()["px4"]["restarts"] == 2
    assert "did not answer" in plant.diagnostics()["px4"]["failures"][0]
    plant.close()


def test_one_that_refuses_to_arm_says_why(fake_px4, monkeypatch):
    monkeypatch.setattr(module, "ARM_TIMEOUT", 4.0)
    plant = Px4Plant(fake_px4("noarm"), first_instance=30)
    started(plant)
    assert plant.failed.all()
    assert "Arming denied" in plant.diagnostics()["px4"]["failures"][0]
    plant.close()


def test_a_machine_slower_than_real_time_loses_nothing(fake_px4, monkeypatch):
    plant = Px4Plant(fake_px4(), first_instance=31)
    states = started(plant)
    plant.stats = LinkStats()
    exchange = plant._exchange
    monkeypatch.setattr(plant, "_exchange", lambda: (time.sleep(0.02), exchange()))
    states = flown(plant, states, (1.0, 0.0, 0.0, 0.0), 1.5)
    told = plant.diagnostics()["px4"]
    plant.close()
    assert told["times_real_time"] < 0.25
    assert told["missed_replies"] == 0 and not told["failures"]
    assert float(states.body.velocity.x[0]) > 0.5


def test_episodes_after_a_lost_one_are_flown(fake_px4, tmp_path):
    task = Racing(vehicle="iris", control_mode="velocity", track="ring", time_limit=1.5)
    hold = scripted_pilot(lambda state: jnp.zeros(4))
    plant = Px4Plant(fake_px4(f"once:{tmp_path / 'died'}"), instances=1, first_instance=32)
    done = run_episodes(task, hold, plant, 2, 1, 1)
    assert len(plant.diagnostics()["px4"]["failures"]) == 1, plant.diagnostics()
    assert done.metrics["failed"].tolist() == [1.0, 0.0]
    assert done.metrics["success"].tolist()[0] == 0.0


# The real one


@pytest.mark.skipif(not os.environ.get("SLIPSTREAM_PX4"), reason="SLIPSTREAM_PX4 names no PX4")
def test_the_real_px4_hovers_steps_and_flies_a_square():
    plant = Px4Plant()
    states = started(plant)
    hover = flown(plant, states, (0.0, 0.0, 0.0, 0.0), 4.0)
    assert float(hover.body.velocity.norm()[0]) < 0.4
    states, corner = hover, hover.body.position
    for x, y in ((3.0, 0.0), (0.0, 3.0), (-3.0, 0.0), (0.0, -3.0)):
        states = flown(plant, states, (x, y, 0.0, 0.0), 4.0)
        v = states.body.velocity
        assert math.hypot(float(v.x[0]) - x, float(v.y[0]) - y) < 0.6
    plant.close()
    assert float((states.body.position - corner).norm()[0]) < 4.0
    assert plant.diagnostics()["px4"]["missed_replies"] < 20
