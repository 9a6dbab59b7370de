"""Running episodes of a task on a plant, many worlds side by side."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..core.rng import Rng
from ..core.task import AnyState, select, select_agents
from ..plants.plant import AnyTask, Plant, SeeingPlant
from ..policy.memory import Memory
from ..policy.policy import ImageFeatures, Policy
from .episode import Episode
from .pilot import Pilot

Watch = Callable[[int, int], None]
Mind = tuple[Memory, ImageFeatures]
"""What a policy carries from step to step: its memory, and the features of the last image."""


def unwatched(done: int, total: int) -> None:
    """Nobody is told how far it is."""


@dataclass(frozen=True)
class EvaluationResult:
    """Everything an evaluation found out."""

    metrics: dict[str, np.ndarray]  # one number an episode
    episodes: list[Episode]  # the first few, whole


@dataclass(frozen=True)
class EpisodeRunner:
    """Programs that run episodes of a task by a pilot, compiled once and used for as many batches as there are."""

    task: AnyTask
    pilot: Pilot
    keep: int = 16

    @cached_property
    def start(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(lambda seed, world: self.task.reset(Rng.from_seed(seed, world)), in_axes=(None, 0)))

    @cached_property
    def begin(self) -> Callable[..., Any]:
        """From states, the plant's estimate and images of its own to the first commands."""

        def begin(policy: Policy, states: AnyState, estimate: PyTree, images: Array | None) -> Any:
            mind = self.pilot.start(policy, states), self.pilot.encode(policy, states, images)
            commanded, commands, mind, expected = self._decide(policy, states, estimate, mind, 0)
            return commanded, commands, mind, self._record(states) | expected

        return partial(jax.jit(begin), self.pilot.policy)

    @cached_property
    def turn(self) -> Callable[..., Any]:
        """From where the plant has brought the bodies to the next commands: one call, since some keep real time."""

        def turn(
            policy: Policy,
            commanded: AnyState,
            bodies: PyTree,
            estimate: PyTree,
            mind: Mind,
            age: int | Array,
            images: Array | None,
            look: bool,
        ) -> Any:
            states = self._judge(commanded, bodies)
            reward = jnp.where(commanded.ended, 0.0, states.reward)
            mind = (mind[0], self.pilot.encode(policy, states, images)) if look else mind
            commanded, commands, mind, expected = self._decide(policy, states, estimate, mind, age)
            return commanded, commands, mind, self._record(states) | expected, states.ended, reward

        return partial(jax.jit(turn, static_argnames="look"), self.pilot.policy)

    def _decide(
        self, policy: Policy, states: AnyState, estimate: PyTree, mind: Mind, age: int | Array
    ) -> tuple[Any, Any, Mind, dict[str, Any]]:
        # The pilot acts by what the plant's sensors say; what is judged is where the bodies are.
        believed = states if estimate is None else replace(states, body=estimate)
        memory, features = mind
        actions, memory = self.pilot.act(policy, believed, memory, features, age)
        commanded, commands = jax.vmap(self.task.command)(believed, actions)
        expected = self.pilot.expect(policy, *jax.tree.map(lambda x: x[: self.keep], (believed, actions)))
        # An episode that has ended stays as it ended, so that its metrics are those of its end.
        return self._freeze(states, replace(commanded, body=states.body)), commands, (memory, features), expected

    def _judge(self, commanded: AnyState, bodies: PyTree) -> Any:
        return self._freeze(commanded, jax.vmap(self.task.judge)(commanded, bodies))

    def _freeze(self, before: AnyState, after: AnyState) -> Any:
        if self.task.spec.agents == 1:
            return jax.vmap(select)(before.ended, before, after)
        return jax.vmap(select)(jnp.all(before.ended, axis=1), before, freeze_ended(before, after))

    def _record(self, states: AnyState) -> dict[str, Any]:
        return dict(jax.vmap(self.task.record)(jax.tree.map(lambda x: x[: self.keep], states)))

    @cached_property
    def episode_metrics(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(self.task.episode_metrics))

    def run(self, plant: Plant, worlds: np.ndarray, seed: int, watch: Watch = unwatched) -> EvaluationResult:
        """Run these worlds side by side until each has ended, and record the first `keep` of them."""
        task, spec, count = self.task, self.task.spec, len(worlds)
        states = self.start(seed, jnp.asarray(worlds))
        world_records = jax.device_get(jax.vmap(task.world_record)(jax.tree.map(lambda x: x[: self.keep], states)))
        if plant.keeps_time:
            self._compile(states)
        lengths, returns = np.ones(count, int), np.zeros(states.ended.shape)
        failed = np.zeros(states.ended.shape, np.bool_)
        try:
            states = replace(states, body=plant.start(task, states))
            ended = np.zeros(count, np.bool_)
            commanded, commands, mind, row = self.begin(states, plant.estimate(), images_of(plant, ended))
            rows = [row]
            while not ended.all():
                plant.command(commanded, commands)
                age = len(rows) % spec.image_interval
                images = images_of(plant, ended) if age == 0 else None
                commanded, commands, mind, row, over, reward = self.turn(
                    commanded, plant.truth(), plant.estimate(), mind, age, images, look=age == 0
                )
                rows.append(row)
                lengths[~ended] += 1
                over, returns = np.asarray(over), returns + np.asarray(reward)
                if plant.failed is not None:
                    failed = failed | (plant.failed & ~over)
                ended = np.all(np.reshape(over | failed, (count, -1)), axis=1)
                watch(int(ended.sum()), count)
        finally:
            plant.close()
        own = {name: np.array(value) for name, value in jax.device_get(self.episode_metrics(commanded)).items()}
        metrics = {"episode_return": returns.astype(np.float32)} | own
        if "success" in metrics:
            # An episode that the plant lost is no success, whatever had been reached before.
            metrics["success"][failed] = 0.0
        metrics["failed"] = failed
        episodes = self._episodes(jax.device_get(rows), lengths, world_records, metrics)
        flat = {name: np.asarray(value, np.float32).reshape(-1) for name, value in metrics.items()}
        return EvaluationResult(flat, episodes)

    def _compile(self, states: AnyState) -> None:
        """Compile everything before a plant has to keep time."""
        commanded, _, mind, _ = self.begin(states, states.body, None)
        for look in {True, self.task.spec.image_interval == 1}:
            self.turn(commanded, states.body, states.body, mind, 0, None, look=look)

    def _episodes(
        self,
        rows: list[dict[str, Any]],
        lengths: np.ndarray,
        worlds: dict[str, np.ndarray],
        metrics: dict[str, np.ndarray],
    ) -> list[Episode]:
        return [
            Episode(
                {name: np.stack([row[name][i] for row in rows[: lengths[i]]]) for name in rows[0]},
                {name: value[i] for name, value in worlds.items()},
                {name: float(np.mean(value[i])) for name, value in metrics.items()},
                self.task.spec.control_dt,
            )
            for i in range(min(self.keep, len(lengths)))
        ]


