"""The room lift: commands, goals, rewards, what is observed, and the model it gives MuJoCo."""

import json
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Quat, Vec2, Vec3
from slipstream.core.rng import Rng
from slipstream.core.task import CameraTask, CurriculumTask, MujocoTask, PrivilegedTask
from slipstream.dynamics.grasp import NormalForces
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import presets
from slipstream.runs.files import json_text
from slipstream.tasks.lift import Lift, LiftCamera, LiftRandomization, observation
from slipstream.tasks.lift.scene import frames
from slipstream.tasks.lift.settings import NO_RANDOMIZATION
from slipstream.tasks.lift.task import WORKSPACE

PLAIN = Lift(randomize=NO_RANDOMIZATION)
CAMERA = Lift(camera=LiftCamera("rgb", resolution=16))


def start(task, world=0):
    return task.reset(Rng.from_seed(0, world))


def with_cube(state, x, y, z, forces=(0.0, 0.0)):
    body = state.body
    place = Vec3(*(jnp.float32(v) for v in (x, y, z)))
    touched = NormalForces(*(jnp.float32(v) for v in (*forces, 0.0)))
    return replace(body, cube=replace(body.cube, position=place), forces=touched)


def test_it_offers_what_it_can_do():
    for protocol in (CameraTask, PrivilegedTask, CurriculumTask, MujocoTask):
        assert isinstance(PLAIN, protocol)


@pytest.mark.parametrize("name", [name for name in presets() if name.startswith("lift")])
def test_presets_survive_their_file(name):
    experiment = presets()[name]
    assert Experiment.from_dict(json.loads(json_text(experiment.as_dict()))) == experiment


@pytest.mark.parametrize("name", [name for name in presets() if name.startswith("lift")])
def test_success_is_worth_more_than_to_hover_for_ever(name):
    experiment = presets()[name]
    weights, discount = experiment.task.reward, getattr(experiment.learner, "discount", 0.98)
    best = weights.reach + weights.grasp + weights.lift + weights.high
    if experiment.task.goal == "place":
        best += weights.high
    assert weights.success >= best / (1.0 - discount)


def test_zero_ranges_give_the_nominal_cube():
    cube = start(PLAIN).world.cube
    np.testing.assert_allclose(
        [cube.half, cube.mass, cube.pad_friction, cube.mat_friction], [0.015, 0.03, 1.0, 0.5], rtol=1e-6
    )
    assert start(PLAIN).world.action_delay is None


def test_ranges_are_kept():
    ranges = LiftRandomization()
    worlds = jax.vmap(lambda i: Lift().reset(Rng.from_seed(0, i)))(jnp.arange(512)).world
    for value, nominal, reach in (
        (worlds.cube.half, 0.015, ranges.cube_size),
        (worlds.cube.mass, 0.03, ranges.mass),
        (worlds.servo_gain, 1.0, ranges.servo_gain),
    ):
        change = np.asarray(value) / nominal - 1.0
        assert np.abs(change).max() <= reach + 1e-6
        assert change.max() > 0.9 * reach
        assert change.min() < -0.9 * reach


def test_a_late_action_is_the_one_of_before():
    task = replace(PLAIN, randomize=replace(NO_RANDOMIZATION, max_action_delay=1))
    state = start(task)
    state = replace(state, world=replace(state.world, action_delay=jnp.int32(1)))
    first, at_first = task.command(state, jnp.asarray([0.0, 0.0, 1.0, 1.0]))
    _, then = task.command(first, jnp.asarray([0.0, 0.0, -1.0, 1.0]))
    np.testing.assert_allclose(at_first.parts, state.body.angles.parts)
    np.testing.assert_allclose(then.parts, first.progress.recent_targets[0].parts)


@pytest.mark.parametrize("kind", ["cartesian", "cartesian_yaw", "joints"])
def test_no_action_commands_the_fingers_into_the_mat(kind):
    task = replace(PLAIN, action=kind)
    state, low = start(task), np.array(WORKSPACE[0].parts)
    rng = np.random.default_rng(0)
    command = jax.jit(task.command)
    for _ in range(60):
        action = rng.uniform(-1.0, 1.0, task.spec.action.size)
        action[1 if kind == "joints" else 2] = 1.0 if kind == "joints" else -1.0
        state, targets = command(state, jnp.asarray(action, jnp.float32))
        # As if the servos had reached them.
        state = replace(state, body=replace(state.body, angles=targets))
        place = np.array(task.model.gripper(state.body).position.parts)
        assert (place[:2] > low[:2] - 1e-3).all()
        assert place[2] > low[2] - 1e-3


