"""Action spaces: what is drawn lies within them, and encoding undoes decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Rng
from slipstream.core.spaces import Box, Discrete, MultiDiscrete, action_space

LEVELS = ((-1.0, 0.0, 1.0), (0.0, -0.5, -1.0, 0.5, 1.0))
SPACES = [Box(1), Box(4), Box(6), Discrete(1), Discrete(7), MultiDiscrete((3, 5)), MultiDiscrete((2,))]


def samples(space, count=2000):
    return np.asarray(jax.jit(jax.vmap(lambda k: space.sample(Rng.from_seed(0, k))[0]))(jnp.arange(count)))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_samples_have_the_shape_and_type_of_an_action_and_fill_its_bounds(space):
    drawn, (low, high) = samples(space), space.bounds
    assert drawn.shape == (2000, *space.shape) and drawn.dtype == low.dtype == high.dtype == space.zeros().dtype
    # The largest of 256 steps of float32 from −1 to 1 may be off by its last bit; `decode` clips.
    assert (drawn >= low).all() and (drawn <= high * np.float32(1.0 + 2e-7)).all()
    near = 0.0 if drawn.dtype == np.int32 else 0.02
    np.testing.assert_allclose(drawn.min(0), low, atol=near)
    np.testing.assert_allclose(drawn.max(0), high, atol=near)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_sample_advances_the_generator(space):
    rng = Rng.from_seed(0, 0)
    assert int(space.sample(rng)[1].drawn) > int(rng.drawn)


def test_the_components_of_a_sample_are_independent():
    drawn = samples(Box(6), 20_000)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(6), atol=0.04)
    np.testing.assert_allclose(drawn.mean(0), 0.0, atol=0.03)


@pytest.mark.parametrize("choices", [2, 7, 25])
def test_every_choice_is_drawn_about_equally_often(choices):
    counts = np.bincount(samples(Discrete(choices), 20_000), minlength=choices)
    assert len(counts) == choices
    np.testing.assert_allclose(counts / 20_000, 1.0 / choices, atol=0.02)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_zeros_take_batch_axes_and_lie_within_the_bounds(space):
    zeros, (low, high) = np.asarray(space.zeros(3, 2)), space.bounds
    assert zeros.shape == (3, 2, *space.shape) and not zeros.any()
    assert (zeros >= low).all() and (zeros <= high).all()
    assert space.zeros().shape == space.shape


def test_sizes_are_counts_of_components():
    assert [space.size for space in SPACES] == [1, 4, 6, 1, 1, 2, 1]
    assert Discrete(7).components == (7,) and MultiDiscrete((3, 5)).components == (3, 5)


@pytest.mark.parametrize(
    ("kind", "space"), [("box", Box(2)), ("discrete", Discrete(15)), ("multidiscrete", MultiDiscrete((3, 5)))]
)
def test_a_kind_of_action_space_is_as_large_as_its_levels_ask(kind, space):
    assert action_space(kind, LEVELS) == space


@pytest.mark.parametrize("kind", ["discrete", "multidiscrete"])
def test_encoding_undoes_decoding_for_every_choice(kind):
    space = action_space(kind, LEVELS)
    rows = np.stack(np.unravel_index(np.arange(15), (3, 5)), -1).astype(np.int32)
    actions = jnp.arange(15, dtype=jnp.int32) if kind == "discrete" else jnp.asarray(rows)
    components = space.decode(actions, LEVELS)
    wanted = [np.float32(values)[row] for values, row in zip(LEVELS, rows.T, strict=True)]
    np.testing.assert_array_equal(components, wanted)
    np.testing.assert_array_equal(space.encode(components, LEVELS), actions)
    # Components in between choose the nearest level.
    np.testing.assert_array_equal(space.encode([part + 0.2 for part in components], LEVELS), actions)


def test_one_choice_and_a_choice_for_each_component_mean_the_same():
    discrete, multi = action_space("discrete", LEVELS), action_space("multidiscrete", LEVELS)
    for choice in range(15):
        row = jnp.asarray(np.unravel_index(choice, (3, 5)), jnp.int32)
        one, each = discrete.decode(jnp.int32(choice), LEVELS), multi.decode(row, LEVELS)
        assert [float(x) for x in one] == [float(x) for x in each]


def test_numbers_are_clipped_on_the_way_in_and_out():
    box = action_space("box", LEVELS)
    actions = jnp.array([[0.3, -0.7], [2.0, -9.0]])
    components = box.decode(actions, LEVELS)
    np.testing.assert_array_equal(components, np.float32([[0.3, 1.0], [-0.7, -1.0]]))
    np.testing.assert_array_equal(box.encode(components, LEVELS), np.float32([[0.3, -0.7], [1.0, -1.0]]))
    np.testing.assert_array_equal(box.encode([jnp.array([5.0]), jnp.array([-5.0])], LEVELS), [[1.0, -1.0]])
