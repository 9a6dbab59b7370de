"""The run directory: what is written, what is refused, and what survives a crash."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from slipstream.core import device
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import presets
from slipstream.learn.dqn import Dqn
from slipstream.learn.ppo import Ppo
from slipstream.learn.rollout import EpisodeStats
from slipstream.learn.sac import Sac
from slipstream.runs import checkpoint, files
from slipstream.runs.checkpoint import CheckpointError
from slipstream.runs.files import write_text
from slipstream.runs.run import Run, RunError
from slipstream.runs.train import (
    SelectionMetric,
    TrainingError,
    check_memory,
    out_of_memory,
    refuse_nan,
    train,
    trainer_of,
)
from slipstream.tasks.racing import Racing

SMALL = Experiment(
    Racing(),
    Ppo(worlds=64, rollout_length=8, epochs=1, minibatches=2, hidden_sizes=(16,), shuffle_block=16),
    steps=64 * 8 * 8 * 6,
)
CHUNK = 64 * 8 * 8


def weights(folder):
    run = Run.open(folder)
    state = run.load(trainer_of(run.experiment).shape)[1]
    return {name: checkpoint.to_numpy(leaf) for name, leaf in checkpoint.flat(state).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(Run.create(folder, SMALL))
    return folder


def test_a_run_is_plain_files(whole):
    assert json.loads((whole / "experiment.json").read_text()) == json.loads(json.dumps(SMALL.as_dict()))
    rows = Run.open(whole).metrics
    assert [row["step"] for row in rows] == [CHUNK * k for k in range(1, 7)]
    assert {"step_reward", "success", "steps_per_second", "seconds"} <= set(rows[0])
    assert not list(whole.rglob("*.pkl"))


def test_an_experiment_comes_back_from_its_file_as_it_was():
    for preset in presets().values():
        assert Experiment.from_dict(json.loads(json.dumps(preset.as_dict()))) == preset


@pytest.mark.parametrize(
    ("detector", "words"),
    [
        ({"position_noise_ratio": -1.0}, "not be negative"),
        (3, "object with settings"),
        ({"position_noise": 1.0}, "did you mean 'position_noise_ratio'"),
    ],
)
def test_a_wrong_setting_within_a_setting_is_refused_in_words(detector, words):
    told = presets()["survey-search"].as_dict()
    told["task"] |= {"detector": detector}
    with pytest.raises(ValueError, match=words):
        Experiment.from_dict(told)


def test_tensorboard_reads_the_metrics(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole / "tensorboard"))
    events.Reload()
    scalars = events.Scalars("step_reward")
    rows = Run.open(whole).metrics
    assert [s.step for s in scalars] == [row["step"] for row in rows]
    np.testing.assert_allclose([s.value for s in scalars], [row["step_reward"] for row in rows], rtol=1e-6)


def test_a_training_stopped_and_resumed_is_bit_for_bit_the_whole_one(whole, tmp_path):
    folder = tmp_path / "halves"
    looks = []
    train(Run.create(folder, SMALL), watch=looks.append, stop=lambda: len(looks) == 3)
    assert Run.open(folder).checkpoint_steps == [3 * CHUNK]
    train(Run.open(folder), resume=True)
    once, twice = weights(whole), weights(folder)
    assert once.keys() == twice.keys()
    for name, leaf in once.items():
        np.testing.assert_array_equal(leaf, twice[name], err_msg=name)
    assert [row["step"] for row in Run.open(folder).metrics] == [CHUNK * k for k in range(1, 7)]


SMALL_REPLAY = {
    "worlds": 8, "rollout_length": 4, "gradient_steps": 2, "batch_size": 16, "capacity": 320,
    "learning_starts": 400, "hidden_sizes": (16,), "prioritized_replay": True, "n_step": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "learner"),
    [("cartpole", Dqn(**SMALL_REPLAY)), ("pendulum", Sac(**SMALL_REPLAY))],
    ids=["dqn", "sac"],
)
def test_a_training_with_a_replay_stopped_and_resumed_is_bit_for_bit_the_whole_one(tmp_path, task, learner):
    """It stops once it has begun to learn, in the middle of the ring's second round."""
    experiment = Experiment(presets()[task].task, learner, steps=8 * learner.steps_per_update * 3, devices=2)
    once = Run.create(tmp_path / "once", experiment)
    train(once)
    twice, looks = Run.create(tmp_path / "twice", experiment), []
    train(twice, watch=looks.append, stop=lambda: len(looks) == 2)
    assert twice.checkpoint_steps == [8 * learner.steps_per_update * 2]
    train(twice, resume=True)
    whole, parts = weights(once.folder), weights(twice.folder)
    assert whole.keys() == parts.keys()
    for name, leaf in whole.items():
        np.testing.assert_array_equal(leaf, parts[name], err_msg=name)
    # There was something to lose: the ring is full, and priorities differ by what was learned.
    assert len(np.unique(whole[".replay.tree"])) > 100
    assert np.any(whole[".replay.reward"][:, -1])


