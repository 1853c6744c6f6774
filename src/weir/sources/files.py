"""``FileSource``: the files of a directory, found by a split enumerator and read by subtasks.

::

    files = weir.sources.FileSource("landing/", format="parquet", schema="id long, ts timestamp")
    job.source("in", files, parallelism=2)

``file_enumerator.py`` has the enumerator, ``file_reader.py`` the reader. A split is a whole file,
read within one batch, so a reader's position is always between two files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.core.types import OperatorId, Payload
from weir.errors import PipelineError
from weir.lineage.datasets import Dataset, file_dataset
from weir.sources.base import (
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
    SplitSerializer,
)
from weir.sources.file_enumerator import FileEnumerator
from weir.sources.file_listing import FileSplit
from weir.sources.file_reader import FileReader
from weir.storage.paths import needs_spark, normalize

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = ("parquet", "json", "csv", "ipc")
_ON_ERROR = ("fail", "reject")


class FileSource(Source[FileSplit]):
    """Reads each file of a directory once, oldest first, assigned to subtasks as they ask.

    Files are identified by name and read as soon as they are found: move a file in when it is
    complete, and never change or rename it. A file that changes is not read again, but listed with
    the rejects. So are directories, unless ``recursive`` is set. Names that begin with ``.`` or
    ``_`` are ignored, except such as ``_day=1``.

    A file may be removed once a completed checkpoint has its rows. Checkpoints keep the names of
    files that were read: of those still there, and for ``name_retention`` of those removed. So each
    file is read exactly once, even if it arrives late with an old modification time, unless its
    name may have been forgotten: then it is not read, and is reported by name (see
    ``on_error``). Do not reuse a name while it is kept: the file is not read, and is reported if
    its size or modification time is not that of the removed file.

    Args:
        path: A directory: local, or in ``hdfs:``, ``s3:``, ``s3a:``, ``gs:`` or ``az:``, which the
            driver and the workers reach by the credentials in their environment.
        format: ``parquet``, ``json`` (one object per line), ``csv`` (with a header) or ``ipc``
            (Arrow's file format). The documentation's page FILES says what each format makes
            of each type. Columns are matched by name, in any case; a column that a file lacks is
            null, and a file with none of them is unreadable.
        schema: The schema of the rows, as a Spark ``StructType`` or DDL.
        discovery_interval: Seconds between two listings of the directory.
        recursive: Read the files in directories below, too. The names of directories such as
            ``dt=2026-03-01`` are values of columns, if the schema has them.
        bounded: The files of the first listing are the whole input: once they are read, the job
            finishes.
        name_retention: Seconds for which the name of a removed file is kept, measured by the
            modification times of files that arrive after it, not by a clock.
        on_error: What happens to input that cannot be read. ``fail``: the job fails and names the
            file. ``reject``: a bad line of JSON or CSV, or a bad file of another format, gives no
            rows and is listed by ``weir inspect``, by ``GET /jobs/ID/rejects``, and by ``weir send
            JOB STEP '{"rejects": true}'``; a text file with more than 1,000 bad lines gives no rows
            at all. The rows of a file are then held in memory as a whole.
        max_bytes_per_split_batch: The most bytes of files that a subtask gets for a batch; it
            always gets at least one file.
    """

    def __init__(
        self,
        path: str,
        *,
        format: str,
        schema: str | StructType,
        discovery_interval: float = 1.0,
        recursive: bool = False,
        bounded: bool = False,
        name_retention: float = 24 * 60 * 60.0,
        on_error: str = "fail",
        max_bytes_per_split_batch: int = 64 * 1024 * 1024,
    ) -> None:
        """Raises ``PipelineError`` for invalid arguments.

        The directory is not read before the job runs.
        """
        self._directory = normalize(path)
        if needs_spark(self._directory):
            raise PipelineError(
                f"FileSource cannot read {path!r}, which only Spark's client reaches: read it with"
                " spark.readStream, or mount it."
            )
        _check_choice("format", format, FORMATS)
        _check_choice("on_error", on_error, _ON_ERROR)
        if isinstance(schema, str) and not schema.strip():
            raise PipelineError(
                "FileSource needs a schema, such as schema='id long, ts timestamp'."
            )
        for name, value in (
            ("discovery_interval", discovery_interval),
            ("name_retention", name_retention),
            ("max_bytes_per_split_batch", max_bytes_per_split_batch),
        ):
            if not 0 < value < float("inf"):
                raise PipelineError(f"FileSource has {name}={value!r}: set it to a number above 0.")
        self._format = format
        self.schema = schema
        self._interval_ms = max(1, round(discovery_interval * 1000))
        self._recursive = recursive
        self.bounded = bounded
        self._retention_ns = round(name_retention * 1e9)
        self._rejects = on_error == "reject"
        self._batch_bytes = max_bytes_per_split_batch

        #: By step: the files that its enumerators in this driver have seen.
        self._seen: dict[OperatorId, set[str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what only the driver knows."""
        return vars(self) | {"_seen": {}}

    supports_available_now = True

    def dataset(self) -> Dataset:
        """The directory."""
        return file_dataset(self._directory)

    def identity(self) -> str:
        """The directory."""
        return f"FileSource at {self._directory}"

    def split_serializer(self) -> SplitSerializer[FileSplit]:
        """Files by name."""
        return SplitSerializer(FileSplit)

    def create_enumerator(self, context: SplitEnumeratorContext) -> FileEnumerator:
        """An enumerator that has not seen any file."""
        return self.restore_enumerator(context, {})

    def restore_enumerator(self, context: SplitEnumeratorContext, state: Payload) -> FileEnumerator:
        """An enumerator with the files of a checkpoint."""
        return FileEnumerator(
            context,
            state,
            self._directory,
            expected=self._seen.setdefault(context.operator_id, set()),
            interval_ms=self._interval_ms,
            bounded=self.bounded,
            recursive=self._recursive,
            batch_bytes=self._batch_bytes,
            rejects=self._rejects,
            retention_ns=self._retention_ns,
        )

    def create_reader(self, context: SourceReaderContext) -> FileReader:
        """The reader of a subtask."""
        return FileReader(context, self._directory, format=self._format, rejects=self._rejects)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PipelineError(f"FileSource has {name}={value!r}: choose one of {', '.join(choices)}.")
