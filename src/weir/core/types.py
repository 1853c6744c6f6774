"""The protocol's data types, in Flink's words: what events, effects and metadata are made of.

Everything here is a frozen value. Times ending in ``_ms`` are milliseconds: a ``timestamp`` since
the Unix epoch, all others on the runtime's monotonic clock. A *position* counts the batches of a
task.

Names and numbers have types that constrain their values. Whatever is read from disk, where anyone
may have written it, is decoded into these types and thereby validated: names become parts of paths,
and a path must not lead out of its directory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

#: A valid name or ``uid`` of a step; used as a file name, it stays within its directory.
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
_INT_MAX = 2**63 - 1
#: One component of a path below a directory. ``~`` stands for ``/`` where such a path becomes a
#: single file name.
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f-\x9f]{1,255}"
_KEY_PART = _PART.replace("[^/", "[^/~")

#: 32 hexadecimal digits; ``--fresh`` and ``--from-savepoint`` draw a new id (PROTOCOL P19).
JobId: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
#: The name of a vertex (a chain of steps that runs as one task). Unique in the job.
VertexId: TypeAlias = Annotated[str, Meta(pattern=rf"\A{NAME}\Z")]
#: The ``uid`` of a step if given, else its name. Unique in the job; state is matched by it.
OperatorId: TypeAlias = Annotated[str, Meta(pattern=rf"\A{NAME}\Z")]
#: The display name of an operator: its kind and the name of its step.
OperatorLabel: TypeAlias = Annotated[str, Meta(pattern=rf"\A(?:[a-z]+ )?{NAME}\Z")]
#: The path of a file or entry below a task's own directory.
StateKey: TypeAlias = Annotated[
    str, Meta(max_length=1024, pattern=rf"\A{_KEY_PART}(?:/{_KEY_PART})*\Z")
]
#: The path of a file below the directory of its snapshot or job.
RelativePath: TypeAlias = Annotated[
    str, Meta(max_length=2048, pattern=rf"\A{_PART}(?:/{_PART})*\Z")
]
#: A plain path or a URI.
AbsolutePath: TypeAlias = Annotated[
    str, Meta(pattern=r"\A(?:/|[A-Za-z][A-Za-z0-9+.-]*:/)[^\x00]*\Z")
]
#: SHA-256 of a whole ``_metadata`` file (``storage.metadata.checksum_of``): identifies a snapshot,
#: wherever it is stored.
MetadataChecksum: TypeAlias = Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
#: Ids and attempt numbers, counted from 1.
Ordinal: TypeAlias = Annotated[int, Meta(ge=1, le=_INT_MAX)]
#: Bytes, and anything else counted from 0.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_INT_MAX)]
#: A task's newest batch; -1 before the first.
Position: TypeAlias = Annotated[int, Meta(ge=-1, le=_INT_MAX)]
#: Milliseconds since the Unix epoch, up to the end of the year 9999.
Timestamp: TypeAlias = Annotated[int, Meta(ge=0, le=253402300799999)]
#: The same, or -1 for what has not ended.
EndTimestamp: TypeAlias = Annotated[int, Meta(ge=-1, le=253402300799999)]
#: Data of a sink, port, hook or coordinator, such as what a sink needs to commit what it staged:
#: JSON values only, never a pickle.
Payload: TypeAlias = dict[str, Any]


class SnapshotKind(enum.Enum):
    """The kind of a snapshot. Values are the names in Flink's REST API."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    SYNC_SAVEPOINT = "SYNC_SAVEPOINT"
    #: The checkpoint of a stop with checkpoint. Flink has no such thing; to its clients it is a
    #: CHECKPOINT.
    SYNC_CHECKPOINT = "SYNC_CHECKPOINT"

    @property
    def is_savepoint(self) -> bool:
        """Whether the snapshot is self-contained, belongs to the user and is never subsumed."""
        return self in (SnapshotKind.SAVEPOINT, SnapshotKind.SYNC_SAVEPOINT)

    @property
    def is_synchronous(self) -> bool:
        """Whether no record may be processed after its barrier: the job is being stopped."""
        return self in (SnapshotKind.SYNC_SAVEPOINT, SnapshotKind.SYNC_CHECKPOINT)

    @property
    def may_overtake(self) -> bool:
        """Whether its barrier may overtake unread records."""
        return self is SnapshotKind.CHECKPOINT

    @property
    def commits_side_effects(self) -> bool:
        """Whether sinks commit when it completes.

        An intermediate savepoint commits nothing (PROTOCOL P14).
        """
        return self is not SnapshotKind.SAVEPOINT


