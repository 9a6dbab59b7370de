"""Policies of other libraries act here as they do there, and no file is unpickled or run without being asked to."""

import json
import pickle
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install torch==2.13.0")

from ladder import Ladder

from slipstream.adapters.foreign import UntrustedFileError, foreign_pilot, load_policy
from slipstream.adapters.sb3 import SlipstreamVecEnv
from slipstream.cli.main import main
from slipstream.evaluation.runner import run_episodes
from slipstream.plants.fast import FastPlant

ROWS = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)


class Bomb:
    """What a file from elsewhere may hold."""

    def __reduce__(self):
        return (exec, ("raise SystemError('code in a file was run')",))


@pytest.mark.parametrize(
    ("algorithm", "space", "settings"),
    [
        ("PPO", "box", {"n_steps": 8, "batch_size": 16}),
        ("PPO", "multidiscrete", {"n_steps": 8, "batch_size": 16, "policy_kwargs": {"activation_fn": torch.nn.ReLU}}),
        ("SAC", "box", {}),
        ("TD3", "box", {}),
        ("DQN", "discrete", {}),
    ],
)
def test_a_policy_of_stable_baselines3_acts_as_it_does_there(algorithm, space, settings, tmp_path):
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
    task = Ladder(space)
    model = getattr(sb3, algorithm)("MlpPolicy", SlipstreamVecEnv(task, 2), device="cpu", **settings)
    model.save(tmp_path / "model.zip")
    _, act = load_policy(f"sb3:{tmp_path / 'model.zip'}", task)
    theirs, _ = model.predict(ROWS, deterministic=True)
    assert np.allclose(np.asarray(act(jnp.asarray(ROWS))), theirs, atol=1e-5)


def test_weights_of_layers_act_as_the_network_they_are_from(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ELU(), torch.nn.Linear(8, 1))
    theirs = net(torch.from_numpy(ROWS)).clamp(-1.0, 1.0).detach().numpy()
    scaled = net((torch.from_numpy(ROWS) - 0.5) / 2.01).clamp(-1.0, 1.0).detach().numpy()
    own = {f"mlp.{name}": value for name, value in net.state_dict().items()}
    normalizer = {"obs_normalizer._mean": torch.full((1, 2), 0.5), "obs_normalizer._std": torch.full((1, 2), 2.0)}
    torch.save({"policy": net.state_dict(), "value": {}}, tmp_path / "skrl.pt")
    torch.save({"actor_state_dict": own | normalizer, "infos": None}, tmp_path / "rsl_rl.pt")
    torch.save(net.state_dict(), tmp_path / "torchrl.pt")
    heads = {"a2c_network.actor_mlp.0.weight": net[0].weight, "a2c_network.actor_mlp.0.bias": net[0].bias,
             "a2c_network.value.weight": torch.ones(1, 8), "a2c_network.value.bias": torch.ones(1),
             "a2c_network.mu.weight": net[2].weight, "a2c_network.mu.bias": net[2].bias}  # fmt: skip
    torch.save({"model": heads}, tmp_path / "rl_games.pth")
    for library, wanted in {"skrl": theirs, "torchrl": theirs, "rl_games": theirs, "rsl_rl": scaled}.items():
        file = next(tmp_path.glob(f"{library}.*"))
        _, act = load_policy(f"{library}:{file}", Ladder(), activation="elu")
        assert np.allclose(np.asarray(act(jnp.asarray(ROWS))), wanted, atol=1e-5), library
    with pytest.raises(ValueError, match="add --activation"):
        load_policy(f"skrl:{tmp_path / 'skrl.pt'}", Ladder())
    with pytest.raises(ValueError, match="does not fit"):
        load_policy(f"skrl:{tmp_path / 'skrl.pt'}", Ladder("multidiscrete"), activation="elu")


def test_code_in_a_file_is_not_run(tmp_path):
    torch.save({"policy": Bomb()}, tmp_path / "skrl.pt")
    with pytest.raises(ValueError, match="cannot be read as weights alone"):
        load_policy(f"skrl:{tmp_path / 'skrl.pt'}", Ladder(), "tanh")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("data", json.dumps({"policy_kwargs": {}}))
        archive.writestr("policy.pth", pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="cannot be read as weights alone"):
        load_policy(f"sb3:{tmp_path / 'model.zip'}", Ladder())
    with pytest.raises(UntrustedFileError, match="add --trust"):
        load_policy(f"sbx:{tmp_path / 'model.zip'}", Ladder())
    (tmp_path / "own.py").write_text("raise SystemError('code in a file was run')")
    with pytest.raises(UntrustedFileError, match="is code"):
        load_policy(f"python:{tmp_path / 'own.py'}:act", Ladder())


def test_a_function_of_ones_own_sees_images_and_flies_agents(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "def act(observation, image):\n"
        "    assert image.shape == (len(observation), 4, 4, 3) and image.dtype == np.uint8\n"
        "    return np.full(len(observation), 2)\n"
    )
    task = Ladder("discrete", agents=2, camera=True)
    _, act = load_policy(f"python:{tmp_path / 'own.py'}:act", task, trust=True)
    found = run_episodes(task, foreign_pilot(task, act), FastPlant(), 4, seed=0)
    assert found.metrics["success"].tolist() == [1.0] * 8 and found.metrics["episode_return"].tolist() == [3.0] * 8


def test_a_policy_is_evaluated_filmed_and_reported_by_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    torch.save({"policy": net.state_dict()}, "agent.pt")
    request = ["evaluate", "hover", "--policy", "skrl:agent.pt", "--worlds", "8"]
    assert main([*request, "--json"]) == 2 and "--activation" in capsys.readouterr().err
    assert main([*request, "--activation", "tanh", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["run"] == "runs/hover-skrl" and summary["episodes"] == 8
    assert main(["video", "runs/hover-skrl", "--seconds", "1"]) == 0
    assert main(["report", "runs/hover-skrl"]) == 0
    assert "Trained by skrl" in (tmp_path / "runs/hover-skrl/report.html").read_text()
    assert main(["evaluate", "runs/hover-skrl"]) == 2
    assert "evaluate PRESET --policy skrl:agent.pt" in capsys.readouterr().err
    assert main(["evaluate", "hover", "--policy", "sb4:agent.pt"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_a_policy_stands_beside_ours_in_a_comparison(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"policy": torch.nn.Sequential(torch.nn.Linear(2, 1)).state_dict()}, "agent.pt")
    task = f"{Path(__file__).parent / 'ladder.py'}:Ladder"
    request = ["compare", task, "--learners", "ppo", "--seeds", "1", "--steps", "40000", "--jobs", "1", "--worlds", "8"]
    assert main([*request, "--policies", "skrl:agent.pt", "--activation", "tanh", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["name"] for row in rows} == {"ppo", "skrl-agent"}
    assert all(np.isfinite(row["metrics"]["return_mean"]) for row in rows)
