"""``CoordinatorRunner``: coordinators are isolated, in strict order, and bound to an attempt."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest
from tests.kit.waiting import wait_until

from weir.coordinators import (
    BroadcastRules,
    CoordinatorContext,
    OperatorCoordinator,
    SubtaskGateway,
)
from weir.coordinators.base import CoordinatorSnapshot
from weir.coordinators.runner import CoordinatorRunner
from weir.core.messages.coordination import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorFailed,
    CoordinatorSentEvent,
    CoordinatorSnapshotFailed,
    CoordinatorSnapshotTaken,
    HandleOperatorEvent,
    NotifyCoordinator,
    OperatorEventHandled,
    ResetCoordinator,
    SnapshotCoordinator,
    SubtasksReady,
)
from weir.core.types import Payload
from weir.errors import CoordinatorError, PipelineError
from weir.runtime.concurrency import Event, ThreadWaits, ThreadWorkers
from weir.runtime.ports import CoordinatorAnswer


class Recorded(OperatorCoordinator):
    """Records its calls and does what each event says."""

    def __init__(self, **acts: Callable[[Recorded], Any]) -> None:
        self.calls: list[Any] = []
        self._acts = acts

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        self.calls.append(("reset", checkpoint_id, state))

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        self.calls.append(("event", subtask, attempt, event))
        self._acts[event["act"]](self)

    def checkpoint_coordinator(self, checkpoint_id: int) -> CoordinatorSnapshot:
        self.calls.append(("snapshot", checkpoint_id))
        result: CoordinatorSnapshot = self._acts.get("state", lambda _: None)(self)
        return result

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: SubtaskGateway) -> None:
        assert (gateway.subtask, gateway.attempt) == (subtask, attempt)
        self.calls.append(("ready", subtask, attempt))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(("complete", checkpoint_id))

    def close(self) -> None:
        self.calls.append("close")


class AddedWaits(ThreadWaits):
    """Adds up for how long its events are waited for at most."""

    waited_s = 0.0

    def event(self) -> Event:
        waits = self

        class Added(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.waited_s += timeout or 0.0
                return super().wait(timeout)

        return Added()


class Bench:
    """Runners with one coordinator each, and what they post."""

    def __init__(self) -> None:
        self.posted: SimpleQueue[CoordinatorEvent] = SimpleQueue()
        self.waits = AddedWaits()
        self._workers = ThreadWorkers()
        self._runners: list[CoordinatorRunner] = []

    def runner(self, **coordinators: OperatorCoordinator) -> CoordinatorRunner:
        runner = CoordinatorRunner(coordinators, workers=self._workers, waits=self.waits)
        self._runners.append(runner)
        return runner

    def tell(self, runner: CoordinatorRunner, *effects: CoordinatorEffect) -> None:
        for effect in effects:
            runner.submit(effect, self.posted.put)

    def next(self) -> CoordinatorEvent:
        return self.posted.get()

    def close(self) -> None:
        for runner in self._runners:
            runner.close()
        self._workers.close(10)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def reset(attempt: int = 1, operator: str = "op", state: Payload | None = None) -> ResetCoordinator:
    return ResetCoordinator(
        operator=operator,
        attempt=attempt,
        parallelism=2,
        checkpoint_id=None if state is None else 7,
        state=state,
    )


def event(act: str, operator: str = "op") -> HandleOperatorEvent:
    return HandleOperatorEvent(operator=operator, subtask=1, number=4, payload={"act": act})


def snapshot(n: int = 1, operator: str = "op") -> SnapshotCoordinator:
    return SnapshotCoordinator(operator=operator, checkpoint_id=n)


def test_what_is_sent_comes_before_the_answer_of_a_later_snapshot(bench: Bench) -> None:
    """C3: in the order of the coordinator's calls."""
    one = Recorded(
        send=lambda self: self.context.send_event(0, {"go": 1}), state=lambda _: {"kept": [1]}
    )
    bench.tell(bench.runner(op=one), reset(), event("send"), snapshot())
    assert bench.next() == CoordinatorSentEvent(
        operator="op", attempt=1, subtask=0, payload={"go": 1}
    )
    assert bench.next() == OperatorEventHandled(operator="op", attempt=1, subtask=1, number=4)
    taken = CoordinatorSnapshotTaken(operator="op", attempt=1, checkpoint_id=1, state={"kept": [1]})
    assert bench.next() == taken


