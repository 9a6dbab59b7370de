from dataclasses import replace

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from slipstream.core.geometry import Quat, Vec3
from slipstream.dynamics.control_modes import (
    CONTROL_MODES,
    FittedParameters,
    NormalizedCommand,
    RateControl,
    VelocityControl,
    collective,
)
from slipstream.dynamics.quadrotor import GRAVITY, VEHICLES, PhysicsRandomization, QuadrotorState, Rotors, racer

DT = 0.0025
STILL = Vec3(0.0, 0.0, 0.0)
LEVEL = Quat(1.0, 0.0, 0.0, 0.0)


def floats(tree):
    return jax.tree.map(jnp.float32, tree)


def at_rest(vehicle, height=5.0):
    return floats(vehicle.hovering(Vec3(0.0, 0.0, height), LEVEL, STILL, STILL))


def flown(vehicle, flight, rotors, seconds, wind=None, randomization=PhysicsRandomization(), dt=DT):
    step = lambda _, f: vehicle.step(f, floats(rotors), wind, randomization, dt)  # noqa: E731
    return jax.jit(lambda f: jax.lax.fori_loop(0, round(seconds / dt), step, f))(flight)


def held(vehicle, control, stick, seconds, flight=None):
    """The vehicle with a stick held still."""
    stick = floats(NormalizedCommand(*stick))

    def step(_, f):
        return vehicle.step(f, control.rotors(vehicle, f, stick), None, PhysicsRandomization(), DT)

    start = at_rest(vehicle) if flight is None else flight
    return jax.jit(lambda f: jax.lax.fori_loop(0, round(seconds / DT), step, f))(start)


def array(v):
    return np.array([float(p) for p in v.parts])


@pytest.mark.parametrize("name", VEHICLES)
@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_a_hovering_quadrotor_stays_where_it_is(name, integrator):
    vehicle = replace(VEHICLES[name], integrator=integrator)
    after = flown(vehicle, at_rest(vehicle), Rotors(*[vehicle.hover_speed] * 4), 2.0)
    np.testing.assert_allclose(array(after.position), [0, 0, 5], atol=1e-2)
    np.testing.assert_allclose(array(after.rates), 0, atol=1e-5)


@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_without_air_a_stopped_vehicle_falls_as_galileo_says(integrator):
    vehicle = replace(racer, body_drag=(0.0, 0.0, 0.0), rotor_drag=0.0, integrator=integrator)
    start = replace(at_rest(vehicle, 50.0), rotors=floats(Rotors(0.0, 0.0, 0.0, 0.0)))
    after = flown(vehicle, start, Rotors(0.0, 0.0, 0.0, 0.0), 1.0)
    assert float(after.velocity.z) == pytest.approx(-GRAVITY, rel=1e-3)
    # Semi-implicit Euler is off by half a step of velocity.
    assert float(after.position.z) == pytest.approx(
        50.0 - GRAVITY / 2, abs=GRAVITY * DT if integrator == "euler" else 1e-3
    )


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
        racer, inertia=(0.002, 0.003, 0.006), rotor_inertia=0.0, body_drag=(0, 0, 0), rotor_drag=0.0, integrator="rk4"
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
    vehicle = replace(racer, body_drag=(0.0, 0.0, 0.0), rotor_drag=0.0, integrator="rk4")
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


def test_both_integrators_agree_when_steps_are_small():
    rotors = Rotors(*(racer.hover_speed * f for f in (1.03, 1.0, 1.02, 1.01)))
    ends = [
        array(flown(replace(racer, integrator=integrator), at_rest(racer), rotors, 0.5, dt=2.5e-4).position)
        for integrator in ("euler", "rk4")
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=5e-3)


def test_wind_carries_a_hovering_vehicle_along():
    after = flown(racer, at_rest(racer), Rotors(*[racer.hover_speed] * 4), 3.0, wind=floats(Vec3(4.0, 0.0, 0.0)))
    assert 0.5 < float(after.velocity.x) < 4.0
    assert abs(float(after.velocity.y)) < 1e-4


@pytest.mark.parametrize(("field", "factor"), [("mass", 1.2), ("thrust", 0.8)])
def test_a_heavier_or_weaker_vehicle_sinks(field, factor):
    randomization = PhysicsRandomization(**{field: jnp.float32(factor)})
    after = flown(racer, at_rest(racer), Rotors(*[racer.hover_speed] * 4), 0.5, randomization=randomization)
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


