"""Learning from images alone: a dot is moved onto another one by what a camera sees, by three seeds each."""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.spaces import Box
from slipstream.core.task import Spec, State, Task
from slipstream.evaluation.pilot import trained_pilot
from slipstream.evaluation.runner import run_episodes
from slipstream.learn.compiled import Trainer
from slipstream.learn.ddpg import Td3
from slipstream.learn.ppo import Ppo
from slipstream.learn.sac import Sac
from slipstream.plants.fast import FastPlant

SEEDS, NEAR = 3, 0.15


@dataclass(frozen=True)
class Dots(Task[State]):
    """A red dot has to be moved onto a green one; only the image shows where they are."""

    size: int = 32
    length: int = 30

    @cached_property
    def spec(self) -> Spec:
        return Spec(1, Box(2), 0.1, image_shape=(self.size, self.size, 3))

    def reset(self, rng: Rng) -> State:
        parts = []
        for _ in range(4):
            part, rng = rng.uniform(-0.8, 0.8)
            parts.append(part)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return State(tuple(parts[:2]), tuple(parts[2:]), zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state: State, action) -> State:
        body = tuple(jnp.clip(p + 0.15 * jnp.clip(action[k], -1.0, 1.0), -1.0, 1.0) for k, p in enumerate(state.body))
        gap = jnp.sqrt(sum((a - b) ** 2 for a, b in zip(body, state.world, strict=True)) + 1e-9)
        step = state.step + 1
        return replace(
            state, body=body, progress=gap, rng=state.rng.bits()[1], step=step, reward=-gap + (gap < NEAR),
            truncated=step >= self.length,
        )  # fmt: skip

    def observe(self, state: State):
        return jnp.zeros(1)

    def image(self, state: State):
        at = (jnp.arange(self.size) + 0.5) * (2.0 / self.size) - 1.0

        def dot(position):
            return 255 * ((at[:, None] - position[1]) ** 2 + (at - position[0]) ** 2 < NEAR**2).astype(jnp.uint32)

        return dot(state.body) | (dot(state.world) << 8)

    def episode_metrics(self, state: State):
        return {"success": (state.progress < NEAR) * 1.0}


replayed = {
    "worlds": 32, "rollout_length": 4, "gradient_steps": 16, "batch_size": 128, "capacity": 40_000, "discount": 0.95,
    "tau": 0.01, "learning_rate": 1e-3, "random_shift": 2,
}  # fmt: skip
# As DrQ-v2: two critics, three-step returns, and noise that falls.
drq = Td3(
    **replayed, n_step=3, policy_delay=1, exploration_noise=1.0, exploration_noise_end=0.1, epsilon_start=0.0,
    epsilon_end=0.0, exploration_fraction=0.5,
)  # fmt: skip
ppo = Ppo(worlds=256, rollout_length=16, minibatches=8, hidden_sizes=(128, 128), shuffle_block=8, discount=0.95)
CASES = {
    "drq-v2": (drq, 60_000),
    "sac": (Sac(**replayed, n_step=1), 60_000),
    "ppo": (ppo, 400_000),
}  # fmt: skip


@pytest.mark.learning
@pytest.mark.parametrize("name", CASES)
def test_a_dot_is_moved_onto_another_by_what_is_seen(name):
    (learner, steps), task = CASES[name], Dots()
    updates = steps // learner.steps_per_update // 10 * 10
    trainer = Trainer(task, learner, device.mesh(1), updates, SEEDS, updates // 10)
    chunk, state = trainer.compile(), trainer.start(0)
    for _ in range(10):
        state, *_ = chunk(state)
    rates = []
    for seed in range(SEEDS):
        policy = jax.tree.map(lambda leaf, seed=seed: leaf[seed], state.policy)
        done = run_episodes(task, trained_pilot(task, policy), FastPlant(), worlds=200, seed=1_000_000)
        rates.append(float(np.mean(done.metrics["success"])))
    print(name, [round(rate, 3) for rate in rates])
    assert min(rates) >= 0.95, rates
