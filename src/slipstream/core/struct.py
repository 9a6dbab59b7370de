"""A struct is a frozen dataclass that JAX can map over: the one way arrays are held."""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def static(**options: Any) -> Any:
    """A field that is part of the program and not of the data: compared when compiling, never traced."""
    return dataclasses.field(metadata={"static": True}, **options)


def per_world() -> Any:
    """A field of a training state whose leaves have a leading axis of worlds: it is split over devices."""
    return dataclasses.field(metadata={"per_world": True})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static, per_world))
def struct(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass and a pytree.

    JAX rebuilds a struct without `__init__`: under `vmap` its leaves have an axis that the annotations
    do not, and the shape checks of the tests must not see that.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    data = [f.name for f in fields if not f.metadata.get("static")]
    meta = [f.name for f in fields if f.metadata.get("static")]

    def flatten(tree: T) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves = [(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in data]
        return leaves, tuple(getattr(tree, name) for name in meta)

    def unflatten(aux: tuple[Any, ...], leaves: Iterable[Any]) -> T:
        tree = object.__new__(cls)
        for name, value in zip(data + meta, (*leaves, *aux), strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls
