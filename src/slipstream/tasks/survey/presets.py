"""How survey missions are trained."""

from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ...learn.ppo import Ppo
from ...learn.shac import Shac
from ...sensors.camera import CameraSettings
from .task import Survey

ORDER = 1
TASK = Survey

survey = Experiment(
    task=Survey(),
    learner=Ppo(
        worlds=128,
        rollout_length=32,
        epochs=2,
        minibatches=8,
        learning_rate_schedule="adaptive",
        target_kl=0.02,
        anneal_start=0.5,
        discount=0.996,
        hidden_sizes=(128, 128),
    ),
    steps=1_000_000,
)
mission = replace(survey, learner=replace(survey.learner, target_kl_final_fraction=0.03), steps=3_000_000)
# By gradients through the flight, the safety filter included. What a mission counts (areas, targets found) has none.
dwell = Shac(worlds=32, rollout_length=32)
by_camera = Survey(mission="dwell", camera=CameraSettings("rgb", resolution=40, interval=4))

PRESETS: dict[str, Experiment[Any, Any]] = {
    "survey-transit": replace(
        mission,
        task=Survey(start_mode="both"),
        learner=Shac(worlds=32, discount=0.998, gae_lambda=0.95),
        steps=1_200_000,
    ),
    "survey-coverage": replace(mission, task=Survey(mission="coverage"), steps=2_500_000),
    "survey-search": replace(mission, task=Survey(mission="search"), steps=2_000_000),
    "survey-multi": replace(mission, task=Survey(mission="multi-objective")),
    "survey-dwell": replace(survey, task=Survey(mission="dwell"), learner=dwell, steps=300_000),
    "survey-dwell-vision": replace(
        survey,
        task=by_camera,
        learner=replace(
            dwell,
            worlds=16,
            minibatches=8,
            shuffle_block=16,
            critic_learning_rate=2e-3,
            state_estimation_coef=1.0,
            teacher_forcing=0.5,
        ),
        steps=300_000,
    ),
    "survey-transit-ppo": replace(
        mission, task=Survey(start_mode="both"), learner=replace(mission.learner, discount=0.998)
    ),
    "survey-dwell-ppo": replace(survey, task=Survey(mission="dwell")),
    "survey-dwell-vision-ppo": replace(
        survey, task=by_camera, learner=replace(survey.learner, shuffle_block=16), steps=600_000
    ),
}
