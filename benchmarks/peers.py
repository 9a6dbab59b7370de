"""Slipstream beside other simulators on the same vehicle and step, turn about, in physics steps per CPU-second.

    python3 -m venv peers && peers/bin/pip install -e . crazyflow l2f mujoco && peers/bin/python benchmarks/peers.py

A venv of its own, because crazyflow asks for an older jax than the project's. l2f is given 8192 worlds, the nearest
size it is built for, and MuJoCo 16, one after the other: more worlds do not make it faster.

Each peer runs in a process of its own, in rounds, ours in between; the best round of each counts. One JSON line a peer.
A peer that is not installed is named and left out.
"""

import json
import subprocess
import sys
import time

ROUNDS = 3
WORLDS = 4096
CRAZYFLIE_DT = 0.002


def cpu_clock():
    return time.process_time()


def best(work, steps, repeats=3):
    """Most steps per CPU-second of several runs."""
    work()
    rates = []
    for _ in range(repeats):
        start = cpu_clock()
        work()
        rates.append(steps / (cpu_clock() - start))
    return max(rates)


def slipstream(order, dt, vehicle="crazyflie", steps=400):
    from dataclasses import replace

    import jax

    from slipstream.core import device

    device.configure(1)
    from slipstream.bench import dynamics_program
    from slipstream.dynamics.quadrotor import VEHICLES

    program, flight, targets = dynamics_program(replace(VEHICLES[vehicle], order=order), WORLDS, dt, 1)(steps)
    return best(lambda: jax.block_until_ready(program(flight, targets)), WORLDS * steps)


def ours_euler():
    return slipstream(1, CRAZYFLIE_DT)


def ours_rk4():
    return slipstream(4, 0.01)


def ours_racer():
    return slipstream(1, 0.0025, "racer")


def crazyflow():
    import jax
    from crazyflow.control import ControlMode
    from crazyflow.sim import Dynamics, Sim
    from crazyflow.sim.integration import Integrator

    sim = Sim(
        n_worlds=WORLDS,
        dynamics=Dynamics("first_principles"),
        control=ControlMode("rotor_vel"),
        integrator=Integrator("euler"),
        freq=round(1 / CRAZYFLIE_DT),
    )
    sim.reset()
    steps = 100

    def work():
        sim.step(steps)
        jax.block_until_ready(sim.data.states.pos)

    return best(work, WORLDS * steps)


def l2f():
    import l2f
    from l2f import vector8192 as many

    worlds = 8192
    device, rng = l2f.Device(), many.VectorRng()
    environment, parameters = many.VectorEnvironment(), many.VectorParameters()
    state, after = many.VectorState(), many.VectorState()
    import numpy as np

    many.initialize_rng(device, rng, 0)
    many.initialize_environment(device, environment)
    many.sample_initial_parameters(device, environment, parameters, rng)
    many.sample_initial_state(device, environment, parameters, state, rng)
    action = np.zeros((worlds, 4), np.float32)

    def work():
        nonlocal state, after
        for _ in range(50):
            many.step(device, environment, parameters, state, action, after, rng)
            state, after = after, state

    return best(work, worlds * 50)


def mujoco():
    import mujoco
    from mujoco import rollout

    model = mujoco.MjModel.from_xml_string(
        """<mujoco><option timestep="0.0025" integrator="Euler"><flag contact="disable"/></option><worldbody>
        <body pos="0 0 1"><freejoint/><inertial pos="0 0 0" mass="0.6076" diaginertia="0.003 0.003 0.006"/>
        <site name="fl" pos="0.0883 0.0883 0"/><site name="fr" pos="0.0883 -0.0883 0"/>
        <site name="rr" pos="-0.0883 -0.0883 0"/><site name="rl" pos="-0.0883 0.0883 0"/></body></worldbody><actuator>
        <motor site="fl" gear="0 0 1 0 0 0.00667"/><motor site="fr" gear="0 0 1 0 0 -0.00667"/>
        <motor site="rr" gear="0 0 1 0 0 0.00667"/><motor site="rl" gear="0 0 1 0 0 -0.00667"/></actuator></mujoco>"""
    )
    data, worlds, steps = mujoco.MjData(model), 16, 2000
    import numpy as np

    state = np.zeros((worlds, mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)))
    mujoco.mj_getState(model, data, state[0], mujoco.mjtState.mjSTATE_FULLPHYSICS)
    state[:] = state[0]
    control = np.full((worlds, steps, 4), 1.49)
    return best(lambda: rollout.rollout(model, data, state, control), worlds * steps)


PAIRS = {
    "crazyflow": ("ours_euler", "2 ms, Euler, first principles with rotor dynamics, Crazyflie", 20),
    "l2f": ("ours_rk4", "10 ms, RK4 with rotor lag, Crazyflie", 10),
    "mujoco": ("ours_racer", "2.5 ms, Euler, free rigid body with four motors, 5-inch racer", 300),
}


def measured(name):
    """One side, in its own process; nothing of one can slow the other."""
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["?"])[-1]
    return float(done.stdout.strip().splitlines()[-1]), None


def main():
    for peer, (ours, what, goal) in PAIRS.items():
        sides = {peer: 0.0, ours: 0.0}
        wrong = None
        for _ in range(ROUNDS):
            for side in sides:
                rate, wrong = measured(side)
                if wrong:
                    break
                sides[side] = max(sides[side], rate)
            if wrong:
                break
        if wrong:
            print(json.dumps({"peer": peer, "left_out": wrong}), flush=True)
            continue
        ratio = sides[ours] / sides[peer]
        row = {"peer": peer, "what": what, "our_worlds": WORLDS, "peer_per_cpu_second": round(sides[peer])}
        row |= {"ours_per_cpu_second": round(sides[ours]), "ratio": round(ratio, 1), "goal": goal}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(globals()[sys.argv[1]]())
    else:
        main()
