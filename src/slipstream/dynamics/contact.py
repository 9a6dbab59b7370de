"""Contacts between a cube, boxes and a plane: patches of a few points that push and rub, for an implicit solver.

A point at depth d that approaches at −vₙ pushes with f = k d − (k dt + c) vₙ, where vₙ is the velocity at the end of
the step, and rubs with −μ N v / √(v² + ε²), where normal force N and slip under the root are those of the step before.
So all is linear in the velocities that are sought.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from ..core.geometry import Axes, Flag, Scalar, Vec3
from ..core.struct import struct
from ..core.task import select


@struct
class Symmetric:
    """A symmetric 3×3 matrix."""

    xx: Scalar
    yy: Scalar
    zz: Scalar
    xy: Scalar
    xz: Scalar
    yz: Scalar

    def times(self, v: Vec3) -> Vec3:
        return Vec3(*(row.dot(v) for row in self.rows))

    @property
    def rows(self) -> tuple[Vec3, Vec3, Vec3]:
        return Vec3(self.xx, self.xy, self.xz), Vec3(self.xy, self.yy, self.yz), Vec3(self.xz, self.yz, self.zz)


@struct
class Matrix:
    """A 3×3 matrix by its rows."""

    x: Vec3
    y: Vec3
    z: Vec3

    @property
    def rows(self) -> tuple[Vec3, Vec3, Vec3]:
        return self.x, self.y, self.z

    def times(self, v: Vec3) -> Vec3:
        return Vec3(*(row.dot(v) for row in self.rows))

    def transposed_times(self, v: Vec3) -> Vec3:
        return self.x * v.x + self.y * v.y + self.z * v.z


@struct
class Twist:
    """The motion of a body: the velocity of the point that is the cube's center, and the spin."""

    velocity: Vec3
    spin: Vec3

    def __sub__(self, other: "Twist") -> "Twist":
        return Twist(self.velocity - other.velocity, self.spin - other.spin)

    def __add__(self, other: "Twist") -> "Twist":
        return Twist(self.velocity + other.velocity, self.spin + other.spin)

    def __mul__(self, factor: Scalar) -> "Twist":
        return Twist(self.velocity * factor, self.spin * factor)

    def dot(self, wrench: "Wrench") -> Scalar:
        """The power of a wrench."""
        return self.velocity.dot(wrench.force) + self.spin.dot(wrench.torque)


@struct
class Wrench:
    """Force on the cube, and torque about its center."""

    force: Vec3
    torque: Vec3

    def __sub__(self, other: "Wrench") -> "Wrench":
        return Wrench(self.force - other.force, self.torque - other.torque)

    def __add__(self, other: "Wrench") -> "Wrench":
        return Wrench(self.force + other.force, self.torque + other.torque)


@struct
class Resistance:
    """What a patch does to a cube that moves relative to what it touches: `push` minus a matrix times the twist."""

    linear: Symmetric
    mixed: Matrix  # force by spin; transposed, torque by velocity
    angular: Symmetric
    push: Wrench

    def times(self, twist: Twist) -> Wrench:
        """The part that resists the twist."""
        force = self.linear.times(twist.velocity) + self.mixed.times(twist.spin)
        return Wrench(force, self.mixed.transposed_times(twist.velocity) + self.angular.times(twist.spin))


@struct
class Frame:
    """A right-handed frame of a normal and two tangents."""

    normal: Vec3
    first: Vec3
    second: Vec3

    def resolve(self, v: Vec3) -> Vec3:
        """The components of a vector along normal and tangents."""
        return Vec3(self.normal.dot(v), self.first.dot(v), self.second.dot(v))


@struct
class Point:
    """A point of a patch, by its offset from the cube's center along the tangents."""

    first: Scalar
    second: Scalar
    depth: Scalar
    weight: Scalar  # 0 is no point


@struct
class Patch:
    """Points of contact that share a normal. It points to where the cube is pushed."""

    frame: Frame
    offset: Scalar  # of all points from the cube's center along the normal
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Material:
    """Stiffness and damping of each point of a contact."""

    stiffness: float
    """N/m"""
    damping: float
    """N·s/m"""
    max_depth: float
    """depth that the stiffness counts at most, m: what has got in deep is not thrown out"""
    slip: float
    """slip below which friction is viscous, m/s"""

    def scaled(self, factor: Scalar) -> "Material":
        """The material so many times as stiff and as damped; the factor may be traced."""
        return replace(self, stiffness=self.stiffness * factor, damping=self.damping * factor)  # pyright: ignore[reportArgumentType]


# What a patch does


