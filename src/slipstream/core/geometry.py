"""Vectors and rotations as structs of scalars, so that `vmap` makes each component one contiguous array."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .struct import struct

Scalar = Float[Array, ""] | float
Flag = Bool[Array, ""] | bool


def sin_cos(angle: Scalar) -> tuple[Scalar, Scalar]:
    """Sine and cosine to float32 accuracy, by polynomials that vectorise.

    XLA calls the scalar C library for each sine on a CPU; this is some twenty times faster. Angles far
    beyond ±1000 rad lose accuracy.
    """
    turns = jnp.round(angle * (2.0 / jnp.pi))
    # Two-part π/2, so that the remainder keeps its last bits.
    x = (angle - turns * 1.5707964) + turns * 4.371139e-8
    square = x * x
    sine = x + x * square * (-1.6666654e-1 + square * (8.3321608e-3 - 1.9515296e-4 * square))
    cosine = 1.0 - 0.5 * square + square * square * (4.1666646e-2 + square * (-1.3887316e-3 + 2.4433157e-5 * square))
    quarter = turns - 4.0 * jnp.floor(turns * 0.25)
    swap = (quarter == 1.0) | (quarter == 3.0)
    s, c = jnp.where(swap, cosine, sine), jnp.where(swap, sine, cosine)
    return jnp.where(quarter >= 2.0, -s, s), jnp.where((quarter == 1.0) | (quarter == 2.0), -c, c)


@struct
class Vec2:
    """A vector in the plane."""

    x: Scalar
    y: Scalar

    def __add__(self, other: "Vec2") -> "Vec2":
        return Vec2(self.x + other.x, self.y + other.y)

    def __sub__(self, other: "Vec2") -> "Vec2":
        return Vec2(self.x - other.x, self.y - other.y)

    def __mul__(self, factor: Scalar) -> "Vec2":
        return Vec2(self.x * factor, self.y * factor)

    def __neg__(self) -> "Vec2":
        return Vec2(-self.x, -self.y)

    def dot(self, other: "Vec2") -> Scalar:
        return self.x * other.x + self.y * other.y

    def cross(self, other: "Vec2") -> Scalar:
        """Positive if the other one points further to the left."""
        return self.x * other.y - self.y * other.x

    def norm(self) -> Scalar:
        """The length; its gradient is finite at zero, too."""
        return jnp.sqrt(jnp.maximum(self.dot(self), 1e-20))

    def unit(self) -> "Vec2":
        """The direction; the zero vector has none and stays zero."""
        return self * jax.lax.rsqrt(jnp.maximum(self.dot(self), 1e-12))

    @property
    def parts(self) -> tuple[Scalar, Scalar]:
        return self.x, self.y

    def turned(self, angle: Scalar) -> "Vec2":
        """The vector turned counter-clockwise by `angle`."""
        return self.rotated(*sin_cos(angle))

    def rotated(self, sin: Scalar, cos: Scalar) -> "Vec2":
        """The vector turned counter-clockwise by the angle of that sine and cosine."""
        return Vec2(cos * self.x - sin * self.y, sin * self.x + cos * self.y)


@struct
class Vec3:
    """A vector in space."""

    x: Scalar
    y: Scalar
    z: Scalar

    def __add__(self, other: "Vec3") -> "Vec3":
        return Vec3(self.x + other.x, self.y + other.y, self.z + other.z)

    def __sub__(self, other: "Vec3") -> "Vec3":
        return Vec3(self.x - other.x, self.y - other.y, self.z - other.z)

    def __mul__(self, factor: "Scalar | Vec3") -> "Vec3":
        """Times a number, or component by component."""
        if isinstance(factor, Vec3):
            return Vec3(self.x * factor.x, self.y * factor.y, self.z * factor.z)
        return Vec3(self.x * factor, self.y * factor, self.z * factor)

    def __truediv__(self, factor: "Scalar | Vec3") -> "Vec3":
        if isinstance(factor, Vec3):
            return Vec3(self.x / factor.x, self.y / factor.y, self.z / factor.z)
        return self * (1.0 / factor)

    def __neg__(self) -> "Vec3":
        return Vec3(-self.x, -self.y, -self.z)

    def dot(self, other: "Vec3") -> Scalar:
        return self.x * other.x + self.y * other.y + self.z * other.z

    def cross(self, other: "Vec3") -> "Vec3":
        return Vec3(
            self.y * other.z - self.z * other.y,
            self.z * other.x - self.x * other.z,
            self.x * other.y - self.y * other.x,
        )

    def norm(self) -> Scalar:
        """The length; its gradient is finite at zero, too."""
        return jnp.sqrt(jnp.maximum(self.dot(self), 1e-20))

    def unit(self) -> "Vec3":
        """The direction; the zero vector has none and stays zero."""
        return self * jax.lax.rsqrt(jnp.maximum(self.dot(self), 1e-12))

    def clipped(self, limit: "Vec3") -> "Vec3":
        return Vec3(
            jnp.clip(self.x, -limit.x, limit.x),
            jnp.clip(self.y, -limit.y, limit.y),
            jnp.clip(self.z, -limit.z, limit.z),
        )

    @property
    def parts(self) -> tuple[Scalar, Scalar, Scalar]:
        return self.x, self.y, self.z


@struct
class Quat:
    """A unit quaternion, scalar first; it turns body vectors into world vectors."""

    w: Scalar
    x: Scalar
    y: Scalar
    z: Scalar

    @classmethod
    def from_euler(cls, roll: Scalar, pitch: Scalar, yaw: Scalar) -> "Quat":
        """Yaw about z, then pitch about the new y, then roll about the new x."""
        (sr, cr), (sp, cp), (sy, cy) = (sin_cos(angle * 0.5) for angle in (roll, pitch, yaw))
        return Quat(
            cy * cp * cr + sy * sp * sr,
            cy * cp * sr - sy * sp * cr,
            cy * sp * cr + sy * cp * sr,
            sy * cp * cr - cy * sp * sr,
        )

    def __mul__(self, other: "Quat") -> "Quat":
        a, b = self, other
        return Quat(
            a.w * b.w - a.x * b.x - a.y * b.y - a.z * b.z,
            a.w * b.x + a.x * b.w + a.y * b.z - a.z * b.y,
            a.w * b.y - a.x * b.z + a.y * b.w + a.z * b.x,
            a.w * b.z + a.x * b.y - a.y * b.x + a.z * b.w,
        )

    @property
    def inverse(self) -> "Quat":
        return Quat(self.w, -self.x, -self.y, -self.z)

    def rotate(self, v: Vec3) -> Vec3:
        """Body to world:  v + 2 w (u × v) + 2 u × (u × v)."""
        u = Vec3(self.x, self.y, self.z)
        t = u.cross(v) * 2.0
        return v + t * self.w + u.cross(t)

    def unrotate(self, v: Vec3) -> Vec3:
        """World to body."""
        u = Vec3(self.x, self.y, self.z)
        t = v.cross(u) * 2.0
        return v + t * self.w + t.cross(u)

    def unit(self) -> "Quat":
        scale = jax.lax.rsqrt(self.w**2 + self.x**2 + self.y**2 + self.z**2)
        return Quat(self.w * scale, self.x * scale, self.y * scale, self.z * scale)

    def spun(self, rates_b: Vec3, dt: Scalar) -> "Quat":
        """The attitude after turning at `rates_b` for `dt`, to second order.

        One Newton step towards 1/|q| keeps it of unit length: exact to second order, and no square root.
        """
        half = rates_b * (0.5 * dt)
        q = self * Quat(1.0 - 0.5 * half.dot(half), half.x, half.y, half.z)
        scale = 1.5 - 0.5 * (q.w * q.w + q.x * q.x + q.y * q.y + q.z * q.z)
        return Quat(q.w * scale, q.x * scale, q.y * scale, q.z * scale)

    @property
    def axes(self) -> "Axes":
        """The rotation as a matrix: cheaper than `unrotate` from the second vector on."""
        return Axes(self.forward, self.left, self.up)

    @property
    def forward(self) -> Vec3:
        """The body's x axis in the world."""
        return Vec3(
            1.0 - 2.0 * (self.y**2 + self.z**2),
            2.0 * (self.x * self.y + self.w * self.z),
            2.0 * (self.x * self.z - self.w * self.y),
        )

    @property
    def left(self) -> Vec3:
        """The body's y axis in the world."""
        return Vec3(
            2.0 * (self.x * self.y - self.w * self.z),
            1.0 - 2.0 * (self.x**2 + self.z**2),
            2.0 * (self.y * self.z + self.w * self.x),
        )

    @property
    def up(self) -> Vec3:
        """The body's z axis in the world."""
        return Vec3(
            2.0 * (self.x * self.z + self.w * self.y),
            2.0 * (self.y * self.z - self.w * self.x),
            1.0 - 2.0 * (self.x**2 + self.y**2),
        )


