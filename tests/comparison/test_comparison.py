"""The same work by several libraries: what they are given, that each does it, and what is read off their trials."""

import json
import time
from dataclasses import replace

import pytest

from slipstream.adapters.libraries import MissingLibraryError, require_library
from slipstream.adapters.tasks import find_task
from slipstream.adapters.vector import Worlds
from slipstream.cli.compare import read_batch, read_skill
from slipstream.comparison import meter as meters
from slipstream.comparison.meter import Enough, Meter
from slipstream.comparison.page import answer_of, traffic, write
from slipstream.comparison.settings import FOLDER, TUNED, read_settings
from slipstream.comparison.trials import Trial, figures
from slipstream.comparison.work import LIBRARIES, MODULES, Work
from slipstream.experiment import registry
from slipstream.learn.ppo import Ppo
from slipstream.pipeline.comparison import Libraries
from slipstream.runs.files import json_text, write_text

SMALL = Work(
    preset="racing-ppo", worlds=16, rollout_length=8, epochs=1, minibatches=2, hidden_sizes=(8,), samples=256,
    seconds=1e6, skill=(("success", 2.0),),
)  # fmt: skip


def trial_of(folder, library, rows, work=SMALL):
    """A trial whose meter has written these rows."""
    trial = Trial(folder / library, library, work)
    trial.folder.mkdir(parents=True)
    (trial.folder / "looks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    usage = {"seconds": [0.5, 1.0], "cores": [1.0, 0.9], "memory": [1e8, 2e8]}
    asked = {"library": library, "work": work.to_json()}
    write_text(trial.folder / "trial.json", json_text({"asked": asked, "usage": usage, "failure": ""}))
    return trial


def look(samples, cpu, success=None):
    row = {"samples": samples, "wall": 2.0 * cpu, "cpu": cpu, "memory": 10**8}
    return row if success is None else row | {"score": {"success": success}}


def test_the_work_is_that_of_the_preset_and_survives_a_file():
    experiment = registry.presets()["racing-ppo"]
    work = Work.of("racing-ppo", experiment, seconds=5.0, skill=(("success", 0.9), ("lap_time", -6.5)))
    learner = experiment.learner
    assert isinstance(learner, Ppo)
    assert (work.worlds, work.epochs, work.hidden_sizes) == (learner.worlds, learner.epochs, learner.hidden_sizes)
    assert Work.from_json(json.loads(json_text(work.to_json()))) == work
    assert work.reached({"success": 0.95, "lap_time": 6.0})
    assert not work.reached({"success": 0.95, "lap_time": 6.6})
    assert not work.reached({"success": 0.95})


def test_what_no_other_library_can_do_is_refused_in_words():
    presets = registry.presets()
    with pytest.raises(ValueError, match="choose racing-ppo"):
        Work.of("racing", presets["racing"])
    recurrent = replace(presets["field"], learner=replace(presets["field"].learner, memory="gru"))
    with pytest.raises(ValueError, match="without memory"):
        Work.of("field", recurrent)
    with pytest.raises(ValueError, match="--skill"):
        read_skill("success")
    with pytest.raises(ValueError, match="worlds"):
        read_batch("world=3")
    assert read_skill("success=0.9,lap_time<6.5") == (("success", 0.9), ("lap_time", -6.5))
    assert read_batch("worlds=64, learning_rate=0.01") == {"worlds": 64, "learning_rate": 0.01}


def test_settings_of_a_file_are_those_of_one_library(tmp_path):
    work = Work.of("racing-ppo", registry.presets()["racing-ppo"])
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"sb3": {"worlds": 64, "learning_rate": 1, "task": {"train_time_limit": 4.0}}}))
    libraries = Libraries(("sb3", "sbx"), read_settings(str(file), work))
    assert libraries.work_of("sb3", work).worlds == 64
    assert libraries.work_of("sb3", work).task == {"train_time_limit": 4.0}
    assert libraries.work_of("sbx", work) == work
    for wrong, word in (({"sb4": {}}, "sb3"), ({"sb3": {"world": 64}}, "worlds"), ({"sb3": {"worlds": "many"}}, "int")):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=word):
            read_settings(str(file), work)
    with pytest.raises(ValueError, match="--settings"):
        read_settings(str(tmp_path / "none.json"), work)


def test_tuned_settings_come_with_the_package_and_fit():
    for file in FOLDER.glob("*.json"):
        work = Work.of(file.stem, registry.presets()[file.stem])
        found = read_settings(TUNED, work)
        assert set(found) == set(LIBRARIES) - {"slipstream"}
    with pytest.raises(ValueError, match="racing-ppo"):
        read_settings(TUNED, Work.of("field", registry.presets()["field"]))


def test_a_learning_rate_falls_to_a_twentieth():
    work = Work(learning_rate=1.0, learning_rate_decay=100)
    assert [work.learning_rate_after(samples) for samples in (0, 50, 100, 1000)] == [1.0, 0.5, 0.05, 0.05]
    assert Work(learning_rate=1.0).learning_rate_after(1e9) == 1.0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_does_the_work(library, unseen, tmp_path, monkeypatch):
    pytest.importorskip(MODULES[library])
    import importlib

    monkeypatch.setattr(Meter, "_unseen", unseen)
    monkeypatch.setattr(meters, "fly", a_few_steps)
    file, work = tmp_path / "looks.jsonl", replace(SMALL, preset="field")
    trainer = importlib.import_module(f"slipstream.comparison.trainers.{library}")
    with pytest.raises(Enough):
        trainer.train(work, Meter(work, file, time.time()))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[-1]["samples"] >= 256
    assert rows[-1]["score"]["rows"] == 4.0


