"""The replay gives back what was lived through: checked against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.spaces import Discrete
from slipstream.core.task import Spec
from slipstream.learn.replay import (
    Cursor,
    Sampling,
    add_transitions,
    init_replay,
    sample,
    sample_tree,
    set_priorities,
    tree_leaves,
)
from slipstream.learn.rollout import Transition

LENGTH, WORLDS = 4, 3


def lived(spec, rollouts, seed=0):
    """Transitions of worlds that are all different, with ends of both kinds and agents that wait."""
    rng = np.random.default_rng(seed)
    shape = (rollouts * LENGTH, WORLDS, *((spec.agents,) if spec.agents > 1 else ()))
    ended = rng.uniform(size=shape) < 0.2
    terminated = ended & (rng.uniform(size=shape) < 0.5)
    valid = np.ones(shape, bool)
    valid[1:] = ~ended[:-1]
    return Transition(
        observation=rng.normal(size=(*shape, spec.observation)).astype(np.float32),
        action=rng.integers(0, 3, shape).astype(np.int32),
        log_prob=None,
        value=None,
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=terminated,
        truncated=ended & ~terminated,
        valid=valid,
    )


def filled(spec, rollouts, room, prioritized=False):
    replay, transitions = init_replay(spec, WORLDS, room, prioritized), lived(spec, rollouts)
    for k in range(rollouts):
        part = jax.tree.map(lambda x, k=k: jnp.asarray(x[k * LENGTH : (k + 1) * LENGTH]), transitions)
        replay = add_transitions(replay, part, jnp.int32(k * LENGTH % room), jnp.float32(1.0))
    done = rollouts * LENGTH
    return replay, transitions, Cursor(jnp.int32(done % room), jnp.int32(min(done, room)))


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("rollouts", [3, 11])  # not yet full, and long since overwritten
def test_a_batch_is_what_followed_up_to_an_end_of_the_same_agent(agents, prioritized, rollouts):
    spec, room, steps, discount = Spec(5, Discrete(3), 1.0, agents), 16, 3, 0.9
    replay, transitions, cursor = filled(spec, rollouts, room, prioritized)
    batch = sample(replay, jax.random.key(1), cursor, Sampling(256, steps, discount), 0.5)
    flat = [np.asarray(x).reshape(rollouts * LENGTH, WORLDS, agents, -1) for x in jax.tree.leaves(transitions)]
    observation, action, reward, terminated, truncated, valid = flat
    newest = rollouts * LENGTH - 1
    checked = 0
    for k in range(256):
        if batch.weight[k] == 0.0:
            continue
        world, place, who = int(batch.world[k]), int(batch.leaf[k]) // agents, int(batch.leaf[k]) % agents
        time = newest - (newest - place) % room  # the latest step that was written there
        assert valid[time, world, who]
        total, scale, at = 0.0, 1.0, time
        for _ in range(steps):
            total, scale = total + scale * reward[at, world, who, 0], scale * discount
            over = terminated[at, world, who, 0] or truncated[at, world, who, 0]
            last, at = terminated[at, world, who, 0], at + 1
            if over:
                break
        assert np.allclose(batch.observation[k], observation[time, world, who])
        assert int(batch.action[k]) == int(action[time, world, who, 0])
        assert float(batch.reward[k]) == pytest.approx(total, abs=1e-5)
        assert float(batch.discount[k]) == pytest.approx(0.0 if last else scale, abs=1e-6)
        assert np.allclose(batch.next_observation[k], observation[at, world, who])
        checked += 1
    assert checked > 128


def test_sums_of_priorities_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    tree, plain = jnp.zeros((2, 2 * tree_leaves(11))), np.zeros((2, 16))
    for _ in range(20):
        world, leaf = rng.integers(0, 2, 7), rng.permutation(11)[:7]
        priority = rng.uniform(size=7).astype(np.float32)
        tree = set_priorities(tree, jnp.asarray(world), jnp.asarray(leaf), jnp.asarray(priority))
        plain[world, leaf] = priority
    assert np.allclose(tree[:, 16:], plain)
    assert np.allclose(tree[:, 1], plain.sum(1), rtol=1e-5)
    assert np.allclose(tree[:, 2:4].sum(1), plain.sum(1), rtol=1e-5)


def test_leaves_are_drawn_by_their_priority():
    priority = np.array([[0.0, 1.0, 3.0, 0.0], [4.0, 0.0, 0.0, 2.0]], np.float32)
    tree = jnp.zeros((2, 8))
    for world in range(2):
        tree = set_priorities(tree, jnp.full(4, world), jnp.arange(4), jnp.asarray(priority[world]))
    world, leaf, probability = sample_tree(tree, (jnp.arange(10_000) + 0.5) / 10_000)
    drawn = np.zeros((2, 4))
    np.add.at(drawn, (np.asarray(world), np.asarray(leaf)), 1e-4)
    assert np.allclose(drawn, priority / 10.0, atol=1e-3)
    assert np.allclose(probability, priority[world, leaf] / 10.0, atol=1e-5)


def test_nothing_is_learned_from_before_there_is_enough():
    spec = Spec(5, Discrete(3), 1.0)
    replay = init_replay(spec, WORLDS, 16, False)
    batch = sample(replay, jax.random.key(0), Cursor(jnp.int32(0), jnp.int32(0)), Sampling(8, 3, 0.9))
    assert not batch.weight.any()


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_step_is_learned_from_once_all_that_follows_it_is_there(prioritized):
    spec, steps = Spec(5, Discrete(3), 1.0), LENGTH
    replay, _, cursor = filled(spec, 1, 16, prioritized)
    assert int(cursor.filled) == steps
    assert not sample(replay, jax.random.key(0), cursor, Sampling(64, steps, 0.9)).weight.any()
    assert sample(replay, jax.random.key(0), cursor, Sampling(64, steps - 1, 0.9)).weight.any()


@pytest.mark.parametrize("agents", [1, 2])
def test_new_entries_come_in_with_the_highest_priority_and_restarts_with_none(agents):
    spec = Spec(5, Discrete(3), 1.0, agents)
    transitions = jax.tree.map(jnp.asarray, lived(spec, 2))
    replay = add_transitions(init_replay(spec, WORLDS, 16, True), transitions, jnp.int32(4), jnp.float32(2.5))
    priority = np.asarray(replay.tree)[:, tree_leaves(16 * agents) :].reshape(WORLDS, 16, agents)
    valid = np.moveaxis(np.asarray(transitions.valid).reshape(2 * LENGTH, WORLDS, agents), 0, 1)
    assert 0 < valid.sum() < valid.size
    np.testing.assert_array_equal(priority[:, 4:12], 2.5 * valid)
    assert not priority[:, :4].any() and not priority[:, 12:].any()
