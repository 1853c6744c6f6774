"""The nouns of the protocol, in Flink's words: what events, effects and metadata are made of.

Everything here is a frozen value. Times ending in ``_ms`` are milliseconds: ``timestamp`` ones
since the Unix epoch, all others on the runtime's monotonic clock. A *position* says how far a task
has come; it grows by one with each step (under Spark a step is a micro-batch, but that word stops
at ``weir/spark``).

Names and numbers have types that say what they may be. Whoever reads one back from a disk, where
anyone may have written it, decodes it into these types and so checks it: names become parts of
paths, and a path must not lead out of its directory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

#: What a step may be named, and its ``uid``: as the name of a file it stays in its directory.
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
_INT_MAX = 2**63 - 1
#: One name of a path below a directory. ``~`` stands for ``/`` where such a path becomes the name
#: of one file.
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f-\x9f]{1,255}"
_KEY_PART = _PART.replace("[^/", "[^/~")

#: 32 hexadecimal digits; drawn anew by ``--fresh`` and ``--from-savepoint`` (PROTOCOL P19).
JobId: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
#: The name of a vertex (a chain of steps that runs as one task). Unique in the job.
VertexId: TypeAlias = Annotated[str, Meta(pattern=rf"\A{NAME}\Z")]
#: The name of a step, or its ``uid`` where one is given. Unique in the job; state is matched by it.
OperatorId: TypeAlias = Annotated[str, Meta(pattern=rf"\A{NAME}\Z")]
#: What people call an operator: its kind and the name of its step.
OperatorLabel: TypeAlias = Annotated[str, Meta(pattern=rf"\A(?:[a-z]+ )?{NAME}\Z")]
#: The path of a file or of an entry below a task's own directory.
StateKey: TypeAlias = Annotated[
    str, Meta(max_length=1024, pattern=rf"\A{_KEY_PART}(?:/{_KEY_PART})*\Z")
]
#: The path of a file below the directory of its snapshot, or of its job.
RelativePath: TypeAlias = Annotated[
    str, Meta(max_length=2048, pattern=rf"\A{_PART}(?:/{_PART})*\Z")
]
#: A plain path or a URI.
AbsolutePath: TypeAlias = Annotated[
    str, Meta(pattern=r"\A(?:/|[A-Za-z][A-Za-z0-9+.-]*:/)[^\x00]*\Z")
]
#: SHA-256 of a whole ``_metadata`` file (``state.metadata.checksum_of``), by which a snapshot is
#: known wherever it lies.
MetadataChecksum: TypeAlias = Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
#: Ids and attempts are counted from 1.
Ordinal: TypeAlias = Annotated[int, Meta(ge=1, le=_INT_MAX)]
#: Bytes, and whatever else is counted from 0.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_INT_MAX)]
#: How far a task has come; -1 before the first step.
Position: TypeAlias = Annotated[int, Meta(ge=-1, le=_INT_MAX)]
#: Milliseconds since the Unix epoch, up to the end of the year 9999.
Timestamp: TypeAlias = Annotated[int, Meta(ge=0, le=253402300799999)]
#: What a sink needs to commit something that it staged: JSON values only, never a pickle.
Payload: TypeAlias = dict[str, Any]


class SnapshotKind(enum.Enum):
    """What is taken. Values are the names of Flink's REST API."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    SYNC_SAVEPOINT = "SYNC_SAVEPOINT"

    @property
    def is_savepoint(self) -> bool:
        """Whether the snapshot is self-contained, belongs to the user and is never subsumed."""
        return self is not SnapshotKind.CHECKPOINT

    @property
    def is_synchronous(self) -> bool:
        """Whether no record may be processed after its barrier (stop with savepoint)."""
        return self is SnapshotKind.SYNC_SAVEPOINT

    @property
    def commits_side_effects(self) -> bool:
        """Whether its completion lets sinks commit. An intermediate savepoint commits nothing
        (PROTOCOL P14)."""
        return self is not SnapshotKind.SAVEPOINT


