"""Random sequences of events against ``StreamTask``: laws that must hold in every order.

The model below is a kernel and a job master that do, at random, anything they are allowed to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.kit.stream_task import TaskHarness, staged

from weir.core.messages.protocol import AcknowledgeCheckpoint, DeclineCheckpoint, TaskStatusChanged
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    CommitSinks,
    ContinueSnapshot,
    DropSnapshot,
    SinkCommitFailed,
    StartDrain,
    StreamTaskEffect,
    TakeSnapshot,
    TaskErrored,
)
from weir.core.types import SnapshotKind, TaskStatus

SINKS = ("s1", "s2")
Key = tuple[str, int]


class RandomStreamTask:
    """Everything around one task. Each seed is one run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        requires_final = self.random.random() < 0.7
        self.harness = TaskHarness(sinks=SINKS, requires_final_checkpoint=requires_final)
        self.requires_final = requires_final
        self.position = -1
        #: STEP: a step can end; CALL: a planning call is waiting; REST: no query runs; DRAIN: the
        #: drain step runs.
        self.query = "STEP"
        self.call = 0
        self.newest_id = 0
        #: Open checkpoints by id: those the job master waits for.
        self.pending: dict[int, SnapshotKind] = {}
        self.savepoints: set[int] = set()
        self.acknowledged: set[int] = set()
        self.answers: set[int] = set()
        self.replies: set[int] = set()
        self.syncing: set[int] = set()
        self.copying: set[int] = set()
        self.completed: set[int] = set()
        self.committing: int | None = None
        self.staged_now: set[str] = set()
        self.epochs: dict[Key, int] = {}
        #: The savepoint of a stop has ended without completing: the job is about to be restored.
        self.fails_over = False

    # ---- what the effects mean

    def send(self, effects: list[StreamTaskEffect]) -> None:
        for effect in effects:
            if isinstance(effect, AnswerPlanning):
                assert effect.call == self.call
                assert effect.call not in self.answers, "a planning call is answered at most once"
                assert not self.syncing, (
                    "a planning call is answered only when no synchronous part runs"
                )
                self.answers.add(effect.call)
                if self.query == "CALL":
                    self.query = "STEP"
            elif isinstance(effect, TakeSnapshot):
                assert not self.syncing
                assert effect.checkpoint_id in self.pending
                for c in effect.committables:
                    assert c.position <= effect.position, (
                        "what came later belongs to a later snapshot"
                    )
                    assert c.barrier not in self.savepoints, (
                        "an intermediate savepoint marks nothing"
                    )
                self.syncing.add(effect.checkpoint_id)
            elif isinstance(effect, ContinueSnapshot):
                self.copying.add(effect.checkpoint_id)
            elif isinstance(effect, AcknowledgeCheckpoint | DeclineCheckpoint):
                assert effect.checkpoint_id not in self.replies, (
                    "a snapshot ends in at most one reply"
                )
                self.replies.add(effect.checkpoint_id)
                if isinstance(effect, AcknowledgeCheckpoint):
                    self.acknowledged.add(effect.checkpoint_id)
            elif isinstance(effect, DropSnapshot):
                assert effect.checkpoint_id not in self.syncing | self.copying, (
                    "dropped while it is written"
                )
            elif isinstance(effect, StartDrain):
                assert not self.syncing
                self.query = "DRAIN"
            elif isinstance(effect, CommitSinks):
                self.begin_commit(effect)
            elif isinstance(effect, TaskStatusChanged) and effect.status is TaskStatus.FINISHED:
                owed = (self.syncing | self.copying) & self.pending.keys()
                assert not owed, "a finished task has answered what it began"
                assert self.committing is None, "a finished task has committed"

    def begin_commit(self, effect: CommitSinks) -> None:
        epoch = effect.checkpoint_id
        assert epoch in self.completed, "only a completed checkpoint is committed"
        assert self.committing is None, "one commit at a time"
        assert set(effect.payloads) == set(SINKS)
        self.committing = epoch
        found = {(c.sink, c.position) for c in self.harness.taken[epoch].committables}
        for sink, payloads in effect.payloads.items():
            for payload in payloads:
                assert payload["flushed"], "what is committed is durable"
                key = (sink, int(str(payload["file"]).split("-")[1]))
                assert key in found, "what is committed was in the completed checkpoint"
                assert key not in self.epochs, "nothing is committed under two epochs"
                self.epochs[key] = epoch
        assert found <= self.epochs.keys(), (
            "a completed checkpoint leaves nothing uncommitted behind"
        )

    @property
    def ended(self) -> bool:
        return self.harness.task.status in (TaskStatus.FINISHED, TaskStatus.FAILED)

    def step(self) -> None:
        """Do one thing that may happen now; likelier ones have a higher weight."""
        runs = not self.ended
        stops = any(kind.is_synchronous for kind in self.pending.values())
        actions: list[tuple[bool, float, Callable[[], None]]] = [
            (runs and self.query in ("STEP", "DRAIN"), 6, self.stage),
            (runs and self.query == "STEP", 8, self.plan),
            (runs and self.query == "STEP" and not self.staged_now, 0.3, self.end_records),
            (runs and self.query == "DRAIN", 2, self.drain),
            (len(self.pending) < 4, 4, self.trigger),
            (not stops and not self.fails_over, 0.2, self.stop),
            (bool(self.acknowledged & self.pending.keys()), 4, self.complete),
            (bool(self.pending), 0.7, lambda: self.over(self.random.choice(sorted(self.pending)))),
            (bool(self.syncing), 5, self.sync_done),
            (bool(self.copying), 4, self.async_done),
            (bool(self.syncing | self.copying), 0.5, self.fail_snapshot),
            (self.committing is not None, 3, self.commit),
            (self.committing is not None, 0.05, self.fail_commit),
            (True, 0.05, lambda: self.send(self.harness.send(TaskErrored(message="boom")))),
        ]
        possible = [(weight, act) for enabled, weight, act in actions if enabled]
        self.random.choices([act for _, act in possible], [weight for weight, _ in possible])[0]()

    # ---- the query

    def stage(self) -> None:
        sink = self.random.choice(SINKS)
        if sink not in self.staged_now:
            self.staged_now.add(sink)
            step = self.position + 1
            self.send(
                self.harness.send(BatchStaged(position=step, committables=(staged(step, sink),)))
            )

    def plan(self) -> None:
        if self.staged_now:
            self.position += 1
            self.staged_now.clear()
        self.query = "CALL"
        self.call += 1
        self.send(self.harness.plan(self.call, self.position))

    def end_records(self) -> None:
        self.query = "REST"
        self.send(self.harness.records_end(self.position))

    def drain(self) -> None:
        self.position += 1
        self.query = "REST"
        self.send(self.harness.drained(self.position))

    # ---- the job master

    def trigger(self, kind: SnapshotKind | None = None, *, drain: bool = False) -> None:
        if kind is None:
            savepoint = self.random.random() < 0.2
            kind = SnapshotKind.SAVEPOINT if savepoint else SnapshotKind.CHECKPOINT
        self.newest_id += 1
        if kind is SnapshotKind.SAVEPOINT:
            self.savepoints.add(self.newest_id)
        self.pending[self.newest_id] = kind
        self.send(self.harness.trigger(self.newest_id, kind, drain=drain))

    def stop(self) -> None:
        for checkpoint_id in list(self.pending):
            self.over(checkpoint_id)
        kinds = (SnapshotKind.SYNC_SAVEPOINT, SnapshotKind.SYNC_CHECKPOINT)
        self.trigger(self.random.choice(kinds), drain=self.random.random() < 0.5)

    def complete(self) -> None:
        checkpoint_id = self.random.choice(sorted(self.acknowledged & self.pending.keys()))
        kind = self.pending.pop(checkpoint_id)
        if not kind.commits_side_effects:
            return
        for older in [n for n in self.pending if n < checkpoint_id]:
            self.over(older)
        self.completed.add(checkpoint_id)
        self.send(self.harness.complete(checkpoint_id))

    def over(self, checkpoint_id: int) -> None:
        self.fails_over |= self.pending.pop(checkpoint_id).is_synchronous
        self.send(self.harness.abort(checkpoint_id))

    # ---- outcomes

    def sync_done(self) -> None:
        self.send(self.harness.sync_done(self.syncing.pop()))

    def fail_snapshot(self) -> None:
        checkpoint_id = self.random.choice(sorted(self.syncing | self.copying))
        self.syncing.discard(checkpoint_id)
        self.copying.discard(checkpoint_id)
        self.send(self.harness.snapshot_failed(checkpoint_id))

    def async_done(self) -> None:
        checkpoint_id = self.random.choice(sorted(self.copying))
        self.copying.remove(checkpoint_id)
        self.send(self.harness.async_done(checkpoint_id))

    def commit(self) -> None:
        assert self.committing is not None
        checkpoint_id, self.committing = self.committing, None
        self.send(self.harness.committed(checkpoint_id))

    def fail_commit(self) -> None:
        assert self.committing is not None
        checkpoint_id, self.committing = self.committing, None
        self.send(
            self.harness.send(SinkCommitFailed(checkpoint_id=checkpoint_id, message="conflict"))
        )

    def come_to_rest(self) -> None:
        """Let all work in progress end: nothing hangs, and a task that can finish does."""
        for checkpoint_id in list(self.pending):
            self.over(checkpoint_id)
        while self.syncing or self.copying or self.committing is not None:
            if self.syncing:
                self.sync_done()
            elif self.copying:
                self.async_done()
            else:
                self.commit()
        if self.ended:
            return
        assert self.query != "CALL" or self.fails_over, "every planning call is answered in the end"
        if self.query == "DRAIN":
            self.drain()
        waits = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
        if self.query == "REST" and not self.ended:
            assert self.requires_final or self.fails_over
            assert self.harness.task.status is waits


def run(seed: int) -> RandomStreamTask:
    model = RandomStreamTask(seed)
    for _ in range(model.random.randrange(20, 160)):
        model.step()
    model.come_to_rest()
    return model


@pytest.mark.parametrize(
    "first_seed",
    [
        pytest.param(seed, marks=pytest.mark.slow if seed >= 500 else ())
        for seed in range(0, 1_000, 100)
    ],
)
def test_the_laws_hold_after_every_event_of_every_sequence(first_seed: int) -> None:
    """A failure reports its seed."""
    for seed in range(first_seed, first_seed + 100):
        try:
            run(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_the_sequences_reach_every_end() -> None:
    """Laws prove nothing if nothing happens."""
    models = [run(seed) for seed in range(200)]
    statuses = {model.harness.task.status for model in models}
    assert statuses >= set(TaskStatus) - {TaskStatus.INITIALIZING}
    assert sum(len(model.epochs) for model in models) > 500
