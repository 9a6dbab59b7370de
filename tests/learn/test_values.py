"""The value-based family: learners update what they can act in, refuse what they cannot, and act alike in batches."""

from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.spaces import Box, Discrete, MultiDiscrete
from slipstream.core.task import Spec, State, Task
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import LEARNERS, presets
from slipstream.learn.ac_iqn import AcIqn
from slipstream.learn.compiled import Learner, Trainer
from slipstream.learn.ddpg import Ddpg, Td3
from slipstream.learn.dqn import Dqn, project_distribution
from slipstream.learn.exploration import explore_epsilon_greedy
from slipstream.learn.iqn import Iqn
from slipstream.learn.pqn import Pqn
from slipstream.learn.rainbow import Rainbow
from slipstream.learn.replay import Batch
from slipstream.learn.returns import lambda_returns
from slipstream.learn.sac import Sac
from slipstream.policy.continuous import sample_squashed_gaussian
from slipstream.policy.discrete import DiscreteActions, NoisyLinear
from slipstream.runs.run import Run
from slipstream.runs.train import TrainingError, initial_state, train, trainer_of
from slipstream.tasks.marine import Marine

SMALL = MappingProxyType(
    {
        "worlds": 8,
        "rollout_length": 4,
        "gradient_steps": 2,
        "batch_size": 32,
        "capacity": 2000,
        "learning_starts": 64,
        "hidden_sizes": (32, 32),
    }
)
CHOOSING = {"dqn": Dqn, "rainbow": Rainbow, "iqn": Iqn}
NUMBERS = {"ddpg": Ddpg, "td3": Td3, "sac": Sac, "ac-iqn": AcIqn}
CHOOSING_AT_SEA = presets()["marine-dqn"].task
PARALLEL = Pqn(worlds=8, rollout_length=8, epochs=1, minibatches=2, hidden_sizes=(32, 32))


@dataclass(frozen=True)
class Bandit(Task):
    """One step: the action is judged, and that is all. Returns of the arms have known distributions."""

    action: object = Discrete(2)
    agents: int = 1

    @property
    def shape(self):
        return (self.agents,) if self.agents > 1 else ()

    @property
    def spec(self):
        return Spec(1, self.action, 1.0, self.agents)

    def reset(self, rng):
        zero, no = jnp.zeros(self.shape), jnp.zeros(self.shape, jnp.bool_)
        return State(None, zero, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state, action):
        dice, rng = state.rng.uniform()
        if isinstance(self.action, Box):
            # The farther to the right, the more on average, and the more of a gamble.
            side = action[..., 0]
            reward = 1.0 + 0.5 * side + (side + 1.0) * (dice - 0.5) * 4.0
        else:
            first = action if isinstance(self.action, Discrete) else action[..., 0]
            reward = jnp.where(first == 0, dice, -2.0 + 6.0 * dice)
        over = jnp.ones(self.shape, jnp.bool_)
        return replace(state, rng=rng, step=state.step + 1, reward=reward, terminated=over)

    def observe(self, state):
        return jnp.ones((*self.shape, 1))

    def episode_metrics(self, state):
        return {"success": state.reward, "episode_return": state.reward}


def trained(task, learner, updates, seed=0):
    trainer = Trainer(task, learner, device.mesh(1), updates, 1, updates)
    train, metrics, _ = trainer.compile()(trainer.start(seed))
    assert all(np.isfinite(float(value)) for value in metrics.values())
    return train