class CheckpointType(enum.Enum):
    """How much a user wants a checkpoint to write. Values are the names of Flink's REST API."""

    #: As ``execution.checkpointing.incremental`` says.
    CONFIGURED = "CONFIGURED"
    #: No file of any earlier checkpoint is referred to.
    FULL = "FULL"
    INCREMENTAL = "INCREMENTAL"


class TaskStatus(enum.Enum):
    """Where a task stands, as the coordinator sees it (Flink: ExecutionState plus the wait of
    FLIP-147)."""

    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    #: All records are processed, and ``finish`` is done; a checkpoint is awaited so that sinks can
    #: commit.
    WAITING_FOR_FINAL_CHECKPOINT = "WAITING_FOR_FINAL_CHECKPOINT"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    @property
    def can_be_triggered(self) -> bool:
        """Whether a checkpoint can be triggered at the task (PROTOCOL P31: waiting tasks count as
        running)."""
        return self in (TaskStatus.RUNNING, TaskStatus.WAITING_FOR_FINAL_CHECKPOINT)


@dataclass(frozen=True, kw_only=True)
class StateHandle:
    """One immutable file of a task's state inside a checkpoint.

    ``key`` names the file in the task's own directory and is its identity for incremental
    checkpoints.
    """

    key: StateKey
    #: Relative to the job's checkpoint directory for a checkpoint, to the savepoint's directory for
    #: a savepoint.
    path: RelativePath
    #: Bytes.
    size: Count
    #: ``crc32:`` and 8 hexadecimal digits.
    checksum: Annotated[str, Meta(pattern=r"\Acrc32:[0-9a-f]{8}\Z")]


@dataclass(frozen=True, kw_only=True)
class Committable:
    """Something that one sink staged in one step and that is not yet confirmed as committed
    (PROTOCOL P5)."""

    sink: OperatorId
    #: The step that staged it.
    position: Position
    payload: Payload
    #: The first checkpoint whose barrier came after it; None until there was one.
    barrier: Ordinal | None = None
    #: The completed checkpoint under whose id it is (to be) committed; None until one completed.
    epoch: Ordinal | None = None
    #: Copies of the files that it staged: only in an intermediate savepoint, which may be restored
    #: where they are not (PROTOCOL P14).
    files: tuple[StateHandle, ...] = ()

    def with_barrier(self, checkpoint_id: int) -> Committable:
        """The same, marked with its first barrier; an earlier mark stays."""
        return self if self.barrier is not None else replace(self, barrier=checkpoint_id)

    def with_epoch(self, checkpoint_id: int) -> Committable:
        """The same, assigned to the checkpoint that commits it; an earlier assignment stays."""
        return self if self.epoch is not None else replace(self, epoch=checkpoint_id)


@dataclass(frozen=True, kw_only=True)
class InFlightSegment:
    """A segment that a checkpoint's barrier has overtaken: its consumer had not read it, so it is
    state of the consumer's channel, and is read again after a restore (PROTOCOL P27)."""

    #: The producer, after which the channel is named.
    channel: VertexId
    #: The producer's step.
    position: Count
    #: Bytes of its files.
    size: Count
    #: What the port needs to let the consumer read it: JSON values.
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class SentEvent:
    """An event that a subtask of an operator has sent to its coordinator (MISSION C7)."""

    operator: OperatorId
    subtask: Count
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class OperatorState:
    """What the metadata says of one operator of a task (PROTOCOL P43: finished flags live here)."""

    operator_id: OperatorId
    name: OperatorLabel
    #: All records of this operator are processed, and it is not started again on restore.
    fully_finished: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """What one task acknowledged for one checkpoint: all that it needs to go on from
    ``position``."""

    vertex: VertexId
    #: The last step that is part of the snapshot; -1 before the first.
    position: Position
    operators: tuple[OperatorState, ...]
    #: Tasks whose channels it reads, in the order in which it knows their watermarks.
    inputs: tuple[VertexId, ...] = ()
    #: Small entries of the task's directory by their names, kept inside the metadata.
    entries: dict[StateKey, str] = field(default_factory=dict)
    files: tuple[StateHandle, ...] = ()
    #: Everything staged and not confirmed, of every epoch up to this checkpoint (PROTOCOL P5).
    committables: tuple[Committable, ...] = ()
    #: What its channels hold for it, in the order of each; only an unaligned checkpoint has any.
    #: The files are in ``files``.
    in_flight: tuple[InFlightSegment, ...] = ()
    #: Events of its operators that their coordinators have not handled, as far as the snapshot
    #: goes; sent again by a restored task (PROTOCOL P41).
    sent_events: tuple[SentEvent, ...] = ()

    @property
    def fully_finished(self) -> bool:
        """Whether every operator is fully finished, so that a restore does not start the task."""
        return all(operator.fully_finished for operator in self.operators)

    @property
    def all_files(self) -> tuple[StateHandle, ...]:
        """Every file that the checkpoint holds for the task: its state, and copies of staged
        output."""
        return (
            *self.files,
            *(handle for committable in self.committables for handle in committable.files),
        )

    @property
    def state_size(self) -> int:
        """Bytes of the whole state, files of earlier checkpoints included."""
        files = self.all_files if self.committables else self.files
        return sum([handle.size for handle in files]) + sum(map(len, self.entries.values()))


