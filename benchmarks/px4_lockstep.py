"""Control steps a second of the fast survey model alone, of training on it, and of PX4 in lockstep.

    SLIPSTREAM_PX4=... python benchmarks/px4_lockstep.py

A control step is one decision of one drone, five a second. Two PX4 instances fly at the same time, as in `evaluate`.
All cores are used; the three run one after the other.
"""

import argparse
import json
import subprocess
import sys
import time


def ours(*words):
    done = subprocess.run([sys.executable, "-m", "slipstream.cli", *words, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def px4(seconds):
    """Drone-decisions a second while two PX4s fly; booting and taking off are not counted."""
    import jax
    import jax.numpy as jnp

    from slipstream.core import device

    device.configure(1)
    from slipstream.core.rng import Rng
    from slipstream.dynamics.quadrotor import iris
    from slipstream.evaluation.excitation import FreeFlight
    from slipstream.plants.px4 import Px4Plant
    from slipstream.plants.px4.sensors import SENSOR_RATE

    task, plant = FreeFlight(iris, control_rate=5), Px4Plant(instances=2)
    states = jax.vmap(lambda k: task.reset(Rng.from_seed(0, k)))(jnp.arange(2))
    plant.adapt(task)
    try:
        plant.start(task, states)
        plant.command(states, jnp.zeros((2, 4)))
        before, began = plant.stats.steps, time.perf_counter()
        for _ in range(round(5 * seconds)):
            plant.command(states, jnp.asarray([[2.0, 0.0, 0.0, 0.1], [0.0, 2.0, 0.0, 0.1]]))
        wall = time.perf_counter() - began
        steps = plant.stats.steps - before
    finally:
        plant.close()
    return {
        "lockstep_steps_per_second": round(steps / wall, 1),
        "times_real_time": round(steps / SENSOR_RATE / wall, 2),
        "control_steps_per_second": round(2 * 5 * seconds / wall, 2),
        "missed_replies": plant.stats.missed_replies,
    }


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=30.0, help="simulated, on PX4")
    chosen = options.parse_args()
    reference = px4(chosen.seconds)
    stepping = ours("bench", "sim", "--task", "survey", "--devices", "0")
    training = ours("bench", "train", "--preset", "survey-transit")
    slow, agents = reference["control_steps_per_second"], stepping["agents"]
    fast, learning = stepping["steps_per_second"], training["samples_per_second"]
    result = {
        "px4": reference,
        "stepping_control_steps_per_second": fast,
        "training_control_steps_per_second": learning,
        "agents": agents,
        "stepping_ratio": round(fast / slow),
        "training_ratio": round(learning / slow),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
