"""skrl: restarts that keep the last observation, memory that is shared, and trainers of both its sides that learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("skrl", reason="pip install torch==2.13.0 skrl")
pytest.importorskip("torch", reason="pip install torch==2.13.0")
import torch
from ladder import Ladder

from slipstream.adapters.skrl import SlipstreamWrapper
from slipstream.adapters.vector import VectorStep

KINDS = [Ladder(), Ladder("discrete"), Ladder("multidiscrete"), Ladder("discrete", agents=2), Ladder(camera=True)]


def climbing(env, steps):
    env.reset()
    return [env.step(torch.tensor([[1.0], [0.0]])) for _ in range(steps)]


def test_the_next_observation_of_an_end_is_the_last_one():
    rows = climbing(SlipstreamWrapper(Ladder(), 2), 6)
    observation, reward, terminated, truncated, infos = rows[2]
    assert observation.tolist() == [[3.0, 3.0], [0.0, 3.0]]
    assert terminated.tolist() == [[True], [False]] and not truncated.any() and reward.tolist() == [[1.0], [0.0]]
    assert infos["valid"].all()
    observation, reward, terminated, _, infos = rows[3]
    assert observation[0].tolist() == [0.0, 0.0] and reward[0].item() == 0.0 and not terminated.any()
    assert infos["valid"].tolist() == [False, True]
    assert rows[4][3].tolist() == [[False], [True]] and rows[4][0][1].tolist() == [0.0, 5.0]


def test_observations_are_shared_and_rewards_are_not():
    env = SlipstreamWrapper(Ladder(), 64)
    seen: list[VectorStep] = []
    step = env.worlds.step
    env.worlds.step = lambda action: seen.append(step(action)) or seen[-1]
    env.reset()
    action = torch.zeros((64, 1))
    observation, reward, *_ = env.step(action)
    assert observation.data_ptr() == seen[0].observation.features.unsafe_buffer_pointer()
    assert reward.data_ptr() != seen[0].reward.unsafe_buffer_pointer()
    reward += 1.0
    assert float(jnp.sum(env.worlds.state.states.reward)) == 0.0


def test_a_critic_gets_what_only_it_may_know():
    env = SlipstreamWrapper(Ladder(critic=True), 2)
    climbing(env, 1)
    assert env.state().tolist() == [[1.0, 1.0, 10.0], [0.0, 1.0, 0.0]]
    assert env.state_space.shape == (3,)


def torch_models(env):
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model, MultiCategoricalMixin
    from skrl.utils.spaces.torch import compute_space_size

    mixin = {"Box": GaussianMixin, "Discrete": CategoricalMixin, "MultiDiscrete": MultiCategoricalMixin}[
        type(env.action_space).__name__
    ]

    class Policy(mixin, Model):
        def __init__(self):
            Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
            mixin.__init__(self)
            sizes = compute_space_size(env.observation_space), compute_space_size(env.action_space)
            self.net = torch.nn.Linear(*sizes)
            self.spread = torch.nn.Parameter(torch.zeros(sizes[1]))

        def compute(self, inputs, role):
            extra = {"log_std": self.spread} if mixin is GaussianMixin else {}
            return self.net(inputs["observations"]), extra

    class Value(DeterministicMixin, Model):
        def __init__(self):
            Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
            DeterministicMixin.__init__(self)
            self.net = torch.nn.Linear(compute_space_size(env.observation_space), 1)

        def compute(self, inputs, role):
            return self.net(inputs["observations"]), {}

    return {"policy": Policy(), "value": Value()}


CFG = {
    "rollouts": 8, "learning_epochs": 2, "mini_batches": 2, "time_limit_bootstrap": True, "entropy_loss_scale": 0.01,
    "experiment": {"write_interval": 0, "checkpoint_interval": 0},
}  # fmt: skip


@pytest.mark.parametrize("task", KINDS, ids=lambda t: f"{t.space} {t.agents} {t.camera}")
def test_skrl_trains_with_torch(task):
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.trainers.torch import SequentialTrainer

    env = SlipstreamWrapper(task, 8 // task.agents)
    models = torch_models(env)
    before = models["policy"].net.weight.clone()
    agent = PPO(
        models=models, memory=RandomMemory(memory_size=8, num_envs=env.num_envs, device="cpu"), cfg=CFG,
        observation_space=env.observation_space, action_space=env.action_space, device="cpu",
    )  # fmt: skip
    SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": 16, "disable_progressbar": True, "close_environment_at_exit": False}
    ).train()
    after = models["policy"].net.weight
    assert torch.isfinite(after).all() and not torch.equal(before, after)


def test_components_of_a_choice_are_independent():
    from slipstream.adapters.skrl_jax import entropy_of, log_prob_of, sample_components

    logits = [jnp.zeros((3000, 3)) for _ in range(3)]
    actions = sample_components(jax.random.key(0), logits)
    assert float(jnp.mean(jnp.all(actions == actions[:, :1], axis=1))) == pytest.approx(1.0 / 9.0, abs=0.02)
    assert np.allclose(log_prob_of(logits, actions), -3.0 * np.log(3.0), atol=1e-5)
    assert np.allclose(entropy_of(logits), 3.0 * np.log(3.0), atol=1e-5)


@pytest.mark.parametrize("space", ["discrete", "multidiscrete"])
def test_skrl_trains_with_jax_and_its_entropy_is_finite(space):
    import flax.linen as nn
    from skrl.agents.jax.ppo import PPO
    from skrl.memories.jax import RandomMemory
    from skrl.models.jax import DeterministicMixin, Model
    from skrl.trainers.jax import SequentialTrainer

    from slipstream.adapters import skrl_jax

    env = skrl_jax.SlipstreamWrapper(Ladder(space), 8)
    mixin = skrl_jax.CategoricalMixin if space == "discrete" else skrl_jax.MultiCategoricalMixin
    width = 3 if space == "discrete" else 5

    class Policy(mixin, Model):
        def __init__(self, observation_space, action_space, device=None, **kwargs):
            Model.__init__(
                self, observation_space=observation_space, action_space=action_space, device=device, **kwargs
            )
            mixin.__init__(self)

        @nn.compact
        def __call__(self, inputs, role):
            return nn.Dense(width)(inputs["observations"]), {}

    class Value(DeterministicMixin, Model):
        def __init__(self, observation_space, action_space, device=None, **kwargs):
            Model.__init__(
                self, observation_space=observation_space, action_space=action_space, device=device, **kwargs
            )
            DeterministicMixin.__init__(self)

        @nn.compact
        def __call__(self, inputs, role):
            return nn.Dense(1)(inputs["observations"]), {}

    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    models = {"policy": Policy(**spaces), "value": Value(**spaces)}
    for role, model in models.items():
        model.init_state_dict(role=role)
    agent = PPO(
        models=models, memory=RandomMemory(memory_size=8, num_envs=env.num_envs, device=env.device), cfg=CFG,
        observation_space=env.observation_space, action_space=env.action_space, device=env.device,
    )  # fmt: skip
    tracked = {}
    track = agent.track_data
    agent.track_data = lambda name, value: (tracked.__setitem__(name, value), track(name, value))
    SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": 17, "disable_progressbar": True, "close_environment_at_exit": False}
    ).train()
    assert np.isfinite(tracked["Loss / Entropy loss"]) and tracked["Loss / Entropy loss"] < 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(models["policy"].state_dict.params))
