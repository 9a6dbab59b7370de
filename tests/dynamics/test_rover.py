"""A rover drives as its wheels point."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec2
from slipstream.dynamics.rover import ACKERMANN, CRAB, SPIN, Ground, Rover, RoverState

DT = 0.025


def vec(x, y):
    return Vec2(jnp.float32(x), jnp.float32(y))


FIRM = Ground(jnp.float32(0.0), vec(0.0, 0.0))


def driven(mode, steering, throttle, steps, ground=FIRM, yaw=0.0, rover=Rover()):
    """States after each step, with the wheels turned before the robot starts."""
    body = rover.steer(RoverState.at(vec(0.0, 0.0), jnp.float32(yaw)), steering)
    for _ in range(40):
        body = rover.step(body, 0.0, mode, ground, DT)

    @jax.jit
    def play(body):
        def tick(body, _):
            body = rover.step(body, throttle, mode, ground, DT)
            return body, body

        return jax.lax.scan(tick, body, length=steps)[1]

    return jax.tree.map(np.asarray, play(body))


@pytest.mark.parametrize("angle", [0.0, 0.4, -0.9, math.pi / 2])
@pytest.mark.parametrize("throttle", [1.0, -0.5])
def test_a_crab_drives_where_its_wheels_point_and_keeps_its_heading(angle, throttle):
    path = driven(CRAB, angle, throttle, 200, yaw=0.3)
    assert path.yaw[-1] == pytest.approx(0.3, abs=1e-5)
    course = math.atan2(path.position.y[-1], path.position.x[-1])
    wanted = angle + 0.3 + (math.pi if throttle < 0.0 else 0.0)
    assert math.cos(course - wanted) == pytest.approx(1.0, abs=1e-5)


def test_top_speed_is_that_of_the_wheels_and_is_reached_with_their_lag():
    path, rover = driven(CRAB, 0.0, 1.0, 100), Rover()
    assert path.left[-1] == pytest.approx(rover.max_speed, rel=1e-4)
    after = round(rover.speed_time_constant / DT) - 1
    assert path.left[after] == pytest.approx(rover.max_speed * (1.0 - math.exp(-1.0)), rel=1e-3)
    distance = rover.max_speed * (100 * DT - rover.speed_time_constant)
    assert path.position.x[-1] == pytest.approx(distance, abs=0.02)


@pytest.mark.parametrize("steering", [0.5, -1.2])
def test_in_ackermann_mode_a_rover_drives_a_circle_to_the_side_that_it_steers_to(steering):
    path = driven(ACKERMANN, steering, 1.0, 400)
    places, turned = np.stack(path.position.parts, -1)[40:], np.unwrap(path.yaw)[40:]
    assert np.sign(turned[-1] - turned[0]) == np.sign(steering)
    # The middle of the circle, by least squares, and the distance from it.
    columns = np.c_[2.0 * places, np.ones(len(places))]
    middle = np.linalg.lstsq(columns, (places**2).sum(-1), rcond=None)[0][:2]
    radius = np.linalg.norm(places - middle, axis=-1)
    assert np.ptp(radius) < 0.02 * radius.mean()
    travelled = np.linalg.norm(np.diff(places, axis=0), axis=-1).sum()
    assert travelled / radius.mean() == pytest.approx(abs(turned[-1] - turned[0]), rel=0.02)


@pytest.mark.parametrize("throttle", [1.0, -1.0])
def test_on_the_spot_a_rover_turns_to_the_left_and_stays_where_it_is(throttle):
    path, rover = driven(SPIN, 0.0, throttle, 100), Rover()
    assert abs(path.position.x[-1]) < 1e-4 and abs(path.position.y[-1]) < 1e-4
    rate = np.diff(np.unwrap(path.yaw))[-1] / DT
    # Each wheel rolls along a circle around the middle.
    assert rate == pytest.approx(throttle * rover.max_speed / math.hypot(rover.half_length, rover.half_width), rel=1e-3)


def test_wheels_turn_no_faster_than_their_motors_and_no_further_than_their_limit():
    rover = Rover()
    body = rover.steer(RoverState.at(vec(0.0, 0.0), jnp.float32(0.0)), 10.0)
    assert float(body.steering) == pytest.approx(rover.max_steering)
    body = rover.step(body, 0.0, CRAB, FIRM, DT)
    assert float(body.angles.front_left) == pytest.approx(rover.max_steering_speed * DT, rel=1e-5)


def test_slip_shortens_the_way_and_a_slope_pulls_aside_for_each_meter():
    slipping = Ground(jnp.float32(0.25), vec(0.0, 0.0))
    sliding = Ground(jnp.float32(0.0), vec(0.0, -0.1))
    firm, slipped, slid = (driven(CRAB, 0.0, 1.0, 100, ground) for ground in (FIRM, slipping, sliding))
    assert slipped.position.x[-1] == pytest.approx(0.75 * firm.position.x[-1], rel=1e-4)
    assert slid.position.x[-1] == pytest.approx(firm.position.x[-1], rel=1e-4)
    assert slid.position.y[-1] == pytest.approx(-0.1 * firm.position.x[-1], rel=1e-3)
    standing = driven(CRAB, 0.0, 0.0, 100, sliding)
    assert abs(standing.position.y[-1]) < 1e-6
