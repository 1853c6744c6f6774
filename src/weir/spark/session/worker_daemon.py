"""Spark's Python daemon, with what Python workers import already imported.

Spark forks each Python worker from a daemon that has imported next to nothing, so each worker
imports pyspark, NumPy and pandas by itself (pyarrow imports pandas at the first value that it
converts): two seconds of a core for each, at the start and again after each failure, since a failed
task takes its worker with it. Here the daemon has imported them. Its workers start at once, and
share the memory.

Spark's daemon imports so little because a process with several threads cannot be forked safely:
what another thread has locked stays locked in the child. So Arrow's allocator is set to start no
thread of its own, Spark has set NumPy's linear algebra not to (``OMP_NUM_THREADS``), and if there
is a second thread nevertheless, Spark's own daemon takes over in the same process. So it does, and
at once, where threads cannot be counted: on anything but Linux.

NumPy seeds its global generator when it is imported. Each worker seeds it again, or all of them
would draw the same numbers.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

MODULE = "weir.spark.session.worker_daemon"

_IMPORTED = ("pyspark.worker", "pyarrow", "pandas", "weir.spark.operators.worker")
_SPARKS_OWN = "pyspark.daemon"
#: Arrow's copy of jemalloc reads its options here.
_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
_THREADS = Path("/proc/self/task")


def main() -> None:
    """Import, then do what ``python -m pyspark.daemon`` does with the same arguments."""
    if not _THREADS.is_dir():
        _become_sparks_own()
    # As Spark's does, later: Ctrl-C in the terminal is not for it.
    os.setpgid(0, 0)
    allocator_is_ours = _ALLOCATOR not in os.environ
    os.environ.setdefault(_ALLOCATOR, "background_thread:false")
    _import()
    if len(list(_THREADS.iterdir())) > 1:
        if allocator_is_ours:
            del os.environ[_ALLOCATOR]
        _become_sparks_own()
    from pyspark.daemon import manager

    # Else the first collection in each worker would copy all that was imported.
    gc.collect()
    gc.freeze()
    manager()


def _become_sparks_own() -> NoReturn:
    """Replace this program, whose pipes to the JVM stay open."""
    os.execv(sys.executable, [sys.executable, "-m", _SPARKS_OWN, *sys.argv[1:]])


def _import() -> None:
    """Import what can be imported; what cannot, the worker that needs it reports."""
    # Spark reads the daemon's port from its standard output, so nobody else may write there.
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        for name in _IMPORTED:
            with suppress(Exception):
                importlib.import_module(name)
        if "numpy.random" in sys.modules:
            os.register_at_fork(after_in_child=sys.modules["numpy.random"].seed)
        sys.stdout.flush()
    finally:
        os.dup2(output, 1)
        os.close(output)


if __name__ == "__main__":
    main()
