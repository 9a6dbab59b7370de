"""Presets of classic control in gymnax."""

from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ...learn.defaults import SMALL_CONTINUOUS, SMALL_DISCRETE
from ...learn.dqn import Dqn
from ...learn.iqn import Iqn
from ...learn.ppo import Ppo
from ...learn.sac import Sac
from .task import Gymnax

ORDER = 9
TASK = Gymnax

PRESETS: dict[str, Experiment[Any, Any]] = {
    "cartpole": Experiment(Gymnax("CartPole-v1", 475.0), Dqn(**SMALL_DISCRETE), 100_000, devices=1),
    "acrobot": Experiment(
        Gymnax("Acrobot-v1", -90.0),
        replace(Iqn(**SMALL_DISCRETE), reward_scale=0.1, discount=0.98, learning_rate=2e-3),
        100_000,
        devices=1,
    ),
    "mountaincar": Experiment(
        Gymnax("MountainCar-v0", -125.0),
        replace(Dqn(**SMALL_DISCRETE), exploration_fraction=0.5, exploration_repeat=25),
        150_000,
        devices=1,
    ),
    "mountaincar-continuous": Experiment(
        Gymnax("MountainCarContinuous-v0", 90.0),
        Ppo(worlds=16, rollout_length=256, epochs=8, minibatches=8, discount=0.999, noise_correlation_time=10.0),
        300_000,
        devices=1,
    ),
    "pendulum": Experiment(Gymnax("Pendulum-v1", -200.0), Sac(**SMALL_CONTINUOUS), 20_000, devices=1),
}


def named(environment: str) -> Experiment[Any, Any]:
    """How an environment is trained if nobody says otherwise: `gymnax:Breakout-MinAtar`."""
    ppo = Ppo(worlds=64, rollout_length=32, learning_rate_schedule="adaptive", target_kl=0.02, entropy_coef=0.01)
    return Experiment(Gymnax(environment), ppo, 2_000_000)
