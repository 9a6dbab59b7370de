"""The MuJoCo plant of a task that brings its own model."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mujoco")

from slipstream.core.geometry import Vec3
from slipstream.core.rng import Rng
from slipstream.plants.mujoco import MujocoPlant
from slipstream.plants.mujoco_model import MujocoPlants
from slipstream.plants.plant import Plant, PlantError
from slipstream.plants.registry import PLANTS
from slipstream.plants.settings import PlantSettings
from slipstream.tasks.lift import Lift
from slipstream.tasks.lift.settings import NO_RANDOMIZATION
from slipstream.tasks.marine import Marine
from slipstream.tasks.racing import Racing


@pytest.fixture(scope="module")
def grasp():
    """Two worlds in which the gripper goes to the cube, closes and lifts."""
    task, plant = Lift(area="near", randomize=NO_RANDOMIZATION), PLANTS["mujoco"](PlantSettings())
    task = plant.adapt(task)
    states = jax.jit(jax.vmap(lambda i: task.reset(Rng.from_seed(0, i))))(jnp.arange(2))
    command, judge = jax.jit(jax.vmap(task.command)), jax.jit(jax.vmap(task.judge))
    states = replace(states, body=plant.start(task, states))
    begun = states

    def script(states):
        """Over the cube, down, close, up."""

        def one(state):
            step, at, cube = state.step, state.progress.target, state.body.cube.position
            down = jnp.where(step < 50, jnp.where(step < 15, 0.06, 0.018), 0.12) - at.z
            over = jnp.where(step < 30, 1.0, 0.0)
            move = Vec3((cube.x - at.x) * over, (cube.y - at.y) * over, down)
            return jnp.stack([*(move * 50.0).parts, jnp.where(step < 35, 1.0, -1.0)])

        return jax.vmap(one)(states)

    script = jax.jit(script)
    for _ in range(100):
        commanded, commands = command(states, script(states))
        plant.command(commanded, commands)
        states = judge(commanded, plant.truth())
    plant.close()
    return begun, states


def test_the_plant_is_chosen_by_the_task():
    plant = PLANTS["mujoco"](PlantSettings())
    assert isinstance(plant, MujocoPlants)
    assert isinstance(plant, Plant)
    plant.adapt(Racing())
    assert isinstance(plant.plant, MujocoPlant)
    plant.adapt(Lift())
    assert not isinstance(plant.plant, MujocoPlant)
    with pytest.raises(PlantError, match="quadrotors"):
        plant.adapt(Marine())


def test_bodies_keep_their_structure(grasp):
    begun, ended = grasp
    assert jax.tree.structure(begun.body) == jax.tree.structure(ended.body)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ended.body))


def test_a_scripted_grasp_lifts_the_cube_and_both_pads_feel_it(grasp):
    _, ended = grasp
    assert (np.asarray(ended.progress.highest) > 0.05).any()
    held = np.asarray(ended.body.cube.position.z) > 0.05
    assert (np.asarray(ended.body.forces.fixed)[held] > 0.2).all()
    assert (np.asarray(ended.body.forces.jaw)[held] > 0.2).all()
