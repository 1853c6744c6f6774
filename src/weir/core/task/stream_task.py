"""``StreamTask``: the task's protocol (MISSION B, E; PROTOCOL P5 to P16, P28 to P37).

A task processes records in batches. Between two batches, its query asks in a *planning call*
whether it may go on; while the call is held (not answered), the query is blocked and its state is
stable. That is when snapshots are taken::

    PlanningCalled(4)         a trigger waits: TakeSnapshot(position 4); the call is held
    SyncPartDone              ContinueSnapshot, AnswerPlanning; records flow while files are copied
    AsyncPartDone             AcknowledgeCheckpoint
    NotifyCheckpointComplete  ReportCompleted, CommitSinks .... SinksCommitted

Rules:

1. Triggers are taken in ascending order of their ids, one synchronous part at a time, all at the
   same position; then the call is answered. Without a trigger it is answered at once. A source does
   not wait for the batch under way, if its state outlives the planning call: once a batch of the
   attempt is complete, its barrier goes after the last complete batch (not that of a stop).
2. A stop with savepoint ends the records before its barrier (P28): with a drain, as at the end of
   the input; without, windows and timers stay in the state. No record flows after that: if the
   savepoint completes, the task commits and finishes; if not, the job fails over (P34).
3. After the records have ended, no more planning calls come and the state is stable. Triggers are
   taken at once: before and during the drain at the position before it (operators with code for
   snapshots of their own wait for it), afterwards at the drained position as ``finished``.
4. A committable is marked with the first barrier after it and gets its epoch, once, from the first
   completed checkpoint whose barrier is at or after that mark. It is kept until that epoch's commit
   is confirmed. An intermediate savepoint neither marks nor commits.
5. Epochs are committed in ascending order, one at a time, including empty ones.
6. A task with channels reads each up to its barriers (``input_gate``, ``barrier_handler``). Its
   snapshot is taken when every channel has delivered the barrier or, unaligned, when the barrier
   has overtaken the unread segments, which become part of the snapshot. Watermarks before an
   aligned barrier take effect first, so the checkpoint has the windows that they close. Where
   readers of its own say when a checkpoint is due (B4), it is taken at the point they have reached
   (``triggers``). The task sends its own barrier downstream before it takes its snapshot.
7. A task that ends takes part in checkpoints until its final epoch is committed and its consumers
   have processed all its output. Then it declines new triggers and completes the snapshots it has
   started (P32). It is FINISHED when no commit is left, each started snapshot is acknowledged,
   declined or dropped, and its operators are closed.

After every event, the control entries of the channels that the task has reached are processed,
which may align a checkpoint; then ``next_step`` decides what the task does.

``DropSnapshot`` is never emitted while a part of the snapshot is still running: an aborted one is
dropped when its part ends (P43). Events that arrive after FINISHED or FAILED change nothing else.
The machine relies on in-order delivery: triggers and completions come with growing ids.

Why the barrier of a source does not wait for the batch under way: a checkpoint then costs no more
where batches take minutes, and consumers have less to read before the barrier. In return, the rows
of that batch become visible with the next checkpoint. The task does wait

- if Python operators take part: a batch changes their state in place;
- if Spark's operators have state: a snapshot asks the plan of the last batch for their watermarks,
  and asking in every planning call would cost each batch;
- if it reads channels: an admitted segment is either before the barrier or after it;
- for the savepoint of a stop;
- until the attempt's first batch is complete: the checkpoint would contain nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from weir.core.messages.channel import (
    CancelCheckpointMarker,
    ChannelAppended,
    EndOfPartition,
    EndOfUserRecords,
    ReleaseSegments,
    SegmentsConsumed,
)
from weir.core.messages.coordination import DeliverEvent
from weir.core.messages.protocol import (
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from weir.core.messages.task import (
    AnswerPlanning,
    AsyncPartDone,
    BatchStaged,
    CloseOperators,
    CommitSinks,
    ContinueSnapshot,
    Drained,
    DropSnapshot,
    OperatorsClosed,
    PlanningCalled,
    RecordsEnded,
    ReportAborted,
    ReportCompleted,
    SinkCommitFailed,
    SinksCommitted,
    SnapshotFailed,
    StartDrain,
    StreamTaskEffect,
    StreamTaskEvent,
    SyncPartDone,
    TakeSnapshot,
    TaskErrored,
    TaskStarted,
)
from weir.core.status import OperatorStatus, Records, has_ended, next_task_status
from weir.core.task.barrier_handler import Aligned
from weir.core.task.commits import PendingCommits
from weir.core.task.ending import TaskEnding
from weir.core.task.events import TaskEvents
from weir.core.task.input_gate import InputGate
from weir.core.task.next_step import Situation, Step, next_step
from weir.core.task.output_channels import OutputChannels
from weir.core.task.plan import TaskPlan
from weir.core.task.reports import TaskReports
from weir.core.task.snapshots import OpenSnapshots, SnapshotPart, TaskSnapshot
from weir.core.task.triggers import WaitingTriggers
from weir.core.types import SentEvent, SnapshotKind, TaskStatus, VertexId
from weir.errors import invariant


class StreamTask:
    """The task of one vertex in one attempt, by the rules above; ``outputs`` may be read."""

    def __init__(
        self,
        plan: TaskPlan,
        *,
        attempt: int,
        consumers: tuple[VertexId, ...] = (),
        sent_events: tuple[SentEvent, ...] = (),
        allocated: int = 0,
    ) -> None:
        """``consumers`` read its output; ``allocated`` is the newest checkpoint id so far.

        ``sent_events``: the restored unacknowledged events of coordinated operators.
        """
        self._plan = plan
        self._vertex = plan.vertex
        self._report = TaskReports(vertex=plan.vertex, attempt=attempt, operators=plan.operators)
        self._status = TaskStatus.INITIALIZING
        #: The last complete batch; while the drain runs, the batch before it.
        self._position = -1
        #: The held planning call; while it is set, the query is blocked.
        self._call: int | None = None
        self._triggers = WaitingTriggers(plan, allocated)
        self._snapshots = OpenSnapshots()
        self._commits = PendingCommits(plan.sinks, plan.commit_intervals_ms)
        self._gate = InputGate(plan.inputs)
        self._ending = TaskEnding(
            self._gate,
            requires_final_checkpoint=plan.requires_final_checkpoint,
            available_now=plan.available_now,
        )
        #: Whether the job master knows that the task has caught up.
        self._said_caught_up = False
        #: The position at which a call was last answered with nothing to read: once per position,
        #: since the query may run a batch without records for the last batch's new watermark.
        self._idle_at = -1
        #: When a batch last read rows of the source, as far as is known; at first, when it started.
        self._read_ms = 0
        #: When operators have a timer due, if the query rests until then.
        self._timer_at_ms: int | None = None
        #: Read positions by channel of which the producers are not notified yet.
        self._held_back: dict[VertexId, int] = {}
        self.outputs = OutputChannels(plan.vertex, consumers, plan.bound)
        self._events = TaskEvents(plan.vertex, attempt, sent_events)
        #: The time of the event being handled.
        self._now_ms = 0

    @property
    def status(self) -> TaskStatus:
        """The task's status."""
        return self._status

    @property
    def operator_status(self) -> OperatorStatus:
        """The status of the operators in its chain."""
        return self._ending.operators

    # ---- entries

    def handle(self, event: StreamTaskEvent, now_ms: int) -> list[StreamTaskEffect]:
        """Handle one event; return the effects, to be executed in order.

        Raises ``InvariantError`` for an impossible event, before anything has changed.
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
            BatchStaged: self._on_staged,
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
            SinkCommitFailed: self._fail,
            TaskErrored: self._fail,
        }

    def next_deadline(self) -> int | None:
        """When a barrier may overtake records or a timer is due, if the query rests until then.

        The coordinator handles checkpoint timeouts.
        """
        if self._call is None or self._ending.closing or self._snapshots.is_syncing:
            return None
        deadlines = [] if self._timer_is_due or self.outputs.is_full else [self._timer_at_ms]
        if self._overtakes_after_ms is not None:
            deadlines.append(self._gate.overtakes_at(self._overtakes_after_ms))
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)

    def on_deadline(self, now_ms: int) -> list[StreamTaskEffect]:
        """The time that ``next_deadline`` returned has been reached."""
        self._now_ms = now_ms
        return self._advance()

    @property
    def _timer_is_due(self) -> bool:
        return self._timer_at_ms is not None and self._timer_at_ms <= self._now_ms

    @property
    def _overtakes_after_ms(self) -> int | None:
        """How long a barrier waits before it overtakes records; None if none may now."""
        may = self._call is not None and not self._triggers
        return self._plan.aligned_timeout_ms if may else None

    @property
    def _has_nothing_to_do(self) -> bool:
        """Whether a query that reads channels, or has caught up, can rest in its planning call."""
        wants_batch = self._gate.wants_batch or self._events.any_waiting or self._timer_is_due
        return (bool(self._gate.channels) or self._ending.has_caught_up) and not wants_batch

    @property
    def _carries_events(self) -> bool:
        """Whether a batch may carry events while a consumer lags (P2)."""
        return self._events.any_waiting and self._plan.may_run_without_reading

    @property
    def _reads_for_events(self) -> bool:
        """Whether a batch may read, since events wait, although a consumer lags (P2)."""
        waits = self._events.any_waiting and not self._plan.may_run_without_reading
        return waits and self.outputs.has_room_for_events

    # ---- what the task may do next

    def _advance(self) -> list[StreamTaskEffect]:
        """Do all that is possible now, in the order of ``next_step.NEXT_STEPS``."""
        waits = self._ending.closing or self._is_busy
        effects = [] if waits else [*self._read_control(), *self._pass_on_status()]
        # A trigger that waits for readers as the records end is taken after the next event.
        flows = self._ending.records is Records.FLOWING
        while True:
            now = self._situation(records_flow=flows)
            step = next_step(now)
            effects += self._carry_out(step, now)
            if not step.goes_on:
                return effects

    @property
    def _is_busy(self) -> bool:
        return self._status is TaskStatus.INITIALIZING or self._snapshots.is_syncing

    def _situation(self, *, records_flow: bool) -> Situation:
        """What decides the next step. ``records_flow``: a trigger waits for readers (B4)."""
        plan, ending, gate, triggers = self._plan, self._ending, self._gate, self._triggers
        after_ms = self._overtakes_after_ms
        is_done = ending.is_done and self.outputs.all_consumed
        first = triggers.due(records_flow=records_flow)
        is_aligned = triggers.is_first_aligned
        return Situation(
            closing=ending.closing,
            is_done=is_done and not triggers and not gate.awaits_barrier,
            is_busy=self._is_busy,
            is_held=self._call is not None,
            records=ending.records,
            overtaking=None if after_ms is None else gate.may_overtake(self._now_ms, after_ms),
            first=first,
            is_aligned=is_aligned,
            is_late=is_aligned
            and first is not None
            and gate.has_waited(first.barrier, self._now_ms, plan.aligned_timeout_ms),
            outlives_batch=triggers.state_outlives_batch,
            operators_prepare=plan.prepares_for_barriers,
            prepared=triggers.carried,
            operators_take_part=plan.operators_take_part,
            operators_want_batch=plan.has_operators and self._position < 0,
            input_end=ending.input_end,
            stops_with_checkpoint=ending.stop_kind is SnapshotKind.SYNC_CHECKPOINT,
            asked_again=ending.asked_again,
            has_channels=bool(plan.inputs),
            has_unsent_watermark=gate.has_unsent_watermark,
            watermark_takes_effect=gate.watermark_takes_effect,
            is_full=self.outputs.is_full,
            carries_events=self._carries_events,
            reads_for_events=self._reads_for_events,
            has_nothing_to_do=self._has_nothing_to_do,
            was_idle=self._idle_at == self._position,
        )

    def _carry_out(self, step: Step, now: Situation) -> list[StreamTaskEffect]:
        match step:
            case Step.CLOSE | Step.FINISH:
                return self._finish() if self._ending.closing else self._close()
            case Step.OVERTAKE:
                self._triggers.add_aligned(self._gate.overtake(self._now_ms))
            case Step.TAKE if now.first is not None:
                return self._take(now.first)
            case Step.END_RECORDS if now.records_become is not None:
                return self._end_records(now.records_become)
            case Step.DRAIN:
                return self._start_drain()
            case Step.ANSWER | Step.ANSWER_IDLE | Step.ANSWER_BARRIER | Step.ANSWER_EVENTS:
                return self._answer(step, now)
        return []

    def _read_control(self) -> list[StreamTaskEffect]:
        """Process the control entries of the channels; queue a checkpoint that is aligned."""
        effects: list[StreamTaskEffect] = []
        # What follows a barrier is read after its snapshot.
        blocked = self._triggers.is_first_aligned
        for outcome in () if blocked else self._gate.process(self._now_ms):
            if isinstance(outcome, Aligned):
                self._triggers.add_aligned(outcome)
            else:
                n = outcome.checkpoint_id
                effects += self._decline(self._report.misaligned(n, outcome.reason))
        return effects

    def _pass_on_status(self) -> list[StreamTaskEffect]:
        """Notify the consumers if the sources are idle now, or active again.

        A task that reads channels is idle once it rests: a batch may still emit what the last
        watermark has released.
        """
        limit_ms = self._plan.idle_after_ms
        if not self._gate.channels:
            idle = limit_ms is not None and self._now_ms >= self._read_ms + limit_ms
        elif idle := self._gate.is_idle:
            rests = self._has_nothing_to_do and self._idle_at == self._position
            if self._call is None or not rests:
                return []
        return [*self.outputs.status(idle=idle)]

    def _end_records(self, records: Records) -> list[StreamTaskEffect]:
        self._ending.records = records
        if records is Records.ENDED:
            return []
        return self._announce_end(finished=False) + self._move(
            TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
        )

    def _start_drain(self) -> list[StreamTaskEffect]:
        # A query whose records were ended for it is alive, and held in the planning call.
        self._ending.records, call, self._call = Records.DRAINING, self._call, None
        events = self._events.carry()
        return [StartDrain(vertex=self._vertex, position=self._position, call=call, events=events)]

    def _announce_end(self, *, finished: bool) -> list[StreamTaskEffect]:
        """Notify the consumers that no more records will come."""
        ending = self._ending
        end = EndOfUserRecords(
            finished=finished, savepoint=ending.stops_with, kind=ending.stop_kind
        )
        return [*self.outputs.broadcast(end)]

    def _answer(self, step: Step, now: Situation) -> list[StreamTaskEffect]:
        """Let the next batch start.

        Nothing is read of what follows a barrier that waits for its snapshot.
        """
        if step is Step.ANSWER_IDLE:
            self._idle_at = self._position
        has_watermarks = step in (Step.ANSWER, Step.ANSWER_IDLE)
        reads = has_watermarks and not self._triggers.is_first_aligned
        barrier = now.prepares_for if step is Step.ANSWER_BARRIER else None
        invariant(self._call is not None, f"{self._vertex} has no planning call to answer")
        call, self._call = self._call or 0, None
        self._triggers.carried = barrier or self._triggers.carried
        ends = self._ending.input_end is Records.STOPPED
        admitted = self._gate.admit(self._now_ms) if reads else ()
        if ends and has_watermarks and not admitted:
            self._ending.asked_again = True
        return [
            AnswerPlanning(
                call=call,
                admitted=admitted,
                watermarks_ms=self._gate.send_watermarks() if has_watermarks else {},
                events=self._events.carry(),
                barrier=barrier,
                only_events=step is Step.ANSWER_EVENTS,
                induced_over=self._triggers.over,
            )
        ]

    # ---- checkpoints, from trigger to commit

    def _on_trigger(self, event: TriggerCheckpoint) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        self._triggers.announced(event)
        if not self._status.can_be_triggered:
            return self._decline(self._report.not_ready(checkpoint_id, self._status))
        if self._ending.closing:
            return self._decline(self._report.closing(checkpoint_id))
        if event.kind.is_synchronous:
            self._ending.triggered_to_stop(checkpoint_id, event.kind)
        if self._gate.has_open_channel:
            self._gate.trigger(event.barrier, self._now_ms)
        else:
            self._triggers.add(event)
        return self._advance()

    def _take(self, trigger: TriggerCheckpoint) -> list[StreamTaskEffect]:
        """Broadcast the barrier, then start a snapshot of the last complete batch (MISSION B2)."""
        if trigger.kind.commits_side_effects:
            last = trigger.kind.is_synchronous or self._ending.records is not Records.FLOWING
            self._commits.barrier(trigger.barrier, self._position, last=last)
        aligned = self._triggers.take(trigger.checkpoint_id)
        effect = TakeSnapshot(
            vertex=self._vertex,
            checkpoint_id=trigger.checkpoint_id,
            kind=trigger.kind,
            timestamp_ms=trigger.barrier.timestamp_ms,
            target=trigger.barrier.target,
            position=self._position,
            finished=self._ending.records is Records.DRAINED,
            committables=self._commits.taken(self._position),
            full=trigger.barrier.full,
            in_flight=() if aligned is None else aligned.in_flight,
        )
        self._snapshots.begin(
            TaskSnapshot(
                effect=effect,
                alignment_ms=0 if aligned is None else aligned.alignment_ms,
                sent_events=self._events.unacknowledged,
            )
        )
        return [*self.outputs.broadcast(trigger.barrier), effect]

    def _decline(self, *declined: DeclineCheckpoint) -> list[StreamTaskEffect]:
        """No barrier of these checkpoints will leave the task (MISSION B3)."""
        effects: list[StreamTaskEffect] = [*declined]
        for decline in declined:
            marker = CancelCheckpointMarker(checkpoint_id=decline.checkpoint_id)
            effects += self.outputs.broadcast(marker)
        return effects

    def _on_sync_part_done(self, event: SyncPartDone) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        snapshot = self._snapshots.running(checkpoint_id, SnapshotPart.SYNC)
        if snapshot.aborted:
            return self._drop(checkpoint_id) + self._advance()
        self._snapshots.go_on(checkpoint_id, SnapshotPart.ASYNC)
        over = [self._report.synchronous_part_over(checkpoint_id)] if self._plan.coordinated else []
        go_on = ContinueSnapshot(vertex=self._vertex, checkpoint_id=checkpoint_id)
        return [*over, go_on, *self._advance()]

    def _on_async_part_done(self, event: AsyncPartDone) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        snapshot = self._snapshots.running(checkpoint_id, SnapshotPart.ASYNC)
        snapshot.check(event.state)
        committables = self._commits.flushed(snapshot.effect.committables, event.state.committables)
        if snapshot.aborted:
            return self._drop(checkpoint_id) + self._advance()
        if snapshot.effect.kind.commits_side_effects:
            self._snapshots.go_on(checkpoint_id, SnapshotPart.ACKNOWLEDGED)
        else:
            self._snapshots.forget(checkpoint_id)
        acknowledged = self._report.acknowledged(snapshot, event, committables)
        return [acknowledged, *self._report_consumed(), *self._advance()]

    def _on_snapshot_failed(self, event: SnapshotFailed) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        snapshot = self._snapshots.running(checkpoint_id, SnapshotPart.SYNC, SnapshotPart.ASYNC)
        failed = [] if snapshot.aborted else [self._report.snapshot_failed(event, snapshot.part)]
        return failed + self._drop(checkpoint_id) + self._advance()

    def _on_complete(self, event: NotifyCheckpointComplete) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        snapshot = self._snapshots.get(checkpoint_id)
        if snapshot is None or self._ending.closing_operators:
            # Nothing was staged since the final checkpoint, which is committed.
            return []
        kind = snapshot.effect.kind
        invariant(
            snapshot.part is SnapshotPart.ACKNOWLEDGED and kind.commits_side_effects,
            f"{self._vertex} is notified that {kind.name} {checkpoint_id} completed, but its"
            f" snapshot is {snapshot.part.name}",
        )
        self._commits.completed(checkpoint_id)
        self._snapshots.forget(checkpoint_id)
        self._ending.checkpoint_completed(
            checkpoint_id, is_final=snapshot.effect.finished or kind.is_synchronous
        )
        report = ReportCompleted(vertex=self._vertex, checkpoint_id=checkpoint_id)
        return [report, *self._commit_next(), *self._wake()]

    def _on_aborted(self, event: NotifyCheckpointAborted) -> list[StreamTaskEffect]:
        checkpoint_id = event.checkpoint_id
        effects: list[StreamTaskEffect] = [
            ReportAborted(vertex=self._vertex, checkpoint_id=checkpoint_id)
        ]
        self._triggers.drop(checkpoint_id)
        self._gate.barriers.aborted(checkpoint_id)
        snapshot = self._snapshots.get(checkpoint_id)
        if snapshot is not None and snapshot.part is SnapshotPart.ACKNOWLEDGED:
            effects += self._drop(checkpoint_id)
        elif snapshot is not None:
            self._snapshots.abort(checkpoint_id)
        return effects + self._wake()

    def _wake(self) -> list[StreamTaskEffect]:
        """Wake a resting query, so that its operators are notified of the checkpoint's end."""
        if self._plan.operators_take_part:
            self._idle_at = -1
        return self._advance()

    def _drop(self, checkpoint_id: int) -> list[StreamTaskEffect]:
        self._snapshots.forget(checkpoint_id)
        return [
            DropSnapshot(vertex=self._vertex, checkpoint_id=checkpoint_id),
            *self._report_consumed(),
        ]

    def _commit_next(self) -> list[StreamTaskEffect]:
        commit = self._commits.next_commit()
        if commit is None:
            return []
        return [CommitSinks(vertex=self._vertex, checkpoint_id=commit[0], payloads=commit[1])]

    def _on_sinks_committed(self, event: SinksCommitted) -> list[StreamTaskEffect]:
        self._commits.confirmed(event.checkpoint_id)
        self._ending.committed(event.checkpoint_id)
        return self._commit_next() + self._advance()

    # ---- batches

    def _on_started(self, event: TaskStarted) -> list[StreamTaskEffect]:
        moved = self._move(TaskStatus.RUNNING)
        self._read_ms = self._now_ms
        self._position = max(self._position, event.position)
        # A restored task sends its unacknowledged events again (P41).
        return [*moved, *self._events.complete(), *self._advance()]

    def _on_planning(self, event: PlanningCalled) -> list[StreamTaskEffect]:
        records = self._ending.records
        invariant(self._call is None, f"{self._vertex} plans while call {self._call} is unanswered")
        invariant(records.may_run_batch, f"{self._vertex} plans a batch after its records ended")
        misread = self._gate.misread(event.consumed)
        if misread is not None:
            return self._fail(self._report.misread(event.position, misread))
        # The batch's rows come after the status.
        effects = self._pass_on_status()
        if records is Records.FLOWING:
            effects += self._complete_batch(event.position, event.watermark_ms)
        if event.caught_up:
            # An idle answer would let Spark read what has come since.
            self._ending.input_ended()
            self._idle_at = event.position
        # Not before what the last watermark has released is emitted.
        rests = self._ending.has_caught_up and self._idle_at == event.position
        if rests and not self._said_caught_up:
            self._said_caught_up = True
            effects.append(self._report.caught_up())
        self._call, self._triggers.outlives_call = event.call, event.outlives_call
        self._timer_at_ms = None if event.timer_in_ms is None else self._now_ms + event.timer_in_ms
        self._gate.batch.ended(self._now_ms)
        return (
            effects + self._report_consumed(self._gate.consumed(event.consumed)) + self._advance()
        )

    def _on_staged(self, event: BatchStaged) -> list[StreamTaskEffect]:
        invariant(
            self._status is TaskStatus.RUNNING
            and self._call is None
            and self._ending.records.may_run_batch
            and event.position > self._position,
            f"{self._vertex} staged batch {event.position}, which cannot be running",
        )
        is_legal = self._plan.bounded or self._plan.available_now or not event.input_ended
        invariant(is_legal, f"unbounded input of {self._vertex} ended")
        if event.input_ended:
            self._ending.input_ended()
        if event.read_source:
            self._read_ms = self._now_ms
        self._commits.stage(event.position, event.committables)
        if event.segment is not None:
            self.outputs.staged(event.segment)
        self._events.sent(event.sent_events)
        self._triggers.staged(event.induced)
        return []

    def _complete_batch(
        self, position: int, watermark_ms: int | None = None
    ) -> list[StreamTaskEffect]:
        """All batches up to ``position`` are complete: send their output to the consumers.

        ``watermark_ms`` is the watermark after them. If no batch ran since the last call was
        answered, the operator events it was to carry wait for the next one.
        """
        invariant(
            position >= self._position,
            f"{self._vertex} goes back from position {self._position} to {position}",
        )
        if position == self._position:
            self._events.not_run()
        ran, self._position = position > self._position, position
        skipped = self._decline(*map(self._report.skipped, self._triggers.completed(ran=ran)))
        sent = self.outputs.completed(position, watermark_ms)
        return [*sent, *self._events.complete(), *skipped]

    def _on_records_ended(self, event: RecordsEnded) -> list[StreamTaskEffect]:
        flowing = self._ending.records is Records.FLOWING
        invariant(
            self._plan.bounded, f"records of {self._vertex} ended, but its input is unbounded"
        )
        invariant(
            self._status is TaskStatus.RUNNING and flowing and self._call is None,
            f"records of {self._vertex} cannot end now",
        )
        effects = self._complete_batch(event.position)
        self._ending.records = Records.ENDED
        return effects + self._advance()

    def _on_drained(self, event: Drained) -> list[StreamTaskEffect]:
        draining = self._ending.records is Records.DRAINING
        invariant(draining and self._call is None, f"{self._vertex} cannot be drained now")
        effects = [
            *self._complete_batch(event.position),
            *self._events.end(),
            *self._announce_end(finished=True),
        ]
        self._ending.drained()
        if self._ending.waits_for_checkpoint:
            effects += self._move(TaskStatus.WAITING_FOR_FINAL_CHECKPOINT)
        return effects + self._advance()

    # ---- channels and operator events

    def _on_appended(self, event: ChannelAppended) -> list[StreamTaskEffect]:
        for entry in event.entries:
            self._gate.append(event.channel, entry, self._now_ms)
        return self._advance()

    def _on_consumed(self, event: SegmentsConsumed) -> list[StreamTaskEffect]:
        free = self.outputs.consumed(event.consumer, event.position, event.batch_size)
        released = [] if free is None else [ReleaseSegments(vertex=self._vertex, position=free)]
        return [*self._advance(), *released]

    def _on_operator_event(self, event: DeliverEvent) -> list[StreamTaskEffect]:
        # Until the drain is complete, a batch can carry the event: operators run in the drain too.
        drained = self._ending.records is Records.DRAINED
        return [*self._events.deliver(event, may_run_batch=not drained), *self._advance()]

    def _report_consumed(
        self, moved: Iterable[tuple[VertexId, int]] = ()
    ) -> list[StreamTaskEffect]:
        """Notify producers how far channels were read, unless a snapshot needs segments (P27)."""
        self._held_back.update(moved)
        in_use = self._snapshots.channels_in_use
        free = {name: position for name, position in self._held_back.items() if name not in in_use}
        for name in free:
            del self._held_back[name]
        size = self._gate.batch.size
        return [
            SegmentsConsumed(vertex=name, consumer=self._vertex, position=position, batch_size=size)
            for name, position in free.items()
        ]

    # ---- the end

    def _close(self) -> list[StreamTaskEffect]:
        """Take no more triggers, and say so."""
        self._ending.closing = True
        return [self._report.closes()]

    def _finish(self) -> list[StreamTaskEffect]:
        """Close the operators, then move to FINISHED (MISSION E5).

        Not while a commit or a part of a snapshot is running (an aborted one is dropped when its
        part ends), or a consumer has records to process (PROTOCOL P30).
        """
        works = self._snapshots.any_part_running or not self._commits.is_idle
        if works or not self.outputs.all_consumed:
            return []
        if self._ending.operators is OperatorStatus.CLOSED:
            return [*self._end(TaskStatus.FINISHED), *self.outputs.broadcast(EndOfPartition())]
        if self._ending.closing_operators:
            return []
        self._ending.closing_operators = True
        return [CloseOperators(vertex=self._vertex)]

    def _on_operators_closed(self, event: OperatorsClosed) -> list[StreamTaskEffect]:
        del event
        self._ending.operators_closed()
        return self._finish()

    def _fail(self, error: TaskErrored | SinkCommitFailed) -> list[StreamTaskEffect]:
        self._ending.failed()
        failed = self._report.failed(error.message, fatal=error.fatal, cause=error.cause)
        return [*self._end(TaskStatus.FAILED), failed]

    def _end(self, status: TaskStatus) -> list[StreamTaskEffect]:
        """Forget everything except snapshots to be dropped; a held call is never answered."""
        moved = self._move(status)
        self._call = None
        self._triggers.clear()
        self._held_back.clear()
        self._snapshots.abort_all()
        return moved

    def _move(self, status: TaskStatus) -> list[StreamTaskEffect]:
        self._status = next_task_status(self._status, status)
        return [self._report.status(status)]

    def _after_end(self, event: StreamTaskEvent) -> list[StreamTaskEffect]:
        """Decline triggers, drop snapshots whose last part ended, and ignore everything else."""
        if isinstance(event, TriggerCheckpoint):
            if self._status is TaskStatus.FINISHED:
                return [self._report.closing(event.checkpoint_id)]
            return [self._report.not_ready(event.checkpoint_id, self._status)]
        if isinstance(event, SyncPartDone | AsyncPartDone | SnapshotFailed):
            known = self._snapshots.get(event.checkpoint_id) is not None
            return self._drop(event.checkpoint_id) if known else []
        return []

    def validate(self) -> None:
        """Check the laws of this machine and of its parts; raises ``InvariantError``."""
        records, ended = self._ending.records, has_ended(self._status)
        self._snapshots.validate()
        self._commits.validate()
        self._triggers.validate()
        self._gate.validate()
        self.outputs.validate()
        waits = self._status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
        self._ending.validate(self._vertex, ended=ended, waits=waits)
        held = self._snapshots.is_syncing or self._ending.closing or records is Records.STOPPED
        initializing = self._status is TaskStatus.INITIALIZING
        under_way = self._snapshots.any_under_way
        invariant(not (ended and under_way), "an ended task has an unfinished snapshot")
        invariant(self._call is None or not ended, "an ended task holds a planning call")
        rests = self._has_nothing_to_do and self._idle_at == self._position
        rests |= self.outputs.is_full and not (self._carries_events or self._reads_for_events)
        invariant(
            self._call is None or held or initializing or rests,
            f"{self._vertex} holds a planning call for no reason",
        )
        invariant(
            records is not Records.ENDED or held or ended,
            f"{self._vertex} does not start its drain",
        )
        invariant(
            self._held_back.keys() <= self._snapshots.channels_in_use,
            f"{self._vertex} does not report its read positions",
        )
        ends = self._ending.closing or ended
        invariant(not (self._triggers and ends), "a trigger waits at an ending task")
