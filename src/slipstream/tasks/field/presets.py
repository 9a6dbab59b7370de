"""Presets of the field robot."""

from typing import Any

from ...experiment.experiment import Experiment
from ...learn.ppo import Ppo
from .task import Field

ORDER = 3
TASK = Field

PRESETS: dict[str, Experiment[Any, Any]] = {
    "field": Experiment(
        task=Field(),
        learner=Ppo(
            worlds=1024,
            hidden_sizes=(128, 128),
            learning_rate_schedule="adaptive",
            target_kl=0.02,
            entropy_coef=0.005,
        ),
        steps=16_000_000,
    ),
}
