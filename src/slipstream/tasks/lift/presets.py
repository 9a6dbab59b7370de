"""Presets of the lift."""

from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ...learn.distill import Distill
from ...learn.ppo import Ppo
from .settings import LiftCamera, LiftReward
from .task import Lift

ORDER = 4
TASK = Lift

# The discount is such that the bonus of success is worth more than hovering with the cube for ever.
ppo = Ppo(worlds=1024, rollout_length=32, hidden_sizes=(64, 64), discount=0.98, learning_rate=1e-3, init_std=0.6)

# Fingers that line up with the cube hold it in MuJoCo, too.
lift = Lift(action="cartesian_yaw")
vision = replace(lift, camera=LiftCamera("rgb"))
# A teacher knows from the start how to lift a cube from anywhere.
imitated = replace(lift, camera=LiftCamera("rgb", view="both", resolution=64), curriculum=(0.0, 0.0))
student = Distill(
    worlds=256, rollout_length=16, learning_rate=2e-3, learning_rate_final_fraction=0.0, hidden_sizes=(256, 256),
    exploration_noise=0.05, state_estimation_coef=1.0,
)  # fmt: skip

PRESETS: dict[str, Experiment[Any, Any]] = {
    "lift": Experiment(task=lift, learner=ppo, steps=12_000_000),
    "lift-ppo": Experiment(
        task=vision,
        learner=replace(ppo, worlds=256, minibatches=16, shuffle_block=1, state_estimation_coef=1.0),
        steps=6_000_000,
    ),
    "lift-vision": Experiment(task=imitated, learner=student, steps=600_000, average=0.3),
    "lift-place": Experiment(
        task=replace(lift, goal="place", time_limit=6.0, reward=LiftReward(success=80.0)), learner=ppo, steps=40_000_000
    ),
}
