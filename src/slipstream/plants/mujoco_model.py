"""The MuJoCo plant of a task that brings a MuJoCo model of its own: bodies by MuJoCo C, all worlds on all cores."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from ..core import device
from ..core.task import AnyState, AnyTask, MujocoTask
from .mujoco import MujocoPlant, load_mujoco
from .plant import Plant, PlantError, unstack


class MujocoModelPlant:
    """The bodies of a `MujocoTask`, in one MuJoCo model for each world. The policy observes the truth."""

    name = "mujoco"
    keeps_time = False
    max_worlds = 0
    failed = None

    def __init__(self) -> None:
        self.mujoco = load_mujoco()
        self._task: MujocoTask | None = None
        self._threads: Any = None

    def adapt(self, task: AnyTask) -> AnyTask:
        return task

    def start(self, task: AnyTask, states: AnyState) -> Any:
        if not isinstance(task, MujocoTask):
            raise PlantError(f"{task.description} has no MuJoCo model; use --plant fast")
        if task is not self._task:
            self._compile(task)
        self.close()
        worlds = unstack(jax.device_get(states), int(states.step.shape[0]))
        texts = [task.mujoco_xml(world) for world in worlds]
        compiled = {text: self.mujoco.MjModel.from_xml_string(text) for text in set(texts)}
        self.models = [compiled[text] for text in texts]
        model = self.models[0]
        self.substeps = round(task.spec.control_dt / model.opt.timestep)
        if abs(self.substeps * model.opt.timestep - task.spec.control_dt) > 1e-9:
            raise PlantError(f"steps of {model.opt.timestep:g} s do not make a step of {task.spec.control_dt:g} s")
        self.data = [self.mujoco.MjData(model) for _ in range(min(device.cores(), len(worlds)))]
        self._threads = self.mujoco.rollout.Rollout(nthread=len(self.data))
        positions, velocities = (np.asarray(part, np.float64) for part in self._state(states))
        self.state = np.concatenate([np.zeros((len(worlds), 1)), positions, velocities], axis=1)
        self.sensors = np.zeros((len(worlds), model.nsensordata))
        self._sizes = model.nq, model.nv
        self._start, self._commanded = states.body, None
        return states.body

    def _compile(self, task: MujocoTask) -> None:
        self._task = task
        self._state = jax.jit(jax.vmap(task.mujoco_state))
        self._control = jax.jit(jax.vmap(task.mujoco_control))
        self._body = jax.jit(jax.vmap(task.body_from_mujoco))

    def command(self, states: AnyState, commands: PyTree) -> None:
        self._commanded = states
        self.run(np.asarray(self._control(states, commands))[:, None])

    def run(self, controls: Float[np.ndarray, "worlds steps actuators"]) -> None:
        """Apply one row of controls after the other, each for a control period."""
        trace, sensors = self._threads.rollout(
            self.models, self.data, self.state, np.repeat(controls, self.substeps, axis=1)
        )
        self.state, self.sensors = trace[:, -1], sensors[:, -1]

    def truth(self) -> Any:
        if self._commanded is None:
            return self._start
        positions, velocities = np.split(self.state[:, 1 : 1 + sum(self._sizes)], [self._sizes[0]], axis=1)
        parts = (jnp.asarray(part, jnp.float32) for part in (positions, velocities, self.sensors))
        return self._body(self._commanded, *parts)

    def estimate(self) -> None:
        """The policy observes the truth."""

    def diagnostics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
            self._threads = None


class MujocoPlants:
    """The plant `mujoco`: a task's own model if it brings one, else quadrotors under PX4's controller."""

    name = "mujoco"
    keeps_time = False
    max_worlds = 0
    failed = None

    def __init__(self, quadrotors: MujocoPlant) -> None:
        self.quadrotors = quadrotors
        self.plant: Plant = quadrotors

    def adapt(self, task: AnyTask) -> AnyTask:
        self.plant = MujocoModelPlant() if isinstance(task, MujocoTask) else self.quadrotors
        return self.plant.adapt(task)

    def start(self, task: AnyTask, states: AnyState) -> Any:
        return self.plant.start(task, states)

    def command(self, states: AnyState, commands: PyTree) -> None:
        self.plant.command(states, commands)

    def truth(self) -> Any:
        return self.plant.truth()

    def estimate(self) -> Any:
        return self.plant.estimate()

    def diagnostics(self) -> dict[str, Any]:
        return self.plant.diagnostics()

    def close(self) -> None:
        self.plant.close()
