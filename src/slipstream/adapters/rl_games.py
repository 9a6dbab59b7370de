"""rl_games: many worlds as its `IVecEnv`, whose tensors stay on the device.

register()
runner = Runner()
runner.load({"params": {"config": {"env_name": "slipstream", "num_actors": 1024,
                                   "env_config": {"task": "hover"}, ...}, ...}})

Observations share memory with our program; rewards and flags are copies, because rl_games adds to rewards in place.
"""

from typing import Any

from ..core.spaces import Box, MultiDiscrete
from .arrays import from_torch, own_tensor, to_torch
from .libraries import needed
from .spaces import action_space, as_in_space, critic_space, observation_space
from .statistics import EpisodeLog
from .tasks import TaskLike, find_task
from .vector import MAX_SEED, Observation, Worlds

with needed("this adapter"):
    import torch
    from gymnasium import spaces
    from rl_games.common import env_configurations, vecenv
    from rl_games.common.ivecenv import IVecEnv

NAME = "slipstream"
"""Of the environment in a configuration of rl_games."""


def register() -> None:
    """Make `env_name: slipstream` known to rl_games; `env_config` has the task and its settings."""
    vecenv.register(NAME.upper(), lambda name, actors, **settings: SlipstreamVecEnv(actors=actors, **settings))
    env_configurations.register(NAME, {"vecenv_type": NAME.upper(), "env_creator": SlipstreamVecEnv})


class SlipstreamVecEnv(IVecEnv):
    """Worlds of a task; every agent of a world is an actor, so `actors` is a multiple of the agents of a world.

    rl_games bootstraps a time limit by the value of the state before the step, since it has no place for the last
    observation; that is in `infos["final_observations"]`.
    """

    def __init__(
        self,
        task: TaskLike = "racing",
        actors: int = 1024,
        seed: int = 0,
        evaluation: bool = False,
        **settings: Any,
    ) -> None:
        self.task = find_task(task, evaluation, **settings)
        agents = self.task.spec.agents
        if actors % agents:
            raise ValueError(f"a world of this task has {agents} agents: num_actors must be a multiple, not {actors}")
        self.worlds = Worlds(self.task, actors // agents, seed)
        self._log = EpisodeLog(self.worlds)
        self._seed: int | None = seed

    def get_env_info(self) -> Any:
        spec, features = self.task.spec, self.worlds.features
        info: dict[str, Any] = {
            "action_space": tuple_space(spec.action.choices)
            if isinstance(spec.action, MultiDiscrete)
            else action_space(spec),
            "observation_space": observation_space(spec, features),
            "agents": 1,
            "value_size": 1,
        }
        critic = critic_space(spec, features)
        return info if critic is None else info | {"state_space": critic}

    def seed(self, seed: int) -> None:
        """Of the next reset."""
        self._seed = seed % MAX_SEED

    def reset(self) -> Any:
        observation = self.worlds.reset(self._seed)
        self._seed = None
        return self._observed(observation)

    def step(self, actions: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        space = self.worlds.spec.action
        actions = actions if isinstance(space, Box) else actions.to(torch.int32)
        step = self.worlds.step(from_torch(actions.reshape(self.worlds.rows, *space.shape)))
        infos: dict[str, Any] = {
            # An agent that waits for others is done again and again: that is no time limit.
            "time_outs": own_tensor(step.truncated & ~step.terminated & step.over),
            "valid": to_torch(step.valid),
            "final_observations": None if step.final is None else self._observed(step.final),
        }
        means = self._log.note()
        if means:
            infos["episode"] = {name: torch.tensor(value) for name, value in means.items()}
        return self._observed(step.observation), own_tensor(step.reward), own_tensor(step.done), infos

    def _observed(self, observation: Observation) -> Any:
        """A tensor, or with privileged observations `obs` and, for a central value, `states`."""
        parts = as_in_space(observation)
        shared = {name: to_torch(part) for name, part in parts.items()} if isinstance(parts, dict) else to_torch(parts)
        if observation.privileged is None:
            return shared
        states = torch.cat([to_torch(observation.features), to_torch(observation.privileged)], -1)
        return {"obs": shared, "states": states}


def tuple_space(choices: tuple[int, ...]) -> Any:
    """Several choices as rl_games knows them: it takes no `MultiDiscrete`."""
    return spaces.Tuple([spaces.Discrete(count) for count in choices])
