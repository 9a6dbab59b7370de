"""Software in the loop: a flight controller as a child process, in a temporary folder of its own."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from .plant import PlantError

LAUNCHER = (
    "import ctypes, os, sys; c = ctypes.CDLL(None); c.prctl(1, 9); c.prctl(29, 1); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Executes the program given. It ends with this process (PR_SET_PDEATHSIG) and has exact timers (PR_SET_TIMERSLACK)."""
MOTORS = [1, 3, 0, 2]
"""Index in `Rotors` of each motor of PX4 and Betaflight: front right, rear left, front left, rear right."""


class Process:
    """A program that runs in a temporary folder and writes its output to a file there."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str] | None = None,
        files: dict[str, bytes] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slipstream-"))
        self.log = self.folder / "output.log"
        for name, data in (files or {}).items():
            (self.folder / name).write_bytes(data)
        try:
            with open(self.log, "ab") as log:
                self.child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", LAUNCHER, *command] if sys.platform == "linux" else command,
                    cwd=self.folder,
                    env=os.environ | (environment or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self.remove_folder()
            raise PlantError(f"{command[0]} cannot be started: {error.strerror}") from error

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def last_line(self) -> str:
        """The last line of its output."""
        try:
            lines = self.log.read_text(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def stop(self, timeout: float = 1.0) -> None:
        """End the process and everything it started: SIGTERM first, then SIGKILL; then remove its folder."""
        if self.alive:
            for kind in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.child.pid, kind)
                try:
                    self.child.wait(timeout)
                    break
                except subprocess.TimeoutExpired:
                    continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.remove_folder()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
