"""``Source``: the contract of sources that Weir reads itself, its own and users' (Flink's FLIP-27).

A source is cut into *splits*: ranges of a table, partitions of a topic, files. A
``SplitEnumerator`` runs in the driver, once; it finds splits and assigns them. A ``SourceReader``
runs in each subtask, in Spark's Python workers, and reads the splits that it was assigned.

Who keeps what in a checkpoint (MISSION C2; PROTOCOL P2, P41):

1. A split is either with the enumerator or with one reader. The enumerator's state has the splits
   that are not assigned, or what it needs to find them again; the readers' state has the others,
   each with the position up to which its rows were emitted.
2. Every assignment made before the enumerator's snapshot is in a reader's snapshot of the same
   checkpoint; assignments made after it are not. So after a restore each split is in one place
   again, and is read on from its position.
3. If the parallelism has changed, the readers' splits are distributed again.
4. An open split request is in no checkpoint: the runtime repeats it in the next attempt.

Splits and enumerator states are stored as JSON, never as a pickle.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Protocol,
    TypeVar,
    get_args,
    get_type_hints,
)

import msgspec

from weir.coordinators.base import DriverContext
from weir.core.types import Payload
from weir.errors import PipelineError
from weir.json_values import read_back
from weir.lineage.datasets import Dataset
from weir.operators.base import SubtaskContext
from weir.storage.records import converted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class SourceSplit(Protocol):
    """A part of the input, usually a frozen dataclass: what to read, and from which position on."""

    @property
    def split_id(self) -> str:
        """Identifies the split within its source, whatever its position."""
        ...


SplitT = TypeVar("SplitT", bound=SourceSplit)


class SplitSerializer(Generic[SplitT]):
    """Converts splits to JSON values and back (Flink: ``SimpleVersionedSerializer``).

    This class serves dataclasses and ``msgspec.Struct``s of JSON values, dates and ``Decimal``;
    what it reads back is checked against the types of the fields. To change the fields of a split,
    raise ``version`` and override ``decode`` to read the older versions.
    """

    #: Stored with each split.
    version: int = 1

    def __init__(self, kind: type[SplitT]) -> None:
        """``kind`` is the class of the splits."""
        self._kind = kind

    def encode(self, split: SplitT) -> Payload:
        """The split as a map of JSON values.

        Raises ``ValueError`` or ``TypeError`` if reading it back would not give an equal split.
        """
        data: Payload = read_back(msgspec.to_builtins(split))
        if self.decode(self.version, data) != split:
            raise ValueError(f"it reads back as {self.decode(self.version, data)!r}")
        return data

    def decode(self, version: int, data: Payload) -> SplitT:
        """The split that ``encode`` of this version got.

        Raises ``ValueError`` for an unknown version, and for anything else than a split.
        """
        if version != self.version:
            raise ValueError(
                f"it has version {version}, and {type(self).__name__} reads only {self.version}"
            )
        try:
            return converted(data, self._kind)
        finally:
            for cls in _dataclasses_in(self._kind):
                # What msgspec keeps in a class cannot be pickled with it, and Spark pickles the
                # classes of a pipeline file again in each attempt.
                if "__msgspec_cache__" in vars(cls):
                    del cls.__msgspec_cache__


@cache
def _dataclasses_in(kind: type) -> frozenset[Any]:
    """The dataclasses among a type and, at any depth, the types of its fields."""
    found: set[Any] = set()
    left: list[Any] = [kind]
    while left:
        nested = left.pop()
        left += get_args(nested)
        if isinstance(nested, type) and is_dataclass(nested) and nested not in found:
            found.add(nested)
            left += get_type_hints(nested).values()
    return frozenset(found)


class SplitEnumeratorContext(DriverContext, Protocol):
    """The services available to an enumerator (Flink has the same name).

    The subtasks are the readers, and the coordinator's thread is the enumerator's.
    """

    @property
    def registered_readers(self) -> frozenset[int]:
        """The subtasks that run, to which splits may be assigned."""
        ...

    @property
    def available_now(self) -> bool:
        """Whether the run ends once what is there at the start of the attempt has been read.

        The enumerator then signals the end to each reader, also of an unbounded source. The state
        must be such that a later run finds what has come since.
        """
        ...

    def assign_splits(self, splits: Sequence[SplitT], subtask: int) -> None:
        """Assign splits to a reader; it has them in every checkpoint taken from now on.

        Raises ``PipelineError`` if the reader is not registered, or a split cannot be serialized.
        """
        ...

    def signal_no_more_splits(self, subtask: int) -> None:
        """The reader will get no more splits: it ends when it has read those that it has.

        Only for a bounded source, or with ``available_now``; otherwise raises ``PipelineError``.
        """
        ...

    def send_event_to_reader(self, subtask: int, event: Payload) -> None:
        """Send an event, a map of JSON values, to ``SourceReader.handle_source_event``."""
        ...


class SplitEnumerator(abc.ABC, Generic[SplitT]):
    """Finds splits and assigns them to readers. Runs in the driver, once per source.

    Calls never overlap. A slow call delays the checkpoints that wait for the enumerator's snapshot:
    leave blocking work to ``context.call_async``. An exception fails the job, which is then
    restored from its newest checkpoint with a new enumerator.
    """

    #: Keys of its state that a restore or a snapshot may change, such as a count of calls. The
    #: simulator compares the others with the restored state.
    changed_by_reset: Sequence[str] = ()

    def start(self) -> None:
        """Begin to discover splits. Called once, before anything else."""
        return

    def add_reader(self, subtask: int) -> None:
        """A reader runs. Called once per attempt for each, also after a restore.

        Splits that it had in the checkpoint are with it already, or with other readers.
        """
        return

    @abc.abstractmethod
    def handle_split_request(self, subtask: int) -> None:
        """A reader asks for splits: assign some now or later, or signal that no more will come.

        It does not ask again before either has happened.
        """

    def handle_source_event(self, subtask: int, event: Payload) -> None:
        """Handle an event that a reader sent with ``send_source_event``."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_source_event")

    def handle_request(self, request: Payload) -> Payload | None:
        """Handle a request from outside the job; see ``OperatorCoordinator.handle_request``."""
        raise ValueError(f"{type(self).__name__} does not accept requests: {request}")

    def unassigned_splits(self) -> int | None:
        """How many known splits no reader has (Flink's metric ``unassignedSplits``).

        A job that was drained reports them as unread. None if that is not known.
        """
        return None

    @abc.abstractmethod
    def add_splits_back(self, splits: Sequence[SplitT], subtask: int) -> None:
        """Take back splits whose assignment is lost, to assign them again.

        Their reader was reset to a checkpoint that does not have them, while the enumerator went
        on. Under Spark all readers fail together with the enumerator, whose restored state has such
        splits as not assigned, and this is not called (PROTOCOL P39).
        """

    @abc.abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Payload:
        """What is not assigned, as a map of JSON values, for ``Source.restore_enumerator``.

        It must not be changed afterwards. ``encode_splits`` makes splits part of it. If the readers
        induce checkpoints, request this checkpoint from the external system here:
        events sent from this call reach the readers before the checkpoint can be taken.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable. Ids grow; a call can be lost in a failure."""
        return

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete."""
        return

    def close(self) -> None:
        """Release resources: the attempt or the driver ends. Not called if it is killed."""
        return


class SourceReaderContext(SubtaskContext, Protocol):
    """The environment of a reader, which is a subtask of the source (Flink has the same name)."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        ...

    @property
    def induced_over(self) -> int:
        """For readers that induce checkpoints: those up to this id are over, taken or not.

        Their points mean nothing any more.
        """
        ...

    def send_split_request(self) -> None:
        """Ask the enumerator for splits.

        A request is open until the answer has come; meanwhile further calls do nothing.
        """
        ...

    def send_source_event(self, event: Payload) -> None:
        """Send an event, a map of JSON values, to ``SplitEnumerator.handle_source_event``."""
        ...


