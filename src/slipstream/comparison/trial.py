"""One training by one library, in a process of its own: `python -m slipstream.comparison.trial LIBRARY WORK OUT`."""

import importlib
import json
import sys
import time
from pathlib import Path

from .work import LIBRARIES, Work


def main(library: str, file: str, out: str) -> None:
    began = time.time()
    if library not in LIBRARIES:
        raise ValueError(f"there is no trainer of '{library}'")
    work = Work.from_json(json.loads(Path(file).read_text()))
    from ..adapters.tasks import configure, find_task
    from .meter import Enough, Meter

    configure(find_task(work.preset))
    trainer = importlib.import_module(f".trainers.{library}", __package__)
    try:
        trainer.train(work, Meter(work, Path(out), began))
    except Enough:
        return
    raise RuntimeError(f"{library} has ended its training before it was asked to")


if __name__ == "__main__":
    main(*sys.argv[1:])
