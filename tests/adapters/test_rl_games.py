"""rl_games: time-outs, spaces by which it trains several choices, tensors that stay where they are."""

import pytest

pytest.importorskip("rl_games", reason="pip install torch==2.13.0 rl-games")
import torch
from ladder import Ladder

from slipstream.adapters.rl_games import SlipstreamVecEnv, register

NETWORK = {
    "name": "actor_critic", "separate": False,
    "mlp": {"units": [16], "activation": "elu", "initializer": {"name": "default"}},
}  # fmt: skip
CONTINUOUS = {
    "mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
    "sigma_init": {"name": "const_initializer", "val": 0}, "fixed_sigma": True,
}  # fmt: skip
KINDS = {"box": ("continuous", CONTINUOUS), "discrete": ("discrete", {}), "multidiscrete": ("multi_discrete", {})}


def climbing(env, steps):
    env.reset()
    return [env.step(torch.tensor([[1.0], [0.0]])) for _ in range(steps)]


def test_time_outs_are_told_apart_from_ends_and_the_last_observation_is_kept():
    rows = climbing(SlipstreamVecEnv(Ladder(), 2), 5)
    observation, reward, dones, infos = rows[2]
    assert dones.tolist() == [True, False] and not infos["time_outs"].any() and reward.tolist() == [1.0, 0.0]
    assert observation[0].tolist() == [0.0, 0.0] and infos["final_observations"][0].tolist() == [3.0, 3.0]
    assert rows[4][3]["time_outs"].tolist() == [False, True]


def test_tensors_are_shared_and_rewards_are_not():
    env = SlipstreamVecEnv(Ladder(), 64)
    env.reset()
    seen = []
    step = env.worlds.step
    env.worlds.step = lambda action: seen.append(step(action)) or seen[-1]
    observation, reward, *_ = env.step(torch.zeros((64, 1)))
    assert observation.data_ptr() == seen[0].observation.features.unsafe_buffer_pointer()
    assert reward.data_ptr() != seen[0].reward.unsafe_buffer_pointer()


def test_a_central_value_gets_the_states_and_choices_are_a_tuple():
    env = SlipstreamVecEnv(Ladder("multidiscrete", critic=True), 2)
    observed = env.reset()
    assert observed["obs"].shape == (2, 2) and observed["states"].shape == (2, 3)
    info = env.get_env_info()
    assert info["state_space"].shape == (3,)
    assert type(info["action_space"]).__name__ == "Tuple" and [s.n for s in info["action_space"]] == [3, 2]
    assert set(SlipstreamVecEnv(Ladder(camera=True), 2).reset()) == {"features", "image"}


def test_actors_that_do_not_fill_worlds_are_refused():
    with pytest.raises(ValueError, match="must be a multiple"):
        SlipstreamVecEnv(Ladder(agents=2), 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "task", [Ladder(), Ladder("discrete"), Ladder("multidiscrete"), Ladder("discrete", agents=2)],
    ids=["box", "discrete", "multidiscrete", "two agents"],
)  # fmt: skip
def test_rl_games_trains(task, tmp_path):
    from rl_games.torch_runner import Runner

    register()
    kind, space = KINDS[task.space]
    config = {
        "name": "tiny", "env_name": "slipstream", "env_config": {"task": task}, "num_actors": 16, "device": "cpu",
        "ppo": True, "normalize_input": True, "normalize_value": True, "normalize_advantage": True,
        "reward_shaper": {"scale_value": 1.0}, "gamma": 0.97, "tau": 0.95, "learning_rate": 1e-3, "e_clip": 0.2,
        "lr_schedule": None, "kl_threshold": 0.01, "entropy_coef": 0.0, "critic_coef": 1.0, "clip_value": False,
        "truncate_grads": True, "grad_norm": 1.0, "horizon_length": 8, "minibatch_size": 64, "mini_epochs": 2,
        "max_epochs": 2, "value_bootstrap": True, "save_best_after": 100, "save_frequency": 0, "bounds_loss_coef": 0.0,
        "train_dir": str(tmp_path), "score_to_win": 1e9, "torch_compile": False,
    }  # fmt: skip
    algorithm = "a2c_continuous" if kind == "continuous" else "a2c_discrete"
    runner = Runner()
    runner.load({
        "params": {
            "seed": 1, "algo": {"name": algorithm},
            "model": {"name": "continuous_a2c_logstd" if kind == "continuous" else f"{kind}_a2c"},
            "network": NETWORK | {"space": {kind: space}}, "config": config,
        }
    })  # fmt: skip
    runner.reset()
    runner.run({"train": True, "play": False})
