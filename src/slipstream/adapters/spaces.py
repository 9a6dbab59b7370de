"""Our action spaces and observations as spaces of Gymnasium."""

from typing import Any

import numpy as np

from ..core.spaces import Box, Discrete
from ..core.task import Spec
from .libraries import needed
from .vector import Observation

with needed("this adapter"):
    from gymnasium import spaces

FEATURES, IMAGE = "features", "image"
"""Keys of an observation with a camera."""


def action_space(spec: Spec, agents: int = 1) -> spaces.Space[Any]:
    """Actions of one agent, or of all agents of a world at once."""
    action = spec.action
    if isinstance(action, Box):
        return spaces.Box(-1.0, 1.0, action.shape if agents == 1 else (agents, *action.shape), np.float32)
    if isinstance(action, Discrete):
        return spaces.Discrete(action.choices) if agents == 1 else spaces.MultiDiscrete([action.choices] * agents)
    return spaces.MultiDiscrete(list(action.choices) if agents == 1 else np.tile(action.choices, (agents, 1)))


def observation_space(spec: Spec, features: int, agents: int = 1) -> spaces.Space[Any]:
    """Observations of one agent, or of all agents of a world at once."""
    batch = () if agents == 1 else (agents,)
    numbers = spaces.Box(-np.inf, np.inf, (*batch, features), np.float32)
    if spec.image_shape is None:
        return numbers
    image = spaces.Box(0, 255, (*batch, *spec.image_shape), np.uint8)
    return spaces.Dict({FEATURES: numbers, IMAGE: image})


def critic_space(spec: Spec, features: int) -> spaces.Space[Any] | None:
    """What the critic of one agent observes: the agent's numbers and the privileged ones; None if there are none."""
    if not spec.privileged_size:
        return None
    return spaces.Box(-np.inf, np.inf, (features + spec.privileged_size,), np.float32)


def as_in_space(observation: Observation) -> Any:
    """The observation in the form of `observation_space`."""
    if observation.image is None:
        return observation.features
    return {FEATURES: observation.features, IMAGE: observation.image}
