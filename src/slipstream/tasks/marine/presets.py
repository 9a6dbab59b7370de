"""How vessels are trained, and which agents are compared."""

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
from .task import Marine

ORDER = 2
TASK = Marine

PUBLISHED: dict[str, Any] = {
    "worlds": 8, "rollout_length": 4, "gradient_steps": 8, "batch_size": 64, "capacity": 1_000_000,
    "learning_starts": 2_000, "n_step": 1, "learning_rate": 1e-4, "learning_rate_final_fraction": 1.0,
    "target_update_interval": 2_500, "max_grad_norm": 0.5, "layer_norm": False, "normalize_observations": False,
    "epsilon_start": 0.6, "epsilon_end": 0.05, "exploration_fraction": 0.25,
}  # fmt: skip
"""What the marine agents were published with: one small batch for every fourth step, and a target copied now and then.
It wastes a simulator that steps thousands of vessels in the time of one batch."""

icra = Marine(
    vessels=7, buoys=8, vehicle="dot", space="discrete", slots=10, reach=15.0, noise=0.0, rules=False, size=50.0,
    distance=40.0, first_distance=30.0, apart=5.0, time_limit=180.0, vortices=8, step_reward=-1.0, hit_reward=-50.0,
    goal_reward=100.0,
)  # fmt: skip
iros = Marine(
    vessels=1, buoys=8, vehicle="dot", space="discrete", sensing="sonar", reach=10.0, rules=False,
    size=50.0, distance=30.0, first_distance=20.0, buoy_radius=(1.0, 3.0), vortices=6, control_dt=1.0,
    step_reward=-1.0, hit_reward=-50.0, goal_reward=100.0,
)  # fmt: skip
discrete = Marine(space="discrete")
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
    "marine-iqn": replace(short, task=discrete, learner=Iqn(**OFF_POLICY_FAST)),
    "marine-rainbow": replace(marine, task=discrete, learner=Rainbow(**OFF_POLICY_FAST)),
    "marine-dqn": replace(short, task=discrete, learner=Dqn(**OFF_POLICY_FAST)),
    "marine-pqn": replace(marine, task=discrete, learner=Pqn(worlds=256, td_lambda=0.9), steps=3_000_000),
    "marine-icra": replace(marine, task=icra, learner=Iqn(**OFF_POLICY_FAST, cvar_distance=10.0), steps=2_000_000),
    "marine-iros": replace(marine, task=iros, learner=Iqn(**OFF_POLICY_FAST, cvar_distance=10.0), steps=2_000_000),
}

COMPARISONS: dict[str, tuple[str, ...]] = {
    "marine": ("marine", *(f"marine-{name}" for name in ("sac", "td3", "ddpg", "iqn", "rainbow", "dqn", "pqn"))),
}
"""Presets whose agents sail the same worlds."""
