"""Stable-Baselines3's PPO on our adapter beside the same on `SubprocVecEnv` over the same drone in NumPy.

    python benchmarks/subproc_numpy.py --json subproc.json

The task is recovery to hover. The environment in NumPy is what one would write for SB3: one drone, vectors of three and
four numbers, eight substeps an action; the first step of both is compared before anything is timed. Sides take turns,
the best of several counts, and CPU time includes that of the processes of `SubprocVecEnv`, whose number of processes
is the best of those given.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv

from slipstream.adapters.sb3 import SlipstreamVecEnv
from slipstream.tasks.hover.task import Hover

SETTINGS = {"n_epochs": 4, "learning_rate": 1e-3, "gamma": 0.97, "policy_kwargs": {"net_arch": [64, 64]}}
SAMPLES = 2**15
"""Of an update: 32 steps of 1024 worlds, or as many of fewer."""


class NumpyHover(gymnasium.Env):
    """The same drone, task and reward for one world."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (16,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self):
        self.task = Hover()
        self.vehicle, control = self.task.airframe, self.task.flight.control
        v, g = self.vehicle, 9.80665
        self.dt, self.substeps = 1.0 / self.task.physics_rate, self.task.physics_rate // self.task.control_rate
        self.inertia, self.max_rates = np.array(v.inertia), np.array(control.max_rates)
        self.gain = self.inertia * np.array(control.rate_gain) * 2.0 / (v.lag_up + v.lag_down)
        reach = 4.0 * v.max_thrust
        self.limit = reach * np.array([0.25 * v.arm[1], 0.25 * v.arm[0], 0.2 * v.torque_per_thrust])
        self.weight = v.mass * g
        # Rows: front left, front right, rear right, rear left.
        self.mixer = (
            0.25
            * np.array([[1, 1, -1, 1], [1, -1, -1, -1], [1, -1, 1, 1], [1, 1, 1, -1]])
            / np.array([1.0, v.arm[1], v.arm[0], v.torque_per_thrust])
        )
        self.rolling, self.pitching = np.array([1, -1, -1, 1.0]), np.array([-1, -1, 1, 1.0])
        self.yawing = np.array([1, -1, 1, -1.0])
        self.gravity, self.body_drag = np.array([0.0, 0.0, g]), np.array(v.body_drag)
        self.up, self.down = math.exp(-self.dt / v.lag_up), math.exp(-self.dt / v.lag_down)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        rng, start = self.np_random, self.task.start

        def vector(length):
            direction = rng.normal(size=3)
            return direction / np.linalg.norm(direction) * rng.uniform(0.0, length)

        attitude = rng.normal(size=4)
        self.place(
            rng.uniform(-1.0, 1.0, 3) * start.position, attitude / np.linalg.norm(attitude), vector(start.speed),
            vector(start.spin),
        )  # fmt: skip
        return self.observe(), {}

    def place(self, position, attitude, velocity, rates):
        self.position, self.attitude, self.velocity, self.rates = position, attitude, velocity, rates
        self.rotors, self.command, self.steps = np.full(4, self.vehicle.hover_speed), np.zeros(4), 0

    def rotation(self):
        w, x, y, z = self.attitude
        return np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )

    def step(self, action):
        self.command = np.clip(action, -1.0, 1.0)
        for _ in range(self.substeps):
            self.substep()
        self.steps += 1
        up = self.rotation()[2, 2]
        distance = math.sqrt(self.position @ self.position + 0.01)
        speed = math.sqrt(self.velocity @ self.velocity + 0.04)
        w = self.task.reward
        cost = w.position * distance + w.velocity * speed + w.tilt * (1.0 - up) + w.body_rates * self.rates @ self.rates
        late = self.steps >= self.task.time_limit * self.task.control_rate
        return self.observe(), float(-cost / self.task.control_rate), False, bool(late), {}

    def substep(self):
        v, dt, rates = self.vehicle, self.dt, self.rates
        a, full = self.command[0], 4.0 * v.max_thrust
        thrust = self.weight + a * (full - self.weight) if a > 0.0 else self.weight * (1.0 + a)
        spin = self.inertia * rates
        gyro = np.cross(rates, spin)
        torque = np.clip(self.gain * (self.command[1:] * self.max_rates - rates) + gyro, -self.limit, self.limit)
        force = np.clip(self.mixer @ np.concatenate([[thrust], torque]), 0.0, v.max_thrust)
        target = np.sqrt(np.maximum(force / v.thrust_curve[1], 1e-6))
        before = self.rotors
        self.rotors = target + (before - target) * np.where(target > before, self.up, self.down)
        lift, drag_torque = v.thrust_curve[1] * self.rotors**2, v.torque_curve[1] * self.rotors**2
        rotation = self.rotation()
        air = rotation.T @ self.velocity
        drag = air * self.body_drag * math.sqrt(air @ air)
        drag[:2] += air[:2] * v.rotor_drag * self.rotors.sum()
        acceleration = rotation @ (np.array([0.0, 0.0, lift.sum()]) - drag) / v.mass - self.gravity
        turn = np.array(
            [v.arm[1] * (self.rolling @ lift), v.arm[0] * (self.pitching @ lift), self.yawing @ drag_torque]
        )
        momentum = -v.rotor_inertia * (self.yawing @ self.rotors)
        reaction = v.rotor_inertia * (self.yawing @ (self.rotors - before)) / dt
        turn = turn - gyro + np.array([-rates[1] * momentum, rates[0] * momentum, reaction])
        self.velocity = self.velocity + acceleration * dt
        self.rates = rates + turn / self.inertia * dt
        self.position = self.position + self.velocity * dt
        self.spin(self.rates * (0.5 * dt))

    def spin(self, half):
        w, x, y, z = self.attitude
        a, (b, c, d) = 1.0 - 0.5 * half @ half, half
        q = np.array(
            [
                w * a - x * b - y * c - z * d,
                w * b + x * a + y * d - z * c,
                w * c - x * d + y * a + z * b,
                w * d + x * c - y * b + z * a,
            ]
        )
        self.attitude = q * (1.5 - 0.5 * q @ q)

    def observe(self):
        rotation = self.rotation()
        scale = 1.0 / math.sqrt(1.0 + 0.1 * self.position @ self.position)
        parts = [
            rotation.T @ self.position * scale, rotation.T @ self.velocity * 0.3, -rotation[2], self.rates * 0.15,
            self.command,
        ]  # fmt: skip
        return np.concatenate(parts).astype(np.float32)


