"""Train recovery to hover by rl_games' PPO, and score the policy on worlds it has not seen.

python examples/train_with_rl_games.py runs/hover-rl-games 370
"""

import sys
from pathlib import Path

import torch
from rl_games.torch_runner import Runner

from slipstream.adapters.arrays import from_torch, to_torch
from slipstream.adapters.rl_games import register
from slipstream.adapters.trial import score

NETWORK = {
    "name": "actor_critic", "separate": True,
    "mlp": {"units": [64, 64], "activation": "tanh", "initializer": {"name": "default"}},
    "space": {"continuous": {
        "mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
        "sigma_init": {"name": "const_initializer", "val": -1.0}, "fixed_sigma": True,
    }},
}  # fmt: skip
CONFIG = {
    "name": "hover", "env_name": "slipstream", "env_config": {"task": "hover"}, "num_actors": 64, "device": "cpu",
    "ppo": True, "normalize_input": False, "normalize_value": False, "normalize_advantage": True,
    "reward_shaper": {"scale_value": 1.0}, "gamma": 0.97, "tau": 0.95, "learning_rate": 1e-3, "lr_schedule": None,
    "e_clip": 0.2, "entropy_coef": 0.0, "critic_coef": 1.0, "clip_value": False, "truncate_grads": True,
    "grad_norm": 0.5, "horizon_length": 64, "minibatch_size": 512, "mini_epochs": 5, "value_bootstrap": True,
    "save_best_after": 10_000, "save_frequency": 0, "bounds_loss_coef": 0.0, "score_to_win": 1e9,
    "torch_compile": False,
}  # fmt: skip


def main(folder: str = "runs/hover-rl-games", epochs: int = 370) -> float:
    torch.set_num_threads(1)
    register()
    config = CONFIG | {"max_epochs": epochs, "train_dir": folder}
    model = {"name": "continuous_a2c_logstd"}
    runner = Runner()
    runner.load(
        {
            "params": {
                "seed": 0,
                "algo": {"name": "a2c_continuous"},
                "model": model,
                "network": NETWORK,
                "config": config,
            }
        }
    )
    agent = runner.algo_factory.create("a2c_continuous", base_name="run", params=runner.params)
    agent.train()
    agent.save(str(Path(folder) / "hover"))

    def act(observed):
        with torch.inference_mode():
            out = agent.model({"is_train": False, "prev_actions": None, "obs": to_torch(observed.features)})
            return from_torch(out["mus"])

    found = score("hover", act)
    print(f"{100 * found['success']:.1f} % hover; the agent is {folder}/hover.pth")
    return found["success"]


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
