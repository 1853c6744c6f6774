"""Runs in processes of their own, since a JVM that served another run would be warmer, or fuller.

``run_in_process`` waits for a result. ``started`` starts a command as a user does, and kills it
with all processes that it started when the block is left. Such a process leads a session: Ctrl-C in
the terminal reaches the benchmark alone, and the JVM and the Python workers of a killed driver can
still be found by their session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import msgspec
import psutil

Spec = TypeVar("Spec", bound=msgspec.Struct)
Result = TypeVar("Result")

_LOG_LINES_SHOWN = 80
#: A run that takes longer counts as hung.
_RUN_TIMEOUT_S = 3_600
#: How long killed processes may take to disappear.
_KILL_TIMEOUT_S = 30.0
_LOOK_S = 0.02
#: File name of a process's output, in its directory.
LOG = "log"


class RunFailedError(Exception):
    """A run ended without a result."""


def run_as_child(
    paths: Sequence[Path], spec_type: type[Spec], run: Callable[[Spec], msgspec.Struct]
) -> None:
    """The child's side of ``run_in_process``: run the first file's spec, write the second file."""
    spec_path, result_path = paths
    spec = msgspec.json.decode(spec_path.read_bytes(), type=spec_type)
    result_path.write_bytes(msgspec.json.encode(run(spec)))


def run_in_process(
    module: Sequence[str], spec: msgspec.Struct, directory: Path, result_type: type[Result]
) -> Result:
    """Run ``python -m MODULE... SPEC.json RESULT.json`` and return the content of ``RESULT.json``.

    ``directory`` is created; it holds spec, result and log of the run. Raises ``RunFailedError``
    with the end of the log if there is no result.
    """
    directory.mkdir(parents=True)
    spec_path, result_path = directory / "spec.json", directory / "result.json"
    spec_path.write_bytes(msgspec.json.encode(spec))
    with (directory / LOG).open("w") as log:
        code = subprocess.run(
            [sys.executable, "-m", *module, str(spec_path), str(result_path)],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_RUN_TIMEOUT_S,
        ).returncode
    if code != 0 or not result_path.exists():
        raise RunFailedError(
            f"The run {directory.name} ended with exit code {code}:\n{log_of(directory)}"
        )
    return msgspec.json.decode(result_path.read_bytes(), type=result_type)


@contextmanager
def started(
    command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in the directory, and kill it with its whole session at the end.

    Its output goes to the file ``log`` in the directory.
    """
    with (directory / LOG).open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_session(process)


def check_alive(process: subprocess.Popen[bytes], directory: Path, deadline_s: float) -> None:
    """Check that the process runs and is in time.

    Raises ``RunFailedError`` if it has ended, or if ``time.monotonic()`` has passed the deadline.
    """
    if process.poll() is None and time.monotonic() < deadline_s:
        return
    what = (
        "timed out" if process.returncode is None else f"ended with exit code {process.returncode}"
    )
    raise RunFailedError(f"The run in {directory.name} {what}:\n{log_of(directory)}")


def log_of(directory: Path) -> str:
    """The end of the output of the process that runs or ran in the directory."""
    return "\n".join((directory / LOG).read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGKILL the leader and then its session until no process is left, if any is."""
    leader.kill()
    leader.wait()
    deadline_s = time.monotonic() + _KILL_TIMEOUT_S
    while members := session_members(leader.pid):
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        if time.monotonic() > deadline_s:
            raise RunFailedError(f"Processes survived SIGKILL: {members}")
        time.sleep(_LOOK_S)


def session_members(leader: int) -> list[psutil.Process]:
    """The live processes of the session that the process ``leader`` leads or led."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that it ends its child processes as well."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
