"""``LogBuffer``: the newest lines of the driver's log, in memory, for the web page."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from dataclasses import dataclass

from weir.masking import masked
from weir.monitoring.log_lines import event_of

#: Lines that are kept, and characters of each.
LINES = 2_000
LENGTH = 4_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """A line of the log."""

    #: Grows by one with each line.
    number: int
    #: Milliseconds since the Unix epoch.
    time_ms: int
    #: INFO, WARNING and so on.
    level: str
    #: Whose log it is, such as ``weir.durable.job``.
    logger: str
    #: The task that logged it, or else the step; "" if none did.
    task: str
    text: str


class LogBuffer(logging.Handler):
    """Keeps what the driver logs; a context manager that listens to all loggers.

    With a handler, Python no longer writes warnings to standard error by itself. So this
    handler does for loggers without another handler (a library that does not want to be heard has a
    ``NullHandler``).
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: deque[LogLine] = deque(maxlen=LINES)
        self._numbers = itertools.count(1)

    def __enter__(self) -> LogBuffer:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        try:
            event = event_of(record)
            trace = f"\n{event.exception}" if event.exception else ""
            self.add(
                event.time_ms,
                event.level,
                event.logger,
                event.message + trace,
                task=event.place.task or event.place.step,
            )
        except Exception:
            self.handleError(record)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and _is_alone(record.name):
            last.handle(record)

    def add(self, time_ms: int, level: str, logger: str, text: str, *, task: str) -> None:
        """Keep a line, without secrets that can be recognised."""
        text = masked(text)
        self.lines.append(
            LogLine(
                number=next(self._numbers),
                time_ms=time_ms,
                level=level,
                logger=logger,
                task=task,
                text=text if len(text) <= LENGTH else f"{text[:LENGTH]}...",
            )
        )


def _is_alone(name: str) -> bool:
    """Whether no other handler gets the records of this logger."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if not all(isinstance(handler, LogBuffer) for handler in logger.handlers):
            return False
        logger = logger.parent if logger.propagate else None
    return True
