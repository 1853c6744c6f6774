"""``ServerProcess``: a server that a test starts, kills and stops, and what it has logged."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.kit.waiting import wait_until

from weir.errors import StorageError


class ServerProcess:
    """One process at a time, whose output goes into ``log`` of a directory."""

    def __init__(self, name: str, directory: Path, *, patience_s: float, stop_s: float) -> None:
        """``name``: for messages. It may take so long to start, and to stop."""
        self._name = name
        self._directory = directory
        self._patience_s = patience_s
        self._stop_s = stop_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None, f"{self._name} does not run"
        return self._process

    def launch(self, command: Sequence[str], serves: Callable[[], bool]) -> None:
        """Start the process; wait until it serves. Raises ``StorageError`` if it ends before."""
        with (self._directory / "log").open("ab") as log:
            self._process = process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

        def does_serve() -> bool:
            if process.poll() is not None:
                raise StorageError(f"{self._name} does not start: {self.log}")
            return serves()

        wait_until(does_serve, f"{self._name} serves", within_s=self._patience_s)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stop it as an administrator does (SIGTERM); kill it if it does not end."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self._stop_s)
            self._process = None
        self.kill()

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self._directory / "log").read_text(errors="replace")
