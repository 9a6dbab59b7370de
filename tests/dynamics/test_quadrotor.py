from dataclasses import replace

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from slipstream.dynamics.control import CONTROLS, RateControl, Stick, VelocityControl
from slipstream.dynamics.quadrotor import GRAVITY, VEHICLES, Flight, Rotors, Variation, racer
from slipstream.geometry import Quat, Vec3

DT = 0.0025
STILL = Vec3(0.0, 0.0, 0.0)
LEVEL = Quat(1.0, 0.0, 0.0, 0.0)


def floats(tree):
    return jax.tree.map(jnp.float32, tree)


def at_rest(vehicle, height=5.0):
    return floats(vehicle.at(Vec3(0.0, 0.0, height), LEVEL, STILL, STILL))


def flown(vehicle, flight, rotors, seconds, wind=None, variation=Variation(), dt=DT):
    step = lambda _, f: vehicle.step(f, floats(rotors), wind, variation, dt)  # noqa: E731
    return jax.jit(lambda f: jax.lax.fori_loop(0, round(seconds / dt), step, f))(flight)


def held(vehicle, control, stick, seconds, flight=None):
    """The vehicle with a stick held still."""
    stick = floats(Stick(*stick))

    def step(_, f):
        return vehicle.step(f, control.rotors(vehicle, f, stick), None, Variation(), DT)

    start = at_rest(vehicle) if flight is None else flight
    return jax.jit(lambda f: jax.lax.fori_loop(0, round(seconds / DT), step, f))(start)


def array(v):
    return np.array([float(p) for p in v.parts])


@pytest.mark.parametrize("name", VEHICLES)
@pytest.mark.parametrize("order", [1, 4])
def test_a_hovering_quadrotor_stays_where_it_is(name, order):
    vehicle = replace(VEHICLES[name], order=order)
    after = flown(vehicle, at_rest(vehicle), Rotors(*[vehicle.hover_speed] * 4), 2.0)
    np.testing.assert_allclose(array(after.position), [0, 0, 5], atol=1e-2)
    np.testing.assert_allclose(array(after.rates), 0, atol=1e-5)


@pytest.mark.parametrize("order", [1, 4])
def test_without_air_a_stopped_vehicle_falls_as_galileo_says(order):
    vehicle = replace(racer, body_drag=(0.0, 0.0, 0.0), rotor_drag=0.0, order=order)
    start = replace(at_rest(vehicle, 50.0), rotors=floats(Rotors(0.0, 0.0, 0.0, 0.0)))
    after = flown(vehicle, start, Rotors(0.0, 0.0, 0.0, 0.0), 1.0)
    assert float(after.velocity.z) == pytest.approx(-GRAVITY, rel=1e-3)
    # Semi-implicit Euler is off by half a step of velocity.
    assert float(after.position.z) == pytest.approx(50.0 - GRAVITY / 2, abs=GRAVITY * DT if order == 1 else 1e-3)


def test_a_falling_vehicle_reaches_the_speed_at_which_drag_carries_it():
    start = replace(at_rest(racer, 500.0), rotors=floats(Rotors(0.0, 0.0, 0.0, 0.0)))
    after = flown(racer, start, Rotors(0.0, 0.0, 0.0, 0.0), 30.0)
    terminal = np.sqrt(racer.mass * GRAVITY / racer.body_drag[2])
    assert float(after.velocity.z) == pytest.approx(-terminal, rel=1e-2)


@pytest.mark.parametrize(
    ("rotor", "roll", "pitch", "yaw"),
    [("front_left", 1, -1, 1), ("front_right", -1, -1, -1), ("rear_right", -1, 1, 1), ("rear_left", 1, 1, -1)],
)
def test_a_pulse_of_one_rotor_turns_the_body_its_way(rotor, roll, pitch, yaw):
    """Left lifts right-ward roll (+x), rear pitches the nose down (+y); clockwise rotors yaw it left (+z)."""
    speeds = Rotors(*[racer.hover_speed] * 4)
    after = flown(racer, at_rest(racer), replace(speeds, **{rotor: racer.hover_speed * 1.2}), 0.05)
    assert np.sign(array(after.rates)).tolist() == [roll, pitch, yaw]


def test_angular_momentum_of_a_body_spinning_free_is_kept():
    vehicle = replace(
        racer, inertia=(0.002, 0.003, 0.006), rotor_inertia=0.0, body_drag=(0, 0, 0), rotor_drag=0.0, order=4
    )
    stopped = floats(Rotors(0.0, 0.0, 0.0, 0.0))
    start = replace(at_rest(vehicle), rates=floats(Vec3(3.0, 8.0, 1.0)), rotors=stopped)

    def momentum(flight):
        return array(flight.attitude.rotate(Vec3(*vehicle.inertia) * flight.rates))

    def energy(flight):
        return float(flight.rates.dot(Vec3(*vehicle.inertia) * flight.rates)) / 2

    after = flown(vehicle, start, stopped, 2.0)
    np.testing.assert_allclose(momentum(after), momentum(start), rtol=2e-3, atol=1e-5)
    assert energy(after) == pytest.approx(energy(start), rel=1e-3)


