"""Jobs whose checkpoints and savepoints lie in an object store: kills, takeovers, a failing store.

No Hadoop client is on the class path. The server is moto, an emulation of S3, in this process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.test_killed_operators import BOUNDED, UNBOUNDED
from tests.e2e.test_killed_operators import PIPELINE as OPERATORS_PIPELINE
from tests.e2e.test_killed_operators import assert_exact as assert_operators_exact
from tests.e2e.test_two_drivers import NOTICES_S, put_to_sleep, wake
from tests.kit.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore, Request
from tests.kit.place import Place, Run
from tests.kit.waiting import wait_until

from weir.storage.file_systems import FileSystems
from weir.storage.filesystem import FileSystem
from weir.storage.snapshots import Snapshots

pytestmark = [pytest.mark.spark, pytest.mark.kill]


class StoredPlace:
    """A place whose checkpoints and savepoints are in a bucket of its own."""

    def __init__(self, place: Place, store: ObjectStore) -> None:
        self.place = place
        self.store = store
        self.bucket = store.bucket()
        self.base = f"{self.bucket}/checkpoints"
        self.fs = FileSystems()(self.base)
        self.arguments = [
            word
            for name, path in (
                ("execution.checkpointing.dir", self.base),
                ("execution.checkpointing.savepoint-dir", f"{self.bucket}/savepoints"),
            )
            for word in ("--conf", f"{name}={path}")
        ]

    def start(self, *arguments: str) -> Run:
        """Start ``weir run``."""
        return self.place.start(*self.arguments, *arguments)

    def finish(self, *arguments: str) -> Run:
        """Run ``weir run`` to a successful end; every sink must be exact."""
        run = self.place.finish(*self.arguments, *arguments)
        self.place.assert_exact()
        return run

    def die_at(self, point: str, nth: int) -> None:
        """Run until SIGKILL."""
        self.place.die_at(point, nth, *self.arguments)

    def weir(self, *arguments: str) -> str:
        """The output of a short command that must succeed."""
        done = self.place.weir(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def job_directory(self) -> str:
        """The directory of the only job."""
        (job,) = [one.name for one in self.fs.list(self.base) if len(one.name) == 32]
        return f"{self.base}/{job}"

    def newest_record(self) -> tuple[str, dict[str, Any]]:
        """Name and content of the newest record of the job's log."""
        log = f"{self.job_directory()}/log"
        name = self.fs.list(log)[-1].name
        return name, json.loads(self.fs.read(f"{log}/{name}"))

    def assert_retained_are_intact(self) -> list[str]:
        """Read every file of every checkpoint that the newest record names; return their paths."""
        snapshots = Snapshots(FileSystems())
        retained = self.newest_record()[1]["checkpoints"]
        for one in retained:
            snapshots.verify(snapshots.read(one["path"], expected_checksum=one["checksum"]))
        return [one["path"] for one in retained]


@pytest.fixture
def stored(place: Place, object_store: ObjectStore) -> Iterator[StoredPlace]:
    """Commands find the store by the environment that the fixture ``object_store`` has set."""
    yield StoredPlace(place, object_store)
    # They must not wait for a store that is away.
    object_store.heal()
    place.clear()


def contents(fs: FileSystem, directory: str) -> Iterator[tuple[str, bytes]]:
    """Every file below a directory."""
    for entry in fs.list(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            yield from contents(fs, path)
        else:
            yield path, fs.read(path)


@pytest.mark.slow
def test_a_killed_driver_resumes_from_the_store_and_every_sink_is_exact(
    stored: StoredPlace,
) -> None:
    """No credentials are in records, snapshots, output and logs."""
    place = stored.place
    place.land(5)
    stored.die_at("after-the-record", 2)
    run = stored.finish()
    assert "recovered from checkpoint" in run.output
    stored.assert_retained_are_intact()
    written = dict(contents(stored.fs, stored.base))
    assert [path for path in written if path.endswith("_metadata")]
    logs = [path for path in place.directory.rglob("*") if path.is_file()]
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert not [path for path, data in written.items() if secret.encode() in data]
        assert not [path for path in logs if secret.encode() in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("after-the-synchronous-part", 4),
        ("before-the-acknowledgement", 5),
        ("before-the-metadata", 3),
        ("before-the-record", 3),
        ("between-two-sinks", 2),
        ("before-the-end-is-recorded", 1),
    ],
)
def test_wherever_a_driver_is_killed_no_row_is_lost_or_doubled(
    stored: StoredPlace, point: str, nth: int
) -> None:
    """Also while it recovers."""
    stored.place.land(8)
    stored.die_at(point, nth)
    stored.die_at("before-a-recommit" if "record" in point else "within-the-restore", 1)
    assert "recovered from checkpoint" in stored.finish().output


