"""A job's sinks as the port drives them (P5, P13, P21).

Commit order, retries, and what is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kit.sink import FakeSink, sink_port
from tests.kit.waiting import wait_until

from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    Payload,
    SnapshotKind,
    StateHandle,
    TaskState,
)
from weir.durable.sink_port import pending_of
from weir.errors import DuplicatesError, JobError, LostRowsError, LostWriteError, SinkError
from weir.runtime.concurrency import ThreadWaits


def item(sink: str, position: int, epoch: int | None = None) -> Committable:
    """A committable staged in one step."""
    return Committable(sink=sink, position=position, payload={"step": position}, epoch=epoch)


def checkpoint(*tasks: tuple[Committable, ...]) -> CompletedCheckpoint:
    """Checkpoint 9 with these pending committables of its tasks."""
    return CompletedCheckpoint(
        job_id="0" * 32,
        checkpoint_id=9,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=0,
        completion_timestamp_ms=0,
        attempt=1,
        tasks=tuple(
            TaskState(vertex=f"v{number}", position=0, operators=(), committables=committables)
            for number, committables in enumerate(tasks)
        ),
        external_path="/chk-9",
    )


def never(handle: StateHandle, path: str) -> None:
    """Fails if anything is to be put back."""
    raise AssertionError(f"{handle} is put back at {path}")


def kept(name: str) -> StateHandle:
    """A copy in a savepoint."""
    return StateHandle(key=name, path=name, size=0, checksum="crc32:00000000")


class StagingSink(FakeSink):
    """Stages two files ``a`` and ``b`` per step in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def staged_files(self, payload: Payload) -> list[str]:
        return [str(self.directory / f"{payload['step']}-{name}") for name in "ab"]


def commits(sink: FakeSink) -> list[tuple[Any, ...]]:
    """(sink, epoch, steps) of each commit."""
    return [
        (call[1], call[2], [payload["step"] for payload in call[3]])
        for call in sink.calls
        if call[0] == "commit"
    ]


def test_every_sink_is_checked_and_opened_under_its_job_and_attempt() -> None:
    """The check comes before any attempt, as attempt 0."""
    calls: list[tuple[Any, ...]] = []
    port = sink_port(FakeSink("a", calls), FakeSink("b", calls))
    port.check("j")
    port.open("j", 4)
    assert calls == [
        ("check", "a", "j", 0),
        ("check", "b", "j", 0),
        ("open", "a", "j", 4),
        ("open", "b", "j", 4),
    ]


def test_flushing_completes_payloads_in_their_order() -> None:
    """Each sink gets all of its own at once; the results keep the order of the input."""
    calls: list[tuple[Any, ...]] = []
    port = sink_port(FakeSink("a", calls), FakeSink("b", calls), FakeSink("c", calls))
    flushed = port.flush([item("b", 0), item("a", 0), item("b", 1)])
    assert [(done.sink, done.payload) for done in flushed] == [
        ("b", {"step": 0, "flushed": "b"}),
        ("a", {"step": 0, "flushed": "a"}),
        ("b", {"step": 1, "flushed": "b"}),
    ]
    assert calls == [("flush", "a", {"step": 0}), ("flush", "b", {"step": 0}, {"step": 1})]


def test_a_commit_names_every_sink_also_those_without_rows() -> None:
    """An empty epoch is committed too (P15), and committed rows are counted."""
    calls: list[tuple[Any, ...]] = []
    port = sink_port(FakeSink("a", calls), FakeSink("b", calls))
    port.commit(7, {"a": ({"step": 1}, {"step": 2}), "b": ()})
    assert [(call[1], call[2], len(call[3])) for call in calls] == [("a", 7, 2), ("b", 7, 0)]
    assert (port.rows_committed(["a"]), port.rows_committed(["a", "b"])) == (2, 2)


class MeetingSink(FakeSink):
    """Another sink commits while this one is asked for its identity."""

    def __init__(self, name: str, meets: Callable[[], None]) -> None:
        super().__init__(name)
        self.newest = 7
        self._meets = meets

    def identity(self) -> str:
        self._meets()
        return self.name


