"""Lifting by pictures beside MuJoCo's renderer and Stable-Baselines3's SAC, on the same task, per CPU-second.

    python benchmarks/lift_peers.py [render] [train]

render: an environment step of the arm and a picture of 84 × 84 pixels, by our physics and camera, and by MuJoCo C and
its renderer: with shadows and multisampling as they come, and with both off. train: steps of `lift-vision` with
learning, and of SAC with Stable-Baselines3's CNN, one update a step as it comes, on the same task by our adapter.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

os.environ.setdefault("MUJOCO_GL", "egl")

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.dynamics.arm import SO101
from slipstream.experiment import registry
from slipstream.plants.mujoco import load_mujoco
from slipstream.tasks.lift import LiftCamera
from slipstream.tasks.lift.mjcf import PLAIN, model_xml

SIZE, WORLDS, STEPS = 84, 256, 16
SECONDS = 12.0
"""Of each side, at least."""


def per_cpu_second(work: Callable[[], int]) -> float:
    """What a piece of work does, done again until there is enough to tell."""
    work()
    done, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        done += work()
    return done / (time.process_time() - began)


def ours() -> Callable[[], int]:
    task = registry.presets()["lift"].task
    task = replace(task, camera=LiftCamera("rgb", view="wrist", resolution=SIZE))
    states = jax.jit(jax.vmap(lambda world: task.reset(Rng.from_seed(0, world))))(jnp.arange(WORLDS))

    @jax.jit
    def run(states):
        def tick(states, _):
            states = jax.vmap(task.step)(states, jnp.zeros((WORLDS, task.spec.action.size)))
            return states, jnp.sum(jax.vmap(task.image)(states), dtype=jnp.uint32)

        return jax.lax.scan(tick, states, length=STEPS)[1]

    return lambda: len(jax.block_until_ready(run(states))) * WORLDS


def theirs(quality: str) -> Callable[[], int]:
    """MuJoCo as people run it: a step of one environment, then its picture."""
    mujoco = load_mujoco()
    look = replace(PLAIN, visual=f'{PLAIN.visual}<global offwidth="{SIZE}" offheight="{SIZE}"/>{quality}')
    model = mujoco.MjModel.from_xml_string(model_xml(SO101, look=look))
    data, renderer = mujoco.MjData(model), mujoco.Renderer(model, SIZE, SIZE)
    # As an episode begins: the gripper open over the mat, both held there by the servos.
    task = registry.presets()["lift"].task
    state = task.reset(Rng.from_seed(0, 0))
    data.qpos[:], data.qvel[:] = map(np.asarray, task.mujoco_state(state))
    data.ctrl[:] = np.asarray(state.body.angles.parts)
    substeps = round(0.02 / model.opt.timestep)

    def run() -> int:
        for _ in range(5):
            mujoco.mj_step(model, data, substeps)
            renderer.update_scene(data, "wrist")
            renderer.render()
        return 5

    return run


def render() -> None:
    device.configure(1)
    fast = per_cpu_second(ours())
    print(f"ours: {fast:.0f} environment steps with a picture of {SIZE} × {SIZE} a CPU-second")
    for name, quality in (
        ("MuJoCo as it comes", ""),
        ("MuJoCo without shadows and multisampling", '<quality shadowsize="0" offsamples="0"/>'),
    ):
        rate = per_cpu_second(theirs(quality))
        print(f"{name}: {rate:.1f}, so ours is {fast / rate:.0f} times")


def train() -> None:
    import torch
    from stable_baselines3 import SAC

    from slipstream.adapters.sb3 import SlipstreamVecEnv
    from slipstream.learn.compiled import Trainer
    from slipstream.learn.ppo import Ppo

    device.configure(1)
    torch.set_num_threads(1)
    experiment = registry.presets()["lift-ppo"]
    assert isinstance(experiment.learner, Ppo)
    trainer = Trainer(experiment.task, experiment.learner, device.mesh(1), updates=1000, chunk_length=2)
    chunk, state = trainer.compile(), trainer.start(0)

    def learn() -> int:
        nonlocal state
        state, *_ = chunk(state)
        jax.block_until_ready(state)
        return 2 * trainer.learner.steps_per_update

    fast = per_cpu_second(learn)
    print(
        f"ours (PPO from pictures of {experiment.task.camera.resolution}², an encoder): {fast:.0f} steps a CPU-second"
    )
    env = SlipstreamVecEnv(experiment.task, worlds=1)
    model = SAC("MultiInputPolicy", env, buffer_size=2000, learning_starts=100, device="cpu", seed=0)
    model.learn(110)

    def slow() -> int:
        model.learn(20, reset_num_timesteps=False)
        return 20

    rate = per_cpu_second(slow)
    print(f"Stable-Baselines3's SAC, batches of {model.batch_size}: {rate:.2f}, so ours is {fast / rate:.0f} times")


if __name__ == "__main__":
    for part in sys.argv[1:] or ["render", "train"]:
        {"render": render, "train": train}[part]()
