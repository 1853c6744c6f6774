"""``without_pyspark_log``: keeps PySpark from printing what it is about to raise.

PySpark prints errors that point into a query to standard error, as JSON with the whole Java stack,
before it raises them. Who catches one reports it in a sentence.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger


class _Thread(threading.local):
    """What holds in the current thread."""

    is_quiet = False


_thread = _Thread()


def _is_printed(_: logging.LogRecord) -> bool:
    return not _thread.is_quiet


# Once, not with each batch: ``getLogger`` sets the process's class of loggers for a moment, and two
# threads at it could leave PySpark's to all later ones.
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).addFilter(_is_printed)


@contextmanager
def without_pyspark_log() -> Iterator[None]:
    """PySpark does not print what Spark raises meanwhile in this thread."""
    before, _thread.is_quiet = _thread.is_quiet, True
    try:
        yield
    finally:
        _thread.is_quiet = before
