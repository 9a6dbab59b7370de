"""A teacher: a trained policy that a student imitates, and whether it can teach in the student's worlds."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ..core.rng import Rng
from ..core.spaces import ActionSpace, Box
from ..core.struct import struct
from ..core.task import DataTask, Task
from ..policy.actor_critic import ActorCritic
from ..policy.distributions import head_size
from ..policy.policy import Policy
from .learner import Learner
from .rollout import observe_all

CERTAIN = 100.0
"""Logit of the action of a teacher that knows no probabilities."""


@dataclass(frozen=True)
class Teacher:
    """What was trained in the run of a teacher. Its weights are data of the student's program."""

    run: str
    """folder of the run"""
    task: Task[Any]
    learner: Learner[Any]
    seeds: int = 1
    """number of policies in the run"""

    @property
    def weights(self) -> "TeacherWeights":
        """Weights of the right shapes: a training starts with those of the run in their place."""
        data = self.task.data() if isinstance(self.task, DataTask) else None
        return TeacherWeights(self.learner.policy(self.task.spec), jax.tree.map(jnp.asarray, data))

    def check(self, task: Task[Any]) -> None:
        """Refuse, in words, a teacher that cannot teach in this task.

        It can if both act in the same way at the same rate, if it can observe the states of this task, and if its
        task moves a body by the same program. What is observed and rewarded, and where worlds start, may differ.
        """
        ours, theirs = task.spec, self.task.spec
        state, other = (jax.eval_shape(lambda one=one: one.reset(Rng.from_seed(0, 0))) for one in (task, self.task))
        if state_kinds(state) != state_kinds(other):
            self._refuse(f"was trained on {self.task.description}, and this task is {task.description}")
        if theirs.agents != ours.agents:
            self._refuse(f"knows worlds of {theirs.agents} agents, and here a world has {ours.agents}")
        if theirs.action != ours.action:
            self._refuse(f"acts by {theirs.action}, and this task's actions are {ours.action}")
        if abs(theirs.control_dt - ours.control_dt) > 1e-9:
            rates = (f"{1.0 / spec.control_dt:g}" for spec in (theirs, ours))
            self._refuse("acts {} times a second, and this task {} times".format(*rates))
        if theirs.image_shape:
            self._refuse("sees by a camera itself, and a teacher observes states: name a run of a task without one")
        policy = jax.eval_shape(lambda: self.learner.policy(theirs))
        if policy.start() is not None:
            self._refuse("has a memory of its own, and a teacher acts by what it observes: train one without")
        if task != self.task:
            self._check_states(task, state)

    def _check_states(self, task: Task[Any], state: PyTree) -> None:
        if not observes(self.task, state):
            which = differences(task, self.task, lambda one: observes(one, state))
            self._refuse(f"cannot observe the states of this task: {which}")
        ours = motion(task, state)
        if motion(self.task, state) != ours:
            self._refuse(f"moves otherwise: {differences(task, self.task, lambda one: motion(one, state) == ours)}")

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"the teacher of {self.run} does not fit: it {reason}")


@struct
class TeacherWeights:
    """The teacher's part of a training state."""

    policy: Any
    data: PyTree  # numbers of the teacher's task that are arguments of the program, or None


def state_kinds(state: Any) -> tuple[type, ...]:
    """What a world is made of."""
    return type(state.world), type(state.body), type(state.progress)


def observes(task: Task[Any], state: PyTree) -> bool:
    """Whether a task can observe the states of another."""
    try:
        return jax.eval_shape(task.observe, state).shape[-1] == task.spec.observation
    except Exception:  # whatever happens where a task meets states of another kind
        return False


def motion(task: Task[Any], state: PyTree) -> tuple[str, list[str]] | None:
    """The program that moves the body of one world, as text: two tasks of the same dynamics have the same.

    None if the task cannot move such states.
    """

    def move(state: PyTree, action: Array) -> PyTree:
        state, command = task.command(state, action)
        return task.move(state, command)

    agents = (task.spec.agents,) if task.spec.agents > 1 else ()
    action = jax.eval_shape(lambda: task.spec.action.zeros(*agents))
    try:
        program = jax.make_jaxpr(move)(state, action)
    except Exception:  # as above
        return None
    # Functions print their address.
    return re.sub(r"0x[0-9a-f]+", "", str(program.jaxpr)), [repr(const) for const in program.consts]


def differences(task: Task[Any], other: Task[Any], fits: Callable[[Task[Any]], bool]) -> str:
    """In words, the settings of another task with which this one would not fit any more; if none alone, all of them."""
    ours, theirs = (
        {f.name: getattr(one, f.name) for f in fields(one) if f.init}  # pyright: ignore[reportArgumentType]
        for one in (task, other)
    )
    different = {name: value for name, value in theirs.items() if name in ours and ours[name] != value}

    def misfit(name: str) -> bool:
        try:
            return not fits(replace(task, **{name: different[name]}))  # pyright: ignore[reportArgumentType]
        except ValueError:
            return False

    named = [name for name in different if misfit(name)] or list(different)
    return "; ".join(text for name in named for text in setting_differences(name, ours[name], theirs[name]))


def setting_differences(name: str, ours: object, theirs: object) -> list[str]:
    """How one setting differs; of nested ones only those that do."""
    if ours == theirs:
        return []
    if not is_dataclass(ours) or type(ours) is not type(theirs):
        return [f"its {name} is {theirs}, here {ours}"]
    nested = ((f"{name}.{f.name}", getattr(ours, f.name), getattr(theirs, f.name)) for f in fields(ours))
    return [text for one in nested for text in setting_differences(*one)]


def teacher_head(policy: Policy, space: ActionSpace, observation: Float[Array, "*b d"]) -> Float[Array, "*b n"]:
    """What a student learns to return: the teacher's action in a `Box`, otherwise logits."""
    if isinstance(policy, ActorCritic) and not isinstance(space, Box):
        return jax.tree.leaves(policy.distribution(observation))[0]
    action = policy.act(observation)[0]
    if isinstance(space, Box):
        return action
    digits = action.reshape(*action.shape[: observation.ndim - 1], -1)
    parts = [CERTAIN * jax.nn.one_hot(digits[..., k], count) for k, count in enumerate(space.components)]
    return jnp.concatenate(parts, axis=-1)


def observe_with_teacher(
    teacher: tuple[Task[Any], Policy], task: Task[Any], states: PyTree, age: Int[Array, ""] | int | None
) -> Float[Array, "*b d"]:
    """What the student observes, and then what its teacher would do there."""
    their_task, policy = teacher
    head = teacher_head(policy, task.spec.action, jax.vmap(their_task.observe)(states))
    return jnp.concatenate([observe_all(task, states, age), jax.lax.stop_gradient(head)], axis=-1)


def split_head(observation: Float[Array, "*b d"], space: ActionSpace) -> tuple[Array, Array]:
    """The student's observation and the teacher's head, of what `observe_with_teacher` returned."""
    size = observation.shape[-1] - head_size(space)
    return observation[..., :size], observation[..., size:]
