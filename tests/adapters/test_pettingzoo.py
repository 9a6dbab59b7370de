"""PettingZoo: its parallel API test passes, and agents leave as they end."""

import warnings

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="pip install pettingzoo")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of itself when it is imported
    from pettingzoo.test import parallel_api_test, parallel_seed_test

from ladder import Ladder

from slipstream.adapters.pettingzoo import parallel_env

KINDS = {
    "box": Ladder(agents=3), "discrete": Ladder("discrete", agents=2), "one agent": Ladder("multidiscrete"),
    "camera": Ladder("multidiscrete", agents=2, camera=True),
}  # fmt: skip


@pytest.mark.parametrize("task", KINDS.values(), ids=KINDS.keys())
def test_the_parallel_api_test_passes(task):
    parallel_api_test(parallel_env(task), num_cycles=20)


def test_marine_passes_and_the_same_seed_gives_the_same_episode():
    parallel_seed_test(lambda: parallel_env("marine"), num_cycles=20)


def test_an_agent_leaves_at_its_end_and_the_others_go_on():
    env = parallel_env(Ladder("discrete", agents=2), render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(2):
        env.step({"agent_0": 2, "agent_1": 1})
    observations, rewards, terminated, truncated, infos = env.step({"agent_0": 2, "agent_1": 1})
    assert observations["agent_0"].tolist() == [3.0, 3.0] and rewards == {"agent_0": 1.0, "agent_1": 0.0}
    assert terminated == {"agent_0": True, "agent_1": False} and not any(truncated.values())
    assert infos == {"agent_0": {"metrics": {"success": 1.0, "height": 3.0}}, "agent_1": {}}
    assert env.agents == ["agent_1"]
    env.step({"agent_1": 1})
    observations, _, terminated, truncated, _ = env.step({"agent_1": 1})
    assert set(observations) == {"agent_1"} and truncated == {"agent_1": True} and env.agents == []
    assert env.render().dtype == np.uint8


def test_agents_that_are_not_there_are_refused():
    env = parallel_env(Ladder(agents=2))
    env.reset()
    with pytest.raises(ValueError, match="no agents captain"):
        env.step({"captain": np.zeros(1)})