CASES = {
    **{f"{name} discrete": (Bandit(agents=3), kind(**SMALL)) for name, kind in CHOOSING.items()},
    **{f"{name} box": (Bandit(Box(2), agents=3), kind(**SMALL)) for name, kind in NUMBERS.items()},
    "dqn branches": (Bandit(MultiDiscrete((3, 30))), Dqn(**SMALL)),
    "rainbow joint": (Bandit(MultiDiscrete((3, 4))), Rainbow(**SMALL)),
    "iqn branches": (Bandit(MultiDiscrete((3, 30)), agents=3), Iqn(**SMALL)),
    "iqn that adapts": (replace(CHOOSING_AT_SEA, vessels=3, buoys=1), Iqn(**SMALL, cvar_distance=10.0, cvar_alpha=0.5)),
    "ac-iqn at sea": (Marine(vessels=3, buoys=1), AcIqn(**SMALL, prioritized_replay=True)),
    "ac-iqn that adapts": (Marine(vessels=3, buoys=1), AcIqn(**SMALL, cvar_distance=10.0, cvar_alpha=0.5)),
    "pqn branches": (Bandit(MultiDiscrete((3, 30)), agents=3), PARALLEL),
    "half precision": (Bandit(Box(2), agents=3), Sac(**SMALL, precision="bfloat16")),
}  # fmt: skip


QUICK = ("dqn discrete", "sac box", "pqn branches")
"""The others take minutes to compile, all together: they run with `make test-learning`."""


@pytest.mark.parametrize(
    ("task", "learner"),
    [pytest.param(*case, id=name, marks=() if name in QUICK else pytest.mark.learning) for name, case in CASES.items()],
)
def test_a_learner_updates_on_two_devices_and_acts_for_many_as_for_one(task, learner):
    assert isinstance(learner, Learner)
    trainer = Trainer(task, learner, device.mesh(2), 4, 1, 4)
    start = jax.device_get(trainer.start(0).policy)
    train, metrics, _ = trainer.compile()(trainer.start(0))
    assert all(np.isfinite(float(value)) for value in metrics.values()), metrics
    policy = jax.device_get(train.policy)
    moved = [
        not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start.params, policy.params)), strict=True)
    ]
    assert any(moved)
    # Acting for a batch is acting one by one, without exploring and with it.
    shape = (6, task.spec.agents) if task.spec.agents > 1 else (6,)
    seen = jax.random.normal(jax.random.key(0), (*shape, task.spec.observation))
    together = policy.act(seen)[0]
    alone = jnp.stack([policy.act(row)[0] for row in seen])
    assert jnp.allclose(together, alone, atol=1e-5)
    own = jax.vmap(partial(Rng.from_seed, 3))
    rngs = own(jnp.arange(6)) if len(shape) == 1 else jax.vmap(own)(jnp.arange(6 * shape[1]).reshape(shape))
    epsilon, key = jnp.float32(0.5), jax.random.key(1)
    together, after = learner.explore(policy, seen, rngs, epsilon, key)
    one = lambda k: learner.explore(policy, seen[k], jax.tree.map(lambda x: x[k], rngs), epsilon, key)  # noqa: E731
    alone = [one(slice(k, k + 1)) for k in range(6)]
    tolerance = 2e-2 if getattr(learner, "precision", "") == "bfloat16" else 1e-5
    assert jnp.allclose(together, jnp.concatenate([action for action, _ in alone]), atol=tolerance)
    assert jnp.array_equal(after.drawn, jnp.concatenate([rng.drawn for _, rng in alone]))


@pytest.mark.parametrize("name", [*CHOOSING, "pqn"])
def test_a_learner_of_discrete_actions_refuses_continuous_ones_and_names_others(name):
    learner = PARALLEL if name == "pqn" else CHOOSING[name](**SMALL)
    with pytest.raises(ValueError, match="for continuous actions choose .*sac"):
        trainer_of(Experiment(Marine(), learner, steps=1000))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_learner_of_continuous_actions_refuses_discrete_ones_and_names_others(name):
    with pytest.raises(ValueError, match="for discrete actions choose .*iqn"):
        trainer_of(Experiment(CHOOSING_AT_SEA, NUMBERS[name](**SMALL), steps=1000))


