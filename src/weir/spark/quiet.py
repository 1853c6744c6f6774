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

_PRINTING_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def without_pyspark_log() -> Iterator[None]:
    """PySpark does not print what Spark raises meanwhile in this thread."""
    # Of PySpark's own class: made as others, it could not use them any more.
    loggers = [PySparkLogger.getLogger(name) for name in _PRINTING_LOGGERS]
    thread = threading.get_ident()

    def is_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    for logger in loggers:
        logger.addFilter(is_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_others)