@pytest.mark.slow
def test_of_two_drivers_of_one_bucket_the_older_one_completes_nothing_more(
    stored: StoredPlace,
) -> None:
    """The second one is refused, takes over while the first one sleeps, and finishes; the woken
    one changes nothing."""
    stored.place.land(24)
    older = stored.start()
    older.wait_for(r"checkpoint 2 completed")
    assert f"REST server at {older.address}" in stored.start().error()
    sleeping = put_to_sleep(older)
    told, log = older.output, f"{stored.job_directory()}/log"
    recorded = {
        json.loads(stored.fs.read(f"{log}/{one.name}"))["completed"] for one in stored.fs.list(log)
    }
    assert "recovered from checkpoint" in stored.finish("--takeover").output
    ended = stored.newest_record()
    for process in sleeping:
        wake(process)
    assert older.wait(NOTICES_S) == 1, older.story()
    assert "has finished" not in older.output
    completed = re.findall(r"checkpoint (\d+) completed", older.output.removeprefix(told))
    assert {int(one) for one in completed} <= recorded, older.story()
    older.wait_for_no_processes(NOTICES_S)
    assert stored.newest_record() == ended
    stored.place.assert_exact()
    stored.assert_retained_are_intact()


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["/shared/", "/_metadata", "/log/", "/ids/"])
def test_a_store_that_answers_503_for_ten_seconds_is_ridden_out(
    stored: StoredPlace, asked: str
) -> None:
    """From the third put of each kind on: the job goes on by itself, without a failure."""
    seen = 0

    def fall(request: Request) -> None:
        nonlocal seen
        seen += request.kind == "PUT" and asked in request.key
        if seen == 3:
            seen += 1
            stored.store.go_down(10)

    stored.store.before = fall
    stored.place.land(8)
    run = stored.finish()
    assert seen > 3
    assert "RESTARTING" not in run.output
    assert "Traceback" not in run.output + run.errors
    stored.assert_retained_are_intact()


@pytest.mark.slow
def test_a_job_on_a_slow_store_goes_on_and_its_checkpoints_are_intact(stored: StoredPlace) -> None:
    """Each answer takes half a second."""
    stored.place.land(8)
    run = stored.start()
    run.wait_for(r"checkpoint 1 completed")
    stored.store.delay_s = 0.5
    assert run.wait() == 0, run.story()
    stored.place.assert_exact()
    stored.assert_retained_are_intact()


@pytest.mark.slow
def test_a_savepoint_in_the_store_stops_starts_and_is_disposed_of(stored: StoredPlace) -> None:
    """Stopped with a savepoint, inspected, resumed from it under its own name, then deleted."""
    stored.place.land(8)
    run = stored.place.start(*stored.arguments, environment=UNBOUNDED)
    run.wait_for(r"checkpoint 2 completed")
    told = stored.weir("stop", "numbers", "--address", run.address)
    savepoint = re.search(rf"{stored.bucket}/savepoints/\S+", told)
    assert savepoint is not None, told
    assert run.wait() == 0, run.story()
    assert "by_minute" in stored.weir("inspect", savepoint[0])
    stored.finish("--from-savepoint", savepoint[0])
    stored.weir("savepoint", "--dispose", savepoint[0])
    wait_until(lambda: stored.fs.status(savepoint[0]) is None, "the savepoint is gone")


@pytest.mark.slow
def test_python_operators_resume_from_unaligned_checkpoints_in_the_store(
    stored: StoredPlace,
) -> None:
    """Their state is in files of their own; what is unread goes up with the checkpoint."""
    place = stored.place
    unaligned = ("--conf", "execution.checkpointing.unaligned.enabled=true")
    place.land(6)
    place.die_at(
        "after-the-record",
        3,
        *stored.arguments,
        *unaligned,
        pipeline=OPERATORS_PIPELINE,
        environment=UNBOUNDED,
    )
    place.land(6)
    run = place.finish(
        *stored.arguments, *unaligned, pipeline=OPERATORS_PIPELINE, environment=BOUNDED
    )
    assert "recovered from checkpoint" in run.output
    assert_operators_exact(place)
    stored.assert_retained_are_intact()
