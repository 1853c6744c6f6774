"""``OperatorChain``: the Python operators of one task, on the driver.

It gives the subtasks their orders for each batch and takes up their results. See PROTOCOL P6::

    take_orders   the planning call is answered: events, and the barrier that follows the batch
    begin_batch   inside the batch, before it is computed: the orders (``messages.py``)
    end_batch     all N subtasks have reported: state, events
    snapshot      while the query rests: ``snapshot_state``, then the state as an entry and the
                  files that it names
    close         everything is committed: the last notifications, then ``close``

All N subtasks must run in every batch, even without rows, so that every event is handled. If a
subtask did not run in a batch, that is an error, never a gap.

A snapshot needs no batch, since state is handed over after every batch anyway. Only operators with
a ``snapshot_state`` are called for a checkpoint, and only operators that emit rows before the
barrier get a batch.

A final checkpoint keeps the state of operators that commit by themselves, although they have
finished: if the driver dies before they are notified of it, the next driver notifies them.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import msgspec

from weir.core.graph import StepKind, Vertex
from weir.core.messages.channel import MAX_WATERMARK_MS
from weir.core.messages.coordination import DeliverEvent
from weir.core.messages.task import AnswerPlanning, InducedCheckpoint, StartDrain, TakeSnapshot
from weir.core.types import OperatorId, Payload, SentEvent, VertexId
from weir.errors import InvariantError, OperatorError, PipelineError, StorageError, invariant
from weir.operators.base import Operator, overrides, takes_part, takes_snapshots
from weir.operators.connected import CoOperator
from weir.operators.state.store import (
    StateStore,
    any_union,
    decode_lists,
    encode_lists,
    redistributed,
)
from weir.operators.state.types import TimeDomain
from weir.runtime.concurrency import Clock
from weir.sources.operator import READ
from weir.storage.records import decoded
from weir.subtasks.held_state import (
    HeldState,
    KeptOperator,
    dealt_layers,
    dealt_timers,
    earliest_of,
    encode_kept,
)
from weir.subtasks.messages import (
    AbandonCall,
    BatchOrder,
    BatchResult,
    Call,
    CallFailed,
    CallResult,
    CloseCall,
    FilePart,
    Location,
    RejectedRow,
    SnapshotCall,
    SubtaskSetup,
    SubtaskState,
)
from weir.subtasks.source_readers import SourceReaders
from weir.subtasks.worker import INLINE_BYTES

if TYPE_CHECKING:
    from weir.storage.filesystem import FileSystem

#: The directory of operators' files in a query's directory, and the snapshot entry that names them.
DIRECTORY = "operators"
ENTRY = "weir-operators"

#: How many completed, and how many aborted, checkpoints a batch reports at most.
_TOLD = 100


@dataclass(frozen=True, kw_only=True)
class ProcessStep:
    """The arguments of ``Stream.process``."""

    operator: Operator
    #: The number of subtasks.
    parallelism: int
    #: How many bytes of a subtask's keyed state may lie in memory.
    state_memory_bytes: int
    #: The columns of the key in each input; empty without a key.
    key_by: tuple[tuple[str, ...], ...]
    has_coordinator: bool


class SubtaskPort(Protocol):
    """Where the subtasks of one task run."""

    def order(self, name: OperatorId, order: BatchOrder) -> None:
        """Give an operator's subtasks their order for the batch that this thread runs."""
        ...

    def results(self, name: OperatorId, batch: int) -> Mapping[int, BatchResult]:
        """Take the results of a batch, by subtask: of each, that of the run which counts."""
        ...

    def call(self, name: OperatorId, call: Call) -> Mapping[int, CallResult]:
        """Call the subtasks ``call.restore`` or, if that is None, those that are current."""
        ...


class StateDirectory(Protocol):
    """A query's directory."""

    @property
    def fs(self) -> FileSystem:
        """Its file system."""
        ...

    def file(self, key: str) -> str:
        """The path of the file with this key."""
        ...


@dataclass(frozen=True, kw_only=True)
class BatchEnd:
    """What the operators of a query report about a batch."""

    sent: tuple[SentEvent, ...] = ()
    #: All readers of the source have reported the end of their input, in this batch or before.
    input_ended: bool = False
    #: Rows that the readers of the source emitted.
    rows_read: int = 0
    #: The rows that operators have set aside, each with its operator.
    rejects: tuple[tuple[OperatorId, RejectedRow], ...] = ()
    #: How far readers of the source are that induce checkpoints.
    induced: InducedCheckpoint | None = None


