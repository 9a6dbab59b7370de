"""The fast grasp model by facts of nature; beside MuJoCo C in tests/tasks/lift."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Quat, Vec3, sin_cos
from slipstream.dynamics.arm import SO101, Joints
from slipstream.dynamics.contact import box_patch
from slipstream.dynamics.grasp import Cube, CubeState, GraspModel, solve_positive
from slipstream.tasks.lift.mjcf import WorldNumbers, model_xml

MODEL, STEPS, HALF = GraspModel(), 200, 0.015
AWAY = (0.2, 0.1, 0.12)


def scenario(cube=(0.2, 0.0, HALF), roll=0.0, yaw=0.0, velocity=0.0, gripper=lambda t: AWAY, jaw=lambda t: 0.6, mu=0.5):
    times = np.arange(STEPS) * 0.02
    return {
        "cube": cube, "roll": roll, "yaw": yaw, "velocity": velocity, "mu": mu,
        "path": [gripper(t) for t in times], "jaw": [jaw(t) for t in times],
    }  # fmt: skip


def landing(x, y, low=0.017):
    """The gripper comes down fast where it is told, and stays."""
    return lambda t: (x, y, max(low, 0.08 - 0.3 * t))


def grasped(t):
    return (0.2, 0.0, 0.018 if t < 0.7 else min(0.018 + 0.2 * (t - 0.7), 0.1))


def pushing(height):
    """The outer side of the fixed finger moves the cube to the right, at that height of its tip."""
    return lambda t: (0.2, -0.1 * min(max(t - 0.2, 0.0), 0.6), height + 0.012)


CORNERS = {
    f"corner {yaw} {dx} {dy}": scenario(yaw=np.radians(yaw), gripper=landing(0.2 + dx, dy))
    for yaw in (0.0, 25.0, 45.0)
    for dx, dy in ((0.0, 0.003), (0.012, 0.003), (0.02, 0.006), (-0.018, -0.004))
}
SCENARIOS = {
    "rest": scenario(),
    "held": scenario(gripper=grasped, jaw=lambda t: 0.6 if t < 0.3 else -0.38),
    "diagonal": scenario(gripper=grasped, jaw=lambda t: 0.6 if t < 0.3 else -0.38, yaw=np.radians(14.0)),
    "slide": scenario(velocity=0.6),
    "tilted 40": scenario((0.2, 0.0, 0.0), roll=np.radians(40.0), mu=1.0),
    "tilted 50": scenario((0.2, 0.0, 0.0), roll=np.radians(50.0), mu=1.0),
    "drop": scenario((0.2, 0.0, 0.05)),
    "pushed low": scenario((0.2, -0.045, HALF), gripper=pushing(0.004)),
    "pushed high": scenario((0.2, -0.045, HALF), gripper=pushing(0.024), mu=1.0),
    **CORNERS,
}


@pytest.fixture(scope="module")
def played():
    """Every scenario, in one program: cubes, grippers and forces over time."""
    rows = list(SCENARIOS.values())

    def play(row):
        zero = 0.0 * row["yaw"]
        (sr, cr), (sy, cy) = sin_cos(0.5 * row["roll"]), sin_cos(0.5 * row["yaw"])
        attitude = Quat(cy, zero, zero, sy) * Quat(cr, sr, zero, zero)
        # On its lower edge, if nothing else is said.
        sin, cos = sin_cos(row["roll"])
        height = jnp.where(row["cube"][2] > 0.0, row["cube"][2], HALF * (sin + cos))
        start = MODEL.start(
            Vec3(*row["path"][0]), row["jaw"][0], Vec3(row["cube"][0], row["cube"][1], height), attitude
        )
        body = CubeState(start.cube.position, attitude, Vec3(row["velocity"], zero, zero), Vec3(zero, zero, zero))
        start = replace(start, cube=body)
        cube = Cube(HALF + zero, 0.03 + zero, 1.0 + zero, row["mu"])

        def tick(state, command):
            targets = SO101.inverse_kinematics(Vec3(*command[:3]), command[3])
            after = MODEL.step(state, targets, cube)
            hand = MODEL.gripper(after)
            return after, {
                "cube": jnp.stack(after.cube.position.parts),
                "up": after.cube.attitude.up.z,
                "left": after.cube.attitude.left.z,
                "gripper": jnp.stack(hand.position.parts),
                "forces": jnp.stack([after.forces.fixed, after.forces.jaw, after.forces.mat]),
            }

        commands = jnp.concatenate([row["path"], row["jaw"][:, None]], axis=1)
        return jax.lax.scan(tick, start, commands)[1]

    stacked = {name: jnp.asarray(np.array([row[name] for row in rows]), jnp.float32) for name in rows[0]}
    found = jax.device_get(jax.jit(jax.vmap(play))(stacked))
    return {name: SimpleNamespace(**{k: v[i] for k, v in found.items()}) for i, name in enumerate(SCENARIOS)}


def in_mujoco(name):
    """The same scenario in MuJoCo C: the cube's place and its axes' z over time."""
    mujoco = pytest.importorskip("mujoco")
    row = SCENARIOS[name]
    numbers = WorldNumbers(half=HALF, mat_friction=row["mu"])
    model = mujoco.MjModel.from_xml_string(model_xml(SO101, numbers))
    data = mujoco.MjData(model)
    sin, cos = np.sin(row["roll"]), np.cos(row["roll"])
    height = row["cube"][2] or HALF * (sin + cos)
    turned = [np.cos(row["roll"] / 2), np.sin(row["roll"] / 2), 0.0, 0.0]
    data.qpos[6:] = [*row["cube"][:2], height, *turned]
    cube, left, up = [], [], []
    for place, jaw in zip(row["path"], row["jaw"], strict=True):
        targets = [float(x) for x in SO101.inverse_kinematics(Vec3(*place), jaw).parts]
        if not cube:
            data.qpos[:6] = targets
        data.ctrl[:] = targets
        mujoco.mj_step(model, data, 10)
        cube.append(data.qpos[6:9].copy())
        axes = data.body("cube").xmat.reshape(3, 3)
        left.append(axes[2, 1])
        up.append(axes[2, 2])
    return SimpleNamespace(cube=np.array(cube), left=np.array(left), up=np.array(up))


def test_everything_stays_finite(played):
    assert all(np.isfinite(vars(p)[k]).all() for p in played.values() for k in vars(p))


def test_a_cube_at_rest_stays_where_it_is_and_weighs_what_it_weighs(played):
    rest = played["rest"]
    assert np.abs(rest.cube[-1] - rest.cube[10]).max() < 2e-5
    np.testing.assert_allclose(rest.forces[-1], [0.0, 0.0, 0.03 * 9.81], atol=1e-3)


def test_a_held_cube_does_not_creep_out_of_the_fingers(played):
    for name in ("held", "diagonal"):
        held = played[name]
        offset = held.cube - held.gripper
        assert held.cube[-1, 2] > 0.08
        assert np.linalg.norm(offset[-1] - offset[100]) < 2e-4, name


def test_both_fingers_push_with_what_the_jaw_s_servo_gives(played):
    fixed, jaw, _ = played["held"].forces[-1]
    # 1 N·m about a pivot 76 mm above the fingertips; the pads reach from 40 mm above to 12 mm below them.
    assert 1.0 / 0.088 < fixed < 1.0 / 0.036
    assert abs(fixed - jaw) < 0.05 * fixed


def test_a_sliding_cube_stops_where_friction_has_taken_its_energy(played):
    way = played["slide"].cube[-1, 0] - 0.2
    np.testing.assert_allclose(way, 0.6**2 / (2.0 * 0.5 * 9.81), rtol=0.05)


def test_a_tilted_cube_falls_to_the_side_its_center_is_on(played):
    assert played["tilted 40"].up[-1] > 0.999
    assert abs(played["tilted 50"].left[-1]) > 0.999


@pytest.mark.parametrize("name", ["tilted 40", "tilted 50"])
def test_a_cube_tips_over_as_in_mujoco(played, name):
    ours, theirs = played[name], in_mujoco(name)
    assert np.abs(ours.up[-1] - theirs.up[-1]) < 1e-3

    def fallen(up):
        """Steps until it lies on a side."""
        return np.argmax(np.maximum(np.abs(up.up), np.abs(up.left)) > 0.99)

    assert abs(int(fallen(ours)) - int(fallen(theirs))) <= 2
    np.testing.assert_allclose(ours.cube[-1], theirs.cube[-1], atol=3e-3)


def test_a_cube_that_is_pushed_low_slides_as_in_mujoco(played):
    ours, theirs = played["pushed low"], in_mujoco("pushed low")
    assert ours.up.min() > 0.99
    assert theirs.cube[-1, 1] < -0.08
    np.testing.assert_allclose(ours.cube[-1], theirs.cube[-1], atol=5e-3)


def test_a_finger_as_rough_as_the_mat_cannot_tip_a_cube_by_pushing_it_high(played):
    # The face that would rise rubs on the finger: h < 2 s μ. In MuJoCo it slides, too.
    ours, theirs = played["pushed high"], in_mujoco("pushed high")
    assert min(ours.up.min(), theirs.up.min()) > 0.99
    np.testing.assert_allclose(ours.cube[-1], theirs.cube[-1], atol=5e-3)


def test_a_dropped_cube_falls_freely_and_comes_to_rest(played):
    drop = played["drop"].cube[:, 2]
    np.testing.assert_allclose(drop[2], 0.05 - 0.5 * 9.81 * 0.06**2, atol=7e-4)
    np.testing.assert_allclose(drop[-1], HALF, atol=1e-4)


@pytest.mark.parametrize("name", CORNERS)
def test_a_finger_that_lands_on_a_cube_does_not_throw_it(played, name):
    cube = played[name].cube
    speed = np.linalg.norm(np.diff(cube, axis=0), axis=1).max() / 0.02
    assert speed < 0.6, "faster than twice the finger"
    assert np.linalg.norm(cube[-1, :2] - cube[0, :2]) < 0.05
    assert cube[:, 2].max() < 0.035


def test_a_flat_patch_pushes_at_its_corners():
    zero, one = jnp.float32(0.0), jnp.float32(1.0)
    axes = Quat(one, zero, zero, zero).axes
    unit = Vec3(one, zero, zero), Vec3(zero, one, zero), Vec3(zero, zero, one)
    # A box of 20 × 8 mm overlaps the cube's left face by 1 mm.
    size = Vec3(jnp.float32(0.010), jnp.float32(0.003), jnp.float32(0.004))
    patch = box_patch(Vec3(zero, zero, zero), axes, jnp.float32(HALF), Vec3(zero, 0.017 + zero, zero), unit, size)
    np.testing.assert_allclose(np.array(patch.frame.normal.parts), (0.0, -1.0, 0.0), atol=1e-6)
    points = [(float(p.first), float(p.second), float(p.depth)) for p in patch.points if float(p.weight) > 0.0]
    np.testing.assert_allclose([p[2] for p in points], 1e-3, atol=1e-6)
    places = {tuple(sorted(round(1e3 * abs(x)) for x in p[:2])) for p in points}
    assert places == {(4, 10)}


def test_a_corner_alone_is_not_missed():
    zero, one = jnp.float32(0.0), jnp.float32(1.0)
    sin, cos = np.sin(np.radians(22.5)), np.cos(np.radians(22.5))
    axes = Quat(cos + zero, zero, zero, sin + zero).axes
    unit = Vec3(one, zero, zero), Vec3(zero, one, zero), Vec3(zero, zero, one)
    # The cube stands diagonally; 2 mm of its corner are under the box, by a tenth of a millimeter.
    size = Vec3(jnp.float32(0.01), jnp.float32(0.01), jnp.float32(0.01))
    place = Vec3(HALF * 2**0.5 + 0.008 + zero, zero, HALF + 0.0099 + zero)
    patch = box_patch(Vec3(zero, zero, zero), axes, jnp.float32(HALF), place, unit, size)
    np.testing.assert_allclose(np.array(patch.frame.normal.parts), (0.0, 0.0, -1.0), atol=1e-5)
    assert max(float(p.depth) for p in patch.points if float(p.weight) > 0.0) == pytest.approx(1e-4, abs=1e-6)


def test_the_solver_solves():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(7, 7))
    matrix, right = root @ root.T + np.eye(7), rng.normal(size=7)
    rows = [[jnp.float32(matrix[i, j]) for j in range(i + 1)] for i in range(7)]
    found = solve_positive(rows, [jnp.float32(x) for x in right])
    np.testing.assert_allclose(np.array(found), np.linalg.solve(matrix, right), rtol=1e-4, atol=1e-5)


def test_joints_are_read_in_order():
    assert Joints(1, 2, 3, 4, 5, 6).parts == (1, 2, 3, 4, 5, 6)