@pytest.mark.parametrize("action", CONTROL_MODES)
def test_an_untouched_stick_hovers_or_nearly_so(action):
    after = held(racer, CONTROL_MODES[action], (0.0, 0.0, 0.0, 0.0), 0.5)
    assert abs(float(after.position.z) - 5.0) < 0.05


@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_flight_agrees_with_mujoco_under_the_same_rotor_forces(integrator):
    """MuJoCo's rigid body, fed the forces of our rotors and air, flies where ours flies."""
    vehicle = replace(racer, integrator=integrator, rotor_inertia=0.0)
    ix, iy, iz = vehicle.inertia
    method = "RK4" if integrator == "rk4" else "Euler"
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option timestep="{DT}" gravity="0 0 {-GRAVITY}" integrator="{method}"/>
        <worldbody><body name="quad" pos="0 0 5"><freejoint/>
        <inertial pos="0 0 0" mass="{vehicle.mass}" diaginertia="{ix} {iy} {iz}"/></body></worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    flight = at_rest(vehicle)
    step = jax.jit(lambda f, t: vehicle.step(f, t, None, PhysicsRandomization(), DT))
    wrench = jax.jit(lambda f: vehicle.wrench(f, None, PhysicsRandomization()))
    for k in range(400):
        t = k * DT
        swing = 0.12 * np.sin(2 * np.pi * 2.0 * t)
        target = floats(Rotors(*(racer.hover_speed * (1.15 + s * swing) for s in (1, -1, -1, 1))))
        # MuJoCo gets the forces at its own pose and speed, with the rotor speeds of ours.
        after = step(flight, target)
        mine = QuadrotorState(
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
    with_spin = racer.accelerations(start, steady, None, PhysicsRandomization())[1]
    without = replace(racer, rotor_inertia=0.0).accelerations(start, steady, None, PhysicsRandomization())[1]
    spin = -racer.rotor_inertia * 2000.0
    assert float(with_spin.x - without.x) == pytest.approx(-5.0 * spin / racer.inertia[0], rel=1e-4)


@pytest.mark.parametrize("integrator", ["euler", "rk4"])
def test_what_rotors_gain_of_spin_about_the_yaw_axis_the_body_gives(integrator):
    """Without air the angular momentum of body and rotors together stays what it was, however large the step."""
    vehicle = replace(racer, integrator=integrator, torque_curve=(0.0, 0.0), body_drag=(0.0, 0.0, 0.0), rotor_drag=0.0)
    slow, fast = vehicle.hover_speed * 0.9, vehicle.hover_speed * 1.1
    start = at_rest(vehicle)
    after = flown(vehicle, start, Rotors(fast, slow, fast, slow), seconds=0.1)
    gained = vehicle.rotor_inertia * float(after.rotors.yawing - start.rotors.yawing)
    assert vehicle.inertia[2] * float(after.rates.z) == pytest.approx(gained, rel=2e-3)
    assert abs(gained) > 0.0


def test_a_vehicle_of_impossible_numbers_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        replace(racer, mass=0.0)


# Forces and torques, one at a time


def turned(vehicle, roll=0.0, pitch=0.0, yaw=0.0, **changes):
    attitude = Quat.from_euler(*map(jnp.float32, (roll, pitch, yaw)))
    return replace(at_rest(vehicle), attitude=attitude, **{name: floats(value) for name, value in changes.items()})


@pytest.mark.parametrize("name", VEHICLES)
def test_a_mix_gives_the_thrust_and_torque_it_was_made_for(name):
    vehicle = VEHICLES[name]
    hover = vehicle.mass * GRAVITY
    lever = 0.1 * hover * vehicle.arm[0]
    torque = Vec3(lever, -0.5 * lever, 0.1 * hover * vehicle.torque_per_thrust)
    rotors = vehicle.mix(jnp.float32(1.1 * hover), floats(torque))
    force, found = vehicle.wrench(replace(at_rest(vehicle), rotors=rotors), None, PhysicsRandomization())
    assert float(force.z) == pytest.approx(1.1 * hover, rel=1e-4)
    np.testing.assert_allclose(array(found), array(torque), rtol=1e-3)


def test_drag_acts_against_the_airspeed_alike_ahead_and_aside():
    still, _ = racer.wrench(at_rest(racer), None, PhysicsRandomization())
    total = 4.0 * racer.hover_speed
    for way in (Vec3(3.0, 0.0, 0.0), Vec3(0.0, 3.0, 0.0), Vec3(0.0, -3.0, 0.0)):
        force, _ = racer.wrench(replace(at_rest(racer), velocity=floats(way)), None, PhysicsRandomization())
        drag = (racer.body_drag[0] * 3.0 + racer.rotor_drag * total) * array(way)
        np.testing.assert_allclose(array(force) - array(still), -drag, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_variations_are_factors_on_what_they_are_named_for(factor):
    moving = turned(racer, velocity=Vec3(3.0, 2.0, 1.0), rotors=Rotors(2500.0, 2300.0, 2400.0, 2000.0))
    stopped = replace(moving, rotors=floats(Rotors(0.0, 0.0, 0.0, 0.0)))
    still = replace(moving, velocity=floats(STILL))
    (force, torque), (drag, _) = (racer.wrench(flight, None, PhysicsRandomization()) for flight in (still, stopped))
    stronger = racer.wrench(still, None, PhysicsRandomization(thrust=jnp.float32(factor)))
    np.testing.assert_allclose(array(stronger[0]), factor * array(force), rtol=1e-5)
    np.testing.assert_allclose(array(stronger[1]), factor * array(torque), rtol=1e-5)
    draggier, _ = racer.wrench(stopped, None, PhysicsRandomization(drag=jnp.float32(factor)))
    np.testing.assert_allclose(array(draggier), factor * array(drag), rtol=1e-5)
    # At rest nothing but the torque turns the body, and inertia divides it.
    vehicle = replace(racer, rotor_inertia=0.0)
    plain, heavier = (
        vehicle.step(still, still.rotors, None, randomization, 1e-3).rates
        for randomization in (PhysicsRandomization(), PhysicsRandomization(inertia=jnp.float32(factor)))
    )
    np.testing.assert_allclose(array(heavier) * factor, array(plain), rtol=1e-4)


@pytest.mark.parametrize("rates", [(5.0, 0.0, 0.0), (0.0, 5.0, 0.0), (3.0, -4.0, 0.0)])
def test_spinning_rotors_turn_a_tilting_body_at_a_right_angle_to_its_turn(rates):
    """The torque of a gyroscope, −ω × H: across the turn and the spin, so that it does no work."""
    speeds = Rotors(3000.0, 2000.0, 3000.0, 2000.0)
    flight = turned(racer, rates=Vec3(*rates), rotors=speeds)
    spun, plain = (
        array(vehicle.step(flight, floats(speeds), None, PhysicsRandomization(), 1e-3).rates)
        for vehicle in (racer, replace(racer, rotor_inertia=0.0))
    )
    torque = (spun - plain) * np.array(racer.inertia) / 1e-3
    spin = np.array([0.0, 0.0, -racer.rotor_inertia * 2000.0])
    np.testing.assert_allclose(torque, -np.cross(rates, spin), rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("yaw", [0.7, 2.0, -1.3])
def test_a_landing_is_the_same_whatever_the_heading(yaw):
    vehicle = replace(racer, ground=True)
    stopped = Rotors(0.0, 0.0, 0.0, 0.0)
    ends = []
    for heading in (0.0, yaw):
        start = turned(vehicle, 0.2, 0.1, heading, position=Vec3(0.0, 0.0, vehicle.foot_drop + 0.01), rotors=stopped)
        after = flown(vehicle, start, stopped, 0.08, dt=1e-3)
        ends.append((array(after.rates), float(after.position.z)))
    assert np.linalg.norm(ends[0][0]) > 0.5
    np.testing.assert_allclose(ends[0][0], ends[1][0], atol=2e-2)
    assert ends[0][1] == pytest.approx(ends[1][1], abs=1e-4)


def test_an_accelerometer_feels_what_is_not_free_fall_on_the_ground_too():
    vehicle = replace(racer, ground=True)
    low = Vec3(0.0, 0.0, vehicle.foot_drop - 0.005)
    flight = turned(vehicle, 0.05, -0.04, 1.0, position=low, velocity=Vec3(0.5, -0.3, -0.1))
    after = vehicle.step(flight, flight.rotors, None, PhysicsRandomization(), 1e-3)
    felt = (after.velocity - flight.velocity) * 1e3 + Vec3(0.0, 0.0, GRAVITY)
    told = vehicle.specific_force(flight, None, PhysicsRandomization())
    np.testing.assert_allclose(array(told), array(flight.attitude.unrotate(felt)), rtol=1e-3, atol=1e-2)


# Controls


def test_the_collective_goes_from_nothing_by_hover_to_all_there_is():
    hover = racer.mass * GRAVITY
    thrusts = [float(collective(racer, jnp.float32(stick))) for stick in (-2.0, -1.0, -0.5, 0.0, 1.0, 2.0)]
    most = 4.0 * racer.max_thrust
    assert thrusts == pytest.approx([0.0, 0.0, 0.5 * hover, hover, most, most], abs=1e-5)


def test_a_rate_that_is_held_is_held_against_the_bodys_own_gyroscope():
    vehicle = replace(racer, inertia=(0.002, 0.003, 0.006))
    flight = turned(vehicle, rates=Vec3(1.0, -2.0, 1.5))
    rotors = RateControl().hold(vehicle, flight, jnp.float32(vehicle.mass * GRAVITY), flight.rates)
    _, torque = vehicle.wrench(replace(flight, rotors=rotors), None, PhysicsRandomization())
    ω = array(flight.rates)
    np.testing.assert_allclose(array(torque), np.cross(ω, np.array(vehicle.inertia) * ω), rtol=1e-2, atol=1e-6)


def test_no_error_in_yaw_costs_height():
    hover = racer.mass * GRAVITY
    for error in (1.0, 100.0, -100.0):
        rotors = RateControl().hold(racer, at_rest(racer), jnp.float32(hover), floats(Vec3(0.0, 0.0, error)))
        force, torque = racer.wrench(replace(at_rest(racer), rotors=rotors), None, PhysicsRandomization())
        assert float(force.z) == pytest.approx(hover, rel=1e-3)
        assert float(torque.z) * error > 0.0


@pytest.mark.parametrize("yaw", [0.0, 0.7, -2.2])
def test_velocities_are_commanded_in_the_frame_of_the_heading(yaw):
    control = VelocityControl()
    flight = turned(racer, 0.2, -0.3, yaw)
    told = control.setpoint(racer, flight, floats(NormalizedCommand(0.5, 0.25, -0.5, 1.0)))
    ahead, aside, up = 0.5 * control.max_velocity[0], 0.25 * control.max_velocity[1], -0.5 * control.max_velocity[2]
    nose = array(flight.attitude.forward)[:2]
    nose = nose / np.linalg.norm(nose)
    wanted = ahead * nose + aside * np.array([-nose[1], nose[0]])
    np.testing.assert_allclose(array(told.velocity), [*wanted, up], atol=1e-4)
    assert float(told.yaw_rate) == pytest.approx(control.max_yaw_rate)


@pytest.mark.parametrize("stick", [(1.0, 0.0, 0.0, 0.0), (0.0, -1.0, -1.0, 0.0), (0.0, 0.0, -1.0, 0.0)])
def test_no_velocity_asked_for_tilts_a_vehicle_beyond_its_limit(stick):
    control, stick = VelocityControl(), floats(NormalizedCommand(*stick))

    def tick(flight, _):
        after = racer.step(flight, control.rotors(racer, flight, stick), None, PhysicsRandomization(), DT)
        return after, after.attitude.up.z

    _, upright = jax.jit(lambda f: jax.lax.scan(tick, f, length=400))(at_rest(racer))
    assert float(jnp.min(upright)) > np.cos(control.max_tilt + 0.08)


def test_fitted_parameters_scale_lags_and_drag():
    tuned = FittedParameters(motor_lag=2.0, drag=0.5).apply(racer)
    assert (tuned.lag_up, tuned.lag_down) == (2.0 * racer.lag_up, 2.0 * racer.lag_down)
    flight = turned(racer, velocity=Vec3(3.0, -2.0, 4.0))
    still, plain, less = (
        array(vehicle.wrench(at, None, PhysicsRandomization())[0])
        for vehicle, at in ((racer, at_rest(racer)), (racer, flight), (tuned, flight))
    )
    np.testing.assert_allclose(less - still, 0.5 * (plain - still), rtol=1e-4)
