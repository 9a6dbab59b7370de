"""A task over an MJCF model inside our compiled program, beside MuJoCo C alone on as many threads.

    python benchmarks/mujoco_rollout.py examples/quadruped.xml:Walk [--worlds 1024]

Both step the same worlds from the same starts under the same random controls, turn about; MuJoCo alone by one call
of `mujoco.rollout` for all control periods. `engine` is our call of it once a control period, from a scan; `task` is
the whole task with commands, observations, rewards, ends and restarts.
"""

import argparse
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.bench.sim import fresh_worlds, sim_rate
from slipstream.core import device
from slipstream.experiment.registry import find_task

PERIODS = 32


def seconds(work):
    """CPU-seconds of this process, the least of five."""
    found = []
    for _ in range(5):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--worlds", type=int, default=1024)
    options = parser.parse_args()
    device.configure(1)
    import mujoco
    import mujoco.rollout

    task, worlds = find_task(options.task)(), options.worlds
    states = jax.jit(partial(fresh_worlds, task))(jnp.arange(worlds))[0]
    random = np.random.default_rng(0).uniform(-1, 1, (PERIODS, worlds, task.spec.action.size))
    actions = jnp.asarray(random, jnp.float32)
    controls = jax.jit(jax.vmap(jax.vmap(lambda s, a: task.command(s, a)[1]), in_axes=(None, 0)))(states, actions)

    def engine(states, controls):
        step = jax.vmap(task.physics.step)
        return jax.lax.scan(lambda body, ctrl: (step(body, ctrl), None), states.body, controls)[0]

    ours = jax.jit(engine)
    jax.block_until_ready(ours(states, controls))

    mj, threads = task.loaded.mj, device.cores()
    body = jax.device_get(states.body)
    first = np.concatenate([np.zeros((worlds, 1)), body.qpos, body.qvel, body.act], 1).astype(float)
    inputs = np.asarray(controls, float).transpose(1, 0, 2).repeat(task.substeps, 1)
    datas = [mujoco.MjData(mj) for _ in range(threads)]
    pool = mujoco.rollout.Rollout(nthread=threads if threads > 1 else 0)
    alone = lambda: pool.rollout(mj, datas, first, inputs)  # noqa: E731
    both = [(seconds(alone), seconds(lambda: jax.block_until_ready(ours(states, controls)))) for _ in range(2)]
    c, mine = (min(x) for x in zip(*both, strict=True))
    done = worlds * PERIODS
    whole = sim_rate(task, worlds, PERIODS)[1]
    print(f"{'MuJoCo C alone':16} {done / c:12,.0f} control steps per CPU-second ({threads} threads)")
    print(f"{'engine':16} {done / mine:12,.0f}   {c / mine:.2f} of it")
    print(f"{'task':16} {whole:12,.0f}   {whole * c / done:.2f} of it")


if __name__ == "__main__":
    main()
