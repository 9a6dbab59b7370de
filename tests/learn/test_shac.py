"""Gradients through the physics: right against slow references, for every task that can be differentiated."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core import device
from slipstream.core.rng import Rng
from slipstream.core.task import DifferentiableTask, TerminalValueTask
from slipstream.experiment.registry import presets
from slipstream.learn.compiled import Trainer
from slipstream.learn.ppo import explore
from slipstream.learn.reverse_pass import INSIDE, ReversePass, smooth_step
from slipstream.learn.rollout import Acting, init_worlds, observe_all, rollout_block
from slipstream.learn.shac import Shac
from slipstream.sensors.camera import CameraSettings
from slipstream.sensors.noise import SensorNoise
from slipstream.tasks.gymnax.task import Gymnax
from slipstream.tasks.hover import Hover
from slipstream.tasks.marine import Marine
from slipstream.tasks.racing import Racing, Randomization
from slipstream.tasks.survey import Survey

run_back = jax.jit(ReversePass.__call__)

ROUGH = Racing(
    control_rate=50,
    randomize=Randomization(
        mass=0.1, inertia=0.2, thrust=0.1, motor_lag=0.3, drag=0.3, max_wind=1.0, gust_std=0.3, max_action_delay=1
    ),
    sensor_noise=SensorNoise(position=0.02, velocity=0.05, attitude=0.01, body_rates=0.02),
)  # fmt: skip
TASKS = {
    "racing": Racing(control_rate=50),
    "generated tracks": Racing(control_rate=50, track="generated"),
    "racing by motors": Racing(control_rate=50, control_mode="motor_speeds", vehicle="crazyflie"),
    "racing with everything randomized": ROUGH,
    "racing on the PX4 controller": Racing(control_rate=200, controller="px4"),
    "race of two": Racing(control_rate=50, agents=2),
    "hover": Hover(),
    "hover at a moving reference": Hover(reference="moving"),
    "survey, transit": Survey(agents=2),
    "survey, dwell": Survey(agents=2, mission="dwell"),
    "vessels": Marine(vessels=2, buoys=1, substeps=2),
    "points among vortices": Marine(vehicle="point", vessels=2, buoys=1, vortices=1, substeps=2),
}  # fmt: skip
WORLDS, LENGTH = 3, 3
# No limits and no discount: then the reverse pass is the exact derivative of the sum of rewards and the last value.
EXACT = Shac(
    worlds=WORLDS, rollout_length=LENGTH, hidden_sizes=(8,), discount=1.0, max_state_grad=1e9, max_action_grad=1e9
)  # fmt: skip


def learner_of(task):
    return replace(EXACT, bootstrap="terminal_value" if isinstance(task, TerminalValueTask) else "critic")


def window(task, seed=0):
    """A learner, a policy, the states before a window, its noise, its transitions, and the states after it."""
    learner = learner_of(task)
    states, rngs = init_worlds(task, jnp.uint32(seed), jnp.arange(WORLDS))
    policy = learner.policy(task.spec, jax.random.key(seed))
    # A head of some size, so that actions depend on what is observed, and noise that keeps the rotors away from hover,
    # where the derivative of their lag jumps.
    layers = policy.actor.layers
    actor = replace(policy.actor, layers=(*layers[:-1], replace(layers[-1], weight=layers[-1].weight * 20.0)))
    policy = replace(policy, actor=actor, log_std=jnp.full_like(policy.log_std, -1.5))
    last, _, (transitions, _), _ = jax.jit(
        partial(rollout_block, task, partial(explore, policy), length=LENGTH, encode=None, keep_states=True)
    )(states, Acting(rngs))
    return learner, policy, transitions, last


def unrolled(learner, task, policy, transitions, last):
    """The sum of smooth rewards and of the last values, as a plain function of the actor: every step follows from the
    one before, with the rollout's own noise and discrete decisions."""
    noise = transitions.action - policy.distribution(transitions.observation).mean

    def total(actor):
        acting = replace(policy, actor=actor)
        start = jax.tree.map(lambda x: x[0], transitions.state)
        part, value = jax.vmap(task.differentiable_state)(start), 0.0
        for t in range(LENGTH):
            before = jax.tree.map(lambda x, t=t: x[t], transitions.state)
            after = last if t == LENGTH - 1 else jax.tree.map(lambda x, t=t: x[t + 1], transitions.state)
            state = jax.vmap(task.with_differentiable_state)(before, part)
            action = acting.distribution(jax.vmap(task.observe)(state)).mean + noise[t]
            action = jnp.clip(action, -INSIDE, INSIDE)
            part, reward = jax.vmap(partial(smooth_step, task))(part, action, before, after)
            value = value + jnp.sum(reward)
        state = jax.vmap(task.with_differentiable_state)(last, part)
        if learner.bootstrap == "critic":
            worth = policy.value(jax.vmap(task.observe)(state)) * jnp.sqrt(policy.return_normalizer.variance)
        else:
            worth = jax.vmap(task.terminal_value)(state)
        return value + jnp.sum(worth)

    return total


