"""A task's snapshots over hand-made directories and a real query (P3, P4, P10, P12, P43).

The hand-made directory looks as Spark leaves it: one operator with one partition, and a changelog
for each batch. Its state is not real, but every byte counts.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession
from tests.kit.rig import Landing, Rig, hashes
from tests.kit.task_snapshots import FILES, SCHEMA_FILE, FakeQuery, SnapshotWorld, restored
from tests.spark.queries import QUERIES

from weir.core.messages.task import Drained, RecordsEnded
from weir.core.types import (
    Committable,
    SnapshotKind,
    StateHandle,
    TaskState,
)
from weir.errors import CheckpointDamagedError, StorageError
from weir.spark.state.log_entries import log_offset
from weir.storage.file_systems import Transfer
from weir.storage.filesystem import FileSystem
from weir.storage.local import LocalFileSystem


@pytest.fixture
def query(tmp_path: Path) -> FakeQuery:
    """A query after three batches."""
    made = FakeQuery(tmp_path / "work" / "v")
    for _ in range(3):
        made.step()
    return made


@pytest.fixture
def world(query: FakeQuery, tmp_path: Path) -> SnapshotWorld:
    """Snapshots into a directory of the same file system."""
    return SnapshotWorld(query, tmp_path / "checkpoints")


@pytest.fixture
def far_world(query: FakeQuery) -> Iterator[SnapshotWorld]:
    """Snapshots into a directory of another file system."""
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir() or shared_memory.stat().st_dev == query.path.stat().st_dev:
        pytest.skip("there is no second file system here")
    directory = Path(tempfile.mkdtemp(dir=shared_memory))
    yield SnapshotWorld(query, directory)
    shutil.rmtree(directory)


def keys(state: TaskState) -> set[str]:
    """The keys of the state files."""
    return {handle.key for handle in state.files}


# -- what a snapshot holds -------------------------------------------------------------------------


def test_a_snapshot_holds_the_log_entries_and_the_named_state_files(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """Exactly what a restart needs; small entries are inline, state is in files with checksums
    (P3)."""
    state = world.take(1)
    entries = {"metadata", "offsets/1", "offsets/2", "commits/2"}
    assert set(state.entries) == entries | {f"sources/1/{n}" for n in range(3)}
    assert state.entries["offsets/2"] == (query.path / "offsets/2").read_text()
    schemas = {"state/0/_metadata/metadata", SCHEMA_FILE}
    assert keys(state) == schemas | {query.changelog(n) for n in range(3)}
    world.verify(1, state)
    assert (state.vertex, state.position, state.fully_finished) == ("v", 2, False)


def test_entries_of_sources_above_the_position_are_left_out(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """A batch that had not started is not part of the snapshot (P3)."""
    query.write("sources/1/3", "v1\nlater")
    assert "sources/1/3" not in world.take(1).entries


def test_state_files_that_no_commit_names_are_left_out(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """A stage that ran twice leaves a second changelog of a version: only the id in ``commits/b``
    counts (P4)."""
    query.write(f"state/0/0/3_{UUID(int=99)}.changelog", "of a task that was run again")
    assert not [key for key in keys(world.take(1)) if str(UUID(int=99)) in key]


def test_the_chain_of_changelogs_ends_at_the_newest_snapshot_of_the_state(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """A .zip and the SST files that it names replace all changelogs before it."""
    snapshot = query.snapshot_state(1)
    state_keys = {key for key in keys(world.take(1)) if key.startswith("state/0/0/")}
    assert state_keys == {*snapshot, query.changelog(2)}


def test_staged_output_is_flushed_and_its_completed_payloads_are_kept(world: SnapshotWorld) -> None:
    """In the asynchronous part, not while the query rests."""
    world.snapshots.take(world.effect(1))
    assert world.flushed == []
    state, metrics = world.snapshots.proceed(1)
    assert [item.payload for item in state.committables] == [{"n": 1, "flushed": True}]
    assert metrics.start_delay_ms == 250
    assert metrics.checkpointed_size == state.state_size


def test_a_finished_snapshot_has_no_files(world: SnapshotWorld) -> None:
    """Its operators are fully finished, so a restore does not start the task; committables stay."""
    state = world.take(1, finished=True)
    assert (state.files, state.entries, state.fully_finished) == ((), {}, True)
    assert len(state.committables) == 1
    assert world.shared(1) == []


def test_a_snapshot_before_the_first_batch_has_no_files(tmp_path: Path) -> None:
    """It can only start from the beginning."""
    state = SnapshotWorld(FakeQuery(tmp_path / "v"), tmp_path / "checkpoints").take(1)
    assert (state.position, state.files, state.entries) == (-1, (), {})
    assert not state.fully_finished


def test_a_query_without_state_has_no_state_files(tmp_path: Path) -> None:
    """It has only log entries."""
    query = FakeQuery(tmp_path / "v")
    query.step()
    query.write("commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
    assert SnapshotWorld(query, tmp_path / "checkpoints").take(1).files == ()


# -- incremental -----------------------------------------------------------------------------------


def test_the_second_checkpoint_writes_only_new_files(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """Files of the confirmed base are referred to in place."""
    first = world.take(1)
    world.snapshots.confirm(1)
    query.step()
    world.snapshots.take(world.effect(2))
    second, metrics = world.snapshots.proceed(2)
    assert len(world.shared(2)) == 1
    assert keys(second) == keys(first) | {query.changelog(3)}
    assert {handle.path for handle in first.files} < {handle.path for handle in second.files}
    assert metrics.checkpointed_size < second.state_size
    world.verify(2, second)


def test_the_base_is_never_a_pending_checkpoint(world: SnapshotWorld, query: FakeQuery) -> None:
    """An acknowledged checkpoint may still be deleted until the task is notified of its completion
    (P4)."""
    world.take(1)
    query.step()
    second = world.take(2)
    assert all(handle.path.startswith("shared/2/") for handle in second.files)


def test_the_base_is_the_newest_confirmed_checkpoint(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """Even if it was confirmed after a later checkpoint had been taken."""
    world.take(1)
    query.step()
    world.take(2)
    world.snapshots.confirm(1)
    query.step()
    third = world.take(3)
    assert {handle.path.split("/")[1] for handle in third.files} == {"1", "3"}
    assert len(world.shared(3)) == 2


def test_a_confirmation_of_an_unknown_checkpoint_changes_nothing(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """For example a checkpoint that the task was not part of."""
    first = world.take(1)
    world.snapshots.confirm(1)
    world.snapshots.confirm(7)
    assert world.take(8).files == first.files


def test_a_savepoint_is_full(world: SnapshotWorld, query: FakeQuery, tmp_path: Path) -> None:
    """It refers to none of the job's files and is complete when moved away (P14)."""
    first = world.take(1)
    world.snapshots.confirm(1)
    target = tmp_path / "savepoint"
    target.mkdir()
    state = world.take(2, kind=SnapshotKind.SAVEPOINT, target=str(target))
    assert keys(state) == keys(first)
    assert all("/" not in handle.path for handle in state.files)
    moved = target.rename(tmp_path / "moved")
    shutil.rmtree(world.base)
    world.verify(2, state, str(moved))


