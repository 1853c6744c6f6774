"""``StreamTask``: the task's side of the protocol, from trigger to commit (MISSION B, E; PROTOCOL P5 to P16, P28 to P37).

A task processes records in steps. Between two steps its query asks in a *planning call* whether it may go on; while
the call is not answered, the query rests and its state is stable. That is where snapshots are taken::

    PlanningCalled(4)  a trigger waits: TakeSnapshot(position 4)      the call is held
    SyncPartDone       ContinueSnapshot, AnswerPlanning               records flow, files are copied meanwhile
    AsyncPartDone      AcknowledgeCheckpoint
    NotifyCheckpointComplete   ConfirmBase, CommitSinks .... SinksCommitted

The rules of this file:

1. Triggers are taken in the order of their ids, one synchronous part at a time, all at the same position; then the
   call is answered. Without a trigger it is answered at once.
2. A stop with savepoint ends the records before its barrier (P28): with a drain as the end of the input does, without one
   as they are. No record flows any more: if the savepoint completes the task commits and finishes, if not the job fails
   over (P34).
3. When the records have ended, no call comes any more and the state is stable: triggers are taken at once, before
   and during the drain at the position before it, afterwards at the drained position as ``finished``.
4. A committable is marked with the first barrier after it and gets its epoch, once, from the first completed
   checkpoint whose barrier is at or after that mark. It stays until that epoch's commit is confirmed. An intermediate
   savepoint neither marks nor commits.
5. Epochs are committed in the order of their ids, one at a time, also empty ones.
6. A task with channels reads each up to its barriers (``input_gate``, ``barrier_handler``); its snapshot is taken when a
   barrier is there on all of them, or, unaligned, has overtaken what was not read, which is part of it then. Its own
   barrier goes downstream before its snapshot is taken.
7. A task that ends takes part in checkpoints until its final epoch is committed and its consumers have processed all that
   it put out. Then it declines new triggers, answers what it has begun (P32), and is FINISHED when no commit is left,
   each snapshot under way is acknowledged, declined or dropped, and its operators are closed.

``DropSnapshot`` is never emitted while a part of the snapshot is still running: an aborted one is dropped when its
part ends (P43). Events that arrive after FINISHED or FAILED change nothing else. The machine stands on in-order
delivery: triggers come with growing ids, and checkpoints complete in the order of theirs (a newer one subsumes).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from weir.core.messages.channel import ChannelAppended, ReleaseSegments, SegmentsConsumed
from weir.core.messages.operators import DeliverEvent
from weir.core.messages.protocol import NotifyCheckpointAborted, NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.messages.task import (
    AsyncPartDone,
    ConfirmBase,
    ContinueSnapshot,
    Drained,
    OperatorsClosed,
    PlanningCalled,
    RecordsEnded,
    SinkCommitFailed,
    SinksCommitted,
    SnapshotFailed,
    StepStaged,
    StreamTaskEffect,
    StreamTaskEvent,
    SyncPartDone,
    TaskErrored,
    TaskStarted,
    TellAborted,
)
from weir.core.status import OperatorStatus, Records, has_ended, next_operator_status
from weir.core.task.snapshots import SnapshotPart, barrier_of
from weir.core.task.task_flow import TaskFlow
from weir.core.types import TaskStatus
from weir.errors import invariant


class StreamTask(TaskFlow):
    """The task of one vertex in one attempt. The module's docstring has its rules."""

    def handle(self, event: StreamTaskEvent, now_ms: int) -> list[StreamTaskEffect]:
        """Take one event; the effects are to be carried out in their order.

        Raises ``InvariantError`` for an event that cannot be, before anything has changed.
        """
        self._now_ms = now_ms
        if has_ended(self._status):
            return self._after_end(event)
        return self._handlers[type(event)](event)

    @cached_property
    def _handlers(self) -> dict[type[Any], Callable[[Any], list[StreamTaskEffect]]]:
        return {
            TriggerCheckpoint: self._on_trigger,
            NotifyCheckpointComplete: self._on_complete,
            NotifyCheckpointAborted: self._on_aborted,
            TaskStarted: self._on_started,
            PlanningCalled: self._on_planning,
            StepStaged: self._on_staged,
            RecordsEnded: self._on_records_ended,
            Drained: self._on_drained,
            OperatorsClosed: self._on_operators_closed,
            SyncPartDone: self._on_sync_part_done,
            AsyncPartDone: self._on_async_part_done,
            SnapshotFailed: self._on_snapshot_failed,
            SinksCommitted: self._on_sinks_committed,
            ChannelAppended: self._on_appended,
            SegmentsConsumed: self._on_consumed,
            DeliverEvent: self._on_operator_event,
            SinkCommitFailed: lambda event: self._fail(
                TaskErrored(message=event.message, fatal=event.fatal, cause=event.cause)
            ),
            TaskErrored: self._fail,
        }

    def next_deadline(self) -> int | None:
        """When ``on_deadline`` is due: a barrier may overtake records then. Checkpoints expire in the coordinator."""
        if self._call is None or self._closing or self._waiting or self._snapshots.is_syncing:
            return None
        return None if self._aligned_timeout_ms is None else self._gate.overtakes_at(self._aligned_timeout_ms)

    def on_deadline(self, now_ms: int) -> list[StreamTaskEffect]:
        """The time that ``next_deadline`` named has come."""
        self._now_ms = now_ms
        return self._advance()

    # ---- from the job master

    def _on_trigger(self, event: TriggerCheckpoint) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        invariant(event.vertex == self._vertex, f"a trigger for {event.vertex} reached {self._vertex}")
        invariant(
            checkpoint_id > self._newest_trigger,
            f"checkpoint {checkpoint_id} is triggered after checkpoint {self._newest_trigger}",
        )
        self._newest_trigger = checkpoint_id
        if not self._status.can_be_triggered:
            return [self._report.not_ready(checkpoint_id, self._status), *self._cancel(checkpoint_id)]
        if self._closing:
            return [self._report.closing(checkpoint_id), *self._cancel(checkpoint_id)]
        if event.kind.is_synchronous:
            self._stop_trigger = checkpoint_id
        if self._gate.has_open_channel:
            self._gate.trigger(barrier_of(event), self._now_ms)
        else:
            self._waiting[checkpoint_id] = event
        return self._advance()

    def _on_complete(self, event: NotifyCheckpointComplete) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        snapshot = self._snapshots.get(checkpoint_id)
        if snapshot is None or self._closing_operators:
            # Nothing was staged since the final checkpoint, which is committed.
            return []
        invariant(
            snapshot.part is SnapshotPart.ACKNOWLEDGED and snapshot.trigger.kind.commits_side_effects,
            f"{self._vertex} is told that {snapshot.trigger.kind.name} {checkpoint_id} completed, but its"
            f" snapshot is {snapshot.part.name}",
        )
        self._commits.completed(checkpoint_id)
        self._snapshots.forget(checkpoint_id)
        if self._final is None and (snapshot.finished or snapshot.trigger.kind.is_synchronous):
            self._final = checkpoint_id
        if snapshot.trigger.kind.is_synchronous:
            return self._commit_next()
        return [ConfirmBase(vertex=self._vertex, checkpoint_id=checkpoint_id), *self._commit_next()]

    def _on_aborted(self, event: NotifyCheckpointAborted) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        effects: list[StreamTaskEffect] = [TellAborted(vertex=self._vertex, checkpoint_id=checkpoint_id)]
        self._waiting.pop(checkpoint_id, None)
        self._alignments.pop(checkpoint_id, None)
        self._gate.barriers.aborted(checkpoint_id)
        snapshot = self._snapshots.get(checkpoint_id)
        if snapshot is not None and snapshot.part is SnapshotPart.ACKNOWLEDGED:
            effects += self._drop(checkpoint_id)
        elif snapshot is not None:
            self._snapshots.abort(checkpoint_id)
        return effects + self._advance()

    # ---- from the query

    def _on_started(self, event: TaskStarted) -> list[StreamTaskEffect]:
        moved = self._move(TaskStatus.RUNNING)
        self._position = max(self._position, event.position)
        # Those of a restored task are told again (P41).
        return [*moved, *self._events.complete(), *self._advance()]

    def _on_planning(self, event: PlanningCalled) -> list[StreamTaskEffect]:
        invariant(self._call is None, f"{self._vertex} plans while call {self._call} is not answered")
        invariant(self._records.may_step, f"{self._vertex} plans a step after its records ended")
        misread = self._gate.misread(event.consumed)
        if misread is not None:
            said = f"Batch {event.position} of {self._vertex!r} did not read what it was let: {misread}"
            return self._fail(TaskErrored(message=said))
        effects: list[StreamTaskEffect] = []
        if self._records is Records.FLOWING:
            effects = self._complete_step(event.position, event.watermark_ms)
        self._call = event.call
        self._gate.batch.ended(self._now_ms)
        return effects + self._tell_consumed(self._gate.consumed(event.consumed)) + self._advance()

    def _on_staged(self, event: StepStaged) -> list[StreamTaskEffect]:
        invariant(
            self._status is TaskStatus.RUNNING
            and self._call is None
            and self._records.may_step
            and event.position > self._position,
            f"{self._vertex} staged step {event.position}, which cannot be under way",
        )
        invariant(
            self._bounded or not event.input_ended, f"the input of {self._vertex} ended, but it is unbounded"
        )
        self._input_ended |= event.input_ended
        self._commits.stage(event.position, event.committables)
        if event.segment is not None:
            self._outputs.staged(event.segment)
        self._events.sent(event.sent_events)
        if event.declined is None or self._waiting.pop(self._carried_barrier, None) is None:
            return []
        n = self._carried_barrier
        self._alignments.pop(n, None)
        return [self._report.unprepared(n, *event.declined), *self._cancel(n)]

    def _complete_step(self, position: int, watermark_ms: int | None = None) -> list[StreamTaskEffect]:
        """All steps up to ``position`` are complete, and this is the watermark behind them. If there was none since the last
        call was answered, the events that it was to carry wait for the next."""
        if position == self._position:
            self._events.not_run()
        return [*self._come_to(position, watermark_ms), *self._events.complete()]

    def _on_records_ended(self, event: RecordsEnded) -> list[StreamTaskEffect]:
        invariant(self._bounded, f"the records of {self._vertex} ended, but its input is unbounded")
        invariant(
            self._status is TaskStatus.RUNNING and self._records is Records.FLOWING and self._call is None,
            f"the records of {self._vertex} cannot end now",
        )
        effects = self._complete_step(event.position)
        self._records = Records.ENDED
        return effects + self._advance()

    def _on_drained(self, event: Drained) -> list[StreamTaskEffect]:
        invariant(
            self._records is Records.DRAINING and self._call is None, f"{self._vertex} cannot be drained now"
        )
        effects = [*self._complete_step(event.position), *self._events.end(), *self._tell_end(finished=True)]
        self._records = Records.DRAINED
        self._operators = next_operator_status(self._operators, OperatorStatus.FINISHED)
        if self._waits_at_the_end:
            effects += self._move(TaskStatus.WAITING_FOR_FINAL_CHECKPOINT)
        return effects + self._advance()

    def _on_operators_closed(self, event: OperatorsClosed) -> list[StreamTaskEffect]:
        del event
        self._operators = next_operator_status(self._operators, OperatorStatus.CLOSED)
        return self._finish()

    # ---- from and to other tasks

    def _on_appended(self, event: ChannelAppended) -> list[StreamTaskEffect]:
        for entry in event.entries:
            self._gate.append(event.channel, entry, self._now_ms)
        return self._advance()

    def _on_consumed(self, event: SegmentsConsumed) -> list[StreamTaskEffect]:
        free = self._outputs.consumed(event.consumer, event.position, event.batch_size)
        effects = self._advance()
        return effects if free is None else [*effects, ReleaseSegments(vertex=self._vertex, position=free)]

    def _on_operator_event(self, event: DeliverEvent) -> list[StreamTaskEffect]:
        # Operators take part in the drain's step.
        drained = self._records is Records.DRAINED
        return [*self._events.deliver(event, may_step=not drained), *self._advance()]

    # ---- outcomes of effects

    def _on_sync_part_done(self, event: SyncPartDone) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        snapshot = self._snapshots.running(checkpoint_id, SnapshotPart.SYNC)
        if snapshot.aborted:
            return self._drop(checkpoint_id) + self._advance()
        self._snapshots.go_on(checkpoint_id, SnapshotPart.ASYNC)
        told = [self._report.synchronous_part_over(checkpoint_id)] if self._coordinated else []
        go_on = ContinueSnapshot(vertex=self._vertex, checkpoint_id=checkpoint_id)
        return [*told, go_on, *self._advance()]

    def _on_async_part_done(self, event: AsyncPartDone) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        snapshot = self._snapshots.running(checkpoint_id, SnapshotPart.ASYNC)
        invariant(
            (event.state.vertex, event.state.position) == (self._vertex, snapshot.position),
            f"snapshot {checkpoint_id} of {self._vertex} is of {event.state.vertex} at {event.state.position}",
        )
        invariant(
            [(one.channel, one.position) for one in event.state.in_flight]
            == [(one.channel, one.position) for one in snapshot.in_flight],
            f"snapshot {checkpoint_id} of {self._vertex} does not hold the segments that are in flight",
        )
        committables = self._commits.flushed(snapshot.committables, event.state.committables)
        if snapshot.aborted:
            return self._drop(checkpoint_id) + self._advance()
        if snapshot.trigger.kind.commits_side_effects:
            self._snapshots.go_on(checkpoint_id, SnapshotPart.ACKNOWLEDGED)
        else:
            self._snapshots.forget(checkpoint_id)
        acknowledged = self._report.acknowledged(snapshot, event, committables)
        return [acknowledged, *self._tell_consumed(), *self._advance()]

    def _on_snapshot_failed(self, event: SnapshotFailed) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        snapshot = self._snapshots.running(checkpoint_id, SnapshotPart.SYNC, SnapshotPart.ASYNC)
        effects: list[StreamTaskEffect] = []
        if not snapshot.aborted:
            effects.append(self._report.snapshot_failed(event, snapshot.part))
        return effects + self._drop(checkpoint_id) + self._advance()

    def _on_sinks_committed(self, event: SinksCommitted) -> list[StreamTaskEffect]:
        self._commits.confirmed(event.checkpoint_id)
        self._final_committed |= self._final == event.checkpoint_id
        return self._commit_next() + self._advance()

    def _after_end(self, event: StreamTaskEvent) -> list[StreamTaskEffect]:
        """Triggers are declined, what a dropped snapshot wrote is deleted, all else comes too late to matter."""
        if isinstance(event, TriggerCheckpoint):
            if self._status is TaskStatus.FINISHED:
                return [self._report.closing(event.checkpoint_id)]
            return [self._report.not_ready(event.checkpoint_id, self._status)]
        if isinstance(event, SyncPartDone | AsyncPartDone | SnapshotFailed):
            return self._drop(event.checkpoint_id) if self._snapshots.get(event.checkpoint_id) else []
        return []

    def validate(self) -> None:
        """Check the laws of this machine and of its parts; raises ``InvariantError``."""
        self._snapshots.validate()
        self._commits.validate()
        ended = has_ended(self._status)
        held = self._snapshots.is_syncing or self._closing or self._records is Records.STOPPED
        initializing = self._status is TaskStatus.INITIALIZING
        invariant(not (ended and self._snapshots.any_under_way), "a task that ended owes an answer")
        invariant(self._call is None or not ended, "a task that ended holds a planning call")
        held_back = self._outputs.is_full or (
            bool(self._gate.channels) and not self._gate.wants_step and self._idle_at == self._position
        )
        invariant(
            self._call is None or held or initializing or held_back,
            f"{self._vertex} holds a planning call for no reason",
        )
        self._gate.validate()
        self._outputs.validate()
        invariant(
            self._records is not Records.ENDED or held or ended, f"{self._vertex} does not begin its drain"
        )
        invariant(
            self._held_back.keys() <= self._snapshots.channels_in_use,
            f"{self._vertex} does not tell a producer how far it has read",
        )
        invariant(list(self._waiting) == sorted(self._waiting), "triggers wait out of order")
        invariant(not self._waiting or not (self._closing or ended), "a trigger waits at a task that ends")
        waits = self._status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
        invariant(
            not waits
            or self._records is Records.STOPPED
            or (self._records is Records.DRAINED and self._waits_at_the_end),
            f"{self._vertex} waits for a final checkpoint that it does not need yet",
        )
        finished = self._operators is OperatorStatus.FINISHED
        invariant(
            finished == (self._records is Records.DRAINED) or ended or self._closing,
            f"the operators of {self._vertex} are {self._operators.name}, its records {self._records.name}",
        )
