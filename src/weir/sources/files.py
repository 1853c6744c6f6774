"""``FileSource``: the files of a directory, found by a split enumerator and read by subtasks that
ask for them.

::

    job.source("in", weir.sources.FileSource("landing/", format="parquet", schema="id long, ts timestamp"), parallelism=2)

The enumerator (``enumerator.py``) is the coordinator of the step, the reader (``reader.py``) its
operator. A split is a whole file, and is read within one batch: so a reader's position is always
between two files, and what a checkpoint has to know is which files were assigned before it. Exactly
once is what the protocol of operator events makes of that (MISSION C3, C7).
"""

from __future__ import annotations

from weir.errors import PipelineError
from weir.sources.base import SplitSource
from weir.sources.enumerator import FileEnumerator
from weir.sources.reader import FileReader
from weir.storage.paths import is_local, normalize

FORMATS = ("parquet", "json", "csv", "ipc")
_ON_ERROR = ("fail", "reject")


class FileSource(SplitSource):
    """Reads each file of a directory once, oldest first; which of them a subtask reads is decided
    as it asks.

    Files are told apart by their names, and are read when they are found: move a file in when it is
    complete, and never change it or its name. Names that begin with ``.`` or ``_``, and
    directories, are passed over.

    A file may be removed once a completed checkpoint has its rows. What checkpoints keep of files
    that were read are names: of those that are there, and for ``name_retention`` of those that were
    removed. So each file is read exactly once, also one that comes late with a time of long ago,
    unless names have been forgotten that might be its own: then it is not read, and said by name
    (see ``on_error``). A name must not be used again while it is kept: the file is not read, which
    is said if it is younger than the one that was removed can have been.

    Args:
        path: A local directory.
        format: ``parquet``, ``json`` (an object a line), ``csv`` (with a header) or ``ipc``
            (Arrow's file format). Columns are matched by name, and one that a file lacks is null.
            In JSON and CSV a timestamp needs its zone.
        schema: Of the rows, as Spark's DDL text.
        discovery_interval: Seconds between two looks into the directory.
        bounded: What is there at the first look is the whole input: it is read, and the job
            finishes.
        name_retention: Seconds for which the name of a removed file is kept. They are counted in
            the modification times of the files that come after it, not by a clock.
        on_error: What becomes of what cannot be read. ``fail``: the job fails, and says which file.
            ``reject``: a line of JSON or CSV gives no row, or of the other formats a file, which is
            listed by ``weir inspect``, by ``GET /jobs/ID/rejects``, and by ``weir send JOB STEP
            '{"rejects": true}'``; of a text file with more than 1,000 such lines no row is read.
            Each file is in memory as a whole then.
        max_bytes_per_split_batch: How many bytes of files a subtask is given for a batch; one file
            at least.
    """

    def __init__(
        self,
        path: str,
        *,
        format: str,
        schema: str,
        discovery_interval: float = 1.0,
        bounded: bool = False,
        name_retention: float = 24 * 60 * 60.0,
        on_error: str = "fail",
        max_bytes_per_split_batch: int = 64 * 1024 * 1024,
    ) -> None:
        """Raises ``PipelineError`` for what cannot be. The directory is not looked at before the
        job runs."""
        self._directory = normalize(path)
        if not is_local(self._directory):
            raise PipelineError(
                f"FileSource reads local directories only, not {path!r}: mount it, or read it with"
                " spark.readStream."
            )
        _check_choice("format", format, FORMATS)
        _check_choice("on_error", on_error, _ON_ERROR)
        if not schema.strip():
            raise PipelineError(
                "FileSource needs a schema, such as schema='id long, ts timestamp'."
            )
        for name, value in (
            ("discovery_interval", discovery_interval),
            ("name_retention", name_retention),
            ("max_bytes_per_split_batch", max_bytes_per_split_batch),
        ):
            if not 0 < value < float("inf"):
                raise PipelineError(f"FileSource has {name}={value!r}: give it a number above 0.")
        self._format = format
        self._schema = schema
        self._interval_ms = max(1, round(discovery_interval * 1000))
        self.bounded = bounded
        self._retention_ns = round(name_retention * 1e9)
        self._rejects = on_error == "reject"
        self._batch_bytes = max_bytes_per_split_batch

    def enumerator(self) -> FileEnumerator:
        """The coordinator of the step."""
        return FileEnumerator(
            self._directory,
            interval_ms=self._interval_ms,
            bounded=self.bounded,
            batch_bytes=self._batch_bytes,
            rejects=self._rejects,
            retention_ns=self._retention_ns,
        )

    def reader(self) -> FileReader:
        """The operator of the step."""
        return FileReader(
            self._directory, format=self._format, schema=self._schema, rejects=self._rejects
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PipelineError(f"FileSource has {name}={value!r}: choose one of {', '.join(choices)}.")