def test_a_savepoint_has_copies_of_what_is_staged(world: SnapshotWorld, tmp_path: Path) -> None:
    """They are verified and deleted like its other files (P14)."""
    staged = tmp_path / "part-0.parquet"
    staged.write_text("rows")
    target = tmp_path / "savepoint"
    target.mkdir()
    item = Committable(sink="out", position=1, payload={"path": str(staged)})
    effect = replace(
        world.effect(2, kind=SnapshotKind.SAVEPOINT, target=str(target)), committables=(item,)
    )
    world.snapshots.take(effect)
    state, metrics = world.snapshots.proceed(2)
    staged.unlink()
    world.verify(2, state, str(target))
    (handle,) = state.committables[0].files
    assert (target / handle.path).read_text() == "rows"
    assert handle in state.all_files
    assert metrics.checkpointed_size == state.state_size
    (target / handle.path).write_text("soil")
    with pytest.raises(CheckpointDamagedError, match="has checksum"):
        world.verify(2, state, str(target))


def test_a_savepoint_is_not_a_base(world: SnapshotWorld, tmp_path: Path) -> None:
    """The user may delete it."""
    (tmp_path / "savepoint").mkdir()
    world.take(1, kind=SnapshotKind.SAVEPOINT, target=str(tmp_path / "savepoint"))
    assert all(handle.path.startswith("shared/2/") for handle in world.take(2).files)


