"""Gymnasium: every preset as an environment, alone or as one compiled batch, on our model or on a plant.

    import gymnasium
    import slipstream.adapters.gymnasium

    env = gymnasium.make("Slipstream/Racing-v0", render_mode="rgb_array")
    envs = gymnasium.make_vec("Slipstream/Racing-v0", num_envs=1024)

Importing this registers the presets; `Slipstream/Task-v0` takes any task by `task="FILE.py:Task"`.
"""

from typing import Any, Literal

import jax
import numpy as np

from ..core.errors import require_choice
from ..core.spaces import Box
from ..experiment import registry
from ..plants.settings import PlantSettings
from .arrays import from_torch, mean_of, to_numpy, to_torch
from .libraries import needed
from .plant_world import PlantWorld, make_plant
from .rendering import Recorder
from .spaces import action_space, as_in_space, observation_space
from .tasks import TaskLike, find_task
from .vector import MAX_SEED, Autoreset, VectorStep, Worlds

with needed("this adapter"):
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space

MODES: dict[AutoresetMode, Autoreset] = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "never",
}


class SlipstreamEnv(gymnasium.Env[Any, Any]):
    """One world of a task. Where it holds several agents, they act as one: their mean reward is returned.

    `plant` moves the bodies: `fast` (our model), `mujoco`, `betaflight` or `px4`; `plant_settings` are those of
    `PlantSettings`. All other settings are the task's own.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}

    def __init__(
        self,
        task: TaskLike = "racing",
        render_mode: Literal["rgb_array"] | None = None,
        plant: str = "fast",
        plant_settings: PlantSettings | dict[str, Any] | None = None,
        evaluation: bool = False,
        **settings: Any,
    ) -> None:
        if render_mode is not None:
            require_choice("render_mode", render_mode, self.metadata["render_modes"])
        own = find_task(task, evaluation, **settings)
        made = None if plant == "fast" else make_plant(plant, plant_settings)
        self.worlds = Worlds(own, 1, autoreset="never") if made is None else PlantWorld(own, made)
        self.task, self.render_mode = self.worlds.task, render_mode
        spec, agents = self.worlds.spec, self.worlds.agents
        self.metadata = self.metadata | {"render_fps": max(1, round(1.0 / spec.control_dt))}
        self.action_space = action_space(spec, agents)
        self.observation_space = observation_space(spec, self.worlds.features, agents)
        self._recorder = None if render_mode is None else Recorder(self.worlds)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        own = int(self.np_random.integers(MAX_SEED)) if seed is None else seed % MAX_SEED
        observation = self.worlds.reset(own)
        if self._recorder is not None:
            self._recorder.begin()
        return self._shaped(to_numpy(as_in_space(observation))), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.worlds.step(self._rows_of(action))
        if self._recorder is not None:
            self._recorder.note()
        terminated, truncated = np.asarray(step.terminated), np.asarray(step.truncated)
        over = bool((terminated | truncated).all())
        return (
            self._shaped(to_numpy(as_in_space(step.observation))),
            float(np.mean(step.reward)),
            over and bool(terminated.all()),
            over and not bool(terminated.all()),
            self._info(step, over),
        )

    def _info(self, step: VectorStep, over: bool) -> dict[str, Any]:
        """Metrics of an episode that is over, and what belongs to single agents."""
        info: dict[str, Any] = {}
        if self.worlds.agents > 1:
            info = {"rewards": np.array(step.reward), "ended": np.array(step.done)}
        if over:
            info["metrics"] = {name: mean_of(value) for name, value in step.metrics.items()}
        if isinstance(self.worlds, PlantWorld) and self.worlds.plant.failed is not None:
            info["plant_failed"] = bool(np.any(self.worlds.plant.failed))
        return info

    def _shaped(self, rows: Any) -> Any:
        """Rows of agents as the observation of the environment."""
        return jax.tree.map(lambda x: x[0], rows) if self.worlds.agents == 1 else rows

    def _rows_of(self, action: Any) -> np.ndarray:
        space = self.worlds.spec.action
        if not isinstance(space, Box) and not self.action_space.contains(action):
            raise ValueError(f"the action {action} is not in {self.action_space}")
        return np.asarray(action).reshape(self.worlds.agents, *space.shape)

    def render(self) -> Any:
        if self._recorder is None:
            raise ValueError('nothing was recorded: make the environment with render_mode="rgb_array"')
        return self._recorder.picture()

    def close(self) -> None:
        if isinstance(self.worlds, PlantWorld):
            self.worlds.close()


class SlipstreamVectorEnv(VectorEnv[Any, Any, Any]):
    """Many worlds as one program; every agent of a world is a row of its own.

    `infos` has `valid` (false for rows that waited for other agents or restarted), where episodes ended `episode` with
    returns, lengths and metrics, and with same-step restarts `final_obs`. `arrays` is what goes in and out: `numpy`, or
    `jax` or `torch`, which share memory with our program.
    """

    def __init__(
        self,
        task: TaskLike = "racing",
        num_envs: int = 1,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        arrays: Literal["numpy", "jax", "torch"] = "numpy",
        episode_statistics: bool = True,
        evaluation: bool = False,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        require_choice("kind of arrays", arrays, ("numpy", "jax", "torch"))
        if isinstance(autoreset_mode, str):
            require_choice("autoreset_mode", autoreset_mode, [mode.value for mode in AutoresetMode])
        mode = AutoresetMode(autoreset_mode)
        own = find_task(task, evaluation, **settings)
        self.worlds = Worlds(own, worlds_for(num_envs, own.spec.agents), seed, MODES[mode])
        self.num_envs, self.task, self.arrays = num_envs, own, arrays
        self.metadata = {"autoreset_mode": mode}
        self.single_action_space = action_space(own.spec)
        self.single_observation_space = observation_space(own.spec, self.worlds.features)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._mode, self._statistics = mode, episode_statistics

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            return self._out(as_in_space(self.worlds.restart(np.asarray(mask)))), {}
        if seed is not None and not isinstance(seed, int | np.integer):
            raise ValueError("one seed is enough for all worlds of a batch")
        return self._out(as_in_space(self.worlds.reset(None if seed is None else int(seed) % MAX_SEED))), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        step = self.worlds.step(from_torch(actions) if self.arrays == "torch" else actions)
        out = self._out((as_in_space(step.observation), step.reward, step.terminated, step.truncated))
        return *out, self._infos(step)

    def _out(self, tree: Any) -> Any:
        if self.arrays == "jax":
            return tree
        return to_numpy(tree) if self.arrays == "numpy" else jax.tree.map(to_torch, tree)

    def _infos(self, step: VectorStep) -> dict[str, Any]:
        infos: dict[str, Any] = {"valid": self._out(step.valid)}
        if self.arrays != "numpy":
            # Nothing is read back here: whoever keeps arrays on the device looks at the mask there.
            infos["episode"] = self._out(
                {"r": step.episode_return, "l": step.episode_length, "over": step.over, **step.metrics}
            )
            if step.final is not None:
                infos["final_obs"] = self._out(as_in_space(step.final))
            return infos
        over = np.array(step.over)
        if self._statistics and over.any():
            infos["episode"] = {
                "r": np.where(over, step.episode_return, 0.0),
                "l": np.where(over, step.episode_length, 0),
                **{name: np.where(over, value, 0.0) for name, value in step.metrics.items()},
            }
            infos["_episode"] = over
        done = np.array(step.done)
        if step.final is not None and done.any():
            infos["final_obs"], infos["_final_obs"] = self._final(step, done), done
        return infos

    def _final(self, step: VectorStep, done: np.ndarray) -> np.ndarray:
        """True last observations, one object for each row that is done, as Gymnasium has them."""
        assert step.final is not None
        final, found = to_numpy(as_in_space(step.final)), np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(done):
            found[row] = jax.tree.map(lambda x, row=row: x[row], final)
        return found


def worlds_for(rows: int, agents: int) -> int:
    """The worlds whose agents make so many rows."""
    if rows < 1 or rows % agents:
        raise ValueError(f"a world of this task has {agents} agents: num_envs must be a multiple of that, not {rows}")
    return rows // agents


def environment_id(preset: str) -> str:
    """`Slipstream/RacingVision-v0` of `racing-vision`."""
    return f"Slipstream/{''.join(part.capitalize() for part in preset.split('-'))}-v0"


def register_presets() -> None:
    """Register every preset, and `Slipstream/Task-v0` for tasks that have none."""
    known: dict[str, dict[str, Any]] = {environment_id(name): {"task": name} for name in registry.presets()}
    for name, values in ({"Slipstream/Task-v0": {}} | known).items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=f"{__name__}:SlipstreamEnv",
                vector_entry_point=f"{__name__}:SlipstreamVectorEnv",
                kwargs=values,
            )


register_presets()