@pytest.fixture(params=TASKS.values(), ids=TASKS.keys(), scope="module")
def case(request):
    # Two substeps are enough to be wrong about, and an unrolled window compiles in seconds.
    task = request.param
    if isinstance(task, Racing | Hover):
        task = replace(task, physics_rate=2 * task.control_rate)
    learner, policy, transitions, last = window(task)
    assert isinstance(task, DifferentiableTask)
    assert bool(jnp.all(transitions.valid)), "this window should hold no end of an episode"
    gradient = run_back(learner.reverse_pass(task, policy), transitions, last)
    return task, learner, policy, transitions, last, gradient


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_the_reverse_pass_is_the_gradient_of_the_unrolled_window(case):
    task, learner, policy, transitions, last, gradient = case
    # Operation by operation: compiling the derivative of a whole window would take minutes.
    exact = jax.grad(unrolled(learner, task, policy, transitions, last))(policy.actor)
    error = np.linalg.norm(flat(gradient.params[0]) - flat(exact)) / np.linalg.norm(flat(exact))
    assert error < 1e-5


def test_the_reverse_pass_agrees_with_finite_differences(case):
    task, learner, policy, transitions, last, gradient = case
    value = unrolled(learner, task, policy, transitions, last)
    grad = jax.tree.map(lambda g: g / np.linalg.norm(flat(gradient.params[0])), gradient.params[0])
    # Along the gradient itself the change is largest, so float32 shows it best.
    h = 5e-4
    ahead, behind = (jax.tree.map(lambda p, g, h=h: p + h * g, policy.actor, grad) for h in (h, -h))
    slope = float(value(ahead) - value(behind)) / (2.0 * h)
    assert slope == pytest.approx(float(np.linalg.norm(flat(gradient.params[0]))), rel=1e-2)


