"""What every learner must do with every action space it takes: start, update, stay finite, save a policy that acts."""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from slipstream.core.task import Spec, State, Task
from slipstream.experiment.registry import LEARNERS
from slipstream.learn.compiled import Learner, Trainer
from slipstream.learn.distill import Distill
from slipstream.learn.teacher import Teacher

SPACES = {"box": Box(2), "discrete": Discrete(5), "multidiscrete": MultiDiscrete((3, 2))}
CONTINUOUS, DISCRETE = {"shac", "sac", "td3", "ddpg", "ac-iqn"}, {"dqn", "rainbow", "iqn", "pqn"}
SMALL = {
    "worlds": 16, "rollout_length": 8, "hidden_sizes": (16,), "minibatches": 2, "epochs": 1, "shuffle_block": 16,
    "gradient_steps": 2, "batch_size": 32, "capacity": 4096, "learning_starts": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Walk(Task[State]):
    """Walk on a line towards zero; every action space moves the same way."""

    space: ActionSpace = Box(1)

    @cached_property
    def spec(self) -> Spec:
        return Spec(2, self.space, 0.1)

    def reset(self, rng: Rng) -> State:
        start, rng = rng.uniform(-1.0, 1.0)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return State(None, start, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state: State, action) -> State:
        return self.judge(state, self.move(state, action))

    def move(self, state: State, action):
        low, high = self.space.bounds
        return state.body + 0.2 * (jnp.mean((jnp.asarray(action, jnp.float32) - low) / (high - low)) - 0.5)

    def judge(self, state: State, after) -> State:
        step = state.step + 1
        return replace(
            state, body=after, rng=state.rng.bits()[1], step=step, reward=jnp.abs(state.body) - jnp.abs(after),
            terminated=jnp.abs(after) > 2.0, truncated=step >= 20,
        )  # fmt: skip

    def differentiable_state(self, state: State):
        return state.body

    def with_differentiable_state(self, state: State, part) -> State:
        return replace(state, body=part)

    def smooth_reward(self, before: State, after: State):
        return -(after.body**2)

    def observe(self, state: State):
        return jnp.stack([state.body, jnp.float32(1.0)])

    def episode_metrics(self, state: State):
        return {"success": (jnp.abs(state.body) < 0.1).astype(jnp.float32)}


def small(name, task):
    kind = LEARNERS[name]
    learner = kind(**{key: value for key, value in SMALL.items() if key in kind.__dataclass_fields__})
    return learner.with_teacher(Teacher("teacher", task, small("ppo", task))) if kind is Distill else learner


def takes(name, space):
    return name in ("ppo", "distill") or (name in CONTINUOUS) == (space == "box")


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_trains_every_action_space_it_takes_and_refuses_the_others(name, space):
    task = Walk(SPACES[space])
    learner = small(name, task)
    assert isinstance(learner, Learner)
    if not takes(name, space):
        with pytest.raises(ValueError, match="take|choose"):
            learner.check(task, 1)
        return
    trainer = Trainer(task, learner, device.mesh(1), updates=4, chunk_length=2)
    chunk, state = trainer.compile(), trainer.start(0)
    before = jax.device_get(state.policy)
    for _ in range(2):
        state, metrics, stats = chunk(state)
    metrics, stats, after = jax.device_get((metrics, stats, state.policy))
    assert {"loss", "grad_norm", "step_reward"} <= set(metrics)
    assert all(np.isfinite(value) for value in metrics.values())
    assert stats.count["success"] > 0
    moved = [not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
    assert any(moved)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


@pytest.mark.parametrize(("name", "space"), [(n, s) for n in LEARNERS for s in SPACES if takes(n, s)])
def test_a_policy_is_made_without_a_trainer_and_acts_within_its_space(name, space):
    task = Walk(SPACES[space])
    learner = small(name, task)
    policy = learner.policy(task.spec)
    trained = jax.eval_shape(lambda: learner.init(task, jnp.uint32(0), jnp.arange(2)).policy)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), policy) == jax.tree.map(lambda x: (x.shape, x.dtype), trained)
    observation = jax.random.normal(jax.random.key(1), (7, task.spec.observation))
    action, memory = policy.act(observation, policy.start())
    assert memory == policy.start()
    assert action.shape == (7, *task.spec.action.shape)
    low, high = task.spec.action.bounds
    assert (np.asarray(action) >= low).all() and (np.asarray(action) <= high).all()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_training_state_says_which_leaves_are_split_over_devices(name):
    task = Walk(SPACES["box" if takes(name, "box") else "discrete"])
    learner = small(name, task)
    shape = jax.eval_shape(lambda: learner.init(task, jnp.uint32(0), jnp.arange(4)))
    fields = type(shape).__dataclass_fields__
    split = {field for field in fields if fields[field].metadata.get("per_world")}
    assert {"worlds", "rngs"} <= split
    for field in split:
        assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(getattr(shape, field)))
    assert "policy" not in split
