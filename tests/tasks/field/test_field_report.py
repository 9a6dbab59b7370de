"""The film and the page of the field robot."""

import re
from dataclasses import replace
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.evaluation.pilot import scripted_pilot
from slipstream.evaluation.runner import run_episodes
from slipstream.plants.fast import FastPlant
from slipstream.tasks.field import Field, report

TASK = Field(lanes=2, max_rows=2, time_limit=20.0).for_evaluation()


@lru_cache
def evaluated():
    """Episodes of a robot that drives straight ahead, into plants or away."""
    ahead = scripted_pilot(lambda state: jnp.array([1, 2, 0, 0, 0, 0, 0]))
    return run_episodes(TASK, ahead, FastPlant(), 12, 1, 12)


def test_a_film_shows_an_episode_and_then_one_that_touches_a_plant():
    result = evaluated()
    assert result.metrics["touched"].any()
    made = report.film(TASK, result.episodes, "field", 5.0, "")
    assert made.frames == sum(made.canvas.lengths) and len(made.canvas.lengths) == 2
    first, last = (np.asarray(made.canvas.draw(number)) for number in (0, made.frames - 1))
    assert first.shape == last.shape == (720, 1280, 3)
    red = (last == report.ALARM).all(-1)
    assert red.sum() > 100 and (first == report.ALARM).all(-1).sum() == 0
    # The robot is in the middle of the view close up.
    left, top, right, bottom = report.NEAR
    blue = np.argwhere((first[top:bottom, left:right] == report.BODY).all(-1)).mean(0)
    np.testing.assert_allclose(blue, [(bottom - top) / 2, (right - left) / 2], atol=12)


def test_the_touched_plants_are_those_within_reach_at_the_end():
    for episode in evaluated().episodes:
        touched = report.touched_plants(TASK, episode)
        assert touched.any() == (episode.metrics["touched"] > 0.5)
        if touched.any():
            assert report.clearance(TASK, episode)[-1] <= 1e-3
        assert (report.clearance(TASK, episode)[:-1] > 0.0).all()


def test_a_map_can_share_its_frame_and_says_how_it_goes():
    episode = evaluated().episodes[0]
    canvas = report.map_canvas(TASK, episode, "ours", 3.0, 316)
    canvas.set_frame(np.array([-2.0, -3.0]), np.array([5.0, 4.0]))
    assert canvas.draw(0).size == (316, 316)
    assert canvas.status(0) == ("driving", False)
    assert canvas.status(10_000) == ("touched a plant" if episode.metrics["touched"] else "lost its way", True)


@pytest.mark.parametrize("across", [0.5, 9.0])
def test_a_map_of_the_page_turns_a_long_field_but_never_mirrors_it(across):
    episode = evaluated().episodes[0]
    x, y = episode.trajectory["position"][0, :2]
    left = np.array([[x, y, 0.0], [x + 2.0, y, 0.0], [x + 2.0, y + across, 0.0]])
    drawn = report.path_chart(TASK, replace(episode, trajectory=episode.trajectory | {"position": left}))
    points = re.search('polyline points="([^"]*)"', drawn)
    assert points is not None
    a, b, c = (np.array(point.split(","), float) for point in points[1].split())
    (ahead_x, ahead_y), (aside_x, aside_y) = b - a, c - b
    # In SVG y points down.
    assert -(ahead_x * aside_y - ahead_y * aside_x) > 0.0


def test_the_page_shows_paths_ends_and_what_limits():
    result = evaluated()
    titles = [section.title for section in report.sections(TASK, result.episodes, result.metrics)]
    assert titles == ["Paths", "How episodes ended", "What limits"]
    assert sum(report.ends(result.metrics).values()) == pytest.approx(1.0)
    assert report.sections(TASK, [], result.metrics)
    assert report.hardness(result.episodes)[0] == sum(episode.metrics["success"] for episode in result.episodes)
