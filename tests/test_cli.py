"""The real commands, as a person types them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest

from slipstream.cli.main import COMMANDS

SIZES = {"worlds": 64, "rollout-length": 8, "epochs": 1, "minibatches": 2, "hidden-sizes": 16, "shuffle-block": 16}
TINY = [word for name, size in SIZES.items() for word in (f"--learner.{name}", str(size))] + ["--steps", "8192"]


def slipstream(*words, cwd, **options):
    return subprocess.run(
        [sys.executable, "-m", "slipstream.cli", *map(str, words)],
        cwd=cwd, capture_output=True, text=True, timeout=600, check=False, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which the whole pipeline has run once, tiny."""
    folder = tmp_path_factory.mktemp("place")
    done = slipstream("pipeline", "racing-ppo", "--run", "tiny", *TINY, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "pipeline.json").write_text(done.stdout)
    return folder


def test_the_pipeline_leaves_a_run_with_everything_in_it(place):
    result = json.loads((place / "pipeline.json").read_text())
    run = place / "tiny"
    assert Path(place / result["report"]).exists()
    assert result["training"]["finished"] is True
    for name in ("experiment.json", "metrics.jsonl", "report.html", "videos/fast.mp4", "episodes/fast/summary.json"):
        assert (run / name).stat().st_size > 0, name


def test_an_evaluation_prints_one_object_with_the_promised_figures(place):
    done = slipstream("evaluate", "tiny", "--episodes", 32, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    promised = {"plant", "worlds", "episodes", "agents", "success_rate", "return_mean", "return_std"}
    own = {"lap_time_mean", "gates_per_episode", "crash_rate"}
    assert promised | own <= set(summary)
    assert summary["plant"] == "fast"
    assert summary["episodes"] == 32
    again = json.loads(slipstream("evaluate", "tiny", "--episodes", 32, "--json", cwd=place).stdout)
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in summary.items() if k != "seconds"}


def test_parity_compares_plants_and_films_them_beside_each_other(place):
    done = slipstream("parity", "tiny", "--plants", "fast,mujoco", "--worlds", 3, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["plants"]["mujoco"]
    assert {"success", "return", "trajectory", "speed", "tilt", "rates"} == set(found["verdicts"])
    assert set(found["verdicts"].values()) <= {"good", "fair", "poor"}
    assert found["trajectory"]["mean"][0] == 0.0
    assert (place / "tiny/videos/parity-mujoco.mp4").stat().st_size > 1000
    report = slipstream("report", "tiny", cwd=place)
    assert report.returncode == 0, report.stderr
    page = (place / "tiny/report.html").read_text()
    assert "Parity: fast and mujoco" in page
    assert "Beside the plant mujoco" in page


def test_a_training_goes_on_from_another_policy_under_the_px4_controller(place):
    words = ("--init-from", "tiny", "--task.controller", "px4", "--run", "again", "--steps", "4096", "--json")
    done = slipstream("train", *words, cwd=place)
    assert done.returncode == 0, done.stderr
    kept = json.loads((place / "again/experiment.json").read_text())
    assert kept["init_from"] == "tiny"
    assert kept["task"]["controller"] == "px4"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("parity", "tiny", "--plants", "fast"), "at least two different plants"),
        (("parity", "tiny", "--plants", "fast,gazebo"), "no plant 'gazebo'"),
        (("evaluate", "tiny", "--plant", "px4"), "location of PX4 is not set"),
        (("evaluate", "tiny", "--plant", "mujoco", "--px4-version", "1.2"), "gains are known from PX4 1.13"),
        (("train", "racing-ppo", "--init-from", "nowhere", "--run", "x"), "is not a run"),
        (("train", "racing-ppo", "--init-from", "tiny", "--run", "x"), "does not fit"),
        (("train", "racing-vision", "--learner", "distill", "--run", "x"), "by --teacher RUN"),
        (
            ("train", "racing", "--learner", "distill", "--teacher", "tiny", "--task.control-rate", 25, "--run", "x"),
            "and this task 25 times",
        ),
        (("train", "nothing.json"), "cannot be read"),
    ],
)
def test_a_wrong_request_about_plants_is_refused_in_words(place, words, told):
    bare = {k: v for k, v in os.environ.items() if k != "SLIPSTREAM_PX4"}
    done = slipstream(*words, cwd=place, env=bare)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_an_episode_on_disk_is_the_flight_it_records(place):
    from slipstream.evaluation.episode import Episode

    for path in sorted((place / "tiny/episodes/fast").glob("0*.npz"))[:4]:
        episode = Episode.load(path)
        position, velocity = episode.trajectory["position"], episode.trajectory["velocity"]
        moved = np.linalg.norm(np.diff(position, axis=0), axis=1)
        speed = np.linalg.norm(velocity, axis=1)
        slack = episode.control_dt * np.maximum(speed[1:], speed[:-1]) + 0.01
        assert (moved <= slack).all()
        assert episode.world["gates"].shape == (7, 5)


