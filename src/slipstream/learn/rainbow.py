"""Rainbow: deep Q-learning with all its extensions on. Each can be switched off."""

from dataclasses import dataclass

from .dqn import Dqn


@dataclass(frozen=True)
class Rainbow(Dqn):
    """Settings of Rainbow."""

    dueling: bool = True
    noisy_sigma: float = 0.5
    atoms: int = 51
    prioritized_replay: bool = True
