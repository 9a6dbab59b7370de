"""What an error says to help: the nearest valid choice."""

import difflib
from collections.abc import Collection, Iterable


def suggest(name: str, choices: Iterable[str]) -> str:
    """The end of an error: the nearest valid choice, and all of them."""
    choices = sorted(choices)
    if not choices:
        return ""
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
    return (f"; did you mean '{near[0]}'?" if near else "") + f" (choose from {', '.join(choices)})"


def require_choice(kind: str, name: str, choices: Collection[str]) -> None:
    """Refuse a name that is none of the choices."""
    if name not in choices:
        raise ValueError(f"there is no {kind} '{name}'{suggest(name, choices)}")
