"""Throughput of this machine: worlds alone, learning too, and what a world takes of memory."""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .core import device
from .core.geometry import Quat, Vec3
from .core.rng import Rng
from .core.spaces import Box
from .core.task import Spec, Task
from .dynamics.quadrotor import PhysicsRandomization, Quadrotor, QuadrotorState, Rotors, racer
from .experiment.experiment import PRESETS, TASKS, Experiment
from .learn.ppo import Ppo, explore
from .learn.rollout import RESTART_WINDOW, advance_worlds, in_blocks, rollout, with_restarts
from .policy.actor_critic import ActorCritic
from .runs.profile import Looks
from .runs.train import trainer_of
from .sensors.camera import Camera, View
from .sensors.scene import Color, Ground, Scene, daylight, shapes
from .tasks.racing import Racing

REPEATS = 5
LIMIT = Path(__file__).with_name("limit.cpp")
"""The same physics by hand, for as fast as this machine goes."""
Say = Callable[[str], None]


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, float]:
    """Least wall and least CPU seconds of several runs: the others were disturbed."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(work())
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def random_action(spec: Spec, rng: Rng) -> tuple[Any, Rng]:
    """An action of the space for one agent, evenly drawn."""
    if isinstance(spec.action, Box):
        parts = []
        while len(parts) < spec.action.size:
            # Four numbers of 8 bits a word: what is measured is the step, not the generator.
            word, rng = rng.bits()
            four = [((word >> shift) & 0xFF).astype(jnp.int32).astype(jnp.float32) for shift in (0, 8, 16, 24)]
            parts += [byte * (2.0 / 255.0) - 1.0 for byte in four]
        parts = parts[: spec.action.size]
        return jnp.stack(jax.lax.optimization_barrier(parts)), rng
    choices = spec.action.choices
    if isinstance(choices, int):
        return rng.integer(choices)
    actions = []
    for count in choices:
        action, rng = rng.integer(count)
        actions.append(action)
    return jnp.stack(actions), rng


def stepping(task: Task[Any], states: Any, rngs: Rng, steps: int, observe: bool) -> tuple[Any, Any]:
    """Random actions for `steps` steps, every step observed: the states and last observations, in blocks."""
    step = partial(_stepping, task, steps=steps, observe=observe)
    return in_blocks(step, states, rngs, agents=task.spec.agents)


def _stepping(task: Task[Any], states: Any, rngs: Rng, steps: int, observe: bool) -> tuple[Any, Any]:
    agents = task.spec.agents
    draw = jax.vmap(partial(random_action, task.spec))
    draw = jax.vmap(draw) if agents > 1 else draw

    # Worlds last, so that each feature is a contiguous row.
    look = jax.vmap(task.observe, out_axes=-1)

    def tick(fresh: Any, carry: Any) -> tuple[Any, None]:
        states, stale, (rngs, seen) = carry
        action, rngs = draw(rngs)
        states, stale = advance_worlds(task, states, action, fresh, stale)
        return (states, stale, (rngs, look(states) if observe else seen)), None

    # Only its shape counts: to compute it here would compile the observation twice.
    seen = jnp.zeros(jax.eval_shape(look, states).shape if observe else 1)
    (states, (_, seen)), _ = with_restarts(task, tick, states, (rngs, seen), steps)
    return states, seen


def worlds_of(task: Task[Any], indices: Any) -> tuple[Any, Rng]:
    """Fresh worlds and the generators of their random actions."""
    own = jax.vmap(partial(Rng.from_seed, 7))
    agents = task.spec.agents
    rngs = own(indices) if agents == 1 else jax.vmap(own)(indices[:, None] * agents + jnp.arange(agents))
    return jax.vmap(lambda i: task.reset(Rng.from_seed(0, i)))(indices), rngs


def sim_rate(task: Task[Any], worlds: int, steps: int, observe: bool = True) -> tuple[float, float]:
    """Steps of all agents a second and a CPU-second, on all devices."""
    mesh = device.mesh()
    if worlds % mesh.size:
        raise ValueError(f"{worlds} worlds do not divide over {mesh.size} devices")

    def work(indices: Any) -> Any:
        return stepping(task, *worlds_of(task, indices), steps, observe)

    spec = PartitionSpec(device.AXIS)
    program = jax.jit(jax.shard_map(work, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    indices = jnp.arange(worlds)
    jax.block_until_ready(program(indices))
    wall, cpu = timed(lambda: program(indices), 4 * REPEATS)
    done = worlds * steps * task.spec.agents
    return done / wall, done / cpu


def sim(task: str, worlds: int, say: Say) -> dict[str, Any]:
    """The whole step of a task, and its dynamics beside the C++ limit."""
    task = TASKS[task]()
    agents = task.spec.agents
    steps = max(2, 2_000_000 // (worlds * agents) // RESTART_WINDOW) * RESTART_WINDOW
    rate, cpu_rate = sim_rate(task, worlds, steps)
    result: dict[str, Any] = {
        "task": task,
        "worlds": worlds,
        "agents": agents,
        "devices": device.mesh().size,
        "steps_per_second": round(rate),
        "steps_per_cpu_second": round(cpu_rate),
    }
    return result | limit_ratio(worlds, say) if isinstance(task, Racing) else result


def limit_ratio(worlds: int, say: Say) -> dict[str, Any]:
    """Our dynamics alone and the hand-written C++, turn about, best of each."""
    nothing = {"limit_ratio": None}
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        say("no C++ compiler (g++) was found: no ratio to the limit")
        return nothing
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "limit"
        flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp-simd"]
        subprocess.run([compiler, *flags, "-o", str(binary), str(LIMIT)], check=True)
        ours = dynamics_program(racer, worlds)
        best_ours, best_limit, steps = 0.0, 0.0, max(50, 4_000_000 // worlds)
        program, flight, targets = ours(steps)
        jax.block_until_ready(program(flight, targets))
        for _ in range(REPEATS):
            _, cpu = timed(lambda: program(flight, targets), 1)
            best_ours = max(best_ours, worlds * steps / cpu)
            best_limit = max(best_limit, run_limit(binary, racer, worlds, steps)[0])
    return {
        "dynamics_per_cpu_second": round(best_ours),
        "limit_per_cpu_second": round(best_limit),
        "limit_ratio": round(best_ours / best_limit, 3),
    }


def run_limit(binary: Path, v: Quadrotor, worlds: int, steps: int) -> tuple[float, list[float]]:
    """Steps a CPU-second of the C++ program, and where its first and last world end up."""
    numbers = [
        worlds, steps, 4, 0.0025, v.mass, *v.inertia, *v.arm, v.thrust_curve[1], v.torque_curve[1],
        v.lag_up, v.lag_down, v.rotor_inertia, *v.body_drag, v.rotor_drag, v.hover_speed,
    ]  # fmt: skip
    out = subprocess.run([str(binary), *map(repr, numbers)], check=True, capture_output=True, text=True).stdout
    rate, *ends = map(float, out.split())
    return rate, ends


def dynamics_program(
    vehicle: Quadrotor, worlds: int, dt: float = 0.0025, substeps: int = 4
) -> Callable[[int], tuple[Any, QuadrotorState, Rotors]]:
    """The vehicle alone, by default four substeps of 2.5 ms a step, each world with a command of its own."""
    number = np.arange(worlds)

    def full(value: float) -> Any:
        return jnp.full(worlds, value, jnp.float32)

    targets = Rotors(
        *(jnp.asarray(vehicle.hover_speed * (1.0 + 1e-3 * (number * k % 7)), jnp.float32) for k in range(1, 5))
    )
    flight = QuadrotorState(
        Vec3(full(0.0), full(0.0), full(0.0)),
        Quat(full(1.0), full(0.0), full(0.0), full(0.0)),
        Vec3(full(0.0), full(0.0), full(0.0)),
        Vec3(full(0.0), full(0.0), full(0.0)),
        Rotors(*[full(vehicle.hover_speed)] * 4),
    )

    def one(flight: QuadrotorState, target: Rotors) -> QuadrotorState:
        for _ in range(substeps):
            flight = vehicle.step(flight, target, None, PhysicsRandomization(), dt)
            flight = jax.lax.optimization_barrier(flight)
        return flight

    def make(steps: int) -> tuple[Any, QuadrotorState, Rotors]:
        def many(flight: QuadrotorState, targets: Rotors) -> QuadrotorState:
            return jax.lax.scan(lambda f, _: (jax.vmap(one)(f, targets), None), flight, length=steps)[0]

        return jax.jit(partial(in_blocks, many)), flight, targets

    return make


def train(preset: str, epochs: int = 0, minibatches: int = 0) -> dict[str, Any]:
    """A preset's training, with its own passes over the data or with others."""
    experiment = PRESETS[preset]
    learner = experiment.learner
    asked = {name: value for name, value in (("epochs", epochs), ("minibatches", minibatches)) if value}
    if not asked.keys() <= vars(learner).keys():
        raise ValueError(f"the learner of '{preset}' has no {' and no '.join(asked)}")
    other = replace(learner, **asked)
    kept = {name: getattr(other, name) for name in ("epochs", "minibatches", "learns", "batch") if hasattr(other, name)}
    return {"preset": preset, **kept, **profile(replace(experiment, learner=other))}


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
    looks = Looks(chunk.program.as_text())
    while looks.left:
        train, metrics, _ = chunk(train)
        looks.take(min(walls))
        jax.block_until_ready(metrics)
    samples = experiment.learner.steps_per_update * trainer.chunk_length * trainer.seeds * experiment.task.spec.agents
    return {
        "samples_per_second": round(samples / min(walls)),
        "samples_per_cpu_second": round(samples / min(cpus)),
        "cores_used": round(statistics.median(c / w for c, w in zip(cpus, walls, strict=True)), 2),
        "devices": trainer.mesh.size,
        "compile_seconds": round(chunk.seconds, 2),
        "share": looks.share,
    }