def test_the_newest_epochs_can_be_recorded_while_another_sink_commits() -> None:
    """A first commit of one sink does not disturb the record of the others' epochs (P21)."""
    first = MeetingSink("a", lambda: port.commit(7, {"b": ({"step": 1},)}))
    second = FakeSink("b")
    second.newest = 7
    port = sink_port(first, second)
    port.commit(7, {"a": ({"step": 1},)})
    assert {name: known.epoch for name, known in port.epochs().items()} == {"a": 7, "b": 7}


# -- staged files that are gone --------------------------------------------------------------------


class DamagedSink(FakeSink):
    """Has lost the output that it staged in step 1."""

    def damaged(self, payload: Payload) -> str | None:
        self.calls.append(("damaged", self.name, payload["step"]))
        return "/t/1.parquet is gone" if payload["step"] == 1 else None


def test_a_snapshot_is_not_taken_of_staged_output_that_is_gone() -> None:
    """Including output flushed for an aborted checkpoint: the attempt fails and recomputes the rows
    (P5, P12)."""
    sink = DamagedSink()
    with pytest.raises(
        LostWriteError, match=r"FakeSink\('out'\) staged in batch 1 .* /t/1\.parquet is gone"
    ):
        sink_port(sink).flush([item("out", 0), item("out", 1)])
    assert [call[0] for call in sink.calls] == ["damaged", "damaged"]


@pytest.mark.parametrize(
    ("barrier", "epoch", "newest", "looks"),
    [(7, 7, None, 0), (7, None, 7, 1), (7, None, 8, 1)],
    ids=["its commit looks", "committed since", "committed with a later epoch"],
)
def test_what_a_completed_checkpoint_holds_is_not_missed_by_the_next_one(
    barrier: int, epoch: int | None, newest: int | None, looks: int
) -> None:
    """Its commit may have moved the files, and readers may have removed them."""
    sink = DamagedSink()
    sink.newest = newest
    pending = replace(item("out", 1), barrier=barrier, epoch=epoch)
    sink_port(sink).flush([pending])
    assert [call[0] for call in sink.calls] == [*["damaged"] * looks, "flush"]


class MovingSink(StagingSink):
    """Has moved the files of what it has committed, like ``Files`` and ``ForeachEpoch``."""

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        gone = [call[3] for call in self.calls if call[0] == "commit"]
        if any(payload in committed for committed in gone for payload in payloads):
            raise LostWriteError("cannot sync a file that a commit has moved")
        return super().flush(payloads)


@pytest.mark.parametrize("epoch", [None, 7], ids=["snapshot before", "snapshot after"])
def test_what_is_committed_before_a_snapshot_has_flushed_it_is_not_pending_there(
    epoch: int | None, tmp_path: Path
) -> None:
    """Checkpoint 7 may complete before or after the synchronous part of savepoint 8 (P14)."""
    sink = MovingSink(tmp_path)
    kept_files: list[str] = []
    port = sink_port(sink)
    old = replace(item("out", 1), barrier=7, epoch=epoch)
    new = replace(item("out", 2), barrier=8)
    port.commit(7, {"out": (old.payload,)})

    def keep(path: str, key: str) -> StateHandle:
        kept_files.append(Path(path).name)
        return kept(key)

    assert [done.position for done in port.flush([old, new], keep, 8)] == [2]
    assert kept_files == ["2-a", "2-b"]


def test_what_only_a_later_checkpoint_has_committed_stays_in_a_savepoint(tmp_path: Path) -> None:
    """Restored into other tables, savepoint 6 would lack rows that came before it (P14)."""
    sink = StagingSink(tmp_path)
    port = sink_port(sink)
    before = replace(item("out", 1), barrier=6)
    port.commit(7, {"out": (before.payload,)})
    (flushed,) = port.flush([before], lambda _, key: kept(key), 6)
    assert [handle.key for handle in flushed.files] == ["out/1/0", "out/1/1"]


def test_what_another_job_has_committed_says_nothing_of_the_own_output(tmp_path: Path) -> None:
    """The ids of a job that starts from a savepoint begin at 1 again (P19)."""
    port = sink_port(MovingSink(tmp_path))
    port.commit_again(checkpoint((item("out", 1, epoch=9),)), never)
    own = replace(item("out", 2), barrier=1)
    assert [done.position for done in port.flush([own], None, 9)] == [2]


