"""What Weir puts in place of pyiceberg's own parts: file access and the commit to the catalog.

``DurableFileIO``: a catalog's database syncs what it commits, but pyiceberg does not sync the
metadata files that the catalog then points to. After a crash of the machine, the table would refer
to files that are empty or gone. So local files are on disk before pyiceberg goes on. Object stores
are durable by themselves.

``OneCommit``: pyiceberg repeats a commit that meets a conflict, without asking whether the epoch
has been committed by the other side. And it deletes the manifests of a commit that the catalog
calls a conflict, though a proxy may have repeated a request that had landed. So a conflict leaves
as an error that pyiceberg does not know: nothing is repeated, nothing deleted, and the sink looks
at the table again. The manifests of such a commit are orphans.
"""

from __future__ import annotations

from types import TracebackType

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from weir.sinks.staging import ConflictError
from weir.storage.local import LocalFileSystem
from weir.storage.paths import is_local, normalize, parent


class OneCommit(NoopCatalog):
    """A catalog for one transaction: passes its commit on once, and conflicts as another error."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog.name)
        self._catalog = catalog

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Commit. Raises ``ConflictError`` if the table has changed."""
        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise ConflictError(str(error)) from error


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's file access by way of Arrow; a local file is synced when it is closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """The file to be written."""
        path = normalize(location)
        output = super().new_output(location)
        return _LocalOutput(output, path) if is_local(path) else output


class _LocalOutput(PyArrowFile):
    def __init__(self, output: PyArrowFile, path: str) -> None:
        super().__init__(location=output.location, path=output._path, fs=output._filesystem)
        self._place = path

    def create(self, overwrite: bool = False) -> OutputStream:
        LocalFileSystem().make_directory(parent(self._place))
        return _SyncedStream(super().create(overwrite), self._place)


class _SyncedStream(OutputStream):
    def __init__(self, stream: OutputStream, path: str) -> None:
        self._stream = stream
        self._path = path

    def write(self, b: bytes) -> int:
        return self._stream.write(b)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()
        LocalFileSystem().sync([self._path, parent(self._path)])

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(
        self,
        exctype: type[BaseException] | None,
        excinst: BaseException | None,
        exctb: TracebackType | None,
    ) -> None:
        self.close()