def test_settings_that_cannot_be_are_refused_before_anything_runs():
    for task, kind in ((Bandit(), Iqn), (Bandit(Box(1)), AcIqn)):
        with pytest.raises(ValueError, match="does not observe the distance"):
            Trainer(task, kind(**SMALL, cvar_distance=5.0), device.mesh(1), 1, 1, 1).start(0)
    with pytest.raises(ValueError, match="too few"):
        trainer_of(Experiment(CHOOSING_AT_SEA, Dqn(**{**SMALL, "capacity": 10}), steps=1000))
    with pytest.raises(ValueError, match="cvar_alpha"):
        Iqn(cvar_alpha=0.0)
    for name in ("learning_rate_final_fraction", "target_update_interval", "learning_starts"):
        with pytest.raises(ValueError, match=f"{name}.* must not be negative"):
            Dqn(**{name: -1})
    with pytest.raises(ValueError, match="max_grad_norm must be positive"):
        Dqn(max_grad_norm=-1.0)
    with pytest.raises(ValueError, match="hidden_sizes"):
        Pqn(hidden_sizes=())
    with pytest.raises(ValueError, match="alpha"):
        Sac(alpha=0.0)
    with pytest.raises(ValueError, match="does not grow"):
        Dqn(epsilon_start=0.1, epsilon_end=0.5)


def test_a_replay_that_does_not_fit_is_refused_before_it_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "free_memory", lambda: 10_000_000)
    experiment = Experiment(Marine(), Sac(worlds=8, capacity=10_000_000), steps=1000)
    with pytest.raises(TrainingError, match=r"keeps .* GB, and 0\.0 GB are free.*learner.capacity"):
        train(Run.create(tmp_path / "run", experiment))


def test_what_is_free_is_known_here():
    assert device.free_memory() > 1e8


def test_a_training_from_another_policy_compares_it_with_itself(tmp_path):
    first = Experiment(presets()["pendulum"].task, Sac(**SMALL), steps=128, devices=1)
    run = Run.create(tmp_path / "run", first)
    train(run)
    second = replace(first, seed=1, init_from=str(run.folder))
    trainer = trainer_of(second)
    state = initial_state(trainer, second)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, state.policy.params, state.target.params))
    fresh = trainer.start(1).policy.params
    assert not jax.tree.all(jax.tree.map(jnp.array_equal, state.policy.params, fresh))
    trainer.compile()(state)  # which may write into both


def test_every_learner_can_be_named_and_told():
    for name, kind in LEARNERS.items():
        task = Marine() if name in (*NUMBERS, "ppo") else CHOOSING_AT_SEA
        experiment = Experiment(task, kind())
        assert Experiment.from_dict(experiment.as_dict()) == experiment


# What is learned


def quantiles_of(policy, action, count=32):
    taus = (jnp.arange(count) + 0.5) / count
    values = policy.quantile_values(policy.normalizer(jnp.ones((1, 1))), taus)
    return np.asarray(values[0, :, action]), np.asarray(taus)


def test_implicit_quantiles_are_those_of_the_returns_and_caution_changes_the_arm():
    # With few features none of them may respond to the lowest levels, whose quantiles are then all the same.
    wide = {**SMALL, "hidden_sizes": (128, 128)}
    learner = Iqn(
        **{
            **wide,
            "gradient_steps": 8,
            "batch_size": 128,
            "learning_starts": 200,
            "capacity": 20_000,
            "normalize_observations": False,
        },
        learning_rate=2e-3,
        tau=0.05,
        epsilon_end=1.0,
        huber_delta=0.1,
        quantiles=16,
    )
    policy = trained(Bandit(), learner, 400).policy
    values, taus = quantiles_of(policy, 0)
    assert np.mean(np.abs(values - taus)) < 0.1  # uniform in [0, 1]
    values, taus = quantiles_of(policy, 1)
    assert np.mean(np.abs(values - (6.0 * taus - 2.0))) < 0.1
    assert int(policy.act(jnp.ones((1, 1)))[0][0]) == 1
    careful = replace(policy, risk=replace(policy.risk, alpha=0.25))
    assert int(careful.act(jnp.ones((1, 1)))[0][0]) == 0


