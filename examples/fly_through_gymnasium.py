"""Fly a trained racing policy in PX4 as a Gymnasium environment: three episodes, with a reset of PX4 before each.

slipstream train racing-randomized
export SLIPSTREAM_PX4=…/PX4-Autopilot/build/px4_sitl_default
python examples/fly_through_gymnasium.py runs/racing-randomized         # or: … betaflight, mujoco
"""

import sys
import time

import gymnasium
import jax.numpy as jnp
import numpy as np

import slipstream as sl
import slipstream.adapters.gymnasium  # registers the environments
from slipstream.evaluation.pilot import load_policies


def main(folder: str = "runs/racing-randomized", plant: str = "px4", episodes: int = 3) -> None:
    run = sl.load(folder)
    _, (policy,) = load_policies(run)
    settings = {"state_estimate": "truth"}  # as by motion capture
    env = gymnasium.make(
        "Slipstream/Task-v0", task=run.experiment.task, plant=plant, plant_settings=settings, evaluation=True
    )
    for episode in range(int(episodes)):
        began = time.perf_counter()
        observation, _ = env.reset(seed=episode)
        ready, steps, total, over, info = time.perf_counter(), 0, 0.0, False, {}
        while not over:
            action, _ = policy.act(jnp.asarray(observation)[None])
            observation, reward, terminated, truncated, info = env.step(np.asarray(action[0]))
            steps, total, over = steps + 1, total + reward, terminated or truncated
        flown = time.perf_counter() - ready
        print(
            f"episode {episode}: reset in {ready - began:.1f} s, {steps} steps in {flown:.1f} s, return {total:.1f}, "
            + ", ".join(f"{name} {value:.3g}" for name, value in info["metrics"].items())
        )
    env.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
