"""PettingZoo: a task with several agents as a parallel environment of dictionaries.

env = parallel_env("marine")
observations, infos = env.reset(seed=0)
"""

from typing import Any, Literal

import jax
import numpy as np

from ..core.errors import require_choice
from ..core.spaces import Box
from .arrays import to_numpy
from .libraries import needed
from .rendering import Recorder
from .spaces import action_space, as_in_space, observation_space
from .tasks import TaskLike, find_task
from .vector import MAX_SEED, Worlds

with needed("this adapter"):
    from gymnasium.utils import seeding
    from pettingzoo import ParallelEnv

Row = dict[str, Any]
Flags = dict[str, bool]


def parallel_env(task: TaskLike = "marine", **settings: Any) -> "SlipstreamParallelEnv":
    """One world of a task; settings are those of the task, `render_mode` and `evaluation`."""
    return SlipstreamParallelEnv(task, **settings)


class SlipstreamParallelEnv(ParallelEnv[str, Any, Any]):
    """One world of a task, whose agents leave it for good when they end; the episode is over when all have left.

    In a task whose agents respawn, they do not here, since PettingZoo revives no agent.
    """

    metadata = {"name": "slipstream", "render_modes": ["rgb_array"], "render_fps": 25, "is_parallelizable": True}

    def __init__(
        self,
        task: TaskLike = "marine",
        render_mode: Literal["rgb_array"] | None = None,
        evaluation: bool = False,
        **settings: Any,
    ) -> None:
        if render_mode is not None:
            require_choice("render_mode", render_mode, ("rgb_array",))
        self.task, self.render_mode = find_task(task, evaluation, **settings), render_mode
        self.worlds = Worlds(self.task, 1, autoreset="never")
        spec = self.task.spec
        self.possible_agents = [f"agent_{k}" for k in range(spec.agents)]
        self.agents: list[str] = []
        self.observation_spaces = {name: observation_space(spec, self.worlds.features) for name in self.possible_agents}
        self.action_spaces = {name: action_space(spec) for name in self.possible_agents}
        self._recorder = None if render_mode is None else Recorder(self.worlds)
        self._random, _ = seeding.np_random()

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        if seed is not None:
            self._random, _ = seeding.np_random(seed)
        own = int(self._random.integers(MAX_SEED)) if seed is None else seed % MAX_SEED
        observation = self.worlds.reset(own)
        self.agents = list(self.possible_agents)
        if self._recorder is not None:
            self._recorder.begin()
        return self._by_agent(to_numpy(as_in_space(observation))), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Row, dict[str, float], Flags, Flags, dict[str, dict[str, Any]]]:
        """Agents that are not in `actions` do nothing; the results are those of the agents that were there."""
        step = self.worlds.step(self._rows_of(actions))
        if self._recorder is not None:
            self._recorder.note()
        observations = self._by_agent(to_numpy(as_in_space(step.observation)))
        rewards = {name: float(value) for name, value in self._by_agent(np.asarray(step.reward)).items()}
        terminated, truncated = (
            {name: bool(value) for name, value in self._by_agent(np.asarray(flag)).items()}
            for flag in (step.terminated, step.truncated)
        )
        over, metrics = self._by_agent(np.asarray(step.over)), to_numpy(step.metrics)
        infos: dict[str, dict[str, Any]] = {
            name: {"metrics": {key: float(value[self._row(name)]) for key, value in metrics.items()}} if ended else {}
            for name, ended in over.items()
        }
        self.agents = [name for name in self.agents if not over[name]]
        return observations, rewards, terminated, truncated, infos

    def _row(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _by_agent(self, rows: Any) -> dict[str, Any]:
        """What belongs to each agent that is still there."""
        return {name: jax.tree.map(lambda x, row=self._row(name): x[row], rows) for name in self.agents}

    def _rows_of(self, actions: dict[str, Any]) -> np.ndarray:
        unknown = set(actions) - set(self.possible_agents)
        if unknown:
            raise ValueError(f"there are no agents {', '.join(sorted(unknown))}")
        space = self.task.spec.action
        rows = np.zeros((self.worlds.rows, *space.shape), np.float32 if isinstance(space, Box) else np.int32)
        for name, action in actions.items():
            rows[self._row(name)] = action
        return rows

    def render(self) -> Any:
        if self._recorder is None:
            raise ValueError('nothing was recorded: make the environment with render_mode="rgb_array"')
        return self._recorder.picture()

    def close(self) -> None:
        """Nothing is held open."""
