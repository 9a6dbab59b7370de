"""Tracks that a person has written."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from slipstream.core import device
from slipstream.experiment.experiment import Experiment
from slipstream.learn.compiled import Trainer
from slipstream.learn.shac import Shac
from slipstream.tasks.racing import Racing
from slipstream.tasks.racing.track_file import read_track

SQUARE = [{"x": 0, "y": 0}, {"x": 8, "y": 0, "height": 1}, {"x": 8, "y": 8}, {"x": 0, "y": 8, "heading_deg": 270}]


def written(folder, gates, name="square"):
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"gates": gates}))
    return path


def test_a_gate_without_a_heading_faces_from_the_gate_before_it_to_the_one_after_it(tmp_path):
    poses = read_track(written(tmp_path, SQUARE))
    assert poses[1] == (8.0, 0.0, 1.0, pytest.approx(math.pi / 4))
    assert poses[3][3] == pytest.approx(1.5 * math.pi)


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        (SQUARE[:2], "has 2 gates; a track has 3 to 32"),
        ([{**SQUARE[0], "hight": 1}, *SQUARE[1:]], "gate 1 .* has no 'hight'; did you mean 'height'"),
        ([{"y": 0}, *SQUARE[1:]], "gate 1 .* has no x"),
        ([{**SQUARE[0], "height": -1}, *SQUARE[1:]], "the lower edge is 0 to 20 m above the ground"),
        ([{**SQUARE[0], "x": "far"}, *SQUARE[1:]], "x 'far', which is no number"),
        ([{**SQUARE[0], "x": math.nan}, *SQUARE[1:]], "which is no number"),
        ([{"x": 60, "y": 0}, *SQUARE[1:]], "can be flown"),
        ([*SQUARE, {"x": 0.2, "y": 4}, {"x": 0.2, "y": 0.5}], "can be flown|apart"),
        ([7, *SQUARE[1:]], "is an object with"),
    ],
)
def test_a_wrong_track_is_refused_in_words(tmp_path, gates, words):
    with pytest.raises(ValueError, match=words):
        read_track(written(tmp_path, gates))


def test_a_file_that_is_no_track_is_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        read_track(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("gates")
    with pytest.raises(ValueError, match="is no JSON"):
        read_track(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="has no list of gates"):
        read_track(tmp_path / "list.json")


def test_an_experiment_keeps_the_gates_and_needs_the_file_no_more(tmp_path):
    path = written(tmp_path, SQUARE)
    task = Racing(track=str(path)).with_files()
    path.unlink()
    again = Experiment.from_dict(json.loads(json.dumps(Experiment(task, Shac()).as_dict())))
    assert again.task == task
    assert again.task.track == "square"
    assert again.task.course.count == 4
    np.testing.assert_allclose(again.task.data()[1], [8.0, 0.0, 1.0 + 2.1336 / 2, 2**-0.5, 2**-0.5], rtol=1e-6)


def test_one_program_serves_all_tracks_of_a_length(tmp_path):
    moved = [{**gate, "x": gate["x"] + 1.0} for gate in SQUARE]
    programs, states = [], []
    for gates in (SQUARE, moved):
        task = replace(Racing(track=str(written(tmp_path, gates)), control_rate=50).with_files(), track="a")
        trainer = Trainer(task, Shac(worlds=8, rollout_length=8, minibatches=1, shuffle_block=8), device.mesh(1), 8)
        states.append(trainer.start(0).worlds.body.position.x)
        programs.append(trainer.lower().as_text())
    assert programs[0] == programs[1]
    np.testing.assert_allclose(states[1] - states[0], 1.0, atol=1e-5)
    assert jax.tree.leaves(trainer.data)[0].shape == (4, 5)
