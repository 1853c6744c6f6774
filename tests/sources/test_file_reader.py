"""``FileReader`` alone: every format with the given schema, and unreadable files."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.core.types import OperatorId, Payload
from weir.errors import InputError
from weir.sources.file_listing import FileSplit
from weir.sources.file_reader import FileReader

SCHEMA = pa.schema(
    [("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("more", pa.string())]
)
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
#: Narrower than the schema, in another order, with one extra column and one missing.
TABLE = pa.table(
    {
        "ts": pa.array([NOON, None], pa.timestamp("ms", tz="UTC")),
        "x": [0, 0],
        "id": pa.array([1, 2], pa.int32()),
    }
)
ROWS = [{"id": 1, "ts": NOON, "more": None}, {"id": 2, "ts": None, "more": None}]


class FakeContext:
    """A ``SourceReaderContext`` that records its calls."""

    operator_id: OperatorId = "in"
    subtask = 0
    parallelism = 1
    schema = SCHEMA

    def __init__(self) -> None:
        self.sent: list[Payload] = []

    def send_split_request(self) -> None:
        self.sent.append({"ask": True})

    def send_source_event(self, event: Payload) -> None:
        self.sent.append(event)


def opened(
    directory: Path, format: str = "parquet", *, rejects: bool = False
) -> tuple[FileReader, FakeContext]:
    """A reader that has asked for files, and what it sends from then on."""
    context = FakeContext()
    reader = FileReader(context, str(directory), format=format, rejects=rejects)
    reader.start()
    assert context.sent == [{"ask": True}]
    context.sent.clear()
    return reader, context


def batch(reader: FileReader, *names: str) -> list[dict[str, Any]]:
    """The rows of one batch in which these files are assigned."""
    reader.add_splits([FileSplit(name) for name in names])
    found = list(reader.read(1))
    assert reader.snapshot_state() == []
    return [row for one in found if one.batch is not None for row in one.batch.to_pylist()]


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
    """Columns are matched by name and cast; a column that the file lacks is null."""
    write(tmp_path / "a", format)
    reader, _ = opened(tmp_path, format)
    assert batch(reader, "a") == ROWS


@pytest.mark.parametrize("format", ["json", "csv"])
def test_an_empty_text_file_has_no_rows(tmp_path: Path, format: str) -> None:
    """It is not broken."""
    (tmp_path / "a").touch()
    reader, _ = opened(tmp_path, format)
    assert batch(reader, "a") == []


def test_a_reader_asks_for_more_once_it_has_read_everything(tmp_path: Path) -> None:
    """A file that is paused is kept, and stays in its state."""
    write(tmp_path / "a", "parquet")
    reader, context = opened(tmp_path)
    assert batch(reader, "a", "a") == ROWS + ROWS
    assert context.sent == [{"ask": True}]
    reader.pause_or_resume_splits(frozenset({"a"}))
    reader.add_splits([FileSplit("a")])
    assert list(reader.read(1)) == []
    assert reader.snapshot_state() == [FileSplit("a")]
    assert context.sent == [{"ask": True}]
    reader.pause_or_resume_splits(frozenset())
    assert batch(reader) == ROWS


@pytest.mark.parametrize("content", [b"no parquet at all", b"", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    """Broken, empty or gone: by its message, and as what was being read when it failed."""
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    reader, _ = opened(tmp_path)
    announced: list[str] = []
    reader.announce = lambda split: announced.append(split.split_id)
    with pytest.raises(
        InputError, match=rf"The file {tmp_path}/a cannot be read \(.*on_error='reject'"
    ):
        batch(reader, "a")
    assert announced == ["a"]


@pytest.mark.parametrize(
    ("format", "row", "bad"),
    [
        ("json", '{{"id": {}}}\n', '{"id": "x"}\n'),
        ("csv", "{},,\n", "x,,\n"),
        ("csv", "{},,\n", "1,,,\n"),
    ],
)
def test_a_row_that_cannot_be_read_is_rejected_and_no_other(
    tmp_path: Path, format: str, row: str, bad: str
) -> None:
    """It is identified by its line, in a file of any size; the rows around it are read in order."""
    header = "id,ts,more\n" if format == "csv" else ""
    lines = [row.format(number) for number in range(100_000)]
    lines[0], lines[77_777], lines[-1] = bad, bad, bad.rstrip()
    (tmp_path / "a").write_text(header + "".join(lines))
    (tmp_path / "b").write_text(header + row.format(5))
    reader, context = opened(tmp_path, format, rejects=True)
    read = [row["id"] for row in batch(reader, "a", "b")]
    assert read == [number for number in range(100_000) if number not in (0, 77_777, 99_999)] + [5]
    rejected, asked = context.sent
    first = 1 + len(header.splitlines())
    assert rejected["rejected"] == "a"
    assert [one["line"] for one in rejected["rows"]] == [first, first + 77_777, first + 99_999]
    assert all("id" in one["why"] or "columns" in one["why"] for one in rejected["rows"])
    assert asked == {"ask": True}


@pytest.mark.parametrize(
    ("format", "text", "ids", "lines"),
    [
        ("json", '{"id": 1}\r\n\r\n{"id": \n{"id": 2}', [1, 2], [3]),
        ("json", 'null\n{"id": 1}\n  null\n5\n"a"\n[1]\n{"id": 2}\n', [1, 2], [1, 3, 4, 5, 6]),
        ("json", '{"id": 1, "x": 1}\n{"id": 2, "x": "a"}\n', [1, 2], []),
        ("csv", 'more,id\n"a\nb",1\n"c\nd",x\n\n"e",2\n', [1, 2], [4]),
        ("csv", 'more,id\n5" pipe,1\n6" pipe,x\n7" pipe,2', [1, 2], [3]),
        ("csv", "\nmore,id\r\na,1\r\nb\r\nc,2\r\n", [1, 2], [4]),
        ("csv", 'more,id\n"a ""b"", ' + "\n" * 200_000 + '",1\nx,x\n', [1], [200_003]),
        ("csv", 'more,id\na,1\nb,x\n"without an end,2\n\n', [1], [3, 4]),
        ("csv", "more,id", [], []),
    ],
)
def test_records_are_separated_as_arrow_does(
    tmp_path: Path, format: str, text: str, ids: list[int], lines: list[int]
) -> None:
    """Blank lines, quoted line ends, quotes within a value, long values and an unused column damage
    no row."""
    (tmp_path / "a").write_text(text, newline="")
    reader, context = opened(tmp_path, format, rejects=True)
    assert [row["id"] for row in batch(reader, "a")] == ids
    rows = [row["line"] for event in context.sent for row in event.get("rows", ())]
    assert (rows, len(context.sent)) == (lines, 1 + bool(lines))


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_null_where_none_may_be_is_rejected_with_its_row(tmp_path: Path, format: str) -> None:
    """Otherwise the job would fail for good."""
    (tmp_path / "a").write_text('{"id": 1}\n{}\n' if format == "json" else "id,more\n1,a\n,b\n")
    reader, context = opened(tmp_path, format, rejects=True)
    context.schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    assert batch(reader, "a") == [{"id": 1}]
    (row,) = context.sent[0]["rows"]
    assert row["why"] == "ValueError: a null in 'id', which the schema declares as NOT NULL"


@pytest.mark.parametrize(
    ("format", "content", "why"),
    [
        (
            "json",
            b"x\n" * 2_000,
            "ValueError: more than 1000 of its rows are unreadable, the first in line 1: ",
        ),
        ("csv", b"id,id\n1,1\n", "ValueError: 2 of its columns are called 'id': 'id' and 'id'"),
        (
            "csv",
            b"id,more\n" + b"x,\n" * 2_000,
            "ValueError: more than 1000 .* the first in line 2",
        ),
        ("parquet", b"no parquet", "ArrowInvalid"),
        ("json", None, "FileNotFoundError"),
    ],
)
def test_a_file_whose_rows_cannot_be_separated_is_rejected_as_a_whole(
    tmp_path: Path, format: str, content: bytes | None, why: str
) -> None:
    """It has another format or is gone; the other files are read."""
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    write(tmp_path / "b", format)
    reader, context = opened(tmp_path, format, rejects=True)
    assert batch(reader, "a", "b") == ROWS
    rejected, asked = context.sent
    assert rejected["rejected"] == "a"
    assert re.match(why, rejected["why"])
    assert asked == {"ask": True}


def test_a_line_of_json_that_is_null_fails_the_job_by_its_file(tmp_path: Path) -> None:
    """And by its line; Arrow would crash the process."""
    (tmp_path / "a").write_text('{"id": 1}\nnull\n')
    reader, _ = opened(tmp_path, "json")
    with pytest.raises(
        InputError,
        match=r"a cannot be read \(ValueError: line 2: Expected `object`, got `null`\)",
    ):
        batch(reader, "a")
