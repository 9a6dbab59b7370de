"""Real tasks through every adapter: what a library gets is what the core computes, number for number."""

import importlib

import jax
import numpy as np
import pytest

from slipstream.adapters.tasks import find_task
from slipstream.adapters.vector import Worlds
from slipstream.core.spaces import Box
from slipstream.experiment.registry import presets
from slipstream.sensors.camera import CameraSettings
from slipstream.tasks.marine import Marine
from slipstream.tasks.racing import Racing

WORLDS, STEPS = 3, 5
TASKS = {
    "box": find_task("hover"),
    "discrete": find_task("cartpole"),
    "multidiscrete": find_task("field"),
    "camera": Racing(camera=CameraSettings("depth", resolution=8)),
    "two agents": Marine(vessels=2, buoys=1),
}
"""One task for each kind of action, one with a camera and a privileged critic, one with several agents."""


def actions_of(task):
    """Actions of some steps, one row for each agent."""
    rng, space = np.random.default_rng(0), task.spec.action
    rows, (low, high) = WORLDS * task.spec.agents, space.bounds
    if isinstance(space, Box):
        return [rng.uniform(-1.0, 1.0, (rows, *space.shape)).astype(np.float32) for _ in range(STEPS)]
    return [rng.integers(low, np.asarray(high) + 1, (rows, *space.shape)).astype(np.int32) for _ in range(STEPS)]


# Each returns what is observed after every step, as the library gets it, and the rewards.


def by_gymnasium(task, actions):
    from slipstream.adapters.gymnasium import SlipstreamVectorEnv

    env = SlipstreamVectorEnv(task, WORLDS * task.spec.agents, "SameStep")
    env.reset(seed=0)
    return [env.step(action)[:2] for action in actions]


def by_sb3(task, actions):
    from slipstream.adapters.sb3 import SlipstreamVecEnv

    env = SlipstreamVecEnv(task, WORLDS)
    env.reset()
    return [env.step(action)[:2] for action in actions]


def by_skrl(task, actions):
    import torch

    from slipstream.adapters.skrl import SlipstreamWrapper

    env = SlipstreamWrapper(task, WORLDS, autoreset="same_step")
    env.reset()
    return [env.step(torch.from_numpy(action.reshape(env.num_envs, -1)))[:2] for action in actions]


def by_skrl_jax(task, actions):
    from slipstream.adapters.skrl_jax import SlipstreamWrapper

    env = SlipstreamWrapper(task, WORLDS, autoreset="same_step")
    env.reset()
    return [env.step(action.reshape(env.num_envs, -1))[:2] for action in actions]


def by_rsl_rl(task, actions):
    import torch

    from slipstream.adapters.rsl_rl import SlipstreamVecEnv

    env = SlipstreamVecEnv(task, WORLDS)
    found = [env.step(torch.from_numpy(action.reshape(env.num_envs, -1)).float())[:2] for action in actions]
    return [({name: groups[name] for name in dict(groups) if name != "critic"}, reward) for groups, reward in found]


def by_rl_games(task, actions):
    import torch

    from slipstream.adapters.rl_games import SlipstreamVecEnv

    env = SlipstreamVecEnv(task, WORLDS * task.spec.agents)
    env.reset()
    found = [env.step(torch.from_numpy(action))[:2] for action in actions]
    return [(seen["obs"] if task.spec.privileged_size else seen, reward) for seen, reward in found]


def by_torchrl(task, actions):
    import torch
    from torchrl.envs.utils import step_mdp

    from slipstream.adapters.torchrl import SlipstreamEnv

    env = SlipstreamEnv(task, WORLDS)
    state, found = env.reset(), []
    for action in actions:
        after = env.step(state.set("action", torch.from_numpy(action)))
        state = env.maybe_reset(step_mdp(after))
        seen = {name: state[name] for name in ("observation", "pixels") if name in dict(state)}
        found.append((seen, after["next", "reward"]))
    return found


LIBRARIES = {
    "gymnasium": by_gymnasium, "stable_baselines3": by_sb3, "skrl": by_skrl, "flax": by_skrl_jax, "rsl_rl": by_rsl_rl,
    "rl_games": by_rl_games, "torchrl": by_torchrl,
}  # fmt: skip


def rows_of(observed):
    """Features and image of an observation in one row of numbers for every agent; images from 0 to 255."""
    parts = list(observed.values()) if isinstance(observed, dict) else [observed]
    found = []
    for part in sorted((np.asarray(part) for part in parts), key=lambda part: part.ndim):
        if part.ndim == 4:
            # RSL-RL has channels first and a range from 0 to 1.
            part = np.round(np.moveaxis(part, 1, -1) * 255.0) if part.dtype == np.float32 else part
        found.append(part.reshape(len(part), -1).astype(np.float32))
    return np.concatenate(found, -1)


@pytest.fixture(scope="module", params=TASKS.values(), ids=list(TASKS))
def played(request):
    """A task, actions, and what the core computes for them."""
    task = request.param
    worlds, actions = Worlds(task, WORLDS), actions_of(task)
    worlds.reset(0)
    steps = [worlds.step(action) for action in actions]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves([(s.observation, s.reward) for s in steps]))
    return task, actions, steps


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_gets_what_the_core_computes(library, played):
    pytest.importorskip(library)
    task, actions, steps = played
    found = LIBRARIES[library](task, actions)
    for (observed, reward), step in zip(found, steps, strict=True):
        seen = step.observation
        image = [] if seen.image is None else [np.asarray(seen.image).reshape(len(seen.image), -1)]
        expected = np.concatenate([seen.features, *image], -1).astype(np.float32)
        assert rows_of(observed).shape == expected.shape
        if library in ("skrl", "flax"):  # they sort by key and flatten: features before image, as here
            assert np.allclose(rows_of(observed), expected, atol=1e-6)
        else:
            assert np.array_equal(rows_of(observed), expected)
        assert np.array_equal(np.asarray(reward).reshape(-1), step.reward)


def test_several_agents_fly_by_pettingzoo_as_in_the_core():
    pytest.importorskip("pettingzoo")
    module = importlib.import_module("slipstream.adapters.pettingzoo")
    task = TASKS["two agents"]
    env = module.parallel_env(task)
    core = Worlds(task, 1, autoreset="never")
    core.reset(7)
    env.reset(seed=7)
    for action in actions_of(task):
        rows = action[: task.spec.agents]
        step = core.step(rows)
        observed, *_ = env.step(dict(zip(env.possible_agents, rows, strict=True)))
        assert all(np.array_equal(observed[name], step.observation.features[k]) for k, name in enumerate(observed))


def test_every_preset_can_be_given_to_every_adapter_by_name():
    """Spaces say what the task says; nothing is compiled for that."""
    pytest.importorskip("gymnasium")
    from slipstream.adapters.spaces import action_space, observation_space

    for name in presets():
        spec = find_task(name).spec
        assert action_space(spec).sample() is not None
        assert observation_space(spec, spec.observation) is not None