def images_of(plant: Plant, ended: np.ndarray) -> Array | None:
    """What a plant that renders by itself sees of worlds that go on."""
    images = plant.images(ended) if isinstance(plant, SeeingPlant) else None
    return None if images is None else jnp.asarray(images)


def run_episodes(
    task: AnyTask, pilot: Pilot, plant: Plant, worlds: int, seed: int, keep: int = 16, watch: Watch = unwatched
) -> EvaluationResult:
    """Run that many worlds, side by side as far as the plant can, and record the first `keep`."""
    runner = EpisodeRunner(plant.adapt(task), pilot, keep)
    width = plant.max_worlds or worlds
    parts = []
    for first in range(0, worlds, width):
        numbers = np.arange(first, min(first + width, worlds))
        parts.append(runner.run(plant, numbers, seed, lambda done, _, first=first: watch(first + done, worlds)))
    metrics = {name: np.concatenate([part.metrics[name] for part in parts]) for name in parts[0].metrics}
    return EvaluationResult(metrics, [episode for part in parts for episode in part.episodes][:keep])


def freeze_ended(before: AnyState, after: AnyState) -> Any:
    """Agents that had ended keep their ends and what was counted for them until the others have ended too."""
    over = before.ended
    own_clock = after.step.shape == over.shape  # in some tasks every agent counts its own steps
    return replace(
        after,
        progress=jax.vmap(select_agents)(over, before.progress, after.progress),
        step=jnp.where(over, before.step, after.step) if own_clock else after.step,
        terminated=jnp.where(over, before.terminated, after.terminated),
        truncated=jnp.where(over, before.truncated, after.truncated),
    )
