"""PPO with a recurrent policy: what it remembers, where it forgets, and that it learns what no other policy can."""

from dataclasses import dataclass, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from slipstream.core.task import Spec, State, Task
from slipstream.evaluation.pilot import trained_pilot
from slipstream.evaluation.runner import run_episodes
from slipstream.experiment.experiment import Experiment
from slipstream.learn.compiled import Trainer
from slipstream.learn.ppo import Ppo, explore
from slipstream.learn.rollout import Acting, rollout
from slipstream.plants.fast import FastPlant
from slipstream.policy.memory import Gru
from slipstream.runs.train import trainer_of

LENGTH = 4
"""Steps of an episode of the task below; a step to restart comes after them."""


@dataclass(frozen=True)
class Recall(Task[State]):
    """A sign is shown in the first step; the reward of the last step is for having said it again."""

    space: ActionSpace = Discrete(2)
    agents: int = 1
    camera: bool = False
    delay: int = LENGTH

    @cached_property
    def spec(self) -> Spec:
        image = ((8, 8, 1), 2) if self.camera else (None, 1)
        return Spec(2, self.space, 0.1, self.agents, *image)

    @property
    def shape(self):
        return (self.agents,) if self.agents > 1 else ()

    def reset(self, rng: Rng) -> State:
        word, rng = rng.bits()
        sign = jnp.where((word >> jnp.arange(self.agents, dtype=jnp.uint32)) & 1 == 1, 1.0, -1.0)
        zero, no = jnp.zeros(self.shape), jnp.zeros(self.shape, jnp.bool_)
        return State(None, sign.reshape(self.shape), zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state: State, action) -> State:
        step = state.step + 1
        if isinstance(self.space, Box):
            said = jnp.sign(action[..., 0])
        else:
            said = 2.0 * jnp.asarray(action[..., 0] if isinstance(self.space, MultiDiscrete) else action) - 1.0
        over = jnp.broadcast_to(step >= self.delay, self.shape)
        right = over & (said == state.body)
        return replace(
            state, progress=right * 1.0, rng=state.rng.bits()[1], step=step, reward=jnp.where(right, 1.0, 0.0),
            terminated=over,
        )  # fmt: skip

    def observe(self, state: State):
        sign = jnp.where((state.step == 0) & (not self.camera), state.body, 0.0)
        return jnp.stack([sign, jnp.broadcast_to(state.step == self.delay - 1, self.shape) * 1.0], -1)

    def image(self, state: State):
        lit = jnp.where((state.step == 0) & (state.body > 0.0), 255, 0)
        return jnp.broadcast_to(lit[..., None, None], (*self.shape, 8, 8)).astype(jnp.uint8)

    def episode_metrics(self, state: State):
        return {"success": state.progress}


TASKS = {
    "discrete": Recall(),
    "multidiscrete": Recall(MultiDiscrete((2, 3))),
    "box": Recall(Box(1)),
    "agents": Recall(agents=3),
    "camera": Recall(camera=True),
}
SETTINGS = {
    "worlds": 16, "rollout_length": 16, "sequence_length": 8, "epochs": 1, "minibatches": 2, "shuffle_block": 4,
    "hidden_sizes": (16,), "memory": "gru", "memory_size": 8,
}  # fmt: skip


def numpy_gru(gru, x, h):
    """PyTorch's gates, written down once more."""
    size, sigmoid = h.shape[-1], lambda v: 1.0 / (1.0 + np.exp(-v))
    seen = x @ np.asarray(gru.inputs.weight) + np.asarray(gru.inputs.bias)
    kept = h @ np.asarray(gru.recurrent.weight) + np.asarray(gru.recurrent.bias)
    r, z = (sigmoid(seen[:, k * size : (k + 1) * size] + kept[:, k * size : (k + 1) * size]) for k in (0, 1))
    return (1.0 - z) * np.tanh(seen[:, 2 * size :] + r * kept[:, 2 * size :]) + z * h


def test_a_sequence_is_remembered_step_by_step_and_forgotten_after_an_end():
    gru = Gru.init(jax.random.key(0), 3, 5)
    gru = replace(gru, recurrent=replace(gru.recurrent, bias=jax.random.normal(jax.random.key(3), (15,))))
    x, start = jax.random.normal(jax.random.key(1), (4, 7, 3)), jax.random.normal(jax.random.key(2), (4, 5))
    ended = np.zeros((4, 7), bool)
    ended[1, 2] = ended[2, 6] = ended[3, 0] = True
    found, memory = gru.over_sequence(x, start, jnp.asarray(ended)), np.asarray(start)
    for t in range(7):
        after = numpy_gru(gru, np.asarray(x[:, t]), memory)
        np.testing.assert_allclose(found[:, t], after, atol=1e-5)
        np.testing.assert_allclose(gru(x[:, t], jnp.asarray(memory, jnp.float32)), after, atol=1e-5)
        memory = np.where(ended[:, t, None], 0.0, after)