def test_energy_of_free_flight_is_kept():
    vehicle = replace(racer, body_drag=(0.0, 0.0, 0.0), rotor_drag=0.0, order=4)
    stopped = floats(Rotors(0.0, 0.0, 0.0, 0.0))
    start = replace(at_rest(vehicle, 100.0), velocity=floats(Vec3(5.0, -3.0, 8.0)), rotors=stopped)

    def energy(flight):
        return float(flight.velocity.dot(flight.velocity)) / 2 + GRAVITY * float(flight.position.z)

    assert energy(flown(vehicle, start, stopped, 2.0)) == pytest.approx(energy(start), rel=1e-5)


def test_rotors_follow_up_and_down_with_their_own_lags():
    start = at_rest(racer)
    up = flown(racer, start, Rotors(*[racer.hover_speed + 100.0] * 4), racer.lag_up, dt=racer.lag_up / 8)
    down = flown(racer, start, Rotors(*[racer.hover_speed - 100.0] * 4), racer.lag_down, dt=racer.lag_down / 8)
    gap = 100.0 * (1 - np.exp(-1))
    assert float(up.rotors.front_left) == pytest.approx(racer.hover_speed + gap, abs=0.5)
    assert float(down.rotors.front_left) == pytest.approx(racer.hover_speed - gap, abs=0.5)


def test_both_orders_agree_when_steps_are_small():
    rotors = Rotors(*(racer.hover_speed * f for f in (1.03, 1.0, 1.02, 1.01)))
    ends = [
        array(flown(replace(racer, order=order), at_rest(racer), rotors, 0.5, dt=2.5e-4).position) for order in (1, 4)
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=5e-3)


def test_wind_carries_a_hovering_vehicle_along():
    after = flown(racer, at_rest(racer), Rotors(*[racer.hover_speed] * 4), 3.0, wind=floats(Vec3(4.0, 0.0, 0.0)))
    assert 0.5 < float(after.velocity.x) < 4.0
    assert abs(float(after.velocity.y)) < 1e-4


@pytest.mark.parametrize(("field", "factor"), [("mass", 1.2), ("thrust", 0.8)])
def test_a_heavier_or_weaker_vehicle_sinks(field, factor):
    variation = Variation(**{field: jnp.float32(factor)})
    after = flown(racer, at_rest(racer), Rotors(*[racer.hover_speed] * 4), 0.5, variation=variation)
    assert float(after.velocity.z) < -0.5


@pytest.mark.parametrize("name", VEHICLES)
def test_a_vehicle_set_down_stands_on_its_feet(name):
    vehicle = replace(VEHICLES[name], ground=True)
    start = at_rest(vehicle, vehicle.foot_drop + 0.05)
    stopped = Rotors(0.0, 0.0, 0.0, 0.0)
    after = flown(vehicle, replace(start, rotors=floats(stopped)), stopped, 3.0, dt=1e-3)
    assert float(after.position.z) == pytest.approx(vehicle.foot_drop, abs=2e-3)
    assert float(after.velocity.norm()) < 1e-2
    assert float(after.attitude.up.z) > 0.9999
    force, _ = vehicle.ground_reaction(after)
    assert float(force.z) == pytest.approx(vehicle.mass * GRAVITY, rel=2e-2)


def test_the_ground_rubs_a_sliding_vehicle_to_a_stop():
    vehicle = replace(racer, ground=True)
    start = replace(at_rest(vehicle, vehicle.foot_drop), velocity=floats(Vec3(1.0, 0.0, 0.0)))
    stopped = Rotors(0.0, 0.0, 0.0, 0.0)
    after = flown(vehicle, replace(start, rotors=floats(stopped)), stopped, 2.0, dt=1e-3)
    assert abs(float(after.velocity.x)) < 0.02
    assert 0.02 < float(after.position.x) < 0.3


@pytest.mark.parametrize("name", VEHICLES)
def test_the_rate_loop_reaches_the_rates_it_is_given(name):
    vehicle, control = VEHICLES[name], RateControl()
    after = held(vehicle, control, (0.2, 0.1, -0.1, 0.1), 0.4)
    wanted = np.array([0.1, -0.1, 0.1]) * control.max_rates
    np.testing.assert_allclose(array(after.rates), wanted, atol=0.12)


