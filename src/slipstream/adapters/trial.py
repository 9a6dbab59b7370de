"""A short trial of a policy of any library: one episode of each world, as the task is evaluated."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import mean_of
from .tasks import TaskLike, find_task
from .vector import Observation, Worlds

SEED = 1_000_003
"""Of worlds that no training begins with."""


def score(
    task: TaskLike, act: Callable[[Observation], Any], worlds: int = 256, seed: int = SEED, **settings: Any
) -> dict[str, float]:
    """Mean metrics and return; `act` gives the actions of all rows for what they observe, without exploring."""
    return fly(Worlds(find_task(task, evaluation=True, **settings), worlds, seed, "never"), act)


def fly(batch: Worlds, act: Callable[[Observation], Any]) -> dict[str, float]:
    """The same on worlds that stay as they end, from the same starts each time."""
    observation, returns, over = batch.reset(batch.seed), np.zeros(batch.rows), np.zeros(batch.rows, bool)
    metrics: dict[str, np.ndarray] = {}
    while not over.all():
        step = batch.step(act(observation))
        observation, over = step.observation, over | np.asarray(step.done)
        returns += np.asarray(step.reward)
        metrics = {name: np.asarray(value) for name, value in step.metrics.items()}
    return {"return": float(returns.mean())} | {name: mean_of(value) for name, value in metrics.items()}
