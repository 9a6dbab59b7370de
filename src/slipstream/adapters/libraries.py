"""Libraries that adapters need: one that is missing is named, with the line that installs it."""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

INSTALL = {
    "gymnasium": "gymnasium",
    "pettingzoo": "pettingzoo",
    "torch": "torch==2.13.0",
    "stable_baselines3": "torch==2.13.0 stable-baselines3",
    "sbx": "torch==2.13.0 sbx-rl",
    "skrl": "torch==2.13.0 skrl",
    "flax": "flax",
    "rsl_rl": "torch==2.13.0 rsl-rl-lib",
    "tensordict": "torch==2.13.0 'tensordict<0.15'",
    "rl_games": "torch==2.13.0 rl-games",
    "torchrl": "torch==2.13.0 torchrl 'tensordict<0.15'",
    "brax": "brax",
    "mujoco_playground": "playground",
    "gymnax": "gymnax six",
}
"""What pip is told to install, by the name that Python imports."""


class MissingLibraryError(ImportError, ValueError):
    """A library that is not installed; the message says how to install it."""


@contextlib.contextmanager
def needed(purpose: str) -> Iterator[None]:
    """Imports in this block are of other libraries: one that is missing is named."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in INSTALL:
            raise
        raise MissingLibraryError(f"{purpose} needs {name}: pip install {INSTALL[name]}") from error


def require_library(name: str, purpose: str) -> None:
    """Refuse what needs a library that is not installed, without importing it."""
    if importlib.util.find_spec(name) is None:
        raise MissingLibraryError(f"{purpose} needs {name}: pip install {INSTALL[name]}")


def load(module: str, purpose: str) -> Any:
    """A module of another library."""
    with needed(purpose):
        return importlib.import_module(module)