@dataclass(frozen=True, kw_only=True)
class SnapshotMetrics:
    """What taking a snapshot in one task cost (MISSION B5)."""

    sync_duration_ms: int = 0
    async_duration_ms: int = 0
    alignment_duration_ms: int = 0
    #: From the trigger's timestamp to the begin of the synchronous part.
    start_delay_ms: int = 0
    #: Bytes that this checkpoint wrote itself; the full size is the task state's.
    checkpointed_size: int = 0
    #: Whether the checkpoint's barrier has overtaken segments, and the bytes of these.
    unaligned: bool = False
    persisted_size: int = 0


@dataclass(frozen=True, kw_only=True)
class CompletedCheckpoint:
    """A checkpoint or savepoint whose metadata and record are durable (MISSION A11)."""

    job_id: JobId
    checkpoint_id: Ordinal
    kind: SnapshotKind
    timestamp_ms: Timestamp
    completion_timestamp_ms: Timestamp
    #: The attempt that took it.
    attempt: Ordinal
    tasks: tuple[TaskState, ...]
    #: Directory of ``_metadata``: absolute path or URI.
    external_path: str
    #: The job was drained: every operator is fully finished (PROTOCOL P35).
    drained: bool = False
    #: Jobs whose rows lie at the job's targets before its own, each with the checkpoint up to which
    #: it knows of them: those that it went on from by a snapshot, and those that a user accepted
    #: (PROTOCOL P21).
    ancestors: dict[JobId, Ordinal] = field(default_factory=dict)
    #: What master hooks want back on restore, by identifier, sorted; one that returned nothing has
    #: no entry (P44).
    hook_states: dict[str, Payload] = field(default_factory=dict)
    #: What operator coordinators want back on restore, by operator, sorted; one that returned
    #: nothing has no entry.
    coordinator_states: dict[OperatorId, Payload] = field(default_factory=dict)

    def task(self, vertex: VertexId) -> TaskState | None:
        """The state of one vertex, or None if the checkpoint has none."""
        return next((task for task in self.tasks if task.vertex == vertex), None)

    @property
    def files(self) -> frozenset[str]:
        """Paths of all state files that it needs."""
        return frozenset(handle.path for task in self.tasks for handle in task.all_files)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What is known of a failure beside the sentence that tells it. Whoever saw it makes this; the
    core compares keys."""

    #: The same text whenever the same fails at the same point; "" if that is not known, or may pass
    #: by itself.
    key: str = ""
    #: Stack traces for people, bounded.
    trace: str = field(default="", repr=False)


#: Nothing is known.
UNKNOWN = Cause()


class Recorded(enum.Enum):
    """How the attempt to make something durable ended (PROTOCOL P17). Lateness is a result, not an
    exception."""

    #: The record is ours and durable.
    WON = "WON"
    #: Nothing was recorded, and it is certain that nothing was.
    FAILED = "FAILED"
    #: A newer attempt holds the job: exit and touch no file.
    FENCED = "FENCED"
