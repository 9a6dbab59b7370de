"""Several agents on one page: the table, the films, and what agents expect."""

import json
import re
from dataclasses import replace

import av
import numpy as np
import pytest

from slipstream.evaluation.episode import Episode
from slipstream.evaluation.score import evaluate
from slipstream.experiment.experiment import Experiment
from slipstream.learn.dqn import Dqn
from slipstream.learn.iqn import Iqn
from slipstream.reports import page
from slipstream.reports.compare import rows_of, write
from slipstream.runs.run import Run
from slipstream.runs.train import train
from slipstream.tasks.marine import Marine

BAY = Marine(vessels=3, buoys=1, action_space="discrete", time_limit=6.0)
SMALL = {
    "worlds": 8,
    "rollout_length": 4,
    "gradient_steps": 1,
    "batch_size": 32,
    "capacity": 2000,
    "learning_starts": 64,
    "hidden_sizes": (16, 16),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("compared"), {}
    for name, learner in (("iqn", Iqn(**SMALL)), ("dqn", Dqn(**SMALL))):
        run = Run.create(folder / name, Experiment(BAY, learner, steps=256, devices=1))
        train(run)
        evaluate(run, worlds=4)
        found[name] = [run]
    return found


def test_an_agent_that_knows_distributions_tells_what_it_expects(runs):
    told, untold = (Episode.load(runs[name][0].episodes("fast") / "0000.npz").trajectory for name in ("iqn", "dqn"))
    assert told["returns"].shape == (*told["yaw"].shape, 32)
    assert np.isfinite(told["returns"]).all()
    assert "returns" not in untold


def test_the_page_has_a_row_for_everyone_and_films_the_hardest_worlds(runs, tmp_path):
    html = write(tmp_path, "marine", runs)
    rows = json.loads((tmp_path / "compare.json").read_text())["rows"]
    scripts = {"potential field", "reciprocal velocity obstacles", "mpc"}
    assert {row["name"] for row in rows} == {"iqn", "dqn"} | scripts
    text = html.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    for row in rows_of(runs):
        assert row["name"] in text
    for name, width in (("hardest.mp4", 640), ("expected.mp4", 1280)):
        with av.open(str(tmp_path / name)) as film:
            assert film.streams.video[0].width == width
            frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        assert len(frames) > 20 and np.abs(frames[0].astype(int) - frames[-1]).max() > 30


def test_each_agent_has_a_page_of_its_own(runs):
    run = runs["iqn"][0]
    text = page.write(run).read_text()
    assert "Voyages" in text and "potential field" in text


def test_a_policy_is_scored_on_other_worlds_than_it_was_trained_on(runs):
    run = runs["dqn"][0]
    summary = evaluate(run, worlds=4, task=replace(BAY, vessels=4, buoys=2))
    assert summary["agents"] == 4 and summary["plant"] == "fast-buoys=2-vessels=4"
    assert summary["episodes"] == 16 and summary["worlds"] == 4
    assert set(run.summaries()) == {"fast", "fast-buoys=2-vessels=4"}
    with pytest.raises(ValueError, match="the policy cannot act"):
        evaluate(run, worlds=4, task=replace(BAY, max_obstacles=2))
