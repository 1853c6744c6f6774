"""``SourceOperator``: runs a source's reader as the operator of its step (Flink: the same).

``coordinator.py`` describes the messages. The state is two lists:

``splits``
    each unfinished split with its serializer's version, its watermark and since when it has had no
    rows; redistributed when the parallelism changes
``read``
    how many rows were read, and how many splits to their end: where the range of a batch begins
``reader``
    whether a request is open, whether no more splits will come, and in which attempt: for the
    processes of one attempt. With the message that wakes the reader a new attempt begins, whose
    enumerator knows nothing of either.

If the readers induce checkpoints (MISSION B4), a third list, ``induced``, has the checkpoint at
whose point the reader stands. It reads nothing more until the task says that this checkpoint is
over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol

import msgspec

from weir.core.types import OperatorId, Payload
from weir.errors import OperatorStateError, PipelineError
from weir.operators.base import Operator, OperatorContext
from weir.operators.output import fitted
from weir.operators.state.store import StateStore
from weir.runtime.failures import NOTE, READING, named
from weir.sources.base import (
    ExternallyInducedSourceReader,
    Source,
    SourceSplit,
    SplitRecords,
    SplitT,
)
from weir.sources.watermarks import ReaderTime, SplitWatermarks, Watermarks
from weir.storage.records import converted

if TYPE_CHECKING:
    import pyarrow as pa


class ReaderReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reader reports about a batch."""

    #: In how many milliseconds it wants to read again; None: when something has come.
    wake_in_ms: int | None
    time: ReaderTime
    #: Whether no splits are left, and no more will come.
    ended: bool
    #: Whether it has any unfinished split.
    has_splits: bool
    #: How many of them may have rows.
    unread: int
    #: The checkpoint at whose point it stands (MISSION B4); None if it may read.
    stands_at: int | None


def is_wake(event: Payload) -> bool:
    """Whether the event wakes a reader: an attempt begins, and earlier answers do not count."""
    return "attempt" in event


class ReaderTaskContext(OperatorContext, Protocol):
    """The environment of a source's operator."""

    @property
    def may_read(self) -> bool:
        """Whether this batch may emit rows of the source: not the last batch of a drain."""
        ...

    @property
    def induced_over(self) -> int:
        """Readers at the point of a checkpoint up to this id go on (``AnswerPlanning``)."""
        ...

    @property
    def slowest_ms(self) -> int | None:
        """How far the slowest split of all readers is, after the last batch (``slowest_of``)."""
        ...

    def report(self, report: ReaderReport) -> None:
        """Report about the batch."""
        ...

    def trace(self, text: str) -> None:
        """What Spark reports with the death of this process, if it dies now; "" for nothing."""
        ...


class _Kept(msgspec.Struct, frozen=True):
    """A split in the state."""

    version: int
    split: dict[str, Any]
    watermark_ms: int | None
    quiet_ms: int | None
    #: How often it was read at this position without a row. (Earlier versions did not count.)
    empty_reads: int = 0


#: The list state of what was read so far.
READ = "read"
#: How many splits a failure names.
_NAMED = 3
#: In the text of an object that does not say where it is in its split.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
#: For a source without watermarks.
_TIMELESS = ReaderTime(watermark_ms=None, is_active=False)