@pytest.mark.parametrize(
    "learner",
    [
        Ppo(worlds=8, rollout_length=8, minibatches=1, epochs=1, shuffle_block=8, hidden_sizes=(16,)),
        Sac(**SMALL_REPLAY),
    ],
    ids=["ppo", "sac"],
)
def test_a_training_with_correlated_noise_stopped_and_resumed_is_bit_for_bit_the_whole_one(tmp_path, learner):
    learner = replace(learner, noise_correlation_time=20.0)
    experiment = Experiment(presets()["pendulum"].task, learner, steps=8 * learner.steps_per_update * 3, devices=2)
    once = Run.create(tmp_path / "once", experiment)
    train(once)
    twice, looks = Run.create(tmp_path / "twice", experiment), []
    train(twice, watch=looks.append, stop=lambda: len(looks) == 2)
    train(twice, resume=True)
    whole, parts = weights(once.folder), weights(twice.folder)
    assert whole.keys() == parts.keys() and ".noise.value" in whole
    for name, leaf in whole.items():
        np.testing.assert_array_equal(leaf, parts[name], err_msg=name)


def test_a_training_killed_and_resumed_is_bit_for_bit_the_whole_one(whole, tmp_path):
    folder = tmp_path / "killed"
    Run.create(folder, SMALL)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom slipstream.core import device\ndevice.configure(2)\n"
        "from slipstream.runs.run import Run\nfrom slipstream.runs.train import train\n"
        "train(Run.open(Path(sys.argv[1])), watch=lambda look: time.sleep(0.4), save_seconds=0.0)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    deadline = time.monotonic() + 120
    while len(Run(folder).checkpoint_steps) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < Run(folder).checkpoint_steps[-1] < SMALL.steps
    train(Run.open(folder), resume=True)
    once, twice = weights(whole), weights(folder)
    for name, leaf in once.items():
        np.testing.assert_array_equal(leaf, twice[name], err_msg=name)


def test_best_and_last_checkpoints_are_kept_and_the_others_go(tmp_path):
    folder = tmp_path / "kept"
    train(Run.create(folder, SMALL), save_seconds=0.0)
    run = Run.open(folder)
    assert len(run.checkpoint_steps) <= 3
    assert run.checkpoint_steps[-1] == SMALL.steps
    # The later of two that are equally good.
    skill = {row["step"]: row["success"] or 0.0 for row in run.metrics}
    assert run.best_step == max(skill, key=lambda step: (skill[step], step))


def test_the_best_checkpoint_stays_however_old_it_gets_and_the_oldest_others_go(tmp_path):
    run = Run.create(tmp_path / "skills", SMALL)
    for step, skill in enumerate((0.1, 0.9, 0.3, None, 0.5, 0.2), start=1):
        run.save(step, {"x": jnp.float32(step)}, keep=2, selection_metric=skill)
    assert run.checkpoint_steps == [2, 5, 6]
    assert run.best_step == 2
    step, tree = run.load({"x": jax.ShapeDtypeStruct((), jnp.float32)}, "best")
    assert (step, float(tree["x"])) == (2, 2.0)
    run.save(7, {"x": jnp.float32(7.0)}, keep=2, selection_metric=0.95)
    assert run.checkpoint_steps == [6, 7]
    assert run.best_step == 7


