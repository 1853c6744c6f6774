"""The demo's judge must be strict: a table that is off by one row, in any way, is found."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from weir.demo.verify import compare, verify_table, verify_tables

TIME = datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
#: The second and the third row are equal on purpose: a table may contain duplicates.
ROWS = [
    {"event_time": TIME, "carrier": "UA", "delay": 3},
    {"event_time": TIME, "carrier": "AA", "delay": None},
    {"event_time": TIME, "carrier": "AA", "delay": None},
    {"event_time": TIME, "carrier": "DL", "delay": -7},
]
SCHEMA = pa.schema(
    [("event_time", pa.timestamp("us", tz="UTC")), ("carrier", pa.string()), ("delay", pa.int32())]
)


def rows(*values: dict[str, object]) -> pa.Table:
    """A table of the tests' schema."""
    return pa.Table.from_pylist(list(values), schema=SCHEMA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a test's Delta table."""
    return tmp_path / "flights"


def test_the_same_rows_in_another_order_and_in_several_commits_are_exact(path: Path) -> None:
    """Order, files and partitions do not matter, only which rows there are and how often."""
    write_deltalake(path, rows(ROWS[3], ROWS[1]), partition_by=["carrier"])
    write_deltalake(path, rows(ROWS[2], ROWS[0]), mode="append")
    report = verify_table(path, "flights", rows(*ROWS))
    assert report.exact
    assert (report.rows_expected, report.rows_committed) == (4, 4)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_missing_row_is_found(path: Path, lost: int) -> None:
    """A row that occurs less often than expected counts as missing, even if an equal one is
    left."""
    write_deltalake(path, rows(*ROWS[:lost], *ROWS[lost + 1 :]))
    report = verify_table(path, "flights", rows(*ROWS))
    assert (report.exact, report.duplicates, report.missing, report.unexpected) == (False, 0, 1, 0)


@pytest.mark.parametrize("doubled", [0, 1, 3])
def test_a_doubled_row_is_found(path: Path, doubled: int) -> None:
    """A row that occurs more often than expected counts as a duplicate."""
    write_deltalake(path, rows(*ROWS, ROWS[doubled]))
    report = verify_table(path, "flights", rows(*ROWS))
    assert (report.exact, report.duplicates, report.missing, report.unexpected) == (False, 1, 0, 0)


@pytest.mark.parametrize(
    "change",
    [{"delay": 4}, {"delay": None}, {"carrier": "ua"}, {"event_time": TIME.replace(microsecond=1)}],
)
def test_a_changed_row_is_found(path: Path, change: dict[str, object]) -> None:
    """A row with one changed value counts as one missing and one unexpected row."""
    write_deltalake(path, rows(ROWS[0] | change, *ROWS[1:]))
    report = verify_table(path, "flights", rows(*ROWS))
    assert (report.exact, report.duplicates, report.missing, report.unexpected) == (False, 0, 1, 1)


def test_a_row_twice_in_place_of_another_is_found_although_the_number_of_rows_is_right(
    path: Path,
) -> None:
    """One doubled row and one lost row do not cancel out."""
    write_deltalake(path, rows(ROWS[0], ROWS[0], *ROWS[1:3]))
    report = verify_table(path, "flights", rows(*ROWS))
    assert (report.exact, report.duplicates, report.missing, report.unexpected) == (False, 1, 1, 0)


def test_a_table_that_does_not_exist_misses_every_row(path: Path) -> None:
    """A job that never committed is not a success."""
    report = verify_table(path, "flights", rows(*ROWS))
    assert (report.exact, report.missing, report.rows_committed) == (False, 4, 0)
    assert report.problem is not None
    assert str(path) in report.problem


def test_a_table_with_other_columns_is_not_exact() -> None:
    """A missing or additional column makes the tables incomparable, and the report names it."""
    report = compare("flights", rows(*ROWS), rows(*ROWS).drop_columns(["delay"]))
    assert (report.exact, report.missing, report.unexpected) == (False, 4, 4)
    assert report.problem is not None
    assert "delay" in report.problem


def test_a_value_that_does_not_fit_the_expected_type_is_not_exact() -> None:
    """A fraction where an integer belongs is not rounded."""
    actual = pa.table(
        {**{n: rows(*ROWS)[n] for n in ("event_time", "carrier")}, "delay": [3.5, 0.0, 0.0, 1.0]}
    )
    report = compare("flights", rows(*ROWS), actual)
    assert not report.exact
    assert report.problem is not None


def test_an_empty_table_is_exact_only_if_nothing_was_expected(path: Path) -> None:
    """No rows equal no rows; no rows do not equal some rows."""
    write_deltalake(path, rows())
    assert verify_table(path, "flights", rows()).exact
    assert verify_table(path, "flights", rows(*ROWS)).missing == 4


def test_every_table_that_is_expected_is_compared(tmp_path: Path) -> None:
    """Each name gets a report, in order, even if only one table exists."""
    write_deltalake(tmp_path / "one", rows(*ROWS))
    reports = verify_tables(tmp_path, {"one": rows(*ROWS), "two": rows(*ROWS)})
    assert [(report.table, report.exact) for report in reports] == [("one", True), ("two", False)]
