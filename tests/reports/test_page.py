"""The report as a browser shows it."""

import base64
import json
import re
import shutil
import subprocess

import pytest

from slipstream.evaluation.score import evaluate
from slipstream.experiment.experiment import Experiment
from slipstream.learn.ppo import Ppo
from slipstream.reports.charts import speed_color, ticks
from slipstream.reports.page import write
from slipstream.reports.video import film
from slipstream.runs.run import Run
from slipstream.runs.train import train
from slipstream.tasks.racing import Racing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    learner = Ppo(worlds=64, rollout_length=8, epochs=1, minibatches=2, hidden_sizes=(16,), shuffle_block=16)
    run = Run.create(tmp_path_factory.mktemp("page") / "a<b>run", Experiment(Racing(), learner, steps=20_000))
    train(run)
    evaluate(run, worlds=16)
    film(run, seconds=1.0)
    return write(run)


def test_the_page_needs_nothing_but_itself(page):
    text = page.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "a&lt;b&gt;run" in text
    assert "<b>run" not in text
    film = base64.b64decode(re.search(r"data:video/mp4;base64,([^\"]+)", text).group(1))
    assert film[4:8] == b"ftyp"


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: install it to open the report in a browser")
def test_a_browser_lays_the_page_out_and_plays_the_film(page, tmp_path):
    probe = tmp_path / "probe.html"
    script = """<script>
addEventListener('load', () => { const v = document.querySelector('video');
const tell = () => { document.title = JSON.stringify({ready: v.readyState, width: v.videoWidth, length: v.duration,
  charts: [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().height > 30).length,
  tiles: document.querySelectorAll('.tile').length, wide: document.documentElement.scrollWidth <= innerWidth}); };
v.addEventListener('canplay', tell); setTimeout(tell, 4000); });</script>"""
    probe.write_text(page.read_text().replace("</main>", "</main>" + script))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    done = subprocess.run(
        [CHROMIUM, *flags, "--window-size=1200,2400", "--virtual-time-budget=8000", "--dump-dom", f"file://{probe}"],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    told = json.loads(re.search(r"<title>(\\{.*?\\})</title>".replace("\\\\", "\\"), done.stdout).group(1))
    assert told["charts"] >= 6
    assert told["tiles"] >= 3
    assert told["wide"]
    assert told["ready"] >= 1
    assert told["width"] == 1280


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 17.0), (0.0, 3.2e7), (0.001, 0.0013)])
def test_ticks_are_round_and_within_the_axis(low, high):
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 7
    assert all(low - 1e-9 <= mark <= high + 1e-9 for mark in marks)


def test_slow_is_blue_and_fast_is_red():
    assert speed_color(0.0)[2] > speed_color(0.0)[0]
    assert speed_color(1.0)[0] > speed_color(1.0)[2]
