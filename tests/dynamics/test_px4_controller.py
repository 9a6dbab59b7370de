"""PX4's controller: limits, gains, control allocation, anti-windup, and flights under a setpoint."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Quat, Vec3
from slipstream.dynamics.control_modes import PositionSetpoint, RateSetpoint, VelocitySetpoint
from slipstream.dynamics.px4_controller import Px4Controller
from slipstream.dynamics.quadrotor import GRAVITY, PhysicsRandomization, Rotors, iris, racer

STOCK = Px4Controller()
LEVEL = Quat(1.0, 0.0, 0.0, 0.0)


def floats(tree):
    return jax.tree.map(jnp.float32, tree)


def vec(x, y, z):
    return floats(Vec3(x, y, z))


def hovering(vehicle):
    return floats(vehicle.hovering(Vec3(0.0, 0.0, 10.0), LEVEL, Vec3(0.0, 0.0, 0.0), Vec3(0.0, 0.0, 0.0)))


def flown(vehicle, setpoint, seconds, controller=STOCK, wind=None, randomization=PhysicsRandomization()):
    """Flights and memories at every step under one setpoint."""

    def tick(carry, _):
        flight, memory = carry
        rotors, memory = controller.control(vehicle, flight, memory, setpoint)
        for _ in range(2):
            flight = vehicle.step(flight, rotors, wind, randomization, 0.5 * controller.dt)
        return (flight, memory), (flight, memory)

    start = hovering(vehicle)
    start = (start, floats(controller.start(vehicle, start)))
    return jax.jit(lambda s: jax.lax.scan(tick, s, length=round(seconds * controller.rate))[1])(start)


@pytest.mark.parametrize("vehicle", [iris, racer], ids=["iris", "racer"])
def test_a_velocity_is_reached_and_held(vehicle):
    flight, _ = flown(vehicle, VelocitySetpoint(vec(3.0, -2.0, 1.0), jnp.float32(0.0)), 8.0)
    assert float(flight.velocity.x[-1]) == pytest.approx(3.0, abs=0.2)
    assert float(flight.velocity.y[-1]) == pytest.approx(-2.0, abs=0.2)
    assert float(flight.velocity.z[-1]) == pytest.approx(1.0, abs=0.1)


def test_a_turn_in_place_keeps_the_place():
    flight, _ = flown(iris, VelocitySetpoint(vec(0.0, 0.0, 0.0), jnp.float32(0.6)), 4.0)
    assert float(flight.rates.z[-1]) == pytest.approx(0.6, abs=0.05)
    assert float(flight.position.norm()[-1]) == pytest.approx(10.0, abs=0.05)


def test_a_position_and_a_heading_are_reached():
    flight, _ = flown(iris, PositionSetpoint(vec(3.0, -2.0, 12.0), vec(0.0, 0.0, 0.0), jnp.float32(1.0)), 10.0)
    assert [float(p[-1]) for p in flight.position.parts] == pytest.approx([3.0, -2.0, 12.0], abs=0.05)
    nose = flight.attitude.forward
    assert math.atan2(nose.y[-1], nose.x[-1]) == pytest.approx(1.0, abs=0.01)


def test_wind_is_leaned_into_until_the_ground_stands_still():
    flight, _ = flown(iris, VelocitySetpoint(vec(0.0, 0.0, 0.0), jnp.float32(0.0)), 12.0, wind=vec(5.0, 0.0, 0.0))
    assert abs(float(flight.velocity.x[-1])) < 0.15
    assert float(flight.attitude.up.x[-1]) < -0.05


def test_a_heavier_vehicle_hovers_at_another_signal_and_the_controller_learns_it():
    setpoint = VelocitySetpoint(vec(0.0, 0.0, 0.0), jnp.float32(0.0))
    flight, memory = flown(iris, setpoint, 15.0, randomization=PhysicsRandomization(mass=jnp.float32(1.2)))
    assert abs(float(flight.velocity.z[-1])) < 0.05
    assert float(memory.hover_thrust[-1]) == pytest.approx(math.sqrt(1.2) * iris.hover_speed / iris.max_speed, rel=0.02)


def test_speed_and_tilt_stay_within_their_limits():
    flight, _ = flown(iris, VelocitySetpoint(vec(30.0, 0.0, -9.0), jnp.float32(0.0)), 8.0)
    assert float(jnp.max(flight.velocity.x)) < STOCK.max_speed + 0.3
    assert float(jnp.min(flight.velocity.z)) > -STOCK.max_sink - 0.3
    assert float(jnp.min(flight.attitude.up.z)) > math.cos(STOCK.max_tilt) - 0.03


@pytest.mark.parametrize("axis", ["x", "y"])
def test_rates_are_followed(axis):
    rates = replace(vec(0.0, 0.0, 0.0), **{axis: jnp.float32(3.0)})
    flight, _ = flown(racer, RateSetpoint(jnp.float32(racer.mass * GRAVITY), rates), 0.4)
    turned = np.asarray(getattr(flight.rates, axis))
    assert turned[-1] == pytest.approx(3.0, abs=0.2)
    assert np.argmax(turned > 1.9) / STOCK.rate < 0.06


def test_rotor_speeds_pass_through():
    wanted = floats(Rotors(100.0, 200.0, 300.0, 400.0))
    rotors, _ = STOCK.control(iris, hovering(iris), STOCK.start(iris, hovering(iris)), wanted)
    assert [float(p) for p in rotors.parts] == [100.0, 200.0, 300.0, 400.0]


def test_the_mixer_has_the_shares_of_a_symmetric_x():
    signals, short = STOCK.allocate(racer, jnp.float32(0.5), vec(0.1, 0.0, 0.0))
    assert np.array(signals.parts) - 0.5 == pytest.approx(np.array([1, -1, -1, 1]) * 0.0707107, abs=1e-5)
    signals, _ = STOCK.allocate(racer, jnp.float32(0.5), vec(0.0, 0.1, 0.0))
    assert np.array(signals.parts) - 0.5 == pytest.approx(np.array([-1, -1, 1, 1]) * 0.0707107, abs=1e-5)
    signals, _ = STOCK.allocate(racer, jnp.float32(0.5), vec(0.0, 0.0, 0.1))
    assert np.array(signals.parts) - 0.5 == pytest.approx(np.array([1, -1, 1, -1]) * 0.1, abs=1e-5)
    assert float(short.norm()) < 1e-5


def test_the_longer_lever_gets_the_smaller_share():
    roll, _ = STOCK.allocate(iris, jnp.float32(0.5), vec(0.1, 0.0, 0.0))
    pitch, _ = STOCK.allocate(iris, jnp.float32(0.5), vec(0.0, 0.1, 0.0))
    assert float(pitch.rear_left) - 0.5 == pytest.approx(0.0707107, abs=1e-5)
    assert float(roll.rear_left) - 0.5 == pytest.approx(0.0707107 * 0.13 / 0.21, abs=1e-5)


def test_at_full_thrust_height_gives_way_to_attitude_and_yaw_gives_way_first():
    signals, short = STOCK.allocate(racer, jnp.float32(1.0), vec(0.2, 0.0, 0.0))
    values = np.array(signals.parts)
    assert values.max() <= 1.0
    assert values.mean() < 0.95
    assert abs(float(short.x)) < 1e-3
    signals, short = STOCK.allocate(racer, jnp.float32(0.95), vec(0.05, 0.0, 0.9))
    assert np.array(signals.parts).max() <= 1.0
    assert abs(float(short.z)) > 0.3
    assert abs(float(short.x)) < 0.05


def test_versions_differ_where_px4_changed():
    assert Px4Controller.of_version("v1.17.0").attitude_p[0] == 4.0
    assert Px4Controller.of_version("1.16").attitude_p[0] == 6.5
    assert Px4Controller.of_version("1.14.3").yaw_torque_cutoff == 0.0
    with pytest.raises(ValueError, match="not a version of PX4"):
        Px4Controller.of_version("latest")
    with pytest.raises(ValueError, match="from PX4 1.13 on"):
        Px4Controller.of_version("1.9")


def test_a_controller_slower_than_its_filter_is_refused():
    with pytest.raises(ValueError, match="cannot filter"):
        Px4Controller(rate=50.0)


# Integrals, and what they do where the vehicle can do no more


def grown(wanted, unallocated_torque=0.0):
    """Growth of the roll rate integral in one step, relative to gain times error times time."""
    memory = replace(STOCK.start(iris, hovering(iris)), unallocated_torque=vec(unallocated_torque, 0.0, 0.0))
    _, after = STOCK.rate_loop(vec(0.0, 0.0, 0.0), vec(wanted, 0.0, 0.0), memory)
    return float(after.rate_integral.x) / (STOCK.rate_i[0] * wanted * STOCK.dt)


def test_the_integral_of_a_rate_fades_for_large_errors_and_waits_where_the_mixer_gave_less():
    whole = math.radians(400.0)
    assert grown(0.01) == pytest.approx(1.0, abs=1e-3)
    assert grown(0.5 * whole) == pytest.approx(0.75, abs=1e-3)
    assert grown(1.1 * whole) == 0.0
    assert grown(0.5, unallocated_torque=0.1) == 0.0
    assert grown(-0.5, unallocated_torque=-0.1) == 0.0
    # What was too much the other way does not keep it from growing.
    assert grown(0.5, unallocated_torque=-0.1) > 0.9


def pushed(wanted, velocity=(0.0, 0.0, 0.0), hover_thrust=0.5):
    memory = replace(STOCK.start(iris, hovering(iris)), hover_thrust=jnp.float32(hover_thrust))
    push, after = STOCK.velocity_loop(vec(*wanted), vec(*velocity), memory)
    across, up = STOCK.velocity_i
    integral = np.array([float(p) for p in after.velocity_integral.parts]) / (np.array([across, across, up]) * STOCK.dt)
    return np.array([float(p) for p in push.parts]), integral


def test_the_integral_of_height_waits_at_full_and_at_least_thrust():
    assert pushed((0.0, 0.0, 0.1))[1][2] == pytest.approx(0.1, abs=1e-4)
    assert pushed((0.0, 0.0, 3.0), (0.0, 0.0, -5.0), hover_thrust=0.7)[1][2] == 0.0
    assert pushed((0.0, 0.0, -1.5), (0.0, 0.0, 5.0))[1][2] == 0.0


def test_the_integral_along_the_ground_gives_way_where_the_tilt_is_at_its_limit():
    assert pushed((1.0, -0.5, 0.0))[1][:2] == pytest.approx([1.0, -0.5], abs=1e-3)
    far = pushed((12.0, -12.0, 0.0))[1]
    assert far[0] < 0.0 < far[1]


def test_climbing_at_full_power_keeps_its_margin_for_going_along_the_ground():
    push, _ = pushed((12.0, 0.0, 3.0), hover_thrust=0.9)
    assert push[2] == pytest.approx(math.sqrt(1.0 - STOCK.thrust_margin**2), abs=1e-4)
    assert np.linalg.norm(push) == pytest.approx(STOCK.max_thrust, abs=1e-4)
