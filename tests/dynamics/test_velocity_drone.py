"""The velocity drone: its response does not depend on the step size, and its limits hold."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec3
from slipstream.dynamics.quadrotor import GRAVITY
from slipstream.dynamics.velocity_drone import (
    Gimbal,
    VelocityCommand,
    VelocityDrone,
    VelocityDroneState,
    command_for_velocity,
    fly,
)


def hovering(yaw=0.0):
    return VelocityDroneState.at(Vec3(*map(jnp.float32, (0.0, 0.0, 10.0))), jnp.float32(yaw))


def command(*numbers):
    return VelocityCommand(*map(jnp.float32, numbers))


def flown(start, order, seconds, dt, model=VelocityDrone(), wind=None):
    """Every state of a flight at one command."""
    step = partial(fly, command=order, model=model, wind=wind, dt=dt)
    return jax.lax.scan(lambda g, _: (step(g), step(g)), start, length=round(seconds / dt))[1]


@pytest.mark.parametrize("dt", [0.008, 0.02, 0.05])
def test_the_step_response_does_not_depend_on_dt(dt):
    """Without limits it is the exponential of the time constant."""
    free = replace(VelocityDrone(), max_acceleration=1e3, max_tilt=1.5)
    flight = flown(hovering(), command(0.5, 0.0, 0.0, 0.0), 0.5, dt, free)
    time = dt * (1 + np.arange(len(flight.velocity.x)))
    np.testing.assert_allclose(flight.velocity.x, 6.0 * (1.0 - np.exp(-time / 0.45)), atol=1e-3)


def test_positions_of_coarse_and_fine_steps_agree():
    ends = [flown(hovering(), command(1.0, 0.3, 0.5, 0.4), 4.0, dt) for dt in (0.005, 0.04)]
    for part in ("x", "y", "z"):
        a, b = (float(getattr(end.position, part)[-1]) for end in ends)
        assert a == pytest.approx(b, abs=0.25)


def test_no_command_is_faster_or_harder_than_the_limits():
    model = VelocityDrone()
    rng = np.random.default_rng(0)
    go = jax.jit(jax.vmap(lambda c: flown(hovering(), VelocityCommand(*c), 6.0, 0.02)))
    flight = go(jnp.asarray(rng.uniform(-3.0, 3.0, (64, 4)), jnp.float32))
    v, a = flight.velocity, flight.acceleration
    assert float(jnp.max(jnp.hypot(v.x, v.y))) <= model.max_speed + 1e-3
    assert float(jnp.max(v.z)) <= model.max_climb_rate + 1e-3
    assert float(jnp.min(v.z)) >= -model.max_sink_rate - 1e-3
    assert float(jnp.max(jnp.hypot(a.x, a.y))) <= model.max_acceleration + 1e-3
    assert float(jnp.max(jnp.abs(flight.yaw_rate))) <= model.max_yaw_rate + 1e-5


@pytest.mark.parametrize("tilt_time", [0.0, 0.2])
def test_no_command_tilts_a_drone_beyond_its_limit(tilt_time):
    model = replace(VelocityDrone(), max_acceleration=50.0, max_tilt=0.3, tilt_time_constant=tilt_time)
    rng = np.random.default_rng(1)
    go = jax.jit(jax.vmap(lambda c: flown(hovering(), VelocityCommand(*c), 3.0, 0.05, model)))
    flight = go(jnp.asarray(rng.uniform(-1.0, 1.0, (64, 4)) * [1.0, 1.0, 1.0, 0.0], jnp.float32))
    pushed = np.hypot(flight.acceleration.x, flight.acceleration.y)
    assert pushed.max() <= GRAVITY * np.tan(0.3) + 1e-3
    assert pushed.max() > 0.9 * GRAVITY * np.tan(0.3)


@pytest.mark.parametrize("yaw", [0.0, 0.8, -2.0])
def test_the_thrust_points_along_the_acceleration_and_against_gravity(yaw):
    drone = replace(hovering(yaw), acceleration=Vec3(*map(jnp.float32, (2.0, -3.0, 1.0))))
    wanted = np.array([2.0, -3.0, 1.0 + GRAVITY])
    up = [float(x) for x in drone.attitude.up.parts]
    np.testing.assert_allclose(up, wanted / np.linalg.norm(wanted), atol=1e-5)
    assert float(drone.attitude.forward.cross(Vec3(np.cos(yaw), np.sin(yaw), 0.0)).z) == pytest.approx(0.0, abs=0.1)


def test_a_diagonal_command_is_no_faster_than_a_straight_one():
    flight = flown(hovering(), command(1.0, 1.0, 0.0, 0.0), 8.0, 0.02)
    assert [float(x[-1]) for x in (flight.velocity.x, flight.velocity.y)] == pytest.approx(
        [12.0 * 0.5**0.5] * 2, abs=1e-2
    )


def test_thrust_commanded_for_a_tilt_lifts_a_drone_until_it_has_tilted():
    rising, level = (
        flown(hovering(), command(1.0, 0.0, 0.0, 0.0), 0.4, 0.05, replace(TILTING, tilt_lift_gain=heave))
        for heave in (0.9, 0.0)
    )
    assert float(rising.position.z[-1]) > 10.01
    assert float(level.position.z[-1]) == pytest.approx(10.0, abs=1e-4)


def test_it_flies_where_its_nose_points_and_tilts_that_way():
    north = flown(hovering(np.pi / 2), command(1.0, 0.0, 0.0, 0.0), 0.3, 0.02)
    last = jax.tree.map(lambda x: x[-1], north)
    assert float(last.velocity.y) > 1.0
    assert abs(float(last.velocity.x)) < 1e-3
    assert float(last.attitude.up.y) > 0.2, "the thrust points the way it speeds up"
    np.testing.assert_allclose([float(last.attitude.forward.x)], [0.0], atol=1e-3)


def test_a_hovering_drone_drifts_with_a_fraction_of_the_wind():
    blown = flown(hovering(), command(0.0, 0.0, 0.0, 0.0), 10.0, 0.02, wind=Vec3(*map(jnp.float32, (8.0, 0.0, 0.0))))
    assert float(blown.velocity.x[-1]) == pytest.approx(8.0 * 0.15, abs=1e-2)


def test_the_response_has_a_gradient():
    """What a fit to recorded flights needs."""

    def miss(lag):
        model = replace(VelocityDrone(), velocity_time_constant=lag)
        return (flown(hovering(), command(0.3, 0.0, 0.0, 0.0), 1.0, 0.02, model).velocity.x[-1] - 3.0) ** 2

    step = 1e-2
    slope = (miss(jnp.float32(0.45 + step)) - miss(jnp.float32(0.45 - step))) / (2.0 * step)
    assert abs(float(slope)) > 0.1
    assert float(jax.grad(miss)(jnp.float32(0.45))) == pytest.approx(float(slope), rel=0.05)


def test_a_gimbal_turns_at_its_rate_and_stops_at_its_ends():
    gimbal = Gimbal(jnp.float32(0.0), jnp.float32(0.0))
    for _ in range(100):
        gimbal = gimbal.step(1.0, 2.0, 1.0, 0.05)
    assert float(gimbal.pitch) == pytest.approx(np.pi / 2)
    assert float(gimbal.yaw) == pytest.approx(5.0 - 2 * np.pi, abs=1e-4)
    looking = gimbal.attitude(jnp.float32(0.3)).forward
    assert float(looking.z) == pytest.approx(-1.0, abs=1e-5)


TILTING = replace(
    VelocityDrone(),
    velocity_time_constant=0.78,
    tilt_time_constant=0.18,
    tilt_onset_time=0.04,
    drag=0.32,
    velocity_integral_gain=0.16,
    tilt_thrust_gain=0.3,
    tilt_lift_gain=0.9,
    max_tilt=1.2,
)


def test_a_drone_with_tilt_dynamics_starts_later_and_reaches_its_speed():
    simple, tilting = (flown(hovering(), command(0.4, 0.0, 0.0, 0.0), 30.0, 0.2, h) for h in (VelocityDrone(), TILTING))
    assert float(tilting.velocity.x[0]) < 0.5 * float(simple.velocity.x[0])
    assert float(tilting.velocity.x[-1]) == pytest.approx(4.8, abs=0.25)


def test_the_integral_cancels_the_drift_with_the_wind():
    wind = Vec3(*map(jnp.float32, (4.0, 0.0, 0.0)))
    flight = flown(hovering(), command(0.0, 0.0, 0.0, 0.0), 40.0, 0.2, TILTING, wind)
    assert float(flight.velocity.x[5]) > 0.2
    assert abs(float(flight.velocity.x[-1])) < 0.15
    assert float(flight.acceleration.x[-1]) < -0.5


def test_the_tilt_rotates_with_the_yaw():
    flight = flown(hovering(), command(0.5, 0.0, 0.0, 0.9), 0.8, 0.2, TILTING)
    straight = flown(hovering(), command(0.5, 0.0, 0.0, 0.0), 0.8, 0.2, TILTING)
    assert float(flight.velocity.y[-1]) > 0.05
    assert abs(float(straight.velocity.y[-1])) < 1e-4


def test_a_tilt_that_rotates_keeps_its_size():
    slow = replace(TILTING, tilt_time_constant=1e6, tilt_lift_gain=0.0, yaw_time_constant=1e6)
    tilt = Vec3(*map(jnp.float32, (3.0, 1.0, 0.0)))
    start = replace(hovering(), acceleration=tilt, yaw_rate=jnp.float32(0.5))
    after = jax.tree.map(lambda x: x[-1], flown(start, command(0.0, 0.0, 0.0, 0.0), 1.0, 0.01, slow))
    wanted = (3.0 + 1.0j) * np.exp(0.5j)
    assert [float(after.acceleration.x), float(after.acceleration.y)] == pytest.approx(
        [wanted.real, wanted.imag], abs=0.02
    )


def test_the_command_for_a_velocity_brings_a_drone_with_tilt_dynamics_near_it_without_overshoot():
    def step(drone, _):
        chosen = command_for_velocity(
            drone, Vec3(jnp.float32(3.0), jnp.float32(-2.0), jnp.float32(0.0)), TILTING, None, 0.2
        )
        after = fly(drone, chosen, TILTING, None, 0.2)
        return after, after.velocity

    _, velocity = jax.lax.scan(step, hovering(), length=60)
    assert float(velocity.x[-1]) == pytest.approx(3.0, abs=0.2)
    assert float(velocity.y[-1]) == pytest.approx(-2.0, abs=0.2)
    assert float(jnp.max(velocity.x)) < 3.6
