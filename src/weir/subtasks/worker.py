"""Runs subtasks of Python operators in a worker process: batches, and calls between them.

``SubtaskFunction`` runs one subtask for one batch, as the driver's order says (``chain.py``,
``messages.py``). If the process that ran the last batch also runs the next, its operator goes on
as it is (``WorkerProcess``); otherwise the operator is restored from the state that the order
names. ``SubtaskSetup`` says when it may go on.
"""

from __future__ import annotations

import copy
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import IOBase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from weir.core.graph import MAIN_OUTPUT
from weir.core.types import OperatorId
from weir.errors import OperatorStateError, PipelineError, WeirError
from weir.operators.base import (
    ListCheckpointed,
    Operator,
    SnapshotContext,
    overrides,
    transient_attributes,
)
from weir.operators.connected import CoOperator
from weir.operators.output import Outputs, record_batches, tagged_column
from weir.operators.state.store import StateStore, decode_lists
from weir.operators.state.types import Layer, TimeDomain, groups_of
from weir.runtime.failures import NO_ROWS, NOTE, describe, has_input
from weir.storage.paths import is_local
from weir.subtasks.context import Context
from weir.subtasks.messages import (
    BatchOrder,
    BatchResult,
    CallFailed,
    CallResult,
    CloseCall,
    Closed,
    FilePart,
    KeyedChange,
    LayerLocation,
    Location,
    NextTimers,
    RejectedRow,
    SnapshotCall,
    SubtaskSetup,
    SubtaskState,
)
from weir.subtasks.state_pieces import SHARED_BYTES_MAX, StatePieces

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.operators.state.memory import StateMemory

_log = logging.getLogger(__name__)

#: From this watermark on, no time passes any more: 9999-12-31T23:59:59Z, the last time that
#: Spark can represent.
END_OF_TIME_MS = 253_402_300_799_000
#: State of up to this many bytes travels inside messages, larger state in a file of its own.
INLINE_BYTES = SHARED_BYTES_MAX
#: The list state that backs ``ListCheckpointed``.
_LIST = "list-checkpointed"


class StateFiles(Protocol):
    """Where subtasks keep large state."""

    def create(self, directory: str, file: str) -> IOBase:
        """A new file, to be written and closed; the checkpoint that needs it flushes it."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Part of a file."""
        ...

    def mapped(self, path: str, offset: int, length: int, memory: StateMemory) -> bytes | pa.Buffer:
        """Part of a file that may be larger than the memory, and need not be read as a whole.

        Raises ``OSError`` if the file is shorter.
        """
        ...


