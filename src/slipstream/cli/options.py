"""What commands share: reading options and printing results."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import tyro

from ..runs.files import json_safe

T = TypeVar("T")


def say(text: str) -> None:
    """A line for a person, on standard error."""
    print(text, file=sys.stderr, flush=True)


def emit(result: dict[str, Any], as_json: bool, text: Callable[[], str]) -> None:
    """The result: one JSON object on standard output, or text for a person."""
    print(json.dumps(json_safe(result)) if as_json else text())


def parse(kind: type[T], words: list[str], command: str, default: T | None = None) -> T:
    """Options as a dataclass; tyro names the nearest option itself and exits with 2."""
    extra: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(kind, args=words, prog=f"slipstream {command}", **extra)


def take_option(words: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value of an option that is read before all others, and the other words."""
    for k, word in enumerate(words):
        if word == name and k + 1 < len(words):
            return words[k + 1], words[:k] + words[k + 2 :]
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}="), words[:k] + words[k + 1 :]
    return None, words


def asks_for_help(words: list[str]) -> bool:
    return any(word in ("-h", "--help") for word in words)


@dataclass(frozen=True)
class JsonOption:
    """No other options."""

    json: bool = False
    """print one JSON object and nothing else on standard output"""
