"""The simulated disk: what a crash loses, and how operations of processes fail."""

from __future__ import annotations

from random import Random

import pytest
from tests.sim.greenlets import (
    LIMIT_US,
    LOSES_ALL,
    LOSES_NOTHING,
    NoWatcher,
    ScriptedFaults,
    file_system,
    new_disk,
    run_all,
)

from weir.errors import LostWriteError, StorageError
from weir.sim.engine.disk import Disk
from weir.sim.engine.disk_faults import SlowPhases, damaged
from weir.sim.engine.loop import Loop, Process
from weir.storage.filesystem import CreateResult


def test_a_crash_takes_away_what_was_not_synced() -> None:
    """A new, unsynced file is gone, from its directory too."""
    disk = new_disk()
    disk.put("/d/new", b"1", durable=False)
    disk.crash(LOSES_ALL)
    assert disk.files == {}
    assert disk.names("/d") == []


def test_a_crash_takes_away_nothing_that_was_synced() -> None:
    """Synced, durably written and conditionally created files stay."""
    disk = new_disk()
    disk.put("/d/synced", b"1", durable=False)
    disk.sync("/d/synced")
    disk.put("/d/written", b"2", durable=True)
    disk.create("/d/created", b"3")
    disk.crash(LOSES_ALL)
    assert disk.files == {"/d/synced": b"1", "/d/written": b"2", "/d/created": b"3"}


def test_a_crash_may_keep_what_was_not_synced() -> None:
    """Whether an unsynced change survives is up to chance, as on a real disk."""
    disk = new_disk()
    disk.put("/d/new", b"1", durable=False)
    disk.crash(LOSES_NOTHING)
    assert disk.files == {"/d/new": b"1"}


def test_a_crash_tears_some_of_what_was_not_synced() -> None:
    """A file that survives may end early, under both its names; what was synced is whole."""
    ends = set()
    for seed in range(40):
        disk = Disk(NoWatcher(), tears=Random(seed))
        disk.put("/new", b"0123456789", durable=False)
        disk.link("/new", "/linked")
        disk.put("/synced", b"0123456789", durable=False)
        disk.sync("/synced")
        disk.link("/synced", "/again")
        disk.crash(LOSES_NOTHING)
        assert disk.files["/linked"] == disk.files["/new"]
        assert disk.files["/synced"] == disk.files["/again"] == b"0123456789"
        assert b"0123456789".startswith(disk.files["/new"])
        ends.add(len(disk.files["/new"]))
    assert len(ends) > 3 and 10 in ends


def test_a_slow_disk_answers_late_for_a_while() -> None:
    """Only within its slow phases, which end with the faults."""
    slow = next(
        one for seed in range(100) if (one := SlowPhases(Random(seed), 10_000_000)).begin_us
    )
    (begins_us, *_) = slow.begin_us
    assert max(slow.late_us(begins_us) for _ in range(20)) > 0
    assert slow.late_us(10_000_000) == 0
    assert SlowPhases(Random(0), 0).begin_us == []


@pytest.mark.parametrize("others", [(), (b"another file",)])
def test_a_damaged_file_has_other_content(others: tuple[bytes, ...]) -> None:
    """It is torn, has a wrong byte, or is what was meant for another file."""
    made = {damaged(b"content", Random(seed), (*others, b"content")) for seed in range(50)}
    assert b"content" not in made
    assert made.issuperset(others)
    assert {len(one) for one in made} >= {3, 7}


def test_a_crash_brings_back_the_durable_content_below_an_unsynced_change() -> None:
    """A file that was overwritten twice without a sync gets its content from before both back."""
    disk = new_disk()
    disk.put("/f", b"durable", durable=True)
    disk.put("/f", b"volatile", durable=False)
    disk.put("/f", b"more volatile", durable=False)
    disk.crash(LOSES_ALL)
    assert disk.files == {"/f": b"durable"}


def test_a_failed_sync_loses_the_file_whatever_a_later_one_says() -> None:
    """The file is lost under both of its names; once rewritten it can be synced (PROTOCOL P23)."""
    loop, disk = Loop(), new_disk()
    disk.put("/staged", b"1", durable=False)
    fs = file_system(disk, loop, faults=ScriptedFaults(loses_writes=True))
    raised: list[StorageError] = []

    def sync() -> None:
        try:
            fs.sync(["/staged"])
        except LostWriteError as error:
            raised.append(error)

    run_all(loop, sync)
    assert len(raised) == 1
    disk.link("/staged", "/kept")
    disk.put("/rewritten", disk.files["/staged"], durable=False)
    for path in ("/staged", "/kept", "/rewritten"):
        disk.sync(path)
    assert [path for path in ("/staged", "/kept", "/rewritten") if disk.is_volatile(path)] == [
        "/staged",
        "/kept",
    ]
    disk.crash(LOSES_ALL)
    assert disk.files == {"/rewritten": b"1"}