def test_the_film_is_h264_that_a_browser_plays(place):
    with av.open(str(place / "tiny/videos/fast.mp4")) as film:
        stream = film.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
    assert len(frames) >= 5
    assert np.std(frames[0]) > 20
    assert any(not np.array_equal(frames[0], frame) for frame in frames[1:])


def test_a_run_that_exists_is_not_trained_over(place):
    before = (place / "tiny/metrics.jsonl").read_bytes()
    done = slipstream("train", "racing-ppo", "--run", "tiny", *TINY, cwd=place)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert "--resume" in done.stderr
    assert (place / "tiny/metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "did you mean 'train'"),
        (["train", "racin"], "did you mean 'racing'"),
        (["train"], "needs a preset"),
        (["train", "racing", "--learner.wolds", "7"], "--learner.worlds"),
        (["train", "racing", "--task.track", "sven"], "did you mean 'seven'"),
        (["train", "racing-ppo", "--learner.worlds", "1000"], "do not divide"),
        (["train", "--resume"], "needs --run"),
        (["train", "--resume", "--run", "nothing"], "is not a run"),
        (["evaluate", "nothing"], "is not a run"),
        (["evaluate", "tiny", "--plant", "fsat"], "did you mean 'fast'"),
        (["evaluate", "tiny", "--checkpoint", "bst"], "did you mean 'best'"),
        (["evaluate", "tiny", "--episodes", "0"], "at least 1"),
        (["evaluate", "tiny", "--seed", "99999999999"], "a seed lies between"),
        (["evaluate", "tiny", "--worlds", "4", "--episodes", "4"], "not both"),
        (["train", "marine", "--learner", "sca"], "did you mean 'sac'"),
        (["train", "no_such_file.py:Task"], "there is no file"),
        (["train", "no_such_package.tasks:Task"], "cannot be imported"),
        (["train", "slipstream.tasks.racing:Racin"], "did you mean 'Racing'"),
        (["compare", "marin"], "did you mean 'marine'"),
        (["bench", "sim", "--task", "racng"], "did you mean 'racing'"),
    ],
)
def test_a_wrong_request_is_answered_with_the_nearest_right_one(place, words, hint):
    before = sorted(p.name for p in place.iterdir())
    done = slipstream(*words, cwd=place)
    assert done.returncode == 2
    assert hint in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(p.name for p in place.iterdir()) == before


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(place, command):
    done = slipstream(command, "--help", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
    assert len(done.stdout.splitlines()) > 3


def test_list_tells_what_there_is(place):
    told = json.loads(slipstream("list", "--json", cwd=place).stdout)
    assert {"racing", "racing-random-tracks"} <= set(told["presets"])
    assert "ppo" in told["algorithms"]
    assert "fast" in told["plants"]
    assert len(told["tasks"]["racing"]["track"]) >= 5
    assert told["problems"] == []


def test_doctor_finds_a_healthy_machine(place):
    done = slipstream("doctor", "--json", cwd=place)
    assert done.returncode == 0, done.stdout
    assert {f["name"] for f in json.loads(done.stdout)["findings"]} >= {"python", "jax", "devices"}


def test_control_c_saves_and_says_how_to_go_on(tmp_path):
    words = ["train", "racing-ppo", "--run", "stopped", *TINY[:-1], "40960000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream.cli", *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "stopped/metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "slipstream train --resume --run stopped" in err
    assert list((tmp_path / "stopped/checkpoints").glob("0*"))


def test_several_seeds_are_evaluated_with_their_spread(tmp_path):
    done = slipstream("train", "racing-ppo", "--run", "three", "--seeds", 3, *TINY, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step_reward_std" in json.loads(done.stdout)
    summary = json.loads(slipstream("evaluate", "three", "--worlds", 8, "--json", cwd=tmp_path).stdout)
    assert summary["episodes"] == 24
    assert len(summary["seeds"]) == 3


def test_a_race_of_several_drones_is_trained_evaluated_and_filmed(tmp_path):
    done = slipstream("train", "racing-ppo", "--run", "race", "--task.agents", 3, *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = slipstream("video", "race", "--seconds", 2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "race/videos/fast.mp4").stat().st_size > 1000


def test_a_reader_that_has_seen_enough_is_no_error(place):
    command = f"{sys.executable} -m slipstream.cli list | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=place, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_bench_renders_and_acts(place):
    small = ("--width", 16, "--height", 16, "--cameras", 2, "--shapes", 8)
    done = slipstream("bench", "render", *small, "--json", cwd=place)
    assert {"megapixels_per_second", "megapixels_per_cpu_second", "frames_per_second"} <= set(json.loads(done.stdout))
    words = ("--preset", "racing-ppo", "--worlds", 4, "--task.camera.kind", "rgb", "--task.camera.resolution", 16)
    result = json.loads(slipstream("bench", "policy", *words, "--json", cwd=place).stdout)
    assert result["image_shape"] == [16, 16, 3]
    assert result["steps_per_second"] > 0


def test_bench_memory_prints_what_was_promised(place):
    done = slipstream("bench", "memory", "--worlds", 256, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    assert {"bytes_per_world", "peak_rss_mb"} <= set(json.loads(done.stdout))


@pytest.mark.parametrize("damage", ["cut off", "flipped", "empty"])
@pytest.mark.parametrize("command", ["video", "report"])
def test_a_damaged_episode_says_to_evaluate_again(place, tmp_path, damage, command):
    shutil.copytree(place / "tiny", tmp_path / "tiny")
    for path in (tmp_path / "tiny" / "episodes" / "fast").glob("*.npz"):
        data = bytearray(path.read_bytes())
        middle = slice(len(data) // 3, len(data) // 2)
        data = {"cut off": data[:-30], "empty": bytearray(), "flipped": data}[damage]
        if damage == "flipped":
            data[middle] = bytes(255 - byte for byte in data[middle])
        path.write_bytes(data)
    done = slipstream(command, "tiny", cwd=tmp_path)
    assert done.returncode == 2
    assert "evaluate again" in done.stderr and "Traceback" not in done.stderr


def test_a_pipeline_that_is_resumed_when_done_says_what_was_reached(place):
    done = slipstream("pipeline", "--resume", "--run", "tiny", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    again, first = (json.loads(text)["training"] for text in (done.stdout, (place / "pipeline.json").read_text()))
    assert (again["step"], again["steps_per_second"]) == (first["step"], first["steps_per_second"])
    assert again["step_reward"] == pytest.approx(first["step_reward"])


def test_more_worlds_than_memory_is_one_line(tmp_path):
    done = slipstream("train", "racing-ppo", "--learner.worlds", "100000000", "--run", "big", cwd=tmp_path)
    assert done.returncode == 1
    assert "does not fit" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "big").exists()


@pytest.mark.parametrize("which", ["average", "last", "best"])
def test_a_policy_is_evaluated_by_the_name_of_its_weights(place, which):
    done = slipstream("evaluate", "tiny", "--episodes", "8", "--checkpoint", which, "--json", cwd=place)
    assert json.loads(done.stdout)["policy"] == which
    low, high = json.loads(done.stdout)["success_rate_95"]
    assert 0.0 <= low < high <= 1.0
