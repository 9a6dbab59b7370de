"""TorchRL: its own check of specs passes, and `next` holds the true last observation."""

import pytest

pytest.importorskip("torchrl", reason="pip install torch==2.13.0 torchrl 'tensordict<0.15'")
import torch
from ladder import Ladder
from tensordict import TensorDict
from torchrl.envs import check_env_specs

from slipstream.adapters.torchrl import SlipstreamEnv

KINDS = {
    "box": Ladder(), "discrete": Ladder("discrete"), "multidiscrete": Ladder("multidiscrete"),
    "camera": Ladder("discrete", camera=True), "two agents with a critic": Ladder(agents=2, critic=True),
}  # fmt: skip


@pytest.mark.parametrize("task", KINDS.values(), ids=KINDS.keys())
def test_the_check_of_torchrl_passes(task):
    check_env_specs(SlipstreamEnv(task, 4), break_when_any_done="both")


def test_next_holds_the_last_observation_and_time_limits_are_told_apart():
    env = SlipstreamEnv(Ladder(), 2)

    def climb(tensordict):
        return tensordict.set("action", torch.tensor([[1.0], [0.0]]))

    rows = env.rollout(6, climb, break_when_any_done=False)
    after = rows["next"]
    assert after["observation"][:, 2].tolist() == [[3.0, 3.0], [0.0, 3.0]]
    assert after["terminated"][:, 2].tolist() == [[True], [False]] and not after["truncated"][:, 2].any()
    assert rows["observation"][:, 3].tolist() == [[0.0, 0.0], [0.0, 3.0]]
    assert after["truncated"][:, 4].tolist() == [[False], [True]]
    assert after["observation"][1, 4].tolist() == [0.0, 5.0] and rows["observation"][1, 5].tolist() == [0.0, 0.0]


def test_an_agent_that_waits_is_not_alive():
    env = SlipstreamEnv(Ladder(agents=2), 1)

    def climb(tensordict):
        return tensordict.set("action", torch.tensor([[1.0], [0.0]]))

    rows = env.rollout(6, climb, break_when_any_done=False)
    assert rows["alive"][0, :, 0].tolist() == [True, True, True, False, False, True]
    assert rows["alive"][1, :, 0].all()
    assert rows["next", "reward"][0, :, 0].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]


def test_what_is_under_way_restarts_if_it_is_asked_for():
    env = SlipstreamEnv(Ladder(), 2)
    td = env.reset()
    td = env.step(td.set("action", torch.ones((2, 1))))["next"]
    asked = TensorDict({"_reset": torch.tensor([[True], [False]])}, batch_size=[2])
    again = env.reset(td.update(asked))
    assert again["observation"].tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_observations_are_shared_and_rewards_are_not():
    env = SlipstreamEnv(Ladder(camera=True), 64)
    seen = []
    step = env.worlds.step
    env.worlds.step = lambda action: seen.append(step(action)) or seen[-1]
    env.reset()
    row = env._step(TensorDict({"action": torch.zeros((64, 1))}, batch_size=[64]))
    assert row["observation"].data_ptr() == seen[0].final.features.unsafe_buffer_pointer()
    assert row["pixels"].data_ptr() == seen[0].final.image.unsafe_buffer_pointer()
    assert row["reward"].data_ptr() != seen[0].reward.unsafe_buffer_pointer()
