"""Means over episodes for the logs of other libraries, read from the device only now and then."""

import math

from .vector import Worlds

INTERVAL = 32
"""Steps between two reads."""


class EpisodeLog:
    """Means of the task's metrics over the episodes that ended since the last read."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds, self._steps = worlds, 0

    def note(self) -> dict[str, float]:
        """To be called after each step: means every few steps, and nothing in between."""
        self._steps += 1
        if self._steps % INTERVAL:
            return {}
        means = {name: float(value) for name, value in self._worlds.take_statistics().items()}
        return {name: value for name, value in means.items() if math.isfinite(value)}