def act(preset: str, worlds: int, image_features: str = "", pixels: int = 0) -> dict[str, Any]:
    """A fresh policy acting in a preset's task, with its camera if it has one; nothing is learned."""
    experiment, mesh = PRESETS[preset], device.mesh()
    task, learner = experiment.task, experiment.learner
    if image_features:
        task = replace(task, image_features=image_features)
    if pixels:
        task = replace(task, pixels=pixels)
    if worlds % mesh.size:
        raise ValueError(f"{worlds} worlds do not divide over {mesh.size} devices")
    if not isinstance(learner, Ppo):
        raise ValueError(f"'{preset}' is not learned by ppo, and only its policies are measured alone; try bench train")
    policy = ActorCritic.init(jax.random.key(0), task.spec, learner.hidden, learner.activation)
    see = policy.encode if task.spec.image_shape else None
    steps = 64 // task.spec.image_interval * task.spec.image_interval

    def acting(indices: Any) -> Any:
        states, rngs = worlds_of(task, indices)
        states, _, transitions, _, seen = rollout(task, partial(explore, policy), states, rngs, steps, see)
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
        "preset": preset,
        "agents": agents,
        "picture": task.spec.image_shape,
        "interval": task.spec.image_interval,
        "devices": mesh.size,
        "steps_per_second": round(agents * steps / wall),
        "steps_per_cpu_second": round(agents * steps / cpu),
        "compile_seconds": round(compiling, 2),
    }