def test_a_state_is_as_it_was_when_the_snapshot_was_taken(bench: Bench) -> None:
    """Whatever the coordinator does to it afterwards."""
    kept = [1]
    one = Recorded(add=lambda _: kept.append(2), state=lambda _: {"kept": kept})
    bench.tell(bench.runner(op=one), reset(), snapshot(), event("add"))
    taken = bench.next()
    bench.next()
    assert isinstance(taken, CoordinatorSnapshotTaken)
    assert (taken.state, kept) == ({"kept": [1]}, [1, 2])


def test_a_coordinator_that_throws_fails_the_job_once_and_is_left_alone_until_it_is_reset(
    bench: Bench,
) -> None:
    """C1."""
    one = Recorded(throw=lambda _: 1 // 0)
    bench.tell(
        bench.runner(op=one),
        reset(),
        event("throw"),
        event("throw"),
        snapshot(),
        reset(2),
        snapshot(2),
    )
    failed = bench.next()
    assert isinstance(failed, CoordinatorFailed)
    told, _, place = failed.message.partition(" (in ")
    assert told == "ZeroDivisionError: integer division or modulo by zero"
    assert place.startswith(f"<lambda>, {__file__}, line ")
    assert failed.cause.key.startswith("ZeroDivisionError in <lambda>, ")
    assert "1 // 0" in failed.cause.trace
    assert isinstance(taken := bench.next(), CoordinatorSnapshotTaken)
    assert (taken.attempt, taken.checkpoint_id) == (2, 2)
    assert [call[0] for call in one.calls] == ["reset", "event", "reset", "snapshot"]


def test_a_slow_coordinator_holds_up_nobody_else(bench: Bench) -> None:
    """Each has its own thread."""
    go = threading.Event()
    runner = bench.runner(slow=Recorded(wait=lambda _: go.wait()), fast=Recorded())
    bench.tell(runner, reset(operator="slow"), reset(operator="fast"))
    bench.tell(runner, event("wait", "slow"), snapshot(operator="fast"))
    assert isinstance(answer := bench.next(), CoordinatorSnapshotTaken)
    assert answer.operator == "fast"
    go.set()
    assert isinstance(bench.next(), OperatorEventHandled)


def test_a_snapshot_that_is_no_longer_wanted_is_not_taken(bench: Bench) -> None:
    """A coordinator slower than the checkpoint timeout catches up again."""
    go = threading.Event()
    one = Recorded(wait=lambda _: go.wait())
    runner = bench.runner(op=one)
    over = NotifyCoordinator(operator="op", checkpoint_id=1, completed=False)
    bench.tell(runner, reset(), event("wait"), snapshot(1), over, snapshot(2))
    go.set()
    bench.next()
    assert isinstance(taken := bench.next(), CoordinatorSnapshotTaken)
    assert taken.checkpoint_id == 2


def test_what_was_scheduled_before_a_failure_does_not_happen_after_it(bench: Bench) -> None:
    """Timers, functions from other threads and work on the side belong to an attempt that has
    ended."""

    begins = threading.Event()

    def later(self: Recorded) -> None:
        begins.wait()
        self.context.schedule(50, lambda: self.calls.append("timer"))
        self.context.call_async(lambda: time.sleep(0.05), lambda *_: self.calls.append("beside"))

    one = Recorded(later=later)
    bench.tell(bench.runner(op=one), reset(), event("later"), reset(2))
    begins.set()
    time.sleep(0.3)
    bench.tell(bench._runners[0], snapshot())
    bench.next()
    bench.next()
    assert "timer" not in one.calls
    assert "beside" not in one.calls


def test_work_beside_the_coordinator_comes_back_with_its_result_or_error(bench: Bench) -> None:
    """Both arrive on the coordinator's thread."""
    found: list[Any] = []

    def begin(self: Recorded) -> None:
        self.context.call_async(lambda: 42, lambda result, error: found.append((result, error)))
        self.context.call_async(
            lambda: 1 // 0, lambda result, error: found.append((result, type(error)))
        )
        self.context.call_async(
            lambda: sys.exit(1), lambda result, error: found.append((result, type(error)))
        )

    bench.tell(bench.runner(op=Recorded(begin=begin)), reset(), event("begin"))
    wait_until(lambda: len(found) == 3, "all work has come back")
    assert sorted(found, key=str) == [(42, None), (None, SystemExit), (None, ZeroDivisionError)]


def test_a_state_that_is_not_json_declines_the_checkpoint(bench: Bench) -> None:
    """With a message that says what to use instead."""
    bench.tell(bench.runner(op=Recorded(state=lambda _: {"kept": object()})), reset(), snapshot())
    declined = bench.next()
    assert isinstance(declined, CoordinatorSnapshotFailed)
    assert declined.message.startswith(
        "The state of the coordinator of 'op' cannot be stored, since JSON cannot represent <object"
    )
    assert "(object) at ['kept']: make it a map of text, finite numbers" in declined.message


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (float("inf"), "inf (float) at ['kept'][0]"),
        ((1, 2), "(1, 2) (tuple) at ['kept'][0]"),
        ({1: 2}, "the key 1 (int) at ['kept'][0]"),
        (b"ab", "b'ab' (bytes) at ['kept'][0]"),
    ],
)
def test_a_state_that_json_would_change_declines_the_checkpoint(
    bench: Bench, value: Any, part: str
) -> None:
    """A restored coordinator would continue with a different state."""
    bench.tell(bench.runner(op=Recorded(state=lambda _: {"kept": [value]})), reset(), snapshot())
    declined = bench.next()
    assert isinstance(declined, CoordinatorSnapshotFailed)
    assert (
        f"The state of the coordinator of 'op' cannot be stored, since JSON cannot represent {part}"
        in declined.message
    )