def test_a_commit_that_has_lost_its_rows_is_not_tried_again() -> None:
    """No pause would bring them back."""
    sink = FakeSink()
    sink.errors = [LostRowsError("/t/1.parquet is gone")]
    with pytest.raises(LostRowsError):
        sink_port(sink, attempts=5).commit(7, {"out": ({"step": 1},)})
    assert len(sink.calls) == 1


# -- retries ---------------------------------------------------------------------------------------


class NotedPauses(ThreadWaits):
    """Events that record their waits and return at once."""

    def __init__(self) -> None:
        self.pauses: list[float | None] = []

    def event(self) -> threading.Event:
        event = threading.Event()
        event.wait = self._wait  # type: ignore[method-assign]
        return event

    def _wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return False


def test_a_failed_commit_is_tried_again_with_growing_pauses() -> None:
    """Exponential backoff with jitter, up to the longest pause."""
    waits = NotedPauses()
    sink = FakeSink()
    sink.errors = [SinkError(f"try {number}") for number in range(4)]
    sink_port(sink, attempts=5, backoff_ms=1_000, waits=waits).commit(7, {"out": ({"step": 1},)})
    assert len(sink.calls) == 5
    for pause, (least, most) in zip(waits.pauses, [(1, 2), (2, 3), (4, 4), (4, 4)], strict=True):
        assert pause is not None
        assert least <= pause <= most


def test_when_retries_are_used_up_the_last_error_is_raised() -> None:
    """After exactly the configured number of tries; no rows count as committed."""
    sink = FakeSink()
    sink.errors = [SinkError("first"), SinkError("second"), SinkError("third"), SinkError("fourth")]
    port = sink_port(sink, attempts=3)
    with pytest.raises(SinkError, match="third"):
        port.commit(7, {"out": ({"step": 1},)})
    assert len(sink.calls) == 3
    assert port.rows_committed(["out"]) == 0


def test_a_sink_that_cannot_commit_holds_back_those_after_it() -> None:
    """Sinks commit in order; the restored job recommits all of them (P13)."""
    calls: list[tuple[Any, ...]] = []
    first, second = FakeSink("a", calls), FakeSink("b", calls)
    first.errors = [SinkError("no")]
    with pytest.raises(SinkError):
        sink_port(first, second, attempts=1).commit(7, {"a": (), "b": ()})
    assert [call[1] for call in calls] == ["a"]


def test_stopping_ends_the_pause_between_two_tries_at_once() -> None:
    """A cancelled job does not wait for a minute of backoff."""
    sink = FakeSink()
    sink.errors = [SinkError("away")] * 5
    port = sink_port(sink, attempts=5, backoff_ms=60_000)
    errors: list[Exception] = []

    def commit() -> None:
        try:
            port.commit(7, {"out": ()})
        except SinkError as error:
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    wait_until(lambda: sink.calls, "the sink is asked to commit")
    port.stop()
    thread.join()
    assert [str(error) for error in errors] == ["away"]
    assert len(sink.calls) <= 2


def test_after_a_stop_the_next_attempt_retries_again() -> None:
    """Starting an attempt resets the stop."""
    sink = FakeSink()
    port = sink_port(sink, attempts=3)
    port.stop()
    port.resume()
    sink.errors = [SinkError("away")]
    port.commit(7, {"out": ()})
    assert [call[0] for call in sink.calls] == ["commit", "commit"]


class HangingSink(FakeSink):
    """Blocks in a commit until a test releases it."""

    def __init__(self, name: str = "out", calls: list[tuple[Any, ...]] | None = None) -> None:
        super().__init__(name, calls)
        self.reached, self.gate = threading.Event(), threading.Event()

    def commit(self, epoch: int, payloads: Any) -> int:
        count = super().commit(epoch, payloads)
        self.reached.set()
        self.gate.wait()
        return count


