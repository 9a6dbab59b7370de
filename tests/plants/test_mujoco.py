"""The MuJoCo plant: the same rotor forces fly the same way, contacts stop what flies into something, sensors err."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Quat, Vec3
from slipstream.core.rng import Rng
from slipstream.core.task import QuadrotorTask
from slipstream.dynamics.quadrotor import PhysicsRandomization, Rotors, iris, racer
from slipstream.evaluation.excitation import FreeFlight
from slipstream.evaluation.pilot import scripted_pilot
from slipstream.evaluation.runner import run_episodes
from slipstream.plants.mujoco import (
    Bodies,
    MujocoPlant,
    SensorModel,
    SensorSuite,
    fill_buffer,
    read_sensors,
    rotor_wrench,
    states_from_columns,
)
from slipstream.plants.plant import Plant, PlantError
from slipstream.plants.registry import PLANTS
from slipstream.tasks.racing import Racing
from slipstream.tasks.survey import Randomization, Survey

DT = 0.0025


def row(vehicle, x=0.0, z=50.0, speed=0.0):
    flight = vehicle.hovering(Vec3(x, 0.0, z), Quat(1.0, 0.0, 0.0, 0.0), Vec3(speed, 0.0, 0.0), Vec3(0.0, 0.0, 0.0))
    return jax.tree.map(lambda v: jnp.full(1, v, jnp.float32), flight)


@pytest.mark.parametrize("vehicle", [racer, iris], ids=["racer", "iris"])
def test_two_seconds_of_aggressive_flight_end_within_a_centimeter(vehicle):
    ours = mine = row(vehicle)
    bodies = Bodies(vehicle, [None], 1, DT)
    bodies.set_states(ours)
    step = jax.jit(jax.vmap(lambda f, t: vehicle.step(f, t, None, PhysicsRandomization(), DT)))
    push = jax.jit(jax.vmap(partial(rotor_wrench, vehicle, dt=DT)))
    still = Vec3(*[jnp.zeros(1)] * 3)
    for k in range(800):
        a, b, c = (np.sin(2.0 * np.pi * rate * k * DT) for rate in (2.0, 2.7, 1.3))
        target = Rotors(
            *(jnp.full(1, vehicle.hover_speed * (1.2 + 0.1 * i * a + 0.08 * j * b + 0.15 * m * c), jnp.float32)
              for i, j, m in ((1, 1, 1), (-1, 1, -1), (-1, -1, 1), (1, -1, -1)))
        )  # fmt: skip
        ours = step(ours, target)
        rotors, thrusts, wrench = push(mine, target, still, PhysicsRandomization())
        bodies.step(np.asarray(thrusts), np.asarray(wrench))
        mine = states_from_columns(jnp.asarray(bodies.columns()), rotors)
    bodies.close()
    assert float((ours.position - row(vehicle).position).norm()[0]) > 2.0
    assert float((ours.position - mine.position).norm()[0]) < 0.01


def test_a_gate_stops_a_drone_that_flies_into_its_frame():
    task = Racing()
    scene = jax.device_get(task.collision_scene(task.reset(Rng.from_seed(0, 0))))
    gate = task.course.gates(())[0]
    bodies = Bodies(racer, [scene], 1, 0.002)
    # Straight at the upright on the left of the opening.
    start = row(racer, x=gate.center.x - 2.0, z=gate.center.z, speed=6.0)
    start = replace(start, position=replace(start.position, y=jnp.full(1, gate.center.y + 0.9)))
    bodies.set_states(start)
    for _ in range(400):
        bodies.step(np.full((1, 4), racer.mass * 9.80665 / 4), np.zeros((1, 6)))
    reached = bodies.columns()[0, 0]
    bodies.close()
    assert reached < gate.center.x + 0.3


def test_a_drone_rests_on_the_ground_on_its_feet():
    task = Racing()
    scene = jax.device_get(task.collision_scene(task.reset(Rng.from_seed(0, 0))))
    bodies = Bodies(iris, [scene], 1, 0.002)
    bodies.set_states(row(iris, x=-3.0, z=0.5))
    for _ in range(1500):
        bodies.step(np.zeros((1, 4)), np.zeros((1, 6)))
    place = bodies.columns()[:, 0]
    assert place[2] == pytest.approx(iris.foot_drop, abs=0.02)
    assert bodies.ground_below(np.array([[-3.0, 0.0, 2.0]])) == pytest.approx([0.0], abs=1e-6)
    bodies.close()


def test_a_heavier_vehicle_sinks_at_the_thrust_at_which_the_nominal_one_hovers():
    bodies = Bodies(racer, [None, None], 1, 0.002, factors=[np.array([1.0, 1.2]), np.ones(2)])
    two = jax.tree.map(lambda x: jnp.concatenate([x, x]), row(racer))
    bodies.set_states(two)
    for _ in range(100):
        bodies.step(np.full((2, 4), racer.mass * 9.80665 / 4), np.zeros((2, 6)))
    climb = bodies.columns()[9]
    bodies.close()
    assert climb[0] == pytest.approx(0.0, abs=1e-4)
    assert climb[1] == pytest.approx(-9.80665 * (1 - 1 / 1.2) * 0.2, rel=0.02)


def test_sensors_have_the_delay_rate_bias_and_noise_of_their_model():
    late = SensorSuite(
        gyroscope=SensorModel(bias_std=0.1),
        attitude=SensorModel(),
        velocity=SensorModel(noise_std=0.1),
        position=SensorModel(delay=0.02, rate=50.0),
    )
    now = jax.tree.map(lambda x: x[0], row(racer))
    buffer, seen = fill_buffer(late, 100.0, now), []
    sample = jax.jit(partial(read_sensors, late, 100.0))
    for k in range(200):
        flight = replace(now, position=replace(now.position, x=jnp.float32(k)))
        buffer = sample(buffer, flight, jnp.int32(k), Rng.from_seed(0, 5))
        now_estimated = buffer.estimate
        seen.append([float(v.x) for v in (now_estimated.position, now_estimated.velocity, now_estimated.rates)])
    place, velocity, rate = np.array(seen).T
    # Two readings late, and a new one only every other time.
    assert place[10:14].tolist() == [8.0, 8.0, 10.0, 10.0]
    assert np.std(velocity) == pytest.approx(0.1, rel=0.2)
    assert np.ptp(rate) < 1e-6
    assert abs(rate[0]) > 1e-3


def test_velocity_setpoints_are_flown():
    task = FreeFlight(iris, control_rate=20)
    plant = MujocoPlant()
    states = jax.vmap(lambda k: task.reset(Rng.from_seed(0, k)))(jnp.arange(3))
    states = replace(states, body=replace(states.body, memory=None))
    plant.start(task, states)
    for _ in range(80):
        plant.command(states, jnp.tile(jnp.asarray([2.0, -1.0, 0.5, 0.3]), (3, 1)))
    v = plant.truth()
    plant.close()
    assert np.asarray(v.velocity.x) == pytest.approx(2.0, abs=0.35)
    assert np.asarray(v.velocity.y) == pytest.approx(-1.0, abs=0.35)
    assert np.asarray(v.rates.z) == pytest.approx(0.3, abs=0.15)


def test_a_survey_is_flown_by_rotors_and_judged_by_the_same_code():
    task = replace(
        Survey(mission="free", agents=2),
        start_mode="pad",
        mean_world_lifetime=0.0,
        randomize=Randomization(gust_std=0.0),
    )
    climb = lambda state: jnp.tile(jnp.asarray([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]), (2, 1))  # noqa: E731
    states = jax.jit(jax.vmap(lambda w: task.reset(Rng.from_seed(1, w))))(jnp.arange(1))
    plant = MujocoPlant()
    task = plant.adapt(task)
    plant.start(task, states)
    command, judge = jax.jit(jax.vmap(task.command)), jax.jit(jax.vmap(task.judge))
    for _ in range(15):
        commanded, commands = command(states, jax.vmap(climb)(states))
        plant.command(commanded, commands)
        states = judge(commanded, plant.truth())
    plant.close()
    height = np.asarray(states.body.drones.position.z - states.progress.home.z)
    assert (height > 2.0).all()
    assert not np.asarray(states.progress.crashed).any()


def test_a_race_can_be_flown_to_its_end():
    task = Racing(time_limit=0.5, track="ring")
    hold = scripted_pilot(lambda state: jnp.zeros(4))
    flown = run_episodes(task, hold, MujocoPlant(), worlds=3, seed=1, keep=2)
    assert flown.metrics["success"].tolist() == [0.0, 0.0, 0.0]
    assert len(flown.episodes) == 2
    assert flown.episodes[0].trajectory["position"].shape[1] == 3


def test_a_plant_says_what_it_needs(monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("mujoco"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PlantError, match="pip install"):
        MujocoPlant()


@pytest.mark.parametrize("task", [Racing(), Survey()], ids=["racing", "survey"])
def test_tasks_with_quadrotors_can_be_flown_by_others(task):
    assert isinstance(task, QuadrotorTask)


def test_every_plant_keeps_the_interface():
    from slipstream.plants.settings import DEFAULT_EPISODES, PlantSettings

    assert set(PLANTS) == set(DEFAULT_EPISODES)
    for name in ("fast", "mujoco"):
        plant = PLANTS[name](PlantSettings())
        assert isinstance(plant, Plant)
        assert plant.name == name