def arena(count: int, cameras: int) -> tuple[Scene, View]:
    """A scene of so many shapes, three quarters of them boxes, and cameras around it that look inward, tilted."""
    rng = np.random.default_rng(0)

    def rows(number: int, low: float, high: float) -> list[dict[str, Any]]:
        turns = rng.normal(size=(number, 4))
        return [
            {
                "position": (*rng.uniform(-10.0, 10.0, 2), rng.uniform(0.0, 4.0)),
                "size": rng.uniform(low, high, 3),
                "color": rng.uniform(0.2, 1.0, 3),
                "label": k,
                "attitude": turn / np.linalg.norm(turn),
            }
            for k, turn in enumerate(turns)
        ]

    each = max(count // 8, 1)
    green = Ground(jnp.float32(0.0), jnp.float32(1.0), Color(0.3, 0.5, 0.3), Color(0.4, 0.6, 0.4))
    scene = Scene(
        **daylight(),
        ground=jax.tree.map(jnp.float32, green),
        boxes=shapes(rows(max(count - 2 * each, 1), 0.1, 1.0)),
        ellipsoids=shapes(rows(each, 0.5, 1.0)),
        cylinders=shapes(rows(each, 0.5, 1.0)),
    )
    yaw, height, roll, pitch = (
        jnp.asarray(rng.uniform(low, high, cameras), jnp.float32)
        for low, high in ((-np.pi, np.pi), (1.0, 5.0), (-0.4, 0.4), (0.0, 0.3))
    )
    place = Vec3(-12.0 * jnp.cos(yaw), -12.0 * jnp.sin(yaw), height)
    turn = jax.vmap(Quat.from_euler)(roll, pitch, yaw)
    return scene, View(place, turn, jnp.full(cameras, np.pi / 2, jnp.float32), jnp.arange(cameras, dtype=jnp.uint32))


def render(cameras: int, width: int, height: int, count: int) -> dict[str, Any]:
    """Colour, depth and segmentation of a scene by all cameras."""
    mesh = device.mesh()
    if cameras % mesh.size:
        raise ValueError(f"{cameras} cameras do not divide over {mesh.size} devices")
    scene, views = arena(count, cameras)
    camera = Camera(width, height)
    split = PartitionSpec(device.AXIS)
    take = jax.vmap(camera.render, in_axes=(None, 0))
    mapped = jax.shard_map(take, mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=split, check_vma=False)
    began = time.perf_counter()
    program = jax.jit(mapped).lower(scene, views).compile()
    compiling = time.perf_counter() - began
    scene = jax.device_put(scene, NamedSharding(mesh, PartitionSpec()))
    views = jax.device_put(views, NamedSharding(mesh, split))
    jax.block_until_ready(program(scene, views))
    wall, cpu = timed(lambda: program(scene, views), 6 * REPEATS)
    pixels = cameras * camera.pixels
    plan: Any = program.memory_analysis()
    return {
        "cameras": cameras,
        "width": width,
        "height": height,
        "shapes": count,
        "devices": mesh.size,
        "megapixels_per_second": round(pixels / wall / 1e6, 1),
        "megapixels_per_cpu_second": round(pixels / cpu / 1e6, 1),
        "frames_per_second": round(cameras / wall),
        "compile_seconds": round(compiling, 2),
        "memory_mb": round((plan.output_size_in_bytes + plan.temp_size_in_bytes) / 1e6, 2),
    }


def memory(preset: str, worlds: int, say: Say) -> dict[str, Any]:
    """What a world holds, and the peak of a process that trains that many of them."""
    experiment = PRESETS[preset]
    size = jax.eval_shape(lambda: experiment.task.reset(Rng.from_seed(0, 0)))
    bytes_per_world = sum(np.dtype(leaf.dtype).itemsize * leaf.size for leaf in jax.tree.leaves(size))
    # A process of its own: the peak of this one has seen other things.
    import sys

    learner = replace(experiment.learner, worlds=worlds)
    wanted = replace(experiment, learner=learner, steps=learner.steps_per_update)
    code = (
        "import json, sys, resource\n"
        "from slipstream.core import device\n"
        "device.configure()\n"
        "from slipstream.experiment.experiment import Experiment\n"
        "from slipstream.runs.train import trainer_of\n"
        "import jax\n"
        "trainer = trainer_of(Experiment.from_dict(json.loads(sys.argv[1])), 1)\n"
        "chunk = trainer.compile()\n"
        "train = trainer.start(0)\n"
        "for _ in range(3): train = chunk(train)[0]\n"
        "jax.block_until_ready(train)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(wanted.as_dict())],
        capture_output=True, text=True, check=False, task=os.environ,
    )  # fmt: skip
    if done.returncode or not re.fullmatch(r"\d+", done.stdout.strip()):
        raise ValueError(f"{worlds} worlds cannot be trained: {done.stderr.strip().splitlines()[-1:]}")
    return {
        "preset": preset,
        "worlds": worlds,
        "bytes_per_world": bytes_per_world,
        "peak_rss_mb": round(int(done.stdout) / 1024),
    }
