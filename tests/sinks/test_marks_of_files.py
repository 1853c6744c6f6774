"""The marks of epochs whose files may have their names, without Spark; real processes are killed.

A mark is what keeps a job from falling back behind rows that readers may see (PROTOCOL P21).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kit.disk import FaultyDisk
from tests.kit.sink import sink_context
from tests.kit.written_rows import rows_of_files, stage_rows

from weir.durable.sink_port import CommitRetries, SinkPort
from weir.errors import DuplicatesError
from weir.runtime.concurrency import ThreadWaits
from weir.sinks import Files
from weir.storage.local import LocalFileSystem

JOB = "0123456789abcdef0123456789abcdef"


#: Commits in a process of its own, which kills itself before a rename, after so many.
COMMIT = """
import json, os, signal, sys
from weir.sinks.base import SinkContext
from weir.sinks.files.sink import Files
from weir.storage.local import LocalFileSystem

path, job, epoch, payload, left = json.loads(sys.argv[1])

class Killed(LocalFileSystem):
    def rename(self, source, target):
        global left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        super().rename(source, target)

files = Killed()
sink = Files(path)
sink.open(
    SinkContext(
        job_id=job, job_name="orders", sink="out", attempt=1, file_system=lambda _: files
    )
)
sink.commit(epoch, [payload])
"""


def opened(path: Path, *, attempt: int = 1) -> Files:
    files = LocalFileSystem()
    sink = Files(str(path))
    context = sink_context(attempt=attempt, file_system=lambda _: files)
    sink.check(context)
    sink.open(context)
    return sink


def flushed(sink: Files, position: int, directory: Path) -> dict[str, Any]:
    """A payload of two rows in two files."""
    (payload,) = sink.flush([stage_rows(sink, position, directory)])
    return json.loads(json.dumps(payload))  # type: ignore[no-any-return]


def ledger_of(path: Path) -> Path:
    return path / "_weir" / "committed" / f"{JOB}-out"


def names_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in ledger_of(path).iterdir())


def killed_in_commit(path: Path, epoch: int, payload: dict[str, Any], renames: int) -> None:
    """Commit in another process, which is killed before its next rename, after so many."""
    given = json.dumps([str(path), JOB, epoch, payload, renames])
    child = subprocess.run([sys.executable, "-c", COMMIT, given], timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL


def port_of(path: Path) -> SinkPort:
    port = SinkPort(
        sinks={"out": Files(str(path))},
        job_name="orders",
        file_system=lambda _: LocalFileSystem(),
        retries=CommitRetries(attempts=1, initial_backoff_ms=1, max_backoff_ms=1),
        waits=ThreadWaits(),
    )
    port.check(JOB)
    port.open(JOB, 2, {})
    return port


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_driver_killed_between_two_renames_leaves_a_mark(tmp_path: Path, renames: int) -> None:
    """No older checkpoint is used then; the epoch itself is completed, each row once (P18, P21)."""
    path = tmp_path / "f"
    sink = opened(path)
    sink.commit(3, [flushed(sink, 0, tmp_path / "rows")])
    payload = flushed(sink, 1, tmp_path / "rows")
    killed_in_commit(path, 4, payload, renames)
    assert rows_of_files(path) == sorted([0, 100, *[1, 101][:renames]])
    with pytest.raises(DuplicatesError, match=r"Checkpoint 4 is damaged.*has committed.* 4"):
        port_of(path).check_not_beyond(3, 4)
    again = opened(path, attempt=2)
    assert (again.newest_begun(), again.newest_committed()) == (4, 3)
    assert again.commit(4, [payload]) == 2 - renames
    assert rows_of_files(path) == [0, 1, 100, 101]
    assert (again.newest_begun(), again.newest_committed()) == (4, 4)
    assert names_in(path) == ["3", "4"]


def test_a_job_does_not_start_over_rows_that_only_a_mark_tells_of(tmp_path: Path) -> None:
    """They count like those of a commit; the mark says who made it (P21)."""
    path = tmp_path / "f"
    sink = opened(path)
    sink.commit(3, [flushed(sink, 0, tmp_path / "rows")])
    killed_in_commit(path, 4, flushed(sink, 1, tmp_path / "rows"), 1)
    (found,) = Files(str(path)).commits(sink._context)
    assert (found.job_id, found.job_name, found.checkpoint_id) == (JOB, "orders", 4)


def test_a_mark_that_becomes_an_entry_while_it_is_looked_up_is_found(tmp_path: Path) -> None:
    """A live driver may enter the epoch at any moment."""

    path = tmp_path / "f"
    driver = opened(path)
    payload = flushed(driver, 0, tmp_path / "rows")
    killed_in_commit(path, 1, payload, 1)
    files = FaultyDisk().before(
        "read", lambda _: driver.commit(1, [payload]), path=lambda path: path.endswith(".begun")
    )
    context = sink_context(attempt=2, file_system=lambda _: files)
    assert [one.checkpoint_id for one in Files(str(path)).commits(context)] == [1]


def test_an_older_commit_does_not_take_back_the_mark_of_a_newer_one(tmp_path: Path) -> None:
    """A driver that was away for a while marks its epoch late (P18, P21)."""
    path = tmp_path / "f"
    sink = opened(path)
    old, new = (flushed(sink, position, tmp_path / "rows") for position in (0, 1))
    killed_in_commit(path, 2, new, 1)
    killed_in_commit(path, 1, old, 2)
    assert opened(path, attempt=2).newest_begun() == 2


def test_marks_of_given_up_epochs_go_with_a_later_commit(tmp_path: Path) -> None:
    """A user who accepts duplicates goes on above them."""
    path = tmp_path / "f"
    sink = opened(path)
    killed_in_commit(path, 4, flushed(sink, 0, tmp_path / "rows"), 1)
    assert names_in(path) == ["4.begun"]
    sink.commit(5, [flushed(sink, 1, tmp_path / "rows")])
    assert names_in(path) == ["5"]


def test_a_directory_without_marks_is_read_as_before(tmp_path: Path) -> None:
    """Earlier versions entered an epoch once its files were shown; the next commits go on there."""
    path = tmp_path / "f"
    sink = opened(path)
    old, new = (flushed(sink, position, tmp_path / "rows") for position in (0, 1))
    for epoch in (7, 8):
        (ledger_of(path) / f"{epoch}").write_bytes(
            json.dumps(
                {
                    "files": 2,
                    "commit": {
                        "timestamp_ms": epoch,
                        "job_id": JOB,
                        "job_name": "orders",
                        "job_directory": "",
                        "sink": "out",
                        "checkpoint_id": epoch,
                        "attempt": 1,
                        "joins": False,
                    },
                }
            ).encode()
        )
    assert (sink.newest_begun(), sink.newest_committed()) == (8, 8)
    assert [one.checkpoint_id for one in sink.commits(sink._context)] == [8]
    assert sink.commit(8, [old]) == 0
    assert sink.commit(9, [new]) == 2
    assert names_in(path) == ["7", "8", "9"]
