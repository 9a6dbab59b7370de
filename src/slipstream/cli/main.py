"""Which command a person typed, and how errors are told: one line, and the exit code 1 or 2."""

import gc
import importlib
import os
import sys
from collections.abc import Callable

from .. import __version__
from ..core.errors import suggest
from .options import say, take_option

COMMANDS = {
    "list": "tasks, algorithms, presets, plants, and what this machine can run",
    "train": "train a preset or a task, with a live progress bar",
    "evaluate": "score the policy of a run on a plant",
    "video": "film a run",
    "report": "write one self-contained HTML page about a run",
    "pipeline": "train, evaluate, video and report in one go",
    "fit": "fit the fast model to a plant or to a flight log",
    "parity": "run the same policy on several plants and compare them",
    "compare": "train several agents on the same worlds: one table, their curves, the hardest worlds filmed",
    "bench": "measure throughput here: sim, render, policy, train or memory",
    "doctor": "what is installed and what is missing",
}
ARGUMENTS = {
    "train": "PRESET|FILE.py:Task", "evaluate": "RUN", "video": "RUN", "report": "RUN", "parity": "RUN",
    "pipeline": "PRESET|FILE.py:Task", "compare": "NAME|FILE.py:Task", "bench": "[WHAT]",
}  # fmt: skip


COLLECT_EVERY = 100_000
"""Objects between two garbage collections. By Python's 700 they take a fifth of the time that importing and tracing
take: those make objects by the hundred thousand, and hardly any garbage."""


def usage() -> str:
    rows = [f"  {f'{name} {ARGUMENTS.get(name, str())}':30} {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: slipstream COMMAND [options]",
            "",
            *rows,
            "",
            "slipstream COMMAND --help lists the options. --task-class FILE.py:Task names the task of a run that",
            "was trained from a file: Slipstream never runs a file that only a run names.",
            "Exit codes: 0 done, 1 the work failed, 2 the request was wrong.",
        ]
    )


def main(words: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"slipstream {__version__}")
        return 0
    if words[0] not in COMMANDS:
        say(f"slipstream: there is no command '{words[0]}'{suggest(words[0], COMMANDS)}")
        return 2
    return guarded(words[0], words[1:])


def guarded(command: str, words: list[str]) -> int:
    """Errors a person can put right come as one line, not as a traceback."""
    try:
        return run_command(command, words)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 2
    except KeyboardInterrupt:
        say("slipstream: stopped")
        return 1
    except Exception as error:
        from ..pipeline.errors import explain

        explained = None if os.environ.get("SLIPSTREAM_TRACEBACK") else explain(error)
        if explained is None:
            raise
        say(f"slipstream: {explained[0]}")
        return explained[1]


def run_command(command: str, words: list[str]) -> int:
    task_class, words = take_option(words, "--task-class")
    if task_class is not None:
        from ..experiment.registry import find_task

        find_task(task_class)
    run: Callable[[list[str]], int] = importlib.import_module(f"{__package__}.{command}").run
    return run(words)


def entry() -> None:
    """What the installed command calls."""
    gc.set_threshold(COLLECT_EVERY)
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output (`slipstream list | head`) has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)
