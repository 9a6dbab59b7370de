import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Quat, Vec2, Vec3, angle_of, heading, sin_cos, wrap_angle


def vec(x, y, z):
    return Vec3(jnp.float32(x), jnp.float32(y), jnp.float32(z))


def array(v):
    return np.array([float(p) for p in v.parts])


def random_quat(seed):
    q = np.random.default_rng(seed).normal(size=4)
    return Quat(*(jnp.float32(x) for x in q / np.linalg.norm(q)))


@pytest.mark.parametrize("seed", range(5))
def test_body_to_world_and_back_is_the_identity(seed):
    q, v = random_quat(seed), vec(1.0, -2.0, 3.0)
    np.testing.assert_allclose(array(q.unrotate(q.rotate(v))), [1, -2, 3], atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_a_rotation_keeps_lengths_and_angles(seed):
    q, a, b = random_quat(seed), vec(1.0, 2.0, 3.0), vec(-2.0, 0.5, 1.0)
    assert float(q.rotate(a).dot(q.rotate(b))) == pytest.approx(float(a.dot(b)), abs=1e-4)


def test_a_quarter_turn_about_z_takes_ahead_to_the_left():
    q = Quat.from_euler(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(np.pi / 2))
    np.testing.assert_allclose(array(q.rotate(vec(1, 0, 0))), [0, 1, 0], atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_axes_of_an_attitude_are_its_rotated_unit_vectors(seed):
    q = random_quat(seed)
    np.testing.assert_allclose(array(q.forward), array(q.rotate(vec(1, 0, 0))), atol=1e-6)
    np.testing.assert_allclose(array(q.left), array(q.rotate(vec(0, 1, 0))), atol=1e-6)
    np.testing.assert_allclose(array(q.up), array(q.rotate(vec(0, 0, 1))), atol=1e-6)
    v = vec(0.3, -1.0, 2.0)
    np.testing.assert_allclose(array(q.axes.unrotate(v)), array(q.unrotate(v)), atol=1e-6)
    np.testing.assert_allclose(array(q.axes.down_b), array(q.unrotate(vec(0, 0, -1))), atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_product_of_quaternions_turns_by_both(seed):
    a, b, v = random_quat(seed), random_quat(seed + 10), vec(0.3, -1.0, 2.0)
    np.testing.assert_allclose(array((a * b).rotate(v)), array(a.rotate(b.rotate(v))), atol=1e-5)


def test_turning_for_a_second_at_one_radian_a_second_turns_by_a_radian():
    q = Quat(*(jnp.float32(x) for x in (1, 0, 0, 0)))
    for _ in range(1000):
        q = q.spun(vec(0, 0, 1), 1e-3)
    assert float(2 * jnp.arctan2(q.z, q.w)) == pytest.approx(1.0, abs=1e-4)
    assert float(q.w**2 + q.z**2) == pytest.approx(1.0, abs=1e-5)


def test_a_spinning_attitude_stays_of_unit_length():
    q, rates = random_quat(1), vec(20.0, -15.0, 9.0)
    after = jax.lax.fori_loop(0, 20_000, lambda _, q: q.spun(rates, 0.0025), q)
    assert float(after.w**2 + after.x**2 + after.y**2 + after.z**2) == pytest.approx(1.0, abs=1e-4)


def test_sine_and_cosine_are_those_of_the_library():
    angle = jnp.linspace(-50.0, 50.0, 20_001)
    sine, cosine = jax.vmap(sin_cos)(angle)
    np.testing.assert_allclose(sine, np.sin(np.float64(angle)), atol=2e-6)
    np.testing.assert_allclose(cosine, np.cos(np.float64(angle)), atol=2e-6)


def test_the_length_of_nothing_has_a_finite_slope():
    slope = jax.grad(lambda x: Vec3(x, 0.0 * x, 0.0 * x).norm())(jnp.float32(0.0))
    assert np.isfinite(slope)


def test_a_turned_vector_in_the_plane_keeps_its_length():
    v = Vec2(jnp.float32(3.0), jnp.float32(4.0)).turned(jnp.float32(0.7))
    assert float(v.norm()) == pytest.approx(5.0, abs=1e-5)


def test_euler_angles_are_a_turn_about_z_then_y_then_x():
    for roll, pitch, yaw in np.random.default_rng(0).uniform(-3.0, 3.0, (8, 3)):
        about = lambda axis, angle: Quat(np.cos(angle / 2), *(np.sin(angle / 2) * np.eye(3)[axis]))  # noqa: E731
        wanted = about(2, yaw) * about(1, pitch) * about(0, roll)
        made = Quat.from_euler(*map(jnp.float32, (roll, pitch, yaw)))
        np.testing.assert_allclose(
            [made.w, made.x, made.y, made.z], [wanted.w, wanted.x, wanted.y, wanted.z], atol=1e-6
        )


def test_a_vector_in_the_plane_turns_as_a_complex_number_does():
    for angle in (0.7, -2.0, 3.0):
        v = Vec2(jnp.float32(3.0), jnp.float32(-4.0)).turned(jnp.float32(angle))
        wanted = (3.0 - 4.0j) * np.exp(1j * angle)
        np.testing.assert_allclose([v.x, v.y], [wanted.real, wanted.imag], atol=1e-5)


def test_the_cross_product_in_the_plane_tells_left_from_right():
    v = Vec2(1.0, 2.0)
    assert v.cross(v.turned(0.5)) == pytest.approx(5.0 * np.sin(0.5), abs=1e-5)
    assert v.cross(v.turned(-0.5)) == pytest.approx(-5.0 * np.sin(0.5), abs=1e-5)


@pytest.mark.parametrize("angle", np.linspace(-3.1, 3.1, 9))
def test_a_heading_is_level_and_looks_along_its_direction(angle):
    q = heading(vec(np.cos(angle), np.sin(angle), 0.0))
    np.testing.assert_allclose(array(q.forward), [np.cos(angle), np.sin(angle), 0.0], atol=1e-5)
    np.testing.assert_allclose(array(q.up), [0.0, 0.0, 1.0], atol=1e-5)


def test_the_angle_of_a_cosine_is_that_of_the_library():
    cosine = jnp.linspace(-1.0, 1.0, 2001)
    np.testing.assert_allclose(angle_of(cosine), np.arccos(np.float64(cosine)), atol=8e-5)


def test_each_component_is_clipped_to_its_own_limit_on_both_sides():
    limit = vec(1.0, 2.0, 3.0)
    for sign in (-1.0, 1.0):
        np.testing.assert_array_equal(array(vec(*[9.0 * sign] * 3).clipped(limit)), sign * array(limit))
    np.testing.assert_array_equal(array(vec(0.9, -1.9, 2.9).clipped(limit)), np.float32([0.9, -1.9, 2.9]))


def test_a_wrapped_angle_points_the_same_way_and_lies_within_a_half_turn():
    angle = jnp.linspace(-20.0, 20.0, 4001)
    wrapped = np.asarray(wrap_angle(angle))
    assert np.abs(wrapped).max() <= np.pi + 1e-5
    np.testing.assert_allclose(np.exp(1j * wrapped), np.exp(1j * np.float64(angle)), atol=1e-5)
