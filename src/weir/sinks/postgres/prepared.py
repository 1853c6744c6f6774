"""Transactions that an older Weir prepared: a start refuses until the user has ended them.

Weir once wrote rows straight into the target: each Spark task prepared its transaction, and the
driver committed it once the checkpoint was complete. Its name says whose it is::

    weir_<sink's digest>_<attempt>_<batch>_<random>

With its rows it entered its name into ``weir.prepared``: the record is visible exactly if the rows
are. The statement to run is that which Weir itself would have run at this point of a start:

1. ``commit``: a checkpoint that is complete names its transactions. ``COMMIT PREPARED`` keeps their
   rows. If their records are visible, that is done, and the epoch is entered into the ledger.
2. ``clean``: no checkpoint needs what is left then, and its rows are computed again.
   ``ROLLBACK PREPARED``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from weir.core.types import Count
from weir.errors import LostRowsError, SinkMismatchError
from weir.sinks.postgres.target import Ledger
from weir.sinks.staging import StagedPayload

if TYPE_CHECKING:
    import psycopg

_NAME = r"\Aweir_[0-9a-f]{16}_[0-9]{1,18}_[0-9]{1,18}_[0-9a-f]{16}\Z"


class PreparedPayload(StagedPayload, kw_only=True):
    """The payload of a batch whose rows are in prepared transactions, each with its rows."""

    transactions: list[tuple[Annotated[str, Meta(pattern=_NAME)], Count]]


def rows_committed_by_hand(
    connection: psycopg.Connection,
    payloads: Sequence[PreparedPayload],
    *,
    ledger: Ledger,
    epoch: int,
    place: str,
) -> int:
    """The number of the epoch's rows in transactions that the user has committed.

    Raises ``SinkMismatchError`` if some still wait, or are not this sink's, and ``LostRowsError``
    if some were rolled back.
    """
    rows = dict(pair for payload in payloads for pair in payload.transactions)
    if not all(name.startswith(_prefix(ledger)) for name in rows):
        raise SinkMismatchError(
            f"Rows of checkpoint {epoch} are in prepared transactions that {place} of this job did"
            " not make: give the sink the table that it had, or restore from another checkpoint or"
            " savepoint."
        )
    # In this order: what no longer waits was ended before the next statement, which sees the
    # record if it was committed.
    if waiting := [name for name in _waiting(connection, ledger) if name in rows]:
        raise SinkMismatchError(
            f"Checkpoint {epoch} is complete, and its rows for {place} are in transactions that an"
            " older version of Weir prepared: to keep these rows, run"
            f" {_statements('COMMIT', waiting)} in this database (ROLLBACK PREPARED would lose"
            " them), and run the job again."
        )
    found = connection.execute(
        "SELECT name FROM weir.prepared WHERE name = ANY (%s)", [list(rows)]
    ).fetchall()
    if gone := rows.keys() - {name for (name,) in found}:
        raise LostRowsError(
            f"Checkpoint {epoch} cannot be committed to {place}, since the prepared transaction"
            f" {min(gone)} was rolled back, and the job cannot continue without its rows. Start"
            " from an older snapshot with --from-savepoint PATH --accept-duplicates."
        )
    return sum(rows.values())


def check_none_waits(connection: psycopg.Connection, ledger: Ledger, *, place: str) -> None:
    """Raise ``SinkMismatchError`` if a transaction of the sink waits that no checkpoint needs."""
    if waiting := _waiting(connection, ledger):
        raise SinkMismatchError(
            f"Transactions that an older version of Weir prepared for {place} have rows of no"
            " completed checkpoint, which the job computes again: run"
            f" {_statements('ROLLBACK', waiting)} in this database (COMMIT PREPARED would duplicate"
            " these rows), and run the job again."
        )


def _waiting(connection: psycopg.Connection, ledger: Ledger) -> list[str]:
    """The names of the sink's prepared transactions, whichever attempt and role made them."""
    found = connection.execute(
        "SELECT gid FROM pg_prepared_xacts"
        " WHERE database = current_database() AND starts_with(gid, %s) ORDER BY gid",
        [_prefix(ledger)],
    ).fetchall()
    return [name for (name,) in found]


def _prefix(ledger: Ledger) -> str:
    return f"weir_{ledger.digest}_"


def _statements(how: str, names: Iterable[str]) -> str:
    return " ".join(f"{how} PREPARED '{name}';" for name in names)
