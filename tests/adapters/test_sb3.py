"""Stable-Baselines3 and sbx: true last observations, time limits told apart, and all their trainers run."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="pip install torch==2.13.0 stable-baselines3")
import stable_baselines3 as sb3
from ladder import Ladder
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy

from slipstream.adapters.gymnasium import SlipstreamEnv
from slipstream.adapters.sb3 import SlipstreamVecEnv

TINY = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "device": "cpu"}


def climbing(env, steps):
    env.reset()
    return [env.step(np.array([[1.0], [0.0]], np.float32)) for _ in range(steps)]


def test_the_last_observation_is_true_and_time_limits_are_told_apart():
    rows = climbing(SlipstreamVecEnv(Ladder(), 2), 5)
    observation, reward, done, infos = rows[2]
    assert done.tolist() == [True, False] and observation[0].tolist() == [0.0, 0.0]
    assert infos[0]["terminal_observation"].tolist() == [3.0, 3.0] and not infos[0]["TimeLimit.truncated"]
    assert infos[0]["is_success"] and infos[0]["episode"]["r"] == 3.0 and infos[0]["episode"]["l"] == 3
    assert infos[1] == {} and reward.dtype == np.float32 and reward.flags.writeable
    _, _, done, infos = rows[4]
    assert done.tolist() == [False, True] and infos[1]["TimeLimit.truncated"]
    assert infos[1]["terminal_observation"].tolist() == [0.0, 5.0]


def test_an_agent_that_waits_is_done_but_counts_no_episode():
    rows = climbing(SlipstreamVecEnv(Ladder(agents=2), 1), 5)
    assert [r[2].tolist() for r in rows] == [[False, False]] * 2 + [[True, False]] * 2 + [[True, True]]
    assert [["episode" in info for info in r[3]] for r in rows[2:]] == [[True, False], [False, False], [False, True]]
    assert rows[4][0].tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("task", [Ladder(), Ladder("discrete"), Ladder("multidiscrete")], ids=lambda t: t.space)
def test_the_checker_of_stable_baselines3_passes(task):
    check_env(SlipstreamEnv(task, render_mode="rgb_array"), warn=False)


@pytest.mark.parametrize(
    ("task", "algorithm", "settings"),
    [
        (Ladder(), "PPO", TINY),
        (Ladder("discrete", agents=2), "PPO", TINY),
        (Ladder("multidiscrete"), "PPO", TINY),
        (Ladder("discrete", camera=True), "PPO", TINY),
        (Ladder(), "SAC", {"learning_starts": 16, "train_freq": 1, "batch_size": 16, "device": "cpu"}),
        (Ladder("discrete"), "DQN", {"learning_starts": 16, "train_freq": 1, "batch_size": 16, "device": "cpu"}),
    ],
    ids=["box", "discrete, two agents", "multidiscrete", "camera", "sac", "dqn"],
)
def test_stable_baselines3_trains(task, algorithm, settings):
    env = SlipstreamVecEnv(task, 4 // task.agents)
    kind = "MultiInputPolicy" if task.camera else "MlpPolicy"
    if task.camera:
        # Its convolutions need images of at least 36 pixels.
        settings = settings | {"policy_kwargs": {"features_extractor_class": flat_extractor()}}
    model = getattr(sb3, algorithm)(kind, env, **settings)
    model.learn(64)
    assert model.ep_info_buffer and set(model.ep_info_buffer[0]) >= {"r", "l", "t"}
    mean, _ = evaluate_policy(model, SlipstreamVecEnv(task, 2, evaluation=True), n_eval_episodes=2)
    assert np.isfinite(mean)


def flat_extractor():
    from stable_baselines3.common.preprocessing import get_flattened_obs_dim
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Flat(BaseFeaturesExtractor):
        def __init__(self, space):
            super().__init__(space, get_flattened_obs_dim(space))

        def forward(self, observations):
            import torch

            return torch.cat([value.flatten(1) for value in observations.values()], 1)

    return Flat


def test_a_value_learned_across_a_time_limit_keeps_what_is_beyond():
    """Standing still earns nothing and time runs out: the replay says that this is no end."""
    env = SlipstreamVecEnv(Ladder(), 2)
    model = sb3.SAC("MlpPolicy", env, learning_starts=1000, device="cpu")
    model.learn(40)
    buffer = model.replay_buffer
    done, cut = buffer.dones[: buffer.pos] > 0, buffer.timeouts[: buffer.pos] > 0
    assert done.any() and (done >= cut).all()
    ends = buffer.next_observations[: buffer.pos][done]
    assert ((ends[:, 0] >= 3.0) | (ends[:, 1] == 5.0)).all()


@pytest.mark.parametrize(("algorithm", "task"), [("PPO", Ladder("multidiscrete")), ("SAC", Ladder())])
def test_sbx_trains(algorithm, task):
    sbx = pytest.importorskip("sbx", reason="pip install sbx-rl")
    settings = {"n_steps": 8, "batch_size": 16, "n_epochs": 1} if algorithm == "PPO" else {"learning_starts": 16}
    model = getattr(sbx, algorithm)("MlpPolicy", SlipstreamVecEnv(task, 4), **settings)
    model.learn(64)
    assert model.num_timesteps >= 64


def test_what_cannot_be_done_is_said():
    env = SlipstreamVecEnv(Ladder(), 2)
    with pytest.raises(ValueError, match="all of them or for none"):
        env.set_attr("task", None, indices=0)
    with pytest.raises(AttributeError, match="one program"):
        env.env_method("render")
    with pytest.raises(ValueError, match="render_mode"):
        SlipstreamVecEnv(Ladder(), 2, render_mode="human")
    with pytest.raises(RuntimeError, match="call reset"):
        SlipstreamVecEnv(Ladder(), 2, render_mode="rgb_array").render()
