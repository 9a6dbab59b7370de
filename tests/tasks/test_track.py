import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec3
from slipstream.core.rng import Rng
from slipstream.tasks.racing.track import DEPTH, OPENING, OUTER, TRACKS, GeneratedTrack, Track, gate_at, seven

RADIUS = 0.1


def point(gate, through, aside=0.0, up=0.0):
    """A point given in a gate's own frame."""
    x = gate.center.x + gate.cos * through - gate.sin * aside
    y = gate.center.y + gate.sin * through + gate.cos * aside
    return Vec3(jnp.float32(x), jnp.float32(y), jnp.float32(gate.center.z + up))


def flown(gate, aside=0.0, up=0.0, backward=False):
    ends = [point(gate, -0.3, aside, up), point(gate, 0.3, aside, up)]
    crossing = gate.crossing(*(ends[::-1] if backward else ends), RADIUS)
    return bool(crossing.through), bool(crossing.hit), bool(crossing.forward)


@pytest.mark.parametrize("index", range(7))
def test_the_middle_of_every_gate_is_open_in_its_direction_only(index):
    gate = seven.fixed[index]
    assert flown(gate) == (True, False, True)
    assert flown(gate, backward=True) == (False, False, False)


@pytest.mark.parametrize("index", range(7))
@pytest.mark.parametrize("side", ["aside", "up"])
def test_the_opening_ends_where_the_frame_begins_in_the_gates_own_frame(index, side):
    gate = seven.fixed[index]
    for sign in (-1, 1):
        inside, frame, beyond = OPENING / 2 - RADIUS - 0.01, OPENING / 2 - RADIUS + 0.01, OUTER / 2 + RADIUS + 0.01
        assert flown(gate, **{side: sign * inside}) == (True, False, True)
        assert flown(gate, **{side: sign * frame}) == (False, True, True)
        assert flown(gate, **{side: sign * beyond}) == (False, False, True)


def test_the_frame_is_hit_from_behind_too():
    assert flown(seven.fixed[0], aside=0.9, backward=True) == (False, True, False)


def test_sliding_into_the_frame_from_within_the_opening_hits_it():
    gate = seven.fixed[2]
    start, end = point(gate, DEPTH / 4, 0.0), point(gate, DEPTH / 4, OPENING / 2)
    assert bool(gate.crossing(start, end, RADIUS).hit)


def test_a_gate_is_picked_by_its_index():
    for index in range(7):
        gate = gate_at(seven.fixed, jnp.int32(index))
        assert float(gate.center.x) == pytest.approx(seven.poses[index][0])
        assert float(gate.cos) == pytest.approx(seven.fixed[index].cos)


def test_the_seven_gate_track_is_as_long_as_the_original():
    centers = np.array([[g.center.x, g.center.y, g.center.z] for g in seven.fixed])
    length = np.linalg.norm(centers - np.roll(centers, -1, axis=0), axis=1).sum()
    assert length == pytest.approx(62.3, abs=0.1)


@pytest.mark.parametrize("name", [n for n, t in TRACKS.items() if isinstance(t, Track)])
def test_frames_of_a_track_do_not_overlap_and_gates_face_onward(name):
    gates = TRACKS[name].fixed
    check_flyable([np.array([[g.center.x, g.center.y, g.center.z, g.cos, g.sin] for g in gates])], spacing=2.1)


def check_flyable(tracks, spacing):
    for gates in tracks:
        centers, normals = gates[:, :3], gates[:, 3:]
        apart = np.linalg.norm(centers[:, None] - centers[None], axis=-1) + 1e9 * np.eye(len(gates))
        assert apart.min() > spacing
        assert (centers[:, 2] >= OUTER / 2 - 1e-6).all()
        np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1.0, atol=1e-4)
        # No gate has the next one behind it or the one before in front of it, and each faces along the way between.
        onward = np.roll(centers[:, :2], -1, axis=0) - centers[:, :2]
        leaving = np.sum(onward * normals, axis=1)
        entering = np.sum(np.roll(onward, 1, axis=0) * normals, axis=1)
        assert leaving.min() > -1e-4
        assert entering.min() > -1e-4
        assert (leaving + entering).min() > 1.0


@pytest.mark.parametrize("count", [4, 6, 10])
def test_generated_tracks_differ_and_can_all_be_flown(count):
    track = GeneratedTrack(count)

    def draw(world):
        gates, _ = track.draw(Rng.from_seed(0, world))
        return jnp.stack([jnp.stack([*g.center.parts, g.cos, g.sin]) for g in gates])

    tracks = np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(2000)))
    check_flyable(tracks, spacing=OUTER if count > 8 else 2.9)
    assert np.std(tracks[:, 0, 0]) > 2.0
    # From each gate the next lies ahead, and is entered from the right side.
    onward = np.roll(tracks[..., :2], -1, axis=1) - tracks[..., :2]
    leaving = np.sum(onward * tracks[..., 3:], -1)
    entering = np.sum(onward * np.roll(tracks[..., 3:], -1, axis=1), -1)
    assert leaving.min() > 0.0
    assert entering.min() > 0.0


def test_a_track_of_two_gates_is_refused():
    with pytest.raises(ValueError, match="at least 3 gates"):
        Track(((0, 0, 0, 0), (1, 0, 0, 0)))
