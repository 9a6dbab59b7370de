"""Worlds alone: random actions, and the quadrotor beside the same physics in hand-written C++."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array

from ..core import device
from ..core.geometry import Quat, Vec3
from ..core.rng import Rng
from ..core.task import AnyState, LimitTask, MujocoTask, Restart, Task
from ..dynamics.quadrotor import PhysicsRandomization, Quadrotor, QuadrotorState, Rotors
from ..learn.rollout import RESTART_WINDOW, advance_worlds, block_of, in_blocks, with_restarts
from ..plants.mujoco_model import MujocoModelPlant
from ..plants.plant import PlantError
from .timing import REPEATS, Say, timed

LIMIT = Path(__file__).with_name("limit.cpp")
"""The same physics by hand, for as fast as this machine goes."""
SHORTEST_ROLLOUT = 2 * RESTART_WINDOW
"""Fewest steps that are timed."""


def default_worlds(task: Task[Any]) -> int:
    """As many worlds as make 4096 agents, or nearly: whole blocks. Fewer where a step takes long."""
    block = block_of(task.spec.agents)
    count = min(4096, task.bench_steps // SHORTEST_ROLLOUT)
    return max(count // task.spec.agents // block, 1) * block


def sim(task: Task[Any], name: str, worlds: int, say: Say) -> dict[str, Any]:
    """The whole step of a task, and its dynamics beside the C++ limit where there is one."""
    agents = task.spec.agents
    steps = max(SHORTEST_ROLLOUT, task.bench_steps // (worlds * agents) // RESTART_WINDOW * RESTART_WINDOW)
    rate, cpu_rate = sim_rate(task, worlds, steps)
    result: dict[str, Any] = {
        "task": name,
        "worlds": worlds,
        "agents": agents,
        "devices": device.mesh().size,
        "steps_per_second": round(rate),
        "steps_per_cpu_second": round(cpu_rate),
    }
    if isinstance(task, MujocoTask):
        return result | mujoco_ratio(task, cpu_rate, say)
    return result | limit_ratio(task.limit_vehicle, worlds, say) if isinstance(task, LimitTask) else result


def sim_rate(task: Task[Any], worlds: int, steps: int, observe: bool = True) -> tuple[float, float]:
    """Steps of all agents a second and a CPU-second, on all devices."""
    mesh = device.mesh()
    if worlds % mesh.size:
        raise ValueError(f"{worlds} worlds do not divide over {mesh.size} devices")

    def work(indices: Array) -> Any:
        return step_randomly(task, *fresh_worlds(task, indices), steps, observe)

    spec = PartitionSpec(device.AXIS)
    program = jax.jit(jax.shard_map(work, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    indices = jnp.arange(worlds)
    jax.block_until_ready(program(indices))
    wall, cpu = timed(lambda: program(indices), 4 * REPEATS)
    done = worlds * steps * task.spec.agents
    return done / wall, done / cpu


def fresh_worlds(task: Task[Any], indices: Array) -> tuple[Any, Rng]:
    """New worlds, and the generators of their random actions."""
    own = jax.vmap(partial(Rng.from_seed, 7))
    agents = task.spec.agents
    rngs = own(indices) if agents == 1 else jax.vmap(own)(indices[:, None] * agents + jnp.arange(agents))
    return jax.vmap(lambda i: task.reset(Rng.from_seed(0, i)))(indices), rngs


def step_randomly(task: Task[Any], states: AnyState, rngs: Rng, steps: int, observe: bool) -> tuple[Any, Any]:
    """Random actions for `steps` steps, every step observed: the states and last observations, in blocks."""
    step = partial(_step_block, task, steps=steps, observe=observe)
    return in_blocks(step, states, rngs, agents=task.spec.agents)


def _step_block(task: Task[Any], states: AnyState, rngs: Rng, steps: int, observe: bool) -> tuple[Any, Any]:
    agents = task.spec.agents
    draw = jax.vmap(task.spec.action.sample)
    draw = jax.vmap(draw) if agents > 1 else draw

    # Worlds last, so that each feature is a contiguous row.
    look = jax.vmap(task.observe, out_axes=-1)

    def tick(fresh: Restart[Any], carry: tuple[Any, ...]) -> tuple[Any, None]:
        states, stale, (rngs, seen) = carry
        action, rngs = draw(rngs)
        states, stale = advance_worlds(task, states, action, fresh, stale)
        return (states, stale, (rngs, look(states) if observe else seen)), None

    # Only its shape counts: to compute it here would compile the observation twice.
    seen = jnp.zeros(jax.eval_shape(look, states).shape if observe else 1)
    (states, (_, seen)), _ = with_restarts(task, tick, states, (rngs, seen), steps)
    return states, seen


def mujoco_ratio(task: Any, ours: float, say: Say, worlds: int = 16, steps: int = 128) -> dict[str, Any]:
    """MuJoCo C on the task's own model under random actions: steps a CPU-second, and how many times faster we are."""
    try:
        plant = MujocoModelPlant()
    except PlantError as error:
        say(f"{error}: no comparison with MuJoCo")
        return {"mujoco_per_cpu_second": None, "mujoco_ratio": None}
    states, rngs = fresh_worlds(task, jnp.arange(worlds))

    def tick(carry: tuple[Any, Rng], _: None) -> tuple[tuple[Any, Rng], Array]:
        states, rngs = carry
        action, rngs = jax.vmap(task.spec.action.sample)(rngs)
        commanded, commands = jax.vmap(task.command)(states, action)
        control = jax.vmap(task.mujoco_control)(states, commands)
        return (jax.vmap(task.judge)(commanded, jax.vmap(task.move)(commanded, commands)), rngs), control

    _, controls = jax.jit(lambda carry: jax.lax.scan(tick, carry, None, length=steps))((states, rngs))
    controls = np.moveaxis(np.asarray(controls), 0, 1)
    plant.start(task, states)
    _, cpu = timed(lambda: plant.run(controls), REPEATS)
    plant.close()
    rate = worlds * steps / cpu
    return {"mujoco_per_cpu_second": round(rate), "mujoco_ratio": round(ours / rate, 1)}


def limit_ratio(vehicle: Quadrotor, worlds: int, say: Say) -> dict[str, Any]:
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
        ours = dynamics_program(vehicle, worlds)
        best_ours, best_limit, steps = 0.0, 0.0, max(50, 4_000_000 // worlds)
        program, flight, targets = ours(steps)
        jax.block_until_ready(program(flight, targets))
        for _ in range(REPEATS):
            _, cpu = timed(lambda: program(flight, targets), 1)
            best_ours = max(best_ours, worlds * steps / cpu)
            best_limit = max(best_limit, run_limit(binary, vehicle, worlds, steps)[0])
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
