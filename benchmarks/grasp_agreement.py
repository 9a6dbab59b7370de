"""How often the fast grasp model and MuJoCo C agree about the outcome of a grasp, and MuJoCo with itself.

    python benchmarks/grasp_agreement.py [--scripts 400] [--seed 1]

A script puts a cube anywhere on the mat, moves the open gripper down over or beside it, closes, and lifts. Place, yaw,
errors of the approach, speeds, the cube's size, mass and friction are random. The outcome is whether the cube is held
up at the end. MuJoCo runs twice: with the contact settings everything is scored by, and with slightly softer ones;
what it agrees with itself is the limit of what agreement can mean. Settings were chosen on seed 0.
"""

import argparse
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.core import device
from slipstream.core.geometry import Quat, Vec3, sin_cos
from slipstream.dynamics.arm import SO101, Joints
from slipstream.dynamics.grasp import Cube, GraspModel, GraspState
from slipstream.plants.mujoco import load_mujoco
from slipstream.tasks.lift.mjcf import REFERENCE, SOFTER, ContactSettings, WorldNumbers, model_xml

STEPS = 150
"""Control steps of a script: 3 s."""
HELD = 0.04
"""Height above the start from which a cube counts as lifted, m."""


@dataclass(frozen=True)
class Scripts:
    """Many scripts: where cubes are and what they are like, and where grippers go."""

    cube: np.ndarray  # x, y, yaw
    world: list[WorldNumbers]
    targets: np.ndarray  # of the gripper's point, scripts × steps × 3
    jaw: np.ndarray  # its commanded angle, scripts × steps

    @property
    def yaw_error(self) -> np.ndarray:
        """Angle between the cube's sides and the fingers, 0 to 45 degrees."""
        pan = np.arctan2(self.targets[:, 0, 1], self.targets[:, 0, 0] - SO101.base[0])
        error = np.degrees(self.cube[:, 2] - pan) % 90.0
        return np.minimum(error, 90.0 - error)


def draw_scripts(count: int, seed: int) -> Scripts:
    rng = np.random.default_rng(seed)

    def draw(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, count)

    cube = np.stack([draw(0.16, 0.25), draw(-0.1, 0.1), draw(-np.pi / 4, np.pi / 4)], 1)
    world = [
        WorldNumbers(*row)
        for row in np.stack([draw(0.013, 0.017), draw(0.02, 0.04), draw(0.8, 1.2), draw(0.4, 0.6)], 1).tolist()
    ]
    half = np.array([w.half for w in world])
    pan = np.arctan2(cube[:, 1], cube[:, 0] - SO101.base[0])
    outward, sideward = np.stack([np.cos(pan), np.sin(pan)], 1), np.stack([-np.sin(pan), np.cos(pan)], 1)
    # The jaw's side is free: the gripper points down, and `closing` is to the left of outward.
    aside, beyond = draw(-0.004, 0.018), draw(-0.01, 0.01)
    over = cube[:, :2] - sideward * (aside + half - SO101.half_gap)[:, None] + outward * beyond[:, None]
    low, high = half + draw(0.0, 0.018), draw(0.06, 0.08)
    down, close, lift = (np.round(draw(*span) / 0.02).astype(int) for span in ((0.3, 0.8), (0.3, 0.6), (0.3, 0.8)))
    angle = draw(SO101.jaw_closed, -0.02)
    targets, jaw = np.zeros((count, STEPS, 3)), np.full((count, STEPS), SO101.jaw_open)
    for k in range(count):
        bottom = low[k]
        path = [np.full(5, high[k]), np.linspace(high[k], bottom, down[k]), np.full(close[k], bottom)]
        path.append(np.linspace(bottom, bottom + 0.08, lift[k]))
        height = np.concatenate(path)[:STEPS]
        height = np.concatenate([height, np.full(STEPS - len(height), height[-1])])
        targets[k] = np.concatenate([np.tile(over[k], (STEPS, 1)), height[:, None]], 1)
        jaw[k, 5 + down[k] + 5 :] = angle[k]
    return Scripts(cube, world, targets, jaw)


