"""RSL-RL: groups of observations, time-outs, a clock that can be set, and PPO on every kind of action."""

import numpy as np
import pytest

pytest.importorskip("rsl_rl", reason="pip install torch==2.13.0 rsl-rl-lib")
import torch
from ladder import Ladder
from rsl_rl.runners import OnPolicyRunner

from slipstream.adapters.rsl_rl import MultiCategorical, SlipstreamVecEnv


def climbing(env, steps):
    env.reset()
    return [env.step(torch.tensor([[1.0], [0.0]])) for _ in range(steps)]


def test_time_outs_are_told_apart_from_ends_and_the_last_observation_is_kept():
    rows = climbing(SlipstreamVecEnv(Ladder(), 2), 5)
    groups, reward, dones, extras = rows[2]
    assert dones.tolist() == [True, False] and not extras["time_outs"].any() and reward.tolist() == [1.0, 0.0]
    assert groups["policy"][0].tolist() == [0.0, 0.0]
    assert extras["final_observations"]["policy"][0].tolist() == [3.0, 3.0]
    assert rows[4][3]["time_outs"].tolist() == [False, True] and rows[4][2].tolist() == [False, True]


def test_a_critic_has_a_group_of_its_own_and_images_have_channels_first():
    env = SlipstreamVecEnv(Ladder(critic=True, camera=True), 2)
    groups = env.get_observations()
    assert groups["policy"].shape == (2, 2) and groups["critic"].shape == (2, 3)
    assert groups["image"].shape == (2, 3, 4, 4)


def test_the_clock_of_episodes_can_be_set():
    env = SlipstreamVecEnv(Ladder(), 2, max_episode_length=5)
    env.episode_length_buf = torch.tensor([4, 0])
    _, _, dones, extras = env.step(torch.zeros((2, 1)))
    assert dones.tolist() == [True, False] and extras["time_outs"].tolist() == [True, False]
    assert env.episode_length_buf.tolist() == [0, 1] and env.episode_length_buf.dtype == torch.int64


def test_observations_are_shared_and_rewards_are_not():
    env = SlipstreamVecEnv(Ladder(), 64)
    seen = []
    step = env.worlds.step
    env.worlds.step = lambda action: seen.append(step(action)) or seen[-1]
    groups, reward, *_ = env.step(torch.zeros((64, 1)))
    assert groups["policy"].data_ptr() == seen[0].observation.features.unsafe_buffer_pointer()
    assert reward.data_ptr() != seen[0].reward.unsafe_buffer_pointer()


def test_the_distribution_is_that_of_independent_choices():
    torch.manual_seed(0)
    own = MultiCategorical(2, [3, 2])
    logits = torch.randn(20_000, 1).expand(-1, 5) * 0.0 + torch.tensor([0.0, 1.0, 2.0, 0.5, -0.5])
    own.update(logits)
    sampled = own.sample()
    first, second = torch.softmax(logits[0, :3], 0), torch.softmax(logits[0, 3:], 0)
    assert np.allclose([(sampled[:, 0] == k).float().mean() for k in range(3)], first, atol=0.02)
    together = ((sampled[:, 0] == 2) & (sampled[:, 1] == 0)).float().mean()
    assert together.item() == pytest.approx(float(first[2] * second[0]), abs=0.02)
    assert own.log_prob(torch.tensor([[2.0, 0.0]]).expand(20_000, 2))[0].exp() == pytest.approx(
        float(first[2] * second[0]), abs=1e-5
    )
    assert own.deterministic_output(logits)[0].tolist() == [2.0, 0.0]
    assert own.kl_divergence(own.params, own.params).abs().max() == 0.0
    assert own.as_deterministic_output_module()(logits)[0].tolist() == [2.0, 0.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "task",
    [
        Ladder(),
        Ladder("discrete", critic=True),
        Ladder("multidiscrete"),
        Ladder("discrete", agents=2),
        Ladder(camera=True),
    ],
    ids=["box", "discrete with a critic", "multidiscrete", "two agents", "camera"],
)
def test_rsl_rl_trains(task):
    env = SlipstreamVecEnv(task, 16 // task.agents)
    model = {"class_name": "MLPModel", "hidden_dims": [16], "activation": "elu"}
    groups = ["policy"]
    if task.camera:
        cnn = {"output_channels": [4], "kernel_size": 3, "stride": 1, "flatten": True}
        model, groups = model | {"class_name": "CNNModel", "cnn_cfg": cnn}, ["policy", "image"]
    cfg = {
        "num_steps_per_env": 8, "save_interval": 100, "obs_groups": {"actor": groups, "critic": groups},
        "actor": model | {"distribution_cfg": env.distribution_cfg}, "critic": model,
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2,
                      "schedule": "adaptive", "desired_kl": 0.01},
    }  # fmt: skip
    if task.critic:
        cfg["obs_groups"]["critic"] = ["critic"]
    runner = OnPolicyRunner(env, cfg, log_dir=None, device="cpu")
    before = [p.clone() for p in runner.alg.actor.parameters()]
    runner.learn(2, init_at_random_ep_len=True)
    after = list(runner.alg.actor.parameters())
    assert all(torch.isfinite(p).all() for p in after)
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
