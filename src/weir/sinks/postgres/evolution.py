"""Changes a table's columns for rows that need it (``PostgresTable(schema_evolution="add")``).

They are made in the transaction that commits those rows, before the first of them: a crash leaves
the old table or the new table with the rows, and an epoch that is never committed changes nothing.

``ALTER TABLE`` locks out readers until the transaction ends. A new column, or more digits at the
same scale, changes only the catalogue. Any other wider type makes PostgreSQL write the table and
its indexes again, all columns in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weir.errors import SinkError, SinkMismatchError
from weir.sinks.postgres.session import quoted
from weir.sinks.postgres.target import PostgresTarget
from weir.sinks.postgres.types import StagedColumn, check_fits, takes

if TYPE_CHECKING:
    import psycopg

#: The table and those that inherit from it, such as its partitions.
_NOT_OWNED = """
    WITH RECURSIVE tables (oid) AS (
        SELECT to_regclass(%s)::oid
        UNION SELECT inhrelid FROM pg_inherits JOIN tables ON inhparent = tables.oid)
    SELECT oid::regclass::text FROM tables JOIN pg_class USING (oid)
    WHERE NOT pg_has_role(relowner, 'USAGE') ORDER BY tables.oid LIMIT 1
"""


def check_owner(connection: psycopg.Connection, target: PostgresTarget, *, place: str) -> None:
    """Raise ``SinkError`` unless the role may change the table, or creates it itself."""
    found = connection.execute(_NOT_OWNED, [target.sql]).fetchone()
    if found is not None:
        raise SinkError(
            f"{place} has schema_evolution='add', but the role that Weir connects as does not own"
            f" {found[0]}, and PostgreSQL lets only owners change a table: run ALTER TABLE"
            f" {found[0]} OWNER TO that role, or remove schema_evolution."
        )


def evolved(
    connection: psycopg.Connection,
    find: Callable[[], PostgresTarget],
    rows: Sequence[StagedColumn],
    *,
    place: str,
) -> PostgresTarget:
    """The table that ``find`` looks up, with columns added and widened as the rows need.

    Raises ``SinkMismatchError`` if PostgreSQL refuses the change: none of it has happened then.
    """
    import psycopg

    target = find()
    if not _changes(target, rows):
        return target
    try:
        # Another writer may be changing the table, too: what it needs is looked up under the lock.
        connection.execute(f"LOCK TABLE {target.sql} IN ACCESS EXCLUSIVE MODE")
        target = find()
        check_fits(target.columns, rows, place=place, adds=True)
        if changes := ", ".join(_changes(target, rows)):
            connection.execute(f"ALTER TABLE {target.sql} {changes}")
    except (psycopg.NotSupportedError, psycopg.ProgrammingError) as error:
        said = " ".join(str(error).split())
        wanted = "; ".join(_shown(target, row) for row in rows if not _is_taken(target, row))
        raise SinkMismatchError(
            f"{place} cannot be changed for its rows ({wanted}), since PostgreSQL refuses it"
            f" ({said}): change the table by hand, such as without a view that is in the way, and"
            " run the job again."
        ) from error
    return find()


def _changes(target: PostgresTarget, rows: Sequence[StagedColumn]) -> list[str]:
    """What ``ALTER TABLE`` has to do."""
    known = {column.name for column in target.columns}
    return [
        f"ALTER COLUMN {quoted(row.name)} TYPE {row.type}"
        if row.name in known
        else f"ADD COLUMN {quoted(row.name)} {row.type}"
        for row in rows
        if not _is_taken(target, row)
    ]


def _is_taken(target: PostgresTarget, row: StagedColumn) -> bool:
    return any(column.name == row.name and takes(column, row) for column in target.columns)


def _shown(target: PostgresTarget, row: StagedColumn) -> str:
    """The change of a column, for messages."""
    before = [column.type for column in target.columns if column.name == row.name]
    there = f"{before[0]} in the table" if before else "not in the table"
    return f"{row.name!r} is {row.type} in the rows, {there}"
