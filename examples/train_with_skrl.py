"""Train recovery to hover by skrl's PPO with torch, and score the policy on worlds it has not seen.

python examples/train_with_skrl.py hover-skrl.pt 24000
"""

import sys

import torch
from skrl.agents.torch.ppo import PPO
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer

from slipstream.adapters.arrays import from_torch, to_torch
from slipstream.adapters.skrl import SlipstreamWrapper
from slipstream.adapters.trial import score


def net(inputs: int, outputs: int, gain: float) -> torch.nn.Module:
    layers = [torch.nn.Linear(inputs, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        torch.nn.init.orthogonal_(layer.weight, scale)
        torch.nn.init.zeros_(layer.bias)
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])


class Policy(GaussianMixin, Model):
    """A Gaussian whose mean is a network."""

    def __init__(self, env: SlipstreamWrapper) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        GaussianMixin.__init__(self)
        self.net = net(env.observation_space.shape[0], env.action_space.shape[0], 0.01)
        self.log_std = torch.nn.Parameter(torch.full(env.action_space.shape, -1.0))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    """A network for the value."""

    def __init__(self, env: SlipstreamWrapper) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        DeterministicMixin.__init__(self)
        self.net = net(env.observation_space.shape[0], 1, 1.0)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


def main(path: str = "hover-skrl.pt", timesteps: int = 24_000) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env = SlipstreamWrapper("hover", worlds=64)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    cfg = {
        "rollouts": 64, "learning_epochs": 5, "mini_batches": 8, "discount_factor": 0.97, "learning_rate": 1e-3,
        "time_limit_bootstrap": True, "value_loss_scale": 0.5, "grad_norm_clip": 0.5,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }  # fmt: skip
    models = {"policy": Policy(env), "value": Value(env)}
    memory = RandomMemory(memory_size=64, num_envs=env.num_envs, device=env.device)
    agent = PPO(models=models, memory=memory, cfg=cfg, **spaces)
    SequentialTrainer(env=env, agents=agent, cfg={"timesteps": timesteps, "disable_progressbar": True}).train()
    agent.save(path)
    found = score("hover", lambda observed: from_torch(models["policy"].net(to_torch(observed.features))))
    print(f"{100 * found['success']:.1f} % hover; the agent is {path}")
    return found["success"]


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
