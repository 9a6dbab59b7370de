"""Two engines that step the same model: MuJoCo in C for CPUs, and MJX for accelerators."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core import device
from .host_call import register
from .model import Model, load_mujoco
from .robot import RobotState

MJX_INSTALL = "pip install mujoco-mjx"
MOST_CONTACTS = 4000
"""MJX computes every possible contact in every step, whether bodies touch or not."""


class Engine(Protocol):
    """Physics of one world; `vmap` makes it one of many."""

    def step(self, state: RobotState, ctrl: Float[Array, "nu"]) -> RobotState:
        """The state one control period later, under constant controls."""
        ...

    def sense(self, state: RobotState) -> RobotState:
        """The state with what its sensors say of it."""
        ...


# MuJoCo C


class Worker:
    """What one call needs of its own: threads, their data, and arrays of double precision."""

    def __init__(self, model: Model, threads: int, substeps: int) -> None:
        mujoco, mj = load_mujoco(), model.mj
        self.mj, self.substeps = mj, substeps
        # With one thread the caller's is used.
        self.pool = mujoco.rollout.Rollout(nthread=threads if threads > 1 else 0)
        self.data = [mujoco.MjData(mj) for _ in range(threads)]
        states = mujoco.mjtState
        self.inputs = states.mjSTATE_CTRL | states.mjSTATE_MOCAP_POS | states.mjSTATE_MOCAP_QUAT
        self.moved = mj.nq + mj.nv + mj.na
        self.driven = mujoco.mj_stateSize(mj, self.inputs)
        self._resize(0)

    def _resize(self, worlds: int) -> None:
        self.models = [self.mj] * worlds
        self.first = np.zeros((worlds, 1 + self.moved))  # time comes first, and no force depends on it
        self.control = np.zeros((worlds, self.substeps, self.driven))
        self.states = np.zeros((worlds, self.substeps, 1 + self.moved))
        self.sensors = np.zeros((worlds, self.substeps, self.mj.nsensordata))

    def run(self, before: np.ndarray, after: np.ndarray) -> None:
        """Step every row of `before` (state and controls) and write rows of `after` (state and sensors)."""
        worlds, moved = len(before), self.moved
        if worlds != len(self.models):
            self._resize(worlds)
        self.first[:, 1:] = before[:, :moved]
        self.control[:] = before[:, None, moved:]
        self.pool.rollout(
            self.models, self.data, self.first, self.control, control_spec=int(self.inputs), skip_checks=True,
            nstep=self.substeps, state=self.states, sensordata=self.sensors,
        )  # fmt: skip
        after[:, :moved] = self.states[:, -1, 1:]
        after[:, moved:] = self.sensors[:, -1]


@dataclass(frozen=True, eq=False)
class MujocoEngine:
    """MuJoCo C on a CPU: one call of the host for all worlds of a block, on the threads that a device has."""

    model: Model
    substeps: int

    def step(self, state: RobotState, ctrl: Float[Array, "nu"]) -> RobotState:
        return self._call(replace(state, ctrl=ctrl), self.substeps, ("qpos", "qvel", "act", "sensordata"))

    def sense(self, state: RobotState) -> RobotState:
        # Sensors are read before a step is made.
        return self._call(state, 1, ("sensordata",)) if self.model.mj.nsensordata else state

    def _call(self, state: RobotState, substeps: int, kept: tuple[str, ...]) -> RobotState:
        mj = self.model.mj
        name = f"slipstream_mujoco_{self.model.digest}_{substeps}"
        register(name, Caller(self.model, substeps))
        driving = (state.qpos, state.qvel, state.act, state.ctrl, state.mocap_pos.ravel(), state.mocap_quat.ravel())
        sizes = {"qpos": mj.nq, "qvel": mj.nv, "act": mj.na, "sensordata": mj.nsensordata}
        shape = jax.ShapeDtypeStruct((sum(sizes.values()),), jnp.float32)
        out = jax.ffi.ffi_call(name, shape, vmap_method="broadcast_all")(jnp.concatenate(driving))
        ends = np.cumsum(list(sizes.values())).tolist()
        parts = dict(zip(sizes, jnp.split(out, ends[:-1]), strict=True))
        return replace(state, **{part: parts[part] for part in kept})


@dataclass(frozen=True, eq=False)
class Caller:
    """The function that XLA calls. Devices call it at the same time, each with a worker of its own."""

    model: Model
    substeps: int

    @cached_property
    def _idle(self) -> "queue.SimpleQueue[Worker]":
        return queue.SimpleQueue()

    def __call__(self, arguments: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            devices = jax.local_device_count() if jax.default_backend() == "cpu" else 1
            worker = Worker(self.model, max(device.cores() // devices, 1), self.substeps)
        before, after = arguments[0], results[0]
        worker.run(before.reshape(-1, before.shape[-1]), after.reshape(-1, after.shape[-1]))
        self._idle.put(worker)


# MJX


@dataclass(frozen=True, eq=False)
class MjxEngine:
    """MJX, which is MuJoCo written in JAX: for accelerators. On a CPU it is fifty times slower than C."""

    model: Model
    substeps: int

    @cached_property
    def _mjx(self) -> Any:
        try:
            from mujoco import mjx
        except ImportError as error:
            raise ValueError(f"on an accelerator MJCF models are simulated by MJX: {MJX_INSTALL}") from error
        return mjx

    @cached_property
    def _made(self) -> tuple[Any, Any]:
        """The model and empty data on the device."""
        with jax.ensure_compile_time_eval():
            try:
                model = self._mjx.put_model(self.model.mj, impl="jax")
                data = self._mjx.make_data(self.model.mj, impl="jax")
            except NotImplementedError as error:
                raise ValueError(
                    f"{self.model.path.name} cannot be simulated by MJX ({error}); engine=mujoco can, on a CPU"
                ) from error
        contacts = int(data._impl.contact.dist.shape[-1])
        if contacts > MOST_CONTACTS:
            raise ValueError(
                f"{self.model.path.name} has {contacts} possible contacts, and MJX computes all of them every step: "
                'take geoms out of collisions by contype="0" conaffinity="0", or name pairs of them in <contact>'
            )
        return model, data

    def step(self, state: RobotState, ctrl: Float[Array, "nu"]) -> RobotState:
        model, data = self._made[0], self._data(replace(state, ctrl=ctrl))
        data, _ = jax.lax.scan(lambda d, _: (self._mjx.step(model, d), None), data, length=self.substeps)
        after = replace(state, ctrl=ctrl, qpos=data.qpos, qvel=data.qvel, act=data.act, sensordata=data.sensordata)
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)

    def sense(self, state: RobotState) -> RobotState:
        if not self.model.mj.nsensordata:
            return state
        data = self._mjx.forward(self._made[0], self._data(state))
        return replace(state, sensordata=jnp.asarray(data.sensordata, jnp.float32))

    def _data(self, state: RobotState) -> Any:
        names = ("qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat")
        return self._made[1].replace(**{name: getattr(state, name) for name in names})
