"""Vessels move as their equations say."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2
from slipstream.dynamics.vessel import PointVessel, TwinThrusterVessel, VesselState, Vortices

STILL = Vec2(jnp.float32(0.0), jnp.float32(0.0))


def settled(left, right, seconds=60.0, current=STILL):
    hull = TwinThrusterVessel()
    boat = hull.change_thrust(VesselState.at(STILL, jnp.float32(0.0)), left, right)
    return jax.lax.fori_loop(0, round(seconds / 0.05), lambda _, b: hull.step(b, current, 0.05), boat)


@pytest.mark.parametrize(("left", "right", "speed", "turn"), [(1e4, 1e4, 3.33, 0.0), (-1e4, -1e4, -2.27, 0.0)])
def test_top_speeds_are_those_of_the_balance_of_thrust_and_drag(left, right, speed, turn):
    boat = settled(left, right)
    assert float(boat.velocity_b.x) == pytest.approx(speed, abs=0.01)
    assert float(boat.yaw_rate) == pytest.approx(turn, abs=1e-4)
    assert TwinThrusterVessel().top_speed == pytest.approx(3.33, abs=0.01)


def test_more_thrust_on_the_right_turns_to_the_left_as_fast_as_drag_allows():
    boat = settled(-1e4, 1e4)
    assert 0.5 < float(boat.yaw_rate) < 0.99


def test_a_turning_vessel_without_drag_goes_straight_on_unless_turns_count_twice():
    free = {"linear_drag": (0.0, 0.0, 0.0), "quadratic_drag": (0.0, 0.0, 0.0), "added_mass": (0.0, 0.0, 0.0)}
    courses = []
    for twice in (False, True):
        hull, boat = TwinThrusterVessel(**free, original_kinematics=twice), VesselState.at(STILL, jnp.float32(0.0))
        boat = replace(boat, velocity_b=Vec2(jnp.float32(2.0), jnp.float32(0.0)), yaw_rate=jnp.float32(0.5))
        for _ in range(40):
            boat = hull.step(boat, STILL, 0.05)
        courses.append(float(jnp.arctan2(boat.velocity_w.y, boat.velocity_w.x)))
    assert courses[0] == pytest.approx(0.0, abs=2e-3)
    assert courses[1] == pytest.approx(-1.0, abs=2e-3)  # as far to the right as it has turned to the left


@pytest.mark.parametrize("added", [(-20.0, 0.0, 980.0), (60.0, 500.0, 300.0), (300.0, 0.0, 0.0), (0.0, 300.0, 0.0)])
def test_a_vessel_without_drag_keeps_its_energy_and_the_momentum_of_hull_and_water(added):
    """Kirchhoff: what the water adds to the masses turns with the hull, and turning does no work."""
    hull = TwinThrusterVessel(added_mass=added, linear_drag=(0.0, 0.0, 0.0), quadratic_drag=(0.0, 0.0, 0.0))
    masses = np.array([hull.mass + added[0], hull.mass + added[1], hull.inertia + added[2]])
    boat = VesselState.at(STILL, jnp.float32(0.3))
    boat = replace(boat, velocity_b=Vec2(jnp.float32(2.0), jnp.float32(0.7)), yaw_rate=jnp.float32(0.4))
    dt, seconds = 2e-4, 3.0

    def kept(boat):
        speeds = np.array([boat.velocity_b.x, boat.velocity_b.y, boat.yaw_rate], np.float64)
        s, c = np.sin(float(boat.yaw)), np.cos(float(boat.yaw))
        x, y = masses[:2] * speeds[:2]
        px, py = c * x - s * y, s * x + c * y
        place = np.array([boat.position.x, boat.position.y], np.float64)
        spin = masses[2] * speeds[2] + place[0] * py - place[1] * px
        return np.array([0.5 * masses @ speeds**2, px, py, spin])

    after = jax.jit(lambda b: jax.lax.fori_loop(0, round(seconds / dt), lambda _, b: hull.step(b, STILL, dt), b))(boat)
    np.testing.assert_allclose(kept(after), kept(boat), rtol=2e-3, atol=2.0)


def test_a_vessel_adrift_goes_with_the_water():
    boat = settled(0.0, 0.0, 300.0, Vec2(jnp.float32(0.5), jnp.float32(-0.3)))
    assert float(boat.velocity_w.x) == pytest.approx(0.5, abs=0.02)
    assert float(boat.velocity_w.y) == pytest.approx(-0.3, abs=0.02)


def test_a_point_reaches_the_speed_its_drag_allows_and_turns_as_commanded():
    point, boat = PointVessel(), VesselState.at(STILL, jnp.float32(0.0))
    for _ in range(400):
        boat = point.step(boat, 0.4, 0.1, STILL, 0.05)
    assert float(boat.velocity_b.x) == pytest.approx(2.0, abs=0.05)
    assert float(boat.yaw) == pytest.approx(2.0, abs=1e-3)


def test_vortices_add_up_and_are_still_in_their_centers():
    two = Vortices(jnp.array([0.0, 10.0]), jnp.array([0.0, 0.0]), jnp.array([2.5, -1.5]))

    def at(x, y):
        flow = two.velocity(Vec2(jnp.float32(x), jnp.float32(y)))
        return float(flow.x), float(flow.y)

    assert at(0.0, 0.0)[1] == pytest.approx(0.15, abs=1e-5)  # only the other one
    assert at(0.5, 0.0)[1] == pytest.approx(5.0 + 1.5 / 9.5, abs=1e-3)
    assert at(5.0, 0.0)[1] == pytest.approx(2.5 / 5.0 + 1.5 / 5.0, abs=1e-4)


@pytest.mark.parametrize("place", [(3.0, 4.0), (-2.0, 5.0), (0.2, -0.3)])
def test_a_vortex_of_positive_strength_turns_counter_clockwise_and_crosses_its_radius(place):
    one = Vortices(jnp.array([0.0]), jnp.array([0.0]), jnp.array([2.5]))
    away = Vec2(*map(jnp.float32, place))
    flow = one.velocity(away)
    radius = float(away.norm())
    assert float(away.cross(flow)) == pytest.approx(2.5 * min(1.0, (radius / 0.5) ** 2), rel=1e-4)
    assert float(away.dot(flow)) == pytest.approx(0.0, abs=1e-5)


def test_a_point_that_does_nothing_is_carried_by_the_water_whatever_its_heading():
    point, current = PointVessel(), Vec2(jnp.float32(0.3), jnp.float32(-0.5))
    for yaw in (0.0, 0.9, -2.5):
        boat = VesselState.at(STILL, jnp.float32(yaw))
        for _ in range(20):
            boat = point.step(boat, 0.0, 0.0, current, 0.05)
        assert [float(x) for x in (boat.position.x, boat.position.y)] == pytest.approx([0.3, -0.5], abs=1e-5)
        assert [float(x) for x in (boat.velocity_w.x, boat.velocity_w.y)] == pytest.approx([0.3, -0.5], abs=1e-5)