def test_a_commit_that_comes_back_in_a_newer_attempt_commits_nothing_more() -> None:
    """Neither the sinks after it nor its own retry: both belong to the newer attempt now (P13)."""
    calls: list[tuple[Any, ...]] = []
    hanging, other = HangingSink("a", calls), FakeSink("b", calls)
    port = sink_port(hanging, other)
    errors: list[Exception] = []

    def commit() -> None:
        try:
            port.commit(7, {"a": (), "b": ()})
        except SinkError as error:
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    hanging.reached.wait()
    port.stop()
    port.resume()
    with pytest.raises(
        SinkError, match=r"'a' \(FakeSink\('a'\)\) still hangs while committing checkpoint 7"
    ):
        port.open("j", 2)
    hanging.gate.set()
    thread.join()
    assert "A newer attempt will commit checkpoint" in str(errors[0])
    port.open("j", 2)
    assert [call[:2] for call in calls] == [("commit", "a"), ("open", "a"), ("open", "b")]


def test_a_retry_of_an_older_attempt_does_not_continue_when_the_next_one_starts() -> None:
    """Its pause ends, and no further try follows."""
    sink = HangingSink()
    sink.gate.set()
    sink.errors = [SinkError("away")] * 50
    port = sink_port(sink, attempts=50, backoff_ms=60_000)

    def commit() -> None:
        with pytest.raises(SinkError, match="away"):
            port.commit(7, {"out": ()})

    thread = threading.Thread(target=commit)
    thread.start()
    wait_until(lambda: sink.calls, "the sink is asked to commit")
    port.stop()
    port.resume()
    thread.join()
    assert len(sink.calls) <= 2


# -- committing again ------------------------------------------------------------------------------


def test_what_a_checkpoint_had_pending_is_committed_again_by_epoch() -> None:
    """For each sink in the order of epochs; without an epoch it belongs to this checkpoint (P5)."""
    calls: list[tuple[Any, ...]] = []
    first, second = FakeSink("a", calls), FakeSink("b", calls)
    pending = checkpoint(
        (item("a", 4), item("a", 1, epoch=7), item("a", 3, epoch=8), item("a", 2, epoch=7)),
        (item("b", 5), item("b", 1, epoch=8)),
    )
    sink_port(first, second).commit_again(pending, never)
    assert commits(first) == [
        ("a", 7, [1, 2]),
        ("a", 8, [3]),
        ("a", 9, [4]),
        ("b", 8, [1]),
        ("b", 9, [5]),
    ]


def test_a_recommit_is_retried_too() -> None:
    """A table that is briefly unavailable does not cost an attempt."""
    sink = FakeSink()
    sink.errors = [SinkError("away")]
    sink_port(sink).commit_again(checkpoint((item("out", 1),)), never)
    assert [call[0] for call in sink.calls] == ["commit", "commit"]


def test_pending_rows_of_a_sink_that_was_removed_are_refused() -> None:
    """Dropping them may lose rows; the error names the sink and the way out."""
    sink = FakeSink("new")
    with pytest.raises(
        JobError, match=r"Checkpoint 9 has rows of sink 'old'.*--allow-non-restored-state"
    ):
        sink_port(sink).commit_again(checkpoint((item("old", 1),)), never)


def test_pending_rows_of_a_removed_sink_are_left_out_if_that_is_allowed() -> None:
    """The savepoint of a stop names rows that the stop has committed (docs/STOPPING.md)."""
    sink = FakeSink("kept")
    pending = checkpoint((item("old", 1), item("kept", 2)))
    assert sink_port(sink).commit_again(pending, never, allow_removed=True) == ("old",)
    assert commits(sink) == [("kept", 9, [2])]


def test_an_intermediate_savepoint_keeps_the_staged_files_under_one_lock(tmp_path: Path) -> None:
    """A commit that moved them between the query and the copy would make the savepoint fail
    (P14)."""
    sink = StagingSink(tmp_path)
    port = sink_port(sink)
    kept_paths: list[tuple[str, str]] = []

    def keep(path: str, key: str) -> StateHandle:
        other = threading.Thread(target=port.commit, args=(7, {"out": ()}))
        other.start()
        other.join(0.05)
        assert commits(sink) == []
        kept_paths.append((path, key))
        return kept(key)

    (flushed,) = port.flush([item("out", 4)], keep)
    assert kept_paths == [(f"{tmp_path}/4-a", "out/4/0"), (f"{tmp_path}/4-b", "out/4/1")]
    assert [handle.key for handle in flushed.files] == ["out/4/0", "out/4/1"]
    assert port.flush([item("out", 4)])[0].files == ()


