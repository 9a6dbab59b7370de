"""Train recovery to hover by sbx (Stable-Baselines3's algorithms in JAX): PPO on 64 worlds.

python examples/train_with_sbx.py hover-sbx.zip 1500000
"""

import sys

import numpy as np
from sbx import PPO

from slipstream.adapters.sb3 import SlipstreamVecEnv
from slipstream.adapters.trial import score

SETTINGS = {"n_steps": 64, "batch_size": 512, "n_epochs": 5, "learning_rate": 1e-3, "gamma": 0.97}


def main(path: str = "hover-sbx.zip", steps: int = 1_500_000) -> float:
    env = SlipstreamVecEnv("hover", worlds=64)
    model = PPO("MlpPolicy", env, **SETTINGS, policy_kwargs={"log_std_init": -1.0}, seed=0)
    model.learn(steps)
    model.save(path)
    found = score("hover", lambda observed: model.predict(np.array(observed.features), deterministic=True)[0])
    print(f"{100 * found['success']:.1f} % hover; the policy is {path}")
    return found["success"]


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
