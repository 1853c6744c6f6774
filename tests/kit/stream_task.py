"""A ``StreamTask`` under test, validated after every event, with shortcuts for the usual events."""

from __future__ import annotations

from collections.abc import Mapping

from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.protocol import (
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TaskClosing,
    TriggerCheckpoint,
)
from weir.core.messages.task import (
    AsyncPartDone,
    BatchStaged,
    CloseOperators,
    Drained,
    OperatorsClosed,
    PlanningCalled,
    RecordsEnded,
    ReportAborted,
    SinksCommitted,
    SnapshotFailed,
    StreamTaskEffect,
    StreamTaskEvent,
    SyncPartDone,
    TakeSnapshot,
    TaskStarted,
)
from weir.core.status import has_ended
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import (
    Committable,
    OperatorState,
    SentEvent,
    SnapshotKind,
    SnapshotMetrics,
    TaskState,
)

VERTEX = "v"
METRICS = SnapshotMetrics(sync_duration_ms=2, async_duration_ms=30, checkpointed_size=400)


class TaskHarness:
    """Sends events to a started task and keeps every effect."""

    def __init__(
        self,
        *,
        sinks: tuple[str, ...] = ("s1", "s2"),
        requires_final_checkpoint: bool = True,
        bounded: bool = True,
        available_now: bool = False,
        started: bool = True,
        closes_at_once: bool = True,
        takes_barriers: bool = False,
        operators_take_part: bool = False,
        consumers: tuple[str, ...] = (),
        sent_events: tuple[SentEvent, ...] = (),
        commit_intervals_ms: Mapping[str, int] | None = None,
    ) -> None:
        """``closes_at_once``: operators report CLOSED as soon as they are asked to close."""
        self.closes_at_once = closes_at_once
        self.task = StreamTask(
            TaskPlan(
                vertex=VERTEX,
                operators=(OperatorState(operator_id="o", name="o"),),
                sinks=sinks,
                bounded=bounded,
                available_now=available_now,
                requires_final_checkpoint=requires_final_checkpoint,
                prepares_for_barriers=takes_barriers,
                operators_take_part=operators_take_part,
                has_operators=takes_barriers or operators_take_part,
                coordinated=takes_barriers,
                commit_intervals_ms={} if commit_intervals_ms is None else commit_intervals_ms,
            ),
            attempt=3,
            consumers=consumers,
            sent_events=sent_events,
        )
        #: It has reported that it takes no more checkpoints.
        self.closes = False
        self.effects: list[StreamTaskEffect] = []
        #: Each ``TakeSnapshot``, by checkpoint id.
        self.taken: dict[int, TakeSnapshot] = {}
        if started:
            self.send(TaskStarted(position=-1))

    def send(self, event: StreamTaskEvent) -> list[StreamTaskEffect]:
        effects = self.task.handle(event, 0)
        self.task.validate()
        assert self.task.next_deadline() is None
        close = CloseOperators(vertex=VERTEX)
        if close in effects and self.closes_at_once:
            effects = [effect for effect in effects if effect != close] + self.task.handle(
                OperatorsClosed(), 0
            )
            self.task.validate()
        # Looked at by itself.
        self.closes |= any(isinstance(effect, TaskClosing) for effect in effects)
        effects = [effect for effect in effects if not isinstance(effect, TaskClosing)]
        self.effects += effects
        self.taken |= {e.checkpoint_id: e for e in effects if isinstance(e, TakeSnapshot)}
        return effects

    def trigger(
        self,
        checkpoint_id: int,
        kind: SnapshotKind = SnapshotKind.CHECKPOINT,
        *,
        drain: bool = False,
        at_ms: int = 9,
    ) -> list[StreamTaskEffect]:
        barrier = CheckpointBarrier(checkpoint_id=checkpoint_id, kind=kind, timestamp_ms=at_ms)
        return self.send(TriggerCheckpoint(vertex=VERTEX, barrier=barrier, drain=drain))

    def plan(
        self, call: int, position: int, *, outlives_call: bool = True, caught_up: bool = False
    ) -> list[StreamTaskEffect]:
        said = PlanningCalled(
            call=call, position=position, outlives_call=outlives_call, caught_up=caught_up
        )
        return self.send(said)

    def stage(self, position: int, sink: str = "s1") -> None:
        assert (
            self.send(BatchStaged(position=position, committables=(staged(position, sink),))) == []
        )

    def sync_done(self, checkpoint_id: int) -> list[StreamTaskEffect]:
        return self.send(SyncPartDone(checkpoint_id=checkpoint_id))

    def async_done(self, checkpoint_id: int) -> list[StreamTaskEffect]:
        return self.send(async_part_done(self.taken[checkpoint_id]))

    def snapshot_failed(
        self, checkpoint_id: int, operator: str | None = None
    ) -> list[StreamTaskEffect]:
        return self.send(
            SnapshotFailed(checkpoint_id=checkpoint_id, message="disk full", operator=operator)
        )

    def complete(self, checkpoint_id: int) -> list[StreamTaskEffect]:
        return self.send(NotifyCheckpointComplete(vertex=VERTEX, checkpoint_id=checkpoint_id))

    def abort(self, checkpoint_id: int) -> list[StreamTaskEffect]:
        """Abort a checkpoint; return the effects after the notification of listeners, if any."""
        notified = (
            []
            if has_ended(self.task.status)
            else [ReportAborted(vertex=VERTEX, checkpoint_id=checkpoint_id)]
        )
        effects = self.send(NotifyCheckpointAborted(vertex=VERTEX, checkpoint_id=checkpoint_id))
        assert effects[: len(notified)] == notified
        return effects[len(notified) :]

    def committed(self, checkpoint_id: int) -> list[StreamTaskEffect]:
        return self.send(SinksCommitted(checkpoint_id=checkpoint_id))

    def records_end(self, position: int) -> list[StreamTaskEffect]:
        return self.send(RecordsEnded(position=position))

    def drained(self, position: int) -> list[StreamTaskEffect]:
        return self.send(Drained(position=position))

    def acknowledge(self, checkpoint_id: int) -> None:
        """Run both parts of a snapshot that has started."""
        self.sync_done(checkpoint_id)
        self.async_done(checkpoint_id)

    def wait_for_final(self) -> None:
        """End the records at 4 and drain to 5."""
        self.records_end(4)
        self.drained(5)


def staged(position: int, sink: str = "s1", **marks: int | None) -> Committable:
    return Committable(
        sink=sink, position=position, payload={"file": f"{sink}-{position}"}, **marks
    )


def flushed(committable: Committable) -> dict[str, object]:
    return {"file": f"{committable.sink}-{committable.position}", "flushed": True}


def async_part_done(taken: TakeSnapshot) -> AsyncPartDone:
    """The result of the asynchronous part as a kernel reports it.

    Payloads are flushed, marks are not carried.
    """
    committables = tuple(
        Committable(sink=c.sink, position=c.position, payload=flushed(c))
        for c in taken.committables
    )
    state = TaskState(
        vertex=VERTEX, position=taken.position, operators=(), committables=committables
    )
    return AsyncPartDone(checkpoint_id=taken.checkpoint_id, state=state, metrics=METRICS)
