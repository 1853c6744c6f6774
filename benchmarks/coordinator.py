"""The cost of coordinating a checkpoint: ``python -m benchmarks.coordinator``.

One whole checkpoint goes through ``JobMaster.handle``, without Spark, threads or files: request,
location, the triggers to all tasks, one acknowledgement from each task, the record, the
notifications, and the discarding of the checkpoint that it subsumes. How it is measured:

1. *Tasks*: 10, 100, 1,000 and 10,000 tasks, each a vertex of its own that acknowledges one new
   state file, as a keyed aggregation does with each checkpoint.
2. *Events* are created before the clock starts, since in a running job others create them (tasks,
   storage). Executing the effects is not part of the figure.
3. *Rounds*: a few checkpoints to warm up, then the median over several. Python's garbage collector
   stays on.

``coordinator_scaling`` is the cost with 10,000 tasks over the cost with 10: as long as every step
costs the same for each task, it stays near 1,000 or below. ``coordinator_acknowledgements`` counts
acknowledgements only, in one thread.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.machine import describe_machine
from weir.core.job.master import JobMaster
from weir.core.messages.job import (
    AllocateLocation,
    AttemptBegan,
    CheckpointDiscarded,
    CheckpointRecorded,
    DiscardCheckpoint,
    JobMasterEffect,
    JobSubmitted,
    LocationAllocated,
    RecordCheckpoint,
    RequestKind,
    SnapshotRequested,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    NotifyCheckpointComplete,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.settings import CheckpointConfig, RestartConfig, RestartStrategyType
from weir.core.types import (
    CompletedCheckpoint,
    OperatorState,
    Recorded,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    TaskStatus,
)
from weir.errors import invariant

SCALING_TARGET = 1_200
ACKNOWLEDGEMENTS_TARGET = 100_000

#: Number of tasks -> number of measured checkpoints.
_ROUNDS = {10: 200, 100: 100, 1_000: 30, 10_000: 9}
_WARM_UP = 3
_JOB_ID = "0" * 32


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one checkpoint, in seconds."""

    #: From the request until every task is triggered.
    trigger_s: float
    #: All acknowledgements.
    acknowledge_s: float
    #: From the won record until all tasks are notified and the subsumed checkpoint is discarded.
    complete_s: float

    @property
    def whole_s(self) -> float:
        """The checkpoint from its request to its end."""
        return self.trigger_s + self.acknowledge_s + self.complete_s


