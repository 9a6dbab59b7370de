"""skrl's PPO with torch."""

from typing import Any

import torch
from skrl.agents.torch.ppo import PPO
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model, MultiCategoricalMixin
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.resources.schedulers.torch import KLAdaptiveLR
from skrl.trainers.torch import SequentialTrainer

from ...adapters.arrays import from_torch, to_torch
from ...adapters.skrl import SlipstreamWrapper
from ...adapters.vector import Observation
from ...core.spaces import Box, Discrete
from ..meter import Meter
from ..work import Work
from .networks import decay_of, likeliest, net


def models_of(env: SlipstreamWrapper, work: Work) -> dict[str, Any]:
    """Policy and value, for the actions of the task."""
    space, inputs = env.task.spec.action, env.observation_space.shape[0]
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    mixin: Any = MultiCategoricalMixin
    if isinstance(space, Box):
        mixin = GaussianMixin
    elif isinstance(space, Discrete):
        mixin = CategoricalMixin

    class Policy(mixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            mixin.__init__(self)
            outputs = space.size if isinstance(space, Box) else sum(space.components)
            self.net = net(inputs, work, outputs, 0.01)
            self.spread = torch.nn.Parameter(torch.full((space.size,), work.log_std))

        def compute(self, inputs: Any, role: str = "") -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return self.net(inputs["observations"]), {"log_std": self.spread} if isinstance(space, Box) else {}

    class Value(DeterministicMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = net(inputs, work, 1, 1.0)

        def compute(self, inputs: Any, role: str = "") -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return self.net(inputs["observations"]), {}

    return {"policy": Policy(), "value": Value()}  # pyright: ignore[reportAbstractUsage]


def train(work: Work, meter: Meter) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(work.seed)
    env = SlipstreamWrapper(work.preset, worlds=work.worlds, seed=work.seed, **work.task)
    space, models = env.task.spec.action, models_of(env, work)
    cfg: dict[str, Any] = {
        "rollouts": work.rollout_length, "learning_epochs": work.epochs, "mini_batches": work.minibatches,
        "discount_factor": work.discount, "gae_lambda": work.gae_lambda, "learning_rate": work.learning_rate,
        "ratio_clip": work.clip, "value_clip": 0.0, "entropy_loss_scale": work.entropy_coef,
        "value_loss_scale": work.value_coef, "grad_norm_clip": work.max_grad_norm, "time_limit_bootstrap": True,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }  # fmt: skip
    if work.normalize_observations:
        cfg["observation_preprocessor"] = RunningStandardScaler
        cfg["observation_preprocessor_kwargs"] = {"size": env.observation_space, "device": env.device}
    if work.normalize_returns:
        cfg["value_preprocessor"] = RunningStandardScaler
        cfg["value_preprocessor_kwargs"] = {"size": 1, "device": env.device}
    if work.adaptive_learning_rate:
        cfg |= {
            "learning_rate_scheduler": KLAdaptiveLR,
            "learning_rate_scheduler_kwargs": {"kl_threshold": work.target_kl},
        }
    elif work.learning_rate_decay:
        cfg |= {
            "learning_rate_scheduler": torch.optim.lr_scheduler.LambdaLR,
            "learning_rate_scheduler_kwargs": {
                "lr_lambda": decay_of(work, env.num_envs * work.rollout_length / work.epochs)
            },
        }
    agent = PPO(
        models=models,
        memory=RandomMemory(memory_size=work.rollout_length, num_envs=env.num_envs, device=env.device),
        cfg=cfg,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
    )

    def act(observed: Observation) -> Any:
        with torch.inference_mode():
            seen = to_torch(observed.features)
            if work.normalize_observations:
                seen = agent._observation_preprocessor(seen)
            out = models["policy"].net(seen)
        if isinstance(space, Box):
            return from_torch(out)
        picks = likeliest(out, space.components)
        return from_torch(picks[:, 0] if isinstance(space, Discrete) else picks)

    meter.watch(env.worlds, act)
    forever = {"timesteps": 10**9, "disable_progressbar": True, "close_environment_at_exit": False}
    SequentialTrainer(env=env, agents=agent, cfg=forever).train()
