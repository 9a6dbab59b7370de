"""slipstream parity: the same policy on several plants, compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from ..evaluation.parity import describe
from ..pipeline.plants import parity
from ..plants.settings import PlantSettings
from .options import emit, parse


@dataclass(frozen=True)
class ParityOptions:
    """Run a policy on several plants, same worlds and starts, and compare them; with a film of each pair."""

    run: tyro.conf.Positional[Path]
    """folder of the run"""
    plants: str = "fast,mujoco"
    """plants to compare; the first is the base"""
    worlds: int | None = None
    """worlds to run on each plant; by default as many as the slowest runs in minutes"""
    seed: int | None = None
    """seed of the worlds; by default one that training never used"""
    settings: tyro.conf.OmitArgPrefixes[PlantSettings] = PlantSettings()
    """the plant"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run(words: list[str]) -> int:
    options = parse(ParityOptions, words, "parity")
    plants = [name.strip() for name in options.plants.split(",") if name.strip()]
    result = parity(options.run, plants, worlds=options.worlds, seed=options.seed, settings=options.settings)
    emit(result, options.json, lambda: format_parity(result, plants[0]))
    return 0


def format_parity(result: dict[str, Any], base: str) -> str:
    lines = []
    for other, found in result["plants"].items():
        for name, verdict in found["verdicts"].items():
            part = found.get(f"{name}_ratio")
            lines.append(f"{other:12} {name:12} {verdict:5} {describe(part, base) if part else ''}")
    return "\n".join([*lines, *result["films"]])
