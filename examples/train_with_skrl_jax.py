"""Train a pole on a cart by skrl's PPO in JAX, with the model of discrete actions that this needs.

python examples/train_with_skrl_jax.py 3000
"""

import sys

import flax.linen as nn
import jax.numpy as jnp
from skrl.agents.jax.ppo import PPO
from skrl.memories.jax import RandomMemory
from skrl.models.jax import DeterministicMixin, Model
from skrl.trainers.jax import SequentialTrainer

from slipstream.adapters.skrl_jax import CategoricalMixin, SlipstreamWrapper
from slipstream.adapters.trial import score


def network(outputs: int, x):
    for _ in range(2):
        x = nn.tanh(nn.Dense(64)(x))
    return nn.Dense(outputs)(x)


class Policy(CategoricalMixin, Model):
    """Logits of both directions."""

    def __init__(self, observation_space, action_space, device=None, **kwargs):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device, **kwargs)
        CategoricalMixin.__init__(self)

    @nn.compact
    def __call__(self, inputs, role):
        return network(2, inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    """A network for the value."""

    def __init__(self, observation_space, action_space, device=None, **kwargs):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device, **kwargs)
        DeterministicMixin.__init__(self)

    @nn.compact
    def __call__(self, inputs, role):
        return network(1, inputs["observations"]), {}


def main(timesteps: int = 3000) -> float:
    env = SlipstreamWrapper("cartpole", worlds=32)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    models = {"policy": Policy(**spaces), "value": Value(**spaces)}
    for role, model in models.items():
        model.init_state_dict(role=role)
    cfg = {
        "rollouts": 64, "learning_epochs": 8, "mini_batches": 8, "discount_factor": 0.98, "learning_rate": 1e-3,
        "time_limit_bootstrap": True, "entropy_loss_scale": 0.005, "grad_norm_clip": 0.5,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }  # fmt: skip
    memory = RandomMemory(memory_size=64, num_envs=env.num_envs, device=env.device)
    agent = PPO(models=models, memory=memory, cfg=cfg, **spaces)
    SequentialTrainer(env=env, agents=agent, cfg={"timesteps": timesteps, "disable_progressbar": True}).train()
    policy = models["policy"]

    def act(observed):
        logits, _ = policy.apply(policy.state_dict.params, {"observations": observed.features}, "policy")
        return jnp.argmax(logits, -1)

    found = score("cartpole", act, worlds=100)
    print(f"mean return {found['return']:.1f} of 500")
    return found["return"]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
