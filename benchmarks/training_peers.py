"""Training a Crazyflie to recover to hover, beside crazyflow and rl_tools, turn about, in CPU-seconds per training.

    python3 -m venv peers && peers/bin/pip install -e . crazyflow l2f rltools mkl mkl-include
    peers/bin/python benchmarks/training_peers.py --json training.json

A venv of its own, because crazyflow asks for an older jax than the project's. Building l2f takes minutes. rl_tools
compiles its training when it is run; it needs g++ and a BLAS, such as MKL: without one it is several times slower.

The task of Slipstream and of crazyflow is the same: our Crazyflie (mass, inertia, thrust, rotor lag), four motor speeds
50 times a second, starts within 1 m on each axis in any attitude, up to 5 m/s and 10 rad/s; the same 16 observations,
two hidden layers of 32, cost, schedule and average of weights. Differences: crazyflow's drag is linear, and a command
of zero is hover there and half of the largest speed here. crazyflow ships a simulator with gradients but no training,
so the loop around its functional API stands here: back-propagation through a window with a terminal cost, as ours.

rl_tools trains another Crazyflie at 100 Hz on its own task, which starts closer and slower: within 0.5 m, 90 degrees,
1 m/s and 1 rad/s. Its policy swings during a training, so the policy that counts is the one that did best on other
starts, of 16; evaluating them is not counted.

The score is the fraction of 1024 unseen starts after which the drone is within 0.2 m, slower than 0.3 m/s and upright
(up.z > 0.9) for the whole last second of four, with physics at 400 Hz whatever a training used (rl_tools: 100 Hz).
Settings were chosen with `--selection`, on other starts. Each training runs in a process of its own. Compiling, from
an empty cache, is apart. A side that cannot run is named and left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

STARTS = 1024
TEST_STARTS, SELECTION_STARTS = 31_000_003, 7_000_001
CONTROL_RATE, SCORED_RATE = 50, 400
HOLD = 1.0
TIME_LIMIT = 4.0


@dataclass(frozen=True)
class Recipe:
    """What was chosen for a side: a training of `updates` windows of `horizon` steps in all worlds."""

    worlds: int
    horizon: int
    updates: int
    learning_rate: float
    physics_rate: int = SCORED_RATE


@dataclass
class Stopwatch:
    """CPU-seconds of compiling and of training, and scores on the way; scoring is not timed."""

    compiling: float = 0.0
    training: float = 0.0
    curve: tuple = ()

    def add(self, since, part):
        setattr(self, part, getattr(self, part) + time.process_time() - since)

    def result(self, **more):
        """One side and seed; `to_95` is when the first 95 % were reached, in CPU-seconds of training."""
        first = next((seconds for seconds, score in self.curve if score >= 0.95), None)
        row = {"train_cpu_seconds": round(self.training, 3), "to_95": first and round(first, 3)}
        return row | {"compile_cpu_seconds": round(self.compiling, 1), "success": round(self.curve[-1][1], 4), **more}


# Slipstream


def trained(experiment, seed, starts):
    """A training of an experiment, scored after each chunk."""
    import jax
    import jax.numpy as jnp

    from slipstream.runs.train import trainer_of

    watch, began = Stopwatch(), time.process_time()
    trainer = trainer_of(experiment, max(8, experiment.updates // 25))
    chunk, train = trainer.compile(), jax.block_until_ready(trainer.start(seed))
    watch.add(began, "compiling")
    score = jax.jit(success_of(replace(experiment.task.for_evaluation(), physics_rate=SCORED_RATE)))
    for _ in range(trainer.updates // trainer.chunk_length):
        began = time.process_time()
        train, metrics, _ = chunk(train)
        jax.block_until_ready((train, metrics))
        watch.add(began, "training")
        watch.curve += ((watch.training, float(score(train.average, jnp.uint32(starts)))),)
    return watch.result(steps=trainer.updates * experiment.learner.steps_per_update)


def success_of(task):
    """The fraction of starts from which a policy recovers, as a function of policy and seed."""
    import jax
    import jax.numpy as jnp

    from slipstream.core.rng import Rng

    def success(policy, seed):
        states = jax.vmap(lambda world: task.reset(Rng.from_seed(seed, world)))(jnp.arange(STARTS))

        def tick(states, _):
            action = policy.distribution(jax.vmap(task.observe)(states)).mean
            return jax.vmap(task.step)(states, action), None

        states, _ = jax.lax.scan(tick, states, length=round(TIME_LIMIT * CONTROL_RATE))
        return jnp.mean(states.progress.settled >= HOLD - 1e-3)

    return success


def preset():
    from slipstream.core import device

    device.configure(1, wide_vectors=True)
    from slipstream.experiment.registry import presets

    return replace(presets()["hover-crazyflie-motors"], devices=1)


def slipstream_preset(seed, starts):
    return trained(preset(), seed, starts)


def slipstream_shac(recipe, seed, starts):
    experiment = preset()
    experiment = replace(
        experiment,
        task=replace(experiment.task, physics_rate=recipe.physics_rate),
        learner=replace(
            experiment.learner,
            worlds=recipe.worlds,
            rollout_length=recipe.horizon,
            learning_rate=recipe.learning_rate,
            shuffle_block=recipe.horizon,
        ),
        steps=recipe.worlds * recipe.horizon * recipe.updates,
    )
    return trained(experiment, seed, starts)


def slipstream_ppo(seed, starts):
    """The same task by PPO. In training an episode ends where the drone is lost: a body that spins without limit, as
    under a random policy, overflows the physics, and the running mean of observations with it."""
    experiment = preset()
    from slipstream.learn.ppo import Ppo
    from slipstream.tasks.hover import Hover

    @dataclass(frozen=True)
    class Bounded(Hover):
        def judge(self, state, body):
            state = super().judge(state, body)
            lost = (state.body.rates.norm() > 40.0) | (state.body.position.norm() > 10.0)
            return replace(state, terminated=lost, reward=state.reward - 5.0 * lost)

    task = Bounded(**vars(experiment.task))
    return trained(replace(experiment, task=task, learner=Ppo(**PPO), steps=PPO_STEPS), seed, starts)


PPO_STEPS = 12_000_000
PPO = {
    "worlds": 512, "rollout_length": 32, "epochs": 4, "minibatches": 4, "discount": 0.99, "gae_lambda": 0.95,
    "learning_rate": 1e-3, "init_std": 0.4,
}  # fmt: skip


# crazyflow

RPM = 60.0 / 6.283185307179586
"""Revolutions a minute in a rad/s, crazyflow's unit of rotor speeds."""


