"""What the logs of a query say of its sources; no JVM is needed.

Which compacted entries Spark looks for after a restore, and where the rows of a batch begin.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.spark.state.directory import QueryDirectory, compaction_distance
from weir.storage.local import LocalFileSystem


@pytest.mark.parametrize(
    ("compacted", "newest", "default", "distance"),
    [
        (9, 9, 10, 10),
        (19, 22, 10, 10),
        # It was once compacted at another distance, which Spark had derived.
        (19, 29, 10, 20),
        (39, 52, 10, 20),
        (39, 40, 10, 10),
        # The setting was changed.
        (39, 40, 15, 20),
        (14, 16, 10, 15),
        (3, 4, 100, 4),
    ],
)
def test_the_distance_is_one_that_the_log_can_have(
    compacted: int, newest: int, default: int, distance: int
) -> None:
    """It divides the number after the compacted entry, lets nothing newer be compacted, and if
    possible equals that of new logs."""
    assert compaction_distance(compacted, newest, default) == distance
    assert (compacted + 1) % distance == 0
    assert compacted + distance > newest


def test_an_older_compacted_entry_is_named_beside_the_restored_one(tmp_path: Path) -> None:
    """As Spark leaves them: it derives the distance from the two newest. Other sources have no
    such log."""
    for name in ("0/19.compact", "0/20", "0/21", "1/4", "2/offset", "3/9.compact"):
        (tmp_path / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sources" / name).write_text("v1")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    QueryDirectory(LocalFileSystem(), str(tmp_path)).keep_compaction(10)
    after = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert after - before == {
        tmp_path / "sources" / name for name in ("0/9.compact", "3/-1.compact")
    }


def test_a_query_without_sources_is_left_alone(tmp_path: Path) -> None:
    """For example a query that only reads channels."""
    QueryDirectory(LocalFileSystem(), str(tmp_path)).keep_compaction(10)
    assert list(tmp_path.iterdir()) == []


def test_the_range_of_a_batch_begins_where_rows_were_read_to_whatever_its_number(
    tmp_path: Path,
) -> None:
    """Batches without rows move only the control input."""
    (tmp_path / "offsets").mkdir()
    channel = '{"channel": "a", "position": %d}'
    for batch, (control, logged, position) in enumerate(
        [(0, 0, 3), (1, 0, 3), (2, 1, 3), (3, 1, 4)]
    ):
        (tmp_path / "offsets" / str(batch)).write_text(
            f'v1\n{{"batchWatermarkMs":0}}\n{{"control": {control}}}\n{{"logOffset":{logged}}}\n'
            + channel % position
        )
    directory = QueryDirectory(LocalFileSystem(), str(tmp_path))
    first, nothing, files, segment, last = map(directory.rows_before, range(5))
    assert first == ()
    assert nothing == files == ('{"logOffset":0}', channel % 3)
    assert segment == ('{"logOffset":1}', channel % 3)
    assert last == ('{"logOffset":1}', channel % 4)
