"""The kinematics of the arm."""

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.core.geometry import Vec3
from slipstream.dynamics.arm import SO101, Joints


def joints(values):
    return Joints(*(jnp.float32(x) for x in values))


ANGLES = joints([0.4, 0.3, 1.1, 1.5, -0.3, 0.2])
RATES = joints([0.5, -0.7, 0.9, 0.2, 1.5, -2.0])


def moved(angles, rates, dt):
    return Joints(*(q + v * dt for q, v in zip(angles.parts, rates.parts, strict=True)))


def test_inverse_kinematics_puts_the_gripper_where_it_is_told_pointing_down():
    for target in ((0.2, 0.0, 0.05), (0.15, 0.12, 0.02), (0.26, -0.1, 0.06)):
        angles = SO101.inverse_kinematics(Vec3(*target), jnp.float32(0.1))
        gripper = SO101.gripper(angles, angles)
        np.testing.assert_allclose(np.array(gripper.position.parts), target, atol=2e-6)
        np.testing.assert_allclose(np.array(gripper.approach.parts), (0.0, 0.0, -1.0), atol=2e-6)


def test_a_target_out_of_reach_gives_the_nearest_angles_and_no_nan():
    angles = SO101.inverse_kinematics(Vec3(0.9, 0.3, 0.4), jnp.float32(0.0))
    assert np.isfinite(np.array(angles.parts)).all()


def test_the_gripper_moves_as_its_place_changes():
    dt = 1e-3
    now = SO101.gripper(ANGLES, RATES)
    earlier, later = (SO101.gripper(moved(ANGLES, RATES, s * dt), RATES) for s in (-1.0, 1.0))
    difference = (np.array(later.position.parts) - np.array(earlier.position.parts)) / (2 * dt)
    np.testing.assert_allclose(np.array(now.velocity.parts), difference, atol=2e-3)
    turned = (np.array(later.closing.parts) - np.array(earlier.closing.parts)) / (2 * dt)
    np.testing.assert_allclose(np.array(now.spin.cross(now.closing).parts), turned, atol=5e-3)


def test_a_force_loads_the_joints_by_the_transposed_jacobian():
    force = Vec3(jnp.float32(1.0), jnp.float32(-2.0), jnp.float32(3.0))
    nothing = SO101.load(ANGLES, Vec3(0.0, 0.0, 0.0))
    loads = np.array(SO101.load(ANGLES, force)) - np.array(nothing)

    def power(rates):
        return SO101.gripper(ANGLES, joints([*rates, 0.0, 0.0])).velocity.dot(force)

    np.testing.assert_allclose(loads, [power(row) for row in np.eye(4)], rtol=1e-4, atol=1e-5)


def test_a_servo_reaches_its_target_and_keeps_to_its_torque():
    def settle(target, load):
        def tick(carry, _):
            angle, rate = carry
            rate = SO101.servo.step(angle, rate, target, 1.0, 0.03, load, 0.002)
            return (angle + 0.002 * rate, rate), rate

        return jax.lax.scan(tick, (jnp.float32(0.0), jnp.float32(0.0)), length=500)

    (angle, _), _ = settle(0.3, 0.0)
    assert abs(float(angle) - 0.3) < 1e-3
    # A load beyond the largest torque turns it whatever the target.
    (_, rate), _ = settle(0.0, -5.0)
    assert float(rate) < -1.0
