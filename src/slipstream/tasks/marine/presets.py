"""Presets of marine navigation, and which agents are compared."""

from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ...learn.ac_iqn import AcIqn
from ...learn.ddpg import Ddpg, Td3
from ...learn.defaults import OFF_POLICY_FAST
from ...learn.dqn import Dqn
from ...learn.iqn import Iqn
from ...learn.pqn import Pqn
from ...learn.rainbow import Rainbow
from ...learn.sac import Sac
from ...learn.shac import Shac
from .settings import Curriculum, MarineReward
from .task import Marine

ORDER = 2
TASK = Marine

PUBLISHED: dict[str, Any] = {
    "worlds": 8, "rollout_length": 4, "gradient_steps": 8, "batch_size": 64, "capacity": 1_000_000,
    "learning_starts": 2_000, "n_step": 1, "learning_rate": 1e-4, "learning_rate_final_fraction": 1.0,
    "target_update_interval": 2_500, "max_grad_norm": 0.5, "layer_norm": False, "normalize_observations": False,
    "epsilon_start": 0.6, "epsilon_end": 0.05, "exploration_fraction": 0.25,
}  # fmt: skip
"""Hyperparameters of the published marine agents: one small batch for every fourth step, and hard target updates. They
leave a simulator idle that steps thousands of vessels in the time of one batch."""

icra = Marine(
    vessels=7,
    buoys=8,
    vehicle="point",
    action_space="discrete",
    max_obstacles=10,
    sensor_range=15.0,
    sensor_noise=0.0,
    colregs=False,
    arena_size=50.0,
    min_goal_distance=40.0,
    min_separation=5.0,
    vortices=8,
    time_limit=180.0,
    reward=MarineReward(step=-1.0, collision=-50.0, goal=100.0),
    curriculum=Curriculum(distance=30.0),
)
iros = Marine(
    vessels=1,
    buoys=8,
    vehicle="point",
    action_space="discrete",
    sensing="sonar",
    sensor_range=10.0,
    colregs=False,
    arena_size=50.0,
    min_goal_distance=30.0,
    buoy_radius=(1.0, 3.0),
    vortices=6,
    control_dt=1.0,
    reward=MarineReward(step=-1.0, collision=-50.0, goal=100.0),
    curriculum=Curriculum(distance=20.0),
)
discrete = Marine(action_space="discrete")
marine = Experiment(
    task=Marine(),
    # A smaller Huber delta than the others', and caution near obstacles instead: decision 0011.
    learner=replace(AcIqn(**OFF_POLICY_FAST), huber_delta=10.0, epsilon_start=0.3, cvar_distance=10.0),
    steps=1_200_000,
    devices=1,
)
short = replace(marine, steps=600_000)

PRESETS: dict[str, Experiment[Any, Any]] = {
    "marine": marine,
    "marine-published": replace(
        marine, learner=AcIqn(**PUBLISHED, twin_critics=False, exploration_noise=0.0), steps=6_000_000
    ),
    "marine-sac": replace(short, learner=Sac(**OFF_POLICY_FAST)),
    "marine-td3": replace(short, learner=Td3(**OFF_POLICY_FAST)),
    "marine-ddpg": replace(short, learner=Ddpg(**OFF_POLICY_FAST)),
    # Windows of 16 s: of 32 s, gradients through encounters swing too much to learn from.
    "marine-shac": replace(
        marine,
        learner=Shac(worlds=128, rollout_length=32, discount=0.99, hidden_sizes=(128, 128)),
        steps=2_000_000,
    ),
    "marine-iqn": replace(short, task=discrete, learner=Iqn(**OFF_POLICY_FAST)),
    "marine-rainbow": replace(marine, task=discrete, learner=Rainbow(**OFF_POLICY_FAST)),
    "marine-dqn": replace(short, task=discrete, learner=Dqn(**OFF_POLICY_FAST)),
    "marine-pqn": replace(marine, task=discrete, learner=Pqn(worlds=256, td_lambda=0.9), steps=3_000_000),
    "marine-icra": replace(marine, task=icra, learner=Iqn(**OFF_POLICY_FAST, cvar_distance=10.0), steps=2_000_000),
    "marine-iros": replace(marine, task=iros, learner=Iqn(**OFF_POLICY_FAST, cvar_distance=10.0), steps=2_000_000),
}

COMPARISONS: dict[str, tuple[str, ...]] = {
    "marine": (
        "marine",
        *(f"marine-{name}" for name in ("shac", "sac", "td3", "ddpg", "iqn", "rainbow", "dqn", "pqn")),
    ),
}
"""Presets that are compared on the same worlds."""
