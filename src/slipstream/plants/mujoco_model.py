"""The MuJoCo plant of a task that brings a MuJoCo model of its own: bodies by MuJoCo C, all worlds on all cores."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from ..core import device
from ..core.task import AnyState, AnyTask, MujocoTask
from .mujoco import MujocoPlant, load_mujoco
from .mujoco_eye import MujocoEye, require_eye, use_egl
from .plant import Plant, PlantError, SeeingPlant, unstack


class MujocoModelPlant:
    """The bodies of a `MujocoTask`, in one MuJoCo model for each world. The policy observes the truth.

    With `gl` it sees by MuJoCo's renderer.
    """

    name = "mujoco"
    keeps_time = False
    max_worlds = 0
    failed = None

    def __init__(self, gl: bool = False) -> None:
        if gl:
            use_egl()
        self.mujoco, self._gl = load_mujoco(), gl
        self._eye: MujocoEye | None = None
        self._task: MujocoTask | None = None
        self._threads: Any = None

    def adapt(self, task: AnyTask) -> AnyTask:
        if self._gl:
            require_eye(self.mujoco, task)
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
        if self._gl:
            self._eye = MujocoEye(self.mujoco, require_eye(self.mujoco, task), worlds)
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

    def images(self, ended: np.ndarray) -> np.ndarray | None:
        """What the cameras of the worlds see, by MuJoCo's renderer if it was asked for."""
        return None if self._eye is None else self._eye.look(self.state[:, 1 : 1 + self._sizes[0]], ended)

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
        if self._eye is not None:
            self._eye.close()
            self._eye = None


class MujocoPlants:
    """The plant `mujoco`: a task's own model if it brings one, else quadrotors under PX4's controller."""

    name = "mujoco"
    keeps_time = False
    max_worlds = 0
    failed = None

    def __init__(self, quadrotors: MujocoPlant, gl: bool = False) -> None:
        self.quadrotors, self._gl = quadrotors, gl
        self.plant: Plant = quadrotors

    def adapt(self, task: AnyTask) -> AnyTask:
        if isinstance(task, MujocoTask):
            self.plant = MujocoModelPlant(self._gl)
        elif self._gl:
            raise PlantError(f"{task.description} has no MuJoCo model to draw: leave out --camera gl")
        else:
            self.plant = self.quadrotors
        return self.plant.adapt(task)

    def start(self, task: AnyTask, states: AnyState) -> Any:
        return self.plant.start(task, states)

    def command(self, states: AnyState, commands: PyTree) -> None:
        self.plant.command(states, commands)

    def truth(self) -> Any:
        return self.plant.truth()

    def estimate(self) -> Any:
        return self.plant.estimate()

    def images(self, ended: np.ndarray) -> np.ndarray | None:
        return self.plant.images(ended) if isinstance(self.plant, SeeingPlant) else None

    def diagnostics(self) -> dict[str, Any]:
        return self.plant.diagnostics()

    def close(self) -> None:
        self.plant.close()
