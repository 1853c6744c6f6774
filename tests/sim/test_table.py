"""The simulated table: exactly one of two writers wins, and cleanup keeps visible files."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import msgspec
import pytest
from tests.kit.sink import sink_context
from tests.sim.greenlets import file_system, new_disk, run_all

from weir.errors import InvariantError, SinkError
from weir.sim.engine.disk import Disk
from weir.sim.engine.loop import Loop
from weir.sim.engine.table import EmptyEpoch, SimTable, TableVersion
from weir.sim.own.code import OwnCode
from weir.sinks.base import Batch

JOB = "0123456789abcdef0123456789abcdef"


def opened(
    disk: Disk, loop: Loop, *, attempt: int = 1, empty: set[EmptyEpoch] | None = None
) -> SimTable:
    """The table as one attempt opens it, with a file system of its own."""
    fs = file_system(disk, loop)
    table = SimTable("/t", fs, empty=empty)
    table.open(sink_context(job_name="sim", sink="rows", attempt=attempt, file_system=lambda _: fs))
    return table


def stage(table: SimTable, position: int, *rows: int) -> Any:
    """Stage the rows as one batch, and flush them."""
    frame: Any = list(rows)
    payload = table.stage(frame, Batch(batch_id=position))
    assert payload is not None
    return table.flush([payload])[0]


def visible(disk: Disk) -> list[int]:
    """The rows that a reader of the table sees."""
    names = disk.names("/t/log")
    if not names:
        return []
    version = msgspec.json.decode(disk.files[f"/t/log/{names[-1]}"], type=TableVersion)
    return [row for file in version.files for row in msgspec.json.decode(disk.files[file])]


def test_what_is_staged_is_not_visible_before_its_commit() -> None:
    """Readers see the rows after the commit, not before."""
    disk, loop, seen = new_disk(), Loop(), list[list[int]]()

    def write() -> None:
        table = opened(disk, loop)
        payload = stage(table, 0, 1, 2)
        seen.append(visible(disk))
        assert table.commit(1, [payload]) == 2

    run_all(loop, write)
    assert [*seen, visible(disk)] == [[], [1, 2]]


def test_of_two_writers_of_one_epoch_exactly_one_lands() -> None:
    """Both read the log, both try to create its next version, and the rows are there once."""
    disk, loop, rows = new_disk(), Loop(), list[int]()
    staged = list[Any]()
    run_all(loop, lambda: staged.append(stage(opened(disk, loop), 0, 1, 2)))

    def commit(attempt: int) -> None:
        rows.append(opened(disk, loop, attempt=attempt).commit(1, staged))

    run_all(loop, partial(commit, 2), partial(commit, 3))
    assert sorted(rows) == [0, 2]
    assert visible(disk) == [1, 2]


def test_two_writers_with_different_transactions_both_land() -> None:
    """The writer whose version is taken reads the log again, and takes the next version."""
    disk, loop = new_disk(), Loop()

    def write(sink: str, row: int) -> None:
        fs = file_system(disk, loop)
        table = SimTable("/t", fs)
        table.open(sink_context(job_name="sim", sink=sink, file_system=lambda _: fs))
        table.commit(1, [stage(table, 0, row)])

    run_all(loop, partial(write, "a", 1), partial(write, "b", 2))
    assert sorted(visible(disk)) == [1, 2]


def test_an_epoch_at_or_below_the_newest_is_not_committed_again() -> None:
    """A repeated commit changes nothing and counts no rows."""
    disk, loop = new_disk(), Loop()

    def write() -> None:
        table = opened(disk, loop)
        payload = stage(table, 0, 1)
        assert table.commit(5, [payload]) == 1
        assert table.commit(5, [payload]) == 0
        assert table.commit(4, [payload]) == 0
        assert table.newest_committed() == 5

    run_all(loop, write)
    assert visible(disk) == [1]


def test_a_commit_of_files_that_are_gone_is_an_error() -> None:
    """A table never shows a missing file."""
    disk, loop = new_disk(), Loop()

    def write() -> None:
        table = opened(disk, loop)
        payload = stage(table, 0, 1)
        disk.delete(table.staged_files(payload)[0])
        with pytest.raises(SinkError, match="lacks"):
            table.commit(1, [payload])

    run_all(loop, write)
    assert visible(disk) == []


@pytest.mark.parametrize(("completed", "lands"), [(6, True), (7, False)])
def test_an_epoch_without_rows_gets_some_only_after_older_records_were_put_back(
    completed: int, lands: bool
) -> None:
    """They end before it. Otherwise a sink may remember the epoch, and ignore it."""
    disk, loop, job = new_disk(), Loop(), cast(Any, None)
    code = OwnCode(job, None)
    remembered = pytest.raises(InvariantError, match="has committed 7 without rows")

    def write() -> None:
        table = opened(disk, loop, empty=code.empty)
        table.commit(7, [])
        payload = stage(table, 0, 1)
        with remembered:
            table.commit(7, [payload])
        code.records_put_back(JOB, completed)
        with nullcontext() if lands else remembered:
            assert table.commit(7, [payload]) == 1

    run_all(loop, write)
    assert visible(disk) == ([1] if lands else [])


def test_cleanup_deletes_what_dead_attempts_staged_and_nobody_committed() -> None:
    """Committed files and those of the current attempt stay."""
    disk, loop, kept = new_disk(), Loop(), list[str]()

    def write() -> None:
        dead, living = opened(disk, loop, attempt=1), opened(disk, loop, attempt=2)
        committed = stage(dead, 0, 1)
        stage(dead, 1, 2)
        kept.extend(dead.staged_files(committed))
        kept.extend(living.staged_files(stage(living, 2, 3)))
        dead.commit(1, [committed])
        living.clean(2)

    run_all(loop, write)
    assert disk.below("/t/staged") == sorted(kept)
    assert visible(disk) == [1]


def test_a_table_that_takes_no_commit_says_so_and_has_done_nothing() -> None:
    """A simulated commit failure happens before the commit's first operation."""
    disk, loop = new_disk(), Loop()

    def write() -> None:
        fs = file_system(disk, loop)
        table = SimTable("/t", fs, fails=lambda: True)
        context = sink_context(job_name="sim", file_system=lambda _: fs)
        table.open(context)
        with pytest.raises(SinkError, match="rejects the commit"):
            table.commit(1, [stage(table, 0, 1)])

    run_all(loop, write)
    assert visible(disk) == []
