"""Flying many episodes on a plant, keeping their records, and summing them up."""

import json
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from ..core.rng import Chance
from ..core.task import Seeing, among, pick
from ..experiment.experiment import SEEDS, checked
from ..learn.compiled import policy_shape
from ..learn.rollout import aged
from ..plants.plant import Plant, PlantError, Task
from ..plants.registry import PLANTS
from ..plants.settings import USUAL, PlantSettings
from ..runs.run import Run, RunError, finite, write_text
from . import intervals

UNSEEN = 1_000_003
"""Added to the seed of a training, so that no start of an evaluation was trained on."""


DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""What reading a damaged .npz file raises."""


@dataclass(frozen=True)
class Episode:
    """The record of one attempt: arrays over time, what stood around, and how it was judged."""

    steps: dict[str, np.ndarray]
    scenery: dict[str, np.ndarray]
    figures: dict[str, float]
    control_dt: float

    @property
    def length(self) -> int:
        return len(next(iter(self.steps.values())))

    def save(self, path: Path) -> None:
        arrays = {f"steps/{name}": value for name, value in self.steps.items()}
        arrays |= {f"scenery/{name}": value for name, value in self.scenery.items()}
        arrays |= {f"figures/{name}": np.float32(value) for name, value in self.figures.items()}
        np.savez_compressed(path, control_dt=np.float32(self.control_dt), **arrays)  # pyright: ignore[reportArgumentType]

    @classmethod
    def load(cls, path: Path) -> "Episode":
        try:
            with np.load(path, allow_pickle=False) as stored:
                parts: dict[str, dict[str, Any]] = {"steps": {}, "scenery": {}, "figures": {}}
                for name in stored.files:
                    group, _, rest = name.partition("/")
                    if rest and group in parts:
                        parts[group][rest] = stored[name]
                dt = float(stored["control_dt"])
        except DAMAGE as error:
            raise RunError(f"{path} is damaged; evaluate again") from error
        figures = {name: float(value) for name, value in parts["figures"].items()}
        return cls(parts["steps"], parts["scenery"], figures, dt)


@dataclass(frozen=True)
class Flown:
    """Everything an evaluation found out."""

    figures: dict[str, np.ndarray]  # one number an episode
    episodes: list[Episode]  # the first few, whole


@dataclass(frozen=True)
class Pilot:
    """Who decides for all worlds of an evaluation: what to make of pictures, and what to do.

    Each is told the policy, which is data: programs are the same for all policies of a kind, and are compiled once.
    """

    see: Callable[[Any, Any], Any]
    """sights of states; None without a camera"""
    choose: Callable[[Any, Any, Any, Any], Any]
    """actions by states, sights, and the age of those"""
    expect: Callable[[Any, Any, Any], dict[str, Any]] = lambda policy, states, actions: {}
    """what it expects of its actions, for the record"""
    policy: Any = None


@runtime_checkable
class Expecting(Protocol):
    """A policy that tells the distribution of returns it expects of an action."""

    def returns(self, observation: Any, action: Any) -> Any:
        """Quantiles, the lowest first; None if it knows only their mean."""
        ...


def trained_pilot(task: Task, policy: Any) -> Pilot:
    """A policy, without exploring."""
    spec = task.spec

    def see(policy: Any, states: Any) -> Any:
        return policy.see(jax.vmap(task.picture)(states)) if isinstance(task, Seeing) and spec.frame else None

    def choose(policy: Any, states: Any, sight: Any, age: Any) -> Any:
        observation = jax.vmap(task.observe)(states)
        if sight is not None:
            observation = aged(observation, states, age, spec.interval)
        return policy.act(observation, None, sight)[0]

    def expect(policy: Any, states: Any, actions: Any) -> dict[str, Any]:
        returns = policy.returns(jax.vmap(task.observe)(states), actions) if isinstance(policy, Expecting) else None
        return {} if returns is None else {"returns": returns}

    return Pilot(see, choose, expect, policy)


def scripted_pilot(script: Callable[[Any], Any]) -> Pilot:
    """A script of the task, a function of one world."""
    return Pilot(lambda policy, states: None, lambda policy, states, sight, age: jax.vmap(script)(states))


@dataclass(frozen=True)
class Flyer:
    """Programs that fly episodes of a task by a pilot, compiled once and used for as many batches as there are."""

    task: Task
    pilot: Pilot
    keep: int = 16

    @cached_property
    def start(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(lambda seed, world: self.task.reset(Chance.of(seed, world)), in_axes=(None, 0)))

    @cached_property
    def begin(self) -> Callable[..., Any]:
        """From states and what the plant sees to the first commands."""

        def begin(policy: Any, states: Any, seen: Any) -> Any:
            sight = self.pilot.see(policy, states)
            commanded, commands, expected = self._decide(policy, states, seen, sight, 0)
            return commanded, commands, sight, self._record(states) | expected

        return partial(jax.jit(begin), self.pilot.policy)

    @cached_property
    def turn(self) -> Callable[..., Any]:
        """From where the plant has brought the bodies to the next commands: one call, since some keep real time."""

        def turn(policy: Any, commanded: Any, bodies: Any, seen: Any, sight: Any, age: Any, look: bool) -> Any:
            states = self._score(commanded, bodies)
            sight = self.pilot.see(policy, states) if look else sight
            commanded, commands, expected = self._decide(policy, states, seen, sight, age)
            return commanded, commands, sight, self._record(states) | expected, states.ended

        return partial(jax.jit(turn, static_argnames="look"), self.pilot.policy)

    def _decide(self, policy: Any, states: Any, seen: Any, sight: Any, age: Any) -> tuple[Any, Any, dict[str, Any]]:
        # The pilot flies by what the plant's sensors say; what is judged is where the bodies are.
        believed = replace(states, body=seen)
        actions = self.pilot.choose(policy, believed, sight, age)
        commanded, commands = jax.vmap(self.task.command)(believed, actions)
        expected = self.pilot.expect(policy, *jax.tree.map(lambda x: x[: self.keep], (believed, actions)))
        # An episode that has ended stays as it ended, so that its figures are those of its end.
        return self._kept(states, replace(commanded, body=states.body)), commands, expected

    def _score(self, commanded: Any, bodies: Any) -> Any:
        return self._kept(commanded, jax.vmap(self.task.judge)(commanded, bodies))

    def _kept(self, before: Any, after: Any) -> Any:
        if self.task.spec.agents == 1:
            return jax.vmap(pick)(before.ended, before, after)
        return jax.vmap(pick)(jnp.all(before.ended, axis=1), before, held(before, after))

    def _record(self, states: Any) -> Any:
        return jax.vmap(self.task.record)(jax.tree.map(lambda x: x[: self.keep], states))

    @cached_property
    def figures(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(self.task.figures))

    def fly(
        self, plant: Plant, worlds: np.ndarray, seed: int, watch: Callable[[int, int], None] = lambda done, all: None
    ) -> Flown:
        """Fly these worlds side by side until each has ended, and record the first `keep` of them."""
        task, spec, count = self.task, self.task.spec, len(worlds)
        states = self.start(seed, jnp.asarray(worlds))
        keep = min(self.keep, count)
        scenery = jax.device_get(jax.vmap(task.scenery)(jax.tree.map(lambda x: x[:keep], states)))
        commanded, commands, sight, row = self.begin(states, states.body)
        for look in {True, spec.interval == 1}:
            # Compiled before the plant has to keep time.
            self.turn(commanded, states.body, states.body, sight, 0, look=look)
        lengths, lost = np.ones(count, int), np.zeros(states.ended.shape, np.bool_)
        try:
            states = replace(states, body=plant.start(task, states))
            commanded, commands, sight, row = self.begin(states, plant.seen())
            rows, ended = [row], np.zeros(count, np.bool_)
            while not ended.all():
                plant.command(commanded, commands)
                age = len(rows) % spec.interval
                commanded, commands, sight, row, over = self.turn(
                    commanded, plant.sense(), plant.seen(), sight, age, look=age == 0
                )
                rows.append(row)
                lengths[~ended] += 1
                over = np.asarray(over)
                if plant.lost is not None:
                    lost = lost | (plant.lost & ~over)
                ended = np.all(np.reshape(over | lost, (count, -1)), axis=1)
                watch(int(ended.sum()), count)
        finally:
            plant.close()
        states, rows = commanded, jax.device_get(rows)
        figures = {name: np.array(value) for name, value in jax.device_get(self.figures(states)).items()}
        # What the plant lost is no success, whatever had been reached before.
        figures["success"][lost] = 0.0
        figures["lost"] = lost
        kept = [
            Episode(
                {name: np.stack([row[name][i] for row in rows[: lengths[i]]]) for name in rows[0]},
                {name: value[i] for name, value in scenery.items()},
                {name: float(np.mean(value[i])) for name, value in figures.items()},
                spec.control_dt,
            )
            for i in range(keep)
        ]
        return Flown({name: np.asarray(value, np.float32).reshape(-1) for name, value in figures.items()}, kept)


def fly(
    task: Task,
    pilot: Pilot,
    plant: Plant,
    episodes: int,
    seed: int,
    keep: int = 16,
    watch: Callable[[int, int], None] = lambda ended, episodes: None,
) -> Flown:
    """Fly that many episodes, side by side as far as the plant can, and record the first `keep`."""
    flyer = Flyer(plant.adapt(task), pilot, keep)
    width = plant.width or episodes
    parts = []
    for first in range(0, episodes, width):
        worlds = np.arange(first, min(first + width, episodes))
        parts.append(flyer.fly(plant, worlds, seed, lambda done, _, first=first: watch(first + done, episodes)))
    figures = {name: np.concatenate([part.figures[name] for part in parts]) for name in parts[0].figures}
    return Flown(figures, [episode for part in parts for episode in part.episodes][:keep])


def held(before: Any, after: Any) -> Any:
    """Agents that had ended keep their ends and what was counted for them until the others have ended too."""
    over = before.ended
    own_clock = after.step.shape == over.shape  # in some tasks every agent counts its own steps
    return replace(
        after,
        progress=jax.vmap(among)(over, before.progress, after.progress),
        step=jnp.where(over, before.step, after.step) if own_clock else after.step,
        terminated=jnp.where(over, before.terminated, after.terminated),
        truncated=jnp.where(over, before.truncated, after.truncated),
    )


def policies(run: Run, which: str = "average") -> tuple[int, list[Any]]:
    """The trained policies of a run, one for each seed, and the step they are from."""
    experiment = run.experiment
    step, stored = run.load_policy(policy_shape(experiment.task, experiment.learner, experiment.seeds), which)
    if experiment.seeds == 1:
        return step, [jax.device_put(stored)]
    return step, [jax.device_put(jax.tree.map(lambda x, i=i: x[i], stored)) for i in range(experiment.seeds)]


def evaluate(
    run: Run,
    plant: str = "fast",
    episodes: int | None = None,
    seed: int | None = None,
    which: str = "average",
    keep: int = 16,
    watch: Callable[[int, int], None] = lambda ended, episodes: None,
    settings: PlantSettings = PlantSettings(),
    changes: Mapping[str, Any] = MappingProxyType({}),
    scripts: bool = True,
) -> dict[str, Any]:
    """Score a run on a plant by so many worlds, or by as many as take minutes; writes episodes and summary.json.

    With `changes` the task is another than the one trained on, and its results stand beside those of that one.
    With `scripts` those of the task fly the same worlds.
    """
    if plant not in PLANTS:
        raise PlantError(f"the plant '{plant}' cannot be used here")
    flown_by = PLANTS[plant](settings)
    if episodes is not None and episodes < 1:
        raise ValueError("at least 1 episode is needed")
    experiment = run.experiment
    task = other_task(experiment.task, changes).exam()
    # The usual number is kept for the fast plant, whose worlds cost nothing.
    usual = USUAL[plant] if plant == "fast" else -(-USUAL[plant] // task.spec.agents)
    worlds = usual if episodes is None else episodes
    seed = (experiment.seed + UNSEEN) % SEEDS if seed is None else seed
    if not 0 <= seed < SEEDS:
        raise ValueError(f"a seed lies between 0 and {SEEDS - 1}")
    step, trained = policies(run, which)
    began = time.perf_counter()
    pilots = [trained_pilot(task, policy) for policy in trained]
    flown = [fly(task, pilot, flown_by, worlds, seed, keep, watch) for pilot in pilots]
    seconds = time.perf_counter() - began
    figures = {name: np.concatenate([f.figures[name] for f in flown]) for name in flown[0].figures}
    name = "-".join([plant, *(f"{key}={value}" for key, value in changes.items())])
    summary: dict[str, Any] = {
        "plant": name,
        "episodes": worlds * len(flown),
        "agents": task.spec.agents,
        "success_rate": float(np.mean(figures["success"])),
        "success_rate_95": intervals.rate(figures["success"], task.spec.agents),
        "score_mean": float(np.mean(figures["score"])),
        "score_mean_95": intervals.mean(figures["score"], task.spec.agents),
        "score_std": float(np.std(figures["score"])),
        **task.summary(figures),
        "lost": int(np.sum(figures["lost"])),
        **flown_by.figures(),
        "checkpoint": step,
        "policy": which if which in ("average", "last", "best") else "step",
        "seed": seed,
        "seconds": round(seconds, 2),
    }
    if len(flown) > 1:
        summary["seeds"] = [
            {"success_rate": float(np.mean(f.figures["success"])), **task.summary(f.figures)} for f in flown
        ]
    beside = {
        name: fly(task, scripted_pilot(script), flown_by, worlds, seed, 1, watch).figures
        for name, script in task.baselines().items()
        if scripts and not flown_by.width  # one that flies a few at a time has no hours for scripts
    }
    if beside:
        # The same worlds, flown by scripts.
        summary["baselines"] = {
            name: {
                "success_rate": float(np.mean(f["success"])),
                "success_rate_95": intervals.rate(f["success"], task.spec.agents),
                "score_mean": float(np.mean(f["score"])),
                **task.summary(f),
            }
            for name, f in beside.items()
        }
    summary = json.loads(json.dumps(summary), parse_constant=lambda _: None)
    folder = run.episodes(name)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, episode in enumerate(flown[0].episodes):
            episode.save(folder / f"{number:04d}.npz")
        np.savez_compressed(folder / "figures.npz", **figures)  # pyright: ignore[reportArgumentType]
        write_text(folder / "summary.json", json.dumps({k: finite(v) for k, v in summary.items()}, indent=1) + "\n")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from error
    return summary


def other_task(task: Any, changes: Mapping[str, Any]) -> Any:
    """The task with other settings, as long as the same policy can act in it."""
    if not changes:
        return task
    other = replace(task, **checked(type(task), dict(changes), "task"))
    if replace(other.spec, agents=1) != replace(task.spec, agents=1):
        raise ValueError("with those settings agents see or do something else than the policy was trained for")
    return other


def figures_of(run: Run, plant: str) -> dict[str, np.ndarray]:
    """One number an episode, of every figure of the last evaluation on a plant."""
    path = run.episodes(plant) / "figures.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except DAMAGE as error:
        raise RunError(f"{path} is damaged or missing; evaluate again") from error
