"""What a device waits for in Stable-Baselines3's PPO, and what each remedy gives: docs/why-a-gpu-idles.md.

    python benchmarks/idle.py --json idle.json

The task is recovery to hover. Parts of a training are timed: physics, what else environments do (copies into NumPy),
the policy that acts, learning, and the rest (Python). On a machine with a GPU only physics that runs on it, the policy
and learning would keep it busy; here they run on one core, which stands for the device. Times are CPU times, so that
other work does not count, but for environments in processes (those of subproc_numpy.py), for which the trainer waits.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.vec_env import SubprocVecEnv
from subproc_numpy import NumpyHover

from slipstream.adapters.sb3 import SlipstreamVecEnv

PARTS = ("physics", "environments", "policy", "learning", "rest")
"""Physics is what our compiled program takes; environments are all else of a step of the environments."""


class Stopwatch:
    """Seconds in functions that are replaced by timed ones."""

    def __init__(self, clock):
        self.clock, self.seconds = clock, {}

    def time(self, owner, name, part, inside=""):
        """Count the time of `owner.name` as `part`, and take it away from the part inside of which it is called."""
        function = getattr(owner, name)

        def timed(*args, **kwargs):
            began = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                spent = self.clock() - began
                self.seconds[part] = self.seconds.get(part, 0.0) + spent
                if inside:
                    self.seconds[inside] = self.seconds.get(inside, 0.0) - spent

        setattr(owner, name, timed)


def shares(model, env, samples, on_device):
    """Samples a second and the share of each part, without what is compiled before."""
    model.learn(2 * model.n_steps * env.num_envs if on_device else 1)  # what is compiled is compiled then
    clock = time.process_time if on_device else time.perf_counter
    watch = Stopwatch(clock)
    watch.time(model, "train", "learning")
    watch.time(env, "step_wait", "environments")
    watch.time(model.policy, "forward", "policy")
    if hasattr(env, "worlds"):
        watch.time(env.worlds, "step", "physics", "environments")
    before, began = model.num_timesteps, clock()
    model.learn(samples, reset_num_timesteps=False)
    spent, made = clock() - began, model.num_timesteps - before
    env.close()
    found = {part: watch.seconds.get(part, 0.0) / spent for part in PARTS[:-1]}
    busy = found["policy"] + found["learning"] + (found["physics"] if on_device else 0.0)
    return {"samples_per_second": made / spent, "idle": 1.0 - busy, **found, "rest": 1.0 - sum(found.values())}


def ppo(env, batch, samples, on_device=True, updates=3):
    settings = {"n_epochs": 4, "learning_rate": 1e-3, "gamma": 0.97, "policy_kwargs": {"net_arch": [64, 64]}}
    model = PPO("MlpPolicy", env, n_steps=samples // env.num_envs, batch_size=batch, device="cpu", **settings)
    return shares(model, env, updates * samples, on_device)


def sac(worlds, gradient_steps, steps):
    """SAC with its replay in NumPy, beside the preset `pendulum`: the share of writing to it and drawing batches."""
    env = SlipstreamVecEnv("pendulum", worlds=worlds)
    model = SAC(
        "MlpPolicy", env, learning_starts=worlds, train_freq=1, gradient_steps=gradient_steps, batch_size=256,
        buffer_size=100_000, policy_kwargs={"net_arch": [128, 128]}, device="cpu",
    )  # fmt: skip
    model.learn(100 * worlds)  # what is compiled is compiled then
    watch = Stopwatch(time.process_time)
    watch.time(model, "train", "learning")
    watch.time(model.replay_buffer, "sample", "replay", "learning")
    watch.time(model.replay_buffer, "add", "replay")
    began = time.process_time()
    model.learn(steps * worlds, reset_num_timesteps=False)
    spent = time.process_time() - began
    found = {part: seconds / spent for part, seconds in watch.seconds.items()}
    return {"gradient_steps_per_cpu_second": steps * gradient_steps / spent, **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only sides whose names contain this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides = {
        "NumPy, 8 processes, batch 64": lambda: ppo(SubprocVecEnv([NumpyHover] * 8), 64, 2048, False),
        "NumPy, 8 processes, batch 2048": lambda: ppo(SubprocVecEnv([NumpyHover] * 8), 2048, 8192, False, 1),
        **{
            f"adapter, {worlds} worlds, batch {batch}": lambda worlds=worlds, batch=batch: ppo(
                SlipstreamVecEnv("hover", worlds=worlds), batch, max(32 * worlds, 2048)
            )
            for worlds, batch in ((8, 64), (64, 512), (1024, 64), (1024, 512), (1024, 8192), (4096, 32768))
        },
        "SAC, 4 worlds, replay in NumPy": lambda: sac(4, 4, 200),
    }
    found = {}
    for name, side in sides.items():
        if options.only not in name:
            continue
        found[name] = side()
        told = ", ".join(f"{part} {value:,.3g}" for part, value in found[name].items())
        print(f"{name}: {told}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
