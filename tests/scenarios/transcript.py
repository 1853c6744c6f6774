"""Plays a scenario: a text of commands, and after each what the machines of the core did.

The core is production code: one ``JobMaster``, and a ``StreamTask`` for each task. Messages between
them are delivered at once, in order. Everything outside is played by the commands: storage, Spark's
queries, sinks, users and the clock. A line ``> command`` is followed by what came of it::

    job: Effect ...            an effect for the runtime
    job -> source: Message     a message from one machine to another
    = job RUNNING, ...         the states, where they changed
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from enum import Enum
from typing import Any

from tests.kit.job_master import JOB_ID, completed

from weir.core.job.master import JobMaster
from weir.core.messages.channel import ChannelAppended, CheckpointBarrier, Segment, SegmentsConsumed
from weir.core.messages.job import (
    AllocateLocation,
    AttemptBegan,
    CancelRequested,
    CheckpointDiscarded,
    CheckpointRecorded,
    DiscardCheckpoint,
    EndRecorded,
    JobStatusChanged,
    JobSubmitted,
    LocationAllocated,
    LocationFailed,
    RecordCheckpoint,
    RequestKind,
    SnapshotRequested,
    StopTasks,
    SuspendRequested,
    TasksStopped,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    CaughtUp,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TaskClosing,
    TaskFailed,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.messages.task import (
    AsyncPartDone,
    BatchStaged,
    CommitSinks,
    Drained,
    OperatorsClosed,
    PlanningCalled,
    RecordsEnded,
    SinksCommitted,
    SnapshotFailed,
    SyncPartDone,
    TakeSnapshot,
    TaskErrored,
    TaskStarted,
)
from weir.core.settings import CheckpointConfig, RestartConfig, RestartStrategyType, UntilIdle
from weir.core.task.output_channels import ChannelBound
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    OperatorState,
    Recorded,
    SnapshotKind,
    SnapshotMetrics,
    TaskState,
)

#: Messages from a task to the job master, from the job master to a task, and between tasks.
_TO_MASTER = (
    *(AcknowledgeCheckpoint, DeclineCheckpoint, TaskStatusChanged),
    *(CaughtUp, TaskClosing, TaskFailed),
)
_TO_TASK = (TriggerCheckpoint, NotifyCheckpointComplete, NotifyCheckpointAborted)
_BETWEEN = (ChannelAppended, SegmentsConsumed)
#: Fields that say nothing in a transcript.
_PLAIN = {
    "allocation", "attempt", "batch_size", "call", "cause", "channel", "hook_states", "metrics",
    "retained", "state", "timestamp_ms", "trace", "vertex", "consumer", "size",
}  # fmt: skip
_WALL_MS = 1_000_000
COMMANDS: list[tuple[re.Pattern[str], str]] = []


def command(pattern: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The method plays commands of this form."""

    def register(method: Callable[..., None]) -> Callable[..., None]:
        COMMANDS.append((re.compile(pattern), method.__name__))
        return method

    return register


