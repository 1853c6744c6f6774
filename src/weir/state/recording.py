"""Winning a number of a log for certain: what to do when a create raised (PROTOCOL P17).

A create that raised may have happened. Until it is known, nothing may be deleted or committed, so ``Recorder`` reads
the number back, as often as it takes, and decides by what it finds:

1. our own bytes, and nothing above them: made durable once more, then WON;
2. someone else's bytes, or a higher number: FENCED;
3. nothing: the create is tried again; after the last try it is certain that nothing was recorded: FAILED;
4. our own bytes, but a sync of them has failed: ``LostWriteError``. They are there and may not last, and no later sync is
   believed. The number is taken; what it says may be recorded once more under the next one.

If the log cannot even be read back within the limit, a ``StorageError`` says so. The outcome is then unknown, and the
driver must stop as if it were fenced; the next one reads what the disk says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception, retry_if_result
from tenacity.nap import sleep as nap
from tenacity.stop import stop_after_attempt
from tenacity.wait import wait_exponential

from weir.core.types import Recorded
from weir.errors import LostWriteError, StorageError
from weir.state.filesystem import CreateResult
from weir.state.numbered_log import NumberedLog

_logger = logging.getLogger(__name__)

_CREATE_ATTEMPTS = 5
#: With waits of up to 10 s: about ten minutes.
_READ_BACK_ATTEMPTS = 64


class Recorder:
    """Takes numbers of one log and settles doubts. ``sleep`` takes seconds; tests pass one that does not wait."""

    def __init__(self, log: NumberedLog, *, sleep: Callable[[float], None] = nap) -> None:
        self._log = log
        #: What the storage said when a create last raised; for the message that goes with FAILED.
        self.failure = ""
        self._create = Retrying(
            retry=retry_if_result(lambda outcome: outcome is Recorded.FAILED),
            stop=stop_after_attempt(_CREATE_ATTEMPTS),
            wait=wait_exponential(multiplier=0.1, max=2.0),
            sleep=sleep,
            retry_error_callback=_last_outcome,
        )
        self._read_back = Retrying(
            retry=retry_if_exception(
                lambda error: isinstance(error, StorageError) and not isinstance(error, LostWriteError)
            ),
            stop=stop_after_attempt(_READ_BACK_ATTEMPTS),
            wait=wait_exponential(multiplier=0.1, max=10.0),
            sleep=sleep,
            reraise=True,
        )

    def record(self, number: int, data: bytes) -> Recorded:
        """Take ``number`` with ``data``, which no other writer can have written (it carries a token of the writer).

        Blocks while the outcome is in doubt. Raises ``StorageError`` if it stays so, and ``LostWriteError`` if the entry
        is there and may not last.
        """
        return self._create(self._record_once, number, data)

    def _record_once(self, number: int, data: bytes) -> Recorded:
        lost: LostWriteError | None = None
        try:
            if self._log.append(number, data) is CreateResult.CREATED:
                return Recorded.WON
        except StorageError as error:
            self.failure = str(error)
            lost = error if isinstance(error, LostWriteError) else None
            _logger.warning("Entry %d of %s is in doubt: %s", number, self._log.directory, error)
        try:
            return self._read_back(self._look, number, data, lost)
        except LostWriteError:
            raise
        except StorageError as error:
            raise StorageError(
                f"It is unknown whether entry {number} of {self._log.directory} was written, so this driver must"
                f" stop; run the job again once the directory can be read: {error}"
            ) from error

    def _look(self, number: int, data: bytes, lost: LostWriteError | None) -> Recorded:
        found = self._log.read(number)
        newest = self._log.newest_number()
        if newest is not None and newest > number:
            return Recorded.FENCED
        if newest is None and number > 1:
            # The volume of the log is away: the entry may be on it.
            raise StorageError(f"There is nothing in {self._log.directory}, where entry {number - 1} was.")
        if found is None:
            return Recorded.FAILED
        if found != data:
            return Recorded.FENCED
        if lost is not None:
            raise lost
        self._log.sync(number)
        return Recorded.WON


def _last_outcome(state: RetryCallState) -> Recorded:
    """After the last try: what it found, which is FAILED."""
    return Recorded.FAILED if state.outcome is None else state.outcome.result()
