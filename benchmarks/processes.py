"""A run in a process of its own: a JVM that served another run would be warmer, or fuller, than a new one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

Spec = TypeVar("Spec", bound=msgspec.Struct)
Result = TypeVar("Result")

_LOG_LINES_SHOWN = 80
#: A run that takes longer hangs.
_RUN_TIMEOUT_S = 3_600


class RunFailedError(Exception):
    """A run ended without a result."""


def run_as_child(paths: Sequence[Path], spec_type: type[Spec], run: Callable[[Spec], msgspec.Struct]) -> None:
    """The other side of ``run_in_process``: run what the first file says and write what was measured to the second."""
    spec_path, result_path = paths
    spec = msgspec.json.decode(spec_path.read_bytes(), type=spec_type)
    result_path.write_bytes(msgspec.json.encode(run(spec)))


def run_in_process(
    module: Sequence[str], spec: msgspec.Struct, directory: Path, result_type: type[Result]
) -> Result:
    """Run ``python -m MODULE... SPEC.json RESULT.json`` and return what it wrote to the second file.

    ``directory`` is made; spec, result and log of the run lie there. Raises ``RunFailedError`` with the end of the log
    if there is no result.
    """
    directory.mkdir(parents=True)
    spec_path, result_path, log_path = (directory / name for name in ("spec.json", "result.json", "log"))
    spec_path.write_bytes(msgspec.json.encode(spec))
    with log_path.open("w") as log:
        code = subprocess.run(
            [sys.executable, "-m", *module, str(spec_path), str(result_path)],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_RUN_TIMEOUT_S,
        ).returncode
    if code != 0 or not result_path.exists():
        lines = "\n".join(log_path.read_text().splitlines()[-_LOG_LINES_SHOWN:])
        raise RunFailedError(f"The run {directory.name} ended with exit code {code}:\n{lines}")
    return msgspec.json.decode(result_path.read_bytes(), type=result_type)
