"""How worlds go on after an end: on a task so small that every number can be said beforehand."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from slipstream.chance import Chance
from slipstream.env import Box, Spec, State, advance, prepare


@dataclass(frozen=True)
class Climb:
    """Each agent adds its actions up: 3 is the top and terminates, below −3 it is given up, which truncates."""

    agents: int = 2

    @property
    def spec(self):
        return Spec(1, Box(1), 1.0, self.agents)

    def reset(self, chance):
        start, chance = chance.uniform()
        zero, no = jnp.zeros(self.agents), jnp.zeros(self.agents, bool)
        return State(start, zero, zero, chance, jnp.int32(0), zero, no, no)

    def step(self, state, action):
        height = state.body + action
        return replace(
            state, body=height, step=state.step + 1, reward=action, terminated=height >= 3.0, truncated=height <= -3.0
        )

    def observe(self, state):
        return state.body[:, None]

    def figures(self, state):
        return {"score": state.body}


def gone(state, *actions):
    for action in actions:
        state = advance(Climb(), state, jnp.array(action))
    return state


def started():
    return Climb().reset(Chance.of(0, 0))


def test_an_agent_that_has_ended_waits_without_reward_and_stays_ended_in_its_own_way():
    top = gone(started(), (3.0, 1.0))
    assert top.terminated.tolist() == [True, False]
    # Whatever becomes of its body: it has terminated, and has not been truncated as well.
    fallen = gone(top, (-9.0, 1.0))
    assert fallen.reward.tolist() == [0.0, 1.0]
    assert fallen.terminated.tolist() == [True, False]
    assert fallen.truncated.tolist() == [False, False]
    lost = gone(started(), (-3.0, 1.0), (9.0, 1.0))
    assert lost.terminated.tolist() == [False, False]
    assert lost.truncated.tolist() == [True, False]


def test_a_world_restarts_on_the_step_after_its_last_agent_has_ended():
    both = gone(started(), (3.0, 1.0), (0.0, 2.0))
    assert both.ended.tolist() == [True, True]
    assert int(both.step) == 2
    fresh = gone(both, (1.0, 1.0))
    assert int(fresh.step) == 0
    assert fresh.ended.tolist() == [False, False]
    assert fresh.body.tolist() == [0.0, 0.0]
    assert float(fresh.world) != float(both.world)


def test_a_start_is_drawn_from_numbers_that_no_step_sees():
    state = started()
    start = float(prepare(Climb(), state).state.world)
    stream, seen = state.chance, []
    for _ in range(20):
        number, stream = stream.uniform()
        seen.append(float(number))
    assert start not in seen