class Play:
    """One job in one scenario."""

    def __init__(self) -> None:
        self._plans: dict[str, dict[str, Any]] = {}
        self._master: JobMaster | None = None
        self._tasks: dict[str, StreamTask] = {}
        self._lines: list[str] = []
        self._states = ""
        self._now_ms = 0
        self._next_id = 1
        self._requests = 0
        self._calls = 0
        #: The newest effect of each type, by task ("" for the job), for its answer.
        self._owed: dict[tuple[str, type[Any]], Any] = {}
        self._positions: dict[str, int] = {}
        self._completed: CompletedCheckpoint | None = None
        self._attempt = 0
        self._queue: deque[tuple[str, str, Any]] = deque()

    def run(self, text: str) -> list[str]:
        """What came of one command, as lines."""
        self._lines = []
        for pattern, name in COMMANDS:
            match = pattern.fullmatch(text)
            if match:
                getattr(self, name)(*match.groups())
                break
        else:
            raise ValueError(f"no such command: {text!r}")
        if self._master is not None:
            self._note_states()
        return self._lines

    # -- the job

    @command(r"task (\w+)(?: reads ([\w, ]+?))?(?: writes ([\w, ]+?))?( unbounded| until idle)?")
    def task(self, name: str, reads: str | None, writes: str | None, extent: str | None) -> None:
        split = lambda names: tuple((names or "").replace(" ", "").split(",")) if names else ()  # noqa: E731
        self._plans[name] = {
            "inputs": split(reads),
            "sinks": split(writes),
            "bounded": not extent,
            "available_now": extent == " until idle",
        }

    @command(r"submit(?: with (.+))?")
    def submit(self, settings: str | None) -> None:
        known = dict(pair.split("=") for pair in re.findall(r"[\w-]+=\w+", settings or ""))
        number = lambda key: None if key not in known else int(known.pop(key))  # noqa: E731
        self._aligned_timeout_ms = number("aligned-timeout")
        restarts = number("restarts")
        config = CheckpointConfig(
            interval_ms=number("interval"),
            min_pause_ms=number("min-pause") or 0,
            timeout_ms=number("timeout") or 600_000,
            max_concurrent_checkpoints=number("concurrent") or 1,
            tolerable_failed_checkpoints=number("tolerable") or 0,
            num_retained=number("retained") or 1,
        )
        assert not known, f"unknown settings: {known}"
        self._master = JobMaster(
            job_id=JOB_ID,
            vertices={name: self._operators(name) for name in self._plans},
            config=config,
            restart=RestartConfig(
                type=RestartStrategyType.FIXED_DELAY,
                fixed_delay_attempts=1 if restarts is None else restarts,
                fixed_delay_ms=1_000,
            ),
            savepoint_directory="/savepoints",
            producers={name: plan["inputs"] for name, plan in self._plans.items()},
            until_idle=(
                UntilIdle() if any(p["available_now"] for p in self._plans.values()) else None
            ),
        )
        self._to_master(JobSubmitted())

    @command(r"attempt (\d+) begins")
    def begins(self, attempt: str) -> None:
        self._attempt = int(attempt)
        restored = self._completed
        tasks = {} if restored is None else {task.vertex: task for task in restored.tasks}
        self._tasks = {}
        for name, plan in self._plans.items():
            if name in tasks and tasks[name].fully_finished:
                continue
            self._positions[name] = tasks[name].position if name in tasks else -1
            self._tasks[name] = StreamTask(
                TaskPlan(
                    vertex=name,
                    operators=self._operators(name),
                    sinks=plan["sinks"],
                    bounded=plan["bounded"],
                    available_now=plan["available_now"] and not plan["inputs"],
                    requires_final_checkpoint=bool(plan["sinks"]),
                    inputs=plan["inputs"],
                    bound=ChannelBound(segments=2),
                    aligned_timeout_ms=self._aligned_timeout_ms,
                ),
                attempt=self._attempt,
                consumers=tuple(n for n, p in self._plans.items() if name in p["inputs"]),
            )
        self._to_master(
            AttemptBegan(
                attempt=self._attempt,
                restored=restored,
                states={} if restored is None else restored.states,
                chance=0.0,
                timestamp_ms=self._wall_ms,
            )
        )

    def _operators(self, name: str) -> tuple[OperatorState, ...]:
        return (OperatorState(operator_id=name, name=name),)

    # -- the queries

    @command(r"([\w, ]+) started")
    def started(self, names: str) -> None:
        for name in names.replace(" ", "").split(","):
            self._to_task(name, TaskStarted(position=self._positions[name]))

    @command(r"(\w+) (rests|has caught up) after batch (-?\d+)(?:, having read (.+))?")
    def rests(self, name: str, how: str, position: str, read: str | None) -> None:
        self._calls += 1
        self._positions[name] = int(position)
        consumed = dict(channel.split(" up to ") for channel in read.split(", ")) if read else {}
        self._to_task(
            name,
            PlanningCalled(
                call=self._calls,
                position=int(position),
                consumed={channel: int(last) for channel, last in consumed.items()},
                caught_up=how == "has caught up",
            ),
        )

    @command(r"(\w+) runs batch (\d+)")
    def runs(self, name: str, position: str) -> None:
        """Its sinks stage, and its consumers get a segment."""
        number, plan = int(position), self._plans[name]
        consumers = any(name in other["inputs"] for other in self._plans.values())
        self._to_task(
            name,
            BatchStaged(
                position=number,
                committables=tuple(
                    Committable(sink=sink, position=number, payload={"rows": f"{sink}-{number}"})
                    for sink in plan["sinks"]
                ),
                segment=Segment(position=number, size=1, payload={}) if consumers else None,
            ),
        )

    @command(r"(\w+) reaches the end of its input after batch (-?\d+)")
    def input_ends(self, name: str, position: str) -> None:
        self._to_task(name, RecordsEnded(position=int(position)))

    @command(r"(\w+) has drained in batch (\d+)")
    def drained(self, name: str, position: str) -> None:
        self._positions[name] = int(position)
        self._to_task(name, Drained(position=int(position)))

    @command(r"(\w+) fails: (.+)")
    def fails(self, name: str, message: str) -> None:
        self._to_task(name, TaskErrored(message=message))

    # -- snapshots and commits

    @command(r"([\w, ]+) finish(?:es)? the synchronous part")
    def sync_done(self, names: str) -> None:
        for name in names.replace(" ", "").split(","):
            taken = self._owed[name, TakeSnapshot]
            self._to_task(name, SyncPartDone(checkpoint_id=taken.checkpoint_id))

    @command(r"([\w, ]+) finish(?:es)? the asynchronous part")
    def async_done(self, names: str) -> None:
        for name in names.replace(" ", "").split(","):
            taken: TakeSnapshot = self._owed[name, TakeSnapshot]
            state = TaskState(
                vertex=name,
                position=taken.position,
                operators=self._operators(name),
                committables=tuple(replace(c, barrier=None) for c in taken.committables),
                in_flight=taken.in_flight,
            )
            done = AsyncPartDone(
                checkpoint_id=taken.checkpoint_id, state=state, metrics=SnapshotMetrics()
            )
            self._to_task(name, done)

    @command(r"(\w+) cannot take its snapshot: (.+)")
    def snapshot_fails(self, name: str, message: str) -> None:
        taken = self._owed[name, TakeSnapshot]
        self._to_task(name, SnapshotFailed(checkpoint_id=taken.checkpoint_id, message=message))

    @command(r"(\w+) has committed checkpoint (\d+)")
    def committed(self, name: str, checkpoint_id: str) -> None:
        assert self._owed[name, CommitSinks].checkpoint_id == int(checkpoint_id)
        self._to_task(name, SinksCommitted(checkpoint_id=int(checkpoint_id)))

    @command(r"([\w, ]+) (?:has|have) closed")
    def closed(self, names: str) -> None:
        for name in names.replace(" ", "").split(","):
            self._to_task(name, OperatorsClosed())

    # -- storage

    @command(r"checkpoint id allocated")
    def allocated(self) -> None:
        asked: AllocateLocation = self._owed["", AllocateLocation]
        n, self._next_id = self._next_id, self._next_id + 1
        self._to_master(
            LocationAllocated(
                allocation=asked.allocation,
                checkpoint_id=n,
                target=None if asked.target is None else f"{asked.target}/savepoint-{n}",
                timestamp_ms=self._wall_ms,
            )
        )

    @command(r"no checkpoint id: (.+)")
    def not_allocated(self, message: str) -> None:
        asked = self._owed["", AllocateLocation]
        self._to_master(
            LocationFailed(allocation=asked.allocation, message=message, timestamp_ms=self._wall_ms)
        )

    @command(r"checkpoint (\d+) is recorded")
    def recorded(self, checkpoint_id: str) -> None:
        record: RecordCheckpoint = self._owed["", RecordCheckpoint]
        assert record.checkpoint_id == int(checkpoint_id)
        checkpoint = completed(record)
        if record.kind.commits_side_effects:
            self._completed = checkpoint
        self._to_master(
            CheckpointRecorded(
                checkpoint_id=record.checkpoint_id, outcome=Recorded.WON, checkpoint=checkpoint
            )
        )

    @command(r"checkpoint (\d+) is not recorded: (.+)")
    def not_recorded(self, checkpoint_id: str, message: str) -> None:
        fenced = "another driver" in message
        self._to_master(
            CheckpointRecorded(
                checkpoint_id=int(checkpoint_id),
                outcome=Recorded.FENCED if fenced else Recorded.FAILED,
                message=message,
            )
        )

    @command(r"files of checkpoint (\d+) deleted")
    def deleted(self, checkpoint_id: str) -> None:
        assert self._owed["", DiscardCheckpoint].checkpoint_id == int(checkpoint_id)
        self._to_master(CheckpointDiscarded(checkpoint_id=int(checkpoint_id)))

    @command(r"the end is recorded")
    def end_recorded(self) -> None:
        self._to_master(EndRecorded(outcome=Recorded.WON))

    @command(r"the tasks have stopped")
    def stopped(self) -> None:
        stop = self._owed["", StopTasks]
        self._tasks = {}
        self._to_master(TasksStopped(attempt=stop.attempt, chance=0.0))

    # -- users and the clock

    @command(r"a user asks for a (checkpoint|savepoint)")
    def asks(self, what: str) -> None:
        self._request(SnapshotRequested, kind=RequestKind[what.upper()])

    @command(r"a user stops the job(, draining it)?")
    def stops(self, drain: str | None) -> None:
        self._request(SnapshotRequested, kind=RequestKind.STOP, drain=bool(drain))

    @command(r"a user cancels the job")
    def cancels(self) -> None:
        self._request(CancelRequested)

    @command(r"the driver gets SIGTERM")
    def suspends(self) -> None:
        self._to_master(SuspendRequested())

    def _request(self, event: type[Any], **said: Any) -> None:
        self._requests += 1
        self._to_master(event(request=f"request {self._requests}", **said))

    @command(r"(\d+) ms pass")
    def passes(self, ms: str) -> None:
        end_ms = self._now_ms + int(ms)
        while (due := self._next_deadline()) is not None and due[0] <= end_ms:
            self._now_ms = max(self._now_ms, due[0])
            machine = self._job if due[1] == "" else self._tasks[due[1]]
            self._happened(due[1], machine.on_deadline(self._now_ms))
            self._deliver()
        self._now_ms = end_ms

    def _next_deadline(self) -> tuple[int, str] | None:
        machines: list[tuple[str, JobMaster | StreamTask]] = [("", self._job)]
        machines += list(self._tasks.items())
        found = ((machine.next_deadline(), name) for name, machine in machines)
        return min(((ms, name) for ms, name in found if ms is not None), default=None)

    # -- delivery

    @property
    def _job(self) -> JobMaster:
        assert self._master is not None
        return self._master

    @property
    def _wall_ms(self) -> int:
        return _WALL_MS + self._now_ms

    def _to_master(self, event: Any) -> None:
        self._happened("", self._job.handle(event, self._now_ms))
        self._deliver()

    def _to_task(self, name: str, event: Any) -> None:
        self._happened(name, self._tasks[name].handle(event, self._now_ms))
        self._deliver()

    def _deliver(self) -> None:
        while self._queue:
            _, receiver, message = self._queue.popleft()
            if receiver == "":
                self._happened("", self._job.handle(message, self._now_ms))
            elif receiver in self._tasks:
                self._happened(receiver, self._tasks[receiver].handle(message, self._now_ms))

    def _happened(self, machine: str, effects: list[Any]) -> None:
        """A machine has handled an event: check its laws, and carry its effects on."""
        (self._tasks[machine] if machine else self._job).validate()
        self._emit(machine, effects)

    def _emit(self, sender: str, effects: list[Any]) -> None:
        for effect in effects:
            self._owed[sender, type(effect)] = effect
            who = sender or "job"
            if isinstance(effect, _TO_MASTER):
                self._queue.append((sender, "", effect))
                receiver = "job"
            elif isinstance(effect, (*_TO_TASK, *_BETWEEN)):
                self._queue.append((sender, effect.vertex, effect))
                receiver = effect.vertex
            else:
                receiver = ""
            if isinstance(effect, JobStatusChanged) and not effect.message:
                continue  # the states are shown anyway
            if isinstance(effect, TaskStatusChanged):
                continue
            arrow = f" -> {receiver}" if receiver else ""
            self._lines.append(f"{who}{arrow}: {shown(effect)}")

    def _note_states(self) -> None:
        parts = [f"job {self._job.status.value}"]
        parts += [f"{name} {self._job.task_status(name).value}" for name in self._plans]
        pending = [f"{p.checkpoint_id} {p.state.value}" for p in self._job.coordinator.pending]
        completed_ids = [str(n) for n in self._job.coordinator.store.ids]
        if pending:
            parts.append(f"pending {', '.join(pending)}")
        if completed_ids:
            parts.append(f"completed {', '.join(completed_ids)}")
        states = "; ".join(parts)
        if states != self._states:
            self._states = states
            self._lines.append(f"= {states}")


