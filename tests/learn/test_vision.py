"""Images in a rollout: rendered every few steps, stored once, learned from."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Rng
from slipstream.core.spaces import Box
from slipstream.core.task import Spec, State, Task
from slipstream.experiment.experiment import Experiment
from slipstream.learn.ppo import Ppo
from slipstream.learn.rollout import Acting, Decision, rollout
from slipstream.runs.train import trainer_of
from slipstream.sensors.camera import CameraSettings
from slipstream.tasks.racing import Racing


@dataclass(frozen=True)
class Lamp(Task):
    """A lamp is on or off, and only the image shows it: the action should be its sign."""

    length: int = 6
    interval: int = 2

    @property
    def spec(self):
        return Spec(1, Box(1), 0.1, image_shape=(8, 8, 1), image_interval=self.interval)

    def reset(self, rng):
        on, rng = rng.integer(2)
        zero = jnp.float32(0.0)
        return State(on, zero, zero, rng, jnp.int32(0), zero, jnp.bool_(False), jnp.bool_(False))

    def step(self, state, action):
        step = state.step + 1
        miss = (action[0] - (state.world - 0.5)) ** 2
        return replace(state, step=step, reward=-miss, truncated=step >= self.length, terminated=jnp.bool_(False))

    def observe(self, state):
        return jnp.zeros(1)

    def image(self, state):
        return jnp.full((8, 8), 255 * state.world, jnp.uint8)

    def episode_metrics(self, state):
        return {"episode_return": state.reward}


def played(task, length, worlds=3):
    """A rollout whose every action is 0.25 and whose image features are the mean of the image."""
    states = jax.vmap(lambda i: task.reset(Rng.from_seed(0, i)))(jnp.arange(worlds))

    def act(observation, acting, image_features):
        return Decision(jnp.full((worlds, task.spec.action.size), 0.25)), acting

    encode = lambda image: image.astype(jnp.float32).mean((1, 2))[:, None]  # noqa: E731
    acting = Acting(jax.vmap(lambda i: Rng.from_seed(1, i))(jnp.arange(worlds)))
    return jax.jit(lambda states: rollout(task, act, states, acting, length, encode))(states)


def test_an_image_is_stored_once_for_the_steps_it_is_used():
    _, _, transitions, _, images = played(Lamp(), 12)
    assert transitions.reward.shape == (12, 3)
    assert images.image.shape == (6, 3, 8, 8)
    assert images.image_features.shape == (6, 3, 1)


def test_the_age_of_the_image_and_a_restart_since_are_observed():
    """Episodes of six steps and a step to restart: the seventh step of a world starts it anew."""
    _, _, transitions, *_ = played(Lamp(interval=4), 16)
    age, old = transitions.observation[:, 0, 1], transitions.observation[:, 0, 2]
    np.testing.assert_allclose(age, np.arange(16) % 4 / 4)
    assert not transitions.valid[6, 0], "the restart"
    # Step 7 is the first of a new episode, its image was rendered at step 4.
    np.testing.assert_array_equal(old[4:9], [0, 0, 0, 1, 0])


def test_what_only_the_image_shows_is_learned():
    learner = Ppo(
        worlds=128, rollout_length=8, epochs=2, minibatches=2, shuffle_block=16, hidden_sizes=(16,), learning_rate=3e-3
    )
    trainer = trainer_of(Experiment(Lamp(), learner, steps=60_000), 4)
    chunk, train = trainer.compile(), trainer.start(0)
    for _ in range(14):
        train, *_ = chunk(train)
    best = jax.jit(lambda policy, frame: policy.act(jnp.zeros((2, 3)), None, policy.encode(frame))[0])
    action = best(jax.device_get(train.policy), jnp.stack([jnp.zeros((8, 8)), jnp.full((8, 8), 255)]).astype(jnp.uint8))
    np.testing.assert_allclose(action[:, 0], [-0.5, 0.5], atol=0.15)


@pytest.mark.parametrize("camera", ["rgb", "depth"])
def test_a_racing_drone_trains_from_its_camera(camera):
    learner = Ppo(worlds=16, rollout_length=8, epochs=1, minibatches=2, shuffle_block=4, hidden_sizes=(16,))
    trainer = trainer_of(Experiment(Racing(camera=CameraSettings(camera, 16)), learner, steps=512), 2)
    before = jax.device_get(trainer.start(0).policy.image_encoder)
    train, metrics, _ = trainer.compile()(trainer.start(0))
    assert all(np.isfinite(float(value)) for value in metrics.values())
    # The gradient reaches the first layer of the image encoder.
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), before, jax.device_get(train.policy.image_encoder))
    assert jax.tree.leaves(moved)[0] and all(jax.tree.leaves(moved))


def test_images_that_do_not_divide_are_refused_with_the_settings_to_change():
    learner = Ppo(worlds=16, rollout_length=8, epochs=1, minibatches=2, shuffle_block=16, hidden_sizes=(16,))
    with pytest.raises(ValueError, match="change learner.worlds"):
        trainer_of(Experiment(Racing(camera=CameraSettings("depth", 16)), learner, steps=512, devices=2), 2).compile()
    odd = replace(learner, rollout_length=6, worlds=64)
    with pytest.raises(ValueError, match="not a whole number of images"):
        trainer_of(Experiment(Racing(camera=CameraSettings("depth", 16)), odd, steps=512), 2).compile()
