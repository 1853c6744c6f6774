"""The gateways of a coordinator's subtasks, and the futures of the events they send (C4, C5)."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from tests.coordinators.test_runner import Bench, Recorded, bench, event, reset
from tests.kit.waiting import wait_until

from weir.coordinators import SubtaskGateway
from weir.core.coordination.coordinator_holder import OperatorCoordinatorHolder
from weir.core.messages.coordination import (
    CoordinatorSentEvent,
    EventReceipt,
    SubtasksFailed,
    SubtasksReady,
)
from weir.errors import CoordinatorError

__all__ = ["bench"]

READY = SubtasksReady(operator="op")


class Sending(Recorded):
    """Sends one event to each subtask by its gateway when it is ready."""

    def __init__(self) -> None:
        super().__init__(again=lambda _: self.send(self.gateways[0]))
        self.gateways: list[SubtaskGateway] = []
        self.sent: list[Future[None]] = []

    def send(self, gateway: SubtaskGateway) -> None:
        self.sent.append(gateway.send_event({"to": gateway.subtask}))

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: SubtaskGateway) -> None:
        self.calls.append(("ready", subtask, attempt))
        self.gateways.append(gateway)
        self.send(gateway)

    def execution_attempt_failed(self, subtask: int, attempt: int, message: str) -> None:
        lost = all(one.done() and one.exception() is not None for one in self.sent)
        self.calls.append(("failed", subtask, attempt, lost))


def test_the_future_of_an_event_is_completed_when_its_subtask_has_handled_it(bench: Bench) -> None:
    """And that of no other event."""
    one = Sending()
    runner = bench.runner(op=one)
    bench.tell(runner, reset(), READY)
    first, second = bench.next(), bench.next()
    assert isinstance(first, CoordinatorSentEvent)
    assert isinstance(second, CoordinatorSentEvent)
    assert (first.subtask, second.subtask) == (0, 1)
    assert second.receipt is not None
    bench.tell(runner, EventReceipt(operator="op", receipt=second.receipt, handled=True))
    # The event is there before the coordinator has its future.
    wait_until(lambda: len(one.sent) == 2, "both are sent")
    one.sent[1].result()
    assert not one.sent[0].done()


def test_events_in_flight_are_lost_before_the_coordinator_learns_of_the_failure(
    bench: Bench,
) -> None:
    """C5: failed, reset and ready, in this order; an old gateway sends nothing more."""
    one = Sending()
    runner = bench.runner(op=one)
    failed = SubtasksFailed(operator="op", message="worker gone")
    bench.tell(runner, reset(), READY, failed, reset(2), READY, event("again"))
    for _ in range(5):
        bench.next()
    lost = [("failed", 0, 1, True), ("failed", 1, 1, True)]
    calls = one.calls[3:]
    assert calls[:5] == [*lost, ("reset", None, None), ("ready", 0, 2), ("ready", 1, 2)]
    for old in (one.sent[0], one.sent[1]):
        with pytest.raises(CoordinatorError, match="was lost: its subtask failed"):
            old.result()
    assert [one.sent[2].done(), one.sent[3].done()] == [False, False]
    with pytest.raises(CoordinatorError, match="attempt 1 of subtask 0 has ended"):
        one.sent[4].result()


def received(receipt: int, *, handled: bool) -> EventReceipt:
    return EventReceipt(operator="op", receipt=receipt, handled=handled)


def test_a_receipt_says_whether_the_event_was_handled_or_lost() -> None:
    """C5: each comes once; an event without a wish for one has none."""
    holder = OperatorCoordinatorHolder("op", 1)
    holder.send(0, {}, receipt=7)
    holder.send(0, {}, receipt=8)
    holder.send(0, {})
    assert holder.confirmed(1) == [received(7, handled=True)]
    assert holder.confirmed(3) == []
    assert holder.subtask_failed(0) == [received(8, handled=False)]
    assert holder.confirmed(2) == []


def test_what_is_sent_to_a_finished_operator_is_lost() -> None:
    """Before and after it has finished."""
    holder = OperatorCoordinatorHolder("op", 1)
    holder.send(0, {}, receipt=7)
    assert holder.finished() == [received(7, handled=False)]
    assert holder.send(0, {}, receipt=8) == [received(8, handled=False)]


def test_the_future_of_a_lost_event_fails(bench: Bench) -> None:
    """Also while the job runs on."""
    one = Sending()
    runner = bench.runner(op=one)
    bench.tell(runner, reset(), READY)
    first = bench.next()
    assert isinstance(first, CoordinatorSentEvent)
    assert first.receipt is not None
    bench.tell(runner, received(first.receipt, handled=False))
    wait_until(lambda: len(one.sent) == 2, "both are sent")
    with pytest.raises(CoordinatorError, match="was lost: its subtask has ended"):
        one.sent[0].result()
