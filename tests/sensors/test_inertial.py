from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Quat, Vec3
from slipstream.core.rng import Rng
from slipstream.dynamics.quadrotor import GRAVITY, PhysicsRandomization, Rotors, racer
from slipstream.sensors.inertial import Imu, ImuBias, Touch

ZERO = Vec3(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(0.0))
LEVEL = Quat(*(jnp.float32(x) for x in (1, 0, 0, 0)))


def test_a_hovering_vehicle_feels_its_weight_and_a_falling_one_nothing():
    hover = racer.hovering(ZERO, LEVEL, ZERO, ZERO)
    assert float(racer.specific_force(hover, None, PhysicsRandomization()).z) == pytest.approx(GRAVITY, rel=1e-4)
    fall = replace(hover, rotors=Rotors(*[jnp.float32(0.0)] * 4))
    assert float(racer.specific_force(fall, None, PhysicsRandomization()).norm()) == pytest.approx(0.0, abs=1e-6)


def test_noise_and_bias_have_the_size_they_are_given():
    imu = Imu(force_noise=0.2, rates_noise=0.01, force_bias=0.5, rates_bias=0.03)

    def one(world):
        bias, rng = imu.draw_bias(Rng.from_seed(0, world))
        reading, _ = imu.read(ZERO, ZERO, bias, rng)
        return reading, bias

    reading, bias = jax.vmap(one)(jnp.arange(20_000))
    assert np.std(bias.accelerometer.x) == pytest.approx(0.5, rel=0.03)
    assert np.std(reading.specific_force.y - bias.accelerometer.y) == pytest.approx(0.2, rel=0.03)
    assert np.std(reading.rates.z - bias.gyroscope.z) == pytest.approx(0.01, rel=0.03)


def test_a_perfect_imu_says_the_truth():
    imu = Imu(0.0, 0.0, 0.0, 0.0)
    truth = Vec3(jnp.float32(1.0), jnp.float32(2.0), jnp.float32(3.0))
    reading, _ = imu.read(truth, truth, ImuBias(ZERO, ZERO), Rng.from_seed(0, 0))
    assert [float(p) for p in reading.specific_force.parts] == [1.0, 2.0, 3.0]


def test_contact_is_felt_on_the_ground_and_not_in_the_air():
    vehicle = replace(racer, ground=True)
    for height, touching in ((vehicle.foot_drop - 0.001, True), (1.0, False)):
        flight = vehicle.hovering(replace(ZERO, z=jnp.float32(height)), LEVEL, ZERO, ZERO)
        assert bool(Touch().read(vehicle.ground_reaction(flight)[0])) is touching