@pytest.mark.parametrize("name", VEHICLES)
def test_the_velocity_loop_reaches_the_velocity_it_is_given(name):
    vehicle, control = VEHICLES[name], VelocityControl()
    after = held(vehicle, control, (0.25, 0.0, 0.0, 0.0), 4.0)
    assert float(after.velocity.x) == pytest.approx(2.0, abs=0.5)
    assert abs(float(after.velocity.y)) < 0.1
    assert abs(float(after.velocity.z)) < 0.3


@pytest.mark.parametrize("action", CONTROLS)
def test_an_untouched_stick_hovers_or_nearly_so(action):
    after = held(racer, CONTROLS[action], (0.0, 0.0, 0.0, 0.0), 0.5)
    assert abs(float(after.position.z) - 5.0) < 0.05


@pytest.mark.parametrize("order", [1, 4])
def test_flight_agrees_with_mujoco_under_the_same_rotor_forces(order):
    """MuJoCo's rigid body, fed the forces of our rotors and air, flies where ours flies."""
    vehicle = replace(racer, order=order, rotor_inertia=0.0)
    ix, iy, iz = vehicle.inertia
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option timestep="{DT}" gravity="0 0 {-GRAVITY}" integrator="{"RK4" if order == 4 else "Euler"}"/>
        <worldbody><body name="quad" pos="0 0 5"><freejoint/>
        <inertial pos="0 0 0" mass="{vehicle.mass}" diaginertia="{ix} {iy} {iz}"/></body></worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    flight = at_rest(vehicle)
    step = jax.jit(lambda f, t: vehicle.step(f, t, None, Variation(), DT))
    wrench = jax.jit(lambda f: vehicle.wrench(f, None, Variation()))
    for k in range(400):
        t = k * DT
        swing = 0.12 * np.sin(2 * np.pi * 2.0 * t)
        target = floats(Rotors(*(racer.hover_speed * (1.15 + s * swing) for s in (1, -1, -1, 1))))
        # MuJoCo gets the forces at its own pose and speed, with the rotor speeds of ours.
        after = step(flight, target)
        mine = Flight(
            position=floats(Vec3(*data.qpos[:3])),
            attitude=floats(Quat(*data.qpos[3:])),
            velocity=floats(Vec3(*data.qvel[:3])),
            rates=floats(Vec3(*data.qvel[3:])),
            rotors=after.rotors,
        )
        force, torque = wrench(mine)
        data.xfrc_applied[1, :3] = array(mine.attitude.rotate(force))
        data.xfrc_applied[1, 3:] = array(mine.attitude.rotate(torque))
        mujoco.mj_step(model, data)
        flight = after
    apart = np.linalg.norm(array(flight.position) - data.qpos[:3])
    moved = np.linalg.norm(data.qpos[:3] - [0, 0, 5])
    assert moved > 1.0
    assert apart < 0.01


def test_gyroscopic_reaction_of_the_rotors_turns_a_pitching_vehicle():
    """All four rotors spin up unevenly: the spare angular momentum couples pitch into roll."""
    start = replace(at_rest(racer), rates=floats(Vec3(0.0, 5.0, 0.0)))
    uneven = floats(Rotors(3000.0, 2000.0, 3000.0, 2000.0))
    start = replace(start, rotors=uneven)
    steady = floats(Rotors(0.0, 0.0, 0.0, 0.0))
    with_spin = racer.accelerations(start, steady, None, Variation())[1]
    without = replace(racer, rotor_inertia=0.0).accelerations(start, steady, None, Variation())[1]
    spin = -racer.rotor_inertia * 2000.0
    assert float(with_spin.x - without.x) == pytest.approx(-5.0 * spin / racer.inertia[0], rel=1e-4)


@pytest.mark.parametrize("order", [1, 4])
def test_what_rotors_gain_of_spin_about_the_yaw_axis_the_body_gives(order):
    """Without air the angular momentum of body and rotors together stays what it was, however large the step."""
    vehicle = replace(racer, order=order, torque_curve=(0.0, 0.0), body_drag=(0.0, 0.0, 0.0), rotor_drag=0.0)
    slow, fast = vehicle.hover_speed * 0.9, vehicle.hover_speed * 1.1
    start = at_rest(vehicle)
    after = flown(vehicle, start, Rotors(fast, slow, fast, slow), seconds=0.1)
    gained = vehicle.rotor_inertia * float(after.rotors.yawing - start.rotors.yawing)
    assert vehicle.inertia[2] * float(after.rates.z) == pytest.approx(gained, rel=2e-3)
    assert abs(gained) > 0.0


def test_a_vehicle_of_impossible_numbers_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        replace(racer, mass=0.0)
