"""A track from a JSON file that a person has written: data, checked in words."""

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

from ...core.errors import suggest

GatePose = tuple[float, float, float, float]
"""x, y and z of the middle of a gate's lower edge, m, and its heading, rad."""
KEYS = ("x", "y", "height", "heading_deg")
GATES = (3, 32)
"""Fewest and most gates of a track."""
LARGEST, HIGHEST = 200.0, 20.0
"""Largest coordinate and height, m."""
SPACING = (2.5, 20.0)
"""Smallest and largest distance from one gate to the next, m."""
APART = 2.0
"""Smallest distance between any two gates, so that their frames do not touch, m."""


def read_track(path: Path) -> tuple[GatePose, ...]:
    """The gates of a file such as {"gates": [{"x": 0, "y": 0, "height": 1, "heading_deg": 90}, ...]}.

    `height` is that of the lower edge above the ground, by default 0. A gate without `heading_deg` faces from the gate
    before it to the gate after it.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"the track {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the track {path} is no JSON: {error}") from error
    rows = data.get("gates") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f'the track {path} has no list of gates: write {{"gates": [{{"x": 0, "y": 0}}, ...]}}')
    if not GATES[0] <= len(rows) <= GATES[1]:
        raise ValueError(f"the track {path} has {len(rows)} gates; a track has {GATES[0]} to {GATES[1]}")
    places = [_place(row, f"gate {number} of {path}") for number, row in enumerate(rows, start=1)]
    poses = []
    for k, (x, y, height, heading) in enumerate(places):
        if heading is None:
            before, after = places[k - 1], places[(k + 1) % len(places)]
            heading = math.atan2(after[1] - before[1], after[0] - before[0])
        poses.append((x, y, height, heading))
    check_spacing(poses, str(path))
    return tuple(poses)


def _place(row: Any, where: str) -> tuple[float, float, float, float | None]:
    """Coordinates and heading of a gate, if it says one."""
    if not isinstance(row, dict):
        raise ValueError(f"{where} is an object with {', '.join(KEYS)}, not {row!r}")
    for key in row:
        if key not in KEYS:
            raise ValueError(f"{where} has no '{key}'{suggest(key, KEYS)}")
    for key in ("x", "y"):
        if key not in row:
            raise ValueError(f"{where} has no {key}")
    for key, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{where} has {key} {value!r}, which is no number")
    x, y, height = float(row["x"]), float(row["y"]), float(row.get("height", 0.0))
    if max(abs(x), abs(y)) > LARGEST:
        raise ValueError(f"{where} is at ({x:g}, {y:g}); a track reaches {LARGEST:g} m from the origin")
    if not 0.0 <= height <= HIGHEST:
        raise ValueError(f"{where} has height {height:g}; the lower edge is 0 to {HIGHEST:g} m above the ground")
    heading = row.get("heading_deg")
    return x, y, height, None if heading is None else math.radians(heading)


def check_spacing(poses: list[GatePose], where: str) -> None:
    """Refuse gates that touch, or that are too near to or too far from the next one."""
    for k, here in enumerate(poses):
        number = (k + 1) % len(poses) + 1
        gap = math.dist(here[:3], poses[number - 1][:3])
        if not SPACING[0] <= gap <= SPACING[1]:
            allowed = f"{SPACING[0]:g} to {SPACING[1]:g} m"
            raise ValueError(f"gate {number} of {where} is {gap:.2f} m from gate {k + 1}; {allowed} can be flown")
    for (a, here), (b, there) in combinations(enumerate(poses, start=1), 2):
        gap = math.dist(here[:3], there[:3])
        if gap < APART:
            raise ValueError(f"gates {a} and {b} of {where} are {gap:.2f} m apart; frames need {APART:g} m")