class SourceOperator(Operator, Generic[SplitT]):
    """The operator of a source's step."""

    #: What the state does not have too may be lost between two batches.
    transient = ("_request_due", "_paused", "_splits", "_finished", "_empty_reads", "_reading")

    def __init__(self, source: Source[SplitT], watermarks: Watermarks | None) -> None:
        self.output_schema = source.schema
        self.watermarks = watermarks
        self.source = source
        self._serializer = source.split_serializer()

    # -- the contract of operators

    def open(self, context: OperatorContext) -> None:
        """Make the reader."""
        super().open(context)
        self._task: ReaderTaskContext = context  # type: ignore[assignment]
        self._request_due = False
        self._paused: frozenset[str] = frozenset()
        self._times = SplitWatermarks(self.watermarks or Watermarks(column=""))
        #: The unfinished splits, by id, at their positions after the last batch.
        self._splits: dict[str, SplitT] = {}
        #: Those that have finished in this batch.
        self._finished: set[str] = set()
        #: By split: how often it was read at its position without a row. Law: positive.
        self._empty_reads: dict[str, int] = {}
        #: What is being read, for failures.
        self._reading = ""
        environment = _ReaderContext(self._task, self._request)
        self._reader = self.source.create_reader(environment)
        self._reader.announce = self._begins_to_read
        induces = isinstance(self._reader, ExternallyInducedSourceReader)
        if induces != self.source.externally_induced:
            raise PipelineError(
                f"The {type(self._reader).__name__} of source {self._name!r} is"
                f" {'' if induces else 'not '}an ExternallyInducedSourceReader, but the source has"
                f" externally_induced = {self.source.externally_induced}: change either."
            )

    def initialize_state(self, state: StateStore) -> None:
        """Give the reader its former splits. Raises ``OperatorStateError`` for wrong splits."""
        self._kept = state.list_state("splits")
        self._read_so_far = state.list_state(READ)
        self._flags = state.list_state("reader")
        self._induced = state.list_state("induced") if self.source.externally_induced else None
        try:
            kept = converted(self._kept.get(), list[_Kept])
            splits = [self._serializer.decode(saved.version, saved.split) for saved in kept]
            converted(self._flags.get(), list[tuple[bool, bool, str]])
        except ValueError as error:
            raise OperatorStateError(
                f"The splits of source {self._name!r} in the checkpoint cannot be read ({error}):"
                " make its SplitSerializer read their version, or restore from another checkpoint."
            ) from error
        for saved, split in zip(kept, splits, strict=True):
            self._splits[split.split_id] = split
            self._times.add(split.split_id, saved.watermark_ms, saved.quiet_ms)
            if saved.empty_reads:
                self._empty_reads[split.split_id] = saved.empty_reads
        if splits:
            self._add_to_reader(splits)
        self._reader.start()

    def handle_operator_event(self, event: Payload) -> None:
        """Take splits, or the end of them, or an event; or begin an attempt."""
        if "event" in event:
            self._reader.handle_source_event(event["event"])
        elif "splits" in event:
            self._request_due = False
            self._set_flags(requested=False, ended=self._ended)
            self._add([self._decoded(payload) for payload in event["splits"]])
        elif "no_more_splits" in event:
            self._request_due = False
            self._set_flags(requested=False, ended=True)
            self._reader.notify_no_more_splits()
        else:
            self._request_due |= self._requested
            self._flags.update([[False, False, event["attempt"]]])
            if self._induced is not None:
                self._induced.clear()
            self._times.begin_attempt()

    def process_batch(self, batch: pa.RecordBatch) -> None:
        """Spark's part of the query has no rows."""

    def end_batch(self) -> Iterator[pa.RecordBatch]:
        """Read, then keep the positions."""
        rows = 0
        if self._task.may_read and self._stands_at is None:
            self._pause_or_resume()
            for batch in self._read():
                rows += batch.num_rows
                yield batch
        self._keep_positions(rows)
        if self._request_due and not self._requested and not self._ended:
            self.context.send_event_to_coordinator({"request": self._attempt})
            self._set_flags(requested=True, ended=False)
        self._request_due = False
        self._report(rows)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    # -- inside

    def _request(self) -> None:
        self._request_due = True

    def _add(self, splits: list[SplitT]) -> None:
        for split in splits:
            if split.split_id in self._splits:
                raise PipelineError(
                    f"The enumerator of source {self._name!r} assigned split {split.split_id!r} to"
                    f" reader {self.context.subtask}, which already has it: assign each split once,"
                    " and give each its own split_id."
                )
            self._splits[split.split_id] = split
            self._times.add(split.split_id)
        self._add_to_reader(splits)

    def _add_to_reader(self, splits: list[SplitT]) -> None:
        # It may open them at once.
        with self._reads(*splits):
            self._reader.add_splits(splits)

    def _pause_or_resume(self) -> None:
        ahead = self._times.ahead(self._task.slowest_ms)
        if ahead != self._paused:
            self._paused = ahead
            self._reader.pause_or_resume_splits(ahead)

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Read a batch's rows, at most up to the point of a checkpoint."""
        # Until the reader says which: a reader with a client for several splits may not know.
        with self._reads(*self._splits.values()):
            for rows in self._reader.read(self.source.max_rows_per_batch):
                batch = self._taken(rows)
                if batch is not None:
                    yield batch
                if self._reaches_point():
                    return
            self._reaches_point()

    @contextmanager
    def _reads(self, *splits: SourceSplit) -> Iterator[None]:
        """If the reader raises meanwhile, a note says what it was reading: one of these splits."""
        self._begins_to_read(*splits)
        try:
            yield
        except Exception as error:
            if self._reading:
                error.add_note(f"{NOTE}{self._reading}")
            raise
        finally:
            self._begins_to_read()

    def _begins_to_read(self, *splits: SourceSplit) -> None:
        """One of these splits is read next, at these positions."""
        if not splits:
            self._reading = ""
        else:
            which = "split" if len(splits) == 1 else "one of the splits"
            more = f" and {len(splits) - _NAMED} more" if len(splits) > _NAMED else ""
            first = ", ".join(self._at(split) for split in splits[:_NAMED])
            self._reading = f"{READING}{which} {first}{more}"
        self._task.trace(self._reading)

    def _at(self, split: SourceSplit) -> str:
        """A split at its position: the same text until a checkpoint contains what it reads next.

        That of a split which has no rows for now changes too, or failures that have passed would
        count.
        """
        empty = self._empty_reads.get(split.split_id)
        after = "" if empty is None else f" after {empty} reads without rows"
        position: object = split
        if _ADDRESS.search(repr(split)):
            with suppress(TypeError, ValueError):
                position = self._serializer.encode(split)  # type: ignore[arg-type]
        return f"{split.split_id!r} at {named(repr(position))}{after}"

    def _reaches_point(self) -> bool:
        if self._induced is None or not isinstance(self._reader, ExternallyInducedSourceReader):
            return False
        checkpoint_id: object = self._reader.should_trigger_checkpoint()
        if checkpoint_id is not None and type(checkpoint_id) is not int:
            raise PipelineError(
                f"should_trigger_checkpoint of the reader of source {self._name!r} returned"
                f" {checkpoint_id!r}: return the id of a checkpoint, or None."
            )
        self._induced.update([] if checkpoint_id is None else [checkpoint_id])
        return self._stands_at is not None

    @property
    def _stands_at(self) -> int | None:
        """The checkpoint at whose point the reader waits; None if it may read."""
        if self._induced is None:
            return None
        over = self._task.induced_over
        return next((number for number in self._induced.get() if number > over), None)

    def _taken(self, records: SplitRecords) -> pa.RecordBatch | None:
        """The rows of a split as they go downstream."""
        name = records.split_id
        if name not in self._splits or name in self._finished:
            raise PipelineError(
                f"The reader of source {self._name!r} has read split {name!r}, which it does not"
                " have: read() must yield only splits that were added, and not after they finished."
            )
        batch = records.batch
        if batch is not None:
            try:
                batch = fitted(batch, self.context.output_schema, self._name)
            except PipelineError as error:
                raise PipelineError(f"Split {name!r} does not fit its source. {error}") from error
        if batch is not None and batch.num_rows:
            self._times.read(name, self._newest_ms(batch))
            self._empty_reads.pop(name, None)
        elif not records.finished:
            self._times.read_nothing(name, self.context.processing_time_ms)
            self._empty_reads[name] = self._empty_reads.get(name, 0) + 1
        if records.finished:
            self._finished.add(name)
            self._times.finish(name)
            self._empty_reads.pop(name, None)
        return batch

    def _newest_ms(self, batch: pa.RecordBatch) -> int | None:
        if self.watermarks is None:
            return None
        import pyarrow as pa
        import pyarrow.compute as pc

        newest = pc.max(batch[self.watermarks.column]).cast(pa.timestamp("ms", "UTC"), safe=False)
        found: int | None = newest.value
        return found

    def _keep_positions(self, rows: int) -> None:
        splits: Mapping[str, SplitT] = {
            split.split_id: split for split in self._reader.snapshot_state()
        }
        expected = self._splits.keys() - self._finished
        for name, why in (
            *((split_id, "lacks") for split_id in sorted(expected - splits.keys())),
            *((split_id, "still has") for split_id in sorted(splits.keys() - expected)),
        ):
            raise PipelineError(
                f"The snapshot_state of the reader of source {self._name!r} {why} split {name!r}:"
                " it must return the splits that were added until read() yields them as finished."
            )
        if rows or self._finished:
            so_far = [*self._read_so_far.get(), (rows, len(self._finished))]
            self._read_so_far.update([[sum(counts) for counts in zip(*so_far, strict=True)]])
        self._splits = dict(splits)
        self._finished = set()
        self._kept.update(self._encoded(split) for split in splits.values())

    def _encoded(self, split: SplitT) -> Payload:
        try:
            encoded = self._serializer.encode(split)
        except (TypeError, ValueError) as error:
            raise PipelineError(
                f"Split {split.split_id!r} of source {self._name!r} cannot be serialized at its"
                f" position, since {error}: give it fields that JSON keeps, or the source a"
                " SplitSerializer of its own."
            ) from error
        time = self._times.time_of(split.split_id)
        return {
            "version": self._serializer.version,
            "split": encoded,
            "watermark_ms": time.watermark_ms,
            "quiet_ms": time.quiet_ms,
            "empty_reads": self._empty_reads.get(split.split_id, 0),
        }

    def _report(self, rows: int) -> None:
        time = self._times.end_batch(self.context.processing_time_ms)
        if self.watermarks is None:
            time = _TIMELESS
        wake_in_ms: int | None = None
        stands_at = self._stands_at
        if self._splits and stands_at is None:
            wake_in_ms = 0 if rows or not self._task.may_read else self.source.poll_interval_ms
        self._task.report(
            ReaderReport(
                wake_in_ms=wake_in_ms,
                time=time,
                ended=self._ended and not self._splits,
                has_splits=bool(self._splits),
                unread=self._times.unread,
                stands_at=stands_at,
            )
        )

    def _decoded(self, payload: Payload) -> SplitT:
        return self._serializer.decode(payload["version"], payload["split"])

    @property
    def _name(self) -> OperatorId:
        return self.context.operator_id

    @property
    def _requested(self) -> bool:
        # After a change of the parallelism there may be several, or none.
        return any(requested for requested, _, _ in self._flags.get())

    @property
    def _ended(self) -> bool:
        return any(ended for _, ended, _ in self._flags.get())

    @property
    def _attempt(self) -> str:
        return next((attempt for _, _, attempt in self._flags.get()), "")

    def _set_flags(self, *, requested: bool, ended: bool) -> None:
        self._flags.update([[requested, ended, self._attempt]])


class _ReaderContext:
    """``SourceReaderContext`` of one subtask."""

    def __init__(
        self,
        task: ReaderTaskContext,
        send_split_request: Callable[[], None],
    ) -> None:
        self._task = task
        self.operator_id = task.operator_id
        self.subtask = task.subtask
        self.parallelism = task.parallelism
        self.schema = task.output_schema
        self.send_split_request = send_split_request

    @property
    def induced_over(self) -> int:
        return self._task.induced_over

    def send_source_event(self, event: Payload) -> None:
        self._task.send_event_to_coordinator({"event": event})