class LocalStateFiles:
    """State in files of this machine, or of a volume that all workers share."""

    def create(self, directory: str, file: str) -> IOBase:
        """A new file."""
        path = Path(directory) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Part of a file."""
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def mapped(self, path: str, offset: int, length: int, memory: StateMemory) -> pa.Buffer:
        """Part of a file, mapped."""
        return memory.mapped_file(path, offset, length)


class AnyStateFiles:
    """State files wherever the query's directory is."""

    def __init__(self, remote: Callable[[], StateFiles] | None = None) -> None:
        """``remote`` makes what serves all but local paths, when it is first needed."""
        self._local = LocalStateFiles()
        self._make = _remote_files if remote is None else remote
        self._remote: StateFiles | None = None

    def create(self, directory: str, file: str) -> IOBase:
        """A new file."""
        return self._of(directory).create(directory, file)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Part of a file."""
        return self._of(path).read(path, offset, length)

    def mapped(self, path: str, offset: int, length: int, memory: StateMemory) -> bytes | pa.Buffer:
        """Part of a file, mapped."""
        return self._of(path).mapped(path, offset, length, memory)

    def _of(self, path: str) -> StateFiles:
        if is_local(path):
            return self._local
        if self._remote is None:
            self._remote = self._make()
        return self._remote


def _remote_files() -> StateFiles:
    # Not at the top: few workers need it.
    from weir.subtasks.remote_files import RemoteStateFiles

    return RemoteStateFiles()


@dataclass
class _Warm:
    """A subtask that a process has run."""

    token: str
    #: The batch after which it has this state.
    version: int
    #: The run of that batch. If the result of another run counted, the driver has other state.
    run: str
    operator: Operator
    state: StateStore
    context: Context
    #: Its attributes when it was restored.
    attributes: _Attributes


#: Passes records to an operator; what it emits.
Process = Callable[["pa.RecordBatch"], Iterator["pa.RecordBatch"]]
#: Name -> value, and its length if it is a container that may change in place.
_Attributes = dict[str, tuple[object, int | None]]


class WorkerProcess:
    """The subtasks that one worker process has run."""

    def __init__(
        self,
        files: StateFiles,
        run_id: Callable[[], str] = lambda: secrets.token_hex(8),
        trace: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``run_id`` makes unique names of runs and files. ``trace``: see ``ReaderTaskContext``."""
        self.files = files
        self.run_id = run_id
        self.trace = trace
        self._warm: dict[tuple[OperatorId, int], _Warm] = {}

    def current(self, operator_id: OperatorId, setup: SubtaskSetup) -> list[int]:
        """The subtasks of an operator that are here with the state that the driver has."""
        return sorted(
            subtask
            for (name, subtask), warm in self._warm.items()
            if name == operator_id and _is_current(warm, setup, subtask)
        )

    def take(self, operator_id: OperatorId, subtask: int) -> _Warm | None:
        """Remove a subtask, until it is kept again."""
        return self._warm.pop((operator_id, subtask), None)

    def keep(self, operator_id: OperatorId, subtask: int, warm: _Warm) -> None:
        """Keep a subtask for its next batch or call."""
        self._warm[operator_id, subtask] = warm

    def forget_others(self, operator_id: OperatorId, setup: SubtaskSetup, batch: int) -> None:
        """Close subtasks that have run elsewhere since, or belong to another attempt.

        No batch will go on from them. Those that have just run this batch here stay.
        """
        for key, other in list(self._warm.items()):
            same = other.token == setup.token
            if key[0] == operator_id and not (same and other.version in (setup.version, batch)):
                close_stale(operator_id, self._warm.pop(key).operator)

    def state(self, operator_id: OperatorId, subtask: int) -> StateStore | None:
        """The state of a subtask that is here."""
        warm = self._warm.get((operator_id, subtask))
        return None if warm is None else warm.state

    def close_all(self, operator_id: OperatorId) -> None:
        """Close all subtasks of an operator, whatever they belong to.

        Raises the first error, once all are closed.
        """
        errors: list[Exception] = []
        for key in [key for key in self._warm if key[0] == operator_id]:
            try:
                self._warm.pop(key).operator.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