def test_a_folder_that_holds_a_run_is_left_alone(whole):
    before = (whole / "experiment.json").read_bytes()
    with pytest.raises(RunError, match="already holds a run.*--resume"):
        Run.create(whole, replace(SMALL, seed=1))
    assert (whole / "experiment.json").read_bytes() == before


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="not empty"):
        Run.create(tmp_path, SMALL)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(whole, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    run = Run.open(folder)
    good = run.checkpoint_steps[-1]
    shutil.copytree(folder / "checkpoints" / f"{good:012d}", folder / "checkpoints" / f"{good + CHUNK:012d}")
    broken = folder / "checkpoints" / f"{good + CHUNK:012d}" / checkpoint.WEIGHTS
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    shape = trainer_of(SMALL).shape
    with pytest.raises(CheckpointError, match="damaged.*older checkpoint"):
        run.load(shape, good + CHUNK)
    step, _, complaints = run.load_newest(shape)
    assert step == good
    assert "damaged" in complaints[0]


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_cut_off_checkpoint_is_refused(whole, tmp_path, cut):
    folder = tmp_path / "cut"
    shutil.copytree(whole, folder)
    path = next((folder / "checkpoints").glob("*")) / checkpoint.WEIGHTS
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="damaged"):
        Run.open(folder).load(trainer_of(SMALL).shape)


def test_a_checkpoint_of_another_network_is_refused(whole):
    other = replace(SMALL, learner=replace(SMALL.learner, hidden_sizes=(32,)))
    with pytest.raises(CheckpointError, match="does not fit"):
        Run.open(whole).load(trainer_of(other).shape)


def test_a_full_disk_loses_no_earlier_checkpoint(whole, tmp_path, monkeypatch):
    folder = tmp_path / "full"
    shutil.copytree(whole, folder)
    run = Run.open(folder)
    before = run.checkpoint_steps

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(CheckpointError, match="disk is full.*untouched"):
        run.save(SMALL.steps + CHUNK, {"x": jnp.zeros(3)})
    monkeypatch.undo()
    assert run.checkpoint_steps == before
    assert not list(folder.rglob("*.part"))
    weights(folder)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root to mount a small disk")
def test_a_disk_that_fills_up_while_training_ends_with_a_clear_error(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with pytest.raises((CheckpointError, RunError), match=r"disk is full|No space left"):
            train(Run.create(small / "run", SMALL), save_seconds=0.0)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_nan_stops_training_and_names_step_quantity_and_checkpoint(tmp_path):
    wild = replace(
        SMALL, learner=replace(SMALL.learner, learning_rate=1e38, max_grad_norm=1e30, learning_rate_schedule="constant")
    )
    run = Run.create(tmp_path / "wild", wild)
    with pytest.raises(TrainingError, match=r"stopped at step [\d,]+: \w+ is (nan|inf).*(checkpoint)"):
        train(run)
    for step in run.checkpoint_steps:
        leaves = jax.tree.leaves(run.load(trainer_of(wild).shape, step)[1].policy)
        assert all(np.isfinite(leaf).all() for leaf in leaves)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["task"].update(trck="seven"), "task has no setting 'trck'; did you mean 'track'"),
        (lambda d: d["task"].update({"class": "slipstream.tasks.racing:Racin"}), "not a task; did you mean 'Racing'"),
        (lambda d: d["task"].update({"class": "slipstream.tasks.rowing:Rowing"}), "cannot be imported"),
        (lambda d: d["task"].update({"class": 7}), "does not say which class its task is"),
        (lambda d: d["learner"].update(name="pppo"), "no learner 'pppo'; did you mean 'ppo'"),
        (lambda d: d.pop("format"), "has format 1, and this version of Slipstream reads format 2"),
        (lambda d: d["task"]["reward"].update(gates=1.0), "task.reward has no setting 'gates'; did you mean 'gate'"),
        (lambda d: d["task"].update(randomize=3), "task.randomize is an object with settings, not 3"),
        (lambda d: d["learner"].update(worlds="many"), "learner.worlds takes int, not 'many'"),
        (lambda d: d["learner"].update(hidden_sizes=[64, 1.5]), r"takes tuple\[int, ...\], not \(64, 1.5\)"),
        (lambda d: d["task"].update(action_space="bx"), r"task.action_space takes Literal\[.box., .*\], not .bx."),
        (lambda d: d.update(stepz=3), "no setting 'stepz'"),
        (lambda d: d["learner"].update(discount=2.0), "between 0 and 1"),
        (lambda d: d.pop("task"), "object with task, learner"),
    ],
)
def test_a_wrong_experiment_file_is_refused_in_words(whole, tmp_path, change, words):
    folder = tmp_path / "wrong"
    folder.mkdir()
    data = json.loads((whole / "experiment.json").read_text())
    change(data)
    (folder / "experiment.json").write_text(json.dumps(data))
    with pytest.raises(RunError, match=words):
        _ = Run.open(folder).experiment


