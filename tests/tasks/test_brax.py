"""Environments of Brax and MuJoCo Playground as tasks: a time-out is no end, and the last observation is kept."""

import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.adapters.vector import Worlds
from slipstream.core.rng import Rng
from slipstream.core.spaces import Box
from slipstream.pipeline.training import find_experiment
from slipstream.tasks.brax.task import Brax
from slipstream.tasks.playground.task import Playground

pytestmark = pytest.mark.filterwarnings("ignore")  # both libraries warn of what they are built on
needs_brax = pytest.mark.skipif(not importlib.util.find_spec("brax"), reason="pip install brax")
needs_playground = pytest.mark.skipif(
    not importlib.util.find_spec("mujoco_playground"), reason="pip install playground"
)


@needs_brax
def test_a_clock_that_runs_out_is_no_end_and_a_fall_is_one():
    worlds = Worlds(Brax("inverted_pendulum", time_limit_steps=8), 2)
    assert worlds.spec.action == Box(1) and worlds.spec.control_dt == pytest.approx(0.04)
    worlds.reset()
    steps = [worlds.step(jnp.asarray([[0.0], [1.0]])) for _ in range(8)]
    fall = next(k for k, step in enumerate(steps) if bool(step.terminated[1]))
    assert fall < 7 and float(steps[fall].final.features[1, 1]) != float(steps[fall].observation.features[1, 1])
    assert not bool(steps[fall].truncated[1])
    assert bool(steps[7].truncated[0]) and not bool(steps[7].terminated[0])
    assert float(steps[7].episode_return[0]) == 8.0
    assert all(np.isfinite(step.observation.features).all() for step in steps)


@needs_brax
def test_an_environment_is_named_by_its_library():
    experiment, name = find_experiment("brax:ant")
    assert experiment.task == Brax("ant") and name == "brax-ant"
    with pytest.raises(ValueError, match="did you mean 'ant'"):
        find_experiment("brax:aunt")
    with pytest.raises(ValueError, match="did you mean 'spring'"):
        _ = Brax("ant", backend="string").spec
    assert find_experiment("gymnax:Breakout-MinAtar")[0].task.environment == "Breakout-MinAtar"


@needs_playground
def test_playground_has_the_interface_of_a_task():
    """Traced only: compiling its physics takes half a minute."""
    experiment, _ = find_experiment("playground:CartpoleBalance")
    task = experiment.task
    assert task.spec.action == Box(1) and task.max_steps == 1000
    state = jax.eval_shape(task.reset, Rng.from_seed(0, 0))
    after = jax.eval_shape(task.step, state, jnp.zeros(1))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), after)
    assert jax.eval_shape(task.observe, state).shape == (task.spec.observation,)
    with pytest.raises(ValueError, match="did you mean 'CartpoleBalance'"):
        _ = Playground("CartpoleBalanse").spec


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    with pytest.raises(ValueError, match="pip install brax"):
        _ = Brax("ant").spec
