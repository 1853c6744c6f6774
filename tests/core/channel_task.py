"""A ``StreamTask`` between channels for tests.

It rests in its first planning call, its consumers have reported what a batch of theirs may read,
and every effect is recorded.
"""

from __future__ import annotations

from typing import Any

from weir.core.messages.channel import (
    ChannelAppended,
    CheckpointBarrier,
    Segment,
    SegmentsConsumed,
)
from weir.core.messages.protocol import TaskClosing, TriggerCheckpoint
from weir.core.messages.task import (
    AsyncPartDone,
    BatchStaged,
    CloseOperators,
    OperatorsClosed,
    PlanningCalled,
    SyncPartDone,
    TaskStarted,
)
from weir.core.task.batch_bound import BatchBound
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import InFlightSegment, OperatorState, SnapshotKind, SnapshotMetrics, TaskState

#: What a batch of a consumer may read.
BATCH_SIZE = BatchBound().size

OPERATORS = (OperatorState(operator_id="v", name="v"),)


class Task:
    """A running task that rests in its first planning call."""

    def __init__(
        self,
        *,
        inputs: tuple[str, ...] = (),
        consumers: tuple[str, ...] = (),
        aligned_timeout_ms: int | None = None,
        operators_take_part: bool = False,
        has_own_readers: bool = False,
        has_operators: bool = False,
        externally_induced: bool = False,
        prepares_for_barriers: bool = False,
        requires_final_checkpoint: bool = True,
        idle_after_ms: int | None = None,
        restored: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        """``restored`` are channel entries that are present before the task runs."""
        self.machine = StreamTask(
            TaskPlan(
                vertex="v",
                operators=OPERATORS,
                sinks=(),
                bounded=True,
                requires_final_checkpoint=requires_final_checkpoint,
                idle_after_ms=idle_after_ms,
                inputs=inputs,
                aligned_timeout_ms=aligned_timeout_ms,
                operators_take_part=operators_take_part,
                has_own_readers=has_own_readers,
                has_operators=has_operators,
                externally_induced=externally_induced,
                prepares_for_barriers=prepares_for_barriers,
            ),
            attempt=1,
            consumers=consumers,
        )
        self.calls = 0
        #: How far the query has read each channel, in its own offsets.
        self.offsets: dict[str, int] = {}
        #: It has reported that it takes no more checkpoints.
        self.closes = False
        self.effects: list[Any] = []
        for channel, entry in restored:
            self.get(channel, entry)
        self.do(TaskStarted(position=-1))
        for consumer in consumers:
            reported = SegmentsConsumed(
                vertex="v", consumer=consumer, position=-1, batch_size=BATCH_SIZE
            )
            self.do(reported)

    def do(self, event: Any, now_ms: int = 0) -> list[Any]:
        """Handle one event and return its effects."""
        effects = self.machine.handle(event, now_ms)
        self.machine.validate()
        close = CloseOperators(vertex="v")
        if close in effects:
            effects = [effect for effect in effects if effect != close] + self.machine.handle(
                OperatorsClosed(), now_ms
            )
            self.machine.validate()
        # Looked at by itself.
        self.closes |= any(isinstance(effect, TaskClosing) for effect in effects)
        effects = [effect for effect in effects if not isinstance(effect, TaskClosing)]
        self.effects += effects
        return effects

    def plan(
        self, position: int, now_ms: int = 0, timer_in_ms: int | None = None, **consumed: int
    ) -> list[Any]:
        """A planning call; ``consumed`` are the channels read by the steps since the last call."""
        self.calls += 1
        self.offsets |= consumed
        called = PlanningCalled(
            call=self.calls,
            position=position,
            consumed=dict(self.offsets),
            timer_in_ms=timer_in_ms,
        )
        return self.do(called, now_ms)

    def step(self, position: int) -> list[Any]:
        """A whole step that emits a segment, up to the next planning call."""
        self.do(BatchStaged(position=position, committables=(), segment=segment(position)))
        return self.plan(position)

    def get(self, channel: str, entry: Any, now_ms: int = 0) -> list[Any]:
        """Append an entry as the producer of a channel."""
        return self.do(ChannelAppended(vertex="v", channel=channel, entries=(entry,)), now_ms)

    def snapshot(
        self, checkpoint_id: int, position: int, in_flight: tuple[InFlightSegment, ...] = ()
    ) -> list[Any]:
        """Run both parts of a snapshot that has started."""
        return self.do(SyncPartDone(checkpoint_id=checkpoint_id)) + self.finish(
            checkpoint_id, position, in_flight
        )

    def finish(
        self, checkpoint_id: int, position: int, in_flight: tuple[InFlightSegment, ...] = ()
    ) -> list[Any]:
        """Run the asynchronous part of a snapshot."""
        state = TaskState(vertex="v", position=position, operators=OPERATORS, in_flight=in_flight)
        return self.do(
            AsyncPartDone(checkpoint_id=checkpoint_id, state=state, metrics=SnapshotMetrics())
        )


def segment(position: int) -> Segment:
    """The output of one step."""
    return Segment(position=position, size=1, payload={})


def barrier(checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> CheckpointBarrier:
    """A barrier of a checkpoint."""
    return CheckpointBarrier(
        checkpoint_id=checkpoint_id, kind=kind, timestamp_ms=0, target=None, full=False
    )


def trigger(checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> TriggerCheckpoint:
    """A trigger of the coordinator."""
    return TriggerCheckpoint(vertex="v", barrier=barrier(checkpoint_id, kind))


def kinds(effects: list[Any]) -> list[str]:
    """Effect types; a channel entry counts by its own type."""
    found: list[Any] = []
    for effect in effects:
        found += effect.entries if isinstance(effect, ChannelAppended) else (effect,)
    return [type(item).__name__ for item in found]