def test_from_images_the_camera_stays_out_of_the_gradient_and_the_encoder_gets_the_actors():
    camera = CameraSettings("depth", resolution=16, interval=2)
    task = replace(Racing(control_rate=50, camera=camera), physics_rate=100)
    learner = replace(EXACT, rollout_length=4, state_estimation_coef=1.0, teacher_forcing=0.5)
    states, rngs = init_worlds(task, jnp.uint32(0), jnp.arange(WORLDS))
    policy = replace(learner.policy(task.spec, jax.random.key(0)), teacher_forcing=jnp.float32(0.3))
    layers = policy.actor.layers
    actor = replace(policy.actor, layers=(*layers[:-1], replace(layers[-1], weight=layers[-1].weight * 20.0)))
    policy = replace(policy, actor=actor, log_std=jnp.full_like(policy.log_std, -1.5))
    roll = partial(rollout_block, task, partial(explore, policy), length=4, encode=policy.encode, keep_states=True)
    last, _, (transitions, images), _ = jax.jit(roll)(states, Acting(rngs))
    gradient = run_back(learner.reverse_pass(task, policy), transitions, last, images)
    noise = transitions.action - jnp.stack(
        [
            policy.distribution(transitions.observation[t], images.image_features[t // 2]).mean
            for t in range(4)
        ]
    )  # fmt: skip

    def total(params):
        acting = replace(policy, actor=params[0], image_encoder=params[1])
        part, value = jax.vmap(task.differentiable_state)(jax.tree.map(lambda x: x[0], transitions.state)), 0.0
        for t in range(4):
            before = jax.tree.map(lambda x, t=t: x[t], transitions.state)
            after = last if t == 3 else jax.tree.map(lambda x, t=t: x[t + 1], transitions.state)
            state = jax.vmap(task.with_differentiable_state)(before, part)
            features = acting.encode(images.image[t // 2])
            action = acting.mean_action(observe_all(task, state, t % 2), features) + noise[t]
            part, reward = jax.vmap(partial(smooth_step, task))(part, jnp.clip(action, -INSIDE, INSIDE), before, after)
            value = value + jnp.sum(reward)
        state = jax.vmap(task.with_differentiable_state)(last, part)
        worth = policy.value(observe_all(task, state, 0), policy.encode(jax.vmap(task.image)(last)))
        return value + jnp.sum(worth * jnp.sqrt(policy.return_normalizer.variance))

    exact = jax.grad(total)((policy.actor, policy.image_encoder))
    for ours, theirs in zip(gradient.params, exact, strict=True):
        assert np.linalg.norm(flat(ours) - flat(theirs)) < 1e-4 * np.linalg.norm(flat(theirs))
    assert np.linalg.norm(flat(gradient.params[1])) > 0.0


def test_teacher_forcing_mixes_the_truth_into_the_actors_input_and_a_policy_that_flies_has_none():
    camera = CameraSettings("depth", resolution=16, interval=2)
    learner = replace(EXACT, state_estimation_coef=1.0, teacher_forcing=0.5)
    task = Racing(camera=camera)
    policy = learner.policy(task.spec, jax.random.key(0))
    inputs, size = policy.actor_inputs, task.spec.privileged_size
    observation = jnp.linspace(-1.0, 1.0, inputs + size)[None]
    features = jnp.zeros((1, policy.image_encoder.size))
    truth, guess = (
        replace(policy, teacher_forcing=jnp.float32(share)).features(observation, features)[0, -size:]
        for share in (1.0, 0.0)
    )
    half = replace(policy, teacher_forcing=jnp.float32(0.5)).features(observation, features)[0, -size:]
    np.testing.assert_allclose(truth, policy.normalizer(observation)[0, inputs:], atol=1e-6)
    np.testing.assert_allclose(half, 0.5 * (truth + guess), atol=1e-6)
    flying = replace(policy, teacher_forcing=jnp.float32(1.0)).features(observation[:, :inputs], features)[0, -size:]
    np.testing.assert_allclose(flying, guess, atol=1e-6)


def test_the_critics_share_is_all_of_a_gradient_without_rewards_and_falls_with_the_window():
    task, shares = Hover(train_time_limit=4.0), []
    for length in (4, 32):
        learner = Shac(worlds=8, rollout_length=length, hidden_sizes=(8,), minibatches=1, shuffle_block=8)
        trainer = Trainer(task, learner, device.mesh(1), updates=1, chunk_length=1)
        _, metrics, _ = trainer.compile()(trainer.start(0))
        shares.append(float(metrics["critic_gradient_share"]))
    assert shares[1] < shares[0]
    assert shares[1] < 1.0


def test_a_mission_that_only_counts_has_no_gradient_and_is_refused():
    with pytest.raises(ValueError, match="the mission 'coverage' has no smooth reward.*Choose ppo"):
        Shac().check(Survey(mission="coverage"), 1)


def test_gradients_stay_finite_through_ends_and_restarts():
    task = Racing(control_rate=200, controller="px4", train_time_limit=0.3)
    learner = Shac(worlds=16, rollout_length=64, hidden_sizes=(8,))
    states, rngs = init_worlds(task, jnp.uint32(1), jnp.arange(16))
    policy = replace(learner.policy(task.spec), log_std=jnp.zeros(4))
    last, _, (transitions, _), _ = jax.jit(
        partial(rollout_block, task, partial(explore, policy), length=64, encode=None, keep_states=True)
    )(states, Acting(rngs))
    assert bool(jnp.any(~transitions.valid))
    gradient = run_back(learner.reverse_pass(task, policy), transitions, last)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gradient))
    assert float(gradient.count) == int(jnp.sum(transitions.valid))


def test_nothing_of_the_next_episode_reaches_the_actions_before_an_end():
    task, learner = Racing(control_rate=50, train_time_limit=0.5), Shac(worlds=4, rollout_length=32, hidden_sizes=(8,))
    states, rngs = init_worlds(task, jnp.uint32(1), jnp.arange(4))
    policy = learner.policy(task.spec)
    roll = partial(rollout_block, task, partial(explore, policy), length=32, encode=None, keep_states=True)
    last, _, (transitions, _), _ = jax.jit(roll)(states, Acting(rngs))
    end = int(np.argmin(np.asarray(jnp.all(transitions.valid, 1))))
    assert 0 < end < 31
    world = int(np.argmin(np.asarray(transitions.valid[end])))
    one = lambda tree, axis: jax.tree.map(lambda x: x[:, world : world + 1] if axis else x[world : world + 1], tree)  # noqa: E731
    moments, final = one(transitions, 1), one(last, 0)
    reverse = partial(run_back, learner.reverse_pass(task, policy))
    cut = jax.tree.map(lambda x: x[: end + 1], moments)
    # The step that restarts the world is the last of the shorter window, and does not count.
    after = jax.tree.map(lambda x: x[end + 1], moments.state)
    short, whole = reverse(cut, after), reverse(moments, final)
    rest = reverse(jax.tree.map(lambda x: x[end + 1 :], moments), final)
    np.testing.assert_allclose(
        flat(short.params[0]) + flat(rest.params[0]), flat(whole.params[0]), rtol=1e-4, atol=1e-5
    )


def test_a_truncated_episode_keeps_the_gradient_of_its_value_and_a_terminated_one_does_not():
    learner, policy, _, last = window(Hover())
    task = Hover()
    ended = replace(last, terminated=jnp.ones(WORLDS, bool))
    kept, lost = (learner.reverse_pass(task, policy).last_grad(states) for states in (last, ended))
    assert np.abs(flat(kept)).max() > 0.0
    assert np.abs(flat(lost)).max() == 0.0


@pytest.mark.parametrize("name", ["racing", "hover"])
def test_two_devices_learn_what_one_learns(name):
    preset = presets()[name]
    small = {"worlds": 8, "rollout_length": 16, "minibatches": 1, "shuffle_block": 16}
    learner = replace(preset.learner, **small)
    policies = []
    for devices in (1, 2):
        trainer = Trainer(preset.task, learner, device.mesh(devices), updates=2, chunk_length=2, average=1.0)
        state, metrics, _ = trainer.compile()(trainer.start(3))
        policies.append(jax.device_get((state.policy.actor, state.average.actor, metrics["grad_norm"])))
    np.testing.assert_allclose(flat(policies[0]), flat(policies[1]), rtol=2e-3, atol=2e-5)


def test_a_task_that_cannot_be_differentiated_is_refused_by_name_with_alternatives():
    with pytest.raises(ValueError, match=r"shac cannot train Gymnax.*Choose ppo"):
        Shac().check(Gymnax("Pendulum-v1", -200.0), 1)
    with pytest.raises(ValueError, match="discrete"):
        Shac().check(Racing(action_space="discrete"), 1)
    with pytest.raises(ValueError, match="no terminal_value"):
        Shac(bootstrap="terminal_value").check(Racing(), 1)


def test_a_policy_learns_to_recover_within_a_few_updates():
    preset = presets()["hover"]
    trainer = Trainer(preset.task, preset.learner, device.mesh(1), preset.updates, chunk_length=8)
    chunk, state, rewards = trainer.compile(), trainer.start(0), []
    for _ in range(4):
        state, metrics, _ = chunk(state)
        rewards.append(float(metrics["step_reward"]))
    assert rewards[-1] > 0.75 * rewards[0], "the cost should fall by a quarter at least"


def test_a_thrown_drone_starts_as_it_is_told():
    task = Hover()
    states = jax.vmap(lambda world: task.reset(Rng.from_seed(0, world)))(jnp.arange(2000))
    speed, spin = np.asarray(states.body.velocity.norm()), np.asarray(states.body.rates.norm())
    assert speed.max() <= 5.0 and spin.max() <= 10.0
    assert speed.mean() == pytest.approx(2.5, abs=0.1) and spin.mean() == pytest.approx(5.0, abs=0.2)
    assert np.mean(np.asarray(states.body.attitude.up.z) < 0.0) == pytest.approx(0.5, abs=0.05)
    worst = replace(task, start=replace(task.start, worst=True))
    states = jax.vmap(lambda world: worst.reset(Rng.from_seed(0, world)))(jnp.arange(100))
    np.testing.assert_allclose(states.body.velocity.norm(), 5.0, rtol=1e-5)
