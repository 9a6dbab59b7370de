"""Any environment of Brax by its name: `brax:ant`."""

from typing import Any

from ...experiment.experiment import Experiment
from ...learn.ppo import Ppo
from .task import Brax

ORDER = 10
TASK = Brax
PRESETS: dict[str, Experiment[Any, Any]] = {}


def named(environment: str) -> Experiment[Any, Any]:
    """How an environment is trained if nobody says otherwise."""
    return Experiment(Brax(environment), LOCOMOTION, 5_000_000)


LOCOMOTION = Ppo(
    worlds=256, rollout_length=64, minibatches=8, discount=0.97, learning_rate=5e-4, learning_rate_schedule="adaptive",
    target_kl=0.015, hidden_sizes=(128, 128), activation="silu",
)  # fmt: skip
"""PPO for bodies with contacts, on the few worlds that their physics leaves time for."""
