"""The demo's judge must not be bribed: a table that is off by one row, in any way, is found."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from weir.demo.verify import compare, verify_table, verify_tables

TIME = datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
#: The second and the third row are equal on purpose: a table may hold the same row twice.
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
    """Where a test puts its Delta table."""
    return tmp_path / "flights"


def test_the_same_rows_in_another_order_and_in_several_commits_are_exact(path: Path) -> None:
    """Neither order, nor files, nor partitions matter, only which rows there are and how often."""
    write_deltalake(path, rows(ROWS[3], ROWS[1]), partition_by=["carrier"])
    write_deltalake(path, rows(ROWS[2], ROWS[0]), mode="append")
    report = verify_table(path, "flights", rows(*ROWS))
    assert report.exact
    assert (report.rows_expected, report.rows_committed) == (4, 4)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_missing_row_is_found(path: Path, lost: int) -> None:
    """A row that is there less often than expected counts as missing, also if an equal one is
    left."""
    write_deltalake(path, rows(*ROWS[:lost], *ROWS[lost + 1 :]))
    report = verify_table(path, "flights", rows(*ROWS))
    assert (report.exact, report.duplicates, report.missing, report.unexpected) == (False, 0, 1, 0)


@pytest.mark.parametrize("doubled", [0, 1, 3])
def test_a_doubled_row_is_found(path: Path, doubled: int) -> None:
    """A row that is there once more than expected counts as a duplicate."""
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
    """One row doubled and another lost do not cancel out."""
    write_deltalake(path, rows(ROWS[0], ROWS[0], *ROWS[1:3]))
    report = verify_table(path, "flights", rows(*ROWS))
    assert (report.exact, report.duplicates, report.missing, report.unexpected) == (False, 1, 1, 0)


def test_a_table_that_does_not_exist_misses_every_row(path: Path) -> None:
    """A job that never committed is no success."""
    report = verify_table(path, "flights", rows(*ROWS))
    assert (report.exact, report.missing, report.rows_committed) == (False, 4, 0)
    assert report.problem is not None
    assert str(path) in report.problem


def test_a_table_with_other_columns_is_not_exact() -> None:
    """A column that is missing or too many makes the tables incomparable, and the report says which
    they are."""
    report = compare("flights", rows(*ROWS), rows(*ROWS).drop_columns(["delay"]))
    assert (report.exact, report.missing, report.unexpected) == (False, 4, 4)
    assert report.problem is not None
    assert "delay" in report.problem


def test_a_value_that_does_not_fit_the_expected_type_is_not_exact() -> None:
    """A fraction where a whole number belongs is not rounded away."""
    actual = pa.table(
        {**{n: rows(*ROWS)[n] for n in ("event_time", "carrier")}, "delay": [3.5, 0.0, 0.0, 1.0]}
    )
    report = compare("flights", rows(*ROWS), actual)
    assert not report.exact
    assert report.problem is not None


def test_an_empty_table_is_exact_only_if_nothing_was_expected(path: Path) -> None:
    """No rows against no rows is exact, no rows against some is not."""
    write_deltalake(path, rows())
    assert verify_table(path, "flights", rows()).exact
    assert verify_table(path, "flights", rows(*ROWS)).missing == 4


def test_every_table_that_is_expected_is_compared(tmp_path: Path) -> None:
    """Each name gets a report, in order, also where only one table is there."""
    write_deltalake(tmp_path / "one", rows(*ROWS))
    reports = verify_tables(tmp_path, {"one": rows(*ROWS), "two": rows(*ROWS)})
    assert [(report.table, report.exact) for report in reports] == [("one", True), ("two", False)]
