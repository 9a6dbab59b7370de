"""Functions over the objects of a world: trees whose leaves have a leading axis, one entry per object."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ...core.rng import Rng

T = TypeVar("T")
C = TypeVar("C")


def at(objects: T, index: Array | int) -> T:
    """The object with that index, or what belongs to the drone with that index."""
    return jax.tree.map(lambda x: x[index], objects)


def unstack(objects: T) -> list[T]:
    """The objects as a list."""
    return [at(objects, i) for i in range(jax.tree.leaves(objects)[0].shape[0])]


def pairwise(objects: T) -> T:
    """The objects with a trailing axis that broadcasts against drones, so that expressions of both give all pairs.

    The axis of drones is the last, so it is the one that is vectorized.
    """
    return jax.tree.map(lambda x: x[:, None], objects)


def fold(function: Callable[[C, Any], C], start: C, objects: PyTree) -> C:
    """`function(carry, object)` over all objects, unrolled: the carry stays in registers."""
    for thing in unstack(objects):
        start = function(start, thing)
    return start


def scan_fold(function: Callable[[C, Any], C], start: C, objects: PyTree) -> C:
    """The same as a loop: several times slower, for functions that would take minutes to compile unrolled."""
    return jax.lax.scan(lambda carry, thing: (function(carry, thing), None), start, objects)[0]


def draw_many(count: int, rng: Rng, draw: Callable[[Rng, Array], T]) -> T:
    """`count` objects, each drawn from its own stream."""
    return jax.vmap(lambda i: draw(rng.fork(i), i))(jnp.arange(count))
