"""PySpark prints no error that Weir reports itself (weir/spark/quiet.py)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from pyspark.logger import PySparkLogger

from weir.spark.quiet import without_pyspark_log

NAMES = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class Kept(logging.Handler):
    """Keeps the messages that would be printed."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message."""
        self.messages.append(record.getMessage())


@pytest.fixture
def printed() -> Iterator[list[str]]:
    """What both loggers let through."""
    handler, loggers = Kept(), [PySparkLogger.getLogger(name) for name in NAMES]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler.messages
    for logger in loggers:
        logger.removeHandler(handler)


def raise_in_spark(what: str) -> None:
    """What PySpark does before it raises an error that points into a query."""
    for name in NAMES:
        PySparkLogger.getLogger(name).error(what)


@pytest.mark.parametrize("raises", [False, True])
def test_only_what_this_thread_raises_meanwhile_is_not_printed(
    printed: list[str], raises: bool
) -> None:
    """The user's own threads print theirs, and so does this one afterwards."""
    try:
        with without_pyspark_log():
            raise_in_spark("a batch")
            other = threading.Thread(target=raise_in_spark, args=("another thread",))
            other.start()
            other.join()
            if raises:
                raise RuntimeError
    except RuntimeError:
        pass
    raise_in_spark("later")
    assert printed == ["another thread"] * 2 + ["later"] * 2
