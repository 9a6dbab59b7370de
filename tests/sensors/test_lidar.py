"""The lidar measures what a plain trace of its beams finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2
from slipstream.core.rng import Rng
from slipstream.sensors.lidar import Lidar, to_sensor_frame

RADIUS = 0.1


def traced(lidar, centers, radius):
    """Ranges of all beams, each followed by itself in double precision: where it enters a disk first."""
    found = []
    for angle in lidar.angles:
        ahead = np.array([np.cos(angle), np.sin(angle)])
        nearest = lidar.max_range
        for center in centers:
            along = float(center @ ahead)
            beside = float(np.linalg.norm(center - along * ahead))
            if beside < radius and along - np.sqrt(radius**2 - beside**2) > 0.0:
                nearest = min(nearest, along - np.sqrt(radius**2 - beside**2))
        found.append(nearest)
    return np.array(found)


def disks(rng, count):
    """Disks around the lidar, none of which covers it."""
    angle, distance = rng.uniform(-np.pi, np.pi, count), rng.uniform(RADIUS + 0.05, 1.6, count)
    return np.stack([distance * np.cos(angle), distance * np.sin(angle)], -1)


@pytest.mark.parametrize("lidar", [Lidar(), Lidar(beams=7, max_range=2.5)], ids=["40 beams", "7 beams"])
def test_ranges_are_exact(lidar):
    rng = np.random.default_rng(0)
    ranges = jax.jit(lambda x, y: lidar.ranges([Vec2(*pair) for pair in zip(x, y, strict=True)], RADIUS))
    for _ in range(50):
        centers = disks(rng, 12).astype(np.float32)
        found = np.asarray(ranges(*centers.T))
        # A beam that only just grazes a disk may miss it by the last digit.
        both = (found < lidar.max_range) == (traced(lidar, centers, RADIUS) < lidar.max_range)
        assert both.mean() > 0.97
        np.testing.assert_allclose(found[both], traced(lidar, centers, RADIUS)[both], atol=2e-3)
        off = np.abs(found - traced(lidar, centers, RADIUS))[both]
        assert np.median(off) < 1e-5


def test_a_beam_that_hits_nothing_returns_the_largest_range_and_none_looks_behind_itself():
    lidar = Lidar(beams=4)
    ranges = lidar.ranges([Vec2(jnp.float32(0.5), jnp.float32(0.0))], RADIUS)
    np.testing.assert_allclose(ranges, [0.4, 1.0, 1.0, 1.0], atol=1e-6)


def test_the_nearest_of_two_disks_hides_the_other():
    near, far = (Vec2(jnp.float32(x), jnp.float32(0.0)) for x in (0.4, 0.8))
    for centers in ([near, far], [far, near]):
        assert float(Lidar().ranges(centers, RADIUS)[0]) == pytest.approx(0.3, abs=1e-6)


def test_beams_turn_with_the_sensor():
    lidar, plant, origin = Lidar(beams=4), Vec2(jnp.float32(1.0), jnp.float32(2.5)), Vec2(1.0, 2.0)
    ahead = to_sensor_frame(plant, origin, jnp.float32(1.0), jnp.float32(0.0))  # the sensor looks north
    assert float(lidar.ranges([ahead], RADIUS)[0]) == pytest.approx(0.4, abs=1e-6)


def test_without_errors_the_measured_ranges_are_the_true_ones():
    ranges = jnp.linspace(0.1, 1.0, 40)
    np.testing.assert_array_equal(Lidar().measure(ranges, Rng.from_seed(0, 0)), ranges)


def test_noise_and_dropouts_are_as_large_as_set_and_differ_between_beams_and_draws():
    lidar = Lidar(noise=0.02, dropout=0.1)
    true = jnp.where(jnp.arange(40) < 30, 0.5, 1.0)
    draw = jax.jit(jax.vmap(lambda world: lidar.measure(true, Rng.from_seed(0, world))))
    found = np.asarray(draw(jnp.arange(4000)))
    hit, free = found[:, :30], found[:, 30:]
    lost = hit == 1.0
    assert lost.mean() == pytest.approx(0.1, abs=0.005)
    assert hit[~lost].mean() == pytest.approx(0.5, abs=1e-3) and hit[~lost].std() == pytest.approx(0.02, rel=0.05)
    # A beam that hits nothing has no noise.
    assert (free == 1.0).all()
    between = np.corrcoef(np.where(lost, 0.0, hit - 0.5).T)
    assert np.abs(between - np.eye(30)).max() < 0.08
