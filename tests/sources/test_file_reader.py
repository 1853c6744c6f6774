"""``FileReader`` alone: every format by the given schema, and files that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.core.types import OperatorId, Payload
from weir.errors import StorageError
from weir.sources.reader import FileReader

SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("more", pa.string())])
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
#: Narrower than the schema, in another order, with a column too many and one too few.
TABLE = pa.table(
    {
        "ts": pa.array([NOON, None], pa.timestamp("ms", tz="UTC")),
        "x": [0, 0],
        "id": pa.array([1, 2], pa.int32()),
    }
)
ROWS = [{"id": 1, "ts": NOON, "more": None}, {"id": 2, "ts": None, "more": None}]


class FakeContext:
    """``OperatorContext`` that keeps what it is told."""

    operator_id: OperatorId = "in"
    subtask = 0
    parallelism = 1
    output_schema = SCHEMA

    def __init__(self) -> None:
        self.sent: list[Payload] = []
        self.ended = False

    def send_event_to_coordinator(self, event: Payload) -> None:
        self.sent.append(event)

    def end_input(self) -> None:
        self.ended = True


def opened(
    directory: Path, format: str = "parquet", *, rejects: bool = False
) -> tuple[FileReader, FakeContext]:
    reader, context = FileReader(str(directory), format=format, schema="", rejects=rejects), FakeContext()
    reader.open(context)
    return reader, context


def batch(reader: FileReader, *events: Payload) -> list[dict[str, Any]]:
    """The rows of one batch with these events."""
    for event in events:
        reader.handle_operator_event(event)
    return [row for one in reader.end_batch() for row in one.to_pylist()]


def write(path: Path, format: str) -> None:
    if format == "parquet":
        pq.write_table(TABLE, path)
    elif format == "ipc":
        with pa.ipc.new_file(path, TABLE.schema) as writer:
            writer.write_table(TABLE)
    elif format == "csv":
        path.write_text("ts,x,id\n2024-01-01 12:00:00Z,0,1\n,0,2\n")
    else:
        path.write_text('{"ts": "2024-01-01 12:00:00Z", "x": 0, "id": 1}\n{"id": 2}\n')


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "ipc"])
def test_every_format_is_read_with_the_schema_that_was_given(tmp_path: Path, format: str) -> None:
    """Columns by name, cast to their types; one that the file lacks is null."""
    write(tmp_path / "a", format)
    reader, _ = opened(tmp_path, format)
    assert batch(reader, {"splits": ["a"]}) == ROWS


@pytest.mark.parametrize("format", ["json", "csv"])
def test_an_empty_text_file_has_no_rows(tmp_path: Path, format: str) -> None:
    """It is not broken."""
    (tmp_path / "a").touch()
    reader, _ = opened(tmp_path, format)
    assert batch(reader, {"splits": ["a"]}) == []


def test_a_reader_asks_once_when_it_is_opened_and_once_behind_what_it_has_read(tmp_path: Path) -> None:
    """A batch without files asks for nothing, and at the end nothing is asked for any more."""
    write(tmp_path / "a", "parquet")
    reader, context = opened(tmp_path)
    assert batch(reader, {}) == []
    assert batch(reader) == []
    assert context.sent == [{"ask": True}]
    assert batch(reader, {"splits": ["a"]}, {"splits": ["a"]}) == ROWS + ROWS
    assert context.sent == [{"ask": True}] * 2
    assert not context.ended
    assert batch(reader, {"splits": ["a"], "end": True}) == ROWS
    assert context.ended
    assert len(context.sent) == 2


@pytest.mark.parametrize("content", [b"no parquet at all", b"", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    """Broken, empty or gone."""
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    reader, _ = opened(tmp_path)
    with pytest.raises(StorageError, match=rf"The file {tmp_path}/a cannot be read \(.*on_error='reject'"):
        batch(reader, {"splits": ["a"]})


def test_a_rejected_file_gives_no_row_at_all(tmp_path: Path) -> None:
    """Not even those that stand before the broken line; the files beside it are read."""
    good = "".join(f'{{"id": {number}}}\n' for number in range(200_000))
    (tmp_path / "a").write_text(good + '{"id": "x"}\n')
    (tmp_path / "b").write_text('{"id": 5}\n')
    reader, context = opened(tmp_path, "json", rejects=True)
    assert [row["id"] for row in batch(reader, {"splits": ["a", "b"]})] == [5]
    rejected, asked = context.sent
    assert rejected["rejected"] == "a"
    assert "ArrowInvalid" in rejected["why"]
    assert asked == {"ask": True}
