"""Random but legal histories of a job: the laws of the protocol hold for any order of answers.

The world below owes the job master answers. It gives them in an order, with delays and with
outcomes drawn from a seed (hypothesis draws it and reports it when a law breaks), while users,
tasks and the clock interfere. ``validate()`` runs after every event.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.job_master import RESTART, MasterWorld, completed, of, retained_files, task_state

from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    AttemptBegan,
    AttemptFailed,
    BeginAttempt,
    CancelRequested,
    CheckpointDiscarded,
    CheckpointRecorded,
    DiscardCheckpoint,
    EndRecorded,
    HookFailed,
    HookTriggered,
    JobEnded,
    JobMasterEffect,
    JobSubmitted,
    LocationAllocated,
    LocationFailed,
    RecordCheckpoint,
    RecordEnd,
    RequestKind,
    SnapshotRequested,
    StopTasks,
    SuspendRequested,
    TasksStopped,
    TriggerHook,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyCheckpointComplete,
    TaskFailed,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.settings import CheckpointConfig, UntilIdle
from weir.core.status import JobStatus
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import (
    CheckpointType,
    CompletedCheckpoint,
    Recorded,
    SnapshotKind,
    SnapshotMetrics,
    TaskStatus,
)

CONFIG = CheckpointConfig(
    interval_ms=50,
    timeout_ms=400,
    min_pause_ms=10,
    max_concurrent_checkpoints=2,
    tolerable_failed_checkpoints=2,
    num_retained=2,
)
FORWARD = {
    TaskStatus.INITIALIZING: TaskStatus.RUNNING,
    TaskStatus.RUNNING: TaskStatus.WAITING_FOR_FINAL_CHECKPOINT,
    TaskStatus.WAITING_FOR_FINAL_CHECKPOINT: TaskStatus.FINISHED,
}
USER = (
    *(("checkpoint",) * 12 + ("savepoint",) * 12 + ("stop",) * 3),
    *(("stop_with_checkpoint",) * 2 + ("cancel", "suspend")),
)
#: Most moves are answers; trouble is rare.
MOVES = ("answer",) * 12 + ("status",) * 3 + ("time",) * 4 + ("user",) * 2 + ("fail",)
MOVES_UNTIL_IDLE = (*MOVES, "read")


class RandomMaster(MasterWorld):
    """Owes answers, gives them in any order, and checks for what must never happen."""

    def __init__(self, until_idle: UntilIdle | None) -> None:
        super().__init__(
            *("a", "b"),
            config=CONFIG,
            restart=RESTART,
            hooks=("h1", "h2"),
            cleans=False,
            until_idle=until_idle,
        )
        self.owed: list[JobMasterEffect] = []
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.won: dict[int, CompletedCheckpoint] = {}
        self.deleted: set[str] = set()
        #: Whether the job still owes a full checkpoint, judging by its restores and completions.
        self.owes_full = True
        #: Checkpoints whose tasks were asked for a full snapshot.
        self.full: set[int] = set()
        #: Hooks that have not answered, by checkpoint.
        self.hooks: dict[int, set[str]] = {}
        #: The base of each task's next snapshot: the last completion it was notified of.
        self.base: dict[str, tuple[str, ...]] = {}
        #: The base at the time of the trigger, by checkpoint and task.
        self.based_on: dict[tuple[int, str], tuple[str, ...]] = {}

    def observe(self, effects: list[JobMasterEffect]) -> None:
        """Check each effect against the laws and record the answer it is owed."""
        for effect in effects:
            match effect:
                case NotifyCheckpointComplete():
                    assert effect.checkpoint_id in self.won, (
                        "notified of a checkpoint without a won record"
                    )
                    state = self.won[effect.checkpoint_id].task(effect.vertex)
                    assert state is not None
                    if not self.won[effect.checkpoint_id].kind.is_savepoint:
                        self.base[effect.vertex] = tuple(h.path for h in state.files)
                case AnswerRequest():
                    assert effect.request not in self.answered, "a request is answered twice"
                    assert effect.request in self.asked
                    self.answered.append(effect.request)
                case DiscardCheckpoint():
                    self.check_deletion(effect)
                    self.owed.append(effect)
                case AllocateLocation():
                    cleaning = of(self.owed, DiscardCheckpoint)
                    assert len(cleaning) <= CONFIG.max_concurrent_checkpoints, (
                        "too much is being cleaned up"
                    )
                    self.owed.append(effect)
                case TriggerHook():
                    self.hooks.setdefault(effect.checkpoint_id, set()).add(effect.identifier)
                    self.owed.append(effect)
                case TriggerCheckpoint():
                    assert not self.hooks[effect.checkpoint_id], (
                        "tasks are triggered before hooks are done"
                    )
                    assert effect.barrier.full or not (self.owes_full or effect.kind.is_savepoint)
                    self.full |= {effect.checkpoint_id} if effect.barrier.full else set()
                    key = (effect.checkpoint_id, effect.vertex)
                    self.based_on[key] = self.base.get(effect.vertex, ())
                    self.owed.append(effect)
                case RecordCheckpoint():
                    assert list(effect.hook_states) == ["h1"], "a hook's state is missing"
                    self.owed.append(effect)
                case BeginAttempt() | StopTasks() | RecordEnd():
                    self.owed.append(effect)

    def check_deletion(self, effect: DiscardCheckpoint) -> None:
        """No retained checkpoint is deleted, nor any file that a retained or pending one needs."""
        coordinator = self.master.coordinator
        assert effect.checkpoint_id not in coordinator.store.ids
        assert effect.subsumed == (effect.checkpoint_id in self.won)
        needed = set(retained_files(coordinator.store))
        for pending in coordinator.pending:
            needed |= {h.path for state in pending.acknowledged_states for h in state.files}
            for vertex in pending.plan.tasks_to_trigger:
                base = self.base.get(vertex, ())
                needed |= set(self.based_on.get((pending.checkpoint_id, vertex), base))
        assert needed.isdisjoint(effect.files), "a file is deleted that is still needed"
        assert self.deleted.isdisjoint(effect.files), "a file is deleted twice"
        self.deleted |= set(effect.files)

    def do(self, move: str, number: int) -> None:
        """Make one move of the world; skip a move that is not possible now."""
        if move == "answer" and self.owed:
            self.observe(self.answer(self.owed.pop(number % min(len(self.owed), 3)), number))
        elif move == "time":
            self.observe(self.pass_time(number))
        elif move == "user" and number < len(USER):
            self.observe(self.user(USER[number]))
        elif move == "read" and self.master.attempt:
            self.observe(self.caught_up(self.vertices[number % 2]))
        elif move in ("status", "fail") and self.master.attempt:
            self.observe(self.task(move, self.vertices[number % 2], number))

    def user(self, wish: str) -> list[JobMasterEffect]:
        if wish == "suspend":
            return self.handle(SuspendRequested())
        name = f"{wish}-{len(self.asked)}"
        self.asked.append(name)
        if wish == "cancel":
            return self.handle(CancelRequested(request=name))
        types = list(CheckpointType)
        return self.handle(
            SnapshotRequested(
                request=name,
                kind=RequestKind[wish.upper()],
                checkpoint_type=types[len(self.asked) % len(types)],
            )
        )

    def task(self, move: str, vertex: str, number: int) -> list[JobMasterEffect]:
        attempt = self.master.attempt
        if move == "fail":
            return (
                self.handle(TaskFailed(vertex=vertex, attempt=attempt, message="boom"))
                if number < 8
                else []
            )
        forward = FORWARD.get(self.master.task_status(vertex))
        late = (
            forward in (TaskStatus.WAITING_FOR_FINAL_CHECKPOINT, TaskStatus.FINISHED)
            and number < 54
        )
        if forward is None or late:
            return []
        return self.handle(TaskStatusChanged(vertex=vertex, attempt=attempt, status=forward))

    def answer(self, effect: JobMasterEffect, number: int) -> list[JobMasterEffect]:
        """Answer as a kernel would; ``number`` decides between success and failure."""
        timestamp_ms = self.wall_ms + self.now_ms
        match effect:
            case BeginAttempt():
                if number < 4:
                    return self.handle(AttemptFailed(message="x", fatal=number == 0))
                side = [c for c in self.won.values() if c.kind is not SnapshotKind.SAVEPOINT]
                restored = max(side, key=lambda c: c.checkpoint_id, default=None)
                tasks = () if restored is None else restored.tasks
                self.base = {t.vertex: tuple(h.path for h in t.files) for t in tasks}
                self.owes_full = restored is None or restored.kind.is_savepoint
                if restored is not None and restored.kind.is_savepoint:
                    self.base = {}
                return self.handle(
                    AttemptBegan(
                        attempt=self.master.attempt + 1,
                        restored=restored,
                        states={} if restored is None else restored.states,
                        chance=0.3,
                        timestamp_ms=timestamp_ms,
                    )
                )
            case StopTasks():
                self.owed = [e for e in self.owed if not isinstance(e, TriggerCheckpoint)]
                return self.handle(TasksStopped(attempt=effect.attempt, chance=0.7))
            case AllocateLocation():
                return self.allocated(effect, number, timestamp_ms)
            case TriggerHook():
                return self.hook(effect, number)
            case DiscardCheckpoint():
                return self.handle(CheckpointDiscarded(checkpoint_id=effect.checkpoint_id))
            case TriggerCheckpoint():
                return self.snapshot(effect, number)
            case RecordCheckpoint():
                return self.recorded(effect, number)
            case RecordEnd():
                return self.handle(
                    EndRecorded(outcome=Recorded.FAILED if number < 5 else Recorded.WON)
                )
        raise AssertionError(effect)

    def allocated(
        self, effect: AllocateLocation, number: int, timestamp_ms: int
    ) -> list[JobMasterEffect]:
        if number == 7:
            failed = LocationFailed(
                allocation=effect.allocation, message="x", timestamp_ms=timestamp_ms
            )
            return self.handle(failed)
        checkpoint_id, self.next_id = self.next_id, self.next_id + 1
        return self.handle(
            LocationAllocated(
                allocation=effect.allocation,
                checkpoint_id=checkpoint_id,
                target=f"/s/{checkpoint_id}" if effect.kind.is_savepoint else None,
                timestamp_ms=timestamp_ms,
            )
        )

    def hook(self, effect: TriggerHook, number: int) -> list[JobMasterEffect]:
        n, identifier = effect.checkpoint_id, effect.identifier
        self.hooks[n].discard(identifier)
        if number < 3:
            return self.handle(HookFailed(identifier=identifier, checkpoint_id=n, message="x"))
        state = {"n": n} if identifier == "h1" else None
        return self.handle(HookTriggered(identifier=identifier, checkpoint_id=n, state=state))

    def snapshot(self, effect: TriggerCheckpoint, number: int) -> list[JobMasterEffect]:
        attempt, n, vertex = self.master.attempt, effect.checkpoint_id, effect.vertex
        if number < 3:
            return self.handle(
                DeclineCheckpoint(
                    vertex=vertex,
                    attempt=attempt,
                    checkpoint_id=n,
                    reason=Reason.CHECKPOINT_DECLINED,
                    message="x",
                )
            )
        files: tuple[str, ...] = ()
        if not effect.kind.is_savepoint:
            base = () if effect.barrier.full else self.based_on[n, vertex]
            files = (*base[-(number % 3) :], f"{vertex}-{n}")
        state, metrics = task_state(vertex, files=files), SnapshotMetrics()
        return self.handle(
            AcknowledgeCheckpoint(
                vertex=vertex, attempt=attempt, checkpoint_id=n, state=state, metrics=metrics
            )
        )

    def recorded(self, record: RecordCheckpoint, number: int) -> list[JobMasterEffect]:
        assert record.checkpoint_id not in self.won, "a checkpoint completes twice"
        outcome = {0: Recorded.FENCED, 1: Recorded.FAILED, 2: Recorded.FAILED}.get(
            number, Recorded.WON
        )
        if outcome is Recorded.WON:
            self.won[record.checkpoint_id] = completed(record)
            if not record.kind.is_savepoint and record.checkpoint_id in self.full:
                self.owes_full = False
        return self.handle(
            CheckpointRecorded(
                checkpoint_id=record.checkpoint_id,
                outcome=outcome,
                checkpoint=self.won.get(record.checkpoint_id),
                message="x",
            )
        )


@settings(max_examples=100)
@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_the_laws_hold_in_every_history_and_every_request_is_answered_by_the_end(seed: int) -> None:
    """Safety after every event; once everything owed is answered, a cancelled job ends."""
    random = Random(seed)
    until_idle = random.choice((None, UntilIdle(), UntilIdle(drain=True)))
    world = RandomMaster(until_idle)
    world.observe(world.handle(JobSubmitted()))
    for _ in range(400):
        moves = MOVES if until_idle is None else MOVES_UNTIL_IDLE
        world.do(random.choice(moves), random.randrange(60))
    if not world.master.status.is_terminal:
        world.observe(world.user("cancel"))
    for _ in range(100):
        if not world.owed:
            break
        world.observe(world.answer(world.owed.pop(0), 59))
    assert world.master.status.is_terminal
    assert sorted(world.answered) == sorted(world.asked)
    assert world.owed == []
    ended = of(world.effects, JobEnded)
    assert len(ended) == 1
    assert ended[0].status is world.master.status
    if ended[0].fenced:
        assert world.master.status is JobStatus.SUSPENDED
    assert world.master.next_deadline() is None