@pytest.mark.learning
@pytest.mark.parametrize(("cvar", "side"), [(1.0, 1.0), (0.25, -1.0)])
def test_an_actor_judged_by_quantiles_gambles_only_if_all_of_them_count(cvar, side):
    learner = AcIqn(
        **{
            **SMALL,
            "gradient_steps": 8,
            "batch_size": 128,
            "learning_starts": 200,
            "capacity": 20_000,
            "normalize_observations": False,
        },
        learning_rate=2e-3,
        tau=0.05,
        cvar_alpha=cvar,
        epsilon_start=0.5,
        epsilon_end=0.5,
    )
    policy = trained(Bandit(Box(1)), learner, 300).policy
    assert float(policy.act(jnp.ones((1, 1)))[0][0, 0]) * side > 0.6


def test_the_nearer_a_thing_the_worse_the_part_of_the_returns_that_counts_for_an_actor():
    bay, learner = Marine(vessels=3, buoys=1), AcIqn(**SMALL, cvar_distance=10.0)
    policy = learner.policy(bay.spec, jax.random.key(0))
    seen = jax.vmap(lambda k: bay.observe(bay.reset(Rng.from_seed(0, k))))(jnp.arange(64)).reshape(
        -1, bay.spec.observation
    )
    # A normaliser that has seen other things must not change how near they are.
    normalizer = replace(
        policy.normalizer, mean=policy.normalizer.mean + 0.1, variance=policy.normalizer.variance * 2.0
    )
    policy = replace(policy, normalizer=normalizer)
    count = seen.shape[0]
    batch = Batch(normalizer(seen), *[jnp.zeros(count)] * 3, seen, *[jnp.zeros(count)] * 3)
    counting, near = np.asarray(learner._cvar_weights(policy, batch)), np.asarray(bay.spec.obstacle_distance(seen))
    assert np.allclose(counting.sum(-1), 1.0, atol=1e-4)
    # The worst part counts as much more as the distance is less than ten metres.
    assert np.allclose(counting[:, 0], 1.0 / np.clip(8 * np.clip(near / 10.0, 0.05, 1.0), 1.0, 8.0), rtol=1e-3)
    assert near.min() < 9.0 and near.max() > 11.0


@pytest.mark.parametrize("space", [MultiDiscrete((3, 4)), MultiDiscrete((3, 30))])
def test_actions_of_several_components_and_their_numbers(space):
    choices = DiscreteActions.of(space)
    assert choices.joint == (space.choices == (3, 4))
    actions = jnp.stack(jnp.meshgrid(*map(jnp.arange, space.choices), indexing="ij"), -1).reshape(-1, 2)
    assert jnp.array_equal(choices.decode(choices.encode(actions)), actions)
    values = jnp.zeros((1, sum(choices.heads))).at[0, choices.encode(actions[7:8])[0][0]].set(1.0)
    assert int(choices.best(values)[0, 0]) == int(actions[7, 0])


def test_a_projected_distribution_keeps_its_mass_and_its_mean():
    support = jnp.linspace(-5.0, 5.0, 21)
    probs = jax.nn.softmax(jax.random.normal(jax.random.key(0), (64, 21)))
    reward, discount = jax.random.uniform(jax.random.key(1), (64,)), jnp.full(64, 0.6)
    moved = project_distribution(probs, reward, discount, support)
    assert jnp.allclose(jnp.sum(moved, -1), 1.0, atol=1e-5)
    assert jnp.allclose(moved @ support, reward + 0.6 * (probs @ support), atol=1e-4)
    ended = project_distribution(probs, reward, jnp.zeros(64), support)
    assert jnp.allclose(ended @ support, reward, atol=1e-4)
    # What lies beyond the atoms is counted at the last of them.
    for end, side in ((0, -1.0), (-1, 1.0)):
        beyond = project_distribution(probs, jnp.full(64, 20.0 * side), discount, support)
        assert jnp.allclose(beyond[:, end], 1.0, atol=1e-5)


