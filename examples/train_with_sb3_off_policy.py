"""Train by Stable-Baselines3's SAC (a pendulum) or DQN (a pole on a cart), whose replay needs true time limits.

python examples/train_with_sb3_off_policy.py sac
"""

import sys

import numpy as np
import torch
from stable_baselines3 import DQN, SAC

from slipstream.adapters.sb3 import SlipstreamVecEnv
from slipstream.adapters.trial import score


def pendulum() -> tuple[str, SAC]:
    env = SlipstreamVecEnv("pendulum", worlds=4)
    model = SAC("MlpPolicy", env, learning_rate=1e-3, learning_starts=400, gradient_steps=4, seed=0, device="cpu")
    return "pendulum", model.learn(12_000)


def cartpole() -> tuple[str, DQN]:
    env = SlipstreamVecEnv("cartpole", worlds=8)
    model = DQN(
        "MlpPolicy", env, learning_rate=2.3e-3, batch_size=64, learning_starts=1000, train_freq=32, gradient_steps=128,
        target_update_interval=80, exploration_fraction=0.16, exploration_final_eps=0.04, gamma=0.99, seed=0,
        policy_kwargs={"net_arch": [256, 256]}, device="cpu",
    )  # fmt: skip
    return "cartpole", model.learn(50_000)


def main(algorithm: str = "sac") -> float:
    torch.set_num_threads(1)
    task, model = {"sac": pendulum, "dqn": cartpole}[algorithm]()
    model.save(f"{task}-{algorithm}.zip")
    found = score(task, lambda observed: model.predict(np.array(observed.features), deterministic=True)[0], worlds=100)
    print(f"{algorithm} on {task}: mean return {found['return']:.1f}; the policy is {task}-{algorithm}.zip")
    return found["return"]


if __name__ == "__main__":
    main(*sys.argv[1:2])