class Bench:
    """A running job of many tasks, and the answers that its job master expects."""

    def __init__(self, tasks: int) -> None:
        """Submit the job and report all its tasks as running."""
        self._vertices = [f"vertex-{number}" for number in range(tasks)]
        self._operators = {
            vertex: (OperatorState(operator_id=vertex, name=vertex),) for vertex in self._vertices
        }
        self._master = JobMaster(
            job_id=_JOB_ID,
            vertices=self._operators,
            config=CheckpointConfig(interval_ms=None),
            restart=RestartConfig(type=RestartStrategyType.NONE),
            savepoint_directory=None,
        )
        self._checkpoint_id = 0
        self._master.handle(JobSubmitted(), 0)
        self._master.handle(
            AttemptBegan(attempt=1, restored=None, states={}, chance=0.0, timestamp_ms=0), 0
        )
        for vertex in self._vertices:
            self._master.handle(
                TaskStatusChanged(vertex=vertex, attempt=1, status=TaskStatus.RUNNING), 0
            )

    def checkpoint(self) -> Cost:
        """Run one checkpoint from its request to its completion."""
        self._checkpoint_id += 1
        acknowledgements = [self._acknowledgement(vertex) for vertex in self._vertices]
        gc.collect()

        begun = time.perf_counter()
        triggers = self._trigger()
        triggered = time.perf_counter()
        for event in acknowledgements:
            effects = self._master.handle(event, self._checkpoint_id)
        acknowledged = time.perf_counter()

        (record,) = (effect for effect in effects if isinstance(effect, RecordCheckpoint))
        recorded = CheckpointRecorded(
            checkpoint_id=self._checkpoint_id,
            outcome=Recorded.WON,
            checkpoint=self._completed(record),
        )
        resumed = time.perf_counter()
        notified = self._complete(recorded)
        completed = time.perf_counter()

        invariant(
            triggers == notified == len(self._vertices), "every task is triggered and notified once"
        )
        return Cost(
            trigger_s=triggered - begun,
            acknowledge_s=acknowledged - triggered,
            complete_s=completed - resumed,
        )

    def _trigger(self) -> int:
        """Request a checkpoint and answer its allocation; return the number of triggers."""
        request = SnapshotRequested(request=str(self._checkpoint_id), kind=RequestKind.CHECKPOINT)
        effects = self._master.handle(request, self._checkpoint_id)
        (allocation,) = (effect for effect in effects if isinstance(effect, AllocateLocation))
        allocated = LocationAllocated(
            allocation=allocation.allocation,
            checkpoint_id=self._checkpoint_id,
            target=None,
            timestamp_ms=self._checkpoint_id,
        )
        return _count(self._master.handle(allocated, self._checkpoint_id), TriggerCheckpoint)

    def _complete(self, recorded: CheckpointRecorded) -> int:
        """Report the won record and confirm the discards; return the number of notifications."""
        effects = self._master.handle(recorded, self._checkpoint_id)
        for effect in effects:
            if isinstance(effect, DiscardCheckpoint):
                discarded = CheckpointDiscarded(checkpoint_id=effect.checkpoint_id)
                self._master.handle(discarded, self._checkpoint_id)
        return _count(effects, NotifyCheckpointComplete)

    def _acknowledgement(self, vertex: str) -> AcknowledgeCheckpoint:
        path = f"shared/{self._checkpoint_id}/{vertex}.changelog"
        handle = StateHandle(key=path, path=path, size=1_000, checksum="crc32:00000000")
        return AcknowledgeCheckpoint(
            vertex=vertex,
            attempt=1,
            checkpoint_id=self._checkpoint_id,
            state=TaskState(
                vertex=vertex,
                position=self._checkpoint_id,
                operators=self._operators[vertex],
                files=(handle,),
            ),
            metrics=SnapshotMetrics(checkpointed_size=1_000),
        )

    def _completed(self, record: RecordCheckpoint) -> CompletedCheckpoint:
        return CompletedCheckpoint(
            job_id=_JOB_ID,
            checkpoint_id=record.checkpoint_id,
            kind=record.kind,
            timestamp_ms=record.timestamp_ms,
            completion_timestamp_ms=record.timestamp_ms,
            attempt=record.attempt,
            tasks=record.tasks,
            external_path=f"/checkpoints/chk-{record.checkpoint_id}",
        )


def _count(effects: Sequence[JobMasterEffect], kind: type[JobMasterEffect]) -> int:
    return sum(isinstance(effect, kind) for effect in effects)


def measure(tasks: int, rounds: int) -> Cost:
    """The median of each part over ``rounds`` checkpoints, after the warm-up."""
    bench = Bench(tasks)
    for _ in range(_WARM_UP):
        bench.checkpoint()
    costs = [bench.checkpoint() for _ in range(rounds)]
    return Cost(
        trigger_s=statistics.median(cost.trigger_s for cost in costs),
        acknowledge_s=statistics.median(cost.acknowledge_s for cost in costs),
        complete_s=statistics.median(cost.complete_s for cost in costs),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coordinator", description=(__doc__ or "").split("\n")[0]
    )
    parser.parse_args(arguments)
    print(describe_machine(), flush=True)
    print(
        f"{'tasks':>7} {'whole ms':>9} {'trigger':>9} {'acks':>9} {'complete':>9} {'µs a task':>10}"
    )
    costs: dict[int, Cost] = {}
    for tasks, rounds in _ROUNDS.items():
        cost = costs[tasks] = measure(tasks, rounds)
        parts = (cost.whole_s, cost.trigger_s, cost.acknowledge_s, cost.complete_s)
        figures = " ".join(f"{part * 1_000:>9.3f}" for part in parts)
        print(f"{tasks:>7,} {figures} {cost.whole_s / tasks * 1e6:>10.2f}", flush=True)
    least, most = min(costs), max(costs)
    ratio = costs[most].whole_s / costs[least].whole_s
    per_second = most / costs[most].acknowledge_s
    print(f"coordinator_scaling ratio={ratio:.0f} target={SCALING_TARGET}")
    print(
        f"coordinator_acknowledgements per_second={per_second:.0f} target={ACKNOWLEDGEMENTS_TARGET}"
    )
    return 0 if ratio <= SCALING_TARGET and per_second >= ACKNOWLEDGEMENTS_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
