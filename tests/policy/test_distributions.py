import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Rng
from slipstream.policy.distributions import Categorical, MultiCategorical, Normal

RNGS = jax.vmap(lambda w: Rng.from_seed(0, w))(jnp.arange(60_000))


def sampled(distribution):
    return np.asarray(jax.jit(jax.vmap(lambda rng: distribution.sample(rng)[0]))(RNGS))


def test_a_normal_sample_has_its_mean_and_standard_deviation():
    z = sampled(Normal(jnp.array([1.0, -2.0]), jnp.log(jnp.array([0.5, 2.0]))))
    np.testing.assert_allclose(z.mean(axis=0), [1.0, -2.0], atol=0.03)
    np.testing.assert_allclose(z.std(axis=0), [0.5, 2.0], rtol=0.02)


def test_a_normal_log_probability_integrates_to_one():
    choice = Normal(jnp.array([0.3]), jnp.log(jnp.array([0.7])))
    x = jnp.linspace(-8, 8, 4001)[:, None]
    assert float(jnp.sum(jnp.exp(choice.log_prob(x))) * 16 / 4000) == pytest.approx(1.0, abs=1e-4)


def test_choices_come_up_as_often_as_their_logits_say():
    logits = jnp.array([0.0, 1.0, -1.0, 2.0])
    counts = np.bincount(sampled(Categorical(logits)), minlength=4) / 60_000
    np.testing.assert_allclose(counts, jax.nn.softmax(logits), atol=0.008)


def test_components_of_a_multiple_choice_are_independent():
    pairs = sampled(MultiCategorical(jnp.zeros(9), (3, 3, 3)))
    table = np.zeros((3, 3))
    np.add.at(table, (pairs[:, 0], pairs[:, 1]), 1)
    expected = 60_000 / 9
    assert np.sum((table - expected) ** 2 / expected) < 8 + 5 * np.sqrt(16)


@pytest.mark.parametrize(
    "choice",
    [
        Normal(jnp.array([0.2, -0.4]), jnp.array([-0.3, 0.1])),
        Categorical(jnp.array([0.1, 0.5, -1.0])),
        MultiCategorical(jnp.array([0.1, 0.5, -1.0, 0.3, 0.2]), (3, 2)),
    ],
)
def test_entropy_and_divergence_are_means_of_log_probabilities(choice):
    samples = jnp.asarray(sampled(choice))
    log_prob = jax.vmap(choice.log_prob)(samples)
    assert float(choice.entropy) == pytest.approx(-float(jnp.mean(log_prob)), abs=0.02)
    leaves, tree = jax.tree.flatten(choice)
    other = jax.tree.unflatten(tree, [leaf + 0.4 * jnp.arange(1, 1 + leaf.shape[-1]) for leaf in leaves])
    estimate = jnp.mean(log_prob - jax.vmap(other.log_prob)(samples))
    assert float(choice.kl(other)) == pytest.approx(float(estimate), abs=0.02)
    assert float(choice.kl(choice)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    "choice", [Categorical(jnp.array([0.1, 3.0, -1.0])), MultiCategorical(jnp.array([0.1, 3.0, 1.0, -1.0]), (2, 2))]
)
def test_the_mode_is_the_likeliest_choice(choice):
    samples = jnp.asarray(sampled(choice))
    best = float(choice.log_prob(choice.mode))
    assert best >= float(jnp.max(jax.vmap(choice.log_prob)(samples))) - 1e-6


@pytest.mark.parametrize("mean", [-2.0, -0.9, 0.0, 0.7, 1.0, 1.3])
def test_the_action_of_a_normal_is_the_mean_of_what_is_executed(mean):
    choice = Normal(jnp.array([mean]), jnp.log(jnp.array([0.3])))
    assert float(choice.mode[0]) == pytest.approx(float(np.clip(sampled(choice), -1, 1).mean()), abs=0.005)
