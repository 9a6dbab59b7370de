"""What every library is given to do: the same task, network, rollout and passes, as far as it can."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from ..core.errors import suggest
from ..experiment.experiment import Experiment
from ..learn.ppo import Ppo
from ..learn.shac import Shac

MODULES = {
    "slipstream": "slipstream", "sb3": "stable_baselines3", "sbx": "sbx", "skrl": "skrl", "rsl_rl": "rsl_rl",
    "rl_games": "rl_games", "torchrl": "torchrl",
}  # fmt: skip
"""What Python imports, by what a library is called here."""
LIBRARIES = tuple(MODULES)
LEAST = 0.05
"""Fraction of the learning rate that is left at the end of a decay."""


@dataclass(frozen=True)
class Work:
    """A PPO training. Settings that a library does not have stay as the library sets them."""

    preset: str = ""
    worlds: int = 1024
    rollout_length: int = 32
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    adaptive_learning_rate: bool = False
    """follow the divergence of an update instead of a constant learning rate, where the library can"""
    target_kl: float = 0.02
    learning_rate_decay: int = 0
    """samples over which a learning rate that follows no divergence falls linearly to a twentieth; 0 is constant"""
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.0
    value_coef: float = 0.5
    max_grad_norm: float = 1.0
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    init_std: float = 0.6
    normalize_observations: bool = True
    normalize_returns: bool = True
    """scale rewards or value targets by their spread, where the library can"""
    task: dict[str, Any] = field(default_factory=dict)
    """settings of the task in training that differ from the preset's; policies are scored on the preset's own"""
    seed: int = 0
    # How long, and what is looked at.
    seconds: float = 60.0
    """seconds of training with compiling and without scoring: of CPU time on a CPU, elsewhere of wall time"""
    samples: int = 0
    """samples of training; 0 is as many as come within the time"""
    score_seed: int = 31_000_003
    """of the worlds on which policies are scored; no training begins with them"""
    looks: int = 0
    """how often the policy is scored along the way, after equal times; it is scored at the end in any case"""
    skill: tuple[tuple[str, float], ...] = ()
    """metrics and bounds: a training stops once all hold; a negative bound is an upper one of its size"""
    own_preset: bool = False
    """ours trains as the preset says instead of doing the same work"""

    @classmethod
    def of(cls, name: str, experiment: Experiment[Any, Any], **changes: Any) -> Self:
        """The work of a preset that is trained by PPO."""
        learner = experiment.learner
        if not isinstance(learner, Ppo):
            hint = f"{name}-ppo" if isinstance(learner, Shac) else "one whose learner is ppo"
            raise ValueError(f"other libraries' PPO needs the settings of a preset by PPO: choose {hint}, not {name}")
        if learner.memory != "none" or experiment.task.spec.image_shape:
            raise ValueError(f"policies of other libraries are compared without memory and camera, and {name} has one")
        work = cls(
            preset=name,
            worlds=learner.worlds,
            rollout_length=learner.rollout_length,
            epochs=learner.epochs,
            minibatches=learner.minibatches,
            learning_rate=learner.learning_rate,
            adaptive_learning_rate=learner.learning_rate_schedule == "adaptive",
            target_kl=learner.target_kl,
            discount=learner.discount,
            gae_lambda=learner.gae_lambda,
            clip=learner.clip,
            entropy_coef=learner.entropy_coef,
            value_coef=learner.value_coef,
            max_grad_norm=learner.max_grad_norm,
            hidden_sizes=learner.hidden_sizes,
            activation=learner.activation,
            init_std=learner.init_std,
            normalize_observations=learner.normalize_observations,
            normalize_returns=learner.normalize_returns,
        )
        return replace(work, **changes)

    def tuned(self, settings: Mapping[str, Any]) -> Self:
        """The work with these settings, as a file has them."""
        for name, value in settings.items():
            if name not in SETTINGS:
                raise ValueError(f"'{name}' is not a setting of the work{suggest(name, SETTINGS)}")
            known = getattr(self, name)
            numbers = isinstance(known, float) and type(value) is int
            if not (numbers or type(value) is type(known) or (name == "hidden_sizes" and isinstance(value, list))):
                raise ValueError(f"{name} is a {type(known).__name__}, not {value!r}")
        changes = dict(settings) | (
            {"hidden_sizes": tuple(settings["hidden_sizes"])} if "hidden_sizes" in settings else {}
        )
        return replace(self, **changes)

    @property
    def log_std(self) -> float:
        return math.log(self.init_std)

    def learning_rate_after(self, samples: float) -> float:
        """The learning rate, where it follows no divergence."""
        if not self.learning_rate_decay:
            return self.learning_rate
        return self.learning_rate * max(1.0 - samples / self.learning_rate_decay, LEAST)

    def batch(self, rows: int) -> int:
        """Samples of a minibatch, of that many environments."""
        return rows * self.rollout_length // self.minibatches

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        skill = tuple((str(name), float(bound)) for name, bound in data["skill"])
        return cls(**data | {"hidden_sizes": tuple(data["hidden_sizes"]), "skill": skill})

    def reached(self, metrics: dict[str, float]) -> bool:
        """Whether the skill is there."""
        if not self.skill:
            return False
        good = [
            metrics.get(name, math.nan) >= bound if bound >= 0.0 else metrics.get(name, math.nan) <= -bound
            for name, bound in self.skill
        ]
        return all(good)


ASKED = ("preset", "own_preset", "seed", "seconds", "samples", "score_seed", "looks", "skill")
"""What a comparison decides for all libraries alike."""
SETTINGS = tuple(one.name for one in fields(Work) if one.name not in ASKED)
"""What may differ from library to library."""
