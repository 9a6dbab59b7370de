"""TorchRL's PPO loss, in the loop of its own example."""

from typing import Any

import torch
from tensordict.nn import AddStateIndependentNormalScale, InteractionType, TensorDictModule
from torchrl.envs.utils import step_mdp
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from ...adapters.arrays import from_torch, to_torch
from ...adapters.torchrl import SlipstreamEnv
from ...adapters.vector import Observation
from ...core.spaces import Box, Discrete
from ..meter import Meter
from ..work import Work
from .networks import decay_of, likeliest, net


class Scaler(torch.nn.Module):
    """Running mean and variance of what is observed, as the other libraries have it."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.count = 0.0

    def update(self, rows: Any) -> None:
        """See more rows."""
        count, mean, variance = float(len(rows)), rows.mean(0), rows.var(0, unbiased=False)
        total, shift = self.count + count, mean - self.mean
        spread = self.variance * self.count + variance * count + shift**2 * self.count * count / total
        # In place: TorchRL's losses hold the tensors that were there when they were made.
        self.mean += shift * count / total
        self.variance.copy_(spread / total)
        self.count = total

    def forward(self, rows: Any) -> Any:
        return ((rows - self.mean) / (self.variance + 1e-6).sqrt()).clamp(-10.0, 10.0)


class Choices(torch.distributions.Distribution):
    """Several independent choices, whose logits are side by side: TorchRL has no such distribution."""

    arg_constraints: Any = {}

    def __init__(self, logits: Any, choices: tuple[int, ...]) -> None:
        super().__init__(logits.shape[:-1], torch.Size([len(choices)]), validate_args=False)
        self.logits, self.choices = logits, choices
        self.rows = [part.log_softmax(-1) for part in logits.split(list(choices), dim=-1)]

    def sample(self, sample_shape: Any = torch.Size()) -> Any:
        return torch.stack([torch.distributions.Categorical(logits=row).sample() for row in self.rows], -1)

    @property
    def deterministic_sample(self) -> Any:
        return torch.stack([row.argmax(-1) for row in self.rows], -1)

    def log_prob(self, value: Any) -> Any:
        taken = [row.gather(-1, value[..., k : k + 1].long()) for k, row in enumerate(self.rows)]
        return torch.cat(taken, -1).sum(-1)

    def entropy(self) -> Any:
        return torch.stack([-(row.exp() * row).sum(-1) for row in self.rows], -1).sum(-1)


def actor_of(space: Any, network: torch.nn.Module, work: Work) -> Any:
    """TorchRL's actor for the actions of the task."""
    common: dict[str, Any] = {"return_log_prob": True, "default_interaction_type": InteractionType.RANDOM}
    if isinstance(space, Box):
        spread = AddStateIndependentNormalScale(space.size, scale_mapping="exp")
        torch.nn.init.constant_(spread.state_independent_scale, work.log_std)
        module = TensorDictModule(torch.nn.Sequential(network, spread), ["observation"], ["loc", "scale"])
        return ProbabilisticActor(module, in_keys=["loc", "scale"], distribution_class=IndependentNormal, **common)
    module = TensorDictModule(network, ["observation"], ["logits"])
    kind = torch.distributions.Categorical if isinstance(space, Discrete) else Choices
    extra: dict[str, Any] = (
        {} if isinstance(space, Discrete) else {"distribution_kwargs": {"choices": tuple(space.components)}}
    )
    return ProbabilisticActor(module, in_keys=["logits"], distribution_class=kind, **common, **extra)


def follow_divergence(optimizer: torch.optim.Optimizer, divergence: float, target: float) -> None:
    """Change the learning rate as RSL-RL does, minibatch by minibatch."""
    factor = 1.0 / 1.5 if divergence > 2.0 * target else 1.5 if 0.0 < divergence < 0.5 * target else 1.0
    for group in optimizer.param_groups:
        group["lr"] = min(max(group["lr"] * factor, 1e-5), 1e-2)


def train(work: Work, meter: Meter) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(work.seed)
    env = SlipstreamEnv(work.preset, worlds=work.worlds, seed=work.seed, **work.task)
    space, inputs = env.task.spec.action, env.observation_spec["observation"].shape[-1]
    outputs = space.size if isinstance(space, Box) else sum(space.components)
    scaler = Scaler(inputs)
    policy = torch.nn.Sequential(scaler, net(inputs, work, outputs, 0.01))
    actor = actor_of(space, policy, work)
    critic = ValueOperator(torch.nn.Sequential(scaler, net(inputs, work, 1, 1.0)))
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=work.clip, entropy_bonus=work.entropy_coef > 0.0,
        entropy_coeff=work.entropy_coef, critic_coeff=work.value_coef, normalize_advantage=True,
    )  # fmt: skip
    advantage = GAE(gamma=work.discount, lmbda=work.gae_lambda, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), work.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay_of(work, env.worlds.rows * work.rollout_length))

    def act(observed: Observation) -> Any:
        with torch.inference_mode():
            out = policy(to_torch(observed.features))
        if isinstance(space, Box):
            return from_torch(out)
        picks = likeliest(out, space.components)
        return from_torch(picks[:, 0] if isinstance(space, Discrete) else picks)

    meter.watch(env.worlds, act)
    state, size = env.reset(), work.batch(env.worlds.rows)
    while True:
        with torch.no_grad():
            rows = env.rollout(
                work.rollout_length, actor, auto_reset=False, break_when_any_done=False, tensordict=state
            )
            state = env.maybe_reset(step_mdp(rows[..., -1]))
            rows = advantage(rows).reshape(-1)
        for _ in range(work.epochs):
            for part in torch.randperm(len(rows)).split(size):
                found = loss(rows[part])
                total = found["loss_objective"] + found["loss_critic"]
                if work.entropy_coef:
                    total = total + found["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), work.max_grad_norm)
                if work.adaptive_learning_rate:
                    follow_divergence(optimizer, float(found["kl_approx"]), work.target_kl)
                optimizer.step()
        if not work.adaptive_learning_rate:
            schedule.step()
        if work.normalize_observations:
            scaler.update(rows["observation"])
