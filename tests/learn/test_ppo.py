import dataclasses
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
from slipstream.experiment.registry import presets
from slipstream.learn.compiled import Learner, Trainer
from slipstream.learn.dqn import Dqn
from slipstream.learn.ppo import Ppo, PpoBatch, explore
from slipstream.learn.rollout import Acting, rollout
from slipstream.policy.actor_critic import ActorCritic, Architecture
from slipstream.policy.nets import Linear
from slipstream.runs.train import trainer_of
from slipstream.sensors.camera import CameraSettings
from slipstream.tasks.racing import Racing

SMALL = MappingProxyType(
    {"worlds": 64, "rollout_length": 8, "epochs": 2, "minibatches": 2, "hidden_sizes": (16, 16), "shuffle_block": 16}
)
SPACES = {
    "box": Racing(),
    "discrete": Racing(action_space="discrete"),
    "multidiscrete": Racing(action_space="multidiscrete"),
}


def weights(train):
    return jax.device_get(jax.tree.leaves(train.policy))


def trained(experiment, chunks=2):
    trainer = trainer_of(experiment, 2)
    chunk, train = trainer.compile(), trainer.start(experiment.seed)
    for _ in range(chunks):
        train, metrics, stats = chunk(train)
    return train, metrics, stats


@pytest.mark.parametrize("name", [*SPACES, "agents", "shared", "adaptive", "final std"])
def test_ppo_updates_every_kind_of_action_and_network(name):
    task = SPACES.get(name, Racing(agents=3) if name == "agents" else Racing())
    extra = {
        "shared": {"shared_trunk": True},
        "adaptive": {"learning_rate_schedule": "adaptive"},
        "final std": {"final_std": 0.1},
    }.get(name, {})
    learner = Ppo(**SMALL, **extra)
    assert isinstance(learner, Learner)
    experiment = Experiment(task, learner, steps=4096)
    before = trainer_of(experiment, 2).start(0).policy
    train, metrics, _ = trained(experiment)
    assert all(np.isfinite(float(value)) for value in metrics.values())
    # The normalizer changes without learning: what must have moved is every layer of the networks.
    for net in ("actor", "critic", "trunk"):
        leaves = (jax.tree.leaves(getattr(policy, net)) for policy in (before, train.policy))
        assert all(not np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
    assert int(train.updates) == 4


def test_the_same_seed_twice_gives_identical_weights():
    experiment = Experiment(Racing(), Ppo(**SMALL), steps=4096)
    first, second = weights(trained(experiment)[0]), weights(trained(experiment)[0])
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_two_devices_fly_the_same_episodes_as_one():
    task, learner = Racing(), Ppo(**SMALL)
    flown = []
    for devices in (1, 2):
        trainer = Trainer(task, learner, device.mesh(devices), 1)
        train = trainer.start(5)
        act = partial(explore, jax.device_get(train.policy))
        go = jax.jit(lambda worlds, rngs, act=act: rollout(task, act, worlds, Acting(rngs), 64))
        states, _, transitions, *_ = jax.device_get(go(train.worlds, train.rngs))
        flown.append((states.body.position.x, transitions.reward, transitions.action))
    for one, two in zip(*flown, strict=True):
        np.testing.assert_array_equal(one, two)


def test_two_devices_learn_as_one_does_but_for_rounding():
    """In practice cut short, so that worlds restart on both devices at different times."""
    learner, found = Ppo(**{**SMALL, "epochs": 1, "minibatches": 1, "rollout_length": 16}), []
    for devices in (1, 2):
        trainer = Trainer(Racing(train_time_limit=0.1), learner, device.mesh(devices), 1, chunk_length=1)
        start = jax.device_get(trainer.start(0).policy)
        train, metrics, stats = trainer.compile()(trainer.start(0))
        after = jax.device_get(train.policy)
        steps = {
            net: jax.tree.leaves(jax.tree.map(np.subtract, getattr(after, net), getattr(start, net)))
            for net in ("actor", "critic", "log_std", "normalizer", "return_normalizer")
        }
        found.append((steps, jax.device_get(metrics), jax.device_get(stats)))
    (one, one_metrics, one_tally), (two, two_metrics, two_tally) = found
    # Steps are compared, not weights, which hardly change in one update. Adam divides by the size of a gradient: where
    # that is all rounding, so is the step.
    for net, leaves in one.items():
        for a, b in zip(leaves, two[net], strict=True):
            assert np.linalg.norm(a - b) < 0.02 * np.linalg.norm(a), net
    for name, value in one_metrics.items():
        assert float(value) == pytest.approx(float(two_metrics[name]), rel=1e-3, abs=1e-6), name
    assert one_tally.count == two_tally.count
    assert one_tally.count["gates"] > 32
    for name, total in one_tally.total.items():
        assert float(total) == pytest.approx(float(two_tally.total[name]), rel=1e-5), name


def test_several_seeds_train_side_by_side_as_each_would_alone():
    learner = Ppo(**SMALL)
    together = trained(Experiment(Racing(), learner, steps=4096, seeds=2, seed=3))[0]
    for index in range(2):
        alone = trained(Experiment(Racing(), learner, steps=4096, seed=3 + index))[0]
        for a, b in zip(weights(together), weights(alone), strict=True):
            np.testing.assert_allclose(a[index], b, rtol=1e-3, atol=1e-5)


REPLAYING = Dqn(
    worlds=8,
    rollout_length=4,
    gradient_steps=2,
    batch_size=32,
    capacity=2000,
    learning_starts=64,
    hidden_sizes=(16, 16),
)


@pytest.mark.parametrize(
    ("task", "learner"), [(Racing(), Ppo(**SMALL)), (presets()["cartpole"].task, REPLAYING)], ids=["ppo", "replay"]
)
def test_a_training_compiles_once(task, learner):
    trainer = trainer_of(Experiment(task, learner, steps=8192), 2)
    chunk, train = trainer.compile(), trainer.start(0)
    train, _, _ = chunk(train)
    with jax.log_compiles(), CountCompiles() as count:
        for _ in range(3):
            train, metrics, stats = chunk(train)
            jax.device_get((metrics, stats))
    assert count.compiles == 0


class CountCompiles:
    """Counts what XLA compiles."""

    def __enter__(self):
        self.compiles = 0
        self.listen = lambda name, *_, **__: setattr(self, "compiles", self.compiles + ("backend_compile" in name))
        jax.monitoring.register_event_duration_secs_listener(self.listen)
        return self

    def __exit__(self, *_):
        jax._src.monitoring.unregister_event_duration_listener(self.listen)


@dataclasses.dataclass(frozen=True)
class Bandit(Task):
    """One step: the reward is 1 for the right choice of every component, given the observation."""

    action: object = MultiDiscrete((3, 3, 4))

    @property
    def spec(self):
        return Spec(3, self.action, 1.0)

    def reset(self, rng):
        x, rng = rng.integer(3)
        return State(
            world=x, body=None, progress=jnp.float32(0.0), rng=rng, step=jnp.int32(0), reward=jnp.float32(0.0),
            terminated=jnp.bool_(False), truncated=jnp.bool_(False),
        )  # fmt: skip

    def step(self, state, action):
        x = state.world
        if isinstance(self.action, Box):
            reward = 1.0 - jnp.mean((action - (x - 1.0) * 0.5) ** 2)
        elif isinstance(self.action, Discrete):
            reward = (action == (x + 1) % 3).astype(jnp.float32)
        else:
            right = jnp.stack([x, (x + 1) % 3, x + 1])
            reward = jnp.mean((action == right).astype(jnp.float32))
        return dataclasses.replace(
            state, reward=reward, progress=reward, terminated=jnp.bool_(True), step=state.step + 1
        )

    def observe(self, state):
        return jax.nn.one_hot(state.world, 3)

    def episode_metrics(self, state):
        return {"success": state.progress}


@pytest.mark.parametrize("action", [Box(2), Discrete(3), MultiDiscrete((3, 3, 4))], ids=["box", "discrete", "multi"])
def test_ppo_solves_a_bandit_of_every_kind_of_action(action):
    task = Bandit(action)
    learner = Ppo(
        worlds=128, rollout_length=16, epochs=4, minibatches=4, hidden_sizes=(32,), learning_rate=5e-3, shuffle_block=16
    )
    trainer = Trainer(task, learner, device.mesh(1), 80, chunk_length=80)
    train, _, _ = trainer.compile()(trainer.start(0))
    states = jax.vmap(lambda w: task.reset(Rng.from_seed(9, w)))(jnp.arange(300))
    policy = jax.device_get(train.policy)
    actions, _ = policy.act(jax.vmap(task.observe)(states))
    rewards = jax.vmap(task.step)(states, actions).reward
    assert float(rewards.mean()) > 0.98


@dataclasses.dataclass(frozen=True)
class Prize(Task):
    """Two steps that each pay the same, by an observed number. The last observation equals the first."""

    @property
    def spec(self):
        return Spec(4, Box(1), 1.0)

    def reset(self, rng):
        x, rng = rng.integer(3)
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return State(x, None, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state, action):
        step = state.step + 1
        return dataclasses.replace(state, step=step, reward=100.0 + 20.0 * state.world, terminated=step == 2)

    def observe(self, state):
        return jnp.append(jax.nn.one_hot(state.world, 3), state.step % 2)

    def episode_metrics(self, state):
        return {"episode_return": state.reward}


def test_a_critic_learns_what_is_paid_from_here_to_the_end_and_nothing_of_restarts():
    learner = Ppo(
        worlds=128,
        rollout_length=15,
        epochs=4,
        minibatches=2,
        hidden_sizes=(32,),
        learning_rate=1e-2,
        shuffle_block=15,
        discount=0.5,
        gae_lambda=0.5,
    )
    trainer = Trainer(Prize(), learner, device.mesh(1), 100, chunk_length=100)
    policy = jax.device_get(trainer.compile()(trainer.start(0))[0].policy)
    observation = jnp.array([[*np.eye(3)[x], step] for x in range(3) for step in range(2)])
    value = policy.value(observation) * np.sqrt(policy.return_normalizer.variance) + policy.return_normalizer.mean
    pay = 100.0 + 20.0 * np.arange(3)
    np.testing.assert_allclose(value.reshape(3, 2), np.stack([1.5 * pay, pay], 1), atol=4.0)


def test_the_surrogate_is_the_lower_of_the_ratio_and_the_clipped_one():
    learner = Ppo(**SMALL, clip=0.2, value_coef=0.0)
    policy = trainer_of(Experiment(Racing(), learner, steps=4096)).start(0).policy
    policy = jax.tree.map(jnp.asarray, jax.device_get(policy))
    ratio, advantage = jnp.array([2.0, 2.0, 0.5, 0.5, 1.1, 2.0]), jnp.array([1.0, -1.0, 1.0, -1.0, 1.0, 1e6])
    rows = len(ratio)
    observation, action = jnp.zeros((rows, Racing().spec.observation)), jnp.zeros((rows, 4))
    batch = PpoBatch(
        observation=observation,
        action=action,
        log_prob=policy.distribution(observation).log_prob(action) - jnp.log(ratio),
        advantage=advantage,
        target=jnp.zeros(rows),
        weight=jnp.array([1.0] * 5 + [0.0]),
    )
    _, metrics = learner._loss(policy.params, batch, policy, learner.entropy_coef)
    assert float(metrics["loss"]) == pytest.approx(-(1.2 - 2.0 + 0.5 - 0.8 + 1.1), abs=1e-4)
    assert float(metrics["count"]) == 5.0


def test_advantages_are_centered_and_scaled_over_what_was_experienced():
    task, learner = Prize(), Ppo(**SMALL)
    train = learner.init(task, jnp.uint32(0), jnp.arange(learner.worlds))

    @jax.jit
    def estimated(train):
        worlds, _, transitions, *_ = rollout(task, partial(explore, train.policy), train.worlds, Acting(train.rngs), 8)
        return learner._advantages(task, train.policy, worlds, None, transitions, None, None)[0]

    batch = estimated(train)
    lived = np.asarray(batch.advantage)[np.asarray(batch.weight) > 0.0]
    assert 0 < lived.size < batch.advantage.size
    assert lived.mean() == pytest.approx(0.0, abs=1e-4)
    assert lived.std() == pytest.approx(1.0, abs=1e-3)


def updated(learner, *fractions):
    """The metrics of a first update on a bandit, were it at those fractions of a training."""
    task = Bandit(Box(2))
    train = learner.init(task, jnp.uint32(0), jnp.arange(learner.worlds))
    update = jax.jit(lambda progress: learner.update(task, train, progress)[1])
    return [jax.device_get(update(jnp.float32(progress))) for progress in fractions]


def test_learning_rate_and_std_decay_as_they_are_set_to():
    learner = Ppo(
        **SMALL, learning_rate=1e-3, learning_rate_final_fraction=0.2, init_std=0.8, final_std=0.2, anneal_start=0.6
    )
    metrics = updated(learner, 0.0, 0.3, 0.6, 1.0)
    assert [float(m["learning_rate"]) for m in metrics] == pytest.approx([1e-3, 7.6e-4, 5.2e-4, 2e-4], rel=1e-4)
    # In equal times by equal factors, and from `anneal_start` on no more.
    assert [float(m["action_std"]) for m in metrics] == pytest.approx([0.8, 0.4, 0.2, 0.2], rel=1e-4)


@pytest.mark.parametrize(("target_kl", "factor"), [(1e-9, 0.7), (1e3, 1.2)])
def test_an_adaptive_rate_falls_where_an_update_went_too_far_and_rises_where_it_did_not(target_kl, factor):
    (metrics,) = updated(Ppo(**SMALL, learning_rate=1e-3, learning_rate_schedule="adaptive", target_kl=target_kl), 0.0)
    assert float(metrics["learning_rate"]) == pytest.approx(1e-3 * factor, rel=1e-4)


def test_an_entropy_bonus_raises_the_standard_deviation():
    learner = Ppo(**SMALL, learning_rate=1e-2, entropy_coef=10.0)
    trainer = Trainer(Bandit(Box(2)), learner, device.mesh(1), 10, chunk_length=10)
    train, _, _ = trainer.compile()(trainer.start(0))
    assert float(jnp.exp(train.policy.log_std).min()) > 1.1 * learner.init_std


def test_an_entropy_bonus_falls_linearly_to_what_is_left_at_the_end():
    learner = Ppo(**SMALL, entropy_coef=10.0, entropy_coef_final_fraction=0.2)
    for progress, coef in ((0.0, 10.0), (0.5, 6.0), (1.0, 2.0)):
        (faded,) = updated(replace(learner, epochs=1), progress)
        (constant,) = updated(replace(learner, epochs=1, entropy_coef=coef, entropy_coef_final_fraction=1.0), progress)
        assert float(faded["loss"]) == pytest.approx(float(constant["loss"]), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"discount": 1.5}, "between 0 and 1"),
        ({"hidden_sizes": ()}, "at least one layer"),
        ({"learning_rate": 0.0}, "must be positive"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(settings, words):
    with pytest.raises(ValueError, match=words):
        Ppo(**settings)


def test_rows_that_do_not_divide_into_minibatches_are_refused():
    with pytest.raises(ValueError, match="do not divide into 7 minibatches"):
        Trainer(Racing(), Ppo(worlds=100, rollout_length=3, minibatches=7), device.mesh(1), 1)


def test_worlds_that_do_not_divide_over_the_devices_are_refused():
    with pytest.raises(ValueError, match="do not divide over 2 devices"):
        Trainer(Racing(), Ppo(worlds=65, rollout_length=64, minibatches=1), device.mesh(2), 1)


def test_state_estimation_needs_privileged_state():
    with pytest.raises(ValueError, match="no privileged state to predict"):
        Trainer(
            Racing(), Ppo(worlds=64, rollout_length=64, minibatches=1, state_estimation_coef=1.0), device.mesh(1), 1
        )


def test_a_minibatch_of_nothing_but_restarts_leaves_the_weights_finite():
    """Episodes of 31 steps: all worlds restart together, and a minibatch is one step of all of them."""
    learner = Ppo(worlds=64, rollout_length=32, epochs=2, minibatches=32, shuffle_block=64, hidden_sizes=(16,))
    trainer = trainer_of(Experiment(Clockwork(), learner, steps=64 * 32 * 4, devices=1), 2)
    state, metrics, _ = trainer.compile()(trainer.start(0))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(weights(state)))
    assert all(np.isfinite(value) for value in metrics.values())


@dataclass(frozen=True)
class Clockwork(Task):
    """Every episode takes 31 steps, and nothing happens in it."""

    @property
    def spec(self):
        return Spec(1, Box(1), 1.0)

    def reset(self, rng):
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return State(None, zero, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state, action):
        step = state.step + 1
        return replace(state, step=step, reward=action[0], truncated=step >= 31)

    def observe(self, state):
        return jnp.ones(1)

    def episode_metrics(self, state):
        return {"episode_return": state.reward}


@pytest.mark.parametrize("camera", ["none", "depth"])
def test_no_two_layers_of_a_policy_begin_with_the_same_key(monkeypatch, camera):
    used, init = [], Linear.init.__func__

    def spy(cls, key, *rest):
        used.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return init(cls, key, *rest)

    monkeypatch.setattr(Linear, "init", classmethod(spy))
    spec = Racing(camera=CameraSettings(camera, 16)).spec
    ActorCritic.init(jax.random.key(0), spec, Architecture((16, 16), state_estimator=camera != "none"))
    assert len(used) == len(set(used)) >= 6
