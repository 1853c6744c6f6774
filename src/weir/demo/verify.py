"""Compares Delta tables with their expected rows, as multisets, exactly.

The tables are read with delta-rs alone, so the result is what any reader sees, whatever Weir or
Spark believe to have written. Rows are counted, not just looked up, so a duplicate of a legitimate
row is found too. One group-by over both sides does it: each row weighs 1 on its own side and 0 on
the other.

**Between two lives** (``look``) a reader must see one consistent cut through all tables. A killed
driver may have committed its newest checkpoint to some tables and not yet to others.
``weir.read_consistent`` finds the newest checkpoint that all tables show. At that checkpoint the
tables must agree with each other, not just each with its final content, although four queries
wrote them: an anomaly exists exactly if its flight exists; the delays of a day, if it has any,
count exactly its flights; a flight has its weather at most once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

import weir
from weir.demo.reference import FLIGHT, anomalies_of, carrier_delays
from weir.errors import CutNotFoundError, StorageError

_EXPECTED, _ACTUAL = "__expected", "__actual"


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """How one table compares with its expected rows; all numbers count rows."""

    table: str
    rows_expected: int
    rows_committed: int
    #: Surplus copies of expected rows.
    duplicates: int
    #: Missing copies of expected rows.
    missing: int
    #: Rows that should not be there at all. A changed row is one missing and one unexpected row.
    unexpected: int
    #: Why the tables cannot be compared, in a sentence; all expected rows then count as missing.
    problem: str | None = None

    @property
    def exact(self) -> bool:
        """Whether both sides hold the same rows equally often."""
        return self.problem is None and not (self.duplicates or self.missing or self.unexpected)


def verify_tables(directory: Path, expected: Mapping[str, pa.Table]) -> list[TableReport]:
    """Compare each Delta table ``directory/<name>`` with its expected rows."""
    return [verify_table(directory / name, name, rows) for name, rows in expected.items()]


def verify_table(path: Path, name: str, expected: pa.Table) -> TableReport:
    """Compare one Delta table with its expected rows; a missing table counts as empty."""
    try:
        actual = DeltaTable(path).to_pyarrow_table()
    except TableNotFoundError:
        return _incomparable(name, expected, 0, f"No Delta table at {path}.")
    return compare(name, expected, actual)


def compare(name: str, expected: pa.Table, actual: pa.Table) -> TableReport:
    """Compare two tables as multisets of rows.

    The order of rows and columns does not matter. The actual table is cast to the expected types; a
    value that does not fit makes the tables incomparable.
    """
    if sorted(expected.column_names) != sorted(actual.column_names):
        problem = f"The columns are {actual.column_names}, expected {expected.column_names}."
        return _incomparable(name, expected, actual.num_rows, problem)
    try:
        aligned = actual.select(expected.column_names).cast(expected.schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        problem = f"Its columns cannot be read as {expected.schema.types}: {error}"
        return _incomparable(name, expected, actual.num_rows, problem)
    both = pa.concat_tables([_weighed(expected, _EXPECTED), _weighed(aligned, _ACTUAL)])
    counts = both.group_by(expected.column_names).aggregate([(_EXPECTED, "sum"), (_ACTUAL, "sum")])
    wanted, found = counts[f"{_EXPECTED}_sum"], counts[f"{_ACTUAL}_sum"]
    surplus = pc.max_element_wise(pc.subtract(found, wanted), 0)
    known = pc.greater(wanted, 0)
    return TableReport(
        table=name,
        rows_expected=expected.num_rows,
        rows_committed=actual.num_rows,
        duplicates=_total(pc.if_else(known, surplus, 0)),
        missing=_total(pc.max_element_wise(pc.subtract(wanted, found), 0)),
        unexpected=_total(pc.if_else(known, 0, surplus)),
    )


def _weighed(table: pa.Table, side: str) -> pa.Table:
    for column in (_EXPECTED, _ACTUAL):
        weights = pa.repeat(pa.scalar(int(column == side), pa.int64()), table.num_rows)
        table = table.append_column(column, weights)
    return table


def _total(numbers: pa.ChunkedArray) -> int:
    return int(pc.sum(numbers, min_count=0).as_py())


def _incomparable(name: str, expected: pa.Table, rows_committed: int, problem: str) -> TableReport:
    return TableReport(
        table=name,
        rows_expected=expected.num_rows,
        rows_committed=rows_committed,
        duplicates=0,
        missing=expected.num_rows,
        unexpected=rows_committed,
        problem=problem,
    )


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What the tables showed at one checkpoint."""

    #: The checkpoint and the number of rows in each table there, for the reader.
    text: str
    #: How the tables disagree, in a sentence; None if they agree.
    problem: str | None = None


def look(directory: Path, tables: Iterable[str]) -> Cut:
    """Read the tables ``directory/<name>`` at their newest common checkpoint.

    No driver may be writing them.
    """
    try:
        cut = weir.read_consistent({name: str(directory / name) for name in tables})
    except CutNotFoundError:
        return Cut(text="no checkpoint is visible in all tables yet")
    except StorageError as error:
        return Cut(text="the tables cannot be read at one checkpoint", problem=str(error))
    rows = {name: cut.table(name).to_pyarrow_table() for name in cut.versions}
    counts = ", ".join(f"{name} {table.num_rows:,}" for name, table in rows.items())
    wrong = "; ".join(filter(None, map(_disagreement, _compared(rows))))
    return Cut(
        text=f"all tables at checkpoint {cut.checkpoint_id}: {counts}",
        problem=f"The tables disagree at checkpoint {cut.checkpoint_id}: {wrong}."
        if wrong
        else None,
    )


def _compared(rows: Mapping[str, pa.Table]) -> Iterator[TableReport]:
    """Compare each table but the flights with what follows from the flights of the same cut.

    Rows that come late may be missing: days that are not over, and flights that still wait for
    their weather.
    """
    clean = rows["flights_clean"]
    yield compare("anomalies", anomalies_of(clean, rows["anomalies"]), rows["anomalies"])
    delays, weather = rows["carrier_delays"], rows["flights_weather"].select(FLIGHT)
    late = (
        compare("carrier_delays", carrier_delays(clean), delays),
        compare("flights_weather", clean.select(FLIGHT), weather),
    )
    yield from (replace(report, missing=0) for report in late)


def _disagreement(report: TableReport) -> str | None:
    """How a table disagrees with the flights; None if it does not."""
    if report.exact:
        return None
    too_many = report.duplicates + report.unexpected
    return report.problem or (
        f"of {report.table}, {report.missing} rows are missing and {too_many} too many"
    )