def resistance(
    patch: Patch, relative: Twist, most: Scalar, friction: Scalar, material: Material, dt: float
) -> Resistance:
    """Of a patch whose frame is anyhow, at a twist relative to what the cube touches.

    For friction the normal force counts as `most` at most.
    """
    local = point_sums(patch, relative, most, friction, material, dt)
    kn, ct, offset = local.normal, local.friction, patch.offset
    frame = patch.frame
    n, first, second = frame.normal, frame.first, frame.second
    # The matrices in the frame of the patch, with the rows and columns normal, first, second; then turned.
    linear = outer_sum(n, n * (kn - ct), ct)
    by_normal = first * local.normal_second - second * local.normal_first
    by_first = second * (ct * offset) - n * local.friction_second
    by_second = n * local.friction_first - first * (ct * offset)
    mixed = Matrix(*(by_normal * a + by_first * b + by_second * c for a, b, c in zip(
        n.parts, first.parts, second.parts, strict=True)))  # fmt: skip
    arm = ct * offset * offset
    c00, c11, c22 = local.friction_square, local.normal_second_square + arm, local.normal_first_square + arm
    c01, c02, c12 = -local.friction_first * offset, -local.friction_second * offset, -local.normal_product
    rows = (
        n * c00 + first * c01 + second * c02,
        n * c01 + first * c11 + second * c12,
        n * c02 + first * c12 + second * c22,
    )
    angular = turned_symmetric((n, first, second), rows)
    push = Wrench(n * local.push, first * local.push_second - second * local.push_first)
    return Resistance(linear, mixed, angular, push)


def level_resistance(
    patch: Patch, motion: Twist, most: Scalar, friction: Scalar, material: Material, dt: float
) -> Resistance:
    """Of a patch on the mat, whose frame is z, x, y: without turning anything."""
    local = point_sums(patch, motion, most, friction, material, dt)
    kn, ct, offset = local.normal, local.friction, patch.offset
    reach = ct * offset
    linear = Symmetric(ct, ct, kn, 0.0, 0.0, 0.0)
    mixed = Matrix(
        Vec3(0.0, reach, -local.friction_second),
        Vec3(-reach, 0.0, local.friction_first),
        Vec3(local.normal_second, -local.normal_first, 0.0),
    )
    angular = Symmetric(
        local.normal_second_square + reach * offset,
        local.normal_first_square + reach * offset,
        local.friction_square,
        -local.normal_product,
        -local.friction_first * offset,
        -local.friction_second * offset,
    )
    return Resistance(
        linear, mixed, angular, Wrench(Vec3(0.0, 0.0, local.push), Vec3(local.push_second, -local.push_first, 0.0))
    )


@struct
class PointSums:
    """Sums over the points of a patch of normal damping, friction and push, and their first and second moments."""

    normal: Scalar
    normal_first: Scalar
    normal_second: Scalar
    normal_first_square: Scalar
    normal_second_square: Scalar
    normal_product: Scalar
    friction: Scalar
    friction_first: Scalar
    friction_second: Scalar
    friction_square: Scalar
    push: Scalar
    push_first: Scalar
    push_second: Scalar


def point_sums(
    patch: Patch, relative: Twist, most: Scalar, friction: Scalar, material: Material, dt: float
) -> PointSums:
    v, w = patch.frame.resolve(relative.velocity), patch.frame.resolve(relative.spin)
    damping = material.stiffness * dt + material.damping
    parts, total = [], 0.0
    for point in patch.points:
        a, b = point.first, point.second
        vn = v.x + w.y * b - w.z * a
        v1 = v.y + w.z * patch.offset - w.x * b
        v2 = v.z + w.x * a - w.y * patch.offset
        elastic = material.stiffness * jnp.minimum(point.depth, material.max_depth)
        force = point.weight * (elastic - damping * vn)
        # Damping must not act before the touch.
        touching = (force > 0.0) & (point.depth > dt * vn)
        normal = jnp.where(touching, force, 0.0)
        kn = jnp.where(touching, point.weight * damping, 0.0)
        push = jnp.where(touching, point.weight * elastic, 0.0)
        total = total + normal
        ct = normal * jax.lax.rsqrt(v1 * v1 + v2 * v2 + material.slip * material.slip)
        parts.append(
            PointSums(
                kn, kn * a, kn * b, kn * a * a, kn * b * b, kn * a * b,
                ct, ct * a, ct * b, ct * (a * a + b * b),
                push, push * a, push * b,
            )
        )  # fmt: skip
    sums = jax.tree.map(lambda *x: sum(x[1:], x[0]), *parts)
    grip = friction * jnp.clip(most / jnp.maximum(total, 1e-9), 0.0, 1.0)
    return replace(
        sums,
        friction=sums.friction * grip,
        friction_first=sums.friction_first * grip,
        friction_second=sums.friction_second * grip,
        friction_square=sums.friction_square * grip,
    )


