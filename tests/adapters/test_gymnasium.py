"""Gymnasium: its own checkers pass, every preset is registered, and ends and restarts are what they say."""

import importlib.util
import runpy
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="pip install gymnasium")
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from ladder import Ladder

from slipstream.adapters.gymnasium import SlipstreamEnv, SlipstreamVectorEnv, environment_id
from slipstream.experiment.registry import presets

FAKE_PX4 = runpy.run_path(str(Path(__file__).parents[1] / "plants" / "fake_px4.py"))
KINDS = {
    "box": Ladder(), "discrete": Ladder("discrete"), "multidiscrete": Ladder("multidiscrete"),
    "camera": Ladder(camera=True), "two agents": Ladder(agents=2), "two agents with choices": Ladder("discrete", 2),
    "two agents with several choices": Ladder("multidiscrete", 2, camera=True),
}  # fmt: skip


@pytest.mark.parametrize("task", KINDS.values(), ids=KINDS.keys())
def test_the_checker_of_gymnasium_passes(task):
    env = SlipstreamEnv(task, render_mode="rgb_array")
    with warnings.catch_warnings():
        # Observations have no bounds, and that is said.
        warnings.filterwarnings("ignore", "(?s).*infinity")
        warnings.filterwarnings("ignore", "(?s).*different from the unwrapped version")
        warnings.filterwarnings("ignore", "(?s).*(we recommend using a symmetric|not have a spec)")
        check_env(env, skip_render_check=True)
    assert env.render().dtype == np.uint8


def test_every_preset_is_registered_and_made_by_its_name():
    for name in presets():
        assert environment_id(name) in gymnasium.registry
    env = gymnasium.make("Slipstream/Racing-v0", render_mode="rgb_array", track="ring")
    env.reset(seed=1)
    for _ in range(3):
        env.step(env.action_space.sample())
    assert env.render().shape == (480, 480, 3)
    assert env.unwrapped.task.track == "ring"
    again = gymnasium.make("Slipstream/Task-v0", task="slipstream.tasks.hover:Hover")
    assert again.observation_space.shape == (again.unwrapped.task.spec.observation,)


def test_an_episode_ends_as_the_task_says_and_has_its_metrics():
    env = SlipstreamEnv(Ladder("discrete"))
    env.reset(seed=0)
    ends = [env.step(2)[2:] for _ in range(3)]
    assert [end[:2] for end in ends] == [(False, False), (False, False), (True, False)]
    assert ends[-1][2]["metrics"] == {"success": 1.0, "height": 3.0}
    env.reset()
    assert [env.step(1)[3] for _ in range(5)] == [False, False, False, False, True]
    with pytest.raises(ValueError, match="is not in Discrete"):
        env.step(7)


def test_agents_of_one_world_end_together():
    env = SlipstreamEnv(Ladder("discrete", agents=2))
    env.reset(seed=0)
    results = [env.step(np.array([2, 1])) for _ in range(5)]
    assert [r[2:4] for r in results] == [(False, False)] * 4 + [(False, True)]
    assert results[2][4]["ended"].tolist() == [True, False]
    assert [r[1] for r in results] == [0.5, 0.5, 0.5, 0.0, 0.0]


def climbing(envs, steps=6):
    """Two rows, of which the first climbs."""
    envs.reset(seed=0)
    return [envs.step(np.array([[1.0], [0.0]], np.float32)) for _ in range(steps)]


def test_same_step_restarts_give_the_true_last_observation():
    envs = SlipstreamVectorEnv(Ladder(), 2, AutoresetMode.SAME_STEP)
    rows = climbing(envs)
    assert rows[2][0][0].tolist() == [0.0, 0.0] and rows[2][2].tolist() == [True, False]
    infos = rows[2][4]
    assert infos["_final_obs"].tolist() == [True, False]
    assert infos["final_obs"][0].tolist() == [3.0, 3.0] and infos["final_obs"][1] is None
    assert infos["episode"]["r"].tolist() == [3.0, 0.0] and infos["_episode"].tolist() == [True, False]
    assert rows[4][3].tolist() == [False, True] and rows[4][4]["final_obs"][1].tolist() == [0.0, 5.0]
    assert rows[0][0] in envs.observation_space


