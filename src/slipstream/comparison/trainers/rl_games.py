"""rl_games' PPO; several choices as a tuple of single ones."""

import contextlib
import io
import tempfile
from typing import Any

import torch
from rl_games.torch_runner import Runner

from ...adapters.arrays import from_torch, to_torch
from ...adapters.rl_games import SlipstreamVecEnv, register
from ...adapters.vector import Observation
from ...core.spaces import Box, Discrete
from ..meter import Meter
from ..work import Work

CONTINUOUS = {
    "mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "orthogonal_initializer", "gain": 0.01},
    "fixed_sigma": True,
}  # fmt: skip
ORTHOGONAL = {"name": "orthogonal_initializer", "gain": 2.0**0.5}
"""First weights of hidden layers: as ours, not its default."""


def train(work: Work, meter: Meter) -> None:
    torch.set_num_threads(1)
    register()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        agent = agent_of(work, folder)
        env: SlipstreamVecEnv = agent.vec_env
        space = env.task.spec.action

        def act(observed: Observation) -> Any:
            agent.model.eval()
            with torch.inference_mode():
                seen = {"is_train": False, "prev_actions": None, "obs": to_torch(observed.features)}
                out = agent.model(seen)
                if isinstance(space, Box):
                    picks = out["mus"].clone()
                elif isinstance(space, Discrete):
                    picks = out["logits"].argmax(-1).to(torch.int32)
                else:
                    picks = torch.stack([part.argmax(-1) for part in out["logits"]], -1).to(torch.int32)
            agent.model.train()
            return from_torch(picks)

        meter.watch(env.worlds, act)
        agent.train()


def agent_of(work: Work, folder: str) -> Any:
    """rl_games' agent for this work."""
    from ...adapters.tasks import find_task

    task = find_task(work.preset)
    space, rows = task.spec.action, work.worlds * task.spec.agents
    kind = "continuous" if isinstance(space, Box) else "discrete" if isinstance(space, Discrete) else "multi_discrete"
    sigma = {"sigma_init": {"name": "const_initializer", "val": work.log_std}}
    network = {
        "name": "actor_critic", "separate": True,
        "mlp": {"units": list(work.hidden_sizes), "activation": work.activation, "initializer": ORTHOGONAL},
        "space": {kind: CONTINUOUS | sigma if kind == "continuous" else {}},
    }  # fmt: skip
    schedule: dict[str, Any] = {}
    if work.adaptive_learning_rate:
        schedule = {"lr_schedule": "adaptive", "schedule_type": "legacy"}
    elif work.learning_rate_decay:
        # Its schedule ends with its training, which the meter ends earlier or with it.
        epochs = -(-work.learning_rate_decay // (rows * work.rollout_length))
        schedule = {"lr_schedule": "linear", "schedule_type": "standard", "max_epochs": epochs}
    config: dict[str, Any] = {
        "name": "compare", "env_name": "slipstream", "num_actors": rows, "device": "cpu", "ppo": True,
        "env_config": {"task": work.preset, "seed": work.seed, **work.task},
        "normalize_input": work.normalize_observations, "normalize_value": work.normalize_returns,
        "normalize_advantage": True, "reward_shaper": {"scale_value": 1.0},
        "gamma": work.discount, "tau": work.gae_lambda, "learning_rate": work.learning_rate, "lr_schedule": None,
        "kl_threshold": work.target_kl, "e_clip": work.clip, "entropy_coef": work.entropy_coef,
        "critic_coef": 2.0 * work.value_coef, "clip_value": False, "truncate_grads": True,
        "grad_norm": work.max_grad_norm, "horizon_length": work.rollout_length, "minibatch_size": work.batch(rows),
        "mini_epochs": work.epochs, "value_bootstrap": True, "save_best_after": 10**9, "save_frequency": 0,
        "bounds_loss_coef": 0.0, "score_to_win": 1e9, "torch_compile": False, "max_epochs": 10**9,
        "train_dir": folder, "print_stats": False,
    }  # fmt: skip
    algorithm = "a2c_continuous" if kind == "continuous" else "a2c_discrete"
    model = {"name": "continuous_a2c_logstd" if kind == "continuous" else f"{kind}_a2c"}
    params = {
        "seed": work.seed, "algo": {"name": algorithm}, "model": model, "network": network, "config": config | schedule
    }  # fmt: skip
    runner = Runner()
    runner.load({"params": params})
    return runner.algo_factory.create(algorithm, base_name="run", params=runner.params)
