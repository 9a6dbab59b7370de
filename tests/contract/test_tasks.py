"""What every task, vehicle and kind of action must do. A new one is added to the list and passes as it is."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Rng
from slipstream.core.spaces import Box, Discrete, MultiDiscrete
from slipstream.core.task import CameraTask, PrivilegedTask, Task, advance
from slipstream.experiment.registry import find_task, presets
from slipstream.sensors.camera import CameraSettings
from slipstream.sensors.lidar import Lidar
from slipstream.sensors.noise import SensorNoise
from slipstream.tasks.field import Field
from slipstream.tasks.field.settings import Crop, Terrain
from slipstream.tasks.hover import Hover
from slipstream.tasks.lift import Lift, LiftCamera
from slipstream.tasks.marine import Marine
from slipstream.tasks.racing import RaceReward, Racing, Randomization
from slipstream.tasks.survey import Survey

ROUGH = Racing(
    randomize=Randomization(
        mass=0.2, inertia=0.2, thrust=0.1, motor_lag=0.3, drag=0.5, max_wind=3.0, gust_std=1.0, max_action_delay=2
    ),
    sensor_noise=SensorNoise(position=0.05, velocity=0.1, attitude=0.02, body_rates=0.05),
    reward=RaceReward(action_rate=-0.01),
)  # fmt: skip
ROUGH_FIELD = Field(
    max_rows=3,
    steering="all",
    crop=Crop(
        row_spacing=(1.1, 1.4), row_length=(2.5, 5.0), bend=(0.0, 0.2), curvature=(0.0, 0.06), missing=(0.0, 0.1),
        gaps=(0.0, 0.05), ragged_ends=1,
    ),
    terrain=Terrain(slope=(0.0, 0.15), slip=(0.0, 0.2)),
    lidar=Lidar(noise=0.01, dropout=0.02),
)  # fmt: skip
QUADRUPED = Path(__file__).parents[2] / "examples/quadruped.xml"
TASKS = {
    "plain": Racing(),
    "original": Racing(observation="isaac_drone_racer"),
    "generated": Racing(track="generated"),
    "rough": ROUGH,
    "race of four": Racing(agents=4),
    "rough race of three": replace(ROUGH, agents=3, track="generated"),
    "crazyflie rotors": Racing(vehicle="crazyflie", control_mode="motor_speeds"),
    "iris velocity": Racing(vehicle="iris", control_mode="velocity", track="ring"),
    "discrete rates": Racing(action_space="discrete"),
    "multidiscrete velocity": Racing(control_mode="velocity", action_space="multidiscrete", action_levels=5),
    "discrete rotors": Racing(control_mode="motor_speeds", action_space="discrete", action_levels=2, track="eight"),
    "camera": Racing(camera=CameraSettings("rgb", resolution=16)),
    "fourth order": Racing(integrator="rk4", physics_rate=200, track="long"),
    "px4 controller": Racing(controller="px4", track="ring"),
    "hover": Hover(),
    "hover by motors at a moving reference": Hover(control_mode="motor_speeds", reference="moving"),
    "bay": Marine(vessels=4, buoys=2),
    "bay with whirls": replace(presets()["marine-icra"].task, vessels=3, buoys=3, vortices=3),
    "lone vessel with a sonar": presets()["marine-iros"].task,
    "field": Field(),
    "field by one choice, in Ackermann mode": Field(action_space="discrete", steering="ackermann"),
    "rough field by numbers, in all modes": replace(ROUGH_FIELD, action_space="box"),
    "lift": Lift(),
    "place by joints, with a camera": Lift(goal="place", action="joints", camera=LiftCamera("rgb", resolution=16)),
    "survey with cameras": Survey(mission="dwell", agents=3, camera=CameraSettings("rgb", resolution=16)),
    "robot of an MJCF file": find_task(f"{QUADRUPED}:Walk")(),
}


@pytest.fixture(params=TASKS.values(), ids=TASKS.keys(), scope="module")
def task(request):
    return request.param


WORLDS, STEPS = 16, 1000


def rolled(task, seed=0):
    """States after random actions, and whether everything stayed finite."""
    return player(task)(jnp.arange(WORLDS), jnp.uint32(seed))


@lru_cache(maxsize=2)
def player(task):
    """The program that plays, compiled once for a task."""
    draw = task.spec.action.sample
    agents = task.spec.agents

    def play(world, seed):
        own = Rng.from_seed(99, world)

        def tick(carry, _):
            state, own = carry
            if agents == 1:
                action, own = draw(own)
            else:
                streams = jax.vmap(own.fork)(jnp.arange(agents))
                action, _ = jax.vmap(draw)(streams)
                _, own = own.bits()
            after = advance(task, state, action)
            seen = task.observe(after)
            fine = jnp.all(jnp.isfinite(seen)) & jnp.all(jnp.isfinite(after.reward))
            return (after, own), (fine, state.ended, after.step)

        return jax.lax.scan(tick, (task.reset(Rng.from_seed(seed, world)), own), length=STEPS)

    return jax.jit(jax.vmap(play, in_axes=(0, None)))


def test_a_task_is_what_its_spec_says(task):
    assert isinstance(task, Task)
    spec, state = task.spec, jax.eval_shape(task.reset, Rng.from_seed(0, 0))
    shape = (spec.agents,) if spec.agents > 1 else ()
    assert jax.eval_shape(task.observe, state).shape == (*shape, spec.observation)
    assert state.reward.shape == state.terminated.shape == state.truncated.shape == shape
    assert isinstance(spec.action, Box | Discrete | MultiDiscrete)
    for figure in jax.eval_shape(task.episode_metrics, state).values():
        assert figure.shape == shape


def test_a_task_with_a_camera_gives_the_picture_its_spec_says(task):
    if task.spec.image_shape is None:
        return
    assert isinstance(task, CameraTask)
    height, width, channels = task.spec.image_shape
    picture = jax.eval_shape(task.image, jax.eval_shape(task.reset, Rng.from_seed(0, 0)))
    assert picture.shape == ((task.spec.agents,) if task.spec.agents > 1 else ()) + (height, width)
    assert picture.dtype == (jnp.uint32 if channels == 3 else jnp.uint8)


def test_a_task_that_tells_a_critic_more_tells_as_much_as_its_spec_says(task):
    if not task.spec.privileged_size:
        return
    assert isinstance(task, PrivilegedTask)
    told = jax.eval_shape(task.privileged_observation, jax.eval_shape(task.reset, Rng.from_seed(0, 0)))
    assert told.shape == ((task.spec.agents,) if task.spec.agents > 1 else ()) + (task.spec.privileged_size,)


def test_a_step_keeps_the_shape_of_a_state(task):
    draw = task.spec.action.sample
    state = task.reset(Rng.from_seed(0, 0))
    if task.spec.agents == 1:
        action, _ = draw(Rng.from_seed(0, 0))
    else:
        action, _ = jax.vmap(draw)(jax.vmap(lambda w: Rng.from_seed(0, w))(jnp.arange(task.spec.agents)))
    before = jax.eval_shape(lambda: state)
    after = jax.eval_shape(task.step, state, action)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(lambda x: (x.shape, x.dtype), after)


def test_a_thousand_random_steps_stay_finite_and_worlds_restart(task):
    _, (fine, ended, step) = rolled(task)
    assert bool(fine.all())
    assert int(ended.sum()) > 0
    over = np.asarray(ended).reshape(WORLDS, STEPS, -1).all(axis=-1)
    assert (np.asarray(step)[over] == 0).all()


def test_the_same_seed_gives_the_same_episode_and_another_seed_another(task):
    first, second, other = (rolled(task, seed)[0] for seed in (3, 3, 4))
    same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), first, second)
    assert all(jax.tree.leaves(same))
    places = (jax.tree.leaves(roll[0].body)[0] for roll in (first, other))
    assert not np.array_equal(*places)