def test_a_run_that_is_not_there_names_the_nearest(whole):
    with pytest.raises(RunError, match="did you mean 'whole'"):
        Run.open(whole.with_name("whol"))


def test_a_line_cut_off_by_a_crash_is_passed_over(whole, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(whole, folder)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 99')
    assert len(Run.open(folder).metrics) == 6


def test_importing_slipstream_touches_no_device_file_or_variable():
    code = (
        "import os\nbefore = dict(os.environ)\nimport slipstream, sys\n"
        "assert dict(os.environ) == before\nassert 'jax' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path("/"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# One training at a time, and what it hands over


def test_a_second_training_in_a_folder_is_refused_and_a_crash_releases_it(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    hold = "import sys, time; from pathlib import Path; from slipstream.runs.run import Run\n" \
           "with Run(Path(sys.argv[1])).locked(): print('held', flush=True); time.sleep(600)"  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", hold, folder], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=rf"being trained by another process \({other.pid}\)"):
            train(Run.open(folder), resume=True)
        other.kill()
    with Run.open(folder).locked():
        pass


def test_a_finished_training_that_is_resumed_says_what_it_reached(whole):
    last = Run.open(whole).metrics[-1]
    look = train(Run.open(whole), resume=True)
    assert (look.step, look.rate) == (CHUNK * 6, last["steps_per_second"])
    assert look.metrics["step_reward"] == last["step_reward"]


def test_the_policy_handed_over_is_the_mean_over_the_last_part(tmp_path):
    experiment = replace(SMALL, average=0.5)
    trainer = trainer_of(experiment, 1)
    chunk, state, policies = trainer.compile(), trainer.start(0), []
    for _ in range(trainer.updates):
        state = chunk(state)[0]
        policies.append(jax.device_get(state.policy))
    kept = policies[trainer.updates // 2 :]
    mean = jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), 0), *kept)
    for name, leaf in checkpoint.flat(mean).items():
        np.testing.assert_allclose(np.asarray(checkpoint.flat(state.average)[name]), leaf, rtol=1e-4, atol=1e-5)
    folder = tmp_path / "run"
    train(Run.create(folder, experiment))
    run, shape = Run.open(folder), trainer.shape.policy
    average, last = (run.load_policy(shape, which)[1] for which in ("average", "last"))
    assert not np.array_equal(average.actor.layers[0].weight, last.actor.layers[0].weight)
    np.testing.assert_allclose(average.actor.layers[0].weight, mean.actor.layers[0].weight, rtol=1e-3, atol=1e-5)


def test_the_first_part_of_a_training_hands_over_the_policy_as_it_is(tmp_path):
    train(Run.create(tmp_path / "run", SMALL), stop=lambda: True)
    run, shape = Run.open(tmp_path / "run"), trainer_of(SMALL).shape.policy
    average, last = (run.load_policy(shape, which)[1] for which in ("average", "last"))
    assert all(map(np.array_equal, jax.tree.leaves(average), jax.tree.leaves(last)))


def test_a_seed_that_diverges_is_named_though_the_others_are_well(whole):
    with pytest.raises(TrainingError, match="loss of seed 2 is nan"):
        refuse_nan({"loss": np.array([0.1, 0.2, np.nan])}, 100, Run(whole))


def test_easier_worlds_at_the_start_of_a_training_do_not_compete_for_the_best():
    task = presets()["marine"].task
    stats = EpisodeStats({"success": np.float32(9.0)}, {"success": np.float32(10.0)})
    early, late = (SelectionMetric(task, share).counting(stats).value({"step_reward": 0.0}) for share in (0.1, 0.9))
    assert early is None
    assert late == pytest.approx(0.9)
    nobody = EpisodeStats({"success": np.float32(0.0)}, {"success": np.float32(0.0)})
    assert SelectionMetric(Racing(), 0.5).counting(nobody).value({"step_reward": 5.0}) is None


def test_the_best_checkpoint_is_one_that_was_measured(tmp_path):
    run = Run.create(tmp_path / "run", SMALL)
    for step, skill in ((1, None), (2, -90.0), (3, -80.0), (4, None)):
        run.save(step, {"x": jnp.zeros(1)}, selection_metric=skill)
    assert run.best_step == 3


# Checkpoints


def test_leaves_split_over_devices_by_any_axis_come_back_as_they_were(tmp_path):
    mesh = device.mesh(2)
    numbers = jnp.arange(24.0).reshape(2, 4, 3)
    tree = {
        "first": jax.device_put(numbers, NamedSharding(mesh, PartitionSpec(device.AXIS))),
        "second": jax.device_put(numbers, NamedSharding(mesh, PartitionSpec(None, device.AXIS))),
        "whole": jax.device_put(numbers > 3.0, NamedSharding(mesh, PartitionSpec())),
        "key": jax.random.key(3),
        "empty": jnp.zeros((0, 4)),
    }
    checkpoint.write(tmp_path / "one", tree)
    back = checkpoint.read(tmp_path / "one", jax.eval_shape(lambda: tree))
    assert np.array_equal(back["first"], numbers) and np.array_equal(back["second"], numbers)
    assert np.array_equal(back["whole"], numbers > 3.0)
    assert jax.random.key_data(back["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()


def test_writing_a_large_state_takes_little_more_memory_than_the_state(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path; import jax, jax.numpy as jnp\n"
        "from slipstream.core import device; from slipstream.runs import checkpoint; device.configure(2)\n"
        "from jax.sharding import NamedSharding, PartitionSpec\n"
        "split = NamedSharding(device.mesh(), PartitionSpec(device.AXIS))\n"
        "tree = {'replay': jax.jit(lambda: jnp.ones((2, 32_000_000)), out_shardings=split)()}\n"
        "jax.block_until_ready(tree); peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); checkpoint.write(Path(sys.argv[1]), tree); print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "big"], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 0.25 * 256e6


def test_folders_are_synced_so_that_names_outlive_a_power_cut(tmp_path, monkeypatch):
    synced = []
    for module in (checkpoint, files):
        monkeypatch.setattr(module, "sync_folder", synced.append)
    checkpoint.write(tmp_path / "one", {"x": jnp.ones(2)})
    assert {path.name for path in synced} >= {".one.part", tmp_path.name}
    synced.clear()
    write_text(tmp_path / "note.txt", "hello")
    assert synced == [tmp_path]


def test_more_worlds_than_memory_are_refused_before_anything_is_compiled_or_written(tmp_path):
    huge = replace(SMALL, learner=replace(SMALL.learner, worlds=100_000_000, minibatches=8, shuffle_block=64))
    with pytest.raises(TrainingError, match=r"does not fit: it keeps and collects at least .* GB are free"):
        check_memory(trainer_of(huge))


def test_whatever_runs_out_of_memory_says_so_in_one_line():
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1068900016792 bytes.\nmore")
    with pytest.raises(TrainingError, match=r"^the memory ran out .*--learner.worlds or .* lower\.$"), out_of_memory():
        raise error