class SubtaskFunction:
    """Runs any subtask of one operator."""

    def __init__(
        self,
        operator_id: OperatorId,
        operator: Operator,
        *,
        output_schema: pa.Schema,
        side_outputs: Mapping[str, pa.Schema],
        parallelism: int,
        keys: Mapping[str, str],
        rejects_max: int | None = None,
    ) -> None:
        """``keys``: the columns of the key, and their names in it; empty without a key.

        With a key, the last column of a batch has the key groups. ``rejects_max``: how many rows
        of a batch it sets aside if the operator raises; None: an error fails the batch.
        """
        self.operator_id = operator_id
        self._operator = operator
        self._output_schema = output_schema
        self._side_outputs = dict(side_outputs)
        self._outputs = Outputs(operator_id, output_schema, side_outputs)
        self._parallelism = parallelism
        self._keys = keys
        self._rejects_max = rejects_max

    def batch(
        self,
        process: WorkerProcess,
        order: BatchOrder,
        subtask: int,
        batches: Iterable[pa.RecordBatch],
        report: Callable[[BatchResult], None],
    ) -> Iterator[pa.RecordBatch]:
        """Process one partition of one batch, and report.

        An error gets a note that says where it occurred.
        """
        run = BatchRun(order, self._context(order.setup, subtask, process), process)
        try:
            warm = run.begin(self._operator)
            rows = 0
            if self._rejects_max is None:
                found = run.batches(warm, (self._split(warm, batch) for batch in batches))
            else:
                apart = SettingAside(run, warm, partial(self._split, warm), self._rejects_max)
                found = run.batches(warm, batches, apart.rows)
            for tag, emitted in found:
                rows += emitted.num_rows
                yield self._outputs.rows(tag, emitted)
            report(run.result(warm, rows))
        except BaseException as error:
            # Also if nobody wants the rest of the rows.
            run.close_after_failure()
            if isinstance(error, Exception):
                error.add_note(f"{NOTE}subtask {subtask} of {self.operator_id!r}{run.at}")
                if not (run.has_rows or has_input(error)):
                    error.add_note(f"{NOTE}{NO_ROWS}")
            raise

    def call(
        self, process: WorkerProcess, call: SnapshotCall | CloseCall, subtask: int
    ) -> CallResult:
        """Call a subtask outside of a batch. An error is returned as ``CallFailed``."""
        run = SubtaskRun(call, self._context(call.setup, subtask, process), process)
        try:
            warm = run.begin(self._operator)
            if isinstance(call, CloseCall):
                run.close()
                return Closed()
            context = SnapshotContext(
                checkpoint_id=call.checkpoint_id, timestamp_ms=call.timestamp_ms
            )
            return run.handed_over(warm, context)
        except Exception as error:
            # Nothing that a failed snapshot did to the state remains.
            run.close_after_failure()
            return CallFailed(error=describe(error))

    def _context(self, setup: SubtaskSetup, subtask: int, process: WorkerProcess) -> Context:
        return Context(
            operator_id=self.operator_id,
            subtask=subtask,
            parallelism=self._parallelism,
            has_coordinator=setup.has_coordinator,
            output_schema=self._output_schema,
            trace=process.trace,
            side_outputs=tuple(self._side_outputs),
        )

    def _split(self, warm: _Warm, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records without the key group column."""
        import pyarrow as pa

        if not self._keys:
            return batch
        records = batch.select(batch.schema.names[:-1])
        keys = [records.column(name) for name in self._keys]
        names = list(self._keys.values())
        warm.state.begin_batch(
            keys[0] if len(keys) == 1 else pa.StructArray.from_arrays(keys, names),
            batch.column(batch.num_columns - 1),
        )
        return records


class SubtaskRun:
    """One batch of one subtask, or one call between two batches."""

    def __init__(
        self,
        order: BatchOrder | SnapshotCall | CloseCall,
        context: Context,
        process: WorkerProcess,
    ) -> None:
        """``context`` is for a subtask that the process has not run yet."""
        self._order = order
        self._setup = order.setup
        #: The batch; in a call, the last batch.
        self._batch = order.batch if isinstance(order, BatchOrder) else order.setup.version
        self._process = process
        self._context = context
        self._operator_id = context.operator_id
        self._subtask = context.subtask
        #: The records that the operator is processing, for messages; "" if none.
        self.at = ""
        #: Whether it has met records.
        self.has_rows = False
        #: What is to be closed if this fails.
        self._open: Operator | None = None

    def begin(self, operator: Operator) -> _Warm:
        """The subtask as the last batch left it, after this order's notifications and events."""
        # Removed until it is handed over: after a failure it is not fit for the next batch.
        warm = self._process.take(self._operator_id, self._subtask)
        order, setup = self._order, self._setup
        batch = order if isinstance(order, BatchOrder) else None
        if warm is None or not _is_current(warm, setup, self._subtask):
            if warm is not None:
                close_stale(self._operator_id, warm.operator)
            warm = self._restored(operator)
        self._open = warm.operator
        self._process.forget_others(self._operator_id, setup, self._batch)
        warm.context.watermark_ms = setup.watermark_ms
        warm.context.processing_time_ms = setup.now_ms
        warm.context.may_emit = warm.context.may_send = batch is not None
        warm.context.drops_events = isinstance(order, CloseCall)
        self._expire(warm.state)
        warm.context.may_read = batch is not None and batch.may_read
        warm.context.induced_over = 0 if batch is None else batch.induced_over
        warm.context.slowest_ms = None if batch is None else batch.slowest_ms
        if not isinstance(order, SnapshotCall):
            for number in order.completed:
                warm.operator.notify_checkpoint_complete(number)
            for number in order.aborted:
                warm.operator.notify_checkpoint_aborted(number)
        warm.context.drops_events = False
        for event in () if batch is None else batch.events.get(self._subtask, ()):
            warm.operator.handle_operator_event(event)
        return warm

    def close(self) -> None:
        """Close the operator, unless it stays in the process."""
        operator, self._open = self._open, None
        if operator is not None:
            operator.close()

    def close_after_failure(self) -> None:
        """Close the operator, unless it stays in the process."""
        operator, self._open = self._open, None
        if operator is not None:
            close_stale(self._operator_id, operator)

    def _expire(self, state: StateStore) -> None:
        """Forget the state whose time has come when the batch or call begins.

        At the end of the input no more time has passed, so that ``finish`` finds all state.
        """
        state.set_time(TimeDomain.PROCESSING, self._setup.now_ms)
        watermark_ms = self._setup.watermark_ms
        if watermark_ms is not None and watermark_ms < END_OF_TIME_MS:
            state.set_time(TimeDomain.EVENT, watermark_ms)
        for domain in TimeDomain:
            state.expire(domain)

    def handed_over(self, warm: _Warm, snapshot: SnapshotContext | None = None) -> SubtaskState:
        """Take the snapshot, if one is wanted; return the state.

        The subtask stays in this process, for the next batch or call.
        """
        state = warm.state
        if snapshot is not None:
            warm.operator.snapshot_state(snapshot)
        if isinstance(warm.operator, ListCheckpointed):
            kept = state.list_state(_LIST)
            # If the operator raises, the list stays empty.
            kept.clear()
            kept.update(warm.operator.snapshot_list(snapshot) or [])
        lists = self._kept(state.dump_lists())
        self._check_attributes(warm)
        warm.version, warm.run = self._batch, self._process.run_id()
        warm.context.may_emit = False
        self._process.keep(self._operator_id, self._subtask, warm)
        self._open = None
        keyed, groups = self._changed(state)
        timers = NextTimers(
            event=_earliest(state, TimeDomain.EVENT),
            processing=_earliest(state, TimeDomain.PROCESSING),
        )
        return SubtaskState(run=warm.run, lists=lists, keyed=keyed, groups=groups, timers=timers)

    def _check_attributes(self, warm: _Warm) -> None:
        """Raise ``PipelineError`` if an attribute changed that another process would not have.

        A change deep inside of an object goes unnoticed.
        """
        if isinstance(warm.operator, ListCheckpointed):
            return
        for name, (value, length) in _attributes(warm.operator).items():
            before = warm.attributes.get(name)
            if before is None or not _same(value, length, *before):
                raise PipelineError(
                    f"Operator {self._operator_id!r} changed its attribute {name!r} while it ran,"
                    " and the next batch may run in another process, which would not have it: keep"
                    f" it in a state, or write transient = ({name!r},) in the class if it may be"
                    " lost (a cache, a connection)."
                )

    def _restored(self, operator: Operator) -> _Warm:
        # Here, since the driver needs the rest of this module, but neither pyarrow nor numpy.
        from weir.operators.state.memory import StateMemory

        setup, context = self._setup, self._context
        location = setup.lists.get(self._subtask)
        lists = None if location is None else decode_lists(location.contents(self._read))
        owned = groups_of(self._subtask, context.parallelism)
        groups = {
            name: {
                group: place.contents(self._read)
                for group, place in by_group.items()
                if group in owned
            }
            for name, by_group in setup.groups.items()
        }
        memory = StateMemory(setup.state_memory_bytes)
        keyed = {
            name: [Layer(self._mapped(name, layer, memory), layer.groups) for layer in layers]
            for name, by_subtask in setup.keyed.items()
            if (layers := by_subtask.get(self._subtask))
        }
        operator = copy.deepcopy(operator)
        found = {name: by_group for name, by_group in groups.items() if by_group}
        state = StateStore(
            lists,
            found,
            keyed,
            operator_id=self._operator_id,
            owned=owned,
            has_event_time=setup.has_event_time,
            restored_checkpoint_id=setup.restored_checkpoint_id,
            memory=memory,
        )
        self._expire(state)
        self._open = operator
        operator.open(context)
        operator.initialize_state(state)
        if state.timers and not overrides(operator, "on_timer"):
            raise PipelineError(
                f"Operator {self._operator_id!r} asks for timers, but has no on_timer: define it."
            )
        if isinstance(operator, ListCheckpointed):
            operator.restore_list(state.list_state(_LIST).get())
        return _Warm(
            setup.token, setup.version, "", operator, state, context, _attributes(operator)
        )

    def _kept(self, data: bytes) -> Location:
        if len(data) <= INLINE_BYTES:
            return Location(inline=data)
        pieces = StatePieces(self._new_file)
        piece = pieces.piece()
        piece.write(data)
        return Location.within(pieces.located(piece))

    def _changed(
        self, state: StateStore
    ) -> tuple[dict[str, KeyedChange], dict[str, dict[int, Location]]]:
        """Write the keyed state that has changed; return where it is, and the raw keyed state."""
        owned = groups_of(self._subtask, self._context.parallelism)
        pieces = StatePieces(self._new_file)
        keyed: dict[str, KeyedChange] = {}
        groups: dict[str, dict[int, Location]] = {}
        for name, keyed_state in state.keyed.items():
            piece = pieces.piece()
            written = keyed_state.next_layer(piece)
            if written is not None:
                stay, follows = written
                layer = None
                if follows:
                    part, bounds = pieces.located(piece), (owned.start, owned.stop)
                    layer = LayerLocation.of(part, groups=bounds, keys=len(keyed_state))
                keyed[name] = KeyedChange(stay=stay, follows=layer)
        for name, raw in state.raw.items():
            groups[name] = {}
            for group, data in raw.changed_groups().items():
                piece = pieces.piece()
                piece.write(data)
                groups[name][group] = Location.within(pieces.located(piece))
        pieces.close()
        state.trim()
        return keyed, groups

    def _new_file(self) -> tuple[str, IOBase]:
        """A new file in the query's directory, and its name."""
        name = f"{self._subtask}-{self._batch}-{self._process.run_id()}"
        file = f"{self._operator_id}/{name}"
        return file, self._process.files.create(self._setup.directory, file)

    def _read(self, part: FilePart) -> bytes:
        return self._process.files.read(self._path(part), part.offset, part.length)

    def _path(self, part: FilePart) -> str:
        return f"{self._setup.directory}/{part.file}"

    def _mapped(self, name: str, part: FilePart, memory: StateMemory) -> bytes | pa.Buffer:
        path = self._path(part)
        try:
            return self._process.files.mapped(path, part.offset, part.length, memory)
        except OSError as error:
            raise OperatorStateError(
                f"The keyed state {name!r} cannot be read back ({error}): restore from another"
                " checkpoint or savepoint."
            ) from error


class BatchRun(SubtaskRun):
    """One batch of one subtask."""

    _order: BatchOrder

    def __init__(self, order: BatchOrder, context: Context, process: WorkerProcess) -> None:
        super().__init__(order, context, process)
        #: The rows that were set aside.
        self.rejects: list[RejectedRow] = []

    def batches(
        self,
        warm: _Warm,
        records: Iterable[pa.RecordBatch],
        process: Process | None = None,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The output for the records, then that of the end of the input and of a barrier.

        Each batch comes with the tag of its side output, or ``MAIN_OUTPUT``. ``process`` passes
        records to the operator; None: as they are.
        """
        process = process or partial(self.rows, warm, "process_batch")
        for emitted in self._emitted(warm, records, process):
            yield from warm.context.taken()
            yield MAIN_OUTPUT, emitted
        yield from warm.context.taken()

    def _emitted(
        self, warm: _Warm, records: Iterable[pa.RecordBatch], process: Process
    ) -> Iterator[pa.RecordBatch]:
        rows = 0
        for number, batch in enumerate(records):
            self.at = f", its record batch {number} (rows {rows} to {rows + batch.num_rows - 1})"
            self.has_rows |= batch.num_rows > 0
            yield from process(batch)
            rows += batch.num_rows
        self.at = ""
        yield from self._move_time(warm)
        warm.state.end_batch()
        yield from self.rows(warm, "end_batch")
        if isinstance(warm.operator, CoOperator):
            for number in self._order.ended_inputs:
                yield from self.rows(warm, "end_input_of", number)
        if self._order.finish:
            yield from self.rows(warm, "end_input")
            yield from self.rows(warm, "finish")
        if self._order.barrier is not None:
            yield from self.rows(warm, "prepare_snapshot_pre_barrier", self._order.barrier)

    def rows(self, warm: _Warm, method: str, *arguments: object) -> Iterator[pa.RecordBatch]:
        """What a call emits. Raises ``PipelineError`` for anything but record batches."""
        where = f"{type(warm.operator).__name__}.{method}"
        return record_batches(getattr(warm.operator, method)(*arguments), where)

    def _move_time(self, warm: _Warm) -> Iterator[pa.RecordBatch]:
        """Call the timers that are due and, if the watermark has moved, the operator."""
        yield from self._fire(warm, TimeDomain.PROCESSING, self._setup.now_ms)
        moves_to = self._order.moves_to_ms
        if moves_to is not None:
            warm.context.watermark_ms = moves_to
            if moves_to < END_OF_TIME_MS:
                warm.state.set_time(TimeDomain.EVENT, moves_to)
        # Records may have registered timers that are due, whether or not it has moved.
        if (watermark_ms := warm.context.watermark_ms) is not None:
            yield from self._fire(warm, TimeDomain.EVENT, watermark_ms)
        if moves_to is not None:
            yield from self.rows(warm, "on_watermark", moves_to)
            # Not before, since timers may be for times at which it was still there.
            warm.state.expire(TimeDomain.EVENT)

    def _fire(self, warm: _Warm, domain: TimeDomain, until_ms: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        while timers := next((t for t in warm.state.timers if t.is_due(domain, until_ms)), None):
            for due in timers.due(until_ms):
                warm.state.begin_batch(due.keys, due.groups)
                batch = pa.RecordBatch.from_arrays([due.keys, due.times_ms], ["key", "time_ms"])
                yield from self.rows(warm, "on_timer", timers, batch)

    def result(self, warm: _Warm, rows: int) -> BatchResult:
        """Hand over the subtask, which has emitted this many rows."""
        state = self.handed_over(warm)
        sent, warm.context.sent = warm.context.sent, []
        return BatchResult(
            state=state,
            sent=sent,
            rows=rows,
            reader=warm.context.reported,
            rejects=self.rejects,
        )


class SettingAside:
    """Passes records to an operator, and sets aside those on which it raises.

    If it raises, its state, what it has emitted and the events that it has sent are as before, and
    it gets both halves of the records, and so on. So the rows that are set aside have never come.
    """

    def __init__(
        self,
        run: BatchRun,
        warm: _Warm,
        split: Callable[[pa.RecordBatch], pa.RecordBatch],
        rows_max: int,
    ) -> None:
        """``split`` takes the columns of the key off, and tells the state of the key."""
        self._run = run
        self._warm = warm
        self._split = split
        self._rows_max = rows_max

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the operator emits for the records. Errors of Weir's own are not of a row."""
        warm, context = self._warm, self._warm.context
        emitted, sent = len(context.emitted), len(context.sent)
        records = self._split(batch)
        warm.state.mark()
        try:
            made = list(self._run.rows(warm, "process_batch", records))
        except Exception as error:
            if isinstance(error, WeirError) or not len(batch):
                raise
            warm.state.roll_back()
            del context.emitted[emitted:], context.sent[sent:]
            if len(batch) > 1:
                middle = len(batch) // 2
                yield from self.rows(batch.slice(0, middle))
                yield from self.rows(batch.slice(middle))
            else:
                self._set_aside(records, error)
        else:
            warm.state.settle()
            yield from made

    def _set_aside(self, record: pa.RecordBatch, error: Exception) -> None:
        from weir.operators.json_rows import rows_as_json

        [row] = rows_as_json(record)
        self._run.rejects.append(RejectedRow(error=describe(error), row=row))
        if len(self._run.rejects) > self._rows_max:
            raise too_many(self._warm.context.operator_id, self._rows_max) from error


def too_many(step: str, rows_max: int) -> PipelineError:
    """The error for a step that sets aside too many rows of a batch."""
    return PipelineError(
        f"Step {step!r} raises on more than {rows_max} rows of one batch, so something else than"
        " the rows is wrong: correct it, or allow more with weir.rejects.max-rows-per-batch."
    )


def close_stale(operator_id: OperatorId, operator: Operator) -> None:
    """Close an operator after a failure, or whose subtask has gone elsewhere.

    An error hides no other error, and harms no batch that does not need this operator.
    """
    try:
        operator.close()
    except Exception:
        _log.warning("Operator %r could not be closed.", operator_id, exc_info=True)


def _earliest(state: StateStore, domain: TimeDomain) -> int | None:
    """When the next timer of the domain is due; None without timers."""
    times = [timers.earliest_ms() for timers in state.timers if timers.domain is domain]
    return min((time_ms for time_ms in times if time_ms is not None), default=None)


def _is_current(warm: _Warm, setup: SubtaskSetup, subtask: int) -> bool:
    """Whether the subtask has the state that the driver has."""
    expected = (setup.token, setup.version, setup.runs.get(subtask))
    return (warm.token, warm.version, warm.run) == expected


def _attributes(operator: Operator) -> _Attributes:
    """The attributes that must not change, as they are now."""
    transient = transient_attributes(operator)
    return {
        name: (value, len(value) if isinstance(value, list | dict | set | deque) else None)
        for name, value in vars(operator).items()
        if name not in transient
    }


def _same(value: object, length: int | None, before: object, length_before: int | None) -> bool:
    """Whether an attribute is as it was: one object, equal plain values, or empty containers."""
    if length is not None:
        return length == length_before and (length == 0 or value is before)
    plain = (bool, int, float, str, bytes)
    return value is before or (
        type(value) is type(before) and type(value) in plain and value == before
    )


def key_columns(key_by: Sequence[Sequence[str]]) -> dict[str, str]:
    """The columns that hold the key in an operator's records: the name of each, and of its part."""
    if len(key_by) == 1:
        return {name: name for name in key_by[0]}
    return {tagged_column("key", name): name for columns in key_by[:1] for name in columns}
