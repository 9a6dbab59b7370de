"""Off-policy learning from images: which frame goes with which step, how it is shifted, and what trains the encoder."""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.spaces import Box, Discrete
from slipstream.core.task import Spec, State, Task
from slipstream.evaluation.pilot import trained_pilot
from slipstream.experiment.registry import presets
from slipstream.learn.augmentation import random_shift
from slipstream.learn.compiled import Trainer
from slipstream.learn.ddpg import Ddpg, Td3
from slipstream.learn.dqn import Dqn
from slipstream.learn.pqn import Pqn
from slipstream.learn.replay import Cursor, Sampling, add_transitions, init_replay, sample
from slipstream.learn.rollout import Images, Transition
from slipstream.learn.sac import Sac

WORLDS, LENGTH, INTERVAL = 3, 4, 2


@dataclass(frozen=True)
class Lamp(Task[State]):
    """A lamp is more or less bright, which only the image shows: the action should be its brightness."""

    agents: int = 1
    length: int = 6
    interval: int = INTERVAL

    @cached_property
    def spec(self) -> Spec:
        return Spec(1, Box(1), 0.1, self.agents, image_shape=(8, 8, 3), image_interval=self.interval)

    @property
    def shape(self):
        return (self.agents,) if self.agents > 1 else ()

    def reset(self, rng: Rng) -> State:
        light, rng = rng.integer(256)
        zero, no = jnp.zeros(self.shape), jnp.zeros(self.shape, jnp.bool_)
        return State(jnp.broadcast_to(light, self.shape), zero, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state: State, action) -> State:
        step = state.step + 1
        miss = jnp.abs(action[..., 0] - (state.world / 127.5 - 1.0))
        over = jnp.broadcast_to(step >= self.length, self.shape)
        return replace(state, step=step, reward=-miss, progress=miss, rng=state.rng.bits()[1], truncated=over)

    def observe(self, state: State):
        return jnp.zeros((*self.shape, 1))

    def image(self, state: State):
        return jnp.broadcast_to(state.world[..., None, None], (*self.shape, 8, 8)).astype(jnp.uint32)

    def episode_metrics(self, state: State):
        return {"success": (state.progress < 0.3) * 1.0}


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("rollouts", [3, 11])  # not yet full, and long since overwritten
def test_a_batch_has_the_images_that_its_steps_were_decided_by(agents, rollouts):
    spec, room = Spec(1, Discrete(3), 1.0, agents, image_shape=(2, 2, 3), image_interval=INTERVAL), 16
    own = (agents,) if agents > 1 else ()
    frame = jax.ShapeDtypeStruct((WORLDS, *own, 2, 2), jnp.uint32)
    replay = init_replay(spec, WORLDS, room, False, frame)
    # Every number of an observation says when it was made, by whom, and so does every pixel.
    who = np.arange(WORLDS * agents).reshape(WORLDS, *own)
    for k in range(rollouts):
        time = (k * LENGTH + np.arange(LENGTH)).reshape(-1, *(1,) * who.ndim)
        shape = (LENGTH, *who.shape)
        no = np.zeros(shape, bool)
        transitions = Transition(
            observation=jnp.broadcast_to(jnp.asarray(100.0 * time + who)[..., None], (*shape, 3)),
            action=np.zeros(shape, np.int32), log_prob=None, value=None, reward=np.zeros(shape, np.float32),
            terminated=no, truncated=no, valid=~no,
        )  # fmt: skip
        image = jnp.asarray(100 * time[::INTERVAL] + who, jnp.uint32)
        image = jnp.broadcast_to(image[..., None, None], (*image.shape, 2, 2))
        head = jnp.int32(k * LENGTH % room)
        replay = add_transitions(replay, transitions, head, jnp.float32(1.0), Images(image, jnp.zeros(1)))
    done = rollouts * LENGTH
    cursor = Cursor(jnp.int32(done % room), jnp.int32(min(done, room)))
    batch = sample(replay, jax.random.key(1), cursor, Sampling(128, 3, 0.9))
    assert batch.image.shape == (128, 2, 2)
    for seen, image, steps in (
        (batch.observation, batch.image, 0),
        (batch.next_observation, batch.next_image, 3),
    ):
        time, person = np.divmod(np.asarray(seen[:, 0]), 100)
        np.testing.assert_array_equal(np.asarray(image[:, 0, 0]), 100 * (time // INTERVAL * INTERVAL) + person)
        assert np.all(time >= done - room + steps)


def test_an_image_is_shifted_by_at_most_so_many_pixels_and_its_border_repeated():
    image = jnp.arange(20, dtype=jnp.uint32).reshape(4, 5)
    images = jnp.broadcast_to(image, (64, 4, 5))
    shifted = np.asarray(random_shift(images, 1, jax.random.key(0)))
    padded = np.pad(np.asarray(image), 1, mode="edge")
    possible = [padded[y : y + 4, x : x + 5] for y in range(3) for x in range(3)]
    found = [[np.array_equal(one, crop) for crop in possible] for one in shifted]
    assert np.all(np.any(found, axis=1)) and np.all(np.any(found, axis=0))
    assert random_shift(images, 0, jax.random.key(0)) is images


def test_images_one_above_the_other_are_shifted_together():
    square = jnp.arange(16, dtype=jnp.uint32).reshape(4, 4)
    images = jnp.broadcast_to(jnp.concatenate([square, square + 100]), (32, 8, 4))
    shifted = np.asarray(random_shift(images, 2, jax.random.key(1)))
    np.testing.assert_array_equal(shifted[:, 4:], shifted[:, :4] + 100)
    assert len(np.unique(shifted[:, 0, 0])) > 3


SMALL = {
    "worlds": 16, "rollout_length": 4, "gradient_steps": 4, "batch_size": 32, "capacity": 4000, "hidden_sizes": (32,),
    "learning_starts": 64, "learning_rate": 2e-3, "discount": 0.0, "n_step": 1, "random_shift": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def batch():
    spec = Lamp().spec
    noise = jax.random.uniform(jax.random.key(3), (16, 8, 8), maxval=2.0**24).astype(jnp.uint32)
    replay = init_replay(spec, 4, 8, False, jax.ShapeDtypeStruct((4, 8, 8), jnp.uint32))
    replay = replace(replay, image=noise.reshape(4, 4, 8, 8), valid=jnp.ones((4, 8), bool), reward=jnp.ones((4, 8)))
    return sample(replay, jax.random.key(0), Cursor(jnp.int32(0), jnp.int32(8)), Sampling(16, 1, 0.9))


def test_only_the_losses_of_the_critics_train_the_image_encoder(batch):
    learner = Td3(**SMALL, policy_delay=1)
    policy, key = learner.policy(Lamp().spec), jax.random.key(1)

    @jax.jit
    def grads(actor):
        def loss(params):
            one = policy.with_params(params)
            return learner.loss(one, policy, learner.inputs(one, batch, key), key)[0]

        return jax.grad(loss)((actor, *policy.params[1:]))

    # Two actors, the second with outputs that saturate.
    one, other = (grads(jax.tree.map(lambda x, more=more: x + more, policy.actor)) for more in (0.1, 1.0))
    for a, b in zip(jax.tree.leaves(one[2]), jax.tree.leaves(other[2]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(one[2]))
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True))


@pytest.mark.parametrize(
    ("learner", "agents"), [(Ddpg(**SMALL, exploration_noise_end=0.1), 1), (Sac(**SMALL), 2)], ids=["ddpg", "sac"]
)
def test_what_only_the_image_shows_is_learned_from_a_replay(learner, agents):
    task = Lamp(agents)
    trainer = Trainer(task, learner, device.mesh(1), updates=120, chunk_length=30)
    chunk, state = trainer.compile(), trainer.start(0)
    for _ in range(4):
        state, *_ = chunk(state)
    assert state.replay.image.dtype == jnp.uint32
    pilot = trained_pilot(task, jax.device_get(state.policy))
    worlds = jax.vmap(lambda i: task.reset(Rng.from_seed(5, i)))(jnp.arange(32))
    actions, _ = pilot.act(pilot.policy, worlds, None, pilot.encode(pilot.policy, worlds), 0)
    np.testing.assert_allclose(actions[..., 0], worlds.world / 127.5 - 1.0, atol=0.5)
    assert float(jnp.mean(jnp.abs(actions[..., 0] - (worlds.world / 127.5 - 1.0)))) < 0.2


def test_learners_refuse_images_they_cannot_learn_from_in_words():
    vision = presets()["racing-vision"].task
    with pytest.raises(ValueError, match="set learner.n-step to 1"):
        Sac(n_step=3).check(vision, 1)
    with pytest.raises(ValueError, match="not a whole number of images, one every 2 steps"):
        Td3(rollout_length=3).check(vision, 1)
    with pytest.raises(ValueError, match="choose a task without, or ppo, distill, sac"):
        Dqn().check(replace(vision, action_space="discrete"), 1)
    Td3().check(vision, 1)


@pytest.mark.parametrize("learner", [Dqn(worlds=8), Pqn(worlds=32)], ids=["dqn", "pqn"])
def test_what_only_a_critic_observes_is_not_stored_by_those_that_have_none(learner):
    task = presets()["field"].task
    learner.check(task, 1)
    shape = jax.eval_shape(
        lambda: learner.update(task, learner.init(task, jnp.uint32(0), jnp.arange(learner.worlds)), jnp.float32(0.0))
    )
    assert shape[0].policy.normalizer.mean.shape == (task.spec.observation,)
