"""What the operators of a chain are called with between two batches, and after a restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.operators.local_chain import SCHEMA, LocalChain

from weir.errors import OperatorError, PipelineError
from weir.operators import Operator, SnapshotContext
from weir.operators.state.store import StateStore
from weir.runtime.failures import NO_ROWS, NOTE


class Listening(Operator):
    """Notes its calls in a list that all of its instances share."""

    transient = ("heard",)

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def __deepcopy__(self, _: object) -> Any:
        copy = type(self)()
        copy.heard = self.heard
        return copy

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.heard.append(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.heard.append(-checkpoint_id)

    def close(self) -> None:
        self.heard.append("close")


class Snapshotting(Listening):
    """Has a snapshot of its own, which may fail."""

    fails = False

    def snapshot_state(self, context: SnapshotContext) -> None:
        if type(self).fails:
            raise KeyError("x")


def test_a_snapshot_takes_no_notification_from_operators_that_it_does_not_call(
    tmp_path: Path,
) -> None:
    """Checkpoint 1 completes, and 2 is triggered, while a batch runs."""
    first, second = Snapshotting(), Listening()
    run = LocalChain(tmp_path, first, second)
    run.batch()
    run.chain.completed.append(1)
    run.chain.aborted.append(7)
    run.snapshot(2)
    assert run.chain.has_news
    run.batch()
    assert first.heard == second.heard == [1, -7]


def test_every_operator_hears_of_its_last_checkpoint_before_it_is_closed(tmp_path: Path) -> None:
    """Also if a further snapshot was taken after the drain: the last transaction is committed."""
    first, second = Snapshotting(), Listening()
    run = LocalChain(tmp_path, first, second)
    run.batch(finish=True)
    run.snapshot(1, finished=True)
    run.chain.completed.append(1)
    run.snapshot(2, finished=True)
    run.chain.close()
    assert first.heard == second.heard == [1, "close"]


def test_a_snapshot_that_fails_loses_no_notification(tmp_path: Path, monkeypatch: Any) -> None:
    """Neither that of the operator which fails nor that of one after it."""
    first, second = Snapshotting(), Listening()
    run = LocalChain(tmp_path, first, second)
    run.batch()
    run.chain.completed.append(1)
    with monkeypatch.context() as patch:
        patch.setattr(Snapshotting, "fails", True)
        with pytest.raises(OperatorError):
            run.snapshot(2)
    run.batch()
    assert first.heard == ["close", 1]  # the failed instance is replaced
    assert second.heard == [1]


def test_a_failed_snapshot_names_the_line_of_user_code(tmp_path: Path, monkeypatch: Any) -> None:
    """As a failed batch does."""
    run = LocalChain(tmp_path, Snapshotting())
    run.batch()
    monkeypatch.setattr(Snapshotting, "fails", True)
    with pytest.raises(OperatorError, match=r"KeyError: 'x' \(in .*test_chain_calls.py, line \d+"):
        run.snapshot(2)


class Sending(Listening):
    """Sends an event for each checkpoint that completes."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.context.send_event_to_coordinator({"completed": checkpoint_id})


