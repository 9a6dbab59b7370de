"""A policy that another library trained, in the place of a learner: it is evaluated, and cannot be trained here."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import PRNGKeyArray

from ..core.task import Spec, Task


@dataclass(frozen=True)
class ForeignPolicy:
    """Where a policy comes from."""

    library: str = ""
    """library that trained it"""
    file: str = ""
    """file that held it"""
    sha256: str = ""
    """digest of that file"""

    worlds = 1
    steps_per_update = 1
    hidden_sizes: tuple[int, ...] = ()
    """unknown here"""

    def check(self, task: Task[Any], devices: int) -> None:
        raise ValueError(self._refusal)

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> Any:
        raise ValueError(self._refusal)

    @property
    def _refusal(self) -> str:
        return (
            f"this policy is of {self.library} and its weights are not kept here: evaluate it again by "
            f"slipstream evaluate PRESET --policy {self.library}:{self.file}"
        )
