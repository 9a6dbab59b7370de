"""Train recovery to hover by RSL-RL's PPO, and score the policy on worlds it has not seen.

python examples/train_with_rsl_rl.py hover-rsl.pt 370
"""

import sys

import torch
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from slipstream.adapters.arrays import from_torch, to_torch
from slipstream.adapters.rsl_rl import SlipstreamVecEnv
from slipstream.adapters.trial import score


def main(path: str = "hover-rsl.pt", iterations: int = 370) -> float:
    torch.set_num_threads(1)
    env = SlipstreamVecEnv("hover", worlds=64, seed=0)
    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh"}
    cfg = {
        "num_steps_per_env": 64, "save_interval": 10_000, "check_for_nan": False,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": network | {"distribution_cfg": env.distribution_cfg | {"init_std": 0.37}}, "critic": network,
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": 5, "num_mini_batches": 8, "gamma": 0.97,
            "entropy_coef": 0.0, "schedule": "fixed", "learning_rate": 1e-3,
        },
    }  # fmt: skip
    runner = OnPolicyRunner(env, cfg, log_dir=None, device=str(env.device))
    runner.learn(iterations, init_at_random_ep_len=True)
    runner.save(path)
    actor = runner.get_inference_policy(device=str(env.device))

    def act(observed):
        with torch.inference_mode():
            features = to_torch(observed.features)
            return from_torch(actor(TensorDict({"policy": features}, batch_size=[len(features)])))

    found = score("hover", act)
    print(f"{100 * found['success']:.1f} % hover; the policy is {path}")
    return found["success"]


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