def crazyflow_gradient(recipe, seed, starts):
    from slipstream.core import device

    # The same options of XLA as ours: they make crazyflow faster, too, by a tenth.
    device.configure(1)
    import jax

    watch, began = Stopwatch(), time.process_time()
    begin, update, score = crazyflow_program(recipe)
    train = jax.block_until_ready(jax.jit(begin)(jax.random.key(seed)))
    length = max(8, recipe.updates // 25)
    chunk = jax.jit(lambda train: jax.lax.scan(update, train, length=length), donate_argnums=0).lower(train).compile()
    watch.add(began, "compiling")
    for _ in range(recipe.updates // length):
        began = time.process_time()
        train, cost = chunk(train)
        jax.block_until_ready((train, cost))
        watch.add(began, "training")
        watch.curve += ((watch.training, float(score(train["average"], jax.random.key(starts)))),)
    return watch.result(steps=recipe.worlds * recipe.horizon * recipe.updates)


def crazyflow_vehicle(worlds, physics_rate):
    """crazyflow's simulator with the parameters of our Crazyflie: its data, and its step as a pure function."""
    import jax.numpy as jnp
    from crazyflow.sim import Sim
    from crazyflow.sim.pipeline import remove_fn

    from slipstream.dynamics.quadrotor import crazyflie as ours

    sim = Sim(
        n_worlds=worlds,
        dynamics="first_principles",
        control="rotor_vel",
        integrator="symplectic_euler",
        freq=physics_rate,
    )
    inertia = jnp.diag(jnp.asarray(ours.inertia))
    across = ours.rotor_drag * 4.0 * ours.hover_speed + ours.body_drag[0] * 2.5
    along = ours.body_drag[2] * 2.5
    values = {
        "mass": ours.mass,
        "L": ours.arm[0],
        "prop_inertia": ours.rotor_inertia,
        "J": inertia,
        "J_inv": jnp.linalg.inv(inertia),
        "rpm2thrust": [0.0, 0.0, ours.thrust_curve[1] / RPM**2],
        "rpm2torque": [0.0, 0.0, ours.torque_curve[1] / RPM**2],
        "rotor_dyn_coef": [1.0 / ours.lag_up, 0.0, 1.0 / ours.lag_down, 0.0],
        # Linear here, quadratic there: equal at 2.5 m/s, the mean speed of the starts.
        "drag_matrix": -jnp.diag(jnp.asarray([across, across, along])),
    }
    params = sim.data.params
    for name, value in values.items():
        old = getattr(params, name)
        params = params.replace(**{name: jnp.broadcast_to(jnp.asarray(value, jnp.float32), old.shape)})
    # The task has no floor, and the policy's commands are within the limits.
    remove_fn(sim.step_pipeline, "clip_floor_pos")
    remove_fn(sim.step_pipeline, "clip_rotor_vel_cmd")
    return sim.data.replace(params=params), sim.build_step_fn()


def crazyflow_program(recipe):
    """Begin, update and score of a training by gradients through crazyflow's dynamics."""
    import jax
    import jax.numpy as jnp
    import optax
    from crazyflow.sim import functional
    from jax.scipy.spatial.transform import Rotation

    from slipstream.dynamics.quadrotor import crazyflie as ours

    hover, top = ours.hover_speed * RPM, ours.max_speed * RPM
    worlds = recipe.worlds

    def length(v, radius):
        return jnp.sqrt(jnp.sum(v * v, -1) + radius**2)

    def starts(blank, key):
        """States of thrown drones; crazyflow's arrays have axes of worlds and of drones in a world."""
        shape = blank.pos.shape[:2]
        keys = jax.random.split(key, 6)

        def vector(direction, size, largest):
            d = jax.random.normal(direction, (*shape, 3))
            return d / length(d, 0.0)[..., None] * jax.random.uniform(size, (*shape, 1), maxval=largest)

        q = jax.random.normal(keys[0], (*shape, 4))
        return blank.replace(
            pos=jax.random.uniform(keys[1], (*shape, 3), minval=-1.0, maxval=1.0),
            quat=q / length(q, 0.0)[..., None],
            vel=vector(keys[2], keys[3], 5.0),
            ang_vel=vector(keys[4], keys[5], 10.0),
            rotor_vel=jnp.full((*shape, 4), hover),
        )

    def axes(state):
        return Rotation.from_quat(state.quat).as_matrix()

    def act(params, state):
        body_to_world = axes(state)
        to_body = lambda v: jnp.einsum("...ji,...j->...i", body_to_world, v)  # noqa: E731
        scale = 1.0 / jnp.sqrt(1.0 + 0.1 * jnp.sum(state.pos**2, -1, keepdims=True))
        parts = [to_body(state.pos) * scale, to_body(state.vel) * 0.3, -body_to_world[..., 2, :]]
        x = jnp.concatenate([*parts, state.ang_vel * 0.15, state.rotor_vel / hover - 1.0], -1)
        for weight, bias in params[:-1]:
            x = jnp.tanh(x @ weight + bias)
        return x @ params[-1][0] + params[-1][1]

    def flight(worlds, physics_rate):
        data, step = crazyflow_vehicle(worlds, physics_rate)

        def fly(state, action):
            """One control period."""
            action = jnp.clip(action, -1.0, 1.0)
            speeds = hover + action * jnp.where(action > 0.0, top - hover, hover)
            after = functional.rotor_vel_control(data.replace(states=state), speeds)
            return step(after, physics_rate // CONTROL_RATE).states

        return data.states, fly

    def running_cost(state):
        tilt, spin = 1.0 - axes(state)[..., 2, 2], jnp.sum(state.ang_vel**2, -1)
        return (length(state.pos, 0.1) + 0.1 * length(state.vel, 0.2) + 0.1 * tilt + 0.002 * spin) / CONTROL_RATE

    def terminal_cost(state):
        tilt = 1.0 - axes(state)[..., 2, 2]
        return 0.2 * (length(state.pos + 0.4 * state.vel, 0.1) + 0.2 * length(state.vel, 0.2) + 0.3 * tilt)

    blank, fly = flight(worlds, recipe.physics_rate)
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(0.7, 0.95))

    def window(params, state, noise):
        """The mean cost of a window of flight, and the states after it."""

        @jax.checkpoint
        def tick(state, noise):
            state = fly(state, act(params, state) + noise)
            return state, jnp.mean(running_cost(state))

        state, costs = jax.lax.scan(tick, state, noise)
        return (jnp.sum(costs) + jnp.mean(terminal_cost(state))) / recipe.horizon, state

    def update(train, _):
        key, noise_key, start_key, life_key = jax.random.split(train["key"], 4)
        noise = 0.1 * jax.random.normal(noise_key, (recipe.horizon, worlds, 1, 4))
        (cost, state), grad = jax.value_and_grad(window, has_aux=True)(train["params"], train["state"], noise)
        direction, optimizer = adam.update(grad, train["optimizer"])
        rate = recipe.learning_rate * (1.0 - 0.95 * train["updates"] / recipe.updates)
        params = jax.tree.map(lambda p, d: p - rate * d, train["params"], direction)
        weight = 1.0 / jnp.maximum(train["updates"] + 1.0 - 0.8 * recipe.updates, 1.0)
        average = jax.tree.map(lambda old, new: (1.0 - weight) * old + weight * new, train["average"], params)
        # A world restarts after 1 to 4 seconds, between two windows.
        age = train["age"] + recipe.horizon / CONTROL_RATE
        ended = age >= train["life"]
        state = jax.tree.map(
            lambda new, old: jnp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new, old),
            starts(blank, start_key),
            state,
        )
        life = jnp.where(ended, jax.random.uniform(life_key, (worlds,), minval=1.0, maxval=TIME_LIMIT), train["life"])
        return {
            "params": params,
            "average": average,
            "optimizer": optimizer,
            "state": state,
            "age": jnp.where(ended, 0.0, age),
            "life": life,
            "key": key,
            "updates": train["updates"] + 1.0,
        }, cost

    def begin(key):
        key, *keys = jax.random.split(key, 6)
        sizes, gains = (16, 32, 32, 4), (2.0**0.5, 2.0**0.5, 0.01)
        params = [
            (jax.nn.initializers.orthogonal(gain)(k, shape), jnp.zeros(shape[1]))
            for k, gain, shape in zip(keys, gains, pairwise(sizes), strict=False)
        ]
        return {
            "params": params,
            "average": jax.tree.map(jnp.copy, params),
            "optimizer": adam.init(params),
            "state": starts(blank, keys[3]),
            "age": jnp.zeros(worlds),
            "life": jax.random.uniform(keys[4], (worlds,), maxval=TIME_LIMIT),
            "key": key,
            "updates": jnp.float32(0.0),
        }

    scored_blank, scored_fly = flight(STARTS, SCORED_RATE)

    def score(params, key):
        def tick(carry, _):
            state, held = carry
            state = scored_fly(state, act(params, state))
            there = (length(state.pos, 0.0) < 0.2) & (length(state.vel, 0.0) < 0.3) & (axes(state)[..., 2, 2] > 0.9)
            return (state, jnp.where(there, held + 1, 0)), None

        begun = starts(scored_blank, key), jnp.zeros((STARTS, 1))
        (_, held), _ = jax.lax.scan(tick, begun, length=round(TIME_LIMIT * CONTROL_RATE))
        return jnp.mean(held >= HOLD * CONTROL_RATE)

    return begin, update, jax.jit(score)


# rl_tools

L2F_STEPS, L2F_EVALUATIONS = 400_000, 16
L2F_OBSERVATIONS, L2F_RATE = 82, 100
L2F_SAC = {
    "GAMMA": 0.99, "ACTOR_BATCH_SIZE": 128, "CRITIC_BATCH_SIZE": 128, "CRITIC_TRAINING_INTERVAL": 5,
    "ACTOR_TRAINING_INTERVAL": 10, "CRITIC_TARGET_UPDATE_INTERVAL": 5, "ACTOR_HIDDEN_DIM": 64, "CRITIC_HIDDEN_DIM": 64,
    "ACTOR_ACTIVATION_FUNCTION": "FAST_TANH", "CRITIC_ACTIVATION_FUNCTION": "FAST_TANH", "TARGET_ENTROPY": -4,
    "OPTIMIZER_ALPHA": 1e-3,
}  # fmt: skip
"""Settings of SAC in rl_tools' zoo for l2f, but for batches of 128 instead of 64, layers of 64 instead of 32, and twice
the steps: with those of the zoo fewer policies come within 0.2 m."""
L2F_ENVIRONMENT = """
#include <rl_tools/rl/environments/l2f/operations_cpu.h>
#include <rl_tools/rl/environments/l2f/parameters/default.h>
template <typename T, typename TI>
struct Hover: rl_tools::rl::environments::l2f::parameters::DEFAULT_PARAMETERS_FACTORY<T, TI>::STATIC_PARAMETERS {
    using DEFAULTS = rl_tools::rl::environments::l2f::parameters::DEFAULT_PARAMETERS_FACTORY<T, TI>;
    using PARAMETERS = typename DEFAULTS::STATIC_PARAMETERS::PARAMETERS;
    static constexpr PARAMETERS with_settings_of_the_zoo() {
        PARAMETERS p = DEFAULTS::nominal_parameters;
        p.mdp.reward = {false, 0.1, 1, 0, 10, 0, 2.5, 0.05, 0, 0, 0, 0.1, 0, 0};
        p.mdp.termination = {true, 1, 10, 35, 10000, 50000};
        return p;
    }
    static constexpr PARAMETERS PARAMETER_VALUES = with_settings_of_the_zoo();
};
template <typename T, typename TI>
using ENVIRONMENT_FACTORY =
    rl_tools::rl::environments::Multirotor<rl_tools::rl::environments::l2f::Specification<T, TI, Hover<T, TI>>>;
"""


def rl_tools_sac(seed, starts):
    import resource

    import rltools

    folder = Path(tempfile.mkdtemp())
    (folder / "environment.h").write_text(L2F_ENVIRONMENT)
    environment = {"path": str(folder), "action_dim": 4, "observation_dim": L2F_OBSERVATIONS}
    trainer = rltools.SAC(environment, interface_name="hover", enable_evaluation=False, STEP_LIMIT=L2F_STEPS, **L2F_SAC)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    watch, state, finished, best = Stopwatch(children.ru_utime + children.ru_stime), trainer.State(seed), False, -1.0
    while not finished:
        began = time.process_time()
        for _ in range(L2F_STEPS // L2F_EVALUATIONS):
            finished = state.step()
            if finished:
                break
        watch.add(began, "training")
        chosen = l2f_success(state, SELECTION_STARTS + 1, 256)
        if chosen > best:
            best = chosen
            watch.curve += ((watch.training, l2f_success(state, starts, STARTS)),)
    return watch.result(steps=L2F_STEPS, success_of_last_on_selection=chosen)


def l2f_success(state, seed, starts):
    """The fraction of l2f's own starts from which the policy comes to rest."""
    import l2f
    import numpy as np

    many = getattr(l2f, f"vector{starts}")

    device, rng = l2f.Device(), many.VectorRng()
    environment, parameters = many.VectorEnvironment(), many.VectorParameters()
    now, after = many.VectorState(), many.VectorState()
    many.initialize_rng(device, rng, seed)
    many.initialize_environment(device, environment)
    many.sample_initial_parameters(device, environment, parameters, rng)
    many.sample_initial_state(device, environment, parameters, now, rng)
    observation = np.zeros((starts, L2F_OBSERVATIONS), np.float32)
    steps, hold = round(TIME_LIMIT * L2F_RATE), round(HOLD * L2F_RATE)
    there = np.ones(starts, bool)
    for step in range(steps):
        many.observe(device, environment, parameters, now, observation, rng)
        action = np.array([state.action(row) for row in observation], np.float32)
        many.step(device, environment, parameters, now, action, after, rng)
        now, after = after, now
        if step >= steps - hold:
            position = np.array([s.position for s in now.states])
            velocity = np.array([s.linear_velocity for s in now.states])
            q = np.array([s.orientation for s in now.states])
            there &= np.linalg.norm(position, axis=1) < 0.2
            there &= (np.linalg.norm(velocity, axis=1) < 0.3) & (1.0 - 2.0 * (q[:, 1] ** 2 + q[:, 2] ** 2) > 0.9)
    return float(there.mean())


SIDES = {
    "slipstream preset": slipstream_preset,
    "slipstream 400 Hz": lambda *args: slipstream_shac(Recipe(32, 32, 200, 8e-3), *args),
    "crazyflow 400 Hz": lambda *args: crazyflow_gradient(Recipe(32, 32, 200, 8e-3), *args),
    "slipstream 200 Hz": lambda *args: slipstream_shac(Recipe(64, 32, 200, 8e-3, 200), *args),
    "slipstream 100 Hz": lambda *args: slipstream_shac(Recipe(32, 32, 200, 8e-3, 100), *args),
    "crazyflow 100 Hz": lambda *args: crazyflow_gradient(Recipe(32, 32, 200, 8e-3, 100), *args),
    "slipstream PPO": slipstream_ppo,
    "rl_tools SAC": rl_tools_sac,
}
"""400 Hz is the physics of the score; with larger steps a training is cheaper, and its policy may carry over less."""


def measured(side, seed, starts):
    """One training in its own process, with empty caches of compiled programs."""
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"TMPDIR": empty, "SLIPSTREAM_CACHE": empty, "MKL_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--side", side, "--seeds", str(seed), "--starts", str(starts)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return {"left_out": (done.stderr.strip().splitlines() or ["?"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(rows):
    """Rows by side and seed, as Markdown."""
    titles = ("success", "train_cpu_seconds", "to_95", "compile_cpu_seconds", "steps")
    lines = [f"| side | seed | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    for row in sorted(rows, key=lambda row: list(SIDES).index(row["side"])):
        cells = [row["left_out"]] if "left_out" in row else [str(row[title]) for title in titles]
        lines.append(f"| {row['side']} | {row['seed']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--selection", action="store_true", help="score on the starts that settings are chosen by")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--starts", type=int, default=TEST_STARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(SIDES[args.side](args.seeds[0], args.starts)))
        return
    rows, starts = [], SELECTION_STARTS if args.selection else TEST_STARTS
    for seed in args.seeds:
        for side in args.sides:
            rows.append({"side": side, "seed": seed} | measured(side, seed, starts))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
