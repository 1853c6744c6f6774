"""delta-rs, as ``DeltaTable`` reaches it. The simulator has a client of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from weir.sinks.delta.log import TableLog
from weir.storage.paths import scheme_of

if TYPE_CHECKING:
    import deltalake
    from deltalake import CommitProperties, Schema
    from deltalake.transaction import AddAction


T = TypeVar("T")

#: How long reading a table on HDFS may take. delta-rs 1.6 has a client of its own there
#: (hdfs-native 0.13), of which a read sometimes never returns, after an outage of the name node
#: above all; the next one does.
HDFS_READ_S = 120.0


class DeltaClient:
    """Finds and creates tables. Every method raises ``DeltaError`` or ``OSError``."""

    def load(self, uri: str, options: dict[str, str] | None) -> deltalake.DeltaTable | None:
        """The table at its newest version; None if there is none."""
        import deltalake

        def found() -> deltalake.DeltaTable | None:
            if not deltalake.DeltaTable.is_deltatable(uri, options):
                return None
            return deltalake.DeltaTable(uri, storage_options=options)

        return _read(uri, found)

    def update(self, uri: str, table: deltalake.DeltaTable) -> None:
        """Bring a table that was loaded to its newest version."""
        _read(uri, table.update_incremental)

    def version_in(self, uri: str, table: deltalake.DeltaTable, name: str) -> int | None:
        """The version of an application transaction; None if there is none."""
        return _read(uri, lambda: table.transaction_version(name))

    def create(
        self,
        uri: str,
        schema: Schema,
        partition_by: Sequence[str],
        options: dict[str, str] | None,
    ) -> deltalake.DeltaTable:
        """Create a table without rows."""
        import deltalake

        return deltalake.DeltaTable.create(
            uri, schema, partition_by=list(partition_by), storage_options=options
        )

    def create_with_files(
        self,
        uri: str,
        schema: Schema,
        partition_by: Sequence[str],
        options: dict[str, str] | None,
        *,
        files: Sequence[AddAction],
        properties: CommitProperties,
    ) -> None:
        """Create a table with its first rows, in one log entry."""
        from deltalake import transaction

        transaction.create_table_with_add_actions(
            uri,
            schema,
            list(files),
            mode="error",
            partition_by=list(partition_by),
            storage_options=options,
            commit_properties=properties,
        )

    def log(
        self, name: str, path: str, options: dict[str, str] | None, table: deltalake.DeltaTable
    ) -> TableLog:
        """The log of a table that is loaded; ``name`` is the sink's."""
        return TableLog(name, path, options, table=table)


def _read(uri: str, work: Callable[[], T]) -> T:
    """Read a table. Raises ``TimeoutError``, an ``OSError``, if that hangs (``HDFS_READ_S``)."""
    return within(HDFS_READ_S, work) if scheme_of(uri) == "hdfs" else work()


def within(limit_s: float, call: Callable[[], T]) -> T:
    """What a blocking call returns, or raises.

    Raises ``TimeoutError`` after that many seconds. The call is then left on its thread, which
    keeps no process from exiting: it must do no harm if it goes on later.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="weir-limited", daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError as error:
        if answer.done():
            # The call's own.
            raise
        raise TimeoutError(f"there was no answer within {limit_s:g} s") from error
