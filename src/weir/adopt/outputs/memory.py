"""The ``memory`` format: a temporary view of what was committed, named after its query.

Its rows are files in the job's own directory, so it is there again when the process was restarted.
In append and update mode it has every row that was committed, and in complete mode the newest row
of each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weir.adopt.outputs.lineage import OwnRows, ShownOnly
from weir.adopt.outputs.whole_table import WholeTable
from weir.core.types import Payload
from weir.sinks.base import SinkContext
from weir.storage.paths import READ_EACH, as_spark_path, join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def show_empty(session: SparkSession, view: str, schema: StructType) -> None:
    """Make a view without rows, as it is from a query's start on."""
    session.createDataFrame([], schema).createOrReplaceTempView(view)


class MemoryRows(ShownOnly, OwnRows):
    """Adds the rows of each epoch to a temporary view."""

    takes_updates = True

    def __init__(self, view: str, schema: StructType, *, directory: str) -> None:
        self._view = view
        self._schema = schema
        super().__init__(directory)

    def describe(self) -> str:
        """What and where, for messages."""
        return f"the memory table {self._view!r}"

    def open(self, context: SinkContext) -> None:
        """Also show what earlier attempts have committed."""
        super().open(context)
        self._show()

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Also show the rows."""
        rows = super().commit(epoch, payloads)
        if payloads:
            self._show()
        return rows

    def _show(self) -> None:
        if self._context.session is None:
            return
        session = self._context.session()
        # As the names of files begin (``staging.staging_prefix``).
        prefixes = tuple(f"{name[:8]}{name[32:]}-" for name in self._lineage())
        names = [entry.name for entry in self._file_system.list(self._root)]
        files = [join(self._root, name) for name in names if name.startswith(prefixes)]
        if not files:
            show_empty(session, self._view, self._schema)
            return
        reader = session.read.schema(self._schema).options(**READ_EACH)
        rows = reader.parquet(*map(as_spark_path, files))
        rows.createOrReplaceTempView(self._view)


class MemoryTable(ShownOnly, WholeTable):
    """Keeps the newest row of each key in a temporary view."""

    def __init__(
        self, view: str, schema: StructType, *, keys: Sequence[str], directory: str
    ) -> None:
        self._view = view
        self._schema = schema
        super().__init__(
            self._show, keys=keys, staging=directory, describe=f"the memory table {view!r}"
        )

    def open(self, context: SinkContext) -> None:
        """Also show what earlier attempts have committed."""
        super().open(context)
        table = self.table()
        if table is None:
            show_empty(self._session(), self._view, self._schema)
        else:
            self._show(table, 0)

    def _show(self, frame: DataFrame, batch_id: int) -> None:
        del batch_id
        frame.createOrReplaceTempView(self._view)