def shown(effect: Any) -> str:
    """The name of an effect and what matters of it."""
    return " ".join([type(effect).__name__, *_shown_fields(effect)])


def _shown_fields(value: Any) -> Iterator[str]:
    for field in fields(value):
        content = getattr(value, field.name)
        if isinstance(content, CheckpointBarrier):
            yield from _shown_fields(content)
            continue
        default = field.default if field.default is not MISSING else None
        if field.name in _PLAIN or content is None or content is False:
            continue
        if content in (default, (), {}, "") and not isinstance(content, int):
            continue
        if content is SnapshotKind.CHECKPOINT:
            continue
        name = "checkpoint" if field.name == "checkpoint_id" else field.name
        yield name if content is True else f"{name}={_shown_value(field.name, content)}"


def _shown_value(name: str, content: Any) -> str:
    if isinstance(content, Enum):
        return str(content.name).lower()
    if name == "entries":
        return "[" + ", ".join(_entry(entry) for entry in content) + "]"
    if name == "tasks":
        return "[" + ", ".join(_task_state(state) for state in content) + "]"
    if name == "payloads":
        rows = {
            sink: [payload["rows"] for payload in payloads] for sink, payloads in content.items()
        }
        return "[" + ", ".join(row for found in rows.values() for row in found) + "]"
    if name == "committables":
        return "[" + ", ".join(committable.payload["rows"] for committable in content) + "]"
    if name == "admitted":
        return "[" + ", ".join(_admission(admission) for admission in content) + "]"
    if name == "in_flight":
        return "[" + ", ".join(f"{segment.channel} {segment.position}" for segment in content) + "]"
    if name == "checkpoint":
        return str(content.checkpoint_id)
    if isinstance(content, str):
        return repr(content)
    return str(content)


def _entry(entry: Any) -> str:
    inner = " ".join(_shown_fields(entry))
    return f"{type(entry).__name__}({inner})" if inner else type(entry).__name__


def _admission(admission: Any) -> str:
    last = admission.segments[-1].position
    return f"{admission.channel} up to {last}"


def _task_state(state: TaskState) -> str:
    finished = " finished" if state.fully_finished else ""
    staged = [f"{c.payload['rows']}:{c.epoch or '-'}" for c in state.committables]
    return f"{state.vertex}@{state.position}{finished}" + (f" {' '.join(staged)}" if staged else "")


def played(text: str) -> str:
    """The scenario with what its commands lead to now."""
    play, out = Play(), []
    for line in text.splitlines():
        if line.startswith("> "):
            out.append(line)
            out += [f"    {came}" for came in play.run(line.removeprefix("> "))]
        elif not line.startswith("    "):
            out.append(line)
    return "\n".join(out) + "\n"
