from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.spaces import Box, Discrete
from slipstream.core.task import Spec
from slipstream.policy.actor_critic import ActorCritic, Architecture
from slipstream.policy.image_encoders import IMAGE_ENCODERS
from slipstream.policy.nets import Mlp, Normalizer


def test_a_normalizer_knows_the_mean_and_variance_of_all_samples():
    random = np.random.default_rng(0)
    rows = random.normal(3.0, 5.0, (10, 500, 4)).astype(np.float32)
    valid = random.random((10, 500)) < 0.7
    normalizer = Normalizer.of(4)
    for part, flags in zip(rows, valid, strict=True):
        normalizer = normalizer.update(jnp.asarray(part), jnp.asarray(flags))
    np.testing.assert_allclose(normalizer.mean, rows[valid].mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(normalizer.variance, rows[valid].var(axis=0), rtol=1e-3)


def test_a_normalizer_is_not_confused_by_numbers_far_from_zero():
    rows = jnp.asarray(np.random.default_rng(0).normal(1000.0, 0.5, (4000, 1)), jnp.float32)
    normalizer = Normalizer.of(1).update(rows, jnp.ones(4000, bool))
    for _ in range(20):
        normalizer = normalizer.update(rows, jnp.ones(4000, bool))
    assert abs(float(normalizer.variance[0]) - 0.25) < 0.02


def test_samples_that_are_not_valid_do_not_count():
    rows = jnp.array([[1.0], [1e9]])
    normalizer = Normalizer.of(1).update(rows, jnp.array([True, False]))
    assert float(normalizer.mean[0]) == 1.0


def test_acting_for_a_batch_is_acting_one_by_one():
    spec = Spec(5, Box(3), 0.01)
    for shared in (False, True):
        policy = ActorCritic.init(jax.random.key(0), spec, Architecture((16, 16), "elu", shared))
        rows = jax.random.normal(jax.random.key(1), (32, 5))
        together = policy.act(rows)[0]
        alone = jnp.stack([policy.act(row)[0] for row in rows])
        np.testing.assert_allclose(together, alone, atol=1e-5)
        choice, value = policy.distribution_and_value(rows)
        np.testing.assert_allclose(choice.mode, together, atol=1e-6)
        np.testing.assert_allclose(value, policy.value(rows), atol=1e-6)


def test_an_untrained_policy_prefers_nothing():
    policy = ActorCritic.init(jax.random.key(0), Spec(5, Discrete(4), 0.01), Architecture((16,)))
    logits = policy.distribution(jnp.ones(5)).logits
    assert float(jnp.max(jnp.abs(logits))) < 0.1


def test_the_layers_of_a_network_are_orthogonal_at_the_start():
    layer = Mlp.init(jax.random.key(0), (8, 8, 2)).layers[0]
    np.testing.assert_allclose(layer.weight.T @ layer.weight, 2.0 * np.eye(8), atol=1e-5)


@pytest.mark.parametrize("kind", IMAGE_ENCODERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_encoder_reads_a_batch_as_it_reads_one_image(kind, channels):
    image_encoder = IMAGE_ENCODERS[kind].init(jax.random.key(1), (32, 40, channels))
    words = jax.random.bits(jax.random.key(2), (3, 2, 32, 40), jnp.uint32)
    frames = words & 0xFFFFFF if channels == 3 else (words & 0xFF).astype(jnp.uint8)
    image_features = jax.jit(lambda x: image_encoder(x))(frames)
    assert image_features.shape == (3, 2, image_encoder.size)
    np.testing.assert_allclose(image_features[2, 1], image_encoder(frames[2, 1]), atol=1e-5)
    assert float(jnp.abs(image_features[0, 0] - image_features[1, 0]).max()) > 1e-3


@pytest.mark.parametrize(("kind", "shape"), [("patches", (33, 40, 3)), ("cnn", (8, 8, 1))])
def test_an_image_that_an_encoder_cannot_read_is_refused(kind, shape):
    with pytest.raises(ValueError, match="image of"):
        IMAGE_ENCODERS[kind].init(jax.random.key(0), shape)


def test_privileged_observations_change_the_value_and_not_the_action():
    spec = Spec(5, Box(3), 0.01, privileged_size=2)
    policy = ActorCritic.init(jax.random.key(0), spec, Architecture((16,)))
    observation = jax.random.normal(jax.random.key(1), (4, 7))
    other = observation.at[:, 5:].add(1.0)
    np.testing.assert_array_equal(policy.distribution(observation).mode, policy.distribution(other).mode)
    assert float(jnp.abs(policy.value(observation) - policy.value(other)).max()) > 1e-3
    # Acting needs only the actor's part of the observation.
    np.testing.assert_array_equal(policy.act(observation[:, :5])[0], policy.act(observation)[0])


def test_the_state_estimator_learns_from_the_truth_and_not_from_the_actor():
    spec = Spec(5, Box(3), 0.01, privileged_size=2)
    policy = ActorCritic.init(jax.random.key(0), spec, Architecture((16,), state_estimator=True))
    observation = jax.random.normal(jax.random.key(1), (256, 7)).at[:, 5:].set(0.0)
    observation = observation.at[:, 5].set(observation[:, 0]).at[:, 6].set(-observation[:, 1])
    np.testing.assert_array_equal(policy.act(observation[:, :5])[0], policy.act(observation)[0])

    def chosen(state_estimator):
        return jnp.sum(replace(policy, state_estimator=state_estimator).distribution(observation).mode ** 2)

    assert all(float(jnp.abs(x).max()) == 0.0 for x in jax.tree.leaves(jax.grad(chosen)(policy.state_estimator)))

    def estimation_loss(state_estimator):
        return jnp.mean(replace(policy, state_estimator=state_estimator).estimation_loss(observation))

    def learn(state_estimator, _):
        return jax.tree.map(lambda w, g: w - 0.3 * g, state_estimator, jax.grad(estimation_loss)(state_estimator)), None

    learned, _ = jax.lax.scan(learn, policy.state_estimator, length=300)
    assert float(estimation_loss(learned)) < 0.1 * float(estimation_loss(policy.state_estimator))
