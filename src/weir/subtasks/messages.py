"""The messages between the driver and the subtasks of Python operators, as JSON.

For each batch of a query, each of its operators gets a ``BatchOrder``, which all of its subtasks
read, and each subtask reports a ``BatchResult``. Between two batches, or after the last, a
subtask is called: by a ``SnapshotCall``, which it answers with its ``SubtaskState``, or a
``CloseCall``, which it answers with ``Closed``. Either may end as ``CallFailed``.

Small state travels inside the messages. Large state goes through files in the query's directory,
which have unique names and never change; ``Location`` and ``LayerLocation`` say where. Snapshots
keep both as they are here (``held_state.py``).

Each end encodes and decodes a message once. What does not match its type is refused: then driver
and executors run different versions of Weir.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weir.core.types import NAME, Count, OperatorId, Ordinal, Payload, Position, Timestamp
from weir.errors import PipelineError
from weir.operators.state.types import KEY_GROUPS, TimeDomain
from weir.sources.operator import ReaderReport

#: The number of a subtask. An operator has no more subtasks than key groups.
Subtask: TypeAlias = Annotated[int, Meta(ge=0, lt=KEY_GROUPS)]
KeyGroup: TypeAlias = Annotated[int, Meta(ge=0, lt=KEY_GROUPS)]
#: The first key group of a range, or the last plus 1.
KeyGroupBound: TypeAlias = Annotated[int, Meta(ge=0, le=KEY_GROUPS)]
#: The path of a file of state below the directory of operators: the operator's id, and a name.
StateFile: TypeAlias = Annotated[str, Meta(pattern=rf"\A{NAME}/[A-Za-z0-9_-]{{1,200}}\Z")]

M = TypeVar("M")


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message, or a part of a message."""


class FilePart(Message, frozen=True, kw_only=True):
    """Part of a file of state."""

    file: StateFile
    #: Where it begins, in bytes.
    offset: Count
    #: Bytes.
    length: Count

    @property
    def size(self) -> int:
        """Bytes."""
        return self.length


class LayerLocation(FilePart, frozen=True, kw_only=True):
    """Where a layer of keyed state is (``weir/operators/state/keyed.py``)."""

    #: The key groups that count: the first, and the last plus 1.
    groups: tuple[KeyGroupBound, KeyGroupBound]
    #: Keys with a value after this layer; unset in layers from another parallelism.
    keys: Count | UnsetType = UNSET

    @classmethod
    def of(cls, part: FilePart, *, groups: tuple[int, int], keys: int) -> LayerLocation:
        """The location of a layer that is this part of a file."""
        return cls(file=part.file, offset=part.offset, length=part.length, groups=groups, keys=keys)


class Location(Message, frozen=True, kw_only=True):
    """Where the bytes of lists or of raw state are: here, or in a part of a file."""

    inline: bytes | UnsetType = UNSET
    #: As in ``FilePart``; unset if the bytes are here.
    file: StateFile | UnsetType = UNSET
    offset: Count | UnsetType = UNSET
    length: Count | UnsetType = UNSET

    def __post_init__(self) -> None:
        place = [part is not UNSET for part in (self.file, self.offset, self.length)]
        if (self.inline is UNSET) != all(place) or any(place) != all(place):
            raise ValueError("a location is neither bytes nor a part of a file")

    @classmethod
    def within(cls, part: FilePart) -> Location:
        """The location of bytes that are in a file."""
        return cls(file=part.file, offset=part.offset, length=part.length)

    def contents(self, read: Callable[[FilePart], bytes]) -> bytes:
        """The bytes; ``read`` reads them if they are in a file."""
        if self.file is UNSET or self.offset is UNSET or self.length is UNSET:
            return b"" if self.inline is UNSET else self.inline
        return read(FilePart(file=self.file, offset=self.offset, length=self.length))

    @property
    def size(self) -> int:
        """Bytes."""
        if self.length is not UNSET:
            return self.length
        return 0 if self.inline is UNSET else len(self.inline)


class NextTimers(Message, frozen=True, kw_only=True):
    """When the next timer of a subtask is due, in each domain; None without timers."""

    #: The watermark, in milliseconds.
    event: int | None
    #: Milliseconds since the Unix epoch, on the driver's clock.
    processing: int | None

    def of(self, domain: TimeDomain) -> int | None:
        """The time in this domain."""
        return self.event if domain is TimeDomain.EVENT else self.processing


class SubtaskSetup(Message, frozen=True, kw_only=True):
    """What the subtasks of an operator go on from: their state, and the time.

    The process that ran the last batch goes on with the operator as it is if three things match:
    ``token``, ``version`` and the subtask's run. Otherwise the operator is restored.
    """

    #: Names the attempt, since processes may outlive it.
    token: str
    #: The batch after which the operator has this state; -1 before the first.
    version: Position
    #: By subtask: the run of that batch whose result counted, as it may have run more than once.
    runs: dict[Subtask, str]
    #: Where files of state are.
    directory: str
    #: By subtask: its list state.
    lists: dict[Subtask, Location]
    #: Keyed state, by state and subtask; layers, the oldest first.
    keyed: dict[str, dict[Subtask, tuple[LayerLocation, ...]]]
    #: Raw keyed state, by state and key group.
    groups: dict[str, dict[KeyGroup, Location]]
    #: What the attempt was restored from; None without a checkpoint.
    restored_checkpoint_id: Ordinal | None
    #: How many bytes of a subtask's keyed state may lie in memory.
    state_memory_bytes: Count
    has_coordinator: bool
    #: Whether the operator's input has an event time.
    has_event_time: bool
    #: Milliseconds since the Unix epoch, on the driver's clock.
    now_ms: Timestamp
    #: The watermark of the last batch, in milliseconds; None before the first.
    watermark_ms: int | None


