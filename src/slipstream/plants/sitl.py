"""Somebody else's flight controller as a process of ours: started in a folder of its own, ended by its own pid."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from .plant import PlantError

TIED = (
    "import ctypes, os, sys; c = ctypes.CDLL(None); c.prctl(1, 9); c.prctl(29, 1); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Becomes the program named; it dies with us (PR_SET_PDEATHSIG) and its timers are exact (PR_SET_TIMERSLACK)."""


MOTORS = [1, 3, 0, 2]
"""Of our rotors, as PX4 and Betaflight number theirs: front right, rear left, front left, rear right."""


class Process:
    """A program in a fresh folder, its words in a log there."""

    def __init__(
        self,
        words: list[str],
        environment: dict[str, str] | None = None,
        prepared: dict[str, bytes] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slipstream-"))
        self.log = self.folder / "output.log"
        for name, data in (prepared or {}).items():
            (self.folder / name).write_bytes(data)
        try:
            with open(self.log, "ab") as log:
                self.child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", TIED, *words] if sys.platform == "linux" else words,
                    cwd=self.folder,
                    env=os.environ | (environment or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self.clean()
            raise PlantError(f"{words[0]} cannot be started: {error.strerror}") from error

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def last_words(self) -> str:
        """The last line that it printed."""
        try:
            lines = self.log.read_text(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def end(self, patience: float = 1.0) -> None:
        """Ask it to go, then make it; nothing of it stays, whatever it started."""
        if self.alive:
            for how in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.child.pid, how)
                try:
                    self.child.wait(patience)
                    break
                except subprocess.TimeoutExpired:
                    continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.clean()

    def clean(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
