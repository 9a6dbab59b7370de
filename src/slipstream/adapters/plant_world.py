"""One world whose bodies a plant moves: MuJoCo, Betaflight or PX4 behind the interface of `Worlds`."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..core.errors import require_choice
from ..core.task import AnyTask
from ..experiment.fields import from_dict
from ..plants.plant import Plant, zero_actions
from ..plants.registry import PLANTS
from ..plants.settings import PlantSettings
from .vector import Observation, VectorState, VectorStep, Worlds


def make_plant(name: str, settings: PlantSettings | dict[str, Any] | None) -> Plant:
    """A plant by its name, with its settings as they are or as a dictionary."""
    require_choice("plant", name, PLANTS)
    if isinstance(settings, dict):
        settings = from_dict(PlantSettings, settings, "plant_settings")
    return PLANTS[name](settings or PlantSettings())


class PlantWorld(Worlds):
    """One world on a plant. It acts on what the plant's sensors say and is judged by where the bodies are."""

    def __init__(self, task: AnyTask, plant: Plant, seed: int = 0) -> None:
        super().__init__(plant.adapt(task), 1, seed, "never")
        self.plant, self._believed = plant, None
        self._decide, self._judge = jax.jit(self._decide_one), jax.jit(self._judge_one)

    def reset(self, seed: int | None = None) -> Observation:
        super().reset(seed)
        self.plant.close()
        if self.plant.keeps_time:
            _ = self._compiled
        state = self.state
        state = replace(state, states=replace(state.states, body=self.plant.start(self.task, state.states)))
        self.state, self._believed = state, self.plant.estimate()
        return self._see(state, self._believed)

    def step(self, action: Any) -> VectorStep:
        action, state = jnp.asarray(action), self.state
        if bool(np.all(state.states.ended)):
            raise RuntimeError("the episode has ended: call reset")
        commanded, commands = self._decide(state.states, self._believed, action)
        self.plant.command(commanded, commands)
        self._believed = self.plant.estimate()
        failed = jnp.zeros(state.states.ended.shape, bool) if self.plant.failed is None else self.plant.failed
        self._state, step = self._judge(state, commanded, self.plant.truth(), self._believed, jnp.asarray(failed))
        return step

    def close(self) -> None:
        self.plant.close()

    @cached_property
    def _see(self) -> Any:
        return jax.jit(lambda state, estimate: self._observe(believe(state.states, estimate), state.image, state.age))

    @cached_property
    def _compiled(self) -> bool:
        """Compile everything before a plant has to keep time."""
        states = self.state.states
        action = self._as_rows(zero_actions(self.spec, 1))
        for estimate in (None, states.body):
            commanded, _ = self._decide(states, estimate, action)
            self._see(self.state, estimate)
            self._judge(self.state, commanded, states.body, estimate, jnp.zeros(states.ended.shape, bool))
        return True

    def _decide_one(self, states: Any, estimate: PyTree, action: Array) -> tuple[Any, Any]:
        believed = believe(states, estimate)
        commanded, commands = jax.vmap(self.task.command)(believed, self._as_actions(action))
        return replace(commanded, body=states.body), commands

    def _judge_one(
        self, state: VectorState, commanded: Any, bodies: PyTree, estimate: PyTree, failed: Array
    ) -> tuple[VectorState, VectorStep]:
        judged = jax.vmap(self.task.judge)(commanded, bodies)
        # An episode that the plant cannot go on with is cut off: what it would have been worth is not known.
        moved = self._masked(state.states, replace(judged, truncated=judged.truncated | (failed & ~judged.terminated)))
        return self._conclude(state, moved, moved, state.restarts, believe(moved, estimate))


def believe(states: Any, estimate: PyTree) -> Any:
    """The states as the plant's sensors estimate them."""
    return states if estimate is None else replace(states, body=estimate)
