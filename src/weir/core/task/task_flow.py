"""``TaskFlow``: what a task may do next, the part of ``StreamTask`` below its events.

Whatever has happened, the same question is asked: what stands in the way of what? The order of the answers is the law
of this file::

    1. a task that has committed all, and whose consumers have read all, takes what checkpoint waits, and then none any more:
       it is closing, and finishes as soon as nothing is under way
    2. while it initializes, or a synchronous part runs: nothing
    3. control entries of its channels are acted on, which may align a checkpoint
    4. if the query rests and no checkpoint waits, a barrier that may overtakes what was not read (unaligned checkpoints);
       before a checkpoint is taken, operators prepare for it in a step that reads nothing more of the channels (P6)
    5. if the query rests, records end where those of all channels have, where its readers have said so, or where the job is
       stopped
    6. a checkpoint that waits is taken, if the state is stable; the savepoint of a stop not before the drain
    7. records flow: the planning call is answered, with what may be read of the channels, unless a consumer is too far
       behind; or the drain begins

A state is stable while the planning call is held and when the records have ended.

Producers are told how far their channels were read, so that they can delete what nobody needs. While a part of a snapshot
runs that has segments of a channel in flight, that word is held back (PROTOCOL P27).
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.core.messages.channel import (
    CancelCheckpointMarker,
    EndOfPartition,
    EndOfUserRecords,
    SegmentsConsumed,
)
from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.messages.task import (
    AnswerPlanning,
    CloseOperators,
    CommitSinks,
    DropSnapshot,
    StartDrain,
    StreamTaskEffect,
    TaskErrored,
)
from weir.core.status import OperatorStatus, Records, next_operator_status, next_task_status
from weir.core.task.barrier_handler import Aligned
from weir.core.task.commits import PendingCommits
from weir.core.task.events import TaskEvents
from weir.core.task.input_gate import InputGate
from weir.core.task.output_channels import DEFAULT_BOUND, ChannelBound, OutputChannels
from weir.core.task.reports import TaskReports
from weir.core.task.snapshots import TaskSnapshot, TaskSnapshots, barrier_of, trigger_of
from weir.core.types import OperatorId, OperatorState, SentEvent, TaskStatus, VertexId
from weir.errors import invariant


class TaskFlow:
    """State and steps of one task in one attempt."""

    def __init__(
        self,
        *,
        vertex: VertexId,
        attempt: int,
        operators: tuple[OperatorState, ...],
        sinks: tuple[OperatorId, ...],
        bounded: bool,
        requires_final_checkpoint: bool,
        inputs: tuple[VertexId, ...] = (),
        consumers: tuple[VertexId, ...] = (),
        bound: ChannelBound = DEFAULT_BOUND,
        aligned_timeout_ms: int | None = None,
        prepares_for_barriers: bool = False,
        coordinated: bool = False,
        sent_events: tuple[SentEvent, ...] = (),
    ) -> None:
        """``sinks`` are the task's two-phase-commit sinks; ``bounded`` says whether its records can end. ``inputs`` are the
        tasks whose channels it reads, ``consumers`` those that read its own and may be behind by ``bound``. A barrier may
        overtake records ``aligned_timeout_ms`` after the first one of its checkpoint came; None: it never may. With
        ``prepares_for_barriers`` its operators do so in the step before each. ``coordinated``: operators of it have
        coordinators; ``sent_events`` are those that they had sent, restored."""
        self._vertex = vertex
        self._report = TaskReports(vertex=vertex, attempt=attempt, operators=operators)
        self._bounded = bounded
        self._requires_final_checkpoint = requires_final_checkpoint
        self._status = TaskStatus.INITIALIZING
        self._records = Records.FLOWING
        #: Its readers have said that nothing is left to be read.
        self._input_ended = False
        #: The last complete step; while the drain runs, the one before it.
        self._position = -1
        #: The planning call that is not answered; the query rests.
        self._call: int | None = None
        #: Triggers not yet taken, in the order of their ids.
        self._waiting: dict[int, TriggerCheckpoint] = {}
        self._snapshots = TaskSnapshots()
        #: The savepoint of a stop that the task was triggered for itself (rule 2).
        self._stop_trigger: int | None = None
        self._operators = OperatorStatus.RUNNING
        #: ``CloseOperators`` is under way.
        self._closing_operators = False
        self._commits = PendingCommits(sinks)
        self._gate = InputGate(inputs)
        #: Where a call was last answered though there was nothing to read. After each step one is: the query may have a
        #: step of its own to take, without records, by the watermark that the last one moved.
        self._idle_at = -1
        self._aligned_timeout_ms = aligned_timeout_ms
        #: How far channels were read of which the producers are not told yet.
        self._held_back: dict[VertexId, int] = {}
        self._outputs = OutputChannels(vertex, consumers, bound)
        #: The completed checkpoint after whose commit the task is finished (PROTOCOL P29).
        self._final: int | None = None
        self._final_committed = False
        #: The task takes no trigger any more and is finished as soon as nothing is under way (rule 7).
        self._closing = False
        self._newest_trigger = 0  # ids only grow
        self._prepares = prepares_for_barriers
        self._coordinated = coordinated
        #: The newest checkpoint whose barrier a step has carried.
        self._carried_barrier = 0
        self._events = TaskEvents(vertex, attempt, sent_events)
        #: The alignment of those that wait, where there was one.
        self._alignments: dict[int, Aligned] = {}
        #: The time of the event that is being handled.
        self._now_ms = 0

    @property
    def status(self) -> TaskStatus:
        """Where the task stands."""
        return self._status

    @property
    def operator_status(self) -> OperatorStatus:
        """Where the operators of its chain stand."""
        return self._operators

    @property
    def _stops_with(self) -> int | None:
        """The savepoint with which the job stops, as far as the task knows."""
        return self._stop_trigger if self._stop_trigger is not None else self._gate.stops_with

    @property
    def _is_done(self) -> bool:
        """Whether the task has only its consumers to wait for. Until they have read all, it takes part in checkpoints."""
        if self._final_committed:
            return True
        return self._records is Records.DRAINED and not self._waits_at_the_end

    @property
    def _waits_at_the_end(self) -> bool:
        """Whether the end of its records is followed by a checkpoint: a stop is, whatever its operators need (P36)."""
        return self._requires_final_checkpoint or self._stops_with is not None

    def _advance(self) -> list[StreamTaskEffect]:
        """Do what nothing stands in the way of any more: the module's docstring has the order."""
        if self._closing:
            return self._finish()
        if self._is_done and self._outputs.all_consumed and not self._waiting:
            return self._close() + self._finish()
        if self._status is TaskStatus.INITIALIZING or self._snapshots.is_syncing:
            return []
        return self._read_control() + self._between_steps()

    def _between_steps(self) -> list[StreamTaskEffect]:
        """Rules 4 to 7."""
        n = self._may_overtake()
        if n is not None and self._wants_barrier_step(n):
            return self._answer(barrier=n)
        if n is not None:
            self._on_aligned(self._gate.overtake(self._now_ms))
        first = next(iter(self._waiting.values()), None)
        if first is not None and self._wants_barrier_step(first.checkpoint_id) and not self._drains(first):
            return self._answer(barrier=first.checkpoint_id)
        effects: list[StreamTaskEffect] = []
        if self._call is not None and self._records is Records.FLOWING:
            effects = self._end_records(first)
        is_stable = self._call is not None or self._records is not Records.FLOWING
        if first is not None and is_stable and not self._drains_before(first):
            return effects + self._take(self._waiting.pop(first.checkpoint_id))
        return effects + self._flow_on()

    def _may_overtake(self) -> int | None:
        """The checkpoint whose barrier may pass what was not read."""
        if self._call is None or self._aligned_timeout_ms is None or self._waiting:
            return None
        return self._gate.may_overtake(self._now_ms, self._aligned_timeout_ms)

    def _end_records(self, first: TriggerCheckpoint | None) -> list[StreamTaskEffect]:
        """End the records if the channels' have ended, or, without channels, if the readers say so or the job is stopped
        (MISSION E2)."""
        if self._input_ended:
            finished = True
        elif self._gate.channels:
            if not self._gate.records_ended:
                return []
            finished = self._gate.all_finished
            if not finished and first is None and self._prepares:
                # What operators put out before the barrier comes before the end of the records (PROTOCOL P6, P28).
                return []
        elif first is not None and first.kind.is_synchronous:
            finished = first.drain
        else:
            return []
        if finished:
            self._records = Records.ENDED
            return []
        self._records = Records.STOPPED
        return self._tell_end(finished=False) + self._move(TaskStatus.WAITING_FOR_FINAL_CHECKPOINT)

    def _wants_barrier_step(self, checkpoint_id: int) -> bool:
        """Whether operators still prepare for this checkpoint, in a step of their own, before it is taken (PROTOCOL P6)."""
        due = self._prepares and self._carried_barrier < checkpoint_id
        return due and self._call is not None and self._records is Records.FLOWING

    def _drains(self, first: TriggerCheckpoint) -> bool:
        """Whether it is the savepoint of a stop that drains: what operators still put out comes with the drain."""
        channels_end = self._gate.records_ended and self._gate.all_finished
        ends = first.drain or self._input_ended or channels_end
        return first.kind.is_synchronous and ends

    def _tell_end(self, *, finished: bool) -> list[StreamTaskEffect]:
        """Tell the consumers that no record comes any more."""
        return [*self._outputs.broadcast(EndOfUserRecords(finished=finished, savepoint=self._stops_with))]

    def _drains_before(self, trigger: TriggerCheckpoint) -> bool:
        """Whether the drain comes first: a savepoint that ends the job has all that its windows put out."""
        return trigger.kind.is_synchronous and self._records in (Records.ENDED, Records.DRAINING)

    def _read_control(self) -> list[StreamTaskEffect]:
        """Act on what the channels say beside records. A checkpoint that is aligned waits to be taken."""
        effects: list[StreamTaskEffect] = []
        for outcome in self._gate.process(self._now_ms):
            if isinstance(outcome, Aligned):
                self._on_aligned(outcome)
            else:
                n = outcome.checkpoint_id
                effects += [self._report.misaligned(n, outcome.reason), *self._cancel(n)]
        return effects

    def _on_aligned(self, aligned: Aligned) -> None:
        n = aligned.barrier.checkpoint_id
        self._waiting[n] = trigger_of(aligned.barrier, self._vertex)
        self._alignments[n] = aligned

    def _flow_on(self) -> list[StreamTaskEffect]:
        if self._records is Records.ENDED:
            # A query that did not end by itself is alive, and rests in the call.
            self._records, call, self._call = Records.DRAINING, self._call, None
            events = self._events.carry()
            return [StartDrain(vertex=self._vertex, position=self._position, call=call, events=events)]
        if self._call is None or self._outputs.is_full or self._records is Records.STOPPED:
            return []
        wants_step = self._gate.wants_step or self._events.any_waiting
        if self._gate.channels and not wants_step and self._records is Records.FLOWING:
            if self._idle_at == self._position:
                return []
            self._idle_at = self._position
        return self._answer()

    def _answer(self, barrier: int | None = None) -> list[StreamTaskEffect]:
        """Let the next step begin, with the events that wait. Behind the records of one with a barrier comes its snapshot,
        so nothing that stands behind the barrier in the channels may reach it: it reads no segment and is told no watermark.
        """
        invariant(self._call is not None, f"{self._vertex} answers no planning call")
        call, self._call = self._call or 0, None
        self._carried_barrier = barrier or self._carried_barrier
        return [
            AnswerPlanning(
                call=call,
                admitted=self._gate.admit(self._now_ms) if barrier is None else (),
                watermarks_ms=self._gate.tell_watermarks() if barrier is None else {},
                events=self._events.carry(),
                barrier=barrier,
            )
        ]

    def _take(self, trigger: TriggerCheckpoint) -> list[StreamTaskEffect]:
        """Begin a snapshot of the state after ``position``, the barrier first (MISSION B2); what was staged later is no
        part of it."""
        barrier = trigger.checkpoint_id if trigger.kind.commits_side_effects else None
        aligned = self._alignments.pop(trigger.checkpoint_id, None)
        snapshot = TaskSnapshot(
            trigger=trigger,
            position=self._position,
            finished=self._records is Records.DRAINED,
            committables=self._commits.taken(self._position, barrier),
            alignment_ms=0 if aligned is None else aligned.alignment_ms,
            in_flight=() if aligned is None else aligned.in_flight,
            sent_events=self._events.unacknowledged,
        )
        self._snapshots.begin(snapshot)
        return [*self._outputs.broadcast(barrier_of(trigger)), snapshot.effect]

    def _cancel(self, checkpoint_id: int) -> list[StreamTaskEffect]:
        """No barrier of this checkpoint will leave the task (MISSION B3)."""
        return [*self._outputs.broadcast(CancelCheckpointMarker(checkpoint_id=checkpoint_id))]

    def _commit_next(self) -> list[StreamTaskEffect]:
        commit = self._commits.next_commit()
        return (
            []
            if commit is None
            else [CommitSinks(vertex=self._vertex, checkpoint_id=commit[0], payloads=commit[1])]
        )

    def _drop(self, checkpoint_id: int) -> list[StreamTaskEffect]:
        self._snapshots.forget(checkpoint_id)
        return [DropSnapshot(vertex=self._vertex, checkpoint_id=checkpoint_id), *self._tell_consumed()]

    def _tell_consumed(self, moved: Iterable[tuple[VertexId, int]] = ()) -> list[StreamTaskEffect]:
        """Tell producers how far their channels were read, of those whose segments no snapshot needs."""
        self._held_back.update(moved)
        in_use = self._snapshots.channels_in_use
        told = {name: position for name, position in self._held_back.items() if name not in in_use}
        for name in told:
            del self._held_back[name]
        return [
            SegmentsConsumed(
                vertex=name,
                consumer=self._vertex,
                position=position,
                batch_size=self._gate.batch.size,
            )
            for name, position in told.items()
        ]

    def _close(self) -> list[StreamTaskEffect]:
        """Take no trigger any more; those that wait are declined (PROTOCOL P32)."""
        self._closing = True
        declined: list[StreamTaskEffect] = []
        for checkpoint_id in self._waiting:
            declined += [self._report.closing(checkpoint_id), *self._cancel(checkpoint_id)]
        self._waiting.clear()
        return declined

    def _finish(self) -> list[StreamTaskEffect]:
        """FINISHED, unless a commit or a part of a snapshot is under way (an aborted one is dropped after it), or a consumer
        has records to process (PROTOCOL P30). Operators are closed before that (MISSION E5)."""
        if self._snapshots.any_part_running or not self._commits.is_idle or not self._outputs.all_consumed:
            return []
        if self._operators is OperatorStatus.CLOSED:
            return [*self._end(TaskStatus.FINISHED), *self._outputs.broadcast(EndOfPartition())]
        if self._closing_operators:
            return []
        self._closing_operators = True
        return [CloseOperators(vertex=self._vertex)]

    def _fail(self, error: TaskErrored) -> list[StreamTaskEffect]:
        self._operators = next_operator_status(self._operators, OperatorStatus.FAILED)
        failed = self._report.failed(error.message, fatal=error.fatal, cause=error.cause)
        return [*self._end(TaskStatus.FAILED), failed]

    def _end(self, status: TaskStatus) -> list[StreamTaskEffect]:
        """Forget all but the snapshots that are still to be dropped; a held call is never answered."""
        moved = self._move(status)
        self._call = None
        self._waiting.clear()
        self._held_back.clear()
        self._snapshots.abort_all()
        return moved

    def _move(self, status: TaskStatus) -> list[StreamTaskEffect]:
        self._status = next_task_status(self._status, status)
        return [self._report.status(status)]

    def _come_to(self, position: int, watermark_ms: int | None) -> list[StreamTaskEffect]:
        """All steps up to ``position`` are complete: the consumers get what they put out, and the watermark behind it."""
        invariant(
            position >= self._position,
            f"{self._vertex} goes back from position {self._position} to {position}",
        )
        self._position = position
        return [*self._outputs.completed(position, watermark_ms)]
