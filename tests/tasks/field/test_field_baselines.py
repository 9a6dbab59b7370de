"""Scripts drive the field: one by what is true, one by what a robot measures."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2
from slipstream.core.rng import Rng
from slipstream.evaluation.pilot import scripted_pilot
from slipstream.evaluation.runner import run_episodes
from slipstream.plants.fast import FastPlant
from slipstream.sensors.lidar import Lidar
from slipstream.tasks.field import Field, row_follower, sensing
from slipstream.tasks.field.row_follower import Plants, distance_to_lane, fit_lane
from slipstream.tasks.field.settings import Crop, Terrain

ROUGH = Field(
    lanes=2,
    max_rows=2,
    time_limit=40.0,
    crop=Crop(curvature=(0.0, 0.04), missing=(0.0, 0.1)),
    terrain=Terrain(slope=(0.0, 0.1), slip=(0.0, 0.1)),
    lidar=Lidar(noise=0.01, dropout=0.02),
)


def driven(task, name, worlds=16):
    task = task.for_evaluation()
    return run_episodes(task, scripted_pilot(task.baselines()[name]), FastPlant(), worlds, 3, 1)


@pytest.mark.parametrize("name", ["truth", "row follower"])
def test_both_scripts_drive_every_lane_of_the_default_field(name):
    done = driven(Field(lanes=2, time_limit=30.0), name)
    assert (done.metrics["success"] == 1.0).all()


@pytest.mark.parametrize(("name", "least"), [("truth", 1.0), ("row follower", 0.75)])
def test_scripts_cope_with_slopes_slip_noise_and_missing_plants(name, least):
    done = driven(ROUGH, name)
    assert done.metrics["success"].mean() >= least and done.metrics["touched"].mean() < 0.1


def test_the_one_that_knows_the_truth_turns_round_where_wheels_cannot_be_parallel():
    done = driven(Field(lanes=2, time_limit=40.0, steering="ackermann"), "truth")
    assert done.metrics["success"].mean() > 0.9


def test_the_row_follower_is_listed_where_it_can_drive():
    assert set(Field().baselines()) == set(Field(steering="all").baselines()) == {"truth", "row follower"}
    for task in (Field(steering="ackermann"), Field(memory_cells=2)):
        assert set(task.baselines()) == {"truth"}


def test_the_row_follower_uses_nothing_that_a_robot_cannot_measure(monkeypatch):
    task = Field(max_rows=3)
    ranges = jnp.linspace(0.4, 1.0, 40)
    monkeypatch.setattr(sensing, "measured_ranges", lambda task, state: ranges)
    state = task.reset(Rng.from_seed(0, 1))
    script = task.baselines()["row follower"]
    elsewhere = replace(
        state,
        body=replace(state.body, position=Vec2(jnp.float32(9.0), jnp.float32(-4.0)), yaw=jnp.float32(1.0)),
        progress=replace(
            state.progress,
            turns=jnp.int32(3),
            stage=jnp.int32(2),
            lane=jnp.int32(-2),
            leg=jnp.float32(0.1),
            distance=jnp.float32(0.7),
            due=jnp.int32(5),
            advanced=jnp.int32(4),
        ),
        world=replace(state.world, rows=jax.tree.map(lambda x: x + 1, state.world.rows)),
    )
    np.testing.assert_array_equal(script(state), script(elsewhere))


def seen(points):
    """Plants at those places, and beams that hit nothing."""
    x, y = (jnp.asarray([*column, *[0.0] * (40 - len(points))], jnp.float32) for column in zip(*points, strict=True))
    return Plants(x, y, (jnp.arange(40) < len(points)).astype(jnp.float32))


@pytest.mark.parametrize(("offset", "half"), [(0.0, 0.6), (0.1, 0.6), (-0.1, 0.65)])
def test_the_fit_finds_the_middle_and_the_width_of_a_lane(offset, half):
    points = [(x, offset + side * half) for x in (-0.4, -0.1, 0.2, 0.5) for side in (1.0, -1.0)]
    middle, width, both = fit_lane(seen(points), 0.6)
    assert float(middle) == pytest.approx(offset, abs=0.02) and bool(both)
    assert float(width) == pytest.approx(half, abs=0.02)


def test_with_plants_on_one_side_only_the_expected_width_tells_the_middle():
    middle, width, both = fit_lane(seen([(x, 0.5) for x in (-0.2, 0.1, 0.4)]), 0.6)
    assert float(middle) == pytest.approx(-0.1, abs=0.06) and not bool(both)
    assert float(width) == pytest.approx(0.6, abs=0.08)


@pytest.mark.parametrize(("crossed", "wanted"), [(0.0, 0.9), (0.5, 0.9), (1.4, -0.3)])
def test_the_next_lane_lies_between_row_ends_and_odometry_tells_which(crossed, wanted):
    # The middles of lanes are 0.9 m to the left of the robot, 0.3 m to its right, and so on.
    ends = seen([(-0.8, 0.3), (-0.8, -0.9)])
    found = distance_to_lane(ends, jnp.float32(0.6), jnp.float32(1.0), jnp.float32(crossed))
    assert float(found) == pytest.approx(wanted, abs=1e-4)


def test_where_no_row_end_is_in_sight_odometry_tells_how_far_the_next_lane_is():
    nothing = seen([(0.0, 0.0)])._replace(hit=jnp.zeros(40))
    found = distance_to_lane(nothing, jnp.float32(0.6), jnp.float32(-1.0), jnp.float32(-0.5))
    assert float(found) == pytest.approx(-0.7, abs=1e-5)


def test_memory_bits_hold_and_change_within_two_steps():
    task = Field()
    for wanted in (True, False):
        cells = [jnp.float32(0.0)] * 3
        for _ in range(2):
            bits = row_follower.Bits(*[jnp.bool_(wanted)] * 3)
            changes, after = row_follower.write_bits(task, cells, bits)
            cells = [cell + task.memory_step * change for cell, change in zip(cells, changes, strict=True)]
        for _ in range(50):
            assert [bool(bit) for bit in after] == [wanted] * 3
            changes, after = row_follower.write_bits(task, cells, bits)
            cells = [cell + task.memory_step * change for cell, change in zip(cells, changes, strict=True)]
        flipped = row_follower.Bits(*[jnp.bool_(not wanted)] * 3)
        for _ in range(2):
            changes, after = row_follower.write_bits(task, cells, flipped)
            cells = [cell + task.memory_step * change for cell, change in zip(cells, changes, strict=True)]
        assert [bool(bit) for bit in after] == [not wanted] * 3
