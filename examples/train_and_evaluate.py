"""Train and evaluate in ten lines; `slipstream video` and `slipstream report` take it from there."""

import sys
from dataclasses import replace
from pathlib import Path

from slipstream.core import device

device.configure()

from slipstream.evaluate.episode import evaluate  # noqa: E402
from slipstream.experiment.experiment import PRESETS  # noqa: E402
from slipstream.runs.run import Run  # noqa: E402
from slipstream.runs.train import train  # noqa: E402


def main(folder: Path, steps: int) -> None:
    run = Run.create(folder, replace(PRESETS["racing"], steps=steps))
    train(run, say=print, watch=lambda look: print(f"{look.step:>12,}  reward {look.metrics['reward']:+.3f}"))
    print(evaluate(run, plant="fast", episodes=64))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40_000_000)