def test_yaw_turns_the_fingers_and_moves_nothing_else():
    task = replace(PLAIN, action="cartesian_yaw")
    state = start(task)
    for turns in range(1, 4):
        state, targets = task.command(state, jnp.asarray([0.0, 0.0, 0.0, 1.0, 1.0]))
        assert float(targets.roll) == pytest.approx(0.15 * turns, abs=1e-6)
        gripper = task.arm.gripper(targets, targets)
        np.testing.assert_allclose(gripper.position.parts, state.progress.target.parts, atol=1e-5)
        assert float(gripper.approach.z) == pytest.approx(-1.0, abs=1e-4)
    for _ in range(20):
        state, targets = task.command(state, jnp.asarray([0.0, 0.0, 0.0, 1.0, 1.0]))
    assert float(targets.roll) == 1.0


def test_the_observed_angle_of_the_cube_is_that_from_the_fingers():
    state = start(replace(PLAIN, action="cartesian_yaw"))
    gripper = PLAIN.model.gripper(state.body)
    for angle in (0.0, 0.3, -0.7):
        ahead = gripper.across * float(np.cos(angle)) + gripper.closing * float(np.sin(angle))
        for quarter in range(4):
            sin, cos = observation.fourfold_yaw(ahead, gripper)
            assert [float(sin), float(cos)] == pytest.approx([np.sin(4 * angle), np.cos(4 * angle)], abs=1e-4), quarter
            ahead = gripper.approach.cross(ahead)


def test_a_cube_is_lifted_once_it_has_been_held_high_for_ten_steps():
    state = start(PLAIN)
    for k in range(10):
        assert not bool(state.progress.success), k
        state = PLAIN.judge(state, with_cube(state, 0.2, 0.0, 0.09, (5.0, 5.0)))
    assert bool(state.progress.success)
    assert bool(state.terminated)
    assert float(state.reward) > PLAIN.reward.success


@pytest.mark.parametrize("forces", [(5.0, 0.0), (0.0, 5.0), (0.0, 0.0)])
def test_a_cube_that_is_high_but_not_grasped_does_not_count(forces):
    state = PLAIN.judge(start(PLAIN), with_cube(start(PLAIN), 0.2, 0.0, 0.09, forces))
    assert int(state.progress.held) == 0


def test_letting_go_begins_the_count_anew():
    state = start(PLAIN)
    for forces in [(5.0, 5.0)] * 6 + [(0.0, 0.0)] + [(5.0, 5.0)] * 6:
        state = PLAIN.judge(state, with_cube(state, 0.2, 0.0, 0.09, forces))
    assert int(state.progress.held) == 6
    assert not bool(state.progress.success)


@pytest.mark.parametrize("x", [0.5, float("nan")])
def test_a_cube_far_from_the_mat_or_nowhere_ends_the_episode_with_a_finite_reward(x):
    state = PLAIN.judge(start(PLAIN), with_cube(start(PLAIN), x, 0.0, 0.015))
    assert bool(state.terminated)
    assert bool(state.progress.lost)
    assert np.isfinite(float(state.reward))


def test_a_cube_is_placed_only_if_it_was_lifted_before_and_is_let_go():
    task = replace(PLAIN, goal="place")

    def played(path):
        state = start(task)
        state = replace(state, world=replace(state.world, target=Vec2(jnp.float32(0.22), jnp.float32(0.05))))
        for place, forces in path:
            state = task.judge(state, with_cube(state, *place, forces))
        return bool(state.progress.success)

    lifted, lies = ((0.2, 0.0, 0.06), (5.0, 5.0)), ((0.22, 0.05, 0.015), (0.0, 0.0))
    assert played([lifted] + [lies] * 10)
    assert not played([lies] * 12), "it was pushed there"
    assert not played([lifted] + [((0.22, 0.05, 0.015), (5.0, 5.0))] * 12), "it is still held"
    assert not played([lifted] + [((0.25, 0.05, 0.015), (0.0, 0.0))] * 12), "it lies elsewhere"