def same_first_steps():
    """The largest difference of what is observed over five steps, beside the one that is compiled."""
    import jax
    import jax.numpy as jnp

    from slipstream.core.rng import Rng

    task, env, rng = Hover(), NumpyHover(), np.random.default_rng(0)
    state = task.reset(Rng.from_seed(1, 2))
    drone = jax.device_get(state.body)
    q = drone.attitude
    parts = [np.array([float(x) for x in p.parts]) for p in (drone.position, drone.velocity, drone.rates)]
    env.place(parts[0], np.array([float(x) for x in (q.w, q.x, q.y, q.z)]), *parts[1:])
    worst, step = 0.0, jax.jit(task.step)
    for _ in range(5):
        action = rng.uniform(-1.0, 1.0, 4)
        state = step(state, jnp.asarray(action, jnp.float32))
        seen, reward, *_ = env.step(action)
        worst = max(worst, float(np.abs(seen - task.observe(state)).max()), abs(reward - float(state.reward)))
    return worst


class Clock(BaseCallback):
    """CPU and wall seconds at the start of each rollout, with those of processes that were started."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def _on_rollout_start(self):
        children = sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())
        self.rows.append((time.perf_counter(), time.process_time() + children, self.num_timesteps))

    def _on_step(self):
        return True


def rate(env, updates):
    """Samples a second of wall and of CPU time, without the first update."""
    steps = SAMPLES // env.num_envs
    model = PPO("MlpPolicy", env, n_steps=steps, batch_size=SAMPLES // 4, device="cpu", **SETTINGS)
    clock = Clock()
    model.learn((updates + 2) * SAMPLES, callback=clock)
    env.close()
    (wall, cpu, samples), (wall_end, cpu_end, samples_end) = clock.rows[1], clock.rows[-1]
    made = samples_end - samples
    return made / (wall_end - wall), made / (cpu_end - cpu)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 8, 16])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    difference = same_first_steps()
    print(f"largest difference of the two drones over five steps: {difference:.1e}", flush=True)
    assert difference < 1e-4
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sides = {"Slipstream's adapter, 1024 worlds": lambda: (SlipstreamVecEnv("hover", worlds=1024), 6)}
    for count in options.processes:
        sides[f"SubprocVecEnv, {count} processes"] = lambda count=count: (SubprocVecEnv([NumpyHover] * count), 1)
    found = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, make in sides.items():
            found[name].append(rate(*make()))
            print(f"{name}: {found[name][-1][0]:,.0f} a second, {found[name][-1][1]:,.0f} a CPU-second", flush=True)
    best = {name: [max(row[k] for row in rows) for k in (0, 1)] for name, rows in found.items()}
    ours, *others = best
    top = [max(best[name][k] for name in others) for k in (0, 1)]
    ratios = [best[ours][k] / top[k] for k in (0, 1)]
    print(f"ratio: {ratios[0]:.1f} by wall time, {ratios[1]:.1f} by CPU time")
    if options.json:
        options.json.write_text(json.dumps({"best": best, "ratios": ratios, "difference": difference}, indent=1))


if __name__ == "__main__":
    main()