def test_an_event_that_json_would_change_fails_the_job_by_its_place(bench: Bench) -> None:
    """The subtask would get a different one."""
    one = Recorded(send=lambda self: self.context.send_event(0, {"pair": (1, 2)}))
    bench.tell(bench.runner(op=one), reset(), event("send"))
    failed = bench.next()
    assert isinstance(failed, CoordinatorFailed)
    assert (
        "An event of the coordinator of 'op' cannot be stored, since JSON cannot represent (1, 2)"
        " (tuple)" in failed.message
    )


def test_an_event_to_a_subtask_that_does_not_exist_fails_the_job_with_a_sentence(
    bench: Bench,
) -> None:
    """It names the existing subtasks."""
    one = Recorded(send=lambda self: self.context.send_event(2, {}))
    bench.tell(bench.runner(op=one), reset(), event("send"))
    failed = bench.next()
    assert isinstance(failed, CoordinatorFailed)
    assert "the operator has subtasks 0 to 1" in failed.message


def test_a_coordinator_learns_of_each_subtask_and_is_closed_at_the_end(bench: Bench) -> None:
    """C1: in the order of the events."""
    one = Recorded()
    runner = bench.runner(op=one)
    complete = NotifyCoordinator(operator="op", checkpoint_id=3, completed=True)
    bench.tell(runner, reset(state={"a": 1}), SubtasksReady(operator="op"), complete)
    runner.close()
    ready = [("ready", 0, 1), ("ready", 1, 1)]
    assert one.calls == [("reset", 7, {"a": 1}), *ready, ("complete", 3), "close"]


def asked(bench: Bench, runner: CoordinatorRunner, request: Payload) -> Future[CoordinatorAnswer]:
    answer: Future[CoordinatorAnswer] = Future()
    runner.request("op", request, answer)
    return answer


