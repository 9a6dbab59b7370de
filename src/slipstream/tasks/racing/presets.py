"""The presets of the race."""

from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ...learn.ppo import Ppo
from ...learn.shac import Shac
from ...sensors.camera import CameraSettings
from ...sensors.noise import SensorNoise
from .settings import RaceReward, Randomization, Start
from .task import Racing

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
    steps=6_000_000,
    average=0.1,
)

# What a real vehicle differs by, and PX4's controller between the policy and the motors. Sensors err as those of the
# MuJoCo plant do.
randomized = replace(
    racing,
    task=replace(
        racing.task,
        controller="px4",
        gate_margin=0.04,
        randomize=Randomization(
            mass=0.1, thrust=0.1, inertia=0.2, motor_lag=0.3, drag=0.3, gust_std=0.3, max_action_delay=1
        ),
        sensor_noise=SensorNoise(
            position=0.02,
            velocity=0.03,
            attitude=0.002,
            body_rates=0.01,
            position_bias=0.05,
            velocity_bias=0.02,
            attitude_bias=0.005,
            body_rates_bias=0.002,
        ),
    ),
    steps=7_000_000,
)

CAMERA = CameraSettings("depth", resolution=40, interval=2)
CAMERA_START = Start(tilt=0.3, yaw=0.4)
# The actor begins with the true state instead of its prediction: a drone that flies gates sees what it has to predict.
vision = replace(
    racing,
    task=replace(racing.task, camera=CAMERA, start=CAMERA_START),
    learner=Shac(
        minibatches=16, shuffle_block=16, critic_learning_rate=2e-3, state_estimation_coef=1.0, teacher_forcing=0.6
    ),
    steps=12_000_000,
)

PRESETS: dict[str, Experiment[Any, Any]] = {
    "racing": racing,
    "racing-demo": racing,
    "racing-random-tracks": replace(racing, task=replace(racing.task, track="generated"), steps=12_000_000),
    "racing-randomized": randomized,
    "racing-vision": vision,
    "racing-ppo": racing_ppo,
    "racing-vision-ppo": replace(
        race,
        task=replace(race.task, camera=replace(CAMERA, interval=4), start=CAMERA_START),
        learner=replace(race.learner, worlds=512, hidden_sizes=(128, 128), state_estimation_coef=1.0),
        steps=40_000_000,
    ),
    "racing-random-tracks-ppo": replace(race, task=replace(race.task, track="generated"), steps=60_000_000),
}
