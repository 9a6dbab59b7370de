"""Environments of gymnax as tasks: their ends are told apart, their actions scaled, and worlds start apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Rng
from slipstream.core.spaces import Box, Discrete
from slipstream.core.task import Task, advance
from slipstream.tasks.gymnax.task import Gymnax


def test_a_clock_that_runs_out_is_no_end():
    task = Gymnax("MountainCar-v0")
    assert isinstance(task, Task)
    assert task.spec.action == Discrete(3) and task.spec.observation == 2
    state = task.reset(Rng.from_seed(0, 0))
    step = jax.jit(task.step)
    for _ in range(task.max_steps):
        state = step(state, jnp.int32(1))
    assert bool(state.truncated) and not bool(state.terminated)
    assert float(state.progress) == -task.max_steps
    assert int(advance(task, state, jnp.int32(1)).step) == 0


def test_a_fall_is_an_end():
    task = Gymnax("CartPole-v1", 475.0)
    state = task.reset(Rng.from_seed(0, 0))
    step = jax.jit(task.step)
    while not bool(state.ended):
        state = step(state, jnp.int32(1))
    assert bool(state.terminated) and not bool(state.truncated)
    assert float(task.episode_metrics(state)["success"]) == 0.0
    assert float(task.episode_metrics(state)["episode_return"]) == int(state.step)


def test_numbers_between_minus_one_and_one_are_the_whole_range():
    task = Gymnax("Pendulum-v1")
    assert task.spec.action == Box(1)
    state = task.reset(Rng.from_seed(0, 0))
    still, full = (jax.jit(task.step)(state, jnp.full(1, action)) for action in (0.0, 1.0))
    # The cost of full torque is 0.001 times its square, and that of the largest torque 2 is 0.004.
    assert float(still.reward - full.reward) == pytest.approx(0.004, abs=1e-4)


def test_worlds_start_apart():
    task = Gymnax("CartPole-v1")
    states = jax.vmap(lambda k: task.reset(Rng.from_seed(0, k)))(jnp.arange(32))
    assert len(np.unique(np.asarray(states.body.observation)[:, 0])) == 32


def test_what_gymnax_does_not_have_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'CartPole-v1'"):
        _ = Gymnax("CartPole-v2").spec
