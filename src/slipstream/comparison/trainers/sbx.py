"""sbx's PPO: Stable-Baselines3 with its updates in JAX."""

from typing import Any

import flax.linen
import numpy as np
from sbx import PPO

from ...adapters.sb3 import SlipstreamVecEnv
from ...adapters.vector import Observation
from ..meter import Meter
from ..work import Work
from .sb3 import FOREVER, normalized, settings


def train(work: Work, meter: Meter) -> None:
    inner = SlipstreamVecEnv(work.preset, worlds=work.worlds, seed=work.seed, **work.task)
    env, see = normalized(inner, work)
    policy = {
        "net_arch": list(work.hidden_sizes), "activation_fn": getattr(flax.linen, work.activation),
        "log_std_init": work.log_std, "ortho_init": True,
    }  # fmt: skip
    divergence = work.target_kl if work.adaptive_learning_rate else None
    model = PPO("MlpPolicy", env, policy_kwargs=policy, target_kl=divergence, **settings(work, inner.num_envs))

    def act(observed: Observation) -> Any:
        return model.predict(see(np.array(observed.features)), deterministic=True)[0]

    meter.watch(inner.worlds, act)
    model.learn(FOREVER)
