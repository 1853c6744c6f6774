"""Segments in flight, from a checkpoint to a restored query, in hand-made directories (P27)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.task_snapshots import FakeQuery, SnapshotWorld, restored

from weir.core.types import InFlightSegment, TaskState
from weir.errors import PipelineError
from weir.operators import Operator
from weir.spark.channels import segment_files
from weir.spark.pipeline import Pipeline, ProcessStep

KEYS = [f"in-flight/a_metadata/{4:020d}-{part}.parquet" for part in range(2)]


def segment_of(directory: Path, position: int) -> InFlightSegment:
    """A segment of two files that its producer has written."""
    files = [
        directory / "_channels" / "a_metadata" / str(position) / f"part-{part}.parquet"
        for part in range(2)
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"rows of {position} in {file.name}")
    return InFlightSegment(
        channel="a_metadata",
        position=position,
        size=9,
        payload={"files": [str(file) for file in files]},
    )


def take(
    world: SnapshotWorld, checkpoint_id: int, *segments: InFlightSegment, position: int = -1
) -> TaskState:
    """Run both parts of a snapshot; the producer deletes nothing in between."""
    world.snapshots.take(
        replace(world.effect(checkpoint_id, position=position), in_flight=segments)
    )
    return world.snapshots.proceed(checkpoint_id)[0]


def test_a_restored_query_finds_below_its_directory_what_was_in_flight(tmp_path: Path) -> None:
    """Even before its first batch, and with the attempt that wrote the segment gone."""
    world = SnapshotWorld(FakeQuery(tmp_path / "work" / "v"), tmp_path / "checkpoints")
    segment = segment_of(tmp_path / "work", 4)
    state = take(world, 1, segment)
    for file in segment.payload["files"]:
        Path(file).unlink()
    world.verify(1, state)
    (kept,) = state.in_flight
    assert kept == replace(segment, payload={"keys": KEYS})
    directory = restored(world, 1, state, tmp_path / "again")
    found = [Path(file) for file in segment_files(kept.payload, directory.path)]
    assert all(path.is_relative_to(directory.path) for path in found)
    assert [path.read_text() for path in found] == [
        f"rows of 4 in part-{part}.parquet" for part in range(2)
    ]


@pytest.mark.parametrize("over_a_restore", [False, True])
def test_a_segment_that_is_in_flight_again_is_not_written_again(
    tmp_path: Path, over_a_restore: bool
) -> None:
    """Its files have unique names, so an incremental checkpoint refers to them, whatever the
    producer's name."""
    world = SnapshotWorld(FakeQuery(tmp_path / "work" / "v"), tmp_path / "checkpoints")
    segment = segment_of(tmp_path / "work", 4)
    first = take(world, 1, segment)
    if over_a_restore:
        directory = restored(world, 1, first, tmp_path / "again")
        query = FakeQuery(Path(directory.path))
        world, segment = (
            SnapshotWorld(query, tmp_path / "checkpoints", restored=first),
            first.in_flight[0],
        )
    else:
        world.snapshots.confirm(1)
    second = take(world, 2, segment, segment_of(tmp_path / "work", 5))
    assert [handle.path for handle in second.files[:2]] == [handle.path for handle in first.files]
    assert len(world.shared(2)) == 2
    world.verify(2, second)


def test_an_aborted_snapshot_deletes_its_links_and_not_the_segments(tmp_path: Path) -> None:
    """The consumer still reads them."""
    world = SnapshotWorld(FakeQuery(tmp_path / "work" / "v"), tmp_path / "checkpoints")
    segment = segment_of(tmp_path / "work", 4)
    take(world, 1, segment)
    world.snapshots.drop(1)
    assert world.shared(1) == []
    assert all(Path(file).is_file() for file in segment.payload["files"])


class Split(Operator):
    """An operator with a side output."""

    side_outputs = {"late": "id long"}  # noqa: RUF012


def pipeline(operator: Operator) -> Pipeline:
    """A pipeline with the producer of the segments."""
    step = ProcessStep(
        operator=operator,
        parallelism=1,
        key_by=(),
        has_coordinator=False,
        state_memory_bytes=1 << 20,
    )
    return Pipeline(vertices={}, functions={}, sinks={}, operators={"a_metadata": step})


def test_unread_rows_of_a_side_output_are_not_lost_when_it_is_gone(tmp_path: Path) -> None:
    """The job is refused; with the side output, or one more, it goes on (P27)."""
    world = SnapshotWorld(FakeQuery(tmp_path / "work" / "v"), tmp_path / "checkpoints")
    segment = segment_of(tmp_path / "work", 4)
    segment.payload["tags"] = ["late"]
    state = take(world, 1, segment)
    world.verify(1, state)
    pipeline(Split()).check_in_flight(state)
    refused = "unread rows of the side output 'late' of step 'a_metadata', which no longer declares"
    with pytest.raises(PipelineError, match=refused):
        pipeline(Operator()).check_in_flight(state)
