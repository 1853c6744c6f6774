"""delta-rs, as ``DeltaTable`` reaches it. The simulator has a client of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weir.sinks.delta.log import TableLog

if TYPE_CHECKING:
    import deltalake
    from deltalake import CommitProperties, Schema
    from deltalake.transaction import AddAction


class DeltaClient:
    """Finds and creates tables. Every method raises ``DeltaError`` or ``OSError``."""

    def load(self, uri: str, options: dict[str, str] | None) -> deltalake.DeltaTable | None:
        """The table at its newest version; None if there is none."""
        import deltalake

        if not deltalake.DeltaTable.is_deltatable(uri, options):
            return None
        return deltalake.DeltaTable(uri, storage_options=options)

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
