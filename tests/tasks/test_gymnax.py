"""Environments of gymnax as tasks: their ends are told apart, their actions scaled, and they can be learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Chance
from slipstream.core.task import Box, Discrete, Env, advance
from slipstream.tasks.gymnax.task import Gymnax


def test_a_clock_that_runs_out_is_no_end():
    env = Gymnax("MountainCar-v0")
    assert isinstance(env, Env)
    assert env.spec.action == Discrete(3) and env.spec.observation == 2
    state = env.reset(Chance.of(0, 0))
    step = jax.jit(env.step)
    for _ in range(env.limit):
        state = step(state, jnp.int32(1))
    assert bool(state.truncated) and not bool(state.terminated)
    assert float(state.progress) == -env.limit
    assert int(advance(env, state, jnp.int32(1)).step) == 0


def test_a_fall_is_an_end():
    env = Gymnax("CartPole-v1", 475.0)
    state = env.reset(Chance.of(0, 0))
    step = jax.jit(env.step)
    while not bool(state.ended):
        state = step(state, jnp.int32(1))
    assert bool(state.terminated) and not bool(state.truncated)
    assert float(env.figures(state)["success"]) == 0.0
    assert float(env.figures(state)["score"]) == int(state.step)


def test_numbers_between_minus_one_and_one_are_the_whole_range():
    env = Gymnax("Pendulum-v1")
    assert env.spec.action == Box(1)
    state = env.reset(Chance.of(0, 0))
    still, full = (jax.jit(env.step)(state, jnp.full(1, action)) for action in (0.0, 1.0))
    # The cost of full torque is 0.001 times its square, and that of the largest torque 2 is 0.004.
    assert float(still.reward - full.reward) == pytest.approx(0.004, abs=1e-4)


def test_worlds_start_apart():
    env = Gymnax("CartPole-v1")
    states = jax.vmap(lambda k: env.reset(Chance.of(0, k)))(jnp.arange(32))
    assert len(np.unique(np.asarray(states.body.seen)[:, 0])) == 32


def test_what_gymnax_does_not_have_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'CartPole-v1'"):
        _ = Gymnax("CartPole-v2").spec
