"""Runs the holder of a coordinator while single subtasks fail, by seed (PROTOCOL P39).

Spark's queries fail as a whole, but the core also handles single subtasks.

A coordinator sends each of its subtasks the numbers 0, 1, 2 ... , and each subtask sends every
number back. Meanwhile checkpoints are taken, up to three at a time, and time out; the coordinator
answers late; events are lost on their way; and subtasks fail one by one and go back to the newest
completed checkpoint. The coordinator answers checkpoints between its other moves, fails some and
forgets some. The holder with its gateways and the ``TaskEvents`` of each subtask are the product's
code. Messages between the three sides wait in queues, and a random draw decides which side moves
next. After a while the faults stop, and everything must finish.

The laws are those of ``sim/own/counting.py``: numbers arrive in order, without gaps, each once, in
both directions, and in every completed checkpoint each subtask agrees with the coordinator.

The coordinator and each attempt of a subtask process their messages one by one, and leave in
``out`` what the master has not received yet.

This run found a subtask that had handled all its events and then failed, yet stayed in checkpoints
that waited for the events of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from weir.core.coordination.coordinator_holder import OperatorCoordinatorHolder
from weir.core.messages.coordination import (
    AcknowledgeCheckpointEvent,
    CoordinatorAcknowledged,
    CoordinatorDeclined,
    CoordinatorSentEvent,
    CoordinatorSnapshotFailed,
    CoordinatorSnapshotTaken,
    DeliverEvent,
    EventsConfirmed,
    FailSubtask,
    HandleOperatorEvent,
    HolderOutput,
    OperatorEventHandled,
    OperatorEventSent,
    SnapshotCoordinator,
)
from weir.core.task.events import TaskEvents
from weir.core.types import Payload, SentEvent
from weir.errors import InvariantError
from weir.sim.engine.story import Story

OPERATOR = "op"

#: A subtask's state in a checkpoint: how many numbers it received, and the events that it sent and
#: that are not acknowledged.
SubtaskState: TypeAlias = tuple[int, tuple[SentEvent, ...]]


class BrokenLawError(Exception):
    """A law of the protocol does not hold."""


@dataclass(frozen=True, kw_only=True)
class SubtaskReset:
    """Notifies the coordinator that a subtask restarted.

    ``sent`` and ``back`` are the subtask's counts in the newest completed checkpoint.
    """

    subtask: int
    attempt: int
    sent: int
    back: int


@dataclass(frozen=True, kw_only=True)
class SubtaskAcknowledged:
    """Reports that the whole snapshot of a subtask is complete."""

    attempt: int
    checkpoint_id: int
    state: SubtaskState


class MailboxCoordinator:
    """Sends numbers, and counts the numbers that come back."""

    def __init__(self, subtasks: int) -> None:
        self.told: deque[SnapshotCoordinator | HandleOperatorEvent | SubtaskReset] = deque()
        self.out: deque[
            CoordinatorSentEvent
            | CoordinatorSnapshotTaken
            | CoordinatorSnapshotFailed
            | OperatorEventHandled
        ] = deque()
        #: Checkpoints that it was asked about and has not answered (MISSION C1).
        self.asked: list[int] = []
        self.sent = [0] * subtasks
        self._back = [0] * subtasks
        #: The attempt that the coordinator knows, for each subtask.
        self._attempts = [0] * subtasks

    def send(self, subtask: int) -> None:
        """Send the next number to a subtask."""
        self.out.append(
            CoordinatorSentEvent(
                operator=OPERATOR,
                attempt=self._attempts[subtask],
                subtask=subtask,
                payload={"number": self.sent[subtask]},
            )
        )
        self.sent[subtask] += 1

    def turn(self) -> None:
        """Process the next message."""
        match self.told.popleft():
            case SnapshotCoordinator(checkpoint_id=n):
                self.asked.append(n)
            case HandleOperatorEvent(subtask=subtask, number=number, payload=payload):
                if payload["back"] != self._back[subtask]:
                    raise BrokenLawError(
                        f"subtask {subtask} sends {payload} back after {self._back[subtask]}"
                    )
                self._back[subtask] += 1
                attempt = self._attempts[subtask]
                self.out.append(
                    OperatorEventHandled(
                        operator=OPERATOR, attempt=attempt, subtask=subtask, number=number
                    )
                )
            case SubtaskReset(subtask=subtask, attempt=attempt, sent=sent, back=back):
                self._attempts[subtask] = attempt
                self.sent[subtask], self._back[subtask] = sent, back

    def answer(self, checkpoint_id: int) -> None:
        """Complete a snapshot: it has what was sent and handled until now (MISSION C3)."""
        self.asked.remove(checkpoint_id)
        state: Payload = {"sent": list(self.sent), "back": list(self._back)}
        self.out.append(
            CoordinatorSnapshotTaken(
                operator=OPERATOR, attempt=0, checkpoint_id=checkpoint_id, state=state
            )
        )

    def refuse(self, checkpoint_id: int) -> None:
        """Fail a snapshot."""
        self.asked.remove(checkpoint_id)
        self.out.append(
            CoordinatorSnapshotFailed(
                operator=OPERATOR, attempt=0, checkpoint_id=checkpoint_id, message="no disk"
            )
        )


class SubtaskAttempt:
    """One attempt of a subtask: receives numbers, and sends them back."""

    def __init__(self, subtask: int, attempt: int, state: SubtaskState) -> None:
        self.attempt = attempt
        self.told: deque[DeliverEvent] = deque()
        #: Checkpoints whose barriers are on their way to it; events travel another way.
        self.barriers: deque[int] = deque()
        self.out: deque[
            EventsConfirmed | OperatorEventSent | AcknowledgeCheckpointEvent | SubtaskAcknowledged
        ] = deque()
        #: Snapshots whose asynchronous part runs.
        self.uploads: list[SubtaskAcknowledged] = []
        self._subtask = subtask
        self._received, unacknowledged = state
        self._events = TaskEvents(OPERATOR, attempt, unacknowledged)
        self._in_step = False
        self.out += self._events.complete()

    @property
    def may_run_batch(self) -> bool:
        """Whether a batch is under way or due."""
        return self._in_step or self._events.any_waiting

    def receive(self) -> None:
        """Receive the next event."""
        self.out += self._events.deliver(self.told.popleft(), may_run_batch=True)

    def snapshot(self) -> None:
        """Receive the next barrier, between two batches."""
        if self._in_step:
            self.step()
        checkpoint_id, state = (
            self.barriers.popleft(),
            (self._received, self._events.unacknowledged),
        )
        self.uploads.append(
            SubtaskAcknowledged(attempt=self.attempt, checkpoint_id=checkpoint_id, state=state)
        )
        self.out.append(
            AcknowledgeCheckpointEvent(
                vertex=OPERATOR, attempt=self.attempt, checkpoint_id=checkpoint_id
            )
        )

    def step(self) -> None:
        """Begin a batch with the waiting events, or complete the current batch."""
        self._in_step = not self._in_step
        if not self._in_step:
            self.out += self._events.complete()
            return
        for event in self._events.carry():
            if event.payload["number"] != self._received:
                raise BrokenLawError(
                    f"subtask {self._subtask} receives {event.payload} after {self._received}"
                )
            self._received += 1
            back = {"back": event.payload["number"]}
            self._events.sent([SentEvent(operator=OPERATOR, subtask=self._subtask, payload=back)])


#: Events sent to each subtask.
_EVENTS = 20
_MOST_PENDING = 3
#: Moves during which faults may strike, and moves after which everything must have finished.
_FAULTY = 600
_LIMIT = 20_000


@dataclass(frozen=True, kw_only=True)
class SubtasksResult:
    """The result of one seed."""

    violation: str | None
    story: tuple[str, ...]
    #: How many failures of subtasks there were, for whatever reason.
    failures: int
    checkpoints: int


@dataclass
class _Pending:
    """A pending checkpoint."""

    coordinator: Payload | None = None
    tasks: dict[int, SubtaskState] = field(default_factory=dict)


class SubtaskWorld:
    """One run: the holder, a coordinator, its subtasks and their checkpoints."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"subtasks {seed}")
        count = self._random.randint(1, 4)
        self._holder = OperatorCoordinatorHolder(OPERATOR, count)
        self._coordinator = MailboxCoordinator(count)
        self._subtasks = [SubtaskAttempt(one, 0, (0, ())) for one in range(count)]
        self._pending: dict[int, _Pending] = {}
        self._last_id = 0
        #: Checkpoints that wait for a failed subtask or a forgotten snapshot, to be aborted.
        self._vain: list[int] = []
        #: The newest completed checkpoint.
        self._completed = _Pending(
            coordinator={"sent": [0] * count, "back": [0] * count},
            tasks=dict.fromkeys(range(count), (0, ())),
        )
        self._checkpoints = 0
        self._failures = 0
        self._story = Story()
        #: Probability for each move that a subtask fails, an event is lost, a checkpoint times out,
        #: the coordinator fails a snapshot, it forgets one.
        self._faults = [self._random.choice((0.0, 0.01, 0.05)) for _ in range(5)]

    def run(self) -> SubtasksResult:
        """Run to the end."""
        violation = None
        try:
            moves = 0
            while self._move(faulty=moves < _FAULTY):
                moves += 1
                self._holder.validate(self._pending)
                if moves > _LIMIT:
                    raise BrokenLawError(f"checkpoints {list(self._pending)} do not end")
        except (BrokenLawError, InvariantError) as error:
            violation = f"{type(error).__name__}: {error}"
        return SubtasksResult(
            violation=violation,
            story=tuple(self._story.lines()) if violation else (),
            failures=self._failures,
            checkpoints=self._checkpoints,
        )

    # -- moves

    def _move(self, *, faulty: bool) -> bool:
        """Make one move; return False if everything is done."""
        if faulty and self._strike():
            return True
        moves = self._moves()
        if not faulty and not moves and not self._pending:
            if self._completed.coordinator == self._end():
                return False
            moves.append(self._trigger)
        elif self._vain and (not moves or self._random.random() < 0.02):
            # Long after the failure: until then the holder alone keeps such a checkpoint from
            # completing.
            moves = [self._abort_vain]
        elif self._may_trigger() and (faulty and self._random.random() < 0.1):
            moves.append(self._trigger)
        if not moves:
            if faulty:
                return True
            raise BrokenLawError(f"checkpoints {list(self._pending)} wait forever")
        self._random.choice(moves)()
        return True

    def _moves(self) -> list[Callable[[], object]]:
        coordinator = self._coordinator
        moves: list[Callable[[], object]] = [
            lambda one=one: coordinator.send(one)  # type: ignore[misc]
            for one, sent in enumerate(coordinator.sent)
            if sent < _EVENTS
        ]
        moves += [coordinator.turn] if coordinator.told else []
        moves += [self._hear_coordinator] if coordinator.out else []
        # Late: between its other moves, and perhaps after a checkpoint has ended.
        moves += [lambda n=n: coordinator.answer(n) for n in coordinator.asked]  # type: ignore[misc]
        for number, subtask in enumerate(self._subtasks):
            moves += [subtask.receive] if subtask.told else []
            moves += [subtask.snapshot] if subtask.barriers else []
            moves += [subtask.step] if subtask.may_run_batch else []
            moves += [lambda number=number: self._hear_subtask(number)] if subtask.out else []  # type: ignore[misc]
            moves += [lambda one=subtask: self._upload(one)] if subtask.uploads else []  # type: ignore[misc]
        return moves

    def _strike(self) -> bool:
        fails, loses, times_out, refuses, forgets = (
            self._random.random() < share for share in self._faults
        )
        asked = self._coordinator.asked
        number = self._random.randrange(len(self._subtasks))
        if fails:
            self._carry_out(self._holder.subtask_failed(number))
            self._fail(number)
        elif loses and self._subtasks[number].told:
            lost = self._subtasks[number].told.popleft()
            self._carry_out(self._holder.lost(lost.number, "connection reset"))
        elif times_out and self._pending:
            self._abort(self._random.choice(list(self._pending)))
        elif refuses and asked:
            self._coordinator.refuse(self._random.choice(asked))
        elif forgets and asked:
            self._vain.append(asked.pop())
        else:
            return False
        return True

    # -- the master

    def _may_trigger(self) -> bool:
        """Whether a checkpoint may start: all pending ones have their coordinator's snapshot."""
        asked = all(one.coordinator is not None for one in self._pending.values())
        return asked and len(self._pending) < _MOST_PENDING

    def _trigger(self) -> None:
        self._last_id += 1
        self._pending[self._last_id] = _Pending()
        self._tell(f"checkpoint {self._last_id}")
        self._carry_out(self._holder.checkpoint(self._last_id))

    def _hear_coordinator(self) -> None:
        event = self._coordinator.out.popleft()
        self._tell(f"<- {event}")
        match event:
            case CoordinatorSnapshotTaken(checkpoint_id=n, state=state):
                self._carry_out(self._holder.snapshot_taken(n, state))
            case CoordinatorSnapshotFailed(checkpoint_id=n, message=message):
                self._carry_out(self._holder.snapshot_failed(n, message))
            case CoordinatorSentEvent(subtask=subtask, payload=payload) if self._is_current(event):
                self._carry_out(self._holder.send(subtask, payload))
            case OperatorEventHandled(subtask=subtask, number=number) if self._is_current(event):
                self._carry_out(self._holder.send(subtask, {}, acknowledges=number))

    def _is_current(self, event: CoordinatorSentEvent | OperatorEventHandled) -> bool:
        """Whether the coordinator means the subtask's current attempt.

        A master that fails single subtasks must check this, as the job master does for whole
        attempts.
        """
        return event.attempt == self._subtasks[event.subtask].attempt

    def _hear_subtask(self, number: int) -> None:
        event = self._subtasks[number].out.popleft()
        self._tell(f"<- subtask {number}: {event}")
        match event:
            case EventsConfirmed(events=events):
                for _, confirmed in events:
                    self._carry_out(self._holder.confirmed(confirmed))
            case OperatorEventSent(number=sent, payload=payload):
                self._coordinator.told.append(
                    HandleOperatorEvent(
                        operator=OPERATOR, subtask=number, number=sent, payload=payload
                    )
                )
            case AcknowledgeCheckpointEvent(checkpoint_id=n):
                self._carry_out(self._holder.acknowledged(number, n))
            case SubtaskAcknowledged(checkpoint_id=n, state=state) if n in self._pending:
                self._pending[n].tasks[number] = state
                if len(self._pending[n].tasks) == len(self._subtasks):
                    self._complete(n)

    def _carry_out(self, outputs: Iterable[HolderOutput]) -> None:
        for output in outputs:
            self._tell(str(output))
            match output:
                case SnapshotCoordinator():
                    self._coordinator.told.append(output)
                case DeliverEvent(subtask=subtask):
                    self._subtasks[subtask].told.append(output)
                case CoordinatorAcknowledged(checkpoint_id=n, state=state):
                    self._pending[n].coordinator = state
                    for one in self._subtasks:
                        one.barriers.append(n)
                case CoordinatorDeclined(checkpoint_id=n):
                    self._abort(n)
                case FailSubtask(subtask=subtask):
                    self._fail(subtask)

    def _complete(self, checkpoint_id: int) -> None:
        done = self._pending.pop(checkpoint_id)
        for older in [one for one in self._pending if one < checkpoint_id]:
            self._abort(older)
        self._completed = done
        self._checkpoints += 1
        self._check(checkpoint_id, done)
        self._carry_out(self._holder.over(checkpoint_id))

    def _abort(self, checkpoint_id: int) -> None:
        self._tell(f"checkpoint {checkpoint_id} is aborted")
        del self._pending[checkpoint_id]
        self._carry_out(self._holder.over(checkpoint_id))

    def _abort_vain(self) -> None:
        checkpoint_id = self._vain.pop(0)
        if checkpoint_id in self._pending:
            self._abort(checkpoint_id)

    def _fail(self, number: int) -> None:
        """Restart a subtask whose failure the holder already knows.

        Checkpoints that it has not acknowledged will be aborted.
        """
        self._failures += 1
        attempt = self._subtasks[number].attempt + 1
        self._tell(f"subtask {number} fails")
        self._subtasks[number] = SubtaskAttempt(number, attempt, self._completed.tasks[number])
        self._vain += [n for n, one in self._pending.items() if number not in one.tasks]
        known: Any = self._completed.coordinator
        self._coordinator.told.append(
            SubtaskReset(
                subtask=number,
                attempt=attempt,
                sent=known["sent"][number],
                back=known["back"][number],
            )
        )

    def _upload(self, subtask: SubtaskAttempt) -> None:
        subtask.out.append(subtask.uploads.pop(self._random.randrange(len(subtask.uploads))))

    # -- laws

    def _check(self, checkpoint_id: int, checkpoint: _Pending) -> None:
        known: Any = checkpoint.coordinator
        for number, (received, unacknowledged) in checkpoint.tasks.items():
            sent, back = known["sent"][number], known["back"][number]
            kept = [one.payload["back"] for one in unacknowledged]
            if received != sent or kept != list(range(back, received)):
                raise BrokenLawError(
                    f"in checkpoint {checkpoint_id} the coordinator has sent {sent} numbers to"
                    f" subtask {number} and got {back} back, but the subtask has received"
                    f" {received} and keeps {kept}"
                )

    def _end(self) -> Payload:
        everything = [_EVENTS] * len(self._subtasks)
        return {"sent": everything, "back": everything}

    def _tell(self, what: str) -> None:
        self._story.tell(0, "-", what)


def run_subtasks(seed: int) -> SubtasksResult:
    """Run one seed to its end."""
    return SubtaskWorld(seed).run()