def test_a_file_whose_sync_failed_as_it_was_made_is_there_until_a_crash() -> None:
    """Created or written, it can be read, and no later sync makes it durable (PROTOCOL P23)."""
    loop, disk = Loop(), new_disk()
    fs = file_system(disk, loop, faults=ScriptedFaults(loses_writes=True))

    def make() -> None:
        with pytest.raises(LostWriteError):
            fs.create("/created", b"1")
        with pytest.raises(LostWriteError):
            fs.write("/written", b"2")
        assert fs.create("/created", b"3") is CreateResult.ALREADY_EXISTS

    run_all(loop, make)
    assert disk.files == {"/created": b"1", "/written": b"2"}
    for path in list(disk.files):
        disk.sync(path)
    disk.crash(LOSES_ALL)
    assert disk.files == {}


def test_a_crash_brings_back_a_file_whose_deletion_was_not_synced() -> None:
    """The file exists again, and its directory lists it."""
    disk = new_disk()
    disk.put("/d/f", b"1", durable=True)
    disk.delete("/d/f")
    disk.crash(LOSES_ALL)
    assert disk.files == {"/d/f": b"1"}
    assert disk.names("/d") == ["f"]


def test_what_a_crash_has_left_is_durable() -> None:
    """A second crash loses nothing."""
    disk = new_disk()
    disk.put("/f", b"1", durable=False)
    disk.crash(LOSES_NOTHING)
    assert not disk.is_volatile("/f")
    disk.crash(LOSES_ALL)
    assert disk.files == {"/f": b"1"}


def test_a_conditional_create_leaves_an_existing_file_alone() -> None:
    """The second create returns ALREADY_EXISTS, and the first one's content stays."""
    disk = new_disk()
    assert disk.create("/f", b"1") is CreateResult.CREATED
    assert disk.create("/f", b"2") is CreateResult.ALREADY_EXISTS
    assert disk.files == {"/f": b"1"}


def test_a_file_enters_only_a_directory_that_is_there() -> None:
    """As on a real disk: a job that forgets to make a directory must not pass here."""
    loop, disk = Loop(), new_disk()
    fs = file_system(disk, loop)

    def make() -> None:
        fs.write("/made", b"1")
        for act in (
            lambda: fs.create("/a/new", b"2"),
            lambda: fs.write("/a/new", b"2"),
            lambda: fs.link_or_copy("/made", "/a/new"),
            lambda: fs.rename("/made", "/a/new"),
            lambda: fs.make_directory("/a/b", below="/a"),
        ):
            with pytest.raises(StorageError, match="/a is missing"):
                act()

    run_all(loop, make)
    assert disk.files == {"/made": b"1"}


def test_an_operation_that_fails_before_it_starts_has_no_effect() -> None:
    """A create that fails outright makes no file."""
    disk, loop = new_disk(), Loop()
    fs = file_system(disk, loop, faults=ScriptedFaults(before=("create",)))

    def create() -> None:
        with pytest.raises(StorageError, match="failed"):
            fs.create("/f", b"1")

    run_all(loop, create)
    assert disk.files == {}


def test_a_create_in_doubt_took_effect() -> None:
    """The create reports a failure, but the file exists."""
    disk, loop = new_disk(), Loop()
    fs = file_system(disk, loop, faults=ScriptedFaults(after=("create",)))

    def create() -> None:
        with pytest.raises(StorageError, match="unknown outcome"):
            fs.create("/f", b"1")

    run_all(loop, create)
    assert disk.files == {"/f": b"1"}


def test_a_process_can_die_in_the_middle_of_deleting_a_directory() -> None:
    """Files are deleted one by one, so some of them can be left."""
    disk, loop, process = new_disk(), Loop(), Process("p")
    for name in ("a", "b", "c"):
        disk.put(f"/d/{name}", b"1", durable=True)
    fs = file_system(disk, loop, process)
    loop.spawn(process, lambda: fs.delete("/d"))
    loop.run(lambda: "/d/a" not in disk.files, LIMIT_US)
    loop.kill(process)
    loop.run(lambda: False, LIMIT_US)
    assert disk.below("/d") == ["/d/b", "/d/c"]


def test_other_processes_come_between_any_two_operations() -> None:
    """Two processes that each check and then write both find no file."""
    disk, loop, saw = new_disk(), Loop(), []

    def look_then_write() -> None:
        fs = file_system(disk, loop)
        saw.append(fs.status("/f"))
        fs.write("/f", b"1")

    run_all(loop, look_then_write, look_then_write)
    assert saw == [None, None]


def test_syncing_a_file_that_is_gone_is_an_error() -> None:
    """A missing file is never reported as durable."""
    disk, loop = new_disk(), Loop()

    def sync() -> None:
        with pytest.raises(StorageError, match="vanished"):
            file_system(disk, loop).sync(["/f"])

    run_all(loop, sync)


def test_a_renamed_file_has_one_of_its_names_after_a_crash() -> None:
    """A crash undoes a rename as a whole, or not at all, unless the new name was synced."""
    names = set()
    for seed in range(20):
        disk = new_disk()
        disk.put("/old", b"1", durable=True)
        disk.rename("/old", "/new")
        disk.crash(Random(seed))
        names.add(tuple(disk.files))
    assert names == {("/old",), ("/new",)}
    disk = new_disk()
    disk.put("/old", b"1", durable=True)
    disk.rename("/old", "/new")
    disk.sync("/new")
    disk.crash(Random(1))
    assert list(disk.files) == ["/new"]
