"""skrl with torch: many worlds as its `Wrapper`; `skrl_jax` is the same with JAX.

env = SlipstreamWrapper("hover", worlds=256)
agent = PPO(models=models, memory=memory, cfg=cfg, observation_space=env.observation_space,
            action_space=env.action_space, device=env.device)
SequentialTrainer(env=env, agents=agent, cfg={"timesteps": 10_000}).train()

Observations share memory with our program; rewards and flags are copies, because skrl adds to rewards in place.
"""

from typing import Any

from .arrays import from_torch, own_tensor, to_torch, torch_device
from .libraries import needed
from .spaces import action_space, as_in_space, critic_space, observation_space
from .statistics import EpisodeLog
from .tasks import TaskLike, find_task
from .vector import Autoreset, Observation, Worlds

with needed("this adapter"):
    import torch
    from skrl.envs.wrappers.torch.base import Wrapper
    from skrl.utils.spaces.torch import flatten_tensorized_space


class SlipstreamWrapper(Wrapper):
    """Worlds of a task; every agent of a world is an environment of its own.

    By default worlds restart in the step after their end: then the next observation of a step that was cut off by
    time is the true last one, which skrl's `time_limit_bootstrap` needs (set it to True). The step that restarts has
    a reward of 0 and ignores the action.
    """

    def __init__(
        self,
        task: TaskLike = "racing",
        worlds: int = 256,
        seed: int = 0,
        autoreset: Autoreset = "next_step",
        evaluation: bool = False,
        **settings: Any,
    ) -> None:
        self.task = find_task(task, evaluation, **settings)
        self.worlds = Worlds(self.task, worlds, seed, autoreset)
        super().__init__(self.worlds)
        spec, features = self.task.spec, self.worlds.features
        self._device = torch.device(torch_device())
        self._observation_space, self._state_space = observation_space(spec, features), critic_space(spec, features)
        self._action_space = action_space(spec)
        self._log = EpisodeLog(self.worlds)

    @property
    def num_envs(self) -> int:
        return self.worlds.rows

    @property
    def observation_space(self) -> Any:
        return self._observation_space

    @property
    def state_space(self) -> Any:
        """What the critic observes, for tasks with privileged observations."""
        return self._state_space

    @property
    def action_space(self) -> Any:
        return self._action_space

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return self._observed(self.worlds.reset()), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        step = self.worlds.step(from_torch(actions.reshape(self.num_envs, *self.worlds.spec.action.shape)))
        reward, terminated, truncated = (
            own_tensor(x).reshape(-1, 1) for x in (step.reward, step.terminated, step.truncated)
        )
        means = {name: torch.tensor(value) for name, value in self._log.note().items()}
        infos = {"valid": to_torch(step.valid), "episode": means}
        return self._observed(step.observation), reward, terminated, truncated, infos

    def _observed(self, observation: Observation) -> Any:
        """A flat row for every agent, as skrl takes them."""
        parts = as_in_space(observation)
        features = to_torch(observation.features)
        told = observation.privileged
        self._state = None if told is None else torch.cat([features, to_torch(told)], -1)
        if observation.image is None:
            return features
        return flatten_tensorized_space({name: to_torch(part) for name, part in parts.items()})

    def state(self) -> Any:
        return self._state

    def render(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is shown; `slipstream evaluate` and `video` film a policy."""

    def close(self) -> None:
        """Nothing is held open."""
