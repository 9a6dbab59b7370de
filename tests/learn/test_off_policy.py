"""What learners with a replay compute, on networks so simple that it can be said beforehand."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.spaces import Box, Discrete
from slipstream.core.task import Spec, State
from slipstream.experiment.experiment import PRESETS, Experiment
from slipstream.learn.compiled import Trainer
from slipstream.learn.dqn import Dqn
from slipstream.learn.iqn import Iqn
from slipstream.learn.off_policy import huber, linear_schedule, quantile_loss
from slipstream.learn.replay import Batch, empty, leaves, sample, set_priorities
from slipstream.learn.sac import Sac
from slipstream.policy.continuous import HIGH, LOW, sample_squashed_gaussian
from slipstream.policy.nets import Linear
from slipstream.runs.train import trainer_of

SMALL = {"worlds": 8, "length": 4, "learns": 2, "batch": 32, "capacity": 640, "hidden": (16, 16)}


@dataclass(frozen=True)
class Salary:
    """Every step pays the same, whatever is done; what is seen is far from zero, and nothing but a clock ends it."""

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
        return {"score": state.reward}


def rows_of(count, size=2, **parts):
    """Rows of one reward and discount, all counted."""
    seen = jax.random.normal(jax.random.key(5), (2, count, size))
    ones, index = jnp.ones(count), jnp.zeros(count, jnp.int32)
    usual = {"action": index, "reward": 0.5 * ones, "discount": 0.9 * ones, "weight": ones}
    return Batch(observation=seen[0], following=seen[1], world=index, leaf=index, **(usual | parts))


def init_worlds(task, learner, updates=1):
    trainer = Trainer(task, learner, device.mesh(1), updates, 1, updates)
    return trainer, trainer.start(0)


# Losses


@pytest.mark.parametrize("width", [0.5, 1.0, 3.0])
def test_the_slope_of_a_loss_grows_to_one_at_its_width_and_stays_there(width):
    x = np.linspace(-3.0, 3.0, 61) * width
    slope = jax.vmap(jax.grad(lambda e: huber(e, width)))(jnp.float32(x))
    np.testing.assert_allclose(slope, np.clip(x / width, -1.0, 1.0), atol=1e-5)
    # A loss without steps: its differences are what its slope says.
    value = np.asarray(huber(jnp.float32(x), width))
    middle = 0.5 * (np.clip(x[1:] / width, -1.0, 1.0) + np.clip(x[:-1] / width, -1.0, 1.0))
    np.testing.assert_allclose(np.diff(value), middle * np.diff(x), atol=1e-3 * width)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_quantile_loss_is_least_at_the_quantile(progress):
    targets = jnp.linspace(0.0, 1.0, 1001)[None]
    losses = [
        float(quantile_loss(jnp.full((1, 1), v), jnp.array([progress]), targets, 1e-3)[0])
        for v in np.linspace(0, 1, 101)
    ]
    assert np.argmin(losses) / 100 == pytest.approx(progress, abs=0.011)


def test_rows_without_weight_do_not_count_in_a_mean():
    rows = rows_of(4, weight=jnp.array([1.0, 0.5, 0.0, 0.0]))
    assert float(weighted_mean(jnp.array([2.0, 4.0, 1e6, -1e6]), rows)) == pytest.approx((2.0 + 2.0) / 2)


def test_what_falls_falls_straight_and_stays_at_its_end():
    falling = [float(linear_schedule(1.0, 0.2, jnp.float32(progress))) for progress in (0.0, 0.25, 1.0, 4.0)]
    assert falling == pytest.approx([1.0, 0.8, 0.2, 0.2])


def knowing(policy, values):
    """The policy to which choices are worth these, wherever it is."""
    last = policy.heads.advantage.mean
    flat = replace(last, weight=0.0 * last.weight, bias=jnp.asarray(values, jnp.float32))
    return replace(policy, heads=replace(policy.heads, advantage=replace(policy.heads.advantage, mean=flat)))


@pytest.mark.parametrize("kind", [Dqn, Iqn])
@pytest.mark.parametrize("double", [True, False])
def test_a_choice_is_compared_with_its_reward_and_the_targets_value_of_the_next_one(kind, double):
    learner, task = kind(**SMALL, double=double), Salary(action=Discrete(3))
    policy = learner.policy(jax.random.key(0), task)
    mine, theirs = knowing(policy, (1.0, 2.0, 0.0)), knowing(policy, (5.0, -1.0, 3.0))
    action, discount = jnp.array([0, 1, 2, 0]), jnp.array([0.9, 0.9, 0.9, 0.0])
    rows = rows_of(4, action=action, discount=discount)
    _, (errors, _) = jax.jit(learner.loss)(mine, theirs, rows, jax.random.key(1), jnp.float32(0.0))
    # Chosen by the learned network if double, by the target else; valued by the target.
    following = -1.0 if double else 5.0
    wanted = 0.5 + np.asarray(discount) * following
    np.testing.assert_allclose(np.abs(errors), np.abs(np.array([1.0, 2.0, 0.0, 1.0]) - wanted), atol=1e-5)


def judging(critic, value, slope=0.0):
    """The critic to which the first number of an action is worth `value` and `slope` times itself."""
    size = critic.torso.layers[-1].bias.size if critic.torso.layers else critic.torso.own.bias.size
    weight = jnp.zeros_like(critic.joined.weight).at[size, 0].set(1.0)
    joined = replace(critic.joined, weight=weight, bias=jnp.zeros_like(critic.joined.bias).at[0].set(10.0))
    last = replace(
        critic.last,
        weight=jnp.zeros_like(critic.last.weight).at[0, 0].set(slope),
        bias=jnp.full(1, value - 10.0 * slope),
    )
    return replace(critic, joined=joined, last=last)


def soft(learner, values, slope=0.0, heat=0.1):
    policy = learner.policy(jax.random.key(0), Salary(action=Box(1)))
    actor = replace(policy.actor, last=replace(policy.actor.last, weight=0.0 * policy.actor.last.weight))
    critics = tuple(judging(critic, value, slope) for critic, value in zip(policy.critics, values, strict=True))
    return replace(policy, actor=actor, critics=critics, log_alpha=jnp.float32(np.log(heat)))


def test_the_lower_of_two_critics_and_the_entropy_are_what_an_action_leads_to():
    learner, count = Sac(**SMALL, norm=False), 4096
    mine, theirs = soft(learner, (2.0, 7.0), heat=0.5), soft(learner, (4.0, 1.0), heat=0.5)
    rows = rows_of(count, action=jnp.zeros((count, 1)))
    _, (errors, _) = jax.jit(learner.loss)(mine, theirs, rows, jax.random.key(1), jnp.float32(0.0))
    _, log_prob = sample_squashed_gaussian(*mine.spread(rows.following), jax.random.key(9))
    wanted = 0.5 + 0.9 * (1.0 - 0.5 * float(log_prob.mean()))
    assert abs(float(log_prob.mean())) > 0.3
    assert float(errors.mean()) == pytest.approx(2.0 - wanted, abs=0.03)


def test_an_actor_goes_where_critics_say_and_widens_where_they_say_nothing():
    learner = Sac(**SMALL, norm=False)
    rows = rows_of(512, action=jnp.zeros((512, 1)))

    def slope(policy):
        loss = lambda w: learner.loss(policy.with_params(w), policy, rows, jax.random.key(1), jnp.float32(0.0))[0]  # noqa: E731
        return jax.jit(jax.grad(loss))(policy.params)

    for side in (-1.0, 1.0):
        actor, _, _ = slope(soft(learner, (0.0, 0.0), side, heat=1e-4))
        assert side * float(actor.last.bias[0]) < -0.1
    narrow = soft(learner, (0.0, 0.0), heat=1.0)
    last = replace(narrow.actor.last, bias=jnp.array([0.0, -0.5]))
    actor, _, _ = slope(replace(narrow, actor=replace(narrow.actor, last=last)))
    assert float(actor.last.bias[1]) < -0.1


def test_the_heat_rises_by_as_much_as_entropy_is_short_of_its_aim():
    learner = Sac(**SMALL, norm=False, entropy=-0.7)
    policy, rows = soft(learner, (0.0, 0.0)), rows_of(256, action=jnp.zeros((256, 1)))
    loss = lambda w: learner.loss(policy.with_params(w), policy, rows, jax.random.key(1), jnp.float32(0.0))  # noqa: E731
    (_, _, heat), (_, metrics) = jax.jit(jax.grad(loss, has_aux=True))(policy.params)
    assert float(heat) == pytest.approx(float(metrics["entropy"]) + 0.7, abs=1e-4)


# Targets


def test_a_target_follows_by_a_share_or_is_copied_at_times():
    task = Salary()
    old, new = (Dqn(**SMALL).policy(jax.random.key(k), task) for k in range(2))
    first = lambda policy: np.asarray(policy.torso.own.weight)  # noqa: E731
    followed = Dqn(**SMALL, follow=0.1)._update_target(old, new, jnp.int32(0))
    np.testing.assert_allclose(first(followed), 0.9 * first(old) + 0.1 * first(new), atol=1e-6)
    copying = Dqn(**SMALL, copy=3)
    for count in range(6):
        wanted = new if count in (2, 5) else old
        np.testing.assert_allclose(first(copying._update_target(old, new, jnp.int32(count))), first(wanted), atol=1e-6)


# Updates


def test_a_reward_of_one_for_ever_is_worth_the_sum_of_its_discounts():
    settings = SMALL | {"learns": 4, "rate": 3e-3, "follow": 0.05, "discount": 0.75, "warmup": 64}
    learner = Dqn(**settings, prioritised=True, explore_end=1.0)
    trainer, train = init_worlds(Salary(), learner, 150)
    policy = jax.device_get(trainer.compile()(train)[0].policy)
    seen = jnp.array([[300.2, 49.8], [300.8, 49.2]])
    values = policy.values(policy.raw(policy.normalizer(seen)))
    np.testing.assert_allclose(values, 1.0 / (1.0 - 0.75), atol=0.2)


def test_twice_the_reward_at_half_the_scale_is_learned_bit_for_bit_alike():
    learned = []
    for pay, scale in ((1.0, 1.0), (2.0, 0.5)):
        trainer, train = init_worlds(Salary(pay=pay), Dqn(**SMALL, warmup=32, scale=scale), 4)
        learned.append(jax.tree.leaves(trainer.compile()(train)[0].policy.params))
    for one, two in zip(*learned, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("warmup", "moves"), [(1000, False), (128, True)])
def test_nothing_is_learned_before_the_warmup_and_something_once_it_is_over(warmup, moves):
    trainer, train = init_worlds(Salary(), Dqn(**SMALL, warmup=warmup, prioritised=True), 4)
    before = jax.device_get((train.policy.params, train.target.params, train.optimizer))
    after, _, _ = trainer.compile()(train)
    after, replay = jax.device_get(((after.policy.params, after.target.params, after.optimizer), after.replay))
    for old, new in zip(before, after, strict=True):
        same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), old, new)
        assert all(jax.tree.leaves(same)) is not moves
    # Whatever was drawn too early to be used can still be drawn later.
    rows = replay.tree[:, leaves(replay.length) :][:, : replay.length]
    assert replay.valid.any()
    np.testing.assert_array_equal(rows > 0.0, replay.valid)


def test_learning_goes_on_after_two_to_the_31_samples():
    learner = Dqn(worlds=8, length=4, learns=2, batch=16, capacity=320, warmup=64, hidden=(16,), copy=50, steps=2)
    trainer = trainer_of(Experiment(PRESETS["cartpole"].task, learner, steps=10_000, devices=1), 4)
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
    learner, heat, spread = Sac(steps=3, hidden=(8,)), 0.3, 0.4
    policy = learner.policy(jax.random.key(0), PRESETS["pendulum"].task)
    blind = Linear(jnp.zeros((8, 2)), jnp.array([0.0, logit_of_spread(spread)]))
    policy = replace(policy, actor=replace(policy.actor, last=blind))
    count, discount = 20_000, 0.9
    seen = jnp.zeros((count, 3))
    rows = Batch(
        observation=seen, action=jnp.zeros((count, 1)), reward=jnp.full(count, 2.0), discount=jnp.zeros(count),
        following=seen, weight=jnp.ones(count), between=jnp.zeros((count, 2, 3)),
        between_discount=jnp.tile(jnp.array([discount, discount**2]), (count, 1)), world=jnp.zeros(count, int),
        leaf=jnp.zeros(count, int),
    )  # fmt: skip
    wanted = learner.wanted(policy, policy, rows, jnp.float32(heat), jax.random.key(1))
    # Entropy of tanh(x), x of that spread:  ½ log 2πe σ² + E log(1 − tanh² x),  by quadrature.
    x = np.linspace(-8.0 * spread, 8.0 * spread, 20_001)
    density = np.exp(-0.5 * (x / spread) ** 2) / (spread * np.sqrt(2.0 * np.pi))
    entropy = 0.5 * np.log(2.0 * np.pi * np.e * spread**2) + np.trapezoid(density * np.log(1.0 - np.tanh(x) ** 2), x)
    assert float(jnp.mean(wanted)) == pytest.approx(2.0 + heat * (discount + discount**2) * entropy, abs=5e-3)
    # A row that ends after its first step has nothing between.
    short = replace(rows, between_discount=jnp.zeros((count, 2)))
    ended = learner.wanted(policy, policy, short, jnp.float32(heat), jax.random.key(1))
    assert np.allclose(ended, 2.0)


def logit_of_spread(spread):
    """The output of an actor that stands for a spread before squashing."""
    return np.arctanh(2.0 * (np.log(spread) - LOW) / (HIGH - LOW) - 1.0)


def test_rows_know_what_lies_between_their_first_and_last_step_and_nothing_after_an_end():
    worlds, steps = 2, 8
    spec = Spec(1, Box(1), 1.0)
    ring = empty(spec, worlds, steps, prioritised=False)
    time = jnp.tile(jnp.arange(float(steps))[None, :, None], (worlds, 1, 1))
    ring = replace(
        ring, observation=time, reward=time[..., 0], valid=jnp.ones((worlds, steps), bool),
        terminated=jnp.tile(jnp.arange(steps) == 3, (worlds, 1)),
    )  # fmt: skip
    rows = sample(ring, jax.random.key(0), 256, jnp.int32(0), jnp.int32(steps), 3, 0.5, between=True)
    for first, between, weight in zip(rows.observation[:, 0], rows.between[..., 0], rows.between_discount, strict=True):
        inside = [0.5**k * (not (first <= 3.0 < first + k)) for k in (1, 2)]
        assert np.allclose(weight, inside)
        assert all(b == first + k + 1 for k, (b, w) in enumerate(zip(between, weight, strict=True)) if w)


def test_a_cautious_learner_values_the_choice_it_would_take(monkeypatch):
    """The first arm is better on average, the second in its worst quarter."""

    def return_quantiles(self, policy, observation, shares):
        risky, safe = 10.0 * shares - 2.0, jnp.full_like(shares, 1.0)
        return jnp.broadcast_to(jnp.stack([risky, safe], -1), (observation.shape[0], shares.size, 2))

    monkeypatch.setattr(Iqn, "_raw", returns)
    count = 64
    rows = Batch(
        observation=jnp.zeros((count, 1)), action=jnp.zeros(count, int), reward=jnp.zeros(count),
        discount=jnp.full(count, 1.0), following=jnp.zeros((count, 1)), weight=jnp.ones(count),
        world=jnp.zeros(count, int), leaf=jnp.zeros(count, int),
    )  # fmt: skip
    worth = {}
    for cvar in (1.0, 0.25):
        learner = Iqn(cvar=cvar, hidden=(8,), shares=32)
        policy = learner.policy(jax.random.key(0), Two())
        _, (_, metrics) = learner.loss(policy, policy, rows, jax.random.key(0), jnp.float32(0.0))
        worth[cvar] = float(metrics["value"])
    assert worth[1.0] == pytest.approx(3.0, abs=0.2)
    assert worth[0.25] == pytest.approx(1.0, abs=1e-3)


class Two:
    """A task of two choices."""

    spec = Spec(1, Discrete(2), 1.0)


def test_importance_weights_have_one_scale_on_all_devices():
    """Two devices with priorities of their own: only the rarest row of both together has weight one."""
    spec = Spec(1, Discrete(2), 1.0)
    ring = empty(spec, 1, 4, prioritised=True)
    ring = replace(ring, valid=jnp.ones((1, 4), bool))
    leaves = jnp.arange(4)
    trees = jnp.stack(
        [set_priorities(ring.tree, jnp.zeros(4, int), leaves, jnp.array(p)) for p in ([1.0] * 4, [1.0, 1.0, 1.0, 97.0])]
    )

    def draw(tree, key):
        rows = sample(replace(ring, tree=tree), key, 64, jnp.int32(0), jnp.int32(4), 1, 0.9, 1.0, axis="devices")
        return rows.weight, rows.leaf

    weight, leaf = jax.vmap(draw, axis_name="devices")(trees, jax.random.split(jax.random.key(0), 2))
    # The chance of a row on the first device is a quarter, and of the rare ones on the second a hundredth.
    rare = np.asarray(weight[1])[np.asarray(leaf[1]) < 2]
    assert rare.size and np.allclose(rare, 1.0)
    assert np.allclose(np.asarray(weight[0])[np.asarray(leaf[0]) < 3], 0.04)
