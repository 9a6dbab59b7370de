"""Correlated exploration noise: what it is, when it starts anew, and that every learner carries it."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.spaces import Box, Discrete
from slipstream.core.task import Spec, State, Task
from slipstream.experiment.experiment import Experiment
from slipstream.learn.ac_iqn import AcIqn
from slipstream.learn.compiled import Trainer
from slipstream.learn.ddpg import Ddpg, Td3
from slipstream.learn.exploration import OrnsteinUhlenbeck, explore_gaussian
from slipstream.learn.ppo import Ppo, explore
from slipstream.learn.rollout import Acting, Decision, rollout
from slipstream.learn.sac import Sac
from slipstream.runs.train import trainer_of

REPLAY = {
    "worlds": 8, "rollout_length": 4, "gradient_steps": 1, "batch_size": 16, "capacity": 640, "learning_starts": 64,
    "hidden_sizes": (8,),
}  # fmt: skip
PPO = {"worlds": 8, "rollout_length": 4, "epochs": 1, "minibatches": 1, "shuffle_block": 4, "hidden_sizes": (8,)}
CORRELATED = {
    "ppo": Ppo(**PPO, noise_correlation_time=1.0),
    **{
        kind.__name__.lower(): kind(**REPLAY, noise_correlation_time=1.0) for kind in (Sac, Td3, Ddpg, AcIqn)
    },
}  # fmt: skip


@dataclass(frozen=True)
class Drift(Task):
    """The action is all that moves anything; an episode lasts as many steps as its world has drawn."""

    action: object = Box(2)
    agents: int = 1
    shortest: int = 3

    @property
    def shape(self):
        return (self.agents,) if self.agents > 1 else ()

    @property
    def spec(self):
        return Spec(1, self.action, 0.1, self.agents)

    def reset(self, rng):
        extra, rng = rng.integer(9)
        zero, no = jnp.zeros(self.shape), jnp.zeros(self.shape, jnp.bool_)
        return State(self.shortest + extra, zero, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state, action):
        step, place = state.step + 1, state.body + 0.1 * action[..., 0]
        over = jnp.broadcast_to(step >= state.world, self.shape)
        return replace(state, body=place, step=step, reward=-jnp.abs(place), truncated=over)

    def observe(self, state):
        return state.body[..., None]

    def episode_metrics(self, state):
        return {"episode_return": state.reward}


def generators(*shape):
    make = lambda i: Rng.from_seed(3, i)  # noqa: E731
    for _ in shape:
        make = jax.vmap(make)
    return make(jnp.arange(math.prod(shape)).reshape(shape))


def series(correlation_time, worlds=512, steps=200, dt=0.1):
    """Noise of many worlds over time, from the start of the process on."""
    noise, rngs = OrnsteinUhlenbeck.init(Spec(1, Box(2), dt), correlation_time, generators(worlds))
    assert noise is not None
    never = jnp.zeros(worlds, jnp.bool_)

    def tick(carry, _):
        noise, rngs = carry[0].step(carry[1], never)
        return (noise, rngs), noise.value

    return np.asarray(jax.lax.scan(tick, (noise, rngs), length=steps)[1])


@pytest.mark.parametrize("time", [0.2, 1.0, 3.0])
def test_noise_has_unit_variance_from_its_first_step_on_and_is_correlated_as_it_is_set(time):
    values = series(time)
    # 1,024 independent processes: the standard error of a variance is 0.044.
    assert np.abs(values.mean((1, 2))).max() < 5 * 0.032
    assert np.abs(values.var((1, 2)) - 1.0).max() < 5 * 0.044
    for lag in (1, 5, 20):
        correlation = np.mean(values[lag:] * values[:-lag])
        assert correlation == pytest.approx(math.exp(-0.1 * lag / time), abs=0.06)
    assert abs(np.mean(values[..., 0] * values[..., 1])) < 0.06, "components are independent"


def test_without_a_correlation_time_there_is_no_process_and_no_draw():
    rngs = generators(4)
    noise, after = OrnsteinUhlenbeck.init(Spec(1, Box(2), 0.1), 0.0, rngs)
    assert noise is None and after is rngs


@pytest.mark.parametrize("agents", [1, 3])
def test_noise_begins_anew_where_an_episode_has_ended_and_goes_on_everywhere_else(agents):
    shape = (64, agents) if agents > 1 else (64,)
    noise, rngs = OrnsteinUhlenbeck.init(Spec(1, Box(2), 0.1, agents), 1e4, generators(*shape))
    assert noise is not None
    ended = jax.random.bernoulli(jax.random.key(0), 0.5, shape)
    after, _ = noise.step(rngs, ended)
    moved = np.abs(np.asarray(after.value - noise.value)).max(-1)
    assert (moved[~np.asarray(ended)] < 0.05).all()
    assert (moved[np.asarray(ended)] > 0.05).mean() > 0.9
    old, new = np.asarray(noise.value)[np.asarray(ended)], np.asarray(after.value)[np.asarray(ended)]
    assert abs(np.mean(old * new)) < 0.4
    assert new.std() == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("agents", [1, 2])
def test_in_a_rollout_noise_is_held_within_an_episode_and_only_there(agents):
    """With an endless correlation time every episode has one noise, and the next episode another."""
    task, worlds, steps = Drift(agents=agents), 16, 64
    shape = (worlds, agents) if agents > 1 else (worlds,)
    noise, rngs = OrnsteinUhlenbeck.init(task.spec, 1e9, generators(*shape))
    states = jax.vmap(lambda i: task.reset(Rng.from_seed(0, i)))(jnp.arange(worlds))

    def act(observation, acting, image_features):
        return Decision(acting.noise.value), acting

    _, last, transitions, *_ = jax.jit(lambda states, acting: rollout(task, act, states, acting, steps))(
        states, Acting(rngs, noise)
    )
    action, valid = np.asarray(transitions.action), np.asarray(transitions.valid)
    same = np.isclose(action[1:], action[:-1], atol=1e-3).all(-1)
    # The step that restarts a world draws; its action moves nothing, and the steps after it keep what it drew.
    np.testing.assert_array_equal(same, valid[1:])
    assert 0.05 < (~valid).mean() < 0.4
    np.testing.assert_array_equal(np.asarray(last.noise.value), action[-1])


def test_given_noise_replaces_the_draws_and_a_random_action_still_comes_with_epsilon():
    mean, noise = jnp.full((500, 2), 0.1), jnp.tile(jnp.array([0.5, -0.3]), (500, 1))
    clip = lambda x: jnp.clip(x, -1.0, 1.0)  # noqa: E731
    action, _ = explore_gaussian(mean, 0.2, generators(500), jnp.float32(0.0), clip, noise)
    np.testing.assert_allclose(action, np.tile([0.2, 0.04], (500, 1)), atol=1e-6)
    action, _ = explore_gaussian(mean, 0.2, generators(500), jnp.float32(0.3), clip, noise)
    random = ~np.isclose(action, [0.2, 0.04], atol=1e-6).all(-1)
    assert random.mean() == pytest.approx(0.3, abs=0.1)


def test_ppo_keeps_the_log_probability_of_the_action_given_its_observation():
    learner, task = CORRELATED["ppo"], Drift()
    policy = learner.policy(task.spec, jax.random.key(0))
    noise, observation = jax.random.normal(jax.random.key(1), (5, 2)), jnp.ones((5, 1))
    acting = Acting(generators(5), OrnsteinUhlenbeck(noise, 0.5))
    decision, after = explore(policy, observation, acting)
    actions = policy.distribution(observation)
    np.testing.assert_allclose(decision.log_prob, actions.log_prob(decision.action), rtol=1e-6)
    np.testing.assert_allclose((decision.action - actions.mean) / learner.init_std, noise, atol=1e-5)
    # The standard deviation learns from the same density that the sample has.
    assert after.rngs is acting.rngs


@pytest.mark.parametrize("name", CORRELATED)
@pytest.mark.parametrize("agents", [1, 2])
def test_noise_is_part_of_the_training_state_of_every_world_and_agent(name, agents):
    learner, task = CORRELATED[name], Drift(agents=agents)
    shape = jax.eval_shape(lambda: learner.init(task, jnp.uint32(0), jnp.arange(8)))
    assert shape.noise.value.shape == ((8, agents, 2) if agents > 1 else (8, 2))
    assert type(shape).__dataclass_fields__["noise"].metadata["per_world"]
    assert shape.noise.correlation == pytest.approx(math.exp(-0.1))
    white = replace(learner, noise_correlation_time=0.0)
    assert jax.eval_shape(lambda: white.init(task, jnp.uint32(0), jnp.arange(8))).noise is None


@pytest.mark.parametrize("name", ["ppo", "sac", "td3"])
def test_two_devices_have_the_same_noise_as_one(name):
    found = []
    for devices in (1, 2):
        trainer = Trainer(Drift(agents=2), CORRELATED[name], device.mesh(devices), 4, 1, 4)
        train, metrics, _ = trainer.compile()(trainer.start(1))
        assert all(np.isfinite(float(value)) for value in metrics.values())
        found.append(jax.device_get((train.noise.value, train.rngs.drawn)))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ["ppo", "ddpg"])
def test_several_seeds_have_the_noise_that_each_would_have_alone(name):
    task = Drift()
    together = Trainer(task, CORRELATED[name], device.mesh(1), 2, 2, 2)
    values = jax.device_get(together.compile()(together.start(5))[0].noise.value)
    for index in range(2):
        alone = Trainer(task, CORRELATED[name], device.mesh(1), 2, 1, 2)
        np.testing.assert_array_equal(
            values[index], jax.device_get(alone.compile()(alone.start(5 + index))[0].noise.value)
        )


@pytest.mark.parametrize("name", CORRELATED)
def test_a_negative_correlation_time_is_refused(name):
    with pytest.raises(ValueError, match="noise_correlation_time must not be negative"):
        replace(CORRELATED[name], noise_correlation_time=-1.0)


@pytest.mark.parametrize("name", CORRELATED)
def test_correlated_noise_for_discrete_actions_is_refused_in_words(name):
    words = "no Gaussian noise to correlate.*noise-correlation-time to 0" if name == "ppo" else "continuous actions"
    with pytest.raises(ValueError, match=words):
        trainer_of(Experiment(Drift(Discrete(3)), CORRELATED[name], steps=1000, devices=1), 1)
