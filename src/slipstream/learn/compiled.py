"""The compiled program of a training: a learner and a task on a mesh of devices, a chunk of updates at a time."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree

from ..core.device import AXIS
from ..core.task import CurriculumTask, DataTask, Task
from .learner import Learner, Metrics, TrainState
from .rollout import EpisodeStats


@dataclass(frozen=True)
class Trainer:
    """A learner on a mesh: worlds are split over the devices, weights are replicated.

    With several seeds every leaf has a leading axis of seeds, and one program trains them all.
    """

    task: Task[Any]
    learner: Learner[Any]
    mesh: Mesh
    updates: int
    """updates of the whole training, over which schedules run"""
    seeds: int = 1
    chunk_length: int = 8
    """updates of one dispatch to the devices"""
    average: float = 0.0
    """fraction of the training, at its end, over which the weights of the policy are averaged; 0 is none"""

    def __post_init__(self) -> None:
        if self.learner.worlds % self.mesh.size:
            raise ValueError(
                f"{self.learner.worlds} worlds do not divide over {self.mesh.size} devices; "
                "choose a multiple, or set devices to 1"
            )
        self.learner.check(self.task, self.mesh.size)

    @cached_property
    def shape(self) -> Any:
        """Shapes and types of the training state."""
        worlds = jnp.arange(self.learner.worlds, dtype=jnp.int32)
        one = jax.eval_shape(lambda: self._init_one(jnp.uint32(0), worlds, self.data))
        if self.seeds == 1:
            return one
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((self.seeds, *x.shape), x.dtype), one)

    @cached_property
    def _specs(self) -> Any:
        """The partition of each leaf of the training state over the mesh."""
        leading = (None,) if self.seeds > 1 else ()
        split, replicated = PartitionSpec(*leading, AXIS), PartitionSpec()
        return type(self.shape)(
            **{
                name: jax.tree.map(
                    lambda _, s=split if field.metadata.get("per_world") else replicated: s, getattr(self.shape, name)
                )
                for name, field in self.shape.__dataclass_fields__.items()
            }
        )

    @cached_property
    def data(self) -> PyTree:
        """The numbers of the task that are arguments of the programs."""
        return self.task.data() if isinstance(self.task, DataTask) else None

    def _task(self, data: PyTree) -> Task[Any]:
        return self.task.with_data(data) if isinstance(self.task, DataTask) else self.task

    def _init_one(self, seed: Int[Array, ""], worlds: Int[Array, "n"], data: PyTree) -> Any:
        train = self.learner.init(self._task(data), seed, worlds)
        return replace(train, average=train.policy) if self.average else train

    @cached_property
    def _init(self) -> Any:
        def init(seeds: Int[Array, "s"], worlds: Int[Array, "n"], data: PyTree) -> Any:
            if self.seeds == 1:
                return self._init_one(seeds[0], worlds, data)
            return jax.lax.map(lambda seed: self._init_one(seed, worlds, data), seeds)

        mapped = jax.shard_map(
            init,
            mesh=self.mesh,
            in_specs=(PartitionSpec(), PartitionSpec(AXIS), PartitionSpec()),
            out_specs=self._specs,
            check_vma=False,
        )
        return jax.jit(mapped, out_shardings=self.shardings)

    @cached_property
    def shardings(self) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self._specs)

    def start(self, seed: int) -> Any:
        """The training state at step 0, for the seeds from `seed` on."""
        seeds = jnp.arange(seed, seed + self.seeds, dtype=jnp.uint32)
        return self._start(seeds, jnp.arange(self.learner.worlds, dtype=jnp.int32), self.data)

    @cached_property
    def _start(self) -> Any:
        """The compiled program of `start`."""
        seeds = jax.ShapeDtypeStruct((self.seeds,), jnp.uint32)
        return self._init.lower(seeds, jax.ShapeDtypeStruct((self.learner.worlds,), jnp.int32), self.data).compile()

    def _update(self, train: TrainState, task: Task[Any]) -> tuple[Any, tuple[Metrics, EpisodeStats]]:
        progress = jnp.minimum(train.updates.astype(jnp.float32) / self.updates, 1.0)
        task = task.at_progress(progress) if isinstance(task, CurriculumTask) else task
        after, metrics, stats = self.learner.update(task, train, progress, AXIS)
        if self.average:
            after = replace(after, average=self._update_average(train.average, after.policy, after.updates))
        return after, (metrics, stats)

    def _update_average(self, average: PyTree, policy: PyTree, updates: Int[Array, ""]) -> Any:
        """The mean of the policies since averaging began; before that, the current policy."""
        first = math.floor((1.0 - self.average) * self.updates)
        weight = 1.0 / jnp.maximum(updates - first, 1).astype(jnp.float32)

        def mean(old: Array, new: Array) -> Array:
            return (1.0 - weight) * old + weight * new if jnp.issubdtype(new.dtype, jnp.floating) else new

        return jax.tree.map(mean, average, policy)

    def _chunk(self, train: PyTree, data: PyTree) -> tuple[Any, Metrics, EpisodeStats]:
        task = self._task(data)

        def one(train: PyTree) -> tuple[Any, Metrics, EpisodeStats]:
            train, (metrics, stats) = jax.lax.scan(lambda t, _: self._update(t, task), train, length=self.chunk_length)
            return train, jax.tree.map(jnp.mean, metrics), jax.tree.map(jnp.sum, stats)

        return one(train) if self.seeds == 1 else jax.lax.map(one, train)

    @property
    def _replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def lower(self) -> jax.stages.Lowered:
        """The program of a chunk before it is compiled."""
        specs, replicated = self._specs, self._replicated
        mapped = jax.shard_map(
            self._chunk,
            mesh=self.mesh,
            in_specs=(specs, PartitionSpec()),
            out_specs=(specs, PartitionSpec(), PartitionSpec()),
            check_vma=False,
        )
        program = jax.jit(
            mapped,
            donate_argnums=0,
            in_shardings=(self.shardings, replicated),
            out_shardings=(self.shardings, replicated, replicated),
        )
        return program.lower(self.shape, self.data)

    def compile(self) -> "Compiled":
        """The compiled chunk, and beside it the start. Compiling takes most of the time before the first update."""
        began = time.perf_counter()
        lowered = self.lower()
        with ThreadPoolExecutor(1) as beside:
            start = beside.submit(lambda: self._start)
            program = lowered.compile()
            start.result()
        return Compiled(program, time.perf_counter() - began, jax.device_put(self.data, self._replicated))


@dataclass(frozen=True)
class Compiled:
    """A compiled chunk of updates."""

    program: Any
    seconds: float
    data: PyTree = None

    def __call__(self, train: PyTree) -> tuple[Any, Metrics, EpisodeStats]:
        """One dispatch; nothing crosses to the host inside."""
        with jax.transfer_guard("disallow"):
            return self.program(train, self.data)

    @property
    def memory(self) -> int:
        """Bytes a device needs for the state and for temporary arrays."""
        plan = self.program.memory_analysis()
        return plan.argument_size_in_bytes + plan.temp_size_in_bytes
