"""Settings of each library, from a JSON file: {"sb3": {"worlds": 512, "learning_rate": 0.001}, "sbx": {...}}."""

import json
from pathlib import Path
from typing import Any

from ..core.errors import require_choice
from .work import LIBRARIES, Work

Settings = dict[str, dict[str, Any]]
TUNED = "tuned"
"""Names the file that comes with a preset."""
FOLDER = Path(__file__).parent / "tuned"


def read_settings(name: str, work: Work) -> Settings:
    """The settings of a file, or those that were found best for the preset of this work; refused if they do not fit."""
    if name == TUNED:
        known = sorted(file.stem for file in FOLDER.glob("*.json"))
        if work.preset not in known:
            raise ValueError(f"no settings were searched for {work.preset}, but for {', '.join(known)}; name a file")
        path = FOLDER / f"{work.preset}.json"
    else:
        path = Path(name)
    try:
        found = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"--settings is '{TUNED}' or a JSON file of settings by library: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise ValueError(f"{path} is no JSON object of settings by library")
    for library, settings in found.items():
        require_choice("library", library, LIBRARIES)
        work.tuned(settings)
    return found