@struct
class Axes:
    """A body's axes in the world."""

    forward: Vec3
    left: Vec3
    up: Vec3

    def unrotate(self, v: Vec3) -> Vec3:
        """World to body."""
        return Vec3(self.forward.dot(v), self.left.dot(v), self.up.dot(v))

    @property
    def down_b(self) -> Vec3:
        """The direction of gravity in the body."""
        return Vec3(-self.forward.z, -self.left.z, -self.up.z)


def heading(direction: Vec3) -> Quat:
    """The attitude that is level and looks along a horizontal unit vector, by half-angle formulas."""
    w = jnp.sqrt(jnp.maximum(0.5 * (1.0 + direction.x), 0.0))
    z = jnp.sqrt(jnp.maximum(0.5 * (1.0 - direction.x), 0.0))
    return Quat(w, 0.0 * w, 0.0 * w, jnp.where(direction.y < 0.0, -z, z))


def wrap_angle(angle: Scalar) -> Scalar:
    """The same angle between −π and π."""
    return angle - 2.0 * jnp.pi * jnp.round(angle * (0.5 / jnp.pi))


def angle_of(cosine: Scalar) -> Scalar:
    """The angle of a cosine, within 7e-5 rad, by a polynomial that vectorises (Abramowitz and Stegun 4.4.45)."""
    x = jnp.abs(cosine)
    angle = jnp.sqrt(jnp.maximum(1.0 - x, 1e-12)) * (1.5707288 + x * (-0.2121144 + x * (0.0742610 - 0.0187293 * x)))
    return jnp.where(cosine < 0.0, math.pi - angle, angle)


def arctan2(y: Scalar, x: Scalar) -> Scalar:
    """The angle of the vector (x, y) from the x axis, within 2e-6 rad, by a polynomial that vectorises."""
    steep = jnp.abs(y) > jnp.abs(x)
    small, large = jnp.where(steep, x, y), jnp.where(steep, y, x)
    ratio = small / jnp.where(jnp.abs(large) < 1e-12, 1e-12, large)
    square = ratio * ratio
    series = 0.19354346 + square * (-0.11643287 + square * (0.05265332 - 0.01172120 * square))
    angle = ratio * (0.99997726 + square * (-0.33262347 + square * series))
    quarter = jnp.where(y < 0.0, -0.5 * math.pi, 0.5 * math.pi)
    half = jnp.where(x < 0.0, 2.0 * quarter, 0.0)
    return jnp.where(steep, quarter - angle, half + angle)