def test_next_step_restarts_are_as_those_of_gymnasium_itself():
    """Beside Gymnasium's own batch of single environments, for both ways to restart."""
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        own = SlipstreamVectorEnv(Ladder(), 2, mode)
        theirs = gymnasium.vector.SyncVectorEnv([lambda: SlipstreamEnv(Ladder())] * 2, autoreset_mode=mode)
        for ours, other in zip(climbing(own, 12), climbing(theirs, 12), strict=True):
            for a, b in zip(ours[:4], other[:4], strict=True):
                assert np.array_equal(a, b)
        theirs.close()


def test_a_batch_that_is_not_restarted_takes_a_mask():
    envs = SlipstreamVectorEnv(Ladder(), 2, "Disabled")
    climbing(envs, 3)
    observation, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert observation.tolist() == [[0.0, 0.0], [0.0, 3.0]]


def test_the_statistics_of_gymnasium_agree_with_ours():
    envs = SlipstreamVectorEnv(Ladder(), 2, "SameStep", episode_statistics=False)
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    own = climbing(SlipstreamVectorEnv(Ladder(), 2, "SameStep"), 5)
    for theirs, ours in zip(climbing(wrapped, 5), own, strict=True):
        assert ("episode" in theirs[4]) == ("episode" in ours[4])
        if "episode" in ours[4]:
            assert theirs[4]["episode"]["r"].tolist() == ours[4]["episode"]["r"].tolist()
            assert theirs[4]["episode"]["l"].tolist() == ours[4]["episode"]["l"].tolist()


def test_make_vec_takes_rows_for_all_agents_and_refuses_others():
    envs = gymnasium.make_vec("Slipstream/Marine-v0", num_envs=10, autoreset_mode="SameStep")
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    observation, _ = envs.reset(seed=3)
    assert observation in envs.observation_space
    _, _, _, _, infos = envs.step(envs.action_space.sample())
    assert infos["valid"].all()
    with pytest.raises(ValueError, match="multiple"):
        SlipstreamVectorEnv("marine", 7)
    with pytest.raises(ValueError, match="did you mean 'SameStep'"):
        SlipstreamVectorEnv("marine", 5, "SameStepp")


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="pip install torch==2.13.0")
def test_tensors_share_the_memory_of_our_program():
    import torch

    envs = SlipstreamVectorEnv(Ladder(camera=True), 64, arrays="torch")
    observation, _ = envs.reset()
    assert observation["image"].shape == (64, 4, 4, 3)
    envs.step(torch.zeros((64, 1)))
    rows = envs.worlds.step(jnp.zeros((64, 1)))
    tensors = jax.tree.map(envs._out, rows.observation)
    assert tensors.features.data_ptr() == rows.observation.features.unsafe_buffer_pointer()
    assert tensors.image.data_ptr() == rows.observation.image.unsafe_buffer_pointer()


def test_mujoco_moves_the_bodies():
    env = gymnasium.make("Slipstream/Racing-v0", plant="mujoco", track="ring", render_mode="rgb_array")
    first, _ = env.reset(seed=4)
    assert np.array_equal(first, env.reset(seed=4)[0])
    for _ in range(5):
        observation, reward, *_ = env.step(np.array([0.3, 0.2, 0.1, 0.2], np.float32))
    assert observation in env.observation_space and np.isfinite(reward)
    assert env.render().shape == (480, 480, 3)
    env.close()


def test_px4_in_the_loop_is_reset_and_flown_again(tmp_path):
    settings = {"px4": str(FAKE_PX4["install"](tmp_path)), "instances": 1, "first_instance": 38}
    env = gymnasium.make(
        "Slipstream/Racing-v0", plant="px4", plant_settings=settings, vehicle="iris", control_mode="velocity",
        track="ring",
    )  # fmt: skip
    for _ in range(2):
        observation, _ = env.reset(seed=1)
        assert observation in env.observation_space
        for _ in range(3):
            observation, _, _, truncated, info = env.step(np.array([0.3, 0.0, 0.0, 0.0], np.float32))
            assert np.isfinite(observation).all() and not truncated and info["plant_failed"] is False
    env.close()


def test_a_plant_that_cannot_fly_a_task_says_so():
    with pytest.raises(Exception, match="no quadrotors"):
        SlipstreamEnv("marine", plant="mujoco")
    with pytest.raises(ValueError, match="did you mean 'mujoco'"):
        SlipstreamEnv("racing", plant="mujocco")