def test_coordinators_that_do_not_close_hold_up_the_end_once_and_not_each_for_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All start closing together, so the others have had the first one's time as well."""
    monkeypatch.setattr("weir.coordinators.runner._CLOSING_S", 0.5)
    gate = threading.Event()
    names = [f"op{number}" for number in range(20)]
    runner = bench.runner(**{name: Recorded(hang=lambda _: gate.wait()) for name in names})
    for name in names:
        bench.tell(runner, reset(operator=name), event("hang", operator=name))
    runner.close()
    gate.set()
    assert bench.waits.waited_s == 0.5


def test_coordinators_that_close_one_after_the_other_have_one_time_for_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would close within that time, but not all of them together."""
    monkeypatch.setattr("weir.coordinators.runner._CLOSING_S", 0.5)
    gates = {f"op{number}": threading.Event() for number in range(4)}
    runner = bench.runner(
        **{name: Recorded(hang=lambda _, gate=gate: gate.wait()) for name, gate in gates.items()}
    )
    for name in gates:
        bench.tell(runner, reset(operator=name), event("hang", operator=name))

    def open_in_turn() -> None:
        for gate in gates.values():
            time.sleep(0.3)
            gate.set()

    opener = threading.Thread(target=open_in_turn)
    opener.start()
    runner.close()
    opener.join()
    assert bench.waits.waited_s == 0.5


def test_a_request_is_answered_when_a_checkpoint_has_what_it_changed(bench: Bench) -> None:
    """Not by a checkpoint whose snapshot was taken before."""
    runner = bench.runner(op=BroadcastRules())
    bench.tell(runner, reset(), snapshot(1))
    bench.next()
    answer = asked(bench, runner, {"set": {"a": 1}})
    bench.tell(
        runner, NotifyCoordinator(operator="op", checkpoint_id=1, completed=True), snapshot(2)
    )
    while not isinstance(bench.next(), CoordinatorSnapshotTaken):
        pass
    assert not answer.done()
    bench.tell(runner, NotifyCoordinator(operator="op", checkpoint_id=2, completed=True))
    assert answer.result() == CoordinatorAnswer(answer={"rules": {"a": 1}}, checkpoint_id=2)


def test_a_restored_job_answers_only_for_what_its_own_checkpoint_has(bench: Bench) -> None:
    """The ids of another job's savepoint mean nothing for this job."""
    runner = bench.runner(op=BroadcastRules())
    bench.tell(runner, reset())
    answer = asked(bench, runner, {"set": {"a": 1}})
    bench.tell(runner, snapshot(1))
    foreign = ResetCoordinator(
        operator="op", attempt=2, parallelism=2, checkpoint_id=57, state={"rules": {}}, own=False
    )
    bench.tell(runner, foreign)
    with pytest.raises(CoordinatorError, match="restored from a checkpoint without it"):
        answer.result()


@pytest.mark.parametrize(
    "request_",
    [{"remove": [["a"]]}, {"remove": [{"a": 1}]}, {"set": [1]}, {"sett": {}}, {"remove": "a"}],
)
def test_a_malformed_request_is_refused_and_harms_nobody(bench: Bench, request_: Payload) -> None:
    """The job goes on."""
    runner = bench.runner(op=BroadcastRules())
    bench.tell(runner, reset())
    with pytest.raises(CoordinatorError, match="is not a valid change of rules"):
        asked(bench, runner, request_).result()
    bench.tell(runner, snapshot())
    assert isinstance(bench.next(), CoordinatorSnapshotTaken)


