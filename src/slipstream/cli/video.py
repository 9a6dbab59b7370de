"""slipstream video: film a run."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..pipeline.stages import film
from .options import emit, parse


@dataclass(frozen=True)
class VideoOptions:
    """Film a run. It is evaluated first if that was not done."""

    run: tyro.conf.Positional[Path]
    """folder of the run"""
    plant: str = "fast"
    """the plant whose episodes are filmed"""
    episodes: int = 8
    """episodes shown at once"""
    seconds: float = 20.0
    """length of the film"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run(words: list[str]) -> int:
    options = parse(VideoOptions, words, "video")
    path = film(options.run, options.plant, episodes=options.episodes, seconds=options.seconds)
    emit({"video": str(path)}, options.json, lambda: str(path))
    return 0
