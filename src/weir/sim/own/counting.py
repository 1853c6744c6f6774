"""User code of a simulated job: counting coordinators and operators, a hook and a listener.

The coordinator of a vertex sends each subtask the numbers 0, 1, 2 ... at a pace of its own. A
subtask counts what it received, and sends each number back. The laws, which these classes and the
auditor check:

1. A subtask receives its numbers in order, without gaps, each once (MISSION C6).
2. The coordinator receives them back in the same way (C7).
3. In every completed checkpoint the subtask has received exactly what its coordinator had sent by
   then (PROTOCOL P2), and each number that the subtask sent back was handled by the coordinator or
   is among the task's events (P41).

The master hook and the checkpoint listener check the law of their own calls and raise when it is
broken; the auditor takes that as a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from random import Random
from typing import Any

import msgspec

from weir.coordinators.base import CoordinatorContext, CoordinatorSnapshot, OperatorCoordinator
from weir.core.messages.coordination import DeliverEvent
from weir.core.types import CompletedCheckpoint, OperatorId, Payload, SentEvent
from weir.durable.hooks import MasterHook
from weir.errors import invariant
from weir.runtime.concurrency import Waits

#: The most events sent to one subtask.
_MOST_EVENTS = 40


class CountingCoordinator(OperatorCoordinator):
    """Sends numbers, and counts the numbers that come back.

    Some snapshots it answers at once, the others by a future (MISSION C1): completed a while later,
    between two sends of one call, or while it handles a number; failed; or never completed.
    """

    def __init__(
        self,
        *,
        random: Random,
        answers: Random,
        waits: Waits,
        pace_ms: int,
        slow_us: int,
        fails: Callable[[], bool],
        broken: Callable[[str], None],
        wanted: Callable[[int], None],
    ) -> None:
        """Create a coordinator.

        ``pace_ms``: the longest time between two sends; ``slow_us``: the longest pause after a
        send or in a snapshot. ``answers`` decides how snapshots are answered. ``broken`` gets the
        text of a broken law, ``wanted`` each checkpoint that the coordinator is asked for.
        """
        self._random = random
        self._answers = answers
        #: How many more snapshots fail or are forgotten; few, so that the job can end.
        self._mischief = answers.randrange(3)
        #: Snapshots to complete while a number is handled.
        self._open: list[Future[Payload]] = []
        self._waits = waits
        self._pace_ms = pace_ms
        self._slow_us = slow_us
        self._fails = fails
        self._broken = broken
        self._wanted = wanted
        self._sent: list[int] = []
        self._back: list[int] = []

    def start(self, context: CoordinatorContext) -> None:
        """Keep the context."""
        self.context = context

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """Reset both counts to the checkpoint, or to zero without one, and resume sending."""
        zeros = [0] * self.context.current_parallelism
        self._sent = list(state["sent"]) if state else list(zeros)
        self._back = list(state["back"]) if state else list(zeros)
        # Those of the attempt before are never completed.
        self._open = []
        self._later()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """Count a number that comes back, and check law 2."""
        if event["back"] != self._back[subtask] or event["back"] >= self._sent[subtask]:
            self._broken(
                f"the coordinator of {self.context.operator_id} receives {event} back after"
                f" {self._back[subtask]} of {self._sent[subtask]}"
            )
        self._back[subtask] += 1
        self._complete_open()
        self._fail_perhaps()

    def checkpoint_coordinator(self, checkpoint_id: int) -> CoordinatorSnapshot:
        """Both counts, after a random pause, or a future of them."""
        self._wanted(checkpoint_id)
        self._waits.sleep(self._random.randrange(self._slow_us) / 1e6)
        self._fail_perhaps()
        if self._answers.random() < 0.6:
            return self._counts()
        later: Future[Payload] = Future()
        if self._mischief and self._answers.random() < 0.3:
            self._mischief -= 1
            if self._answers.random() < 0.5:
                self._later_by(lambda: later.set_exception(OSError("simulated failed snapshot")))
            return later
        self._open.append(later)
        self._later_by(self._send_around)
        return later

    def _counts(self) -> Payload:
        return {"sent": list(self._sent), "back": list(self._back)}

    def _later_by(self, function: Callable[[], None]) -> None:
        self.context.schedule(self._answers.randrange(1, 50), function)

    def _complete_open(self) -> None:
        opened, self._open = self._open, []
        for one in opened:
            one.set_result(self._counts())

    def _send_around(self) -> None:
        """Complete the open snapshots between two sends of one call."""
        self._send_one(self._answers)
        self._complete_open()
        self._send_one(self._answers)

    def _send_one(self, random: Random) -> bool:
        """Send a number to some subtask; whether it may have one more."""
        subtask = random.randrange(len(self._sent))
        if self._sent[subtask] >= _MOST_EVENTS:
            return False
        self.context.send_event(subtask, {"number": self._sent[subtask]})
        self._sent[subtask] += 1
        return True

    def _later(self) -> None:
        self.context.schedule(self._random.randrange(1, self._pace_ms + 1), self._send)

    def _send(self) -> None:
        for _ in range(self._random.choice((1, 1, 3))):
            if not self._send_one(self._random):
                # Events force batches: with endless events a query never reaches the end of its
                # input.
                return
            if self._random.random() < 0.2:
                self._waits.sleep(self._random.randrange(self._slow_us) / 1e6)
        self._later()

    def _fail_perhaps(self) -> None:
        if self._fails():
            raise RuntimeError("simulated failure of a coordinator")


class SimOperator:
    """The subtasks of one coordinated operator, in one query."""

    def __init__(self, operator: OperatorId, subtasks: int) -> None:
        self._operator = operator
        #: How many numbers each subtask has received.
        self._received = [0] * subtasks

    def handle(self, events: Iterable[DeliverEvent]) -> tuple[SentEvent, ...]:
        """Check law 1; return the events that the subtasks send back."""
        back = []
        for event in events:
            number = event.payload["number"]
            if number != self._received[event.subtask]:
                raise LostEventError(
                    f"subtask {event.subtask} of {self._operator} receives {number} after"
                    f" {self._received[event.subtask]}"
                )
            self._received[event.subtask] += 1
            back.append(
                SentEvent(operator=self._operator, subtask=event.subtask, payload={"back": number})
            )
        return tuple(back)

    def dump(self) -> str:
        """Its part of a snapshot."""
        return msgspec.json.encode(self._received).decode()

    def load(self, dumped: str) -> None:
        """Restore from a snapshot."""
        self._received = msgspec.json.decode(dumped, type=list[int])


class LostEventError(Exception):
    """An event came twice, too late or never.

    No code catches this: the auditor looks for it in task failures.
    """


def disagreement(checkpoint: CompletedCheckpoint) -> str | None:
    """How a coordinator and its subtasks differ in a checkpoint (law 3); None if they agree."""
    for operator, state in checkpoint.coordinator_states.items():
        task = checkpoint.task(operator)
        if task is None or task.fully_finished:
            # Events for a finished operator are dropped.
            continue
        received = msgspec.json.decode(task.entries["operators"], type=list[int])
        if received != state["sent"]:
            return (
                f"the coordinator of {operator} has sent {state['sent']}, but its subtasks have"
                f" received {received}"
            )
        for subtask, (got, back) in enumerate(zip(received, state["back"], strict=True)):
            kept: list[Any] = [
                one.payload["back"] for one in task.sent_events if one.subtask == subtask
            ]
            if kept != list(range(back, got)):
                return (
                    f"of {got} events that subtask {subtask} of {operator} sent, {back} are handled"
                    f" and {kept} kept"
                )
    return None


class CountingHook(MasterHook):
    """A master hook that takes its time, and whose state names the checkpoint it belongs to."""

    def __init__(
        self, identifier: str, pause: Callable[[], None], fails: Callable[[], bool]
    ) -> None:
        self._identifier = identifier
        self._pause = pause
        self._fails = fails

    @property
    def identifier(self) -> str:
        """The hook's name."""
        return self._identifier

    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> dict[str, Any]:
        """A state that holds the checkpoint's id."""
        self._pause()
        if self._fails():
            raise RuntimeError("simulated failure of a hook")
        return {"id": checkpoint_id}

    def restore(self, checkpoint_id: int, state: dict[str, Any] | None) -> None:
        """Check that the state is the one made for this checkpoint."""
        invariant(
            state == {"id": checkpoint_id},
            f"hook {self._identifier} is restored with {state} for checkpoint {checkpoint_id}",
        )