@pytest.mark.parametrize("burn_in", [0, 8])
@pytest.mark.parametrize("name", TASKS)
def test_the_loss_sees_the_memory_that_the_robot_had(name, burn_in):
    """Before the first gradient step, the policy finds every action as probable as when it was taken: also with a
    burn-in, whose first sequences reach back into the rollout before."""
    task, learner = TASKS[name], Ppo(**SETTINGS, burn_in=burn_in, normalize_observations=False, learning_rate=1e-9)
    trainer = Trainer(task, learner, device.mesh(1), updates=4, chunk_length=2)
    chunk, train = trainer.compile(), trainer.start(0)
    assert np.shape(train.memory)[-1] == 8
    # A head of some size, so that actions depend on what is remembered.
    *layers, head = train.policy.actor.layers
    actor = replace(train.policy.actor, layers=(*layers, replace(head, weight=50.0 * head.weight)))
    train = replace(train, policy=replace(train.policy, actor=actor))
    for _ in range(2):
        train, metrics, stats = chunk(train)
        assert abs(float(metrics["kl"])) < 1e-7
        assert float(metrics["clip_fraction"]) == 0.0
    assert float(stats.count["success"]) > 0


def test_what_is_remembered_belongs_to_one_episode():
    """Episodes with the same signs are remembered alike, whatever was before them."""
    task, learner = Recall(), Ppo(**SETTINGS)
    train = learner.init(task, jnp.uint32(0), jnp.arange(32))
    acting = Acting(train.rngs, memory=train.policy.start(32))
    _, after, transitions, *_ = jax.jit(
        lambda worlds, acting: rollout(task, partial(explore, train.policy), worlds, acting, 3 * (LENGTH + 1))
    )(train.worlds, acting)
    observation, memory = np.asarray(transitions.observation), np.asarray(transitions.memory)
    starts = range(0, 3 * (LENGTH + 1), LENGTH + 1)
    for sign in (-1.0, 1.0):
        ends = [memory[s + LENGTH - 1][observation[s, :, 0] == sign] for s in starts]
        assert len(np.concatenate(ends)) > 3
        np.testing.assert_allclose(
            np.concatenate(ends), np.broadcast_to(ends[0][0], np.concatenate(ends).shape), atol=1e-6
        )
    # The next step begins an episode.
    np.testing.assert_array_equal(after.memory, 0.0)


@pytest.mark.parametrize(
    "name", [n if n in ("discrete", "camera") else pytest.param(n, marks=pytest.mark.learning) for n in TASKS]
)
def test_only_a_policy_with_memory_recalls_what_it_saw(name):
    task, found = TASKS[name], {}
    for memory in ("gru", "none"):
        learner = Ppo(**SETTINGS | {"worlds": 128, "memory": memory, "epochs": 2}, learning_rate=1e-2)
        trainer = trainer_of(Experiment(task, learner, steps=40 * 2048, devices=1), 8)
        chunk, train = trainer.compile(), trainer.start(0)
        for _ in range(5):
            train, *_ = chunk(train)
        pilot = trained_pilot(task, jax.device_get(train.policy))
        found[memory] = np.mean(run_episodes(task, pilot, FastPlant(), 256, seed=9).metrics["success"])
    assert found["gru"] > 0.97
    assert 0.3 < found["none"] < 0.7


def test_sequences_that_do_not_divide_are_refused_with_the_settings_to_change():
    task = Recall(camera=True)
    with pytest.raises(ValueError, match="change learner.sequence-length"):
        Ppo(**SETTINGS | {"sequence_length": 6}).check(task, 1)
    with pytest.raises(ValueError, match="learner.burn-in"):
        Ppo(**SETTINGS, burn_in=3).check(task, 1)
    with pytest.raises(ValueError, match="sequences"):
        Ppo(**SETTINGS | {"shuffle_block": 64}).check(task, 1)
    with pytest.raises(ValueError, match="burn_in"):
        Ppo(**SETTINGS, burn_in=9)
    with pytest.raises(ValueError, match="memory"):
        Ppo(memory="lstm")  # pyright: ignore[reportArgumentType]
