"""The camera against a slow ray-caster that shares nothing with it, and against MuJoCo's own renderer."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Quat, Vec3
from slipstream.sensors.camera import Camera, View
from slipstream.sensors.scene import GROUND, SKY, Color, Ground, Scene, daylight, hulls, shapes

KINDS = ("boxes", "ellipsoids", "cylinders", "capsules")
GREEN = Ground(*map(jnp.float32, (0.0, 2.0)), Color(0.3, 0.5, 0.3), Color(0.4, 0.6, 0.4))


def unit(rng, size):
    v = rng.normal(size=size)
    return v / np.linalg.norm(v)


def random_rows(rng):
    """Shapes of all kinds within ten meters of the origin, as plain numbers."""
    rows, label = {}, 0
    for kind in (*KINDS, "hulls"):
        rows[kind] = []
        for _ in range(5):
            size = rng.uniform(0.3, 1.5, 3)
            row = {
                "position": np.append(rng.uniform(-8, 8, 2), rng.uniform(0, 4)),
                "attitude": unit(rng, 4),
                "size": size if kind in ("boxes", "ellipsoids") else np.array([size[0], 0.0, size[2]]),
                "color": rng.uniform(0.2, 1.0, 3),
                "label": label,
            }
            if kind == "hulls":
                row["corners"] = rng.normal(size=(7, 3))
            rows[kind].append(row)
            label += 1
    return rows


def scene_of(rows, ground=GREEN):
    made = {kind: shapes(rows[kind]) for kind in KINDS if rows.get(kind)}
    return Scene(**daylight(), ground=ground, hulls=hulls(rows["hulls"]) if rows.get("hulls") else None, **made)


def view_of(position, attitude, field=1.2):
    return View(Vec3(*map(jnp.float32, position)), Quat(*map(jnp.float32, attitude)), jnp.float32(field), jnp.uint32(3))


def random_view(rng):
    """From a place around, looking inward, tilted any way."""
    angle = rng.uniform(-np.pi, np.pi)
    position = np.array([13 * np.cos(angle), 13 * np.sin(angle), rng.uniform(0.5, 9.0)])
    ahead = -position + rng.normal(size=3) * 3
    ahead /= np.linalg.norm(ahead)
    aside = unit(rng, 3)
    left = aside - ahead * (aside @ ahead)
    left /= np.linalg.norm(left)
    matrix = np.stack([ahead, left, np.cross(ahead, left)], axis=1)
    return position, quaternion(matrix), rng.uniform(0.6, 1.8)


def quaternion(m):
    w = np.sqrt(max(0.0, 1.0 + m[0, 0] + m[1, 1] + m[2, 2])) / 2
    x, y, z = (np.sqrt(max(0.0, 1.0 + s)) / 2 for s in (
        m[0, 0] - m[1, 1] - m[2, 2], m[1, 1] - m[0, 0] - m[2, 2], m[2, 2] - m[0, 0] - m[1, 1]))  # fmt: skip
    return np.array(
        [w, np.copysign(x, m[2, 1] - m[1, 2]), np.copysign(y, m[0, 2] - m[2, 0]), np.copysign(z, m[1, 0] - m[0, 1])]
    )


def matrix(q):
    w, x, y, z = q
    return np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip


# The slow ray-caster: world rays of unit length, distances, double precision.


def roots(a, b, c):
    """Both solutions of a t² + 2 b t + c = 0, or infinity."""
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(b * b - a * c)
        low, high = (-b - root) / a, (-b + root) / a
    return np.where(np.isnan(root), np.inf, low), np.where(np.isnan(root), np.inf, high)


def slab(place, ray, half):
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = (-half - place) / ray, (half - place) / ray
    return np.minimum(a, b), np.maximum(a, b)


def distance(kind, row, origin, rays):
    """To the first point of a shape, from outside, along each ray; infinite if there is none."""
    turn = matrix(row["attitude"])
    o, d = (origin - row["position"]) @ turn, rays @ turn
    size = row["size"]
    if kind == "boxes":
        enter, leave = zip(*(slab(o[k], d[:, k], size[k]) for k in range(3)), strict=True)
        enter, leave = np.max(enter, axis=0), np.min(leave, axis=0)
    elif kind == "ellipsoids":
        p, q = o / size, d / size
        enter, leave = roots((q * q).sum(1), q @ p, p @ p - 1)
    elif kind == "cylinders":
        p, q = o[:2] / size[0], d[:, :2] / size[0]
        around = roots((q * q).sum(1), q @ p, p @ p - 1)
        caps = slab(o[2], d[:, 2], size[2])
        enter, leave = np.maximum(around[0], caps[0]), np.minimum(around[1], caps[1])
        enter = np.where(np.isinf(around[0]), np.inf, enter)
    elif kind == "capsules":
        p, q = o[:2] / size[0], d[:, :2] / size[0]
        near, _ = roots((q * q).sum(1), q @ p, p @ p - 1)
        with np.errstate(invalid="ignore"):
            best = np.where(np.abs(o[2] + d[:, 2] * near) <= size[2], near, np.inf)
        for end in (size[2], -size[2]):
            p = (o - np.array([0, 0, end])) / size[0]
            q = d / size[0]
            near, _ = roots((q * q).sum(1), q @ p, p @ p - 1)
            best = np.where((near > 0) & (near < best), near, best)
        return np.where(best > 0, best, np.inf)
    else:
        from scipy.spatial import ConvexHull

        enter, leave = np.full(len(d), -np.inf), np.full(len(d), np.inf)
        for *normal, offset in ConvexHull(row["corners"]).equations:
            speed, gap = d @ np.array(normal), -(o @ np.array(normal) + offset)
            with np.errstate(divide="ignore"):
                t = gap / speed
            enter = np.where(speed < 0, np.maximum(enter, t), enter)
            leave = np.where(speed > 0, np.minimum(leave, t), leave)
    return np.where((enter <= leave) & (enter > 0), enter, np.inf)


def cast(rows, camera, position, attitude, field, shift=(0.0, 0.0)):
    """Labels and depths of every pixel, looked at `shift` of a pixel beside its center."""
    turn = matrix(attitude)
    reach = np.tan(field / 2)
    column, line = np.meshgrid(np.arange(camera.width), np.arange(camera.height))
    u = ((column + 0.5 + shift[0]) / camera.width * 2 - 1) * reach
    v = (1 - (line + 0.5 + shift[1]) / camera.height * 2) * reach * camera.height / camera.width
    rays = np.stack([np.ones(u.size), -u.ravel(), v.ravel()], axis=1)
    forward = 1 / np.linalg.norm(rays, axis=1)
    rays = (rays * forward[:, None]) @ turn.T
    with np.errstate(divide="ignore"):
        down = np.where(rays[:, 2] < 0, -position[2] / rays[:, 2], np.inf)
    label, nearest = np.where(np.isfinite(down), GROUND, SKY), down
    for kind, some in rows.items():
        for row in some:
            t = distance(kind, row, position, rays)
            label = np.where(t < nearest, row["label"], label)
            nearest = np.minimum(nearest, t)
    return label.reshape(u.shape), (nearest * forward).reshape(u.shape)


@pytest.mark.parametrize("size", [(80, 80), (61, 37)])
def test_every_pixel_is_what_a_slow_ray_caster_finds(size):
    camera = Camera(*size)
    render = jax.jit(camera.render)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rows = random_rows(rng)
        place = random_view(rng)
        frame = render(scene_of(rows), view_of(*place))
        label, depth = cast(rows, camera, *place)
        # A ray within a thousandth of a pixel of an edge may fall on either side of it.
        near_edge = np.zeros(label.shape, bool)
        for shift in ((1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3)):
            near_edge |= cast(rows, camera, *place, shift)[0] != label
        assert near_edge.mean() < 0.01
        same = np.asarray(frame.label) == label
        assert np.all(same | near_edge), f"{np.sum(~(same | near_edge))} pixels differ"
        clear = ~near_edge & np.isfinite(depth)
        np.testing.assert_allclose(np.asarray(frame.depth)[clear], depth[clear], rtol=1e-3)
        assert np.all(np.isinf(np.asarray(frame.depth)[(label == SKY) & ~near_edge]))


def test_mapped_over_cameras_and_worlds_each_image_is_the_one_taken_alone():
    rng = np.random.default_rng(1)
    camera = Camera(24, 16)
    scenes = [scene_of(random_rows(rng)) for _ in range(2)]
    scenes = [jax.tree.map(jnp.asarray, scene) for scene in scenes]
    views = [[view_of(*random_view(rng)) for _ in range(3)] for _ in range(2)]
    # Hulls of different worlds may differ in their number of planes.
    scenes = [jax.tree.map(lambda x: x, s.__class__(**{**vars(s), "hulls": None})) for s in scenes]
    stack = lambda *x: jnp.stack(x)  # noqa: E731
    all_views = jax.tree.map(stack, *(jax.tree.map(stack, *row) for row in views))
    both = jax.jit(jax.vmap(jax.vmap(camera.render, in_axes=(None, 0))))(jax.tree.map(stack, *scenes), all_views)
    assert both.packed.shape == (2, 3, 16, 24)
    alone = jax.jit(camera.render)
    for world in range(2):
        for number in range(3):
            one = alone(scenes[world], views[world][number])
            np.testing.assert_array_equal(both.label[world, number], one.label)
            np.testing.assert_allclose(both.depth[world, number], one.depth, rtol=1e-5)
            assert np.max(np.abs(both.rgb[world, number].astype(int) - one.rgb.astype(int))) <= 1


def test_an_upright_camera_sees_left_on_the_left_and_up_above():
    camera = Camera(40, 40)
    row = {"size": (0.5, 0.5, 0.5), "color": (1.0, 0.0, 0.0), "attitude": (1.0, 0.0, 0.0, 0.0)}
    rows = {"boxes": [{**row, "position": (5, 2, 3), "label": 1}, {**row, "position": (5, -2, 1), "label": 2}]}
    label = np.asarray(camera.render(scene_of(rows), view_of((0, 0, 2), (1, 0, 0, 0))).label)
    left, right = np.argwhere(label == 1).mean(0), np.argwhere(label == 2).mean(0)
    assert left[1] < 19 < right[1]
    assert left[0] < 19 < right[0]
    assert label[0, 20] == SKY
    assert label[-1, 20] == GROUND


def test_light_haze_and_pixel_noise_change_colors_and_nothing_else():
    camera, rng = Camera(32, 32), np.random.default_rng(4)
    scene, view = scene_of(random_rows(rng)), view_of(*random_view(rng))
    plain = camera.render(scene, view)
    for change in ({"pixel_noise": jnp.float32(0.1)}, {"visibility": jnp.float32(5.0)}):
        other = camera.render(Scene(**{**vars(scene), **change}), view)
        np.testing.assert_array_equal(plain.label, other.label)
        np.testing.assert_array_equal(plain.depth, other.depth)
        assert np.mean(plain.rgb != other.rgb) > 0.2


def test_a_camera_inside_a_shape_looks_through_it():
    rows = {kind: [{"position": (0, 0, 1), "attitude": (1, 0, 0, 0), "size": np.array([1.0, 1.0, 1.0]),
                    "color": (1, 1, 1), "label": 7}] for kind in KINDS}  # fmt: skip
    frame = Camera(16, 16).render(scene_of(rows), view_of((0, 0, 1), (1, 0, 0, 0)))
    assert set(np.unique(frame.label)) == {GROUND, SKY}


# In a process of its own: which way MuJoCo draws is settled when it is imported.
DRAW = """
import mujoco, numpy
model = mujoco.MjModel.from_xml_path("scene.xml")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 256, 256)
renderer.enable_segmentation_rendering()
renderer.update_scene(data, "eye")
numpy.save("labels.npy", renderer.render()[..., 0])
"""


def test_mujoco_sees_the_same_shapes(tmp_path):
    rng = np.random.default_rng(11)
    names = {"boxes": "box", "ellipsoids": "ellipsoid", "cylinders": "cylinder", "capsules": "capsule"}
    rows = {kind: some for kind, some in random_rows(rng).items() if kind in names}
    geoms, labels = [], []
    for kind, some in rows.items():
        for row in some:
            size = row["size"] if kind in ("boxes", "ellipsoids") else row["size"][[0, 2]]
            text = [" ".join(map(str, x)) for x in (row["position"], row["attitude"], size)]
            geoms.append(f'<geom type="{names[kind]}" pos="{text[0]}" quat="{text[1]}" size="{text[2]}"/>')
            labels.append(row["label"])
    position, attitude, _ = random_view(rng)
    # MuJoCo's camera looks along −z with y up, and gives its field of view vertically.
    turn = matrix(attitude)
    axes = [" ".join(map(str, axis)) for axis in (-turn[:, 1], turn[:, 2])]
    place = " ".join(map(str, position))
    (tmp_path / "scene.xml").write_text(
        '<mujoco><visual><global offwidth="256" offheight="256"/>'
        '<quality shadowsize="0" offsamples="0" numslices="128" numstacks="64"/></visual>'
        f'<worldbody><geom type="plane" size="0 0 1"/>{"".join(geoms)}'
        f'<camera name="eye" pos="{place}" xyaxes="{axes[0]} {axes[1]}" fovy="{np.degrees(1.2)}"/></worldbody></mujoco>'
    )
    done = subprocess.run(
        [sys.executable, "-c", DRAW], cwd=tmp_path, env={**os.environ, "MUJOCO_GL": "egl"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"MuJoCo cannot draw here: {done.stderr.strip().splitlines()[-1:]}")
    theirs = np.load(tmp_path / "labels.npy")
    table = np.array([GROUND, *labels, SKY])
    theirs = table[np.where(theirs < 0, len(table) - 1, theirs)]
    ours = np.asarray(jax.jit(Camera(256, 256).render)(scene_of(rows), view_of(position, attitude, 1.2)).label)
    for label in np.unique(ours[ours < GROUND]):
        a, b = ours == label, theirs == label
        if a.sum() >= 100:
            assert (a & b).sum() / (a | b).sum() >= 0.99, f"label {label}"
    # MuJoCo's ground ends before the horizon does.
    assert np.mean(ours == theirs) >= 0.99
