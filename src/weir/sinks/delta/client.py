"""delta-rs, as ``DeltaTable`` reaches it. The simulator has a client of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from weir.kernel import MACHINE, Kernel
from weir.sinks.delta.log import TableLog
from weir.storage.paths import scheme_of

if TYPE_CHECKING:
    import deltalake
    from deltalake import CommitProperties, Schema
    from deltalake.transaction import AddAction


T = TypeVar("T")

#: How long reading a table on HDFS may take, at first and at most. delta-rs 1.6 has a client of
#: its own there (hdfs-native 0.13), of which a read sometimes never returns, after an outage of the
#: name node above all; the next one does.
HDFS_READ_S = 15.0
HDFS_READ_MAX_S = 120.0


class DeltaClient:
    """Finds and creates tables. Every method raises ``DeltaError`` or ``OSError``."""

    def __init__(self, kernel: Kernel = MACHINE) -> None:
        self._kernel = kernel
        #: How long reading a table on HDFS may take next, by its URI. A long log needs its time: it
        #: is twice as long as what was given up, and four times as long as what came to its end.
        self._limits_s: dict[str, float] = {}

    def load(self, uri: str, options: dict[str, str] | None) -> deltalake.DeltaTable | None:
        """The table at its newest version; None if there is none."""
        import deltalake

        def found() -> deltalake.DeltaTable | None:
            if not deltalake.DeltaTable.is_deltatable(uri, options):
                return None
            return deltalake.DeltaTable(uri, storage_options=options)

        return self._read(uri, found, again=True)

    def update(self, uri: str, table: deltalake.DeltaTable) -> None:
        """Bring a table that was loaded to its newest version.

        After ``TimeoutError`` the call may still be at it: load another one.
        """
        self._read(uri, table.update_incremental)

    def version_in(self, uri: str, table: deltalake.DeltaTable, name: str) -> int | None:
        """The version of an application transaction; None if there is none.

        After ``TimeoutError`` the call may still be at it: load another one.
        """
        return self._read(uri, lambda: table.transaction_version(name))

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

    def _read(self, uri: str, work: Callable[[], T], *, again: bool = False) -> T:
        """Read a table. Raises ``TimeoutError``, an ``OSError``, if that hangs.

        ``again``: try it again, up to the longest limit.
        """
        if scheme_of(uri) != "hdfs":
            return work()
        while True:
            limit_s, began_ms = self._limits_s.get(uri, HDFS_READ_S), self._kernel.now_ms()
            try:
                found = within(limit_s, work)
            except TimeoutError:
                self._limits_s[uri] = min(2 * limit_s, HDFS_READ_MAX_S)
                if not again or limit_s >= HDFS_READ_MAX_S:
                    raise
            else:
                needed_s = 4 * (self._kernel.now_ms() - began_ms) / 1000
                self._limits_s[uri] = min(max(HDFS_READ_S, needed_s), HDFS_READ_MAX_S)
                return found


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
