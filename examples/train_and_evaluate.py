"""Train, evaluate, film and report in Python.

python examples/train_and_evaluate.py runs/mine 40000000
"""

import sys

import slipstream as sl


def main(folder: str, steps: int) -> None:
    run = sl.train("racing", folder, steps=steps)
    summary = sl.evaluate(run, worlds=64)
    print(f"{100 * summary['success_rate']:.0f} % finish a lap")
    print(sl.film(run, seconds=5.0))
    print(sl.report(run))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40_000_000)