class OperatorChain:
    """The Python operators of one vertex in one attempt."""

    def __init__(
        self,
        vertex: Vertex,
        steps: Mapping[OperatorId, ProcessStep],
        *,
        subtasks: SubtaskPort,
        token: str,
        clock: Clock,
        unique: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """``steps`` are the vertex's operators by id, in the order of the chain.

        ``token`` names the attempt, since worker processes may outlive it. ``unique`` makes unique
        names of files.
        """
        self._vertex = vertex
        self._steps = dict(steps)
        self._subtasks = subtasks
        self._token = token
        self._clock = clock
        self._unique = unique
        self._readers = SourceReaders(
            (
                (step.operator_id, subtask)
                for step in vertex.steps
                if step.enumerated
                for subtask in range(steps[step.operator_id].parallelism)
            ),
            clock,
            available_now=vertex.available_now,
        )
        #: The state after each of the last two batches, by operator. While the drain's batch runs,
        #: the state before it may still become part of a checkpoint.
        self._held: dict[int, dict[OperatorId, HeldState]] = {}
        self._directory: StateDirectory | None = None
        self._restored_checkpoint_id: int | None = None
        #: The last batch, whose state the next batch starts from.
        self._version = -1
        #: By operator: the columns of its key, each a name and a type, now and in what it restores.
        self._keys: dict[OperatorId, tuple[tuple[str, str], ...]] = {}
        self._saved_keys: dict[OperatorId, tuple[tuple[str, str], ...]] = {}
        #: The operators whose input has an event time.
        self._timed: set[OperatorId] = set()
        #: The watermark of the last batch, and the next batch's; None before the first.
        self._watermark_ms: int | None = None
        self._next_watermark_ms: int | None = None
        #: Channels whose records have ended: known to the operators, and with the next batch.
        self._ended: set[VertexId] = set()
        self._ending: set[VertexId] = set()
        self._events: tuple[DeliverEvent, ...] = ()
        self._barrier: int | None = None
        self._finishes = False
        self._reads = True
        self._induced_over = 0
        #: Files that a snapshot has replaced since the last batch.
        self._replaced: set[str] = set()
        #: Checkpoints that operators are notified of with the next batch; only the newest if the
        #: query rests for long. Other threads append to them.
        self.completed: deque[int] = deque(maxlen=_TOLD)
        self.aborted: deque[int] = deque(maxlen=_TOLD)
        self._forced = False
        #: Whether workers may have subtasks.
        self._ran = False

    def add_timed(self, name: OperatorId) -> None:
        """The input of an operator has an event time."""
        self._timed.add(name)

    def add_key(self, name: OperatorId, key: Sequence[tuple[str, str]]) -> None:
        """The names and types of the columns by which an operator is keyed.

        Raises ``PipelineError`` if its state was saved by another key.
        """
        self._keys[name] = tuple(key)
        self._check_key(name)

    def open(
        self, directory: StateDirectory, position: int, restored_checkpoint_id: int | None
    ) -> None:
        """Load the state before the query starts in its directory after ``position``.

        A restored query finds its state there. ``restored_checkpoint_id``: what the attempt started
        from. Raises ``StorageError`` if the state cannot be read.
        """
        self._directory = directory
        self._restored_checkpoint_id = restored_checkpoint_id
        self._version = position
        kept = _kept(directory)
        # Earlier versions did not keep the key.
        self._saved_keys = {
            name: operator.key
            for name, operator in kept.items()
            if operator.key and (operator.groups or operator.keyed)
        }
        for name in self._steps:
            self._check_key(name)
        self._held = {
            position: {
                name: (self._restored(name, kept[name]) if name in kept else HeldState(lists={}))
                for name in self._steps
            }
        }

    # -- one batch

    def take_orders(self, effect: AnswerPlanning | StartDrain) -> None:
        """Take up the events, the barrier and the end of the input for the next batch."""
        self._events = effect.events
        self._finishes = isinstance(effect, StartDrain)
        self._barrier = effect.barrier if isinstance(effect, AnswerPlanning) else None
        if isinstance(effect, StartDrain):
            self._ending = set(self._vertex.inputs)
        else:
            at_end = (name for name, ms in effect.watermarks_ms.items() if ms == MAX_WATERMARK_MS)
            self._ending = set(at_end)
        # Rows of the drain's batch would meet the maximal watermark.
        self._reads = isinstance(effect, AnswerPlanning) and not effect.only_events
        if isinstance(effect, AnswerPlanning):
            self._induced_over = effect.induced_over or 0

    def forces_batch(self, answer: AnswerPlanning, *, first: bool, ends_by_itself: bool) -> bool:
        """Take up the answer's orders; return whether the next batch must run, even without rows.

        The ``first`` batch is forced, since operators would never be opened without it, and so is a
        batch with events, a barrier, or news for operators (``has_news``). Where the query ends by
        itself when its input is used up, only a barrier forces a batch right after a forced batch,
        or the query would not end as long as there are events.
        """
        self.take_orders(answer)
        news = bool(answer.events) or self.has_news
        wanted = news and not (ends_by_itself and self._forced)
        self._forced = wanted or answer.barrier is not None or first
        return self._forced

    def planned(self, next_watermark_ms: int) -> None:
        """All batches so far are complete, and the next will have this watermark.

        It is 0 before any event time is known.
        """
        self._next_watermark_ms = next_watermark_ms or None

    def resume_at(self, watermark_ms: int | None) -> None:
        """The watermark of the last batch before this attempt, called before its first batch.

        Operators go on with it if they have seen it. Otherwise, as in snapshots of earlier
        versions, the first batch moves it.
        """
        seen = [self._held[self._version][name].watermark_ms for name in self._timed]
        known = [time_ms for time_ms in (*seen, watermark_ms or None) if time_ms is not None]
        self._watermark_ms = min(known) if len(known) == len(seen) + 1 else None

    @property
    def has_news(self) -> bool:
        """Whether an operator waits for a batch, even without rows.

        Checkpoints have ended of which it wants to be notified, a timer is due, or a reader wants
        to read.
        """
        waits = any(self._wants_notice(name, self.completed, self.aborted) for name in self._steps)
        waits = waits or any(self._ending_inputs(name) for name in self._steps)
        waits = waits or self._readers.may_go_on(self._induced_over)
        return waits or self.emits_for_watermark or self.timer_in_ms == 0

    @property
    def emits_for_watermark(self) -> bool:
        """Whether the next batch's watermark makes an operator emit rows that are older than it."""
        moves_to = self._moves_to_ms(self._next_watermark_ms)
        return moves_to is not None and any(
            overrides(self._steps[name].operator, "on_watermark")
            or _is_due(held.earliest_ms(TimeDomain.EVENT), moves_to)
            for name, held in self._held[self._version].items()
            if name in self._timed
        )

    def output_watermark_ms(self, reached_ms: int | None) -> int | None:
        """The watermark for consumers of a query that has reached ``reached_ms``.

        It is held back while operators have yet to emit older rows (PROTOCOL P25).
        """
        if not reached_ms or not self.emits_for_watermark:
            return reached_ms
        return None if self._watermark_ms is None else min(reached_ms, self._watermark_ms)

    @property
    def source_watermark_ms(self) -> int | None:
        """The watermark of the source's readers for the next batch; None to leave it as it is.

        A batch before a barrier, or with events only, gets no watermark.
        """
        return self._readers.watermark_ms if self._reads and self._barrier is None else None

    @property
    def timer_in_ms(self) -> int | None:
        """How long until a processing-time timer is due, or a reader wants to read; or None."""
        held = self._held[self._version].values()
        times = [state.earliest_ms(TimeDomain.PROCESSING) for state in held]
        times += self._readers.reads_at_ms
        earliest = earliest_of(times)
        return None if earliest is None else max(0, earliest - self._clock.wall_ms())

    def read_so_far(self) -> tuple[int, int]:
        """How many rows all readers have read before the next batch, and splits to their end.

        Raises ``WeirError`` if that cannot be read.
        """
        counts: list[tuple[int, int]] = []
        for step in self._vertex.steps:
            if step.enumerated:
                held = self._held[self._version][step.operator_id]
                for location in held.lists.values():
                    lists = decode_lists(location.contents(self._read))
                    counts += StateStore(lists, operator_id=step.operator_id).list_state(READ).get()
        return sum(rows for rows, _ in counts), sum(splits for _, splits in counts)

    def begin_batch(self, batch: int) -> None:
        """Give the orders. Call it in the thread that runs the batch."""
        self._ran = True
        completed, aborted = _taken(self.completed), _taken(self.aborted)
        moves_to = self._moves_to_ms(
            MAX_WATERMARK_MS if self._finishes else self._next_watermark_ms
        )
        for name in self._steps:
            events: dict[int, list[Payload]] = {}
            for event in self._events:
                if event.operator == name:
                    events.setdefault(event.subtask, []).append(event.payload)
            order = BatchOrder(
                setup=self._setup(name),
                batch=batch,
                completed=completed,
                aborted=aborted,
                events=events,
                ended_inputs=self._ending_inputs(name),
                moves_to_ms=moves_to if name in self._timed or self._finishes else None,
                finish=self._finishes,
                barrier=self._barrier,
                may_read=self._reads,
                induced_over=self._induced_over,
                slowest_ms=self._readers.slowest_ms,
            )
            self._subtasks.order(name, order)

    def end_batch(self, batch: int) -> BatchEnd:
        """Take up the results once the batch is computed.

        Raises ``PipelineError`` if a subtask did not run.
        """
        sent: list[SentEvent] = []
        after: dict[OperatorId, HeldState] = {}
        rejects: list[tuple[OperatorId, RejectedRow]] = []
        rows_read = 0
        for name, step in self._steps.items():
            found = self._subtasks.results(name, batch)
            if found.keys() != set(range(step.parallelism)):
                raise PipelineError(
                    f"Operator {name!r} ran as the subtasks {sorted(found)} in batch {batch}, not"
                    f" as 0 to {step.parallelism - 1}: the steps after it in its query must not"
                    " change partitions (coalesce, union with itself); otherwise start a new"
                    " query for them with start_new_chain()."
                )
            before = self._held[self._version][name]
            states = {subtask: result.state for subtask, result in found.items()}
            after[name] = replace(before.after(states), watermark_ms=self._next_watermark_ms)
            for subtask, result in sorted(found.items()):
                sent += [
                    SentEvent(operator=name, subtask=subtask, payload=event)
                    for event in result.sent
                ]
                rejects += [(name, row) for row in result.rejects]
                rows_read += self._readers.take(name, subtask, result)
        older = {
            position: held for position, held in self._held.items() if position < self._version
        }
        self._held = {self._version: self._held[self._version], batch: after}
        self._delete((_files(older) | self._replaced) - _files(self._held))
        self._replaced = set()
        self._version = batch
        self._watermark_ms = self._next_watermark_ms
        self._ended |= self._ending
        for event in self._events:
            self._readers.got(event)
        self._events, self._barrier = (), None
        return BatchEnd(
            sent=tuple(sent),
            input_ended=self._readers.input_ended,
            rows_read=rows_read,
            rejects=tuple(rejects),
            induced=self._readers.induced if self._vertex.is_externally_induced else None,
        )

    def unread_splits(self) -> dict[OperatorId, int]:
        """How many splits that their readers have may have rows, by source."""
        sources = (step.operator_id for step in self._vertex.steps if step.enumerated)
        return {source: self._readers.unread(source) for source in sources}

    # -- between two batches, and after the last

    def snapshot(self, effect: TakeSnapshot) -> tuple[dict[str, str], list[str]]:
        """Take the snapshot of every operator, in the order of the chain (PROTOCOL P6, P43).

        After the drain only of those with code of their own for checkpoints, which may still have
        something to commit. Notifications wait for the next batch or ``close``: not every operator
        is called here, and an error here must not lose them.

        Returns entries, and keys of files in the query's directory. Raises ``OperatorError`` if an
        operator cannot take it.
        """
        # A drained query stays as it is, and may be beyond its last batch: sinks have staged what
        # they had held back.
        position = self._version if effect.finished else effect.position
        kept: dict[OperatorId, KeptOperator] = {}
        files: set[str] = set()
        for name in self._steps:
            operator = self._steps[name].operator
            if effect.finished and not takes_part(operator):
                continue
            if takes_snapshots(operator):
                invariant(position == self._version, f"the snapshot of {name} comes too late")
                self._call_snapshot(name, effect)
            held = self._held[position][name]
            files |= held.files
            kept[name] = KeptOperator(
                parallelism=self._steps[name].parallelism,
                lists=held.lists,
                groups=held.groups,
                keyed=held.keyed,
                timers=held.timers,
                watermark_ms=held.watermark_ms if name in self._timed else None,
                key=self._keys.get(name, self._saved_keys.get(name, ())),
            )
        entries = {ENTRY: encode_kept(kept)} if kept else {}
        return entries, [f"{DIRECTORY}/{file}" for file in sorted(files)]

    def close(self) -> None:
        """Notify the operators of the checkpoints that have ended, then close them (MISSION E5).

        Raises ``OperatorError`` if an operator raises.
        """
        completed, aborted = _taken(self.completed), _taken(self.aborted)
        for name in self._steps:
            call = CloseCall(setup=self._setup(name), completed=completed, aborted=aborted)
            news = self._wants_notice(name, completed, aborted)
            for subtask, result in sorted(self._call(name, call, restore=news).items()):
                if isinstance(result, CallFailed):
                    raise OperatorError(
                        f"Subtask {subtask} of operator {name!r} could not be closed:"
                        f" {result.error}.",
                        operator=name,
                    )

    def abandon(self) -> None:
        """Close the subtasks that workers still have: no batch will follow."""
        for name in self._steps if self._ran else ():
            self._subtasks.call(name, AbandonCall())

    # -- inside

    def _setup(self, name: OperatorId) -> SubtaskSetup:
        """What the next batch or call of an operator goes on from."""
        held, is_timed = self._held[self._version][name], name in self._timed
        return SubtaskSetup(
            token=self._token,
            version=self._version,
            runs=held.runs,
            directory=self._path(),
            lists=held.lists,
            keyed=held.keyed,
            groups=held.groups,
            restored_checkpoint_id=self._restored_checkpoint_id,
            state_memory_bytes=self._steps[name].state_memory_bytes,
            has_coordinator=self._steps[name].has_coordinator,
            has_event_time=is_timed,
            now_ms=self._clock.wall_ms(),
            watermark_ms=self._watermark_ms if is_timed else None,
        )

    def _ending_inputs(self, name: OperatorId) -> tuple[int, ...]:
        """The inputs of a connected operator whose end is news to it, by number.

        Each of them is a channel, so all of its rows were in earlier batches.
        """
        if not isinstance(self._steps[name].operator, CoOperator):
            return ()
        [step] = (candidate for candidate in self._vertex.steps if candidate.operator_id == name)
        ending = self._ending - self._ended
        return tuple(
            number for number, upstream in enumerate(step.inputs, start=1) if upstream in ending
        )

    def _moves_to_ms(self, watermark_ms: int | None) -> int | None:
        """The watermark if it is news to operators."""
        known = self._watermark_ms
        moves = watermark_ms is not None and (known is None or watermark_ms > known)
        return watermark_ms if moves else None

    def _call_snapshot(self, name: OperatorId, effect: TakeSnapshot) -> None:
        """Call ``snapshot_state`` of all subtasks, and take up the state after it.

        Raises ``OperatorError`` if a subtask raises; it goes on from the state before.
        """
        call = SnapshotCall(
            setup=self._setup(name),
            checkpoint_id=effect.checkpoint_id,
            timestamp_ms=effect.timestamp_ms,
        )
        results = self._call(name, call, restore=True)
        states = {
            subtask: state for subtask, state in results.items() if isinstance(state, SubtaskState)
        }
        before = self._held[self._version][name]
        after = before.after(states)
        self._held[self._version][name] = after
        self._replaced |= before.files - after.files
        for subtask, result in sorted(results.items()):
            if isinstance(result, CallFailed):
                raise OperatorError(f"Subtask {subtask}: {result.error}", operator=name)

    def _call(
        self, name: OperatorId, call: SnapshotCall | CloseCall, *, restore: bool
    ) -> dict[int, CallResult]:
        """Run a call; return the results by subtask.

        With ``restore``, subtasks that no process has are restored and called too.
        """
        self._ran = True
        results = dict(self._subtasks.call(name, call))
        every = range(self._steps[name].parallelism)
        missing = tuple(subtask for subtask in every if subtask not in results)
        if restore and missing:
            results |= self._subtasks.call(name, msgspec.structs.replace(call, restore=missing))
            invariant(
                len(results) == self._steps[name].parallelism, f"subtasks of {name} did not answer"
            )
        return results

    def _check_key(self, name: OperatorId) -> None:
        """Raise ``PipelineError`` if restored state has another key than the stream has now."""
        was, now = self._saved_keys.get(name), self._keys.get(name)
        if was is None or now is None or was == now:
            return
        if len(was) == len(now) == 1 and was[0][1] == now[0][1]:
            # The name of a single column is not part of the key.
            return
        raise PipelineError(
            f"Operator {name!r} is keyed by {_listed(now)}, but its state was saved by"
            f" {_listed(was)}, so no key would find its values: key the stream as before, or give"
            " the step another uid, to begin without this state."
        )

    def _wants_notice(self, name: OperatorId, completed: Sized, aborted: Sized) -> bool:
        """Whether the operator wants to be notified of one of these checkpoints."""
        operator = self._steps[name].operator
        return (bool(completed) and overrides(operator, "notify_checkpoint_complete")) or (
            bool(aborted) and overrides(operator, "notify_checkpoint_aborted")
        )

    def _restored(self, name: OperatorId, kept: KeptOperator) -> HeldState:
        """The state, redistributed to the current number of subtasks.

        Union lists go to every subtask, even if the number has not changed.
        """
        lists, before = kept.lists, kept.parallelism
        parallelism = self._steps[name].parallelism
        if lists:
            found = [decode_lists(lists[subtask].contents(self._read)) for subtask in sorted(lists)]
            if before != parallelism or any_union(found):
                dealt = redistributed(found, parallelism)
                lists = {
                    subtask: self._placed(name, subtask, encode_lists(given))
                    for subtask, given in enumerate(dealt)
                }
        keyed = {
            state: dealt_layers(by_subtask, before, parallelism)
            for state, by_subtask in kept.keyed.items()
        }
        return HeldState(
            lists=lists,
            groups=kept.groups,
            keyed=keyed,
            timers=dealt_timers(kept.timers, before, parallelism),
            watermark_ms=kept.watermark_ms,
        )

    def _placed(self, name: OperatorId, subtask: int, data: bytes) -> Location:
        """Store redistributed lists where a worker finds them."""
        if len(data) <= INLINE_BYTES:
            return Location(inline=data)
        file = f"{name}/{subtask}-restored-{self._unique()}"
        self._opened.fs.make_directory(f"{self._path()}/{name}")
        self._opened.fs.write(f"{self._path()}/{file}", data)
        return Location(file=file, offset=0, length=len(data))

    def _read(self, part: FilePart) -> bytes:
        data = self._opened.fs.read(self._opened.file(f"{DIRECTORY}/{part.file}"))
        return data[part.offset : part.offset + part.length]

    def _path(self) -> str:
        return self._opened.file(DIRECTORY)

    @property
    def _opened(self) -> StateDirectory:
        if self._directory is None:
            raise InvariantError(f"the operators of {self._vertex.name} were not opened")
        return self._directory

    def _delete(self, files: Iterable[str]) -> None:
        for file in files:
            self._opened.fs.delete(self._opened.file(f"{DIRECTORY}/{file}"))


def _files(held: Mapping[int, Mapping[OperatorId, HeldState]]) -> set[str]:
    return {
        file
        for of_batch in held.values()
        for held_state in of_batch.values()
        for file in held_state.files
    }


def _is_due(time_ms: int | None, until_ms: int) -> bool:
    return time_ms is not None and time_ms <= until_ms


def _listed(key: Iterable[Iterable[str]]) -> str:
    return ", ".join(f"{name!r} ({kind})" for name, kind in key) or "nothing"


def _taken(ids: deque[int]) -> tuple[int, ...]:
    return tuple(ids.popleft() for _ in range(len(ids)))


def _kept(directory: StateDirectory) -> dict[OperatorId, KeptOperator]:
    """The state that a snapshot has brought into the directory."""
    path = directory.file(ENTRY)
    if directory.fs.status(path) is None:
        return {}
    try:
        return decoded(directory.fs.read(path), dict[OperatorId, KeptOperator])
    except ValueError as error:
        raise StorageError(
            f"{path} does not have the state of operators ({error}): restore from another"
            " checkpoint or savepoint."
        ) from error


def process_steps(vertex: Vertex) -> tuple[OperatorId, ...]:
    """The ids of a vertex's Python operators, including a source's readers."""
    return tuple(
        step.operator_id
        for step in vertex.steps
        if step.kind is StepKind.PROCESS or step.enumerated
    )
