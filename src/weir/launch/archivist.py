"""Keeps a job's archive up to date while its driver lives (``weir/rest/past/archive.py``)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from weir.monitoring.views import JobView
from weir.rest.past.archive import JobArchive

#: How old the archive of a job that runs may become, in seconds.
_EVERY_S = 60.0
#: How long the end of the driver waits for the last archive, in seconds.
_LAST_PATIENCE_S = 10.0

_log = logging.getLogger(__name__)


class Archivist:
    """Writes the archive after each change of status, each minute, and at the end.

    A context manager with a thread of its own: a file system that hangs holds up nothing.
    """

    def __init__(self, archive: JobArchive, view: Callable[[], JobView]) -> None:
        self._archive = archive
        self._view = view
        self._due = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="weir-archive", daemon=True)

    def __enter__(self) -> Archivist:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the last view, which is final by now."""
        self._ending.set()
        self._due.set()
        self._thread.join(_LAST_PATIENCE_S)

    def changed(self) -> None:
        """The job has changed its status."""
        self._due.set()

    def _keep(self) -> None:
        is_last = False
        while not is_last:
            self._due.wait(_EVERY_S)
            self._due.clear()
            is_last = self._ending.is_set()
            try:
                view = self._view()
                # Without an attempt, another driver may hold the job.
                if view.attempt:
                    self._archive.write(view)
            except Exception as error:
                # People then see less of the job; the job goes on.
                _log.warning("Cannot write the job's archive: %s", error)