def test_a_savepoints_copies_are_put_back_and_then_committed(tmp_path: Path) -> None:
    """Also over an existing file, which may never have been synced (P14, P23)."""
    sink = StagingSink(tmp_path)
    (tmp_path / "4-b").touch()
    put_back: list[tuple[str, str]] = []

    def note(handle: StateHandle, path: str) -> None:
        assert commits(sink) == []
        put_back.append((handle.key, path))

    pending = replace(item("out", 4), files=(kept("first"), kept("second")))
    sink_port(sink).commit_again(checkpoint((pending,)), note)
    assert put_back == [("first", f"{tmp_path}/4-a"), ("second", f"{tmp_path}/4-b")]
    assert commits(sink) == [("out", 9, [4])]


def test_nothing_is_put_back_for_an_epoch_that_the_origin_committed(tmp_path: Path) -> None:
    """The commit will do nothing, and nothing would clean up the files (P14)."""
    sink = StagingSink(tmp_path)
    sink.newest = 9
    pending = replace(item("out", 4), files=(kept("first"), kept("second")))
    sink_port(sink).commit_again(checkpoint((pending,)), never)
    assert commits(sink) == [("out", 9, [4])]


def test_rows_that_are_neither_committed_nor_where_they_were_staged_are_an_error(
    tmp_path: Path,
) -> None:
    """Another job's checkpoint has no copies: at another target they are missing, and nothing is
    committed."""
    sink = StagingSink(tmp_path)
    with pytest.raises(
        JobError, match=rf"checkpoint 9 .*sink 'out'.*{tmp_path}/4-a.*start from a savepoint"
    ):
        sink_port(sink).commit_again(checkpoint((item("out", 4),)), never, foreign=True)
    assert commits(sink) == []


def test_the_jobs_own_rows_are_the_sinks_business_wherever_they_are_by_now(tmp_path: Path) -> None:
    """It may have committed them before the crash and not know: the commit is idempotent (P13)."""
    sink = StagingSink(tmp_path)
    sink_port(sink).commit_again(checkpoint((item("out", 4),)), never)
    assert commits(sink) == [("out", 9, [4])]


@pytest.mark.parametrize(
    ("barrier", "epoch", "under"),
    [(7, None, 7), (None, None, 9), (7, 8, 8), (None, 10, 9), (10, None, 9)],
)
def test_what_a_savepoint_had_pending_is_committed_under_the_id_that_its_origin_may_have_given_it(
    barrier: int | None, epoch: int | None, under: int
) -> None:
    """Savepoint 9 and a checkpoint may complete in either order; no larger id is possible (P14,
    P19, P21)."""
    sink = FakeSink()
    pending = replace(item("out", 4), barrier=barrier, epoch=epoch)
    savepoint = replace(checkpoint((pending,)), kind=SnapshotKind.SAVEPOINT)
    sink_port(sink).commit_again(savepoint, never)
    assert commits(sink) == [("out", under, [4])]


def test_a_snapshot_is_refused_once_its_job_has_committed_beyond_it() -> None:
    """Rows would be duplicated or missing; the error names both ids, the target and the ways out
    (P21)."""
    sink = FakeSink()
    port = sink_port(sink)
    for sink.newest in (None, 8, 9):
        port.check_newest(checkpoint())
    sink.newest = 10
    with pytest.raises(
        DuplicatesError,
        match=r"/chk-9 is checkpoint 9 .* committed checkpoint 10 to FakeSink\('out'\)",
    ):
        port.check_newest(checkpoint())


def test_a_sink_that_was_added_has_nothing_to_commit_again() -> None:
    """A checkpoint that does not contain it is no obstacle."""
    sink = FakeSink("new")
    sink_port(sink).commit_again(checkpoint(()), never)
    assert sink.calls == []


