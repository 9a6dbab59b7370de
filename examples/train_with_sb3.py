"""Train recovery to hover by Stable-Baselines3's PPO, and score the policy on worlds it has not seen.

python examples/train_with_sb3.py hover-sb3.zip 1500000
"""

import sys

import numpy as np
import torch
from stable_baselines3 import PPO

from slipstream.adapters.sb3 import SlipstreamVecEnv


def success_rate(model: PPO, worlds: int = 256) -> float:
    """Over one episode of each world, without exploring."""
    env = SlipstreamVecEnv("hover", worlds, seed=1_000_003, evaluation=True)
    observation, first = env.reset(), np.full(worlds, np.nan)
    while np.isnan(first).any():
        observation, _, _, infos = env.step(model.predict(observation, deterministic=True)[0])
        for row, info in enumerate(infos):
            if "episode" in info and np.isnan(first[row]):
                first[row] = info["is_success"]
    return float(first.mean())


def main(path: str = "hover-sb3.zip", steps: int = 1_500_000) -> float:
    torch.set_num_threads(1)
    env = SlipstreamVecEnv("hover", worlds=64)
    settings = {"n_steps": 64, "batch_size": 512, "n_epochs": 5, "learning_rate": 1e-3, "gamma": 0.97, "ent_coef": 0.0}
    model = PPO("MlpPolicy", env, **settings, policy_kwargs={"log_std_init": -1.0}, device="cpu", verbose=1)
    model.learn(steps)
    model.save(path)
    rate = success_rate(model)
    print(f"{100 * rate:.1f} % hover; the policy is {path}")
    return rate


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