def test_a_library_that_is_missing_is_named_with_its_install_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match="pip install torch==2.13.0 stable-baselines3"):
        require_library(MODULES["sb3"], "a comparison with sb3")


@pytest.fixture(scope="module")
def unseen():
    """Worlds on which policies are scored, compiled once for all libraries."""
    return Worlds(find_task("field", evaluation=True), 4, 1, "never")


def a_few_steps(worlds, act):
    """A score of a few steps: that the policy acts within its space."""
    observation = worlds.reset(1)
    for _ in range(3):
        observation = worlds.step(act(observation)).observation
    return {"rows": float(len(observation.features))}


def test_figures_leave_out_compiling_and_tell_whether_the_skill_was_reached(tmp_path):
    work = replace(SMALL, skill=(("success", 0.9),))
    ours = trial_of(tmp_path, "slipstream", [look(100, 5.0), look(1100, 6.0, 0.5), look(2100, 7.0, 0.95)], work)
    other = trial_of(tmp_path, "sb3", [look(100, 5.0), look(600, 10.0, 0.2)], work)
    found = {"slipstream": figures([ours]), "sb3": figures([other])}
    assert found["slipstream"]["samples_per_cpu_second"] == pytest.approx(1000.0)
    assert found["slipstream"]["samples_per_second"] == pytest.approx(500.0)
    assert found["slipstream"]["skill_cpu_seconds"] == 7.0
    assert found["sb3"]["skill_cpu_seconds"] is None
    assert found["sb3"]["skill_reached"] == "0 of 1"
    answer = answer_of(found, work)
    assert "10.0 times the next, Stable-Baselines3" in answer
    assert "no other has it within 1 times that" in answer


def test_a_page_has_every_library_and_names_what_failed(tmp_path):
    ours = trial_of(tmp_path, "slipstream", [look(100, 5.0), look(2100, 7.0, 0.95)])
    other = trial_of(tmp_path, "sb3", [look(100, 5.0), look(600, 10.0, 0.2)])
    broken = Trial(tmp_path / "skrl", "skrl", SMALL)
    found = write(
        tmp_path, "racing-ppo", registry.presets()["racing-ppo"].task,
        {"slipstream": [ours], "sb3": [other], "skrl": [broken]}, "slipstream compare racing-ppo",
    )  # fmt: skip
    page = (tmp_path / "libraries.html").read_text()
    assert "Stable-Baselines3" in page and "failed" in page and "<svg" in page
    assert "skrl did not train it" in found["answer"]
    assert json.loads((tmp_path / "libraries.json").read_text())["answer"] == found["answer"]


def test_what_is_done_is_not_done_again_and_other_work_is(tmp_path):
    trial = trial_of(tmp_path, "sb3", [look(100, 5.0)])
    assert trial.done
    assert not replace(trial, work=replace(SMALL, seed=3)).done
    assert not Trial(tmp_path / "none", "sb3", SMALL).done


def test_bytes_that_cross_are_counted_from_shapes():
    task = registry.presets()["racing-ppo"].task
    assert traffic(task) == 4 * task.spec.observation + 4 * 4 + 6


def test_a_trial_is_a_process_that_is_watched(tmp_path):
    """The real thing, once: a training of a second by ours, followed from outside."""
    trial = Trial(tmp_path / "ours", "slipstream", replace(SMALL, worlds=64, samples=2048, skill=()))
    told = []
    trial.run(lambda text, seconds: told.append(text))
    assert trial.failure == "" and trial.done
    assert trial.looks[-1]["score"]["success"] >= 0.0
    assert len(trial.usage["cores"]) == len(trial.usage["memory"]) > 1
    assert told


def test_torchrls_loss_sees_by_the_normalizer_that_acts():
    """Its losses hold tensors of their own: what is assigned anew instead of changed is one thing to act, another to
    learn."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from slipstream.comparison.trainers import torchrl as trainer
    from slipstream.core.spaces import Box

    work = replace(SMALL, hidden_sizes=(8,))
    scaler = trainer.Scaler(3)
    policy = torch.nn.Sequential(scaler, trainer.net(3, work, 2, 1.0))
    loss = trainer.ClipPPOLoss(
        trainer.actor_of(Box(2), policy, work),
        trainer.ValueOperator(torch.nn.Sequential(scaler, torch.nn.Linear(3, 1))),
    )
    scaler.update(3.0 * torch.randn(64, 3) + 5.0)
    seen = {name: value for name, value in loss.named_buffers() if name.endswith((".mean", ".variance"))}
    assert len(seen) == 4
    for name, value in seen.items():
        torch.testing.assert_close(value, scaler.mean if name.endswith("mean") else scaler.variance)


def test_a_learning_rate_that_follows_the_divergence_falls_rises_and_stays():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from slipstream.comparison.trainers.torchrl import follow_divergence

    optimizer = torch.optim.Adam([torch.zeros(1)], 1e-3)
    for divergence, rate in ((0.05, 1e-3 / 1.5), (0.005, 1e-3), (0.02, 1e-3)):
        follow_divergence(optimizer, divergence, 0.02)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
