import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Rng, approx_gaussian, gaussian, mix

WORLDS, DRAWS = 2048, 256


def drawn(method, seed=0, worlds=WORLDS, draws=DRAWS):
    """Numbers by world and draw."""

    def stream(world):
        def draw(rng, _):
            number, rng = getattr(rng, method)()
            return rng, number

        return jax.lax.scan(draw, Rng.from_seed(seed, world), length=draws)[1]

    return np.asarray(jax.jit(jax.vmap(stream))(jnp.arange(worlds)))


def test_uniform_numbers_fill_the_interval_evenly():
    counts, _ = np.histogram(drawn("uniform"), 64, (0.0, 1.0))
    expected = WORLDS * DRAWS / 64
    assert np.sum((counts - expected) ** 2 / expected) < 63 + 5 * np.sqrt(2 * 63)


def test_every_bit_is_as_often_one_as_zero():
    words = drawn("bits").ravel()
    ones = np.array([np.mean(words >> bit & 1) for bit in range(32)])
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(words.size)


def test_successive_draws_of_a_world_are_independent():
    u = drawn("uniform") - 0.5
    for lag in (1, 2, 3, 7):
        correlation = np.mean(u[:, lag:] * u[:, :-lag]) * 12
        assert abs(correlation) < 5 / np.sqrt(u[:, lag:].size)


def test_neighbouring_worlds_are_independent():
    u = drawn("uniform") - 0.5
    for lag in (1, 2, 64, 1024):
        correlation = np.mean(u[lag:] * u[:-lag]) * 12
        assert abs(correlation) < 5 / np.sqrt(u[lag:].size)


def test_the_same_draw_in_all_worlds_is_uniform():
    for draw in (0, 1, 100):
        counts, _ = np.histogram(drawn("uniform", worlds=65_536, draws=draw + 1)[:, draw], 64, (0.0, 1.0))
        assert np.sum((counts - 1024) ** 2 / 1024) < 63 + 5 * np.sqrt(2 * 63)


def test_pairs_of_draws_fill_the_square_evenly():
    u = drawn("uniform")
    counts, _, _ = np.histogram2d(u[:, :-1].ravel(), u[:, 1:].ravel(), 16, [[0, 1], [0, 1]])
    expected = u[:, 1:].size / 256
    assert np.sum((counts - expected) ** 2 / expected) < 255 + 6 * np.sqrt(2 * 255)


def test_normal_numbers_have_the_moments_of_a_gaussian_and_are_finite():
    z = drawn("normal")
    n = z.size
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs(np.mean(z**4) - 3) < 5 * np.sqrt(96 / n)


def test_the_extreme_words_give_finite_normal_numbers():
    bits = jnp.array([0, 1, 2**32 - 1, 2**32 - 2, 2**31], jnp.uint32)
    assert np.isfinite(gaussian(bits)).all()


def test_no_two_worlds_of_a_run_share_a_stream():
    streams = np.asarray(jax.vmap(lambda w: Rng.from_seed(3, w).stream)(jnp.arange(1 << 18)))
    assert len(np.unique(streams)) == 1 << 18


def test_no_number_repeats_early_within_a_world():
    words = drawn("bits", worlds=4, draws=1 << 16)
    for row in words:
        # Birthday: about half a pair expected among 2¹⁶ of 2³².
        assert len(row) - len(np.unique(row)) < 6


def test_different_seeds_give_different_worlds():
    a, b = drawn("uniform", seed=0) - 0.5, drawn("uniform", seed=1) - 0.5
    assert abs(np.mean(a * b) * 12) < 5 / np.sqrt(a.size)


def test_forks_of_one_branch_do_not_overlap_after_further_draws():
    def numbers(world):
        rng, rows = Rng.from_seed(5, world), []
        for _ in range(4):
            own, row = rng.fork(3), []
            for _ in range(4):
                number, own = own.uniform()
                row.append(number)
            rows.append(jnp.stack(row))
            rng = rng.bits()[1]
        return jnp.stack(rows).reshape(-1)

    drawn = np.asarray(jax.vmap(numbers)(jnp.arange(4000)))
    correlation = np.corrcoef(drawn.T) - np.eye(16)
    assert np.abs(correlation).max() < 0.08


def test_a_fork_is_independent_of_its_stem():
    def pair(world):
        rng = Rng.from_seed(0, world)
        return rng.uniform()[0], rng.fork(1).uniform()[0], rng.fork(2).uniform()[0]

    a, b, c = (np.asarray(x) - 0.5 for x in jax.vmap(pair)(jnp.arange(65_536)))
    for x, y in ((a, b), (a, c), (b, c)):
        assert abs(np.mean(x * y) * 12) < 5 / 256


def test_integers_cover_their_range_evenly():
    numbers = np.asarray(jax.vmap(lambda w: Rng.from_seed(0, w).integer(7)[0])(jnp.arange(70_000)))
    counts = np.bincount(numbers, minlength=7)
    assert len(counts) == 7
    assert np.sum((counts - 10_000) ** 2 / 10_000) < 6 + 5 * np.sqrt(12)


def test_mixing_changes_half_of_the_bits_when_one_changes():
    words = jnp.arange(4096, dtype=jnp.uint32) * jnp.uint32(2654435761)
    flips = [np.mean(np.bitwise_count(np.asarray(mix(words) ^ mix(words ^ jnp.uint32(1 << bit))))) for bit in range(32)]
    assert min(flips) == pytest.approx(16, abs=1.0)
    assert max(flips) == pytest.approx(16, abs=1.0)


def test_cheap_noise_is_nearly_gaussian():
    drawn = np.asarray(approx_gaussian(mix(jnp.arange(200_000, dtype=jnp.uint32))))
    assert abs(drawn.mean()) < 0.01 and abs(drawn.std() - 1.0) < 0.01
    assert abs(np.mean(np.abs(drawn) < 1.0) - 0.683) < 0.02
    assert np.abs(drawn).max() < 3.47


@pytest.mark.parametrize("method", ["normal", "approx_normal"])
def test_the_spread_of_a_gaussian_number_is_the_one_asked_for(method):
    numbers = np.asarray(jax.vmap(lambda w: getattr(Rng.from_seed(0, w), method)(2.5)[0])(jnp.arange(20_000)))
    assert numbers.std() == pytest.approx(2.5, rel=0.02)