def test_sinks_finish_in_their_order_and_what_they_held_back_is_staged_in_that_batch() -> None:
    """A sink that held nothing back stages nothing; sinks of other tasks are left alone (MISSION
    E2)."""
    calls: list[tuple[Any, ...]] = []
    first, second, other = (FakeSink(name, calls) for name in ("first", "second", "other"))
    second.held_back = {"step": 5}
    port = sink_port(first, second, other)
    assert port.finish(["first", "second"], 5) == (item("second", 5),)
    assert calls == [("finish", "first", 5), ("finish", "second", 5)]


def test_the_sinks_of_a_task_are_closed_in_their_order() -> None:
    """Those of other tasks stay open (MISSION E5)."""
    calls: list[tuple[Any, ...]] = []
    port = sink_port(*(FakeSink(name, calls) for name in ("first", "second", "other")))
    port.close(["first", "second"])
    assert calls == [("close", "first"), ("close", "second")]


def test_cleaning_reaches_every_sink() -> None:
    """With the attempt before which uncommitted output may be deleted (P22)."""
    calls: list[tuple[Any, ...]] = []
    sink_port(FakeSink("a", calls), FakeSink("b", calls)).clean(3)
    assert calls == [("clean", "a", 3), ("clean", "b", 3)]


@pytest.mark.parametrize(
    ("newest", "refused"), [(None, False), (4, False), (5, False), (6, True), (7, True)]
)
def test_going_back_is_refused_once_a_sink_has_committed_beyond(
    newest: int | None, refused: bool
) -> None:
    """From damaged checkpoint 7 to checkpoint 5: not if any sink has committed 6 or later (P21)."""
    sink, other = FakeSink(), FakeSink("other")
    sink.newest = newest
    port = sink_port(sink, other)
    if refused:
        with pytest.raises(
            DuplicatesError, match=r"Checkpoint 7 is damaged.*checkpoint 5.*--accept-duplicates"
        ):
            port.check_not_beyond(5, 7)
    else:
        port.check_not_beyond(5, 7)


def test_going_back_is_refused_once_rows_beyond_may_be_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit of 6 was cut short at a target that shows files one by one (P21)."""
    sink = FakeSink()
    sink.newest = 4
    monkeypatch.setattr(sink, "newest_begun", lambda: 6)
    with pytest.raises(DuplicatesError, match=r"Checkpoint 7 is damaged.*checkpoint 5"):
        sink_port(sink).check_not_beyond(5, 7)


@pytest.mark.parametrize(
    ("marks", "epoch"),
    [
        ({}, 9),
        ({"barrier": 7}, 7),
        ({"barrier": 7, "epoch": 8}, 8),
        ({"left_out": 5}, 5),
        ({"left_out": 5, "barrier": 7}, 5),
        ({"left_out": 5, "barrier": 7, "epoch": 8}, 5),
        ({"barrier": 12}, 9),
    ],
)
def test_a_savepoint_commits_rows_under_the_first_id_that_its_job_may_have_used(
    marks: dict[str, int], epoch: int
) -> None:
    """A job restored from a checkpoint that a sink had left out commits them under its id,
    and a job that commits them later does so under a later id (P14, P19, P21)."""
    staged = replace(item("s", 1), **marks)
    savepoint = replace(checkpoint((staged,)), kind=SnapshotKind.SAVEPOINT)
    assert list(pending_of(savepoint)["s"]) == [epoch]


def test_a_sink_with_rows_that_it_left_out_in_an_earlier_run_is_opened_as_one_that_does() -> None:
    """Readers of its commits must know that these may join several checkpoints."""
    contexts: list[Any] = []

    class Noted(FakeSink):
        def open(self, context: Any) -> None:
            contexts.append(context.leaves_out)

    port = sink_port(Noted("s"))
    port.open("j", 1)
    assert port.learn_left_out(checkpoint((replace(item("s", 1), left_out=5),)))
    port.open("j", 1)
    assert contexts == [False, True]
    assert not port.learn_left_out(checkpoint((replace(item("s", 1), left_out=5),)))