def test_a_curriculum_begins_near_and_ends_on_the_whole_mat():
    def farthest(progress):
        task = Lift().at_progress(jnp.float32(progress))
        cubes = jax.vmap(lambda i: task.reset(Rng.from_seed(0, i)))(jnp.arange(256)).body.cube.position
        return float(jnp.abs(cubes.y).max())

    assert farthest(0.0) <= 0.02
    assert farthest(1.0) > 0.09


def test_a_camera_policy_is_told_nothing_of_the_cube_but_pictures():
    state = start(CAMERA)
    look = jax.jit(CAMERA.image)

    def at(x, y):
        return replace(state, body=with_cube(state, x, y, 0.015))

    hidden, elsewhere, seen = at(0.2, 5.0), at(-3.0, 0.3), at(0.2, 0.0)
    for other in (elsewhere, seen):
        assert np.array_equal(CAMERA.observe(hidden), CAMERA.observe(other))
        assert not np.array_equal(CAMERA.privileged_observation(hidden), CAMERA.privileged_observation(other))
    assert np.array_equal(look(hidden), look(elsewhere))
    assert not np.array_equal(look(hidden), look(seen))
    assert CAMERA.observe(state).shape[0] == CAMERA.spec.observation


def test_without_a_camera_the_cube_is_observed():
    state = start(PLAIN)
    moved = replace(state, body=with_cube(state, 0.23, 0.05, 0.015))
    assert not np.array_equal(PLAIN.observe(state), PLAIN.observe(moved))


def test_the_same_world_begins_with_and_without_a_camera():
    with_camera, without = start(CAMERA), start(Lift())
    for a, b in zip(jax.tree.leaves(with_camera.body), jax.tree.leaves(without.body), strict=True):
        np.testing.assert_allclose(a, b)


@pytest.mark.parametrize(
    ("camera", "shape"),
    [
        (LiftCamera("rgb", resolution=16, view="both"), (32, 16, 3)),
        (LiftCamera("depth", resolution=16, frame_stack=3), (48, 16, 1)),
    ],
)
def test_views_and_moments_are_stacked_one_above_the_other(camera, shape):
    task = Lift(camera=camera)
    state = start(task)
    picture = task.image(state)
    assert task.spec.image_shape == shape
    assert picture.shape == shape[:2]
    if camera.frame_stack > 1:
        after = task.judge(state, with_cube(state, 0.2, 0.0, 0.05))
        assert np.array_equal(task.image(after)[16:32], picture[:16]), "the second image is the one of before"


def test_a_frame_stack_of_four_is_refused_in_words():
    with pytest.raises(ValueError, match="1 to 3"):
        LiftCamera("rgb", frame_stack=4)


def test_substeps_that_do_not_fill_a_step_are_refused():
    with pytest.raises(ValueError, match="not one step"):
        Lift(control_rate=40)


# The model in MuJoCo


def host(state):
    return jax.device_get(state)


def at_rest_in_mujoco(world):
    """The start of a world, its model, and MuJoCo's data with positions and all that follows from them."""
    mujoco, state = pytest.importorskip("mujoco"), host(start(PLAIN, world))
    model = mujoco.MjModel.from_xml_string(PLAIN.mujoco_xml(state))
    data = mujoco.MjData(model)
    data.qpos[:] = np.asarray(PLAIN.mujoco_state(state)[0])
    mujoco.mj_forward(model, data)
    return state, model, data


def test_mujoco_has_the_frames_of_the_arm_where_we_draw_them():
    state, _, data = at_rest_in_mujoco(3)
    for name, (place, q) in frames(PLAIN.arm, state.body.angles).items():
        np.testing.assert_allclose(data.body(name).xpos, [float(x) for x in place.parts], atol=1e-5)
        turn = np.array([float(x) for x in (q.w, q.x, q.y, q.z)])
        assert abs(turn @ data.body(name).xquat) == pytest.approx(1.0, abs=1e-5)