def test_a_changed_schema_is_written_again(world: SnapshotWorld, query: FakeQuery) -> None:
    """Schemas keep their names, so they are compared with the schemas recorded in the base."""
    first = world.take(1)
    world.snapshots.confirm(1)
    (query.path / SCHEMA_FILE).unlink()
    query.write(SCHEMA_FILE, "schemb")
    second = world.take(2)
    assert [handle.path for handle in second.files if handle.key == SCHEMA_FILE] == [
        f"shared/2/v~{SCHEMA_FILE.replace('/', '~')}"
    ]
    world.verify(1, first)
    world.verify(2, second)


# -- dropping --------------------------------------------------------------------------------------


def test_dropping_deletes_exactly_what_the_snapshot_wrote(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """The base's files and the query's own stay."""
    first = world.take(1)
    world.snapshots.confirm(1)
    query.step()
    before = hashes(query.path)
    world.snapshots.take(world.effect(2))
    world.snapshots.drop(2)
    assert world.shared(2) == []
    assert hashes(query.path) == before
    world.verify(1, first)


def test_an_acknowledged_snapshot_that_is_dropped_is_not_a_base(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """A late confirmation of it has no effect."""
    world.take(1)
    world.snapshots.drop(1)
    world.snapshots.confirm(1)
    assert all(handle.path.startswith("shared/2/") for handle in world.take(2).files)


def test_a_snapshot_that_ended_before_it_is_dropped_loses_what_it_wrote(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """Its checkpoint was aborted during the last part; the base's files and the query's own stay
    (P43)."""
    first = world.take(1)
    world.snapshots.confirm(1)
    query.step()
    before = hashes(query.path)
    world.take(2)
    assert world.shared(2) != []
    world.snapshots.drop(2)
    assert world.shared(2) == []
    assert hashes(query.path) == before
    world.verify(1, first)


def test_a_confirmed_snapshot_that_is_dropped_loses_nothing(world: SnapshotWorld) -> None:
    """Its checkpoint is complete and owns its files (P17)."""
    state = world.take(1)
    world.snapshots.confirm(1)
    world.snapshots.drop(1)
    world.verify(1, state)


# -- vanished files --------------------------------------------------------------------------------


def test_a_listed_file_that_vanished_fails_the_snapshot(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """It is named, nothing is acknowledged, and the pinned files can be dropped (P4)."""
    (query.path / query.changelog(1)).unlink()
    with pytest.raises(StorageError, match=r"2_.*\.changelog"):
        world.snapshots.take(world.effect(1))
    world.snapshots.drop(1)
    assert world.shared(1) == []


@pytest.mark.parametrize("key", ["offsets/1", "commits/2", "metadata", "sources/1/1"])
def test_a_log_entry_that_vanished_fails_the_snapshot(
    world: SnapshotWorld, query: FakeQuery, key: str
) -> None:
    """Without it Spark could not continue, or would read files twice."""
    (query.path / key).unlink()
    with pytest.raises(StorageError):
        world.snapshots.take(world.effect(1))


def test_files_are_pinned_while_the_query_rests(world: SnapshotWorld, query: FakeQuery) -> None:
    """Spark may clean up its directory before the asynchronous part."""
    world.snapshots.take(world.effect(1))
    shutil.rmtree(query.path / "state")
    state, _ = world.snapshots.proceed(1)
    world.verify(1, state)


def test_on_another_device_files_are_pinned_and_then_copied(
    far_world: SnapshotWorld, query: FakeQuery
) -> None:
    """They survive the deletion of the originals between the two parts; the pins are removed."""
    far_world.snapshots.take(far_world.effect(1))
    assert far_world.shared(1) == []
    shutil.rmtree(query.path / "state")
    state, _ = far_world.snapshots.proceed(1)
    far_world.verify(1, state)
    assert len(far_world.shared(1)) == 5
    assert [path.name for path in query.path.parent.iterdir()] == ["v"]


def test_on_another_device_a_dropped_snapshot_takes_its_pins_away(
    far_world: SnapshotWorld, query: FakeQuery
) -> None:
    """Whether or not its files had been copied."""
    far_world.snapshots.take(far_world.effect(1))
    far_world.snapshots.drop(1)
    assert [path.name for path in query.path.parent.iterdir()] == ["v"]
    assert far_world.shared(1) == []


class OtherFileSystem(LocalFileSystem):
    """A file system without links, such as HDFS."""


def test_without_links_a_file_that_vanished_before_it_was_copied_fails_the_snapshot(
    query: FakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing keeps the file, so its loss must be noticed (P4)."""
    near, far = LocalFileSystem(), OtherFileSystem()

    def fs(path: str) -> FileSystem:
        return near if path.startswith(str(query.path.parent)) else far

    world = SnapshotWorld(query, tmp_path / "checkpoints")
    monkeypatch.setattr(Transfer, "can_link", lambda *_: False)
    world.transfer._file_system = fs
    world.snapshots.take(world.effect(1))
    (query.path / query.changelog(1)).unlink()
    with pytest.raises(StorageError, match="vanished before it could be copied"):
        world.snapshots.proceed(1)


# -- restoring -------------------------------------------------------------------------------------


def test_a_restored_directory_has_the_same_files_and_a_snapshot_of_it_is_the_same(
    world: SnapshotWorld, query: FakeQuery, tmp_path: Path
) -> None:
    """What the new directory's commit log no longer names is derived from the files' names."""
    state = world.take(1)
    target = tmp_path / "work" / "2" / "v"
    directory = restored(world, 1, state, target)
    assert hashes(target) == {
        name: text
        for name, text in hashes(query.path).items()
        if name not in ("offsets/0", "commits/0", "commits/1")
    }
    again = FakeQuery.__new__(FakeQuery)
    again.path, again.directory, again.position = target, directory, 2
    second = SnapshotWorld(again, world.base, restored=state)
    again.step()
    assert keys(second.take(2)) == keys(state) | {again.changelog(3)}
    assert len(second.shared(2)) == 1


def test_what_runs_in_a_restored_directory_leaves_the_checkpoint_alone(
    world: SnapshotWorld, tmp_path: Path
) -> None:
    """Entries are written again, and edits are new files renamed over the linked files."""
    state = world.take(1)
    before = hashes(world.base)
    directory = restored(world, 1, state, tmp_path / "restored")
    directory.write_drain_entry(2)
    directory.prune_sources(2)
    shutil.rmtree(tmp_path / "restored" / "state")
    assert hashes(world.base) == before
    world.verify(1, state)


def test_large_and_compacted_source_entries_travel_as_files(
    world: SnapshotWorld, query: FakeQuery
) -> None:
    """They would bloat the metadata; the newest compacted entry replaces all before it."""
    query.write("sources/1/1.compact", "v1\nfiles 0 and 1")
    (query.path / "sources/1/1").unlink()
    query.write("sources/1/2", "v1\n" + "x" * 30_000)
    state = world.take(1)
    sources = {key for key in (*keys(state), *state.entries) if key.startswith("sources/")}
    assert sources == {"sources/1/1.compact", "sources/1/2"}
    assert sources <= keys(state)
    world.verify(1, state)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ('{"logOffset":7}', 7),
        ('{"control":0}', None),
        ("3", None),
        ("-", None),
        ('{"logOffset":7,"x":1}', None),
    ],
)
def test_only_file_sources_have_a_log_offset(offset: str, expected: int | None) -> None:
    """Other sources have offsets of their own kind, which say nothing about ``sources/K``."""
    assert log_offset(offset) == expected


# -- on real Spark ---------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(
    "name", ["windows", pytest.param("a left outer join", marks=pytest.mark.slow)]
)
def test_a_real_query_continues_exactly_from_an_incremental_snapshot_of_a_restored_one(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Snapshot, restore, a second incremental snapshot, restore again: the rows equal the
    batch's."""
    landing = Landing(tmp_path / "in")
    landing.land(8)
    query = QUERIES[name]
    rows = query.batch(landing.table(spark)) - query.batch(landing.table(spark))
    state: TaskState | None = None
    directory = tmp_path / "work" / "0"
    for checkpoint_id, position in ((1, 2), (2, 5)):
        job, sink = query.job(landing)
        start = -1 if state is None else state.position
        rig = Rig(spark, job, directory, position=start, on_plan=lambda now, at=position: now < at)
        fake = FakeQuery.__new__(FakeQuery)
        fake.path, fake.directory, fake.position = directory, rig.directory, position
        world = SnapshotWorld(fake, tmp_path / "checkpoints", restored=state)
        with rig:
            rig.wait_held(position)
            base, state = state, world.take(checkpoint_id)
            rows += sink.rows()
        world.verify(checkpoint_id, state)
        if base is not None:
            assert {handle.path for handle in state.files} & {handle.path for handle in base.files}
        directory = tmp_path / "work" / str(checkpoint_id)
        restored(world, checkpoint_id, state, directory)
    job, sink = query.job(landing)
    with Rig(spark, job, directory, position=5) as rig:
        ended = rig.wait_for(RecordsEnded)
        rig.drain(ended.position)
        rig.wait_for(Drained)
    assert rows + sink.rows() == query.batch(landing.table(spark))


def test_names_stay_within_what_a_file_system_takes(query: FakeQuery, tmp_path: Path) -> None:
    """However long the names of step and key are; common prefixes stay distinct, and files are
    dropped as written."""
    long = [f"operators/{'u' * 100}/{'0' * 40}{name}" for name in ("a", "b")]
    for key in long:
        query.write(key, key)
    world = SnapshotWorld(
        query,
        tmp_path / "checkpoints",
        vertex="v" * 100,
        snapshot_operators=lambda _: ({}, long),
    )
    state = world.take(1)
    assert set(long) < keys(state)
    paths = [handle.path.rpartition("/")[2] for handle in state.files]
    assert len(set(paths)) == len(paths)
    assert max(map(len, paths)) <= 240
    assert world.shared(1) == sorted(paths)
    world.snapshots.drop(1)
    assert world.shared(1) == []


def test_handles_name_files_by_key_and_place(world: SnapshotWorld, query: FakeQuery) -> None:
    """The key is the identity in the task's directory; the path is the location in the
    checkpoint."""
    state = world.take(1)
    (handle,) = [handle for handle in state.files if handle.key == query.changelog(0)]
    assert handle == StateHandle(
        key=query.changelog(0),
        path=f"shared/1/v~{query.changelog(0).replace('/', '~')}",
        size=len("changes-0"),
        checksum=FILES.checksum(str(query.path / query.changelog(0)))[1],
    )