def test_an_event_in_a_notification_before_close_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same notification sends one after each checkpoint: a job that failed could never end."""
    sending = Sending()
    run = LocalChain(tmp_path, sending)
    run.batch(finish=True)
    run.chain.completed.append(1)
    run.chain.close()
    assert sending.heard == ["close"]
    assert "operator 'a' sent in its last notification is dropped" in caplog.text


class SendingTooLate(Listening):
    """Sends an event when it is closed."""

    def close(self) -> None:
        self.context.send_event_to_coordinator({"closed": True})


def test_an_event_in_close_is_refused(tmp_path: Path) -> None:
    """That is a mistake in each of its ends."""
    run = LocalChain(tmp_path, SendingTooLate())
    run.batch(finish=True)
    run.chain.completed.append(1)
    with pytest.raises(OperatorError, match="outside of a batch"):
        run.chain.close()


def test_an_event_in_a_notification_waits_for_the_next_batch(tmp_path: Path) -> None:
    """A snapshot in between does not lose it."""
    run = LocalChain(tmp_path, Sending(), Snapshotting())
    run.batch()
    run.chain.completed.append(1)
    run.snapshot(2)
    run.chain.begin_batch(1)
    sent = run.chain.end_batch(1).sent
    assert [one.payload for one in sent] == [{"completed": 1}]


@pytest.mark.parametrize("operator", [Snapshotting(), Listening()])
def test_the_snapshot_of_a_drained_chain_is_that_of_its_last_batch(
    tmp_path: Path, operator: Operator
) -> None:
    """What sinks stage when they finish has a position of its own."""
    run = LocalChain(tmp_path, operator)
    run.batch()
    run.batch(finish=True)
    run.snapshot(1, finished=True, position=run.version + 1)
    assert run.entry().keys() == {"a"}


class Watching(Operator):
    """Notes the watermarks that it sees."""

    transient = ("seen",)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __deepcopy__(self, _: object) -> Watching:
        return self

    def end_batch(self) -> None:
        self.seen.append(("end", self.context.watermark_ms))

    def on_watermark(self, watermark_ms: int) -> None:
        self.seen.append(("moved", watermark_ms))


@pytest.mark.parametrize("next_ms", [100, 200])
def test_a_restored_operator_goes_on_with_the_watermark_that_it_has_seen(
    tmp_path: Path, next_ms: int
) -> None:
    """Late records are judged as before, and ``on_watermark`` is not called for the same one."""
    watching = Watching()
    run = LocalChain(tmp_path, watching, timed=True)
    run.chain.planned(100)
    run.batch()
    run.chain.planned(next_ms)
    run.snapshot(1)
    again = LocalChain(tmp_path, watching, timed=True, version=0)
    again.chain.planned(next_ms)
    again.chain.resume_at(100)
    watching.seen.clear()
    again.batch()
    assert again.subtasks.orders["a"].setup.watermark_ms == 100
    moved = [("moved", next_ms)] if next_ms > 100 else []
    assert watching.seen == [*moved, ("end", next_ms)]


@pytest.mark.parametrize(("saved", "of_spark", "expected"), [(None, 100, None), (100, 50, 50)])
def test_a_restored_operator_goes_on_with_no_watermark_that_it_may_not_have_seen(
    tmp_path: Path, saved: int | None, of_spark: int, expected: int | None
) -> None:
    """Earlier versions saved none, and a query that was put together may have an older one."""
    run = LocalChain(tmp_path, Watching(), timed=True)
    run.batch()
    run.snapshot(1)
    run.changed_entry(watermark_ms=saved)
    again = LocalChain(tmp_path, Watching(), timed=True, version=0)
    again.chain.resume_at(of_spark)
    again.batch()
    assert again.subtasks.orders["a"].setup.watermark_ms == expected


LAYER = {"file": "a/0-0-x", "offset": 0, "length": 0, "groups": [0, 128], "keys": 0}


@pytest.mark.parametrize(
    ("was", "now", "listed"),
    [
        ([["id", "int"]], [("id", "bigint")], "'id' (bigint), but its state was saved by 'id'"),
        (
            [["a", "int"], ["b", "int"]],
            [("b", "int"), ("a", "int")],
            "'b' (int), 'a' (int), but its state was saved by 'a' (int), 'b' (int)",
        ),
        ([["id", "int"]], [], "nothing, but its state was saved by 'id' (int)"),
    ],
)
def test_state_of_another_key_is_refused(
    tmp_path: Path, was: list[list[str]], now: list[tuple[str, str]], listed: str
) -> None:
    """Spark would assign the keys to other key groups, so no key would find its value."""
    run = LocalChain(tmp_path, Operator())
    run.batch()
    run.snapshot(1)
    run.changed_entry(key=was, keyed={"s": {"0": [LAYER]}})
    again = LocalChain(tmp_path, Operator(), version=0)
    with pytest.raises(PipelineError) as refused:
        again.chain.add_key("a", now)
    assert f"Operator 'a' is keyed by {listed}" in str(refused.value)


@pytest.mark.parametrize("was", [[["id", "int"]], [["number", "int"]], []])
def test_state_of_the_same_key_is_taken(tmp_path: Path, was: list[list[str]]) -> None:
    """Also if the only column has another name, and from versions that did not keep the key."""
    run = LocalChain(tmp_path, Operator())
    run.batch()
    run.snapshot(1)
    run.changed_entry(key=was, keyed={"s": {"0": [LAYER]}})
    again = LocalChain(tmp_path, Operator(), version=0)
    again.chain.add_key("a", [("id", "int")])
    again.snapshot(2)
    assert again.entry()["a"]["key"] == [["id", "int"]]
    assert again.entry()["a"]["keyed"] == {"s": {"0": [LAYER]}}


def test_the_key_is_part_of_the_snapshot(tmp_path: Path) -> None:
    """So a later run can compare it."""
    run = LocalChain(tmp_path, Operator())
    run.chain.add_key("a", [("id", "int")])
    run.batch()
    run.snapshot(1)
    run.changed_entry(keyed={"s": {"0": [LAYER]}})
    again = LocalChain(tmp_path, Operator(), version=0)
    with pytest.raises(PipelineError, match="saved by 'id'"):
        again.chain.add_key("a", [("id", "string")])


class Failing(Listening):
    """Fails in one of its calls."""

    at = ""

    def initialize_state(self, state: StateStore) -> None:
        self._fail("initialize_state")

    def process_batch(self, batch: pa.RecordBatch) -> None:
        self._fail("process_batch")

    def end_batch(self) -> None:
        self._fail("end_batch")

    def _fail(self, call: str) -> None:
        if type(self).at == call:
            raise RuntimeError(call)


@pytest.mark.parametrize("call", ["initialize_state", "end_batch"])
def test_an_operator_that_fails_is_closed(tmp_path: Path, monkeypatch: Any, call: str) -> None:
    """It may have opened connections."""
    failing = Failing()
    monkeypatch.setattr(Failing, "at", call)
    with pytest.raises(RuntimeError, match=call):
        LocalChain(tmp_path, failing).batch()
    assert failing.heard == ["close"]


class Base(Operator):
    """Has a cache."""

    transient = ("cache",)

    def __init__(self) -> None:
        self.cache: list[int] = []
        self.lines: list[int] = []

    def __deepcopy__(self, _: object) -> Base:
        return self


class Derived(Base):
    """Has another one."""

    transient = ("lines",)

    def end_batch(self) -> None:
        self.cache.append(1)
        self.lines.append(1)


def test_a_subclass_adds_to_the_transient_attributes_of_its_base(tmp_path: Path) -> None:
    """It need not know them."""
    derived = Derived()
    LocalChain(tmp_path, derived).batch()
    assert (derived.cache, derived.lines) == ([1], [1])


@pytest.mark.parametrize(
    ("call", "rows", "says_so"),
    [
        ("initialize_state", 1, True),
        ("end_batch", 0, True),
        ("process_batch", 1, False),
        ("end_batch", 1, False),
    ],
)
def test_an_operator_that_had_no_rows_when_it_failed_says_so(
    tmp_path: Path, monkeypatch: Any, call: str, rows: int, says_so: bool
) -> None:
    """Nothing of the batch can be the cause, so the failure is not that of its input."""
    monkeypatch.setattr(Failing, "at", call)
    run = LocalChain(tmp_path, Failing())
    run.subtasks.records = [pa.RecordBatch.from_pydict({"id": list(range(rows))}, SCHEMA)]
    with pytest.raises(RuntimeError) as raised:
        run.batch()
    assert (f"{NOTE}{NO_ROWS}" in raised.value.__notes__) is says_so


def test_an_attempt_that_ran_no_batch_asks_no_worker_to_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that is refused when it is planned ends without a wait for workers to start."""
    chain = LocalChain(tmp_path, Listening())
    called: list[str] = []
    monkeypatch.setattr(chain.subtasks, "call", lambda name, call: called.append(name))
    chain.chain.abandon()
    assert called == []
    chain.batch()
    chain.chain.abandon()
    assert called == ["a"]