class CheckpointType(enum.Enum):
    """How much a user wants a checkpoint to write. Values are the names in Flink's REST API."""

    #: As ``execution.checkpointing.incremental`` says.
    CONFIGURED = "CONFIGURED"
    #: It refers to no file of an earlier checkpoint.
    FULL = "FULL"
    INCREMENTAL = "INCREMENTAL"


class CheckpointFailureReason(enum.Enum):
    """Why a checkpoint failed. The value is (counts, message); the messages are Flink's."""

    PERIODIC_SCHEDULER_SHUTDOWN = (False, "Periodic checkpoint scheduler is shut down.")
    TOO_MANY_CHECKPOINT_REQUESTS = (
        False,
        "The maximum number of queued checkpoint requests exceeded.",
    )
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        False,
        (
            "The minimum time between checkpoints is still pending."
            " Checkpoint will be triggered after the minimum time."
        ),
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = (False, "Not all required tasks are currently running.")
    IO_EXCEPTION = (
        True,
        "An Exception occurred while triggering the checkpoint. IO-problem detected.",
    )
    CHECKPOINT_ASYNC_EXCEPTION = (True, "Asynchronous task checkpoint failed.")
    CHECKPOINT_EXPIRED = (True, "Checkpoint expired before completing.")
    CHECKPOINT_SUBSUMED = (False, "Checkpoint has been subsumed.")
    CHECKPOINT_DECLINED = (True, "Checkpoint was declined.")
    CHECKPOINT_DECLINED_TASK_NOT_READY = (False, "Checkpoint was declined (tasks not ready).")
    CHECKPOINT_DECLINED_TASK_CLOSING = (False, "Checkpoint was declined (task is closing).")
    CHECKPOINT_DECLINED_SUBSUMED = (
        False,
        "Checkpoint was canceled because a barrier from newer checkpoint was received.",
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = (
        False,
        "Task received cancellation from one of its inputs.",
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = (False, "CheckpointCoordinator shutdown.")
    CHECKPOINT_COORDINATOR_SUSPEND = (False, "Checkpoint Coordinator is suspending.")
    TASK_FAILURE = (False, "Task has failed.")
    FINALIZE_CHECKPOINT_FAILURE = (True, "Failure to finalize checkpoint.")
    TRIGGER_CHECKPOINT_FAILURE = (False, "Trigger checkpoint failure.")

    @property
    def counts(self) -> bool:
        """Whether it counts against ``execution.checkpointing.tolerable-failed-checkpoints``."""
        return self.value[0]

    @property
    def counts_when_final(self) -> bool:
        """``counts`` for a final checkpoint.

        The job requests it until it completes, so a failed trigger counts too.
        """
        return self.counts or self is CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE

    @property
    def is_of_ending_tasks(self) -> bool:
        """Whether tasks that it needs ended in the meantime, so that nothing went wrong."""
        return self in (
            CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
            CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
        )

    @property
    def message(self) -> str:
        """The sentence that users see."""
        return self.value[1]

    def describe(self, detail: str = "") -> str:
        """The sentence, followed by ``detail`` if given."""
        return f"{self.message} {detail}".rstrip()


class TaskStatus(enum.Enum):
    """A task's status as the coordinator sees it (Flink: ExecutionState plus FLIP-147's wait)."""

    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    #: All records are processed and ``finish`` is done; the task waits for a checkpoint so that its
    #: sinks can commit.
    WAITING_FOR_FINAL_CHECKPOINT = "WAITING_FOR_FINAL_CHECKPOINT"
    FINISHED = "FINISHED"
    FAILED = "FAILED"

    @property
    def can_be_triggered(self) -> bool:
        """Whether a checkpoint can be triggered at the task.

        Waiting tasks count as running (PROTOCOL P31).
        """
        return self in (TaskStatus.RUNNING, TaskStatus.WAITING_FOR_FINAL_CHECKPOINT)


@dataclass(frozen=True, kw_only=True)
class StateHandle:
    """One immutable file of a task's state inside a checkpoint.

    ``key`` names the file in the task's own directory and identifies it across incremental
    checkpoints.
    """

    key: StateKey
    #: Relative to the job's checkpoint directory, or for a savepoint to the savepoint's directory.
    path: RelativePath
    #: Bytes.
    size: Count
    #: ``crc32:`` and 8 hexadecimal digits.
    checksum: Annotated[str, Meta(pattern=r"\Acrc32:[0-9a-f]{8}\Z")]


@dataclass(frozen=True, kw_only=True)
class Committable:
    """Output that a sink staged in one batch and has not confirmed as committed (PROTOCOL P5)."""

    sink: OperatorId
    #: The batch in which it was staged.
    position: Position
    payload: Payload
    #: The first checkpoint whose barrier came after it, of those that its sink does not leave out;
    #: None before that barrier.
    barrier: Ordinal | None = None
    #: The first checkpoint whose barrier came after it, if its sink leaves that checkpoint out.
    left_out: Ordinal | None = None
    #: The completed checkpoint under whose id it is (to be) committed; None before it completes.
    epoch: Ordinal | None = None
    #: Copies of its staged files: only in an intermediate savepoint, which may be restored where
    #: the originals are missing (PROTOCOL P14).
    files: tuple[StateHandle, ...] = ()


@dataclass(frozen=True, kw_only=True)
class InFlightSegment:
    """A segment that a checkpoint's barrier has overtaken.

    Its consumer had not read it, so it is part of the consumer's channel state and is read again
    after a restore (PROTOCOL P27).
    """

    #: The producer, after which the channel is named.
    channel: VertexId
    #: The producer's batch.
    position: Count
    #: Bytes of its files.
    size: Count
    #: What the port needs so that the consumer can read it: JSON values.
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class SentEvent:
    """An event that a subtask of an operator sent to its coordinator (MISSION C7)."""

    operator: OperatorId
    subtask: Count
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What an operator does with its state, in words: a restore compares it with the pipeline's.

    ``durable/changes.py`` compares. Nothing is read from the texts but whether they are equal.
    """

    #: The version of Weir's wording. Texts of different versions say nothing about a change.
    version: Ordinal
    #: What a source reads or a sink writes: ``Files at /data/out``. Empty if it is neither, or if
    #: that is not known.
    identity: str = ""
    #: The engine whose plan the rest was read from, such as ``Spark 4.1.1``: another release may
    #: write the same expression in another way. Empty if it is not from a plan.
    engine: str = ""
    #: ``group by k, window(ts, 1 minute): count(1)``, for each part of the operator that has state.
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OperatorState:
    """The metadata entry of an operator of a task (PROTOCOL P43: finished flags live here)."""

    operator_id: OperatorId
    name: OperatorLabel
    #: The operator has processed all its records and is not started again on restore.
    fully_finished: bool = False
    #: None if it is not known, as in checkpoints of earlier versions.
    fingerprint: Fingerprint | None = None


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """What a task acknowledged for a checkpoint: all it needs to continue from ``position``."""

    vertex: VertexId
    #: The last batch in the snapshot; -1 before the first.
    position: Position
    operators: tuple[OperatorState, ...]
    #: Tasks whose channels it reads, in the order in which it stores their watermarks.
    inputs: tuple[VertexId, ...] = ()
    #: Small entries of the task's directory by name, stored inside the metadata.
    entries: dict[StateKey, str] = field(default_factory=dict)
    files: tuple[StateHandle, ...] = ()
    #: Everything staged and not confirmed, from every epoch up to this checkpoint (PROTOCOL P5).
    committables: tuple[Committable, ...] = ()
    #: Overtaken segments of its channels, in channel order; only in an unaligned checkpoint. Their
    #: files are in ``files``.
    in_flight: tuple[InFlightSegment, ...] = ()
    #: Events of its operators that, as of the snapshot, their coordinators have not handled; a
    #: restored task sends them again (PROTOCOL P41).
    sent_events: tuple[SentEvent, ...] = ()

    @property
    def fully_finished(self) -> bool:
        """Whether every operator is fully finished, so a restore does not start the task."""
        return all(operator.fully_finished for operator in self.operators)

    @property
    def all_files(self) -> tuple[StateHandle, ...]:
        """Every file the checkpoint holds for the task: its state and copies of staged output."""
        return (
            *self.files,
            *(handle for committable in self.committables for handle in committable.files),
        )

    @property
    def state_size(self) -> int:
        """Bytes of the whole state, including files of earlier checkpoints."""
        files = self.all_files if self.committables else self.files
        return sum([handle.size for handle in files]) + sum(map(len, self.entries.values()))


class Counted(enum.Enum):
    """What happened to rows that are counted."""

    #: The engine's stateful operator dropped them, since the watermark had passed them.
    LATE = "late"
    #: The step set them aside.
    REJECTED = "rejected"
    #: They broke a rule of the step.
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class RowCount:
    """Rows of a vertex that were dropped as late or set aside, or that broke a rule."""

    kind: Counted
    #: The step, or the engine's operator with its number in the query.
    by: str
    #: The name of the rule that they broke.
    rule: str
    rows: Count


@dataclass(frozen=True, kw_only=True)
class SnapshotMetrics:
    """The cost of a task's snapshot (MISSION B5), and what its batches have counted."""

    sync_duration_ms: Count = 0
    async_duration_ms: Count = 0
    alignment_duration_ms: Count = 0
    #: From the trigger's timestamp to the start of the synchronous part.
    start_delay_ms: Count = 0
    #: Bytes that this checkpoint wrote itself; the full size is ``TaskState.state_size``.
    checkpointed_size: Count = 0
    #: Whether the checkpoint's barrier overtook segments, and their bytes.
    unaligned: bool = False
    persisted_size: Count = 0
    #: In the batches since the newest checkpoint that had completed, in this attempt.
    counted: tuple[RowCount, ...] = ()


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
    #: Jobs whose rows precede this job's at its targets, each with the newest of its checkpoints
    #: that this job knows of: jobs that it continued from a snapshot, and jobs that a user accepted
    #: (PROTOCOL P21).
    ancestors: dict[JobId, Ordinal] = field(default_factory=dict)
    #: State returned to master hooks on restore, by identifier, sorted; a hook that returned
    #: nothing has no entry (P44).
    hook_states: dict[str, Payload] = field(default_factory=dict)
    #: State returned to operator coordinators on restore, by operator, sorted; a coordinator that
    #: returned nothing has no entry.
    coordinator_states: dict[OperatorId, Payload] = field(default_factory=dict)

    def task(self, vertex: VertexId) -> TaskState | None:
        """The state of a vertex; None if the checkpoint has none."""
        return next((task for task in self.tasks if task.vertex == vertex), None)

    @property
    def states(self) -> dict[VertexId, TaskState]:
        """The state of each vertex of the job that took it."""
        return {task.vertex: task for task in self.tasks}

    @property
    def files(self) -> frozenset[str]:
        """Paths of all files that the checkpoint needs."""
        return frozenset(handle.path for task in self.tasks for handle in task.all_files)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What is known of a failure besides its message.

    Made by the code that saw the failure; the core only compares keys.
    """

    #: The same text whenever the same thing fails at the same point; "" if that is unknown, or if
    #: the failure may be transient.
    key: str = ""
    #: What failed to be read or processed: a split at its position, or where the range of a batch
    #: begins. The same text as long as no completed checkpoint contains that input, and another
    #: afterwards. "" if the failure is not that of an input. Law: without a key only if "".
    input: str = ""
    #: Stack traces for humans, bounded.
    trace: str = field(default="", repr=False)


#: Nothing is known of the failure.
UNKNOWN = Cause()


class Recorded(enum.Enum):
    """How an attempt to make something durable ended (PROTOCOL P17).

    Lateness is a result, not an exception.
    """

    #: The record is ours and durable.
    WON = "WON"
    #: Nothing was recorded, for certain.
    FAILED = "FAILED"
    #: A newer attempt holds the job: exit and touch no file.
    FENCED = "FENCED"