def test_the_state_of_another_coordinator_is_refused(bench: Bench) -> None:
    """A retry cannot help, so the job fails for good."""
    runner = bench.runner(op=BroadcastRules({"often": 5}))
    bench.tell(runner, reset(state={"spent": 7}))
    failed = bench.next()
    assert isinstance(failed, CoordinatorFailed)
    assert failed.fatal
    assert "'op' has no rules, so it is not that of a BroadcastRules" in failed.message


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"oftn": 10}, r"since it has the key 'oftn': send \{\"set\".*; the rules are often"),
        ({"set": {"oftn": 10}}, r"there is no rule 'oftn' to set; the rules are: often"),
        (
            {"set": {"often": 6, "oftn": 10}},
            r"there is no rule 'oftn' to set; the rules are: often",
        ),
        ({"remove": ["oftn"]}, r"there is no rule 'oftn' to remove; the rules are: often"),
    ],
)
def test_a_rule_or_key_that_nobody_knows_is_refused(
    bench: Bench, request_: Payload, says: str
) -> None:
    """The error names the existing ones; nothing is changed."""
    runner = bench.runner(op=BroadcastRules({"often": 5}))
    bench.tell(runner, reset())
    with pytest.raises(CoordinatorError, match=says):
        asked(bench, runner, request_).result()
    bench.tell(runner, snapshot())
    events = [bench.next() for _ in range(3)]
    assert isinstance(taken := events[-1], CoordinatorSnapshotTaken)
    assert taken.state == {"rules": {"often": 5}}


@pytest.mark.parametrize(
    ("rules", "restored", "name"),
    [
        (BroadcastRules({"often": 5}), {"seldom": 1}, "seldom"),
        (BroadcastRules({"often": 5}), {}, "often"),
        (BroadcastRules({"often": 5}, new_rules="accept"), {}, "oftn"),
        (BroadcastRules(), {}, "oftn"),
    ],
)
def test_a_rule_that_is_known_can_be_set(
    bench: Bench, rules: BroadcastRules, restored: Payload, name: str
) -> None:
    """A rule is known if it was restored or declared, or if new ones are accepted."""
    runner = bench.runner(op=rules)
    bench.tell(runner, reset(state={"rules": restored}))
    answer = asked(bench, runner, {"set": {name: 10}})
    bench.tell(runner, snapshot(8))
    while not isinstance(bench.next(), CoordinatorSnapshotTaken):
        pass
    bench.tell(runner, NotifyCoordinator(operator="op", checkpoint_id=8, completed=True))
    assert answer.result().answer == {"rules": restored | {name: 10}}


def test_rules_that_cannot_be_are_refused_when_they_are_made() -> None:
    """Before the job runs."""
    with pytest.raises(
        PipelineError, match=r"JSON cannot represent \(1, 2\) \(tuple\) at \['pair'\]"
    ):
        BroadcastRules({"pair": (1, 2)})
    with pytest.raises(PipelineError, match="new_rules='take': choose one of refuse, accept"):
        BroadcastRules({}, new_rules="take")


def test_an_answer_that_json_would_change_undoes_the_request(bench: Bench) -> None:
    """The restore that follows undoes what the coordinator did for it."""

    class Answers(Recorded):
        def handle_request(self, request: Payload) -> Payload:
            return {"rate": float("nan")}

    runner = bench.runner(op=Answers())
    bench.tell(runner, reset())
    with pytest.raises(
        CoordinatorError,
        match=r"An answer of the coordinator of 'op' cannot be stored, since JSON cannot represent",
    ):
        asked(bench, runner, {}).result()
    assert isinstance(bench.next(), CoordinatorFailed)


def test_a_request_that_json_would_change_is_refused(bench: Bench) -> None:
    """It never reaches the coordinator."""
    runner = bench.runner(op=BroadcastRules())
    bench.tell(runner, reset())
    with pytest.raises(
        CoordinatorError,
        match=r"A request to the coordinator of 'op' cannot be stored, .* \['set'\]\['a'\]",
    ):
        asked(bench, runner, {"set": {"a": (1, 2)}}).result()
    bench.tell(runner, snapshot())
    assert isinstance(bench.next(), CoordinatorSnapshotTaken)


def test_a_coordinator_that_could_not_start_is_started_again(bench: Bench) -> None:
    """By the next attempt."""

    class Late(Recorded):
        def start(self, context: CoordinatorContext) -> None:
            super().start(context)
            self.calls.append("start")
            if self.calls == ["start"]:
                raise OSError("not yet")

    one = Late()
    bench.tell(bench.runner(op=one), reset(), reset(2), snapshot())
    assert isinstance(bench.next(), CoordinatorFailed)
    bench.next()
    assert one.calls[:3] == ["start", "start", ("reset", None, None)]
