"""The events of a run, for a log in JSON: the counterpart of ``ProgressLines``."""

from __future__ import annotations

import threading
from collections.abc import Callable

from weir.core.types import CompletedCheckpoint
from weir.gateway.job_gateway import JobGateway
from weir.handle.lines import Totals
from weir.launch.phases import Phases
from weir.monitoring.log_lines import LogEvent, Place
from weir.monitoring.recorder import Moment
from weir.runtime.concurrency import Clock, SystemClock

_POLL_S = 0.2


class EventLog:
    """Listens to a run and logs what happens, more than ``ProgressLines`` prints.

    A context manager. A thread reads the job's story, so that a log that nobody reads holds up
    nothing else.
    """

    def __init__(
        self,
        write: Callable[[LogEvent], None],
        *,
        interval_ms: int,
        started: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """See ``ProgressLines``."""
        self._write = write
        self._started = started
        self._clock: Clock = SystemClock() if clock is None else clock
        self._has_all = interval_ms == 0
        self._totals = Totals(self._clock, interval_ms=interval_ms)
        self._phases = Phases(self._phase_line, self._clock)
        self._gateway: JobGateway | None = None
        #: The number of the newest moment that was logged.
        self._logged = 0
        self._ending = threading.Event()
        self._looker = threading.Thread(target=self._look, name="weir-events", daemon=True)

    def __enter__(self) -> EventLog:
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._looker.join()

    @property
    def gateway(self) -> JobGateway | None:
        """The job, once it is submitted."""
        return self._gateway

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """Log where the job can be reached, and from now on what happens in it."""
        self._gateway = gateway
        self.say(f"Job has been submitted with JobID {job_id}")
        self.say(f"REST server: {rest_address}")

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """Log which checkpoint or savepoint the job was restored from."""
        what = "savepoint" if checkpoint.kind.is_savepoint else "checkpoint"
        self.say(f"Recovered from {what} {checkpoint.checkpoint_id}: {checkpoint.external_path}")

    def phase(self, name: str | None) -> None:
        """Log the phase if it takes longer than a second."""
        self._phases.begin(name)
        if name is None:
            self._started()

    def note(self, message: str) -> None:
        """Log one line, unless the story has it."""
        if not message.startswith("FAILING: "):
            self.say(message)

    def say(self, line: str) -> None:
        """Log one line."""
        self._line(line, "weir.run")

    def _phase_line(self, line: str) -> None:
        self._line(line, "weir.start")

    def _line(self, line: str, logger: str) -> None:
        self._write(
            LogEvent(time_ms=self._clock.wall_ms(), level="INFO", logger=logger, message=line)
        )

    def _look(self) -> None:
        ending = False
        while not ending:
            # Once more after the end, for the last events.
            ending = self._ending.wait(_POLL_S)
            self._phases.look()
            if self._gateway is not None:
                self._log_moments(self._gateway)
                if not self._has_all:
                    for line in self._totals.new(self._gateway.view(), is_last=ending):
                        self.say(line)

    def _log_moments(self, gateway: JobGateway) -> None:
        for moment in tuple(gateway.recorder.moments):
            if moment.number > self._logged:
                self._logged = moment.number
                if self._has_all or not moment.is_routine:
                    self._write(_event(moment, gateway))


def _event(moment: Moment, gateway: JobGateway) -> LogEvent:
    """The event of a moment; of a failure, with its whole message and trace."""
    message, trace = moment.text, ""
    if moment.kind == "failure":
        for failure in tuple(gateway.recorder.failures):
            if failure.time_ms <= moment.time_ms and failure.vertex == moment.vertex:
                message, trace = failure.message, failure.trace
    return LogEvent(
        time_ms=moment.time_ms,
        level="ERROR" if moment.kind == "failure" else "INFO",
        logger=f"weir.{moment.kind}",
        message=message,
        place=Place(task=moment.vertex or ""),
        checkpoint_id=moment.checkpoint_id,
        exception=trace,
    )
