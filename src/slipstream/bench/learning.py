"""Training: throughput with and without learning, the share of each part, and memory."""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array

from ..core import device
from ..core.rng import Rng
from ..experiment.experiment import Experiment
from ..experiment.registry import task_source
from ..learn.ppo import Ppo, explore
from ..learn.rollout import Acting, rollout
from ..runs.profile import Looks
from ..runs.train import trainer_of
from .sim import fresh_worlds
from .timing import REPEATS, timed

KEPT = ("epochs", "minibatches", "gradient_steps", "batch_size")
"""Settings of a learner that decide how much is learned from each sample."""


def train(experiment: Experiment[Any, Any], name: str) -> dict[str, Any]:
    """Samples a second of a whole training, and the share of each part of it."""
    learner = experiment.learner
    kept = {key: getattr(learner, key) for key in KEPT if hasattr(learner, key)}
    return {"preset": name, **kept, **profile(experiment)}


def profile(experiment: Experiment[Any, Any]) -> dict[str, Any]:
    """Samples a second of whole updates, and the share of each part of one."""
    trainer = trainer_of(experiment)
    chunk = trainer.compile()
    train = trainer.start(experiment.seed)
    train = chunk(train)[0]
    walls, cpus = [], []
    for _ in range(2 * REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        train, metrics, _ = chunk(train)
        jax.block_until_ready(metrics)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    looks = Looks(chunk.program.as_text)
    while looks.left:
        train, metrics, _ = chunk(train)
        looks.take(min(walls))
        jax.block_until_ready(metrics)
    samples = experiment.learner.steps_per_update * trainer.chunk_length * trainer.seeds * experiment.task.spec.agents
    cores = statistics.median(c / w for c, w in zip(cpus, walls, strict=True))
    return {
        "samples_per_second": round(samples / min(walls)),
        "samples_per_cpu_second": round(samples / min(cpus)),
        "cores_used": round(cores, 2),
        "devices": trainer.mesh.size,
        "compile_seconds": round(chunk.seconds, 2),
        "share": looks.share,
        # On an accelerator CPU time says nothing of how busy that is.
        "idle": round(max(1.0 - cores / trainer.mesh.size, 0.0), 3) if jax.default_backend() == "cpu" else None,
    }


def policy(experiment: Experiment[Any, Any], name: str, worlds: int) -> dict[str, Any]:
    """A new policy acting in a preset's task, with its camera if it has one; nothing is learned."""
    mesh, task, learner = device.mesh(), experiment.task, experiment.learner
    if worlds % mesh.size:
        raise ValueError(f"{worlds} worlds do not divide over {mesh.size} devices")
    if not isinstance(learner, Ppo):
        raise ValueError(f"'{name}' is not trained by ppo, and only its policies are measured alone; use bench train")
    weights = learner.policy(task.spec)
    see = weights.encode if task.spec.image_shape else None
    steps = 64 // task.spec.image_interval * task.spec.image_interval

    def acting(indices: Array) -> Any:
        states, rngs = fresh_worlds(task, indices)
        acting = Acting(rngs, memory=weights.start(*rngs.drawn.shape))
        states, _, transitions, _, seen = rollout(task, partial(explore, weights), states, acting, steps, see)
        # All is written; what is handed out is only the last of it.
        return states.reward, jax.tree.map(lambda x: x[-1], (transitions, seen))

    spec = PartitionSpec(device.AXIS)
    mapped = jax.shard_map(acting, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    indices = jnp.arange(worlds)
    began = time.perf_counter()
    program = jax.jit(mapped).lower(indices).compile()
    compiling = time.perf_counter() - began
    jax.block_until_ready(program(indices))
    wall, cpu = timed(lambda: program(indices), 2 * REPEATS)
    agents = worlds * task.spec.agents
    return {
        "preset": name,
        "agents": agents,
        "image_shape": task.spec.image_shape,
        "image_interval": task.spec.image_interval,
        "devices": mesh.size,
        "steps_per_second": round(agents * steps / wall),
        "steps_per_cpu_second": round(agents * steps / cpu),
        "compile_seconds": round(compiling, 2),
    }


def memory(experiment: Experiment[Any, Any], name: str, worlds: int) -> dict[str, Any]:
    """What a world holds, and the peak of a process that trains that many of them."""
    size = jax.eval_shape(lambda: experiment.task.reset(Rng.from_seed(0, 0)))
    bytes_per_world = sum(np.dtype(leaf.dtype).itemsize * leaf.size for leaf in jax.tree.leaves(size))
    # A process of its own: the peak of this one has seen other things.
    learner = replace(experiment.learner, worlds=worlds)
    wanted = replace(experiment, learner=learner, steps=learner.steps_per_update)
    code = (
        "import json, sys, resource\n"
        "from slipstream.core import device\n"
        "device.configure()\n"
        "from slipstream.experiment.experiment import Experiment\n"
        "from slipstream.runs.train import trainer_of\n"
        "import jax\n"
        "from slipstream.experiment.registry import find_task\n"
        "sys.argv[2].startswith('slipstream.') or find_task(sys.argv[2])\n"
        "trainer = trainer_of(Experiment.from_dict(json.loads(sys.argv[1])), 1)\n"
        "chunk = trainer.compile()\n"
        "train = trainer.start(0)\n"
        "for _ in range(3): train = chunk(train)[0]\n"
        "jax.block_until_ready(train)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(wanted.as_dict()), task_source(experiment.task)],
        capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip
    if done.returncode or not re.fullmatch(r"\d+", done.stdout.strip()):
        raise ValueError(f"{worlds} worlds cannot be trained: {done.stderr.strip().splitlines()[-1:]}")
    return {
        "preset": name,
        "worlds": worlds,
        "bytes_per_world": bytes_per_world,
        "peak_rss_mb": round(int(done.stdout) / 1024),
    }
