"""The presets of the race."""

from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ...learn.ppo import Ppo
from ...learn.shac import Shac
from ...sensors.camera import CameraSettings
from .task import RaceReward, Racing, Start

ORDER = 0
TASK = Racing

# By PPO: what other trainers are compared with.
race = Experiment(
    task=Racing(
        train_time_limit=8.0,
        reward=RaceReward(progress=1.0, gate=1.0, gate_offset=0.5, miss=-5.0, crash=-5.0),
    ),
    learner=Ppo(
        worlds=2048,
        rollout_length=32,
        epochs=2,
        minibatches=8,
        learning_rate=1e-3,
        learning_rate_schedule="adaptive",
        target_kl=0.03,
        target_kl_final_fraction=0.1,
        anneal_start=0.5,
    ),
    steps=48_000_000,
)
# 50 actions a second instead of 100: the same horizon in seconds with half the steps, so twice the flights in a
# training. The margin keeps its lines clear of the frames.
racing_ppo = replace(
    race,
    task=replace(race.task, control_rate=50, gate_margin=0.02),
    learner=replace(race.learner, discount=0.98, gae_lambda=0.9, target_kl_final_fraction=0.03, anneal_start=0.75),
    steps=92_000_000,
    # Single policies of the second half differ by several per cent in success rate; their average less.
    average=0.5,
)
# By gradients through the physics: a window is 1.28 s. Shorter episodes practice starts more.
racing = replace(
    racing_ppo,
    task=replace(racing_ppo.task, train_time_limit=4.0),
    learner=Shac(),
    steps=8_000_000,
    average=0.1,
)

PRESETS: dict[str, Experiment[Any, Any]] = {
    "racing": racing,
    "racing-demo": racing,
    "racing-random-tracks": replace(racing, task=replace(racing.task, track="generated"), steps=12_000_000),
    "racing-vision": replace(
        race,
        task=replace(
            race.task,
            camera=CameraSettings("depth", resolution=40, interval=4),
            start=Start(tilt=0.3, yaw=0.4),
        ),
        learner=replace(race.learner, worlds=512, hidden_sizes=(128, 128), state_estimation_coef=1.0),
        steps=40_000_000,
    ),
    "racing-ppo": racing_ppo,
    "racing-random-tracks-ppo": replace(race, task=replace(race.task, track="generated"), steps=60_000_000),
}
