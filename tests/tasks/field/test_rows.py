"""Rows run and plants stand as the settings say."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2
from slipstream.core.rng import Rng
from slipstream.tasks.field.rows import all_plants, curve, draw_rows, lane_center, plants_near
from slipstream.tasks.field.settings import Crop

ROUGH = Crop(
    row_spacing=(1.1, 1.4), row_length=(2.5, 5.0), bend=(0.0, 0.2), curvature=(0.0, 0.06), missing=(0.0, 0.1),
    gaps=(0.0, 0.1), ragged_ends=1,
)  # fmt: skip
NEAT = Crop(plant_noise=0.0)


def fields(crop, count=32, seed=0):
    """Rows of so many worlds."""
    return jax.jit(jax.vmap(lambda world: draw_rows(crop, Rng.from_seed(seed, world))[0]))(jnp.arange(count))


def plants(crop, rows, lanes=3):
    """Of every world (row, number, 3)."""
    found = np.asarray(jax.jit(jax.vmap(lambda rows: all_plants(crop, rows, lanes)))(rows))
    return found.reshape(len(found), 2 * lanes + 2, -1, 3)


def test_without_noise_plants_stand_evenly_on_parallel_rows():
    rows = fields(NEAT)
    found = plants(NEAT, rows)
    np.testing.assert_allclose(found[:, :, :, 0], np.broadcast_to(np.arange(10) / 3.0, found.shape[:3]), atol=1e-5)
    np.testing.assert_allclose(np.diff(found[..., 1], axis=1), 1.2, atol=1e-5)
    assert (found[..., 2] == 1.0).all()


def test_the_middle_of_a_lane_lies_between_its_rows():
    rows = fields(NEAT, 8)
    found = plants(NEAT, rows, 2)
    x = jnp.asarray(found[:, 0, :, 0])
    center = jax.vmap(lambda rows, x: jax.vmap(lambda x: lane_center(NEAT, rows, jnp.int32(1), x))(x))(rows, x)
    row_of_lane = 3  # rows −2 … 3 in order: lane 1 lies between rows 1 and 2
    np.testing.assert_allclose(center, 0.5 * (found[:, row_of_lane, :, 1] + found[:, row_of_lane + 1, :, 1]), atol=1e-4)


def test_noise_is_as_large_as_set_and_independent_of_neighbors():
    offsets = plants(Crop(), fields(Crop(), 200))[..., :2] - plants(NEAT, fields(Crop(), 200))[..., :2]
    np.testing.assert_allclose(offsets.std((0, 1, 2)), 0.03, rtol=0.03)
    np.testing.assert_allclose(offsets.mean((0, 1, 2)), 0.0, atol=1e-3)
    neighbors = np.corrcoef(offsets[:, :, :-1].ravel(), offsets[:, :, 1:].ravel())[0, 1]
    assert abs(neighbors) < 0.03


def test_rows_pass_smoothly_through_control_points_no_further_aside_than_the_bend():
    rows = fields(Crop(), 64)
    draw = jax.jit(jax.vmap(lambda rows: jax.vmap(lambda x: curve(Crop(), rows, x))(jnp.linspace(0.0, 3.0, 901))))
    offset = np.asarray(draw(rows))
    points = offset[:, ::100]
    assert np.abs(points).max() <= 0.15 and np.abs(points).max() > 0.14
    slope = np.diff(offset, axis=1)
    # No kink: the slope of a spline changes little from one hundredth of a meter to the next.
    assert np.abs(np.diff(slope, axis=1)).max() < 0.15 * np.abs(slope).max()
    straight = replace(rows, bend=0.0 * rows.bend)
    assert (np.asarray(draw(straight)) == 0.0).all()


@pytest.mark.parametrize("crop", [Crop(), ROUGH], ids=["default", "all ranges"])
def test_all_plants_within_reach_are_among_those_looked_at(crop):
    reach, lanes = 1.0, 4
    rows = fields(crop, 200, seed=1)

    def look(rows, world):
        x, rng = Rng.from_seed(2, world).uniform(-1.2, rows.length + 1.2)
        y, _ = rng.uniform(-2.0, 2.0)
        near = plants_near(crop, rows, Vec2(x, y), reach)
        return jnp.stack([x, y]), jnp.stack([jnp.stack([p.x, p.y]) for p in near])

    place, near = jax.jit(jax.vmap(look))(rows, jnp.arange(200))
    found = np.asarray(jax.jit(jax.vmap(lambda rows: all_plants(crop, rows, lanes)))(rows))
    for k in range(200):
        every = found[k][found[k][:, 2] > 0.5, :2]
        distance = np.linalg.norm(every - np.asarray(place[k]), axis=-1)
        wanted = every[distance < reach + crop.plant_radius]
        for spot in wanted:
            assert np.linalg.norm(np.asarray(near[k]) - spot, axis=-1).min() < 1e-4
        # And what is looked at exists.
        shown = np.asarray(near[k])[np.linalg.norm(np.asarray(near[k]) - np.asarray(place[k]), axis=-1) < reach]
        for spot in shown:
            assert np.linalg.norm(every - spot, axis=-1).min() < 1e-4


@pytest.mark.parametrize(("setting", "fraction"), [("missing", 0.3), ("gaps", 0.2)])
def test_as_many_plants_are_missing_as_set_and_the_others_stand_where_they_did(setting, fraction):
    crop = replace(Crop(), **{setting: (fraction, fraction)})
    whole, thinned = plants(Crop(), fields(Crop(), 200)), plants(crop, fields(crop, 200))
    assert 1.0 - thinned[..., 2].mean() == pytest.approx(fraction, abs=0.02)
    np.testing.assert_array_equal(whole[..., :2], thinned[..., :2])


def test_gaps_are_stretches_of_three_plants():
    crop = replace(Crop(), gaps=(0.2, 0.2))
    there = plants(crop, fields(crop, 50))[:, :, :9, 2].reshape(50, -1, 3, 3)
    assert set(there.sum(-1).ravel()) == {0.0, 3.0}


def test_ragged_ends_take_at_most_so_many_plants_from_either_end():
    crop = replace(Crop(), ragged_ends=2)
    there = plants(crop, fields(crop, 100))[..., 2]
    assert set(np.argmax(there, -1).ravel()) == {0, 1, 2} == set(np.argmax(there[..., ::-1], -1).ravel())
    assert (there[..., 2:-2] == 1.0).all()


@pytest.mark.parametrize("name", ["row_spacing", "row_length", "bend", "curvature", "missing", "gaps"])
def test_a_range_without_width_gives_every_world_its_value_and_leaves_all_else_alone(name):
    value = 2.0 if name == "row_length" else 1.3 if name == "row_spacing" else 0.1
    crop, plain = replace(Crop(), **{name: (value, value)}), Crop()
    ours, theirs = fields(crop), fields(plain)
    field = {"row_spacing": "spacing", "row_length": "length"}.get(name, name)
    np.testing.assert_allclose(np.abs(getattr(ours, field)), value, rtol=1e-5)
    for other in ("salt", "spacing", "length", "bend", "curvature", "missing", "gaps"):
        if other != field:
            np.testing.assert_array_equal(getattr(ours, other), getattr(theirs, other))
    shape = (plants(crop, ours)[:, :, :6], plants(plain, theirs)[:, :, :6])
    assert name == "row_length" or not np.array_equal(*shape)


@pytest.mark.parametrize("name", ["row_spacing", "row_length", "bend", "curvature", "missing", "gaps"])
def test_a_range_gives_every_world_a_value_of_its_own_within_it(name):
    low, high = (2.0, 4.0) if name == "row_length" else (1.1, 1.5) if name == "row_spacing" else (0.05, 0.2)
    rows = fields(replace(Crop(), **{name: (low, high)}), 200)
    values = np.abs(getattr(rows, {"row_spacing": "spacing", "row_length": "length"}.get(name, name)))
    assert values.min() >= low - 1e-5 and values.max() <= high + 1e-5 and np.ptp(values) > 0.8 * (high - low)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bend": (0.2, 0.1)}, "lowest first"),
        ({"curvature": (-0.1, 0.1)}, "not negative"),
        ({"missing": (0.0, 1.0)}, "below 1"),
        ({"plant_spacing": 0.0}, "positive"),
        ({"row_length": (0.1, 3.0)}, "at least two plants"),
    ],
)
def test_crops_that_cannot_be_are_refused_in_words(changes, words):
    with pytest.raises(ValueError, match=words):
        Crop(**changes)
