"""What learners with a replay compute, on networks so simple that the result is known."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.spaces import Box, Discrete
from slipstream.core.task import Spec, State, Task
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import presets
from slipstream.learn.compiled import Trainer
from slipstream.learn.dqn import Dqn
from slipstream.learn.exploration import linear_schedule
from slipstream.learn.iqn import Iqn
from slipstream.learn.losses import huber, quantile_loss, weighted_mean
from slipstream.learn.replay import Batch, Cursor, Sampling, init_replay, sample, set_priorities, tree_leaves
from slipstream.learn.sac import Sac
from slipstream.policy.continuous import LOG_STD_MAX, LOG_STD_MIN, sample_squashed_gaussian
from slipstream.policy.nets import Linear
from slipstream.runs.train import trainer_of

SMALL = {
    "worlds": 8,
    "rollout_length": 4,
    "gradient_steps": 2,
    "batch_size": 32,
    "capacity": 640,
    "hidden_sizes": (16, 16),
}


@dataclass(frozen=True)
class Salary(Task):
    """Every step pays the same for every action; observations are far from zero, and only a clock ends an episode."""

    pay: float = 1.0
    action: object = Discrete(2)
    limit: int = 7

    @property
    def spec(self):
        return Spec(2, self.action, 1.0)

    def reset(self, rng):
        zero, no = jnp.float32(0.0), jnp.bool_(False)
        return State(None, zero, zero, rng, jnp.int32(0), zero, no, no)

    def step(self, state, action):
        mood, rng = state.rng.uniform()
        step = state.step + 1
        return replace(state, body=mood, rng=rng, step=step, reward=jnp.float32(self.pay), truncated=step >= self.limit)

    def observe(self, state):
        return jnp.stack([300.0 + state.body, 50.0 - state.body])

    def episode_metrics(self, state):
        return {"episode_return": state.reward}


def batch_of(count, size=2, **parts):
    """A batch of one reward and discount, every sample of weight one."""
    observations = jax.random.normal(jax.random.key(5), (2, count, size))
    ones, index = jnp.ones(count), jnp.zeros(count, jnp.int32)
    usual = {"action": index, "reward": 0.5 * ones, "discount": 0.9 * ones, "weight": ones}
    return Batch(
        observation=observations[0], next_observation=observations[1], world=index, leaf=index, **(usual | parts)
    )


def started(task, learner, updates=1):
    trainer = Trainer(task, learner, device.mesh(1), updates, 1, updates)
    return trainer, trainer.start(0)


# Losses


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_the_slope_of_a_loss_grows_to_one_at_delta_and_stays_there(delta):
    x = np.linspace(-3.0, 3.0, 61) * delta
    slope = jax.vmap(jax.grad(lambda e: huber(e, delta)))(jnp.float32(x))
    np.testing.assert_allclose(slope, np.clip(x / delta, -1.0, 1.0), atol=1e-5)
    # A loss without steps: its differences are what its slope says.
    value = np.asarray(huber(jnp.float32(x), delta))
    middle = 0.5 * (np.clip(x[1:] / delta, -1.0, 1.0) + np.clip(x[:-1] / delta, -1.0, 1.0))
    np.testing.assert_allclose(np.diff(value), middle * np.diff(x), atol=1e-3 * delta)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.8])
def test_the_quantile_loss_is_least_at_the_quantile(level):
    targets = jnp.linspace(0.0, 1.0, 1001)[None]
    losses = [
        float(quantile_loss(jnp.full((1, 1), v), jnp.array([level]), targets, 1e-3)[0]) for v in np.linspace(0, 1, 101)
    ]
    assert np.argmin(losses) / 100 == pytest.approx(level, abs=0.011)


def test_samples_without_weight_do_not_count_in_a_mean():
    weight = jnp.array([1.0, 0.5, 0.0, 0.0])
    assert float(weighted_mean(jnp.array([2.0, 4.0, 1e6, -1e6]), weight)) == pytest.approx((2.0 + 2.0) / 2)


def test_a_schedule_is_linear_and_stays_at_its_end():
    values = [float(linear_schedule(1.0, 0.2, jnp.float32(progress))) for progress in (0.0, 0.25, 1.0, 4.0)]
    assert values == pytest.approx([1.0, 0.8, 0.2, 0.2])


def knowing(policy, values):
    """The policy whose actions have these values at every observation."""
    last = policy.head.advantage.mean
    flat = replace(last, weight=0.0 * last.weight, bias=jnp.asarray(values, jnp.float32))
    return replace(policy, head=replace(policy.head, advantage=replace(policy.head.advantage, mean=flat)))


@pytest.mark.parametrize("kind", [Dqn, Iqn])
@pytest.mark.parametrize("double", [True, False])
def test_a_choice_is_compared_with_its_reward_and_the_targets_value_of_the_next_one(kind, double):
    learner, task = kind(**SMALL, double_q=double), Salary(action=Discrete(3))
    policy = learner.policy(task.spec, jax.random.key(0))
    mine, theirs = knowing(policy, (1.0, 2.0, 0.0)), knowing(policy, (5.0, -1.0, 3.0))
    action, discount = jnp.array([0, 1, 2, 0]), jnp.array([0.9, 0.9, 0.9, 0.0])
    batch = batch_of(4, action=action, discount=discount)
    _, (errors, _) = jax.jit(learner.loss)(mine, theirs, batch, jax.random.key(1))
    # Chosen by the learned network if double, by the target else; valued by the target.
    following = -1.0 if double else 5.0
    wanted = 0.5 + np.asarray(discount) * following
    np.testing.assert_allclose(np.abs(errors), np.abs(np.array([1.0, 2.0, 0.0, 1.0]) - wanted), atol=1e-5)


def judging(critic, value, slope=0.0):
    """The critic whose value is `value` plus `slope` times the first number of an action."""
    size = critic.torso.layers[-1].bias.size if critic.torso.layers else critic.torso.own.bias.size
    weight = jnp.zeros_like(critic.hidden.weight).at[size, 0].set(1.0)
    hidden = replace(critic.hidden, weight=weight, bias=jnp.zeros_like(critic.hidden.bias).at[0].set(10.0))
    output = replace(
        critic.output,
        weight=jnp.zeros_like(critic.output.weight).at[0, 0].set(slope),
        bias=jnp.full(1, value - 10.0 * slope),
    )
    return replace(critic, hidden=hidden, output=output)


def soft(learner, values, slope=0.0, alpha=0.1):
    policy = learner.policy(Spec(2, Box(1), 1.0), jax.random.key(0))
    output = policy.actor.output
    actor = replace(policy.actor, output=replace(output, weight=0.0 * output.weight))
    critics = tuple(judging(critic, value, slope) for critic, value in zip(policy.critics, values, strict=True))
    return replace(policy, actor=actor, critics=critics, log_alpha=jnp.float32(np.log(alpha)))


def test_the_lower_of_two_critics_and_the_entropy_are_what_an_action_leads_to():
    learner, count = Sac(**SMALL, layer_norm=False), 4096
    mine, theirs = soft(learner, (2.0, 7.0), alpha=0.5), soft(learner, (4.0, 1.0), alpha=0.5)
    batch = batch_of(count, action=jnp.zeros((count, 1)))
    _, (errors, _) = jax.jit(learner.loss)(mine, theirs, batch, jax.random.key(1))
    _, log_prob = sample_squashed_gaussian(*mine.mean_and_log_std(batch.next_observation), jax.random.key(9))
    wanted = 0.5 + 0.9 * (1.0 - 0.5 * float(log_prob.mean()))
    assert abs(float(log_prob.mean())) > 0.3
    assert float(errors.mean()) == pytest.approx(2.0 - wanted, abs=0.03)


def test_an_actor_goes_where_critics_say_and_widens_where_they_say_nothing():
    learner = Sac(**SMALL, layer_norm=False)
    batch = batch_of(512, action=jnp.zeros((512, 1)))

    def grads(policy):
        loss = lambda w: learner.loss(policy.with_params(w), policy, batch, jax.random.key(1))[0]  # noqa: E731
        return jax.jit(jax.grad(loss))(policy.params)

    for side in (-1.0, 1.0):
        actor, *_ = grads(soft(learner, (0.0, 0.0), side, alpha=1e-4))
        assert side * float(actor.output.bias[0]) < -0.1
    narrow = soft(learner, (0.0, 0.0), alpha=1.0)
    output = replace(narrow.actor.output, bias=jnp.array([0.0, -0.5]))
    actor, *_ = grads(replace(narrow, actor=replace(narrow.actor, output=output)))
    assert float(actor.output.bias[1]) < -0.1


def test_alpha_rises_by_as_much_as_entropy_is_short_of_its_target():
    learner = Sac(**SMALL, layer_norm=False, target_entropy_per_dim=-0.7)
    policy, batch = soft(learner, (0.0, 0.0)), batch_of(256, action=jnp.zeros((256, 1)))
    loss = lambda w: learner.loss(policy.with_params(w), policy, batch, jax.random.key(1))  # noqa: E731
    (_, _, alpha, _), (_, metrics) = jax.jit(jax.grad(loss, has_aux=True))(policy.params)
    assert float(alpha) == pytest.approx(float(metrics["entropy"]) + 0.7, abs=1e-4)


# Targets


def test_a_target_follows_by_a_share_or_is_copied_at_times():
    spec = Salary().spec
    old, new = (Dqn(**SMALL).policy(spec, jax.random.key(k)) for k in range(2))
    first = lambda policy: np.asarray(policy.torso.own.weight)  # noqa: E731
    followed = Dqn(**SMALL, tau=0.1)._update_target(old, new, jnp.int32(0))
    np.testing.assert_allclose(first(followed), 0.9 * first(old) + 0.1 * first(new), atol=1e-6)
    copying = Dqn(**SMALL, target_update_interval=3)
    for count in range(6):
        wanted = new if count in (2, 5) else old
        np.testing.assert_allclose(first(copying._update_target(old, new, jnp.int32(count))), first(wanted), atol=1e-6)


# Updates


def test_a_reward_of_one_for_ever_is_worth_the_sum_of_its_discounts():
    settings = SMALL | {
        "gradient_steps": 4,
        "learning_rate": 3e-3,
        "tau": 0.05,
        "discount": 0.75,
        "learning_starts": 64,
    }
    learner = Dqn(**settings, prioritized_replay=True, epsilon_end=1.0)
    trainer, train = started(Salary(), learner, 150)
    policy = jax.device_get(trainer.compile()(train)[0].policy)
    observation = jnp.array([[300.2, 49.8], [300.8, 49.2]])
    values = policy.values(policy.outputs(policy.normalizer(observation)))
    np.testing.assert_allclose(values, 1.0 / (1.0 - 0.75), atol=0.2)


def test_twice_the_reward_at_half_the_scale_is_learned_bit_for_bit_alike():
    learned = []
    for pay, scale in ((1.0, 1.0), (2.0, 0.5)):
        trainer, train = started(Salary(pay=pay), Dqn(**SMALL, learning_starts=32, reward_scale=scale), 4)
        learned.append(jax.tree.leaves(trainer.compile()(train)[0].policy.params))
    for one, two in zip(*learned, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("starts", "moves"), [(1000, False), (128, True)])
def test_nothing_is_learned_before_the_warmup_and_something_once_it_is_over(starts, moves):
    trainer, train = started(Salary(), Dqn(**SMALL, learning_starts=starts, prioritized_replay=True), 4)
    before = jax.device_get((train.policy.params, train.target.params, train.optimizer))
    after, _, _ = trainer.compile()(train)
    after, replay = jax.device_get(((after.policy.params, after.target.params, after.optimizer), after.replay))
    for old, new in zip(before, after, strict=True):
        same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), old, new)
        assert all(jax.tree.leaves(same)) is not moves
    # Whatever was drawn too early to be used can still be drawn later.
    priorities = replay.tree[:, tree_leaves(replay.length) :][:, : replay.length]
    assert replay.valid.any()
    np.testing.assert_array_equal(priorities > 0.0, replay.valid)


def test_learning_goes_on_after_two_to_the_31_samples():
    learner = Dqn(
        worlds=8,
        rollout_length=4,
        gradient_steps=2,
        batch_size=16,
        capacity=320,
        learning_starts=64,
        hidden_sizes=(16,),
        target_update_interval=50,
        n_step=2,
    )
    trainer = trainer_of(Experiment(presets()["cartpole"].task, learner, steps=10_000, devices=1), 4)
    chunk = trainer.compile()
    state = trainer.start(0)
    for _ in range(4):
        state = chunk(state)[0]
    # 2³¹ samples are 2²⁶ updates of 32; the ring has room for ten rollouts, so its place must not jump.
    late = 2**26 - 2**26 % 50 + 16
    state = replace(state, updates=jnp.int32(late))
    before = jax.device_get(state.policy.params)
    state = chunk(jax.device_put(state, trainer.shardings))[0]
    changed = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b))), before, jax.device_get(state.policy.params))
    assert max(jax.tree.leaves(changed)) > 0.0
    assert int(state.updates) == late + 4


def test_soft_returns_over_several_steps_count_the_entropy_of_the_steps_between():
    """An actor that sees nothing has the same entropy everywhere, so the return is a geometric sum."""
    learner, alpha, std = Sac(n_step=3, hidden_sizes=(8,)), 0.3, 0.4
    policy = learner.policy(presets()["pendulum"].task.spec, jax.random.key(0))
    blind = Linear(jnp.zeros((8, 2)), jnp.array([0.0, output_of_std(std)]))
    policy = replace(policy, actor=replace(policy.actor, output=blind))
    count, discount = 20_000, 0.9
    observation = jnp.zeros((count, 3))
    batch = Batch(
        observation=observation, action=jnp.zeros((count, 1)), reward=jnp.full(count, 2.0), discount=jnp.zeros(count),
        next_observation=observation, weight=jnp.ones(count), intermediate_observation=jnp.zeros((count, 2, 3)),
        intermediate_discount=jnp.tile(jnp.array([discount, discount**2]), (count, 1)), world=jnp.zeros(count, int),
        leaf=jnp.zeros(count, int),
    )  # fmt: skip
    targets = learner.soft_targets(policy, policy, batch, jnp.float32(alpha), jax.random.key(1))
    # Entropy of tanh(x), x of that standard deviation:  ½ log 2πe σ² + E log(1 − tanh² x),  by quadrature.
    x = np.linspace(-8.0 * std, 8.0 * std, 20_001)
    density = np.exp(-0.5 * (x / std) ** 2) / (std * np.sqrt(2.0 * np.pi))
    entropy = 0.5 * np.log(2.0 * np.pi * np.e * std**2) + np.trapezoid(density * np.log(1.0 - np.tanh(x) ** 2), x)
    assert float(jnp.mean(targets)) == pytest.approx(2.0 + alpha * (discount + discount**2) * entropy, abs=5e-3)
    # A sample that ends after its first step has no intermediate steps.
    short = replace(batch, intermediate_discount=jnp.zeros((count, 2)))
    ended = learner.soft_targets(policy, policy, short, jnp.float32(alpha), jax.random.key(1))
    assert np.allclose(ended, 2.0)


def output_of_std(std):
    """The output of an actor that stands for a standard deviation before squashing."""
    return np.arctanh(2.0 * (np.log(std) - LOG_STD_MIN) / (LOG_STD_MAX - LOG_STD_MIN) - 1.0)


def test_a_batch_has_the_steps_between_its_first_and_last_and_nothing_after_an_end():
    worlds, steps = 2, 8
    spec = Spec(1, Box(1), 1.0)
    ring = init_replay(spec, worlds, steps, prioritized=False)
    time = jnp.tile(jnp.arange(float(steps))[None, :, None], (worlds, 1, 1))
    ring = replace(
        ring, observation=time, reward=time[..., 0], valid=jnp.ones((worlds, steps), bool),
        terminated=jnp.tile(jnp.arange(steps) == 3, (worlds, 1)),
    )  # fmt: skip
    cursor, sampling = Cursor(jnp.int32(0), jnp.int32(steps)), Sampling(256, 3, 0.5, intermediate=True)
    batch = sample(ring, jax.random.key(0), cursor, sampling)
    parts = batch.observation[:, 0], batch.intermediate_observation[..., 0], batch.intermediate_discount
    for first, between, weight in zip(*parts, strict=True):
        inside = [0.5**k * (not (first <= 3.0 < first + k)) for k in (1, 2)]
        assert np.allclose(weight, inside)
        assert all(b == first + k + 1 for k, (b, w) in enumerate(zip(between, weight, strict=True)) if w)


def test_a_cautious_learner_values_the_choice_it_would_take(monkeypatch):
    """The first arm is better on average, the second in its worst quarter."""

    def quantile_values(self, policy, observation, taus):
        risky, safe = 10.0 * taus - 2.0, jnp.full_like(taus, 1.0)
        return jnp.broadcast_to(jnp.stack([risky, safe], -1), (observation.shape[0], taus.size, 2))

    monkeypatch.setattr(Iqn, "_quantile_values", quantile_values)
    count = 64
    batch = Batch(
        observation=jnp.zeros((count, 1)), action=jnp.zeros(count, int), reward=jnp.zeros(count),
        discount=jnp.full(count, 1.0), next_observation=jnp.zeros((count, 1)), weight=jnp.ones(count),
        world=jnp.zeros(count, int), leaf=jnp.zeros(count, int),
    )  # fmt: skip
    values = {}
    for cvar in (1.0, 0.25):
        learner = Iqn(cvar_alpha=cvar, hidden_sizes=(8,), quantiles=32)
        policy = learner.policy(Spec(1, Discrete(2), 1.0), jax.random.key(0))
        _, (_, metrics) = learner.loss(policy, policy, batch, jax.random.key(0))
        values[cvar] = float(metrics["q_mean"])
    assert values[1.0] == pytest.approx(3.0, abs=0.2)
    assert values[0.25] == pytest.approx(1.0, abs=1e-3)


def test_importance_weights_have_one_scale_on_all_devices():
    """Two devices with priorities of their own: only the rarest sample of both together has weight one."""
    spec = Spec(1, Discrete(2), 1.0)
    ring = init_replay(spec, 1, 4, prioritized=True)
    ring = replace(ring, valid=jnp.ones((1, 4), bool))
    leaves = jnp.arange(4)
    trees = jnp.stack(
        [set_priorities(ring.tree, jnp.zeros(4, int), leaves, jnp.array(p)) for p in ([1.0] * 4, [1.0, 1.0, 1.0, 97.0])]
    )

    def draw(tree, key):
        cursor, sampling = Cursor(jnp.int32(0), jnp.int32(4)), Sampling(64, 1, 0.9)
        batch = sample(replace(ring, tree=tree), key, cursor, sampling, 1.0, axis="devices")
        return batch.weight, batch.leaf

    weight, leaf = jax.vmap(draw, axis_name="devices")(trees, jax.random.split(jax.random.key(0), 2))
    # The probability of an entry on the first device is a quarter, and of the rare ones on the second a hundredth.
    rare = np.asarray(weight[1])[np.asarray(leaf[1]) < 2]
    assert rare.size and np.allclose(rare, 1.0)
    assert np.allclose(np.asarray(weight[0])[np.asarray(leaf[0]) < 3], 0.04)