def outer_sum(a: Vec3, b: Vec3, diagonal: Scalar) -> Symmetric:
    """a bᵀ, which is symmetric, with a number added on the diagonal."""
    return Symmetric(a.x * b.x + diagonal, a.y * b.y + diagonal, a.z * b.z + diagonal, a.x * b.y, a.x * b.z, a.y * b.z)


def turned_symmetric(frame: tuple[Vec3, Vec3, Vec3], rows: tuple[Vec3, Vec3, Vec3]) -> Symmetric:
    """The sum of fᵢ rᵢᵀ over the axes of a frame, which is symmetric."""

    def entry(i: int, j: int) -> Scalar:
        products = [f.parts[i] * r.parts[j] for f, r in zip(frame, rows, strict=True)]
        return products[0] + products[1] + products[2]

    return Symmetric(entry(0, 0), entry(1, 1), entry(2, 2), entry(0, 1), entry(0, 2), entry(1, 2))


# Where the cube touches


def mat_patch(height: Scalar, axes: Axes, half: Scalar) -> Patch:
    """The patch between a cube, whose center is at that height, and the mat: its eight corners."""
    points = []
    forward, left, up = axes.forward * half, axes.left * half, axes.up * half
    for a in (-1.0, 1.0):
        for b in (-1.0, 1.0):
            for c in (-1.0, 1.0):
                corner = forward * a + left * b + up * c
                points.append(Point(corner.x, corner.y, -(height + corner.z), 1.0))
    frame = Frame(Vec3(0.0, 0.0, 1.0), Vec3(1.0, 0.0, 0.0), Vec3(0.0, 1.0, 0.0))
    return Patch(frame, -height, tuple(points))


@struct
class Side:
    """An axis of one of two boxes, and the other box seen along it."""

    offset: Scalar  # of the other box's center
    cosines: Vec3  # of the other box's axes
    direction: Vec3  # in the world
    half: Scalar  # size of the box itself
    extent: Scalar  # half the length that the other box covers

    @property
    def overlap(self) -> Scalar:
        return self.half + self.extent - jnp.abs(self.offset)

    def __neg__(self) -> "Side":
        return Side(-self.offset, -self.cosines, -self.direction, self.half, self.extent)


BIAS = 5e-5
"""By how much less the cube's faces must overlap than the finger's to be the ones that count, m."""


def box_patch(
    center: Vec3, axes: Axes, half: Scalar, box_center: Vec3, box_axes: tuple[Vec3, Vec3, Vec3], box_half: Vec3
) -> Patch:
    """The patch between a cube and a box: on that face of either which the other overlaps least.

    Its points are the corners of the polygon in which that face and the nearest face of the other overlap: the ends of
    what the face leaves of the other's edges, and its own corners behind the other's face.
    """
    offset = center - box_center
    cube_axes = axes.forward, axes.left, axes.up
    cosines = [Vec3(*(e.dot(u) for u in cube_axes)) for e in box_axes]
    extents = [half * sum_of_sizes(c) for c in cosines]
    box_sides = [
        Side(e.dot(offset), c, e, h, extent)
        for e, c, h, extent in zip(box_axes, cosines, box_half.parts, extents, strict=True)
    ]
    cube_sides = []
    for k, u in enumerate(cube_axes):
        column = Vec3(*(c.parts[k] for c in cosines))
        extent = Vec3(*(jnp.abs(c) for c in column.parts)).dot(box_half)
        cube_sides.append(Side(-u.dot(offset), column, u, half + 0.0 * extent, extent))
    of_box, least_box = face_of(box_sides)
    of_cube, least_cube = face_of(cube_sides)
    cubes = jnp.asarray(least_cube < least_box - BIAS)  # the cube's face is the one
    face = select(cubes, of_cube, of_box)
    behind = jnp.asarray(face[0].offset < 0.0)
    face = select(behind, -face[0], face[0]), select(behind, -face[1], face[1]), face[2]
    other = Vec3(*(jnp.where(cubes, h, half) for h in box_half.parts))
    return patch_on_face(face, other, cubes)


def sum_of_sizes(v: Vec3) -> Scalar:
    return jnp.abs(v.x) + jnp.abs(v.y) + jnp.abs(v.z)


