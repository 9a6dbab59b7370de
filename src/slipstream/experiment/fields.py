"""Dataclasses from JSON and back: every field is checked, and an error names it, its value and what was expected."""

import dataclasses
import sys
import types
import typing
from typing import Any, TypeVar

from ..core.errors import suggest

T = TypeVar("T")


def to_dict(value: object) -> Any:
    """Plain data for JSON: settings only, nested ones as objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    return list(map(to_dict, value)) if isinstance(value, tuple) else value


def from_dict(kind: type[T], values: object, what: str) -> T:
    """The dataclass with those fields; anything that is not one of its fields, or not of its type, is refused."""
    return kind(**checked_fields(kind, values, what))


def checked_fields(kind: type, values: object, what: str, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    """`values`, if every one of them is a field of `kind` and of its type."""
    if not isinstance(values, dict):
        raise ValueError(f"{what} is an object with settings, not {values!r}")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind) if f.init} - leave_out
    for name in values:
        if name not in names:
            raise ValueError(f"{what} has no setting '{name}'{suggest(name, names)}")
    return {name: checked_value(hints[name], value, f"{what}.{name}") for name, value in values.items()}


def checked_value(kind: object, value: object, where: str) -> Any:
    """`value` as a field of that type takes it."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return from_dict(kind, value, where)
    value = as_tuples(value)
    if not matches_type(kind, value):
        expected = getattr(kind, "__name__", "") if typing.get_origin(kind) is None else str(kind)
        raise ValueError(f"{where} takes {expected.removeprefix('typing.')}, not {value!r}")
    return float(value) if kind is float and isinstance(value, int | float) else value


def as_tuples(value: object) -> object:
    """JSON's lists as tuples, nested ones too."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def matches_type(kind: object, value: object) -> bool:
    """Whether a value from outside can be a field of that type: of the right size, known, and if a number, finite."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(matches_type(part, value) for part in parts)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple):
            return False
        parts = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return len(parts) == len(value) and all(map(matches_type, parts, value))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return type(value) is kind if kind in (int, str, bool) else True
