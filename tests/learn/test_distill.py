"""Distillation: what a student learns of its teacher, who can teach, and that teachers are data."""

import json
import shutil
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.spaces import ActionSpace, Box, Discrete
from slipstream.core.struct import struct
from slipstream.core.task import Spec, State, Task
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import presets
from slipstream.learn.compiled import Trainer
from slipstream.learn.distill import Distill
from slipstream.learn.dqn import Dqn
from slipstream.learn.ppo import Ppo
from slipstream.learn.teacher import Teacher, teacher_head
from slipstream.pipeline.training import prepared, with_teacher
from slipstream.runs import checkpoint
from slipstream.runs.run import Run
from slipstream.runs.train import train, trainer_of
from slipstream.tasks.racing import Racing


@dataclass(frozen=True)
class Reach(Task[State]):
    """Move to a target on a line. It is always observed, only in the first step, or only seen by a camera."""

    shown: str = "always"
    space: ActionSpace = Box(1)
    agents: int = 1
    speed: float = 0.2
    length: int = 8

    @cached_property
    def spec(self) -> Spec:
        camera = self.shown == "camera"
        image = ((8, 8, 1), 2) if camera else (None, 1)
        return Spec(3, self.space, 0.1, self.agents, *image, privileged_size=int(camera))

    @property
    def shape(self):
        return (self.agents,) if self.agents > 1 else ()

    def reset(self, rng: Rng) -> State:
        word, rng = rng.bits()
        bytes_ = (word >> (8 * jnp.arange(self.agents, dtype=jnp.uint32))) & 0xFF
        target = (bytes_.astype(jnp.int32).astype(jnp.float32) / 127.5 - 1.0).reshape(self.shape)
        zero, no = jnp.zeros(self.shape), jnp.zeros(self.shape, jnp.bool_)
        return State(target, zero, None, rng, jnp.int32(0), zero, no, no)

    def step(self, state: State, action) -> State:
        return self.judge(state, self.move(state, action))

    def move(self, state: State, action):
        low, high = self.space.bounds
        push = 2.0 * (jnp.asarray(action, jnp.float32) - low) / (high - low) - 1.0
        return state.body + self.speed * push.reshape(self.shape)

    def judge(self, state: State, after) -> State:
        step = state.step + 1
        over = jnp.broadcast_to(step >= self.length, self.shape)
        reward = -jnp.abs(state.world - after)
        return replace(state, body=after, rng=state.rng.bits()[1], step=step, reward=reward, truncated=over)

    def observe(self, state: State):
        known = {"always": True, "first": state.step == 0, "camera": False}[self.shown]
        target = jnp.where(known, state.world, 0.0)
        return jnp.stack([state.body, target, jnp.broadcast_to(known, self.shape) * 1.0], -1)

    def privileged_observation(self, state: State):
        return state.world[..., None]

    def image(self, state: State):
        return jnp.broadcast_to(127.5 * (state.world + 1.0), (8, 8)).astype(jnp.uint8)

    def episode_metrics(self, state: State):
        return {"success": (jnp.abs(state.body - state.world) < 0.2) * 1.0}


@struct
class Spring:
    """A policy: a = gain · (target − position)."""

    gain: jax.Array

    def start(self, *batch: int) -> None:
        """No memory."""

    def act(self, observation, memory=None, image_features=None):
        return self.gain * (observation[..., 1:2] - observation[..., :1]), memory


@dataclass(frozen=True)
class Springs:
    """What the run of such a policy says it was trained by."""

    gain: float = 0.8

    def policy(self, spec: Spec, key=None) -> Spring:
        return Spring(jnp.float32(self.gain))


SETTINGS = {"worlds": 64, "rollout_length": 16, "minibatches": 8, "hidden_sizes": (32,), "learning_rate": 3e-3}


def student_of(teacher_task=Reach(), **settings) -> Distill:
    return Distill(**SETTINGS | settings).with_teacher(Teacher("springs", teacher_task, Springs()))


def trained(task, learner, updates, seed=0):
    """The state and the last metrics of a training, and its compiled program."""
    trainer = Trainer(task, learner, device.mesh(1), updates=updates, chunk_length=updates // 4)
    chunk, state = trainer.compile(), trainer.start(seed)
    for _ in range(4):
        state, metrics, stats = chunk(state)
    return trainer, chunk, state, jax.device_get(metrics), jax.device_get(stats.means())


@pytest.fixture(scope="module")
def two_agents():
    """A student in worlds of two agents, whose teacher is linear."""
    return trained(Reach(agents=2), student_of(Reach(agents=2), worlds=32), 40)


def actions_of(policy):
    """Actions at a few positions and targets."""
    position, target = jnp.array([0.0, 0.2, -0.1, 0.2]), jnp.array([-0.6, 0.6, -0.5, 0.2])
    observation = jnp.stack([position, target, jnp.ones(4)], -1)
    return np.asarray(policy.act(observation)[0][:, 0]), np.asarray(target - position)


def test_a_linear_teacher_is_recovered(two_agents):
    *_, state, metrics, means = two_agents
    actions, gaps = actions_of(jax.device_get(state.policy))
    np.testing.assert_allclose(actions, 0.8 * gaps, atol=0.03)
    assert metrics["imitation_loss"] < 1e-3
    assert means["success"] > 0.8


def test_one_program_serves_two_teachers(two_agents):
    trainer, chunk, *_ = two_agents
    state = trainer.start(0)
    state = replace(state, teacher=replace(state.teacher, policy=Spring(jnp.float32(-0.5))))
    state = jax.device_put(state, trainer.shardings)
    for _ in range(4):
        state, *_ = chunk(state)
    actions, gaps = actions_of(jax.device_get(state.policy))
    np.testing.assert_allclose(actions, -0.5 * gaps, atol=0.03)
    assert float(state.teacher.policy.gain) == -0.5


def test_a_student_on_two_devices_learns_the_same_to_rounding():
    learner = student_of(worlds=32, epochs=1, minibatches=1, exploration_noise=1e-6)
    policies = []
    for devices in (1, 2):
        trainer = Trainer(Reach(), learner, device.mesh(devices), updates=2, chunk_length=2)
        policies.append(jax.device_get(trainer.compile()(trainer.start(0))[0].policy))
    # Each device shuffles its own samples: with one minibatch the sums have the same terms.
    for one, two in zip(*map(jax.tree.leaves, policies), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_a_student_with_a_memory_recalls_what_its_teacher_sees():
    learner = student_of(memory="gru", memory_size=16, sequence_length=8, minibatches=4, shuffle_block=4)
    *_, metrics, means = trained(Reach("first"), learner, 80)
    assert metrics["imitation_loss"] < 0.02, "without a memory about 0.1"
    assert means["success"] > 0.6


def test_a_student_with_a_camera_learns_from_an_aggregate_to_see_what_its_teacher_knows():
    learner = student_of(
        minibatches=4, shuffle_block=16, state_estimation_coef=1.0, aggregate=2, epochs=1, random_shift=1
    )
    _, _, state, metrics, means = trained(Reach("camera"), learner, 40)
    assert state.aggregate.image.shape[:2] == (64 * 16 // 2, 2)
    assert metrics["imitation_loss"] < 0.03, "blind it is 0.2"
    assert metrics["state_estimation_loss"] < 0.2
    assert means["success"] > 0.7


def test_teachers_of_all_kinds_give_actions_or_logits():
    spec = Spec(3, Discrete(4), 0.1)
    observation = jax.random.normal(jax.random.key(0), (5, 3))
    for learner in (Dqn(hidden_sizes=(8,)), Ppo(hidden_sizes=(8,))):
        policy = learner.policy(spec)
        head = teacher_head(policy, spec.action, observation)
        assert head.shape == (5, 4)
        np.testing.assert_array_equal(jnp.argmax(head, -1), policy.act(observation)[0])


# Who can teach


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        (Teacher("run", Reach(agents=2), Springs()), "knows worlds of 2 agents, and here a world has 1"),
        (Teacher("run", Reach(space=Discrete(3)), Springs()), "acts by Discrete.*this task's actions are Box"),
        (Teacher("run", Reach("camera"), Springs()), "sees by a camera itself"),
        (Teacher("run", Reach(speed=0.3), Springs()), "moves otherwise: its speed is 0.3, here 0.2"),
        (Teacher("run", Reach(), Ppo(memory="gru")), "has a memory of its own"),
        (Teacher("run", Racing(), Ppo()), "was trained on racing .*, and this task is reach"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_in_words(teacher, words):
    with pytest.raises(ValueError, match=f"teacher of run does not fit: it .*{words}"):
        teacher.check(Reach("first"))


def test_a_race_names_the_setting_that_makes_the_difference():
    vision, racing = presets()["racing-vision"], presets()["racing"]
    Teacher("run", racing.task, racing.learner).check(vision.task)
    for task, words in (
        (replace(racing.task, control_rate=100), "acts 100 times a second, and this task 50 times"),
        (replace(racing.task, vehicle="iris"), "its vehicle is iris, here racer$"),
        (
            replace(racing.task, track="generated"),
            "cannot observe the states of this task: its track is generated, here seven$",
        ),
        (presets()["racing-randomized"].task, "moves otherwise: its controller is px4, here simple$"),
    ):
        with pytest.raises(ValueError, match=words):
            Teacher("run", task, racing.learner).check(vision.task)


def test_a_student_without_a_teacher_and_a_teacher_without_a_student_are_refused(tmp_path):
    with pytest.raises(ValueError, match="name the run of a trained policy by --teacher RUN"):
        Distill(**SETTINGS).check(Reach(), 1)
    run = Run.create(tmp_path / "run", presets()["racing"])
    with pytest.raises(ValueError, match="ppo learns without a teacher; add --learner distill"):
        with_teacher(Experiment(Racing(), Ppo()), run)
    with pytest.raises(ValueError, match="has no checkpoint yet; train it first"):
        with_teacher(Experiment(Racing(), Distill()), run)


# Runs

PPO = Ppo(worlds=8, rollout_length=8, epochs=1, minibatches=1, hidden_sizes=(8,), shuffle_block=8)
STUDENT = Experiment(
    presets()["cartpole"].task,
    Distill(worlds=16, rollout_length=8, epochs=1, minibatches=2, hidden_sizes=(8,), aggregate=2),
    steps=16 * 8 * 8 * 4,
    devices=2,
)


@pytest.fixture
def teacher_run(tmp_path):
    """A run whose policy has its first weights."""
    run = Run.create(tmp_path / "teacher", Experiment(STUDENT.task, PPO, steps=64, average=0.0))
    run.save(0, trainer_of(run.experiment).start(7))
    return run


def weights(run):
    state = run.load(trainer_of(run.experiment).shape)[1]
    return {name: checkpoint.to_numpy(leaf) for name, leaf in checkpoint.flat(state).items()}


def test_a_student_resumes_bit_for_bit_without_the_run_of_its_teacher(tmp_path, teacher_run):
    experiment = prepared(STUDENT, teacher=teacher_run)
    stored = experiment.as_dict()
    assert stored["teacher"]["run"] == str(teacher_run.folder)
    assert Experiment.from_dict(json.loads(json.dumps(stored))) == experiment
    once, twice = (Run.create(tmp_path / name, experiment) for name in ("once", "twice"))
    train(once)
    looks = []
    train(twice, watch=looks.append, stop=lambda: len(looks) == 2)
    theirs = weights(teacher_run)[".policy.actor.layers[0].weight"]
    shutil.rmtree(teacher_run.folder)
    train(twice, resume=True)
    whole, parts = weights(once), weights(twice)
    assert whole.keys() == parts.keys()
    for name, leaf in whole.items():
        np.testing.assert_array_equal(leaf, parts[name], err_msg=name)
    np.testing.assert_array_equal(whole[".teacher.policy.actor.layers[0].weight"], theirs)
    assert np.any(whole[".policy.actor.layers[0].weight"] != weights(once)[".average.actor.layers[0].weight"])
