"""Any environment of MuJoCo Playground by its name: `playground:CartpoleBalance`."""

from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ..brax.presets import LOCOMOTION
from .task import Playground

ORDER = 11
TASK = Playground
PRESETS: dict[str, Experiment[Any, Any]] = {}


def named(environment: str) -> Experiment[Any, Any]:
    """How an environment is trained if nobody says otherwise."""
    return Experiment(Playground(environment), replace(LOCOMOTION, discount=0.995), 5_000_000)