def test_weights_tremble_by_one_factor_a_row_and_one_a_column_around_their_mean():
    layer, x = NoisyLinear.init(jax.random.key(0), 5, 4, 0.5), jax.random.normal(jax.random.key(1), (3, 5))
    keys = jax.random.split(jax.random.key(2), 4000)
    shaken = jax.vmap(lambda key: layer(jnp.concatenate([x, jnp.eye(5), jnp.zeros((1, 5))]), key))(keys)
    off = shaken - layer(jnp.concatenate([x, jnp.eye(5), jnp.zeros((1, 5))]))
    assert jnp.allclose(jnp.mean(off, 0), 0.0, atol=0.03)
    # What one-hot rows and a row of zeros tell of weights and bias gives the rest, and all weights share one matrix.
    weight, bias = off[:, 3:8] - off[:, 8:], off[:, 8:]
    assert jnp.allclose(off[:, :3], jnp.einsum("bi,kio->kbo", x, weight) + bias, atol=1e-4)
    assert jnp.allclose(weight[:, 0, 0] * weight[:, 1, 1], weight[:, 0, 1] * weight[:, 1, 0], atol=1e-5)


def test_the_density_of_squashed_actions_is_right():
    mean, log_std = jnp.array([[0.3], [-1.0]]), jnp.array([[-0.5], [0.2]])
    action, log_prob = sample_squashed_gaussian(mean, log_std, jax.random.key(0))
    raw = np.arctanh(np.asarray(action, np.float64))
    z = (raw - np.asarray(mean)) / np.exp(np.asarray(log_std))
    density = (
        np.exp(-0.5 * z**2)
        / (np.sqrt(2 * np.pi) * np.exp(np.asarray(log_std)))
        / (1 - np.asarray(action, np.float64) ** 2)
    )
    assert np.allclose(log_prob, np.log(density)[:, 0], atol=1e-4)


def test_a_random_action_is_repeated_as_often_as_it_is_set_to():
    rngs, best, runs = jax.vmap(partial(Rng.from_seed, 0))(jnp.arange(500)), jnp.zeros(500, jnp.int32), []
    for _ in range(12):
        action, rngs = explore_epsilon_greedy(best, rngs, jnp.float32(0.5), Discrete(9), repeat=4)
        runs.append(action)
    runs = np.stack(runs).reshape(3, 4, 500)
    assert (runs == runs[:, :1]).all()
    # Half of them are random, of which one in nine is the best one all the same.
    assert np.mean(runs[:, 0] > 0) == pytest.approx(0.5 * 8 / 9, abs=0.05)
    assert np.mean(runs[0, 0] == runs[1, 0]) < 0.5


def test_returns_that_believe_what_came_by_a_share_match_a_plain_loop():
    rng = np.random.default_rng(0)
    reward, best = rng.normal(size=(2, 12, 5)).astype(np.float32)
    ended = rng.uniform(size=(12, 5)) < 0.2
    terminated = ended & (rng.uniform(size=(12, 5)) < 0.5)
    truncated = ended & ~terminated
    found = lambda_returns(*map(jnp.asarray, (reward, best, terminated, truncated)), 0.9, 0.7)
    for world in range(5):
        after = best[-1, world]
        for t in reversed(range(12)):
            onward = best[t, world] if truncated[t, world] else 0.3 * best[t, world] + 0.7 * after
            after = reward[t, world] + (0.0 if terminated[t, world] else 0.9 * onward)
            assert float(found[t, world]) == pytest.approx(after, abs=1e-4)