def test_a_body_to_mujoco_and_back_is_the_same():
    state = start(PLAIN, 1)
    body = with_cube(state, 0.21, 0.03, 0.06, (1.0, 2.0))
    q = Quat.from_euler(0.3, -0.2, 0.9)
    spin = Vec3(*(jnp.float32(x) for x in (1.0, 2.0, 3.0)))
    body = replace(body, cube=replace(body.cube, attitude=q, spin=spin, velocity=spin * 0.1))
    state = replace(state, body=body)
    again = PLAIN.body_from_mujoco(state, *PLAIN.mujoco_state(state), jnp.asarray([1.0, 2.0]))
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(body), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_effective_inertias_are_those_of_mujoco_over_the_mat():
    state, model, data = at_rest_in_mujoco(0)
    full = np.zeros((model.nv, model.nv))
    mujoco = pytest.importorskip("mujoco")
    mujoco.mj_fullM(model, data, full)
    np.testing.assert_allclose(np.diag(full)[:6], PLAIN.arm.inertias, rtol=0.12)
    loads = PLAIN.arm.load(state.body.angles, Vec3(0.0, 0.0, 0.0))
    np.testing.assert_allclose(data.qfrc_bias[:4], [-float(x) for x in loads], atol=0.02)


def test_the_numbers_of_a_world_are_those_of_its_model():
    mujoco = pytest.importorskip("mujoco")
    state = host(start(Lift(), 5))
    model = mujoco.MjModel.from_xml_string(Lift().mujoco_xml(state))
    cube = state.world.cube
    assert model.body("cube").mass[0] == pytest.approx(float(cube.mass), rel=1e-5)
    np.testing.assert_allclose(model.geom("cube").size, float(cube.half), rtol=1e-5)
    assert model.geom("jaw_pad").friction[0] == pytest.approx(float(cube.pad_friction), rel=1e-5)
    assert model.geom("mat").friction[0] == pytest.approx(float(cube.mat_friction), rel=1e-5)
    assert model.actuator("lift").gainprm[0] == pytest.approx(200.0 * float(state.world.servo_gain), rel=1e-5)


# In this order: MuJoCo settles how it draws when it is imported, so this is a process of its own.
SEE = """
import os
os.environ["MUJOCO_GL"] = "egl"
import jax, jax.numpy as jnp, numpy as np
from dataclasses import replace
from slipstream.core import device
device.configure(1)
from slipstream.core.rng import Rng
from slipstream.experiment import registry
from slipstream.plants.plant import PlantError
from slipstream.plants.registry import PLANTS
from slipstream.plants.settings import PlantSettings
task = registry.presets()["lift-vision"].task.for_evaluation()
task = replace(task, camera=replace(task.camera, frame_stack=2))
states = jax.jit(jax.vmap(lambda world: task.reset(Rng.from_seed(3, world))))(jnp.arange(3))
plant = PLANTS["mujoco"](PlantSettings(camera="gl"))
try:
    task = plant.adapt(task)
except PlantError as error:
    raise SystemExit(f"skipped: {error}")
plant.start(task, states)
gl = plant.images(np.zeros(3, bool))
again = plant.images(np.array([True, False, False]))
plant.close()
np.savez("seen.npz", ours=jax.jit(jax.vmap(task.image))(states), gl=gl, again=again)
"""


def test_mujocos_renderer_sees_the_same_cube_where_ours_does(tmp_path):
    done = subprocess.run([sys.executable, "-c", SEE], cwd=tmp_path, capture_output=True, text=True, check=False)
    if "skipped:" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert not done.returncode, done.stderr[-2000:]
    seen = np.load(tmp_path / "seen.npz")
    assert seen["ours"].shape == seen["gl"].shape and seen["gl"].dtype == np.uint32
    np.testing.assert_array_equal(seen["gl"][0], seen["again"][0])  # nothing is drawn of a world that has ended
    # Of two moments, two cameras each; at the start both moments are the same.
    assert seen["gl"].shape[1:] == (4 * 64, 64)
    np.testing.assert_array_equal(seen["gl"][:, :128], seen["gl"][:, 128:])

    def red(packed):
        """Pixels that are more red than anything else: the cube, and nothing of these three worlds beside it."""
        parts = [((packed >> shift) & 255).astype(int) for shift in (0, 8, 16)]
        return (parts[0] > 1.8 * parts[1]) & (parts[0] > 1.8 * parts[2]) & (parts[0] > 60)

    ours, theirs = red(seen["ours"][0]), red(seen["gl"][0])
    assert ours.sum() > 100
    assert (ours & theirs).sum() / (ours | theirs).sum() > 0.7
    assert np.mean(seen["ours"] != seen["gl"]) > 0.5  # other textures, light and shadows
