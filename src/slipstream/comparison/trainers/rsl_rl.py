"""RSL-RL's PPO; discrete actions by the distribution of our adapter."""

import contextlib
import io
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from ...adapters.arrays import from_torch, to_torch
from ...adapters.rsl_rl import SlipstreamVecEnv
from ...adapters.vector import Observation
from ...core.spaces import Box
from ..meter import Meter
from ..work import Work


def train(work: Work, meter: Meter) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(work.seed)
    env = SlipstreamVecEnv(work.preset, worlds=work.worlds, seed=work.seed, **work.task)
    space = env.task.spec.action
    network = {
        "class_name": "MLPModel", "hidden_dims": list(work.hidden_sizes), "activation": work.activation,
        "obs_normalization": work.normalize_observations,
    }  # fmt: skip
    spread = {"init_std": work.init_std} if isinstance(space, Box) else {}
    # It is the one of the others whose PPO takes what only a critic observes without a network of a kind of its own.
    critic = ["policy", "critic"] if env.task.spec.privileged_size else ["policy"]
    cfg: dict[str, Any] = {
        "num_steps_per_env": work.rollout_length, "save_interval": 10**9, "check_for_nan": False,
        "obs_groups": {"actor": ["policy"], "critic": critic},
        "actor": network | {"distribution_cfg": env.distribution_cfg | spread}, "critic": network,
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": work.epochs, "num_mini_batches": work.minibatches,
            "clip_param": work.clip, "gamma": work.discount, "lam": work.gae_lambda,
            "value_loss_coef": work.value_coef, "entropy_coef": work.entropy_coef,
            "learning_rate": work.learning_rate, "max_grad_norm": work.max_grad_norm,
            "use_clipped_value_loss": False, "desired_kl": work.target_kl,
            "schedule": "adaptive" if work.adaptive_learning_rate else "fixed",
        },
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        runner = OnPolicyRunner(env, cfg, log_dir=None, device=str(env.device))

    def act(observed: Observation) -> Any:
        actor = runner.get_inference_policy(device=str(env.device))
        with torch.inference_mode():
            seen = to_torch(observed.features)
            out = actor(TensorDict({"policy": seen}, batch_size=[len(seen)])).clone()
        runner.alg.train_mode()
        return from_torch(out if isinstance(space, Box) else out.round().to(torch.int32).reshape(-1, *space.shape))

    meter.watch(env.worlds, act)
    with contextlib.redirect_stdout(io.StringIO()):
        runner.learn(10**9)
