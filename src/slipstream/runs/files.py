"""Small files that are written whole or not at all, and JSON without NaN."""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np


def json_safe(value: object) -> Any:
    """Plain data in which every number that is not finite is null: JSON has no NaN."""
    if isinstance(value, dict):
        return {name: json_safe(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: object) -> str:
    """A JSON file, indented for people."""
    return json.dumps(json_safe(value), indent=1) + "\n"


def write_text(path: Path, text: str) -> None:
    """All of the text or nothing."""
    write_whole(path, text.encode())


def write_whole(path: Path, data: bytes) -> None:
    """All of a file or nothing, even if the power fails."""
    aside = path.with_name(f".{path.name}.part")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last; where folders cannot be synced, as on Windows, this does nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
