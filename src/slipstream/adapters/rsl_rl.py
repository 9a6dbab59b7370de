"""RSL-RL: many worlds as its `VecEnv`, and a distribution by which its PPO trains discrete tasks.

env = SlipstreamVecEnv("hover", worlds=1024)
cfg["actor"]["distribution_cfg"] = env.distribution_cfg
OnPolicyRunner(env, cfg, log_dir=None, device=str(env.device)).learn(200)

Observations share memory with our program. RSL-RL bootstraps a time limit by the value of the state before the step,
since it has no place for the last observation; that is in `extras["final_observations"]`.
"""

from typing import Any

from ..core.spaces import Box
from .arrays import from_torch, own_tensor, to_torch, torch_device
from .libraries import needed
from .statistics import EpisodeLog
from .tasks import TaskLike, episode_limit, find_task
from .vector import Observation, Worlds

with needed("this adapter"):
    import torch
    from rsl_rl.env import VecEnv
    from rsl_rl.modules.distribution import Distribution
    from tensordict import TensorDict


class SlipstreamVecEnv(VecEnv):
    """Worlds of a task; every agent of a world is an environment of its own.

    Groups of observations: `policy`, with privileged observations also `critic` (what the policy observes and what
    only a critic may know), and with a camera `image` (channels first, from 0 to 1).
    """

    def __init__(
        self,
        task: TaskLike = "racing",
        worlds: int = 1024,
        seed: int = 0,
        max_episode_length: int | None = None,
        evaluation: bool = False,
        **settings: Any,
    ) -> None:
        self.task = find_task(task, evaluation, **settings)
        self.worlds = Worlds(self.task, worlds, seed)
        self.num_envs, self.device = self.worlds.rows, torch_device()
        self.num_actions = self.worlds.spec.action.size
        self.max_episode_length = max_episode_length or episode_limit(self.task)
        self.cfg = {"task": repr(self.task), "worlds": worlds, "seed": seed}
        self._log = EpisodeLog(self.worlds)
        self._observation = self._groups(self.worlds.reset())

    @property
    def distribution_cfg(self) -> dict[str, Any]:
        """What the actor's `distribution_cfg` has to be for the actions of this task."""
        action = self.worlds.spec.action
        if isinstance(action, Box):
            return {"class_name": "GaussianDistribution"}
        return {"class_name": f"{__name__}:MultiCategorical", "choices": list(action.components)}

    @property
    def episode_length_buf(self) -> Any:
        """Steps of each agent's episode; what is assigned becomes the clock that truncates it."""
        return to_torch(self.worlds.episode_steps).long()

    @episode_length_buf.setter
    def episode_length_buf(self, steps: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.worlds.episode_steps = from_torch(steps)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self._observation = self._groups(self.worlds.reset())
        return self._observation, {}

    def get_observations(self) -> Any:
        return self._observation

    def step(self, actions: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        space = self.worlds.spec.action
        actions = actions if isinstance(space, Box) else actions.round().to(torch.int32)
        step = self.worlds.step(from_torch(actions.reshape(self.num_envs, *space.shape)))
        self._observation = self._groups(step.observation)
        extras = {
            # An agent that waits for others is done again and again: that is no time limit.
            "time_outs": own_tensor(step.truncated & ~step.terminated & step.over),
            "valid": to_torch(step.valid),
            "final_observations": None if step.final is None else self._groups(step.final),
        }
        means = self._log.note()
        if means:
            extras["log"] = {f"Task/{name}": value for name, value in means.items()}
        return self._observation, own_tensor(step.reward), own_tensor(step.done), extras

    def _groups(self, observation: Observation) -> Any:
        groups = {"policy": to_torch(observation.features)}
        if observation.privileged is not None:
            groups["critic"] = torch.cat([groups["policy"], to_torch(observation.privileged)], -1)
        if observation.image is not None:
            groups["image"] = to_torch(observation.image).permute(0, 3, 1, 2).float() / 255.0
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)


class MultiCategorical(Distribution):
    """Several choices at once, of `choices[i]` each: what RSL-RL lacks for discrete actions."""

    def __init__(self, output_dim: int, choices: list[int]) -> None:
        super().__init__(output_dim)
        if output_dim != len(choices):
            raise ValueError(f"{output_dim} components of an action do not fit {len(choices)} numbers of choices")
        self.choices = list(choices)
        self._logits: list[Any] = []

    def _split(self, logits: Any) -> list[Any]:
        return [part.log_softmax(-1) for part in logits.split(self.choices, dim=-1)]

    def update(self, mlp_output: Any) -> None:
        self._logits = self._split(mlp_output)

    def sample(self) -> Any:
        return torch.stack([torch.distributions.Categorical(logits=row).sample() for row in self._logits], -1).float()

    def deterministic_output(self, mlp_output: Any) -> Any:
        """The likeliest choice of each component."""
        return torch.stack([part.argmax(-1) for part in self._split(mlp_output)], -1).float()

    def as_deterministic_output_module(self) -> Any:
        return _Likeliest(self.choices)

    @property
    def input_dim(self) -> int:
        """Logits that the network returns."""
        return sum(self.choices)

    @property
    def mean(self) -> Any:
        """The likeliest choice of each component."""
        return torch.stack([row.argmax(-1) for row in self._logits], -1).float()

    @property
    def std(self) -> Any:
        """The entropy of each component, since choices have no standard deviation."""
        return torch.stack([-(row.exp() * row).sum(-1) for row in self._logits], -1)

    @property
    def entropy(self) -> Any:
        return self.std.sum(-1)

    @property
    def params(self) -> tuple[Any, ...]:
        """Log-probabilities of all choices."""
        return (torch.cat(self._logits, -1),)

    def log_prob(self, outputs: Any) -> Any:
        taken = outputs.round().long()
        parts = [row.gather(-1, taken[..., k : k + 1]) for k, row in enumerate(self._logits)]
        return torch.cat(parts, -1).sum(-1)

    def kl_divergence(self, old_params: tuple[Any, ...], new_params: tuple[Any, ...]) -> Any:
        (old,), (new,) = old_params, new_params
        return (old.exp() * (old - new)).sum(-1)


class _Likeliest(torch.nn.Module):
    """The likeliest choices, for RSL-RL's export."""

    def __init__(self, choices: list[int]) -> None:
        super().__init__()
        self.choices = choices

    def forward(self, mlp_output: Any) -> Any:
        return torch.stack([part.argmax(-1) for part in mlp_output.split(self.choices, dim=-1)], -1).float()