def face_of(sides: list[Side]) -> tuple[tuple[Side, Side, Side], Scalar]:
    """The side of least overlap with the two others as tangents, right-handed, and that overlap."""
    a, b, c = sides
    is_first = jnp.asarray((a.overlap < b.overlap) & (a.overlap < c.overlap))
    is_third = jnp.asarray(~is_first & (c.overlap < b.overlap))

    def pick(x: Side, y: Side, z: Side) -> Side:
        return select(is_first, x, select(is_third, z, y))

    face = pick(a, b, c), pick(b, c, -b), pick(c, a, a)
    return face, jnp.minimum(jnp.minimum(a.overlap, b.overlap), c.overlap)


def patch_on_face(face: tuple[Side, Side, Side], other: Vec3, cubes: Flag) -> Patch:
    """The patch on a face, by the half sizes of the other box; `cubes` is whether the face is the cube's."""
    normal, first, second = face
    quad = nearest_face(face, other)
    sign = jnp.where(cubes, -1.0, 1.0)
    points = []
    for place, weight in (*quad.clipped_edges(first.half, second.half), *quad.covered(first.half, second.half)):
        points.append(
            Point(
                first=sign * jnp.where(cubes, place.y, place.y - first.offset),
                second=jnp.where(cubes, place.z, place.z - second.offset),
                depth=-place.x,
                weight=weight,
            )
        )
    frame = Frame(normal.direction * sign, first.direction * sign, second.direction)
    return Patch(frame, jnp.where(cubes, -normal.half, normal.half - normal.offset), tuple(points))


@struct
class Quad:
    """A face of a box, by its center and the halves of two edges: height over another face, and place along that."""

    center: Vec3
    edge: Vec3
    other_edge: Vec3

    def clipped_edges(self, half1: Scalar, half2: Scalar) -> list[tuple[Vec3, Scalar]]:
        """Both ends of what a rectangle leaves of each edge, and their weights: 0 if nothing is left."""
        ends = []
        for along, across in ((self.edge, self.other_edge), (self.other_edge, self.edge)):
            inverse1, inverse2 = bounded_inverse(along.y), bounded_inverse(along.z)
            reach1, reach2 = half1 * jnp.abs(inverse1), half2 * jnp.abs(inverse2)
            for middle in (self.center - across, self.center + across):
                at1, at2 = -middle.y * inverse1, -middle.z * inverse2
                low = jnp.maximum(jnp.maximum(at1 - reach1, at2 - reach2), -1.0)
                high = jnp.minimum(jnp.minimum(at1 + reach1, at2 + reach2), 1.0)
                left = jnp.where(low < high, 1.0, 0.0)
                # A corner of the quad is the end of two edges.
                ends.append((middle + along * low, jnp.where(low > -1.0, left, 0.5 * left)))
                ends.append((middle + along * high, jnp.where(high < 1.0, left, 0.5 * left)))
        return ends

    def covered(self, half1: Scalar, half2: Scalar) -> list[tuple[Vec3, Scalar]]:
        """Where the quad is over the corners of a rectangle, and weights: 0 if it is not over one."""
        a, b = self.edge, self.other_edge
        scale = 1.0 / (a.y * b.z - a.z * b.y)
        found = []
        for y in (-half1, half1):
            for z in (-half2, half2):
                aside1, aside2 = y - self.center.y, z - self.center.z
                s, t = (aside1 * b.z - aside2 * b.y) * scale, (aside2 * a.y - aside1 * a.z) * scale
                over = (jnp.abs(s) < 1.0) & (jnp.abs(t) < 1.0)
                height = self.center.x + a.x * s + b.x * t
                found.append((Vec3(height, y, z), jnp.where(over, 1.0, 0.0)))
        return found


def bounded_inverse(x: Scalar) -> Scalar:
    return 1.0 / jnp.where(jnp.abs(x) < 1e-6, 1e-6, x)


def nearest_face(face: tuple[Side, Side, Side], other: Vec3) -> Quad:
    """The face of the other box that looks at this face: the one that is most parallel to it."""
    normal, first, second = face
    axes = [
        Vec3(n, f, s) * h
        for n, f, s, h in zip(normal.cosines.parts, first.cosines.parts, second.cosines.parts, other.parts, strict=True)
    ]
    steep = [jnp.abs(c) for c in normal.cosines.parts]
    is_first = jnp.asarray((steep[0] > steep[1]) & (steep[0] > steep[2]))
    is_third = jnp.asarray(~is_first & (steep[2] > steep[1]))

    def pick(x: Vec3, y: Vec3, z: Vec3) -> Vec3:
        return select(is_first, x, select(is_third, z, y))

    out, edge, other_edge = pick(*axes), pick(axes[1], axes[2], axes[0]), pick(axes[2], axes[0], axes[1])
    middle = Vec3(normal.offset - normal.half, first.offset, second.offset)
    return Quad(middle + out * jnp.where(out.x < 0.0, 1.0, -1.0), edge, other_edge)
