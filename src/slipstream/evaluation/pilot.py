"""Who acts in an evaluation: a trained policy or a script."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array

from ..core.task import AnyState, AnyTask, CameraTask
from ..learn.rollout import with_image_age
from ..policy.memory import Memory
from ..policy.policy import ImagePolicy, Policy
from ..runs.run import Run


def no_expectation(policy: Policy, states: AnyState, actions: Array) -> dict[str, Any]:
    return {}


def no_memory(policy: Policy, states: AnyState) -> None:
    return None


@dataclass(frozen=True)
class Pilot:
    """Who acts for all worlds of an evaluation.

    The policy is an argument, so one compiled program serves all policies of a shape.
    """

    encode: Callable[..., Any]
    """image features by policy, states, and images if a plant has rendered them; None without a camera"""
    act: Callable[[Any, Any, Any, Any, Any], Any]
    """actions and memory by policy, states, memory, image features, and the age of the image"""
    start: Callable[[Any, Any], Any] = no_memory
    """memory at the start, by policy and states"""
    expect: Callable[[Any, Any, Any], dict[str, Any]] = no_expectation
    """what the policy expects of its actions, for the record"""
    policy: Policy | None = None


@runtime_checkable
class DistributionalPolicy(Protocol):
    """A policy that knows the distribution of returns of an action."""

    def return_quantiles(self, observation: Array, action: Array) -> Any:
        """The lowest first; None if it knows only the mean."""
        ...


def trained_pilot(task: AnyTask, policy: Policy) -> Pilot:
    """A policy, without exploring."""
    spec = task.spec

    def encode(policy: Policy, states: AnyState, images: Array | None = None) -> Any:
        if not isinstance(task, CameraTask) or not isinstance(policy, ImagePolicy) or not spec.image_shape:
            return None
        return policy.encode(jax.vmap(task.image)(states) if images is None else images)

    def act(policy: Policy, states: AnyState, memory: Memory, features: Array | None, age: int | Array) -> Any:
        observation = jax.vmap(task.observe)(states)
        if features is not None:
            observation = with_image_age(observation, states, age, spec.image_interval)
        return policy.act(observation, memory, features)

    def expect(policy: Policy, states: AnyState, actions: Array) -> dict[str, Any]:
        if not isinstance(policy, DistributionalPolicy):
            return {}
        returns = policy.return_quantiles(jax.vmap(task.observe)(states), actions)
        return {} if returns is None else {"returns": returns}

    def start(policy: Policy, states: AnyState) -> Memory:
        return policy.start(*states.ended.shape)

    return Pilot(encode, act, start, expect, policy)


def scripted_pilot(script: Callable[[Any], Any]) -> Pilot:
    """A script of the task, a function of one world."""
    return Pilot(
        encode=lambda policy, states, images: None,
        act=lambda policy, states, memory, features, age: (jax.vmap(script)(states), None),
    )


def load_policies(run: Run, which: str = "average") -> tuple[int, list[Any]]:
    """The trained policies of a run, one for each seed, and the step they are from."""
    experiment = run.experiment
    shape = jax.eval_shape(lambda: experiment.learner.policy(experiment.task.spec))
    if experiment.seeds > 1:
        shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((experiment.seeds, *leaf.shape), leaf.dtype), shape)
    step, stored = run.load_policy(shape, which)
    if experiment.seeds == 1:
        return step, [jax.device_put(stored)]
    return step, [jax.device_put(jax.tree.map(lambda x, i=i: x[i], stored)) for i in range(experiment.seeds)]
