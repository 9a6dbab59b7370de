"""Classic control through gymnax: every learner reaches what is usual for it within its budget, by three seeds."""

import jax
import numpy as np
import pytest

from slipstream.core import device
from slipstream.evaluate.episode import fly, trained_pilot
from slipstream.experiment.experiment import PRESETS, classic_choices, classic_numbers
from slipstream.learn.ac_iqn import AcIqn
from slipstream.learn.compiled import Trainer
from slipstream.learn.ddpg import Ddpg, Td3
from slipstream.learn.dqn import Dqn
from slipstream.learn.iqn import Iqn
from slipstream.learn.ppo import Ppo
from slipstream.learn.pqn import Pqn
from slipstream.learn.rainbow import Rainbow
from slipstream.learn.sac import Sac
from slipstream.plants.fast import FastPlant
from slipstream.tasks.gymnax.task import Gymnax

SEEDS = 3
patient = classic_choices | {"explore_share": 0.5, "hold": 25}
long = classic_choices | {"scale": 0.1}
parallel = Pqn(worlds=32, length=32, epochs=4, minibatches=16, rate=5e-4, trace=0.95, scale=0.1, explore_share=0.3)
gradient = Ppo(worlds=16, length=128, epochs=8, minibatches=8, hidden=(64, 64), rate=1e-3)
CASES = {
    "cartpole dqn": ("cartpole", Dqn(**classic_choices), 100_000),
    "cartpole rainbow": ("cartpole", Rainbow(**classic_choices, lowest=0.0, highest=100.0), 100_000),
    "cartpole iqn": ("cartpole", Iqn(**classic_choices), 100_000),
    "cartpole ppo": ("cartpole", gradient, 100_000),
    "cartpole pqn": ("cartpole", parallel, 300_000),
    "cartpole dqn in half precision": ("cartpole", Dqn(**classic_choices, precision="bfloat16"), 100_000),
    "acrobot dqn": ("acrobot", Dqn(**long), 100_000),
    "acrobot rainbow": ("acrobot", Rainbow(**long, lowest=-10.0, highest=0.0), 100_000),
    "acrobot iqn": ("acrobot", PRESETS["acrobot"].learner, 100_000),
    "acrobot ppo": ("acrobot", gradient, 500_000),
    "mountaincar dqn": ("mountaincar", Dqn(**patient), 150_000),
    "mountaincar iqn": ("mountaincar", Iqn(**patient), 150_000),
    "pendulum sac": ("pendulum", Sac(**classic_numbers), 20_000),
    "pendulum td3": ("pendulum", Td3(**classic_numbers), 30_000),
    "pendulum ddpg": ("pendulum", Ddpg(**classic_numbers), 30_000),
    "pendulum ac-iqn": ("pendulum", AcIqn(**classic_numbers), 30_000),
}


@pytest.mark.learning
@pytest.mark.parametrize("case", CASES)
def test_a_learner_reaches_what_is_usual(case):
    name, learner, steps = CASES[case]
    task = PRESETS[name].task
    assert isinstance(task, Gymnax)
    updates = round(steps / learner.steps_per_update)
    trainer = Trainer(task, learner, device.mesh(1), updates, 1, updates)
    chunk, scores = trainer.compile(), []
    for seed in range(SEEDS):
        train, _, _ = chunk(trainer.start(seed))
        policy = jax.device_get(train.policy)
        scores.append(
            float(np.mean(fly(task, trained_pilot(task, policy), FastPlant(), 100, 77).episode_metrics["score"]))
        )
    print(f"{case}: {[round(score, 1) for score in scores]} after {steps:,} steps, {task.goal:g} wanted")
    assert np.median(scores) >= task.goal
