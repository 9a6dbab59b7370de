"""Stable-Baselines3's PPO."""

from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

from ...adapters.sb3 import SlipstreamVecEnv
from ...adapters.vector import Observation
from ..meter import Meter
from ..work import Work
from .networks import ACTIVATIONS

FOREVER = 10**12
"""Samples of a training, which the meter ends before."""


def settings(work: Work, rows: int) -> dict[str, Any]:
    """What both libraries call alike."""

    def learning_rate(left: float) -> float:
        return work.learning_rate_after((1.0 - left) * FOREVER)

    return {
        "n_steps": work.rollout_length, "batch_size": work.batch(rows), "n_epochs": work.epochs,
        "learning_rate": learning_rate, "gamma": work.discount, "gae_lambda": work.gae_lambda,
        "clip_range": work.clip, "ent_coef": work.entropy_coef, "vf_coef": work.value_coef,
        "max_grad_norm": work.max_grad_norm, "seed": work.seed,
    }  # fmt: skip


def normalized(env: SlipstreamVecEnv, work: Work) -> Any:
    """The environment with running normalizers, and how that sees the worlds of a score."""
    if not (work.normalize_observations or work.normalize_returns):
        return env, lambda rows: rows
    wrapped = VecNormalize(
        env, norm_obs=work.normalize_observations, norm_reward=work.normalize_returns, gamma=work.discount
    )
    return wrapped, wrapped.normalize_obs


def train(work: Work, meter: Meter) -> None:
    torch.set_num_threads(1)
    inner = SlipstreamVecEnv(work.preset, worlds=work.worlds, seed=work.seed, **work.task)
    env, see = normalized(inner, work)
    sizes = list(work.hidden_sizes)
    policy = {
        "net_arch": {"pi": sizes, "vf": sizes},
        "activation_fn": ACTIVATIONS[work.activation],
        "log_std_init": work.log_std,
    }
    # It has no learning rate that follows the divergence, but ends the passes over a rollout that went too far.
    divergence = work.target_kl if work.adaptive_learning_rate else None
    model = PPO(
        "MlpPolicy", env, policy_kwargs=policy, device="cpu", target_kl=divergence, **settings(work, inner.num_envs)
    )

    def act(observed: Observation) -> Any:
        return model.predict(see(np.array(observed.features)), deterministic=True)[0]

    meter.watch(inner.worlds, act)
    model.learn(FOREVER)
