"""``OperatorContext`` of one subtask, in a worker process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weir.core.types import OperatorId, Payload
from weir.errors import OperatorStateError, PipelineError
from weir.json_values import KEPT, read_back

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.sources.operator import ReaderReport

_log = logging.getLogger(__name__)


@dataclass
class Context:
    """``OperatorContext`` of one subtask."""

    operator_id: OperatorId
    subtask: int
    parallelism: int
    has_coordinator: bool
    output_schema: pa.Schema
    watermark_ms: int | None = None
    processing_time_ms: int = 0
    sent: list[Payload] = field(default_factory=list)
    #: Of a source: see ``ReaderTaskContext``.
    may_read: bool = True
    induced_over: int = 0
    slowest_ms: int | None = None
    reported: ReaderReport | None = None
    trace: Callable[[str], None] = lambda text: None
    #: Whether an event that is sent now goes out with the state that it follows from.
    may_send: bool = True
    #: The notifications before ``close`` run: an event has nobody left to act on it.
    drops_events: bool = False
    #: The tags of the side outputs.
    side_outputs: Collection[str] = ()
    #: Rows for side outputs, with their tags, since they were last taken.
    emitted: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    #: Whether a batch is running that takes them.
    may_emit: bool = False

    def output(self, tag: str, batch: pa.RecordBatch) -> None:
        """See ``OperatorContext``."""
        if tag not in self.side_outputs:
            declared = ", ".join(repr(output) for output in self.side_outputs) or "none"
            raise PipelineError(
                f"Operator {self.operator_id!r} emits to the side output {tag!r}, but declares"
                f" {declared}: add it to side_outputs, with its schema."
            )
        if not self.may_emit:
            raise OperatorStateError(
                f"Operator {self.operator_id!r} emits to the side output {tag!r} outside of a"
                " batch: emit in a call that may emit rows, at the latest in finish or"
                " prepare_snapshot_pre_barrier."
            )
        self.emitted.append((tag, batch))

    def send_event_to_coordinator(self, event: Payload) -> None:
        """See ``OperatorContext``.

        Raises ``OperatorStateError`` without a coordinator, outside of a batch, or if JSON cannot
        represent a value.
        """
        if self.drops_events:
            # Not an error: the same notification sends it after each checkpoint, and a job that
            # failed here could never end.
            _log.warning(
                "An event that operator %r sent in its last notification is dropped: no batch"
                " follows that would carry it.",
                self.operator_id,
            )
            return
        if not self.may_send:
            raise OperatorStateError(
                f"Operator {self.operator_id!r} sent an event outside of a batch (in"
                " snapshot_state or in close), where no checkpoint would keep it: send it in a"
                " batch, at the latest in end_batch."
            )
        if not self.has_coordinator:
            raise OperatorStateError(
                f"Operator {self.operator_id!r} sent an event, but has no coordinator: pass"
                " coordinator= to its step."
            )
        try:
            if not isinstance(event, dict):
                raise ValueError(f"it is a {type(event).__name__}, not a map")
            self.sent.append(read_back(event))
        except ValueError as error:
            raise OperatorStateError(
                f"Operator {self.operator_id!r} sent an event that cannot be stored, since {error}:"
                f" make it a map of {KEPT}."
            ) from error

    def taken(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Take the rows that were emitted to side outputs."""
        emitted, self.emitted = self.emitted, []
        yield from emitted

    def report(self, report: ReaderReport) -> None:
        """See ``ReaderTaskContext``."""
        self.reported = report
