"""The Weir commands that benchmarks run in processes of their own, as a user does."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.processes import RunFailedError, log_of, started
from benchmarks.query import COMMON_SETTINGS, MASTER

#: The scripts and pipelines that the benchmarks run.
JOBS = Path(__file__).parent / "jobs"

_WARMUP_TIMEOUT_S = 600.0


def weir_command(*arguments: str) -> list[str]:
    """The command line of ``weir`` with this interpreter."""
    return [sys.executable, "-m", "weir", *arguments]


def weir_run(pipeline: Path, *, interval: str, archive: bool = True) -> list[str]:
    """The command line of ``weir run`` with the settings that both sides share.

    A job that fails at its start is restarted by its own strategy, as for a user, and the clock
    keeps running. ``archive``: whether Spark's JVM uses the class archive.
    """
    settings = {
        **COMMON_SETTINGS,
        "execution.checkpointing.interval": interval,
        "weir.class-archive": str(archive).lower(),
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return weir_command("run", str(pipeline), "--master", MASTER, "--rest-port", "0", *words)


def make_class_archive(directory: Path) -> None:
    """Run ``weir warmup``, which makes the class archive unless it exists."""
    with started(weir_command("warmup"), directory) as process:
        process.wait(_WARMUP_TIMEOUT_S)
        if process.returncode != 0:
            raise RunFailedError(
                f"weir warmup ended with exit code {process.returncode}:\n{log_of(directory)}"
            )