def start_states(model: GraspModel, scripts: Scripts) -> tuple[GraspState, Cube]:
    def one(cube: jax.Array, half: jax.Array, target: jax.Array) -> GraspState:
        sin, cos = sin_cos(0.5 * cube[2])
        zero = 0.0 * half
        return model.start(
            Vec3(target[0], target[1], target[2]), SO101.jaw_open + zero, Vec3(cube[0], cube[1], half),
            Quat(cos, zero, zero, sin),
        )  # fmt: skip

    numbers = [[w.half, w.mass, w.pad_friction, w.mat_friction] for w in scripts.world]
    half, mass, pads, mat = jnp.asarray(np.array(numbers).T, jnp.float32)
    cube = Cube(half, mass, pads, mat, jnp.ones_like(half))
    return jax.vmap(one)(jnp.float32(scripts.cube), jnp.asarray(cube.half), jnp.float32(scripts.targets[:, 0])), cube


def servo_targets(scripts: Scripts) -> np.ndarray:
    """Joint angles that the servos are commanded: scripts × steps × joints."""

    def one(target: jax.Array, jaw: jax.Array) -> jax.Array:
        return jnp.stack(SO101.inverse_kinematics(Vec3(target[0], target[1], target[2]), jaw).parts)

    return np.asarray(jax.vmap(jax.vmap(one))(jnp.float32(scripts.targets), jnp.float32(scripts.jaw)))


def run_fast(model: GraspModel, scripts: Scripts) -> np.ndarray:
    """Positions of the cube over time by the fast model: scripts × steps × 3."""
    states, cube = start_states(model, scripts)

    def one(state: GraspState, cube: Cube, targets: jax.Array) -> jax.Array:
        def tick(state: GraspState, row: jax.Array) -> tuple[GraspState, jax.Array]:
            after = model.step(state, Joints(*row), cube)
            return after, jnp.stack(after.cube.position.parts)

        return jax.lax.scan(tick, state, targets)[1]

    return np.asarray(jax.jit(jax.vmap(one))(states, cube, jnp.asarray(servo_targets(scripts))))


def run_mujoco(scripts: Scripts, settings: ContactSettings, substeps: int = 10) -> np.ndarray:
    """Positions of the cube over time by MuJoCo C: scripts × steps × 3."""
    mujoco = load_mujoco()
    controls = servo_targets(scripts)
    models = [mujoco.MjModel.from_xml_string(model_xml(SO101, world, settings)) for world in scripts.world]
    states = []
    for model, (x, y, yaw), world, control in zip(models, scripts.cube, scripts.world, controls, strict=True):
        data = mujoco.MjData(model)
        data.qpos[:6] = control[0]
        data.qpos[6:] = [x, y, world.half, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]
        states.append(np.concatenate([[0.0], data.qpos, data.qvel]))
    data = [mujoco.MjData(models[0]) for _ in range(device.cores())]
    with mujoco.rollout.Rollout(nthread=len(data)) as threads:
        trace, _ = threads.rollout(models, data, np.stack(states), np.repeat(controls, substeps, 1))
    return trace[:, substeps - 1 :: substeps, 7:10]


def lifted(trace: np.ndarray, scripts: Scripts) -> np.ndarray:
    return trace[:, -1, 2] > np.array([world.half for world in scripts.world]) + HELD


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    device.configure(1)
    scripts = draw_scripts(options.scripts, options.seed)
    fast, reference = run_fast(GraspModel(), scripts), run_mujoco(scripts, REFERENCE)
    softer = run_mujoco(scripts, SOFTER)
    ours, theirs, other = (lifted(trace, scripts) for trace in (fast, reference, softer))
    both = ours & theirs
    error = np.linalg.norm(fast[both, -1] - reference[both, -1], axis=1) * 1e3
    print(
        f"{options.scripts} scripts, seed {options.seed}: lifted by MuJoCo {theirs.mean():.1%}, fast {ours.mean():.1%}"
    )
    for name, chosen in (
        ("all", scripts.yaw_error >= 0.0),
        ("yaw < 20°", scripts.yaw_error < 20.0),
        ("yaw > 20°", scripts.yaw_error >= 20.0),
    ):
        agreed, itself = (ours == theirs)[chosen].mean(), (other == theirs)[chosen].mean()
        print(f"{name:10} {chosen.sum():4} scripts: fast = MuJoCo {agreed:.1%}, MuJoCo softer = MuJoCo {itself:.1%}")
    print(
        f"where both lift, the cube's place: median {np.median(error):.2f} mm, 95 % {np.quantile(error, 0.95):.2f} mm"
    )
    print(f"thrown: farthest any cube got in one step, fast {_leap(fast):.3f} m, MuJoCo {_leap(reference):.3f} m")


def _leap(trace: np.ndarray) -> float:
    return float(np.linalg.norm(np.diff(trace, axis=1), axis=-1).max())


if __name__ == "__main__":
    main()
