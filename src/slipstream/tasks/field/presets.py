"""Presets of the field robot."""

import math
from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ...learn.ppo import Ppo
from ...sensors.lidar import Lidar
from .settings import Crop, FieldReward, Terrain
from .task import Field

ORDER = 3
TASK = Field

hard = Field(
    max_rows=3,
    memory_cells=0,
    odometry=True,
    time_limit=300.0,
    reward=FieldReward(command=-0.1, touch=-4.0, lost=-4.0, penalty_growth=4.0),
    crop=Crop(
        row_spacing=(1.1, 1.4),
        row_length=(2.5, 5.0),
        bend=(0.0, 0.2),
        curvature=(0.0, 0.06),
        missing=(0.0, 0.1),
        gaps=(0.0, 0.05),
        ragged_ends=1,
    ),
    terrain=Terrain(slope=(0.0, 0.15), slip=(0.0, 0.2)),
    lidar=Lidar(noise=0.01, dropout=0.02),
)
# Increments of four physics steps, as the original's decisions make; speed toward the waypoint is divided by the time
# between decisions.
original = Field(
    crop=Crop(plant_radius=0.22),
    control_rate=30,
    substeps=4,
    steering_step=math.radians(8.0),
    memory_step=0.02,
    time_limit=300.0,
    lost_distance=1.8,
    midway_starts=0.0,
    reward=FieldReward(
        progress=1.5, waypoint=10.0 / 3.0, finish=0.0, touch=-10.0, lost=-10.0, late=-10.0, distance=-0.1,
        command=-0.1, step=0.0,
    ),
)  # fmt: skip
ppo = Ppo(worlds=1024, hidden_sizes=(128, 128), learning_rate_schedule="adaptive", target_kl=0.02, entropy_coef=0.005)
field = Experiment(task=Field(), learner=ppo, steps=8_000_000)
# What the critic knows (where the waypoint is, whether the queue is right) is what a robot has to remember: the memory
# learns to tell it.
recurrent = replace(
    ppo, memory="gru", memory_size=96, worlds=512, rollout_length=64, sequence_length=64, epochs=2, minibatches=8,
    shuffle_block=32, discount=0.995, state_estimation_coef=1.0, target_kl=0.015, target_kl_final_fraction=0.15,
    anneal_start=0.3, entropy_coef_final_fraction=0.0,
)  # fmt: skip
# Fine-tunes a run of field-hard (--init-from): penalties that outweigh what a discounted reward gains by hurry.
careful = replace(
    recurrent, learning_rate=3e-4, target_kl=0.006, target_kl_final_fraction=0.3, entropy_coef=0.0,
)  # fmt: skip

PRESETS: dict[str, Experiment[Any, Any]] = {
    "field": field,
    "field-hard": Experiment(task=hard, learner=recurrent, steps=36_000_000, average=0.2),
    "field-hard-careful": Experiment(
        task=replace(hard, reward=FieldReward(command=-0.1, touch=-120.0, lost=-200.0)),
        learner=careful,
        steps=8_000_000,
        average=0.3,
    ),
    # The network and settings that the original was trained with, by Stable-Baselines3.
    "field-original": Experiment(
        task=original,
        learner=Ppo(
            worlds=128, rollout_length=256, epochs=10, minibatches=128, shuffle_block=1, learning_rate=2e-4,
            learning_rate_schedule="constant", entropy_coef=0.01, value_coef=2.0, hidden_sizes=(256, 128, 64),
            normalize_observations=False,
        ),
        steps=12_000_000,
        devices=1,
    ),
}  # fmt: skip
