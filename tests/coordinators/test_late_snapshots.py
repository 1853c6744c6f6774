"""Coordinators that answer a checkpoint later, by a future (MISSION C1, C3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.coordinators.test_runner import Bench, Recorded, asked, bench, event, reset, snapshot

from weir.coordinators.base import CoordinatorSnapshot
from weir.core.messages.coordination import (
    CoordinatorFailed,
    CoordinatorSentEvent,
    CoordinatorSnapshotFailed,
    CoordinatorSnapshotTaken,
    NotifyCoordinator,
    OperatorEventHandled,
)
from weir.core.types import Payload

__all__ = ["bench"]


class Late(Recorded):
    """Answers each checkpoint by a future, which ``acts`` complete."""

    def __init__(self, **acts: Callable[[Any], Any]) -> None:
        super().__init__(**acts)
        self.futures: dict[int, Future[Payload]] = {}
        self.asked = threading.Event()

    def checkpoint_coordinator(self, checkpoint_id: int) -> CoordinatorSnapshot:
        self.futures[checkpoint_id] = Future()
        self.asked.set()
        return self.futures[checkpoint_id]

    def handle_request(self, request: Payload) -> Payload:
        return request


def send(number: int) -> Callable[[Late], None]:
    return lambda self: self.context.send_event(0, {"n": number})


def sent(number: int) -> CoordinatorSentEvent:
    return CoordinatorSentEvent(operator="op", attempt=1, subtask=0, payload={"n": number})


HANDLED = OperatorEventHandled(operator="op", attempt=1, subtask=1, number=4)


def taken(n: int, state: Payload) -> CoordinatorSnapshotTaken:
    return CoordinatorSnapshotTaken(operator="op", attempt=1, checkpoint_id=n, state=state)


def test_the_coordinator_goes_on_until_it_completes_the_future(bench: Bench) -> None:
    """C3: what it sends before the completion comes before the snapshot, on any thread."""
    one = Late(send=send(1))
    bench.tell(bench.runner(op=one), reset(), snapshot(), event("send"))
    assert [bench.next(), bench.next()] == [sent(1), HANDLED]
    one.futures[1].set_result({"sent": 1})
    assert bench.next() == taken(1, {"sent": 1})


def test_what_one_call_sends_after_the_completion_comes_after_the_snapshot(bench: Bench) -> None:
    """C3: the gateway closes at the completion, not when the call returns."""

    def complete(self: Late) -> None:
        def between() -> None:
            self.context.send_event(0, {"n": 1})
            self.futures[1].set_result({"sent": 1})
            self.context.send_event(0, {"n": 2})

        self.context.run_in_coordinator(between)

    bench.tell(bench.runner(op=Late(complete=complete)), reset(), snapshot(), event("complete"))
    assert [bench.next() for _ in range(4)] == [HANDLED, sent(1), taken(1, {"sent": 1}), sent(2)]


def test_a_snapshot_completed_while_an_event_is_handled_contains_the_event(bench: Bench) -> None:
    """C7: that it is handled is posted once, before the snapshot."""
    one = Late(complete=lambda self: self.futures[1].set_result({"events": 1}), send=send(1))
    bench.tell(bench.runner(op=one), reset(), snapshot(), event("complete"), event("send"))
    expected = [HANDLED, taken(1, {"events": 1}), sent(1), HANDLED]
    assert [bench.next() for _ in range(4)] == expected


def test_another_thread_that_completes_in_the_middle_of_an_event_declines_the_checkpoint(
    bench: Bench,
) -> None:
    """Whether the snapshot contains the event is unknown: neither guess would be exact (C7)."""

    def complete(self: Late) -> None:
        thread = threading.Thread(target=self.futures[1].set_result, args=({},))
        thread.start()
        thread.join()

    bench.tell(bench.runner(op=Late(complete=complete)), reset(), snapshot(), event("complete"))
    declined = bench.next()
    assert isinstance(declined, CoordinatorSnapshotFailed)
    assert "complete it on the coordinator's thread, by context.run_in_coordinator" in (
        declined.message
    )
    assert bench.next() == HANDLED


@pytest.mark.parametrize(
    ("fail", "says"),
    [
        (lambda future: future.set_exception(OSError("no disk")), "snapshot failed: OSError: no d"),
        (lambda future: future.cancel(), "its snapshot was cancelled"),
        (lambda future: future.set_result({"kept": object()}), "cannot be stored, since JSON"),
        (lambda future: future.set_result([1]), "it is a list, not a map"),
    ],
)
def test_a_future_that_fails_declines_its_checkpoint_and_no_other(
    bench: Bench, fail: Callable[[Future[Payload]], Any], says: str
) -> None:
    """P9: the coordinator runs on, and so does the job."""
    one = Late(send=send(1))
    bench.tell(bench.runner(op=one), reset(), snapshot(1), snapshot(2), event("send"))
    assert [bench.next(), bench.next()] == [sent(1), HANDLED]
    fail(one.futures[1])
    declined = bench.next()
    assert isinstance(declined, CoordinatorSnapshotFailed)
    assert (declined.operator, declined.checkpoint_id) == ("op", 1)
    assert says in declined.message
    one.futures[2].set_result({"a": 1})
    assert bench.next() == taken(2, {"a": 1})


def test_an_error_of_the_call_itself_fails_the_job(bench: Bench) -> None:
    """As every other call of a coordinator (C1)."""
    bench.tell(bench.runner(op=Recorded(state=lambda _: 1 // 0)), reset(), snapshot())
    assert isinstance(bench.next(), CoordinatorFailed)


@pytest.mark.parametrize("how", ["aborted", "restored"])
def test_a_completion_after_the_checkpoint_has_ended_is_ignored_and_logged(
    bench: Bench, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An expired checkpoint, and one of an attempt that has failed."""
    one = Late()
    runner = bench.runner(op=one)
    bench.tell(runner, reset(), snapshot(1))
    over = NotifyCoordinator(operator="op", checkpoint_id=1, completed=False)
    assert one.asked.wait()
    bench.tell(runner, over if how == "aborted" else reset(2), snapshot(2))
    while 2 not in one.futures:
        threading.Event().wait(0.01)
    with caplog.at_level(logging.INFO, "weir.coordinators.runner"):
        one.futures[1].set_result({"late": 1})
    assert "completed its snapshot for checkpoint 1 too late" in caplog.text
    one.futures[2].set_result({"due": 1})
    answer = bench.next()
    assert isinstance(answer, CoordinatorSnapshotTaken)
    assert (answer.checkpoint_id, answer.state) == (2, {"due": 1})


def test_a_request_handled_before_the_completion_waits_for_the_next_checkpoint(
    bench: Bench,
) -> None:
    """The snapshot may have been prepared before the request: its answer is a promise."""
    one = Late()
    runner = bench.runner(op=one)
    bench.tell(runner, reset(), snapshot(1))
    answer = asked(bench, runner, {"a": 1})
    bench.tell(runner, snapshot(2))
    while 2 not in one.futures:
        threading.Event().wait(0.01)
    for n in (1, 2):
        one.futures[n].set_result({})
        bench.next()
        bench.tell(runner, NotifyCoordinator(operator="op", checkpoint_id=n, completed=True))
    assert answer.result().checkpoint_id == 2