@dataclass(frozen=True, kw_only=True)
class SplitRecords:
    """What a reader has read of one split (Flink: ``RecordsWithSplitIds``)."""

    split_id: str
    #: Rows with the columns of the source's schema, in any order. None: no rows at the
    #: moment, which ``Watermarks`` with ``idle_after_ms`` must know.
    batch: pa.RecordBatch | None = None
    #: Nothing is left to read; the split leaves the reader's state.
    finished: bool = False


class SourceReader(abc.ABC, Generic[SplitT]):
    """Reads the splits of one subtask.

    Most sources derive from ``SplitReader``, which holds the splits and their positions. This is
    the full interface, for a reader that reads several splits through one client.

    The calls of one batch, in order: ``handle_source_event``, ``add_splits`` and
    ``notify_no_more_splits`` for what has come, ``read``, ``snapshot_state``. The positions and the
    rows of a batch become part of a checkpoint together, or not at all. Spark may run the next
    batch in another process: there a new reader gets ``add_splits`` with the result of the last
    ``snapshot_state``, then ``start``, and its other attributes are not carried over.

    An exception fails the job, which is restored from its newest checkpoint.
    """

    #: Call it before each read of a split, with the split at its position, as ``SplitReader`` does:
    #: if the read fails, or kills the process, the failure names the split, and counts as another
    #: failure at this position. It is set once the reader is created.
    announce: Callable[[SplitT], None] = staticmethod(lambda split: None)

    def start(self) -> None:
        """Called in each new process, after the splits of the last snapshot were added."""
        return

    @abc.abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Take splits: newly assigned splits, or those of a snapshot, each at its position."""

    def notify_no_more_splits(self) -> None:
        """No more splits will be assigned in this attempt."""
        return

    def handle_source_event(self, event: Payload) -> None:
        """Handle an event that the enumerator sent with ``send_event_to_reader``."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_source_event")

    @abc.abstractmethod
    def read(self, max_rows: int) -> Iterable[SplitRecords]:
        """Read about ``max_rows`` rows, without waiting for rows that do not exist yet.

        All that it yields is taken. If that has rows, it is called again at once; otherwise after
        the source's ``poll_interval_ms``, while there are splits, or when something has come. Not
        called while nothing may be emitted, as at a drain.
        """

    @abc.abstractmethod
    def snapshot_state(self) -> Sequence[SplitT]:
        """The unfinished splits, each at the position after the last row that ``read`` yielded.

        Called after each batch.
        """

    def pause_or_resume_splits(self, paused: frozenset[str]) -> None:
        """From now on, read nothing from the splits with these ids, and from all others.

        Called when the set changes, if the source has ``Watermarks`` with ``max_drift_ms``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no pause_or_resume_splits")

    def close(self) -> None:
        """The process stops running this subtask. Not called if it is killed."""
        return


class ExternallyInducedSourceReader(SourceReader[SplitT]):
    """A reader that says itself when a checkpoint is due (Flink has the same name; MISSION B4).

    For systems that define their own consistent points: the source sets ``externally_induced``.
    ``SplitEnumerator.snapshot_state`` asks such a system for a point; where a reader meets it, its
    part of the checkpoint ends. The checkpoint is taken when all readers with splits have met the
    point, each at its own, and those at the point read nothing meanwhile. If a reader never meets
    it, the checkpoint expires, and all read on.
    """

    @abc.abstractmethod
    def should_trigger_checkpoint(self) -> int | None:
        """The id of a checkpoint whose point has been reached, or None.

        Called after each result of ``read``, and after the last: rows yielded so far are in the
        checkpoint, and all later rows are not. A reader of several splits returns the id when all
        of them are at the point. After an id, ``read`` is not resumed, and not called again before
        the checkpoint is taken or aborted. An id up to ``context.induced_over`` is ignored.
        """


class Source(abc.ABC, Generic[SplitT]):
    """A source for ``Job.source``, with its splits, its enumerator and its readers.

    The instance is pickled to Spark's workers, so its attributes must be picklable: open what is
    not in the enumerator's or reader's ``start``.
    """

    #: The schema of the rows, as a Spark ``StructType`` or DDL.
    schema: str | StructType
    #: Whether the input has an end, at which the job finishes.
    bounded: bool = False
    #: Whether its enumerator can find what is there at the start of an attempt, and no more, if
    #: ``context.available_now`` says so.
    supports_available_now: bool = False
    #: How many rows ``SourceReader.read`` is asked for.
    max_rows_per_batch: int = 100_000
    #: How soon to call ``SourceReader.read`` again after it had no rows, in milliseconds.
    poll_interval_ms: int = 1_000
    #: Whether its readers are ``ExternallyInducedSourceReader``, without exception.
    externally_induced: bool = False
    #: Whether its readers go on without rows that are gone before they were read. Set when the job
    #: starts, for the steps of ``--accept-lost-rows``.
    accepts_lost_rows: bool = False

    def dataset(self) -> Dataset | None:
        """The input as OpenLineage names it (``lineage/datasets.py``); None without such a name."""
        return None

    def identity(self) -> str:
        """What it reads, the same in every run: ``FileSource at /data/landing``.

        Checkpoints keep it, and the job does not go on with the positions of another input without
        its user's decision. Without a password. The default is the class and ``dataset()``.
        """
        known = self.dataset()
        where = "" if known is None else f" at {known.namespace}/{known.name.lstrip('/')}"
        return f"{type(self).__name__}{where}"

    @abc.abstractmethod
    def split_serializer(self) -> SplitSerializer[SplitT]:
        """How splits are stored in events and checkpoints."""

    @abc.abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator[SplitT]:
        """A new enumerator, for a start without a checkpoint. Called in the driver."""

    @abc.abstractmethod
    def restore_enumerator(
        self, context: SplitEnumeratorContext, state: Payload
    ) -> SplitEnumerator[SplitT]:
        """An enumerator with the state of a checkpoint. Called in the driver.

        ``state`` comes from disk: raise ``ValueError`` if it is not what ``snapshot_state`` made.
        """

    @abc.abstractmethod
    def create_reader(self, context: SourceReaderContext) -> SourceReader[SplitT]:
        """A new reader. Called in each worker process that runs a subtask."""


def encode_splits(serializer: SplitSerializer[SplitT], splits: Iterable[SplitT]) -> list[Payload]:
    """Splits with the version of their serializer, for an enumerator's state.

    Raises ``ValueError`` naming the split that cannot be serialized.
    """
    encoded: list[Payload] = []
    for split in splits:
        try:
            encoded.append({"version": serializer.version, "split": serializer.encode(split)})
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the split {split.split_id!r} cannot be serialized: {error}"
            ) from error
    return encoded


def decode_splits(serializer: SplitSerializer[SplitT], encoded: object) -> list[SplitT]:
    """The splits that ``encode_splits`` got. Raises ``ValueError`` for anything else."""
    return [
        serializer.decode(encoded_split.version, encoded_split.split)
        for encoded_split in converted(encoded, list[_Encoded])
    ]


class _Encoded(msgspec.Struct, frozen=True):
    version: int
    split: dict[str, Any]


def check_available_now(name: str, source: Source[Any]) -> None:
    """Raise ``PipelineError`` unless the enumerator can find what is there now, and no more."""
    if not source.supports_available_now:
        raise PipelineError(
            f"Source {name!r} is a {type(source).__name__}, which cannot be read up to what is"
            " there now (available_now, --until-idle): make its enumerator follow"
            " context.available_now, and set supports_available_now = True in the class."
        )
