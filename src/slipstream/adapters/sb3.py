"""Stable-Baselines3 and sbx: many worlds as their `VecEnv`.

env = SlipstreamVecEnv("hover", worlds=64)
model = PPO("MlpPolicy", env).learn(1_000_000)

Both libraries hold everything in NumPy, so every array is copied once on its way out.
"""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..core.errors import require_choice
from .arrays import to_numpy
from .libraries import needed
from .rendering import Recorder
from .spaces import action_space, as_in_space, observation_space
from .tasks import TaskLike, find_task
from .vector import MAX_SEED, VectorStep, Worlds

with needed("this adapter"):
    from stable_baselines3.common.vec_env import VecEnv


class SlipstreamVecEnv(VecEnv):
    """Worlds of a task; every agent of a world is an environment of its own.

    Worlds restart in the step in which they end: `terminal_observation` is the true last observation, and
    `TimeLimit.truncated` tells a time limit from a termination. An agent that waits for others is done again and again
    with a reward of 0, and no episode is counted for that.
    """

    def __init__(
        self,
        task: TaskLike = "racing",
        worlds: int = 64,
        seed: int = 0,
        evaluation: bool = False,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        if render_mode is not None:
            require_choice("render_mode", render_mode, ("rgb_array",))
        self.task, self.render_mode = find_task(task, evaluation, **settings), render_mode
        self.worlds = Worlds(self.task, worlds, seed)
        spec = self.task.spec
        super().__init__(self.worlds.rows, observation_space(spec, self.worlds.features), action_space(spec))
        self._recorder = None if render_mode is None else Recorder(self.worlds)
        self._began = time.perf_counter()

    def reset(self) -> Any:
        seed = self._seeds[0]
        observation = self.worlds.reset(None if seed is None else seed % MAX_SEED)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [{} for _ in range(self.num_envs)]
        if self._recorder is not None:
            self._recorder.begin()
        return to_numpy(as_in_space(observation))

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        step = self.worlds.step(np.reshape(self._actions, (self.num_envs, *self.worlds.spec.action.shape)))
        if self._recorder is not None:
            (self._recorder.begin if bool(step.over[0]) else self._recorder.note)()
        dones = np.array(step.done)
        return to_numpy(as_in_space(step.observation)), np.array(step.reward), dones, self._infos(step, dones)

    def _infos(self, step: VectorStep, dones: np.ndarray) -> list[dict[str, Any]]:
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if not dones.any() or step.final is None:
            return infos
        final, over = to_numpy(as_in_space(step.final)), np.asarray(step.over)
        cut = np.asarray(step.truncated & ~step.terminated) & over
        returns, lengths = np.asarray(step.episode_return), np.asarray(step.episode_length)
        metrics = to_numpy(step.metrics)
        elapsed = round(time.perf_counter() - self._began, 6)
        for row in np.flatnonzero(dones):
            info = infos[row]
            info["terminal_observation"] = jax.tree.map(lambda x, row=row: x[row], final)
            info["TimeLimit.truncated"] = bool(cut[row])
            if over[row]:
                info["episode"] = {"r": float(returns[row]), "l": int(lengths[row]), "t": elapsed}
                info["metrics"] = {name: float(value[row]) for name, value in metrics.items()}
                if "success" in metrics:
                    info["is_success"] = bool(metrics["success"][row] > 0.5)
        return infos

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Of the first world only."""
        return [] if self._recorder is None else [self._recorder.picture()]

    def close(self) -> None:
        """Nothing is held open."""

    # All environments are one: what is asked of some is answered for each of them.

    def _count(self, indices: Any) -> int:
        return len(list(self._get_indices(indices)))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self._count(indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        if self._count(indices) != self.num_envs:
            raise ValueError("all worlds run in one program: an attribute is set for all of them or for none")
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(f"all worlds run in one program, so no single one has a method '{method_name}'")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """For `Monitor` the answer is yes: returns and lengths of episodes are counted on the device."""
        return [wrapper_class.__name__ == "Monitor"] * self._count(indices)