class BatchOrder(Message, frozen=True, kw_only=True):
    """What the subtasks of an operator do in a batch besides processing its records."""

    setup: SubtaskSetup
    batch: Count
    #: Checkpoints that have completed, and those that were aborted, since the last notification.
    completed: tuple[Ordinal, ...]
    aborted: tuple[Ordinal, ...]
    #: By subtask: events from the coordinator, in their order.
    events: dict[Subtask, list[Payload]]
    #: The inputs of a connected operator that have ended, counted from 1.
    ended_inputs: tuple[Ordinal, ...]
    #: The watermark that follows the records, in milliseconds; None if it does not move.
    moves_to_ms: int | None
    #: Whether the input of all subtasks ends with this batch (``Operator.finish``).
    finish: bool
    #: The checkpoint whose barrier follows the batch; None without a barrier.
    barrier: Ordinal | None
    #: Of a source's readers: whether the batch may emit rows.
    may_read: bool
    #: Of a source's readers: those at the point of a checkpoint up to this id go on.
    induced_over: Count
    #: Of a source's readers: how far the slowest split is, in milliseconds of event time; None if
    #: that is not known.
    slowest_ms: int | None


class SnapshotCall(Message, frozen=True, kw_only=True, tag_field="call", tag="snapshot"):
    """Calls ``Operator.snapshot_state``. Answered by ``SubtaskState`` or ``CallFailed``."""

    setup: SubtaskSetup
    checkpoint_id: Ordinal
    #: When the checkpoint was triggered, in milliseconds since the Unix epoch.
    timestamp_ms: Timestamp
    #: The subtasks to restore and call; None: call those that are current where they are.
    restore: tuple[Subtask, ...] | None = None


class CloseCall(Message, frozen=True, kw_only=True, tag_field="call", tag="close"):
    """Calls the last notifications and ``Operator.close``. Answered by ``Closed`` or
    ``CallFailed``.
    """

    setup: SubtaskSetup
    #: As in ``BatchOrder``.
    completed: tuple[Ordinal, ...]
    aborted: tuple[Ordinal, ...]
    #: As in ``SnapshotCall``.
    restore: tuple[Subtask, ...] | None = None


class AbandonCall(Message, frozen=True, kw_only=True, tag_field="call", tag="abandon"):
    """Closes all subtasks of an operator that a process has. Not answered."""


Call: TypeAlias = SnapshotCall | CloseCall | AbandonCall


class KeyedChange(Message, frozen=True, kw_only=True):
    """How the layers of a subtask's keyed state have changed."""

    #: How many of them stay, from the oldest on.
    stay: Count
    #: The layer that follows these, or None.
    follows: LayerLocation | None


class SubtaskState(Message, frozen=True, kw_only=True, tag_field="answer", tag="state"):
    """The state of a subtask after a batch or a snapshot."""

    #: Names the run of the batch or call.
    run: str
    #: All list state.
    lists: Location
    #: By keyed state that has changed.
    keyed: dict[str, KeyedChange]
    #: Raw keyed state, by state and key group that has changed.
    groups: dict[str, dict[KeyGroup, Location]]
    timers: NextTimers


class Closed(Message, frozen=True, kw_only=True, tag_field="answer", tag="closed"):
    """The subtask is closed."""


class CallFailed(Message, frozen=True, kw_only=True, tag_field="answer", tag="failed"):
    """The operator raised."""

    #: The error, for people.
    error: str


CallResult: TypeAlias = SubtaskState | Closed | CallFailed


class RejectedRow(Message, frozen=True, kw_only=True):
    """A row on which an operator raised."""

    #: For people.
    error: str
    #: As JSON.
    row: str


class BatchResult(Message, frozen=True, kw_only=True):
    """What a subtask reports about a batch."""

    state: SubtaskState
    #: Events for the coordinator, in their order.
    sent: list[Payload]
    #: Rows that it emitted.
    rows: Count
    #: None unless the operator reads a source.
    reader: ReaderReport | None
    #: The rows that it has set aside.
    rejects: list[RejectedRow] = []


BATCH_ORDERS = msgspec.json.Decoder(BatchOrder)
CALLS: msgspec.json.Decoder[Call] = msgspec.json.Decoder(Call)
BATCH_RESULTS = msgspec.json.Decoder(BatchResult)
CALL_RESULTS: msgspec.json.Decoder[CallResult] = msgspec.json.Decoder(CallResult)


def encoded(message: Message) -> str:
    """The message as JSON."""
    return msgspec.json.encode(message).decode()


def received(text: str, kind: msgspec.json.Decoder[M], operator: OperatorId) -> M:
    """Decode a message for or from a subtask of this operator.

    Raises ``PipelineError`` if it is not of this kind.
    """
    try:
        return kind.decode(text)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise PipelineError(
            f"The driver and a worker of operator {operator!r} do not understand each other"
            f" ({error}): install the same version of weir-spark for the driver and all executors."
        ) from error
