import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.learn.returns import gae


def slow_advantages(reward, value, next_value, terminated, truncated, discount, trace):
    """One number at a time."""
    out = np.zeros_like(reward)
    for world in range(reward.shape[1]):
        ahead = 0.0
        for t in reversed(range(len(reward))):
            future = 0.0 if terminated[t, world] else next_value[t, world]
            difference = reward[t, world] + discount * future - value[t, world]
            ahead = difference if terminated[t, world] or truncated[t, world] else difference + discount * trace * ahead
            out[t, world] = ahead
    return out


@pytest.mark.parametrize("seed", range(5))
def test_advantages_are_those_of_a_slow_loop(seed):
    random = np.random.default_rng(seed)
    shape = (40, 6)
    reward, value, next_value = (random.normal(size=shape).astype(np.float32) for _ in range(3))
    terminated, truncated = random.random(shape) < 0.1, random.random(shape) < 0.1
    truncated &= ~terminated
    fast = gae(*map(jnp.asarray, (reward, value, next_value, terminated, truncated)), 0.97, 0.9)
    slow = slow_advantages(reward, value, next_value, terminated, truncated, 0.97, 0.9)
    np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-5)


def one(terminated, truncated):
    x = jnp.ones((1, 1))
    flags = (jnp.full((1, 1), flag) for flag in (terminated, truncated))
    return float(gae(x, 0 * x, 10 * x, *flags, 0.9, 0.95)[0, 0])


def test_truncation_keeps_the_value_that_termination_forgets():
    assert one(terminated=True, truncated=False) == pytest.approx(1.0)
    assert one(terminated=False, truncated=True) == pytest.approx(1.0 + 0.9 * 10.0)


def test_nothing_leaks_from_the_episode_that_follows():
    reward = jnp.array([[0.0], [0.0], [100.0]])
    zero, no = jnp.zeros((3, 1)), jnp.zeros((3, 1), bool)
    for flags in ((no.at[1].set(True), no), (no, no.at[1].set(True))):
        assert float(gae(reward, zero, zero, *flags, 0.99, 0.95)[0, 0]) == 0.0
