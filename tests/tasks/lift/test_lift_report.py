"""Film and page of the lift."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.geometry import Vec3
from slipstream.core.rng import Rng
from slipstream.dynamics.grasp import NormalForces
from slipstream.evaluation.episode import Episode
from slipstream.tasks.lift import Lift, LiftCamera, report

TASK = Lift(camera=LiftCamera("rgb", resolution=16))


@pytest.fixture(scope="module")
def episode():
    """A cube that rises between closed fingers."""
    state, rows = TASK.reset(Rng.from_seed(0, 0)), []
    for k in range(12):
        place = Vec3(jnp.float32(0.2), jnp.float32(0.0), jnp.float32(0.08 + 0.002 * k))
        body = replace(
            state.body, cube=replace(state.body.cube, position=place), forces=NormalForces(*[jnp.float32(5.0)] * 3)
        )
        state = TASK.judge(state, body)
        rows.append(jax.device_get(TASK.record(state)))
    metrics = {name: float(value) for name, value in TASK.episode_metrics(state).items()}
    world = jax.device_get(TASK.world_record(state))
    return Episode({name: np.stack([row[name] for row in rows]) for name in rows[0]}, world, metrics, 0.02)


def test_a_film_shows_both_cameras_the_policy_s_view_and_the_success(episode):
    made = report.film(TASK, [episode], "a run", 10.0, "")
    first, last = (np.asarray(made.canvas.draw(k)) for k in (0, made.frames - 1))
    assert first.shape == (720, 1280, 3)
    assert (first[100:400, 40:400].reshape(-1, 3).std(0) > 5.0).all(), "the wrist sees something"
    counter = last[545:560, 18:170]
    assert (np.abs(counter.astype(int) - report.GOOD).sum(-1) == 0).any(), "the counter is filled"


def test_a_page_tells_how_episodes_ended(episode):
    metrics = {name: np.array([value]) for name, value in episode.metrics.items()}
    titles = [section.title for section in report.sections(TASK, [episode], metrics)]
    assert titles == ["How episodes ended", "How long it took", "One episode"]
    assert report.text(TASK).success == "lift the cube"


def test_without_episodes_there_is_still_a_page():
    metrics = {"success": np.zeros(2), "lost": np.ones(2), "duration": np.full(2, np.nan)}
    assert len(report.sections(TASK, [], metrics)) == 1
