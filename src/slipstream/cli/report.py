"""slipstream report: one self-contained HTML page about a run."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..pipeline.stages import report
from .options import emit, parse


@dataclass(frozen=True)
class ReportOptions:
    """Write one self-contained HTML page about a run. It is evaluated and filmed first if that was not done."""

    run: tyro.conf.Positional[Path]
    """folder of the run"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run(words: list[str]) -> int:
    options = parse(ReportOptions, words, "report")
    path = report(options.run)
    emit({"report": str(path)}, options.json, lambda: str(path))
    return 0
