"""How worlds go on after an end: on a task so small that every number can be said beforehand."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.core.rng import Rng
from slipstream.core.spaces import Box
from slipstream.core.task import Spec, State, Task, advance, draw_restart
from slipstream.learn.rollout import advance_worlds, with_restarts


@dataclass(frozen=True)
class Climb(Task):
    """Each agent adds its actions up: 3 is the top and terminates, below −3 it is given up, which truncates."""

    agents: int = 2

    @property
    def spec(self):
        return Spec(1, Box(1), 1.0, self.agents)

    def reset(self, rng):
        start, rng = rng.uniform()
        zero, no = jnp.zeros(self.agents), jnp.zeros(self.agents, bool)
        return State(start, zero, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state, action):
        height = state.body + action
        return replace(
            state, body=height, step=state.step + 1, reward=action, terminated=height >= 3.0, truncated=height <= -3.0
        )

    def observe(self, state):
        return state.body[:, None]

    def episode_metrics(self, state):
        return {"episode_return": state.body}


def gone(state, *actions):
    for action in actions:
        state = advance(Climb(), state, jnp.array(action))
    return state


def first_state():
    return Climb().reset(Rng.from_seed(0, 0))


def test_an_agent_that_has_ended_waits_without_reward_and_stays_ended_in_its_own_way():
    top = gone(first_state(), (3.0, 1.0))
    assert top.terminated.tolist() == [True, False]
    # Whatever becomes of its body: it has terminated, and has not been truncated as well.
    fallen = gone(top, (-9.0, 1.0))
    assert fallen.reward.tolist() == [0.0, 1.0]
    assert fallen.terminated.tolist() == [True, False]
    assert fallen.truncated.tolist() == [False, False]
    lost = gone(first_state(), (-3.0, 1.0), (9.0, 1.0))
    assert lost.terminated.tolist() == [False, False]
    assert lost.truncated.tolist() == [True, False]


def test_a_world_restarts_on_the_step_after_its_last_agent_has_ended():
    both = gone(first_state(), (3.0, 1.0), (0.0, 2.0))
    assert both.ended.tolist() == [True, True]
    assert int(both.step) == 2
    fresh = gone(both, (1.0, 1.0))
    assert int(fresh.step) == 0
    assert fresh.ended.tolist() == [False, False]
    assert fresh.body.tolist() == [0.0, 0.0]
    assert float(fresh.world) != float(both.world)


def test_a_start_is_drawn_from_numbers_that_no_step_sees():
    state = first_state()
    start = float(draw_restart(Climb(), state).state.world)
    stream, seen = state.rng, []
    for _ in range(20):
        number, stream = stream.uniform()
        seen.append(float(number))
    assert start not in seen


@dataclass(frozen=True)
class Islands(Task):
    """Two agents on an island with a number; each keeps the number of the island it came to."""

    @property
    def spec(self):
        return Spec(1, Box(1), 1.0, 2)

    def reset(self, rng):
        island, rng = rng.integer(1_000_000)
        no = jnp.zeros(2, bool)
        return State(island, jnp.int32(0), jnp.full(2, island), rng, jnp.zeros(2, jnp.int32), jnp.zeros(2), no, no)

    def step(self, state, action):
        clock = state.body + 1
        sunk = clock >= 5
        # The first of them leaves every other step.
        gone = jnp.array([clock % 2 == 0, False]) & ~sunk
        return replace(state, body=clock, rng=state.rng.bits()[1], terminated=gone, truncated=jnp.full(2, sunk) & ~gone)

    def observe(self, state):
        return jnp.zeros((2, 1))

    def episode_metrics(self, state):
        return {"episode_return": state.reward}

    def draw_respawns(self, rng, state):
        return jnp.full(2, state.world)

    def respawn(self, state, respawns, who):
        return replace(
            state,
            progress=jnp.where(who, respawns, state.progress),
            terminated=state.terminated & ~who,
            truncated=(state.truncated & ~who) | (state.body >= 5),
        )


def test_nobody_rejoins_with_a_start_of_a_world_that_was_replaced():
    task = Islands()
    states = jax.vmap(lambda world: task.reset(Rng.from_seed(0, world)))(jnp.arange(8))

    def tick(fresh, carry):
        states, stale, rest = carry
        states, stale = advance_worlds(task, states, jnp.zeros((8, 2, 1)), fresh, stale)
        return (states, stale, rest), states

    _, seen = with_restarts(task, tick, states, None, 64)
    islands = np.asarray(seen.world)
    assert len(np.unique(islands)) > 8 * 2
    there = ~np.asarray(seen.ended)
    assert np.all((np.asarray(seen.progress) == islands[..., None]) | ~there)
    # They do come back: once a window has begun with the new island.
    assert np.mean(there[:, :, 0]) > 0.3
