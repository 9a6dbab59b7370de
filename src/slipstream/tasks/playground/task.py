"""Environments of MuJoCo Playground as tasks: the physics is theirs, ends and restarts are ours."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...core.errors import suggest
from ..brax.task import BraxInterface


@dataclass(frozen=True)
class Playground(BraxInterface):
    """An environment of MuJoCo Playground by its name."""

    environment: str = "CartpoleBalance"
    """name that Playground has registered"""
    time_limit_steps: int = 0
    """steps after which an episode is truncated; 0 is what the environment's own configuration says"""

    @cached_property
    def _registry(self) -> Any:
        try:
            from mujoco_playground import registry  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError("environments of MuJoCo Playground need it: pip install playground") from error
        if self.environment not in registry.ALL_ENVS:
            raise ValueError(f"Playground has no '{self.environment}'{suggest(self.environment, registry.ALL_ENVS)}")
        return registry

    @cached_property
    def _config(self) -> Any:
        config = self._registry.get_default_config(self.environment)
        if "impl" in config:
            # By default Warp, which compiles a hundred kernels of its own and cannot be traced into a larger program.
            config.impl = "jax"
        return config

    def make(self) -> Any:
        return self._registry.load(self.environment, self._config)

    @cached_property
    def max_steps(self) -> int:
        return self.time_limit_steps or int(self._config.episode_length)

    @property
    def description(self) -> str:
        return f"{self.environment} of MuJoCo Playground"
