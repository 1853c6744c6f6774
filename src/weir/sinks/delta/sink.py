"""Exactly-once appends to a Delta table: Spark writes the files, delta-rs commits them.

No JVM library is needed. How the rows of one batch become visible:

1. ``stage``: Spark writes Parquet below the table's root, into
   ``weir-<job>-<sink>-<attempt>/<position>/``. No entry of the table's log names these files, so no
   reader sees them. The directory name is not hidden, so that Delta's own VACUUM finds files that
   are orphaned for good.
2. ``flush``: the files and the directories above them are synced, and their footers are read for
   row counts and for the statistics by which readers skip files. Files without rows (Spark writes
   such a file for an empty frame) are dropped here.
3. ``commit``: one Delta transaction adds all files of the epoch and, in the same log entry, sets
   the application transaction ``weir-<job id>-<sink>`` to version *epoch*. A repeated commit finds
   the epoch there. Of two concurrent commits of an epoch delta-rs refuses the second (PROTOCOL
   P18). The log entry is then synced, which delta-rs leaves to the operating system. Delta does not
   check that the files exist, so the sink checks each of them first: a VACUUM whose retention is
   shorter than the delay of a commit may have deleted them.
4. ``clean``: each commit also records the highest position that it took from each attempt, as
   application transactions named like the attempts' directories. So a dead attempt's batch was
   committed if and only if its position is not above that mark. This stays true after OPTIMIZE has
   replaced its files, which time travel may still read.

With ``target_file_size``, small files of an epoch are merged (``sinks/merging.py``) before its
transaction, into ``weir-<job>-<sink>-<attempt>/m<epoch>-<random>/`` of the attempt that commits.
The originals stay until no snapshot can need them any more. After a crash, those of a committed
epoch are left to VACUUM.

An epoch without rows leaves the table alone: an idle job adds no versions. Such an epoch is on
record in the job's own log and metadata (PROTOCOL P15); each commit names their directory
(``weir.job.directory``), where ``weir.read_consistent`` looks.

Payload::

    {"directory": "weir-0a1b2c3d-orders-1", "position": 7,
     "schema": <Delta schema, JSON text>, "flushed": true, "after": 12,
     "files": [{"path": "country=US/part-0.parquet", "size": 451,
                "partition": {"country": "US"}, "rows": 3,
                "statistics": <JSON text>, "modified_ms": 1700000000000}]}

Why the staging directory is not hidden: VACUUM skips names that begin with ``_`` and would never
clean up. The price is that a VACUUM with a short retention deletes files that are still to be
committed. So every staged file is checked (existence, size) before a snapshot takes it, where a
loss fails the attempt, which stages the rows again, and before the commit, where a loss is final
and named, and nothing becomes visible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from weir.core.types import Payload, Position
from weir.errors import SinkError, SinkMismatchError, StorageError, invariant
from weir.lineage.datasets import Dataset, file_dataset
from weir.sinks.base import Commit, SinkContext, gone_back
from weir.sinks.commit_log import Entry
from weir.sinks.ddl import check_names
from weir.sinks.delta.client import DeltaClient
from weir.sinks.delta.log import (
    add_action,
    batches_in_log,
    commit_metadata,
    files_in_log,
    unreadable,
)
from weir.sinks.delta.merging import AddedDeltaFile, DeltaMerger, described
from weir.sinks.delta.partitions import check_directories, check_rows
from weir.sinks.delta.payload import DeltaFile, DeltaPayload
from weir.sinks.delta.schema import (
    added_fields,
    cast_columns,
    check_fits,
    check_no_rules,
    check_partition_columns,
    delta_schema_json,
    widened,
    with_fields,
)
from weir.sinks.delta.upsert import check_key, newest_rows, read_rows, upsert
from weir.sinks.merging import (
    KEPT_S,
    MERGED,
    Merging,
    ReplacedFiles,
)
from weir.sinks.staging import (
    STAGED_BY,
    ConflictError,
    FileSink,
    StagedFile,
    SureSync,
    check_evolution,
    check_partition_names,
    partition_values,
    write_frame,
)
from weir.storage.paths import as_delta_path, is_local, join

if TYPE_CHECKING:
    import deltalake
    from deltalake import CommitProperties
    from pyspark.sql import DataFrame

#: None if the table does not exist yet.
_Table: TypeAlias = "deltalake.DeltaTable | None"
Mode = Literal["append", "upsert"]

#: Characters of a path that delta-rs misreads or cannot read.
_MISREAD = re.compile(r"[%\\\x00-\x1f\x7f]")
#: How many log entries a starting job searches, from the newest back, for other jobs' commits. It
#: misses a commit only if this many newer entries are of other writers or of jobs of other names.
_LOG_ENTRIES = 200
#: How many bytes at the end of a log entry are compared. They name files or a time of their own.
_ENTRY_END = 4_096
_STAGING_DIRECTORY = re.compile(rf"weir-{STAGED_BY}")


class DeltaTable(FileSink[DeltaPayload, "_Table"]):
    """Writes to a Delta table, exactly once. The table is created with the first rows.

    ``path``: the table's root; relative paths are made absolute at once. ``partition_by``: columns
    that become directories: strings, dates, whole numbers and booleans (as everywhere in Delta, an
    empty string in a partition column is read as null). ``mode``: ``"append"``, or
    ``"upsert"``, by which the newest row of each ``key`` (columns) replaces the row in the table;
    the rows of an epoch then pass through the driver. ``schema_evolution="add"``: columns that the
    table lacks are added to it, those that the rows lack are null, and values are cast to a wider
    type of the table; without it, both must have the same columns. ``storage_options``: for
    delta-rs, such as credentials of an object store; Spark needs its own. ``target_file_size``: in
    bytes, such as ``128 << 20``: before a commit, smaller files of one partition are merged up to
    about this size, in a Spark job beside the batches. None: files stay as the batches wrote them.
    """

    _payload_type = DeltaPayload
    _file_type = DeltaFile
    _staging_prefix = "weir-"
    #: Reaches delta-rs; the simulator has its own.
    _client = DeltaClient()

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        mode: Mode = "append",
        key: Sequence[str] = (),
        schema_evolution: Literal["add"] | None = None,
        storage_options: dict[str, str] | None = None,
        target_file_size: int | None = None,
    ) -> None:
        super().__init__(path, partition_by)
        self._adds = schema_evolution == "add"
        self._key = tuple(key)
        self.takes_updates = mode == "upsert"
        #: The root as delta-rs spells it.
        self._uri = as_delta_path(self._root)
        self._storage_options = storage_options
        self._merging: Merging[AddedDeltaFile] = Merging(target_file_size, place=self.describe())
        self._replaced = ReplacedFiles()
        self._table: _Table = None
        #: The end of the newest log entry that ``_table`` has; empty if it is not known.
        self._entry = b""
        #: The version of the table when the attempt began, and that which was last found to show
        #: the newest epoch; -1 if there is none.
        self._version_at_open = self._version_compared = -1
        self._log_sync = SureSync()
        #: The table's schema when the attempt began; ``stage`` must not touch the table, which a
        #: commit may be using.
        self._schema_at_open: str | None = None
        #: The schema of the rows that last fitted (Spark's and Delta's JSON), so that it is checked
        #: once.
        self._accepted: tuple[str, str] | None = None
        #: The columns of those rows that are cast, and the table's type.
        self._casts: dict[str, str] = {}
        check_names(self._key, place=self.describe())
        check_partition_names(self._partition_by, ".", place=self.describe())
        self._check_options(mode, key, schema_evolution, target_file_size)
        if misread := _MISREAD.search(self._root):
            raise SinkError(
                f"{self.describe()} cannot be used, since delta-rs misreads {misread[0]!r} in a"
                " path: rename it."
            )

    def _check_options(
        self,
        mode: str,
        key: Sequence[str],
        schema_evolution: str | None,
        target_file_size: int | None,
    ) -> None:
        if mode not in get_args(Mode):
            raise SinkError(
                f"{self.describe()} has the unknown mode {mode!r}: use one of {get_args(Mode)}."
            )
        if isinstance(key, str) or self.takes_updates != bool(self._key):
            raise SinkError(
                f"{self.describe()} needs key= for mode='upsert', and only for that: name the"
                " columns by which a row is found again, as a list."
            )
        check_evolution(schema_evolution, self.describe())
        if self.takes_updates and target_file_size is not None:
            raise SinkError(
                f"{self.describe()} has mode='upsert', which writes its own files: remove"
                " target_file_size."
            )

    def describe(self) -> str:
        """What and where, for messages."""
        return f"DeltaTable({self._shown_path!r})"

    def identity(self) -> str:
        """The table's root."""
        return f"DeltaTable at {self._uri}"

    def table_path(self) -> str:
        """The table's root."""
        return self._root

    def landmark(self) -> str:
        """The table's log."""
        return join(self._root, "_delta_log")

    def destination(self) -> str | None:
        """The directory, whatever links lead to it."""
        return self._real_root()

    def dataset(self) -> Dataset:
        """The directory: tables in files are named by their location."""
        return file_dataset(self._root)

    def check(self, context: SinkContext) -> None:
        """Refuse foreign files, and a table that cannot be appended to (MISSION G4)."""
        self._table = None
        names = self._names_found(context)
        if "_delta_log" not in names:
            # Data that dead attempts staged before the table's first commit is not foreign.
            if foreign := [
                name
                for name in names
                if not name.startswith(".") and not _STAGING_DIRECTORY.fullmatch(name)
            ]:
                raise SinkError(
                    f"{self.describe()} is not empty and not a Delta table (it holds"
                    f" {foreign[0]!r}): choose an empty directory or move its files elsewhere."
                )
            return
        table = self._load()
        if table is not None:
            self._check_table(table)

    def open(self, context: SinkContext) -> None:
        """Make the directory, durably. The first commit creates the table itself."""
        self._begin_attempt(context)
        self._target.check(self._file_system)
        self._file_system.make_directory(self._root)
        self._target.is_known_by(self._root)
        self._table = self._accepted = None
        self._merging.forget()
        table = self._load()
        self._schema_at_open = None if table is None else table.schema().to_json()
        self._version_at_open = -1 if table is None else table.version()
        self._version_compared = -1

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """See ``FileSink``. First delete files that were replaced long ago."""
        # This reads the list of the table's files, so not at each commit.
        if self._replaced.are_due(self._context, 2 * KEPT_S):
            self._delete_replaced(KEPT_S)
        return super().commit(epoch, payloads)

    def close(self) -> None:
        """Delete the staged files whose rows were committed in others."""
        self._delete_replaced(0.0)

    def _delete_replaced(self, kept_s: float) -> None:
        if self._replaced.are_due(self._context, kept_s):
            table = self._load()
            named = frozenset() if table is None else files_in_log(table)
            self._replaced.delete(self._context, kept_s, named=named)

    def newest_committed(self) -> int | None:
        """The version of this job's application transaction in the table (PROTOCOL P21)."""
        table = self._load()
        return self._version_in(table, self._transaction_id)

    def check_not_gone_back(self, known: int) -> None:
        """Also if the table was restored to an earlier version: its log goes on."""
        super().check_not_gone_back(known)
        self._check_shows(self._table, self.newest_committed() or 0)

    def _compare(self, target: _Table, committed: int, payloads: Sequence[DeltaPayload]) -> None:
        super()._compare(target, committed, payloads)
        self._check_shows(target, committed)

    def _check_shows(self, table: _Table, committed: int) -> None:
        """Raise ``LostRowsError`` if a ``RESTORE`` took the newest epoch out of the table.

        As far as the log has not been cleaned up; versions that were looked at before are skipped.
        """
        if table is None or not committed or table.version() == self._version_compared:
            return
        context, shown, entry = self._context, table.version(), None
        since = self._version_at_open if context.may_have_gone_back else -1
        log = self._client.log(context.sink, self._root, self._storage_options, table)
        for entry in islice(log.entries(), _LOG_ENTRIES):
            if entry.version > shown:
                continue
            if _is_own(entry, context):
                break
            if entry.restored is not None and entry.version > since:
                shown = entry.restored
        else:
            if entry is None or entry.version > 0:
                return
        found = entry.commit.checkpoint_id if entry.commit and _is_own(entry, context) else 0
        if found < committed:
            raise gone_back(self.describe(), committed, found)
        self._version_compared = table.version()

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """The commits among the newest entries of the table's log."""
        table = self._load()
        if table is None:
            return iter(())
        log = self._client.log(context.sink, self._root, self._storage_options, table)
        return log.commits(among=_LOG_ENTRIES)

    def _decode_flushed(self, payloads: Sequence[Payload]) -> list[DeltaPayload]:
        from deltalake import Schema

        flushed = super()._decode_flushed(payloads)
        for schema in {payload.schema for payload in flushed}:
            try:
                Schema.from_json(schema)
            except Exception as error:
                raise SinkMismatchError(
                    f"{self.describe()} cannot commit rows whose schema cannot be read ({error}):"
                    " use another checkpoint or savepoint."
                ) from error
        return flushed

    def _write(self, frame: DataFrame, path: str, written: Sequence[str]) -> list[StagedFile]:
        if self._casts:
            frame, written = cast_columns(frame, self._casts), ()
        return write_frame(
            frame,
            self._file_system,
            path,
            format_name="parquet",
            # Files that are merged into the table have all columns.
            partition_by=() if self.takes_updates else self._partition_by,
            written=written,
        )

    def _check_written(self, payload: DeltaPayload, paths: Sequence[str]) -> None:
        directory = join(self._root, self._batch(payload))
        for path in paths if self._partition_by else ():
            if self.takes_updates:
                rows = read_rows(self._file_system, join(directory, path), self._partition_by)
                check_rows(rows, is_local=is_local(self._root))
            else:
                check_directories(payload.schema, partition_values(path))

    def _new_payload(self, frame: DataFrame, directory: str, position: Position) -> DeltaPayload:
        schema = self._fitting_schema(frame.schema.json())
        return DeltaPayload(
            directory=directory, position=position, flushed=False, schema=schema, files=[]
        )

    @property
    def _transaction_id(self) -> str:
        return f"weir-{self._context.job_id}-{self._context.sink}"

    def _load(self) -> _Table:
        """The table at its newest version, or None if it does not exist yet.

        What was read before is kept if its newest entry is still in the log. Otherwise the table
        was replaced, and all of it is read again.
        """
        from deltalake.exceptions import DeltaError

        try:
            if self._table is not None and self._entry and self._end_of(self._table) == self._entry:
                self._client.update(self._uri, self._table)
            else:
                self._table = self._client.load(self._uri, self._storage_options)
        except (DeltaError, OSError) as error:
            self._table = None
            raise SinkError(unreadable(self.describe(), error)) from error
        self._entry = b""
        if self._table is not None:
            self._target.is_known_by(self.landmark())
            self._entry = self._end_of(self._table)
        return self._table

    def _end_of(self, table: deltalake.DeltaTable) -> bytes:
        """The end of the table's newest log entry, which no other entry has.

        Empty if the entry does not exist, or before the sink is open.
        """
        if self._opened is None:
            return b""
        try:
            entry = join(self.landmark(), f"{table.version():020}.json")
            return self._file_system.read_end(entry, _ENTRY_END)
        except FileNotFoundError:
            return b""

    def _check_table(self, table: deltalake.DeltaTable) -> None:
        metadata = table.metadata()
        if tuple(metadata.partition_columns) != self._partition_by:
            raise SinkMismatchError(
                f"{self.describe()} is partitioned by {list(metadata.partition_columns)}, not by"
                f" {list(self._partition_by)}: give the sink"
                f" partition_by={list(metadata.partition_columns)} or write to another path."
            )
        if self.takes_updates and metadata.configuration.get("delta.appendOnly") == "true":
            raise SinkMismatchError(
                f"{self.describe()} has mode='upsert', but the table's property delta.appendOnly"
                " forbids to replace rows: remove the property, or write to another table."
            )
        features = table.protocol().writer_features or ()
        check_no_rules(
            table.schema().to_json(), metadata.configuration, features, place=self.describe()
        )

    def _fitting_schema(self, spark_schema: str) -> str:
        """The rows' Delta schema. Raises ``SinkError`` if the table does not take it."""
        accepted = self._accepted
        if accepted is None or accepted[0] != spark_schema:
            schema = delta_schema_json(spark_schema, place=self.describe())
            check_partition_columns(schema, self._partition_by, place=self.describe())
            check_key(schema, self._key, place=self.describe())
            self._casts = {}
            if self._schema_at_open is not None:
                if self._adds:
                    schema, self._casts = widened(self._schema_at_open, schema)
                check_fits(self._schema_at_open, schema, place=self.describe(), adds=self._adds)
            self._accepted = accepted = (spark_schema, schema)
        return accepted[1]

    def _described(self, payload: DeltaPayload) -> list[DeltaFile]:
        return [
            msgspec.structs.replace(
                described(self._context, self._root, self._staged(payload, file), file),
                partition=partition_values(file.path),
            )
            for file in payload.files
        ]

    def _look(self, payloads: Sequence[DeltaPayload]) -> tuple[_Table, int]:
        table = self._load()
        return table, self._version_in(table, self._transaction_id) or 0

    def _secure(
        self,
        target: _Table,
        epoch: int,
        payloads: Sequence[DeltaPayload],
    ) -> None:
        if target is not None:
            self._sync_log(self._version_of(target, epoch))

    def _add(
        self,
        target: _Table,
        epoch: int,
        payloads: Sequence[DeltaPayload],
    ) -> int:
        from deltalake.exceptions import DeltaError

        version = -1 if target is None else target.version()
        merged = self._merging.files(
            epoch,
            self._staged_in(payloads),
            DeltaMerger(self._context, self._partition_by),
            self._context,
            root=self._root,
            attempts=self._attempts_prefix,
        )
        try:
            self._add_files(target, epoch, payloads, merged.files)
        except (DeltaError, OSError) as error:
            raise ConflictError(str(error)) from error
        self._sync_log(version + 1)
        if (damage := self._damage(payloads[0])) is not None:
            # delta-rs makes the directories that it writes to. Its table is not this table.
            self._table = None
            raise StorageError(
                f"{self.describe()} went away while checkpoint {epoch} was committed, since"
                f" {damage}. Check that its volume is mounted; the commit is repeated once it"
                " is back."
            )
        if self.takes_updates:
            # The rows are in files of delta-rs.
            self._replaced.add(merged.files, [], self._context)
        else:
            self._replaced.add(merged.originals, merged.files, self._context)
        return sum(file.rows or 0 for payload in payloads for file in payload.files)

    def _staged_in(self, payloads: Sequence[DeltaPayload]) -> list[AddedDeltaFile]:
        return [
            AddedDeltaFile(
                root=self._root,
                path=self._staged(payload, file),
                file=file,
                layout=payload.schema,
                partition=tuple(sorted((file.partition or {}).items())),
            )
            for payload in payloads
            for file in payload.files
        ]

    def _add_files(
        self,
        table: _Table,
        epoch: int,
        payloads: Sequence[DeltaPayload],
        files: Sequence[AddedDeltaFile],
    ) -> None:
        """Add the files in one log entry, which creates the table if needed."""
        from deltalake import Schema

        self._check_staged_for_mode(payloads)
        schemas = list(dict.fromkeys(payload.schema for payload in payloads))
        known = table.schema().to_json() if table else schemas[0]
        for schema in schemas:
            check_fits(known, schema, place=self.describe(), adds=self._adds)
        new = added_fields(known, schemas)
        schema_of_rows = Schema.from_json(with_fields(known, new))
        if new and table is not None:
            # An entry of its own: the next try goes on from here.
            table.alter.add_columns(schema_of_rows.fields[-len(new) :])
        if self.takes_updates:
            self._upsert(table, epoch, payloads, schema_of_rows)
            return
        actions = [add_action(file.path, file.file) for file in files]
        properties = self._commit_properties(epoch, payloads)
        if table is None:
            self._client.create_with_files(
                self._uri,
                schema_of_rows,
                self._partition_by,
                self._storage_options,
                files=actions,
                properties=properties,
            )
            return
        self._check_table(table)
        table.create_write_transaction(
            [*actions],
            "append",
            schema_of_rows,
            list(self._partition_by),
            commit_properties=properties,
        )

    def _check_staged_for_mode(self, payloads: Sequence[DeltaPayload]) -> None:
        """Raise ``SinkMismatchError`` for rows that were staged in another way than now.

        Files for an append have no partition columns, files for an upsert have all columns.
        """
        expected = set() if self.takes_updates else set(self._partition_by)
        for payload in payloads:
            for file in payload.files:
                if set(file.partition or {}) != expected:
                    raise SinkMismatchError(
                        f"{self.describe()} has rows to commit that were staged with another mode"
                        " or other partition columns: run the job as it was, stop it with weir"
                        " stop, which commits them, and change the sink then."
                    )

    def _upsert(
        self,
        table: _Table,
        epoch: int,
        payloads: Sequence[DeltaPayload],
        schema: deltalake.Schema,
    ) -> None:
        """Replace or insert the newest row of each key, in one log entry."""
        if table is None:
            # An entry of its own: the next try goes on from here.
            table = self._client.create(
                self._uri, schema, self._partition_by, self._storage_options
            )
        else:
            self._check_table(table)
        oldest_first = sorted(payloads, key=lambda payload: payload.position)
        paths = [path for payload in oldest_first for path in self._paths(payload)]
        rows = newest_rows(self._file_system, paths, self._key)
        upsert(table, rows, self._key, self._commit_properties(epoch, payloads))

    def _commit_properties(self, epoch: int, payloads: Sequence[DeltaPayload]) -> CommitProperties:
        """The epoch and the highest position of each attempt, for the log entry."""
        from deltalake import CommitProperties, Transaction

        marks: dict[str, int] = {}
        for payload in payloads:
            before = marks.get(payload.directory, -1)
            marks[payload.directory] = max(before, payload.position)
        return CommitProperties(
            app_transactions=[
                Transaction(self._transaction_id, epoch),
                *(
                    Transaction(directory, position)
                    for directory, position in sorted(marks.items())
                ),
            ],
            custom_metadata=commit_metadata(self._context, epoch),
        )

    def _sync_log(self, version: int) -> None:
        """Make the log durable from this version on; object stores already are.

        Does not list the log's directory, which grows without bound.
        """
        if not is_local(self._root) or (table := self._load()) is None:
            return
        names = ["_last_checkpoint"]
        for number in range(version, table.version() + 1):
            names += [f"{number:020}.json", f"{number:020}.checkpoint.parquet"]
        # Only those that exist: Delta writes checkpoints now and then and cleans up old entries.
        paths = [f"_delta_log/{name}" for name in names]
        present = [
            path for path in paths if self._file_system.status(join(self._root, path)) is not None
        ]
        self._log_sync.sync_below(self._file_system, self._root, present)

    def _version_of(self, table: deltalake.DeltaTable, epoch: int) -> int:
        """The version that committed this epoch, or the oldest whose entry still exists."""
        context = self._context
        log = self._client.log(context.sink, self._root, self._storage_options, table)
        for entry in log.entries():
            commit = entry.commit
            if commit is not None and _is_own(entry, context) and commit.checkpoint_id <= epoch:
                return entry.version
        return log.oldest

    def _check_log_was_found(self, table: _Table) -> None:
        """Raise ``SinkError`` if delta-rs sees no table where a log exists.

        Committed files would look orphaned.
        """
        if table is None and any(
            entry.name.endswith(".json")
            for entry in self._file_system.list(join(self._root, "_delta_log"))
        ):
            raise SinkError(
                f"{self.describe()} has a log that delta-rs does not see, so nothing is deleted"
                " there: check storage_options and the access to the table."
            )

    def _left_over(self, dead: Sequence[str]) -> Iterator[tuple[str, Callable[[str], bool]]]:
        """See ``FileSink``: batches above their attempt's mark.

        So too what it has merged for an epoch that is not committed: nobody can commit it any more.
        """
        table = self._load()
        self._check_log_was_found(table)
        epoch = self._version_in(table, self._transaction_id) or 0
        # The table's files are listed only if there is something to delete.
        named = cache(lambda: set() if table is None else batches_in_log(table))

        def is_left_over(directory: str, mark: int, name: str) -> bool:
            merged = MERGED.fullmatch(name)
            found = int(merged[1]) > epoch if merged else name.isdecimal() and int(name) > mark
            invariant(
                not found or f"{directory}/{name}" not in named(),
                f"{directory}/{name} is after mark {mark}, yet in the log of {self.describe()}",
            )
            return found

        for directory in dead:
            mark = self._version_in(table, directory)
            yield directory, partial(is_left_over, directory, -1 if mark is None else mark)

    def _version_in(self, table: _Table, name: str) -> int | None:
        """The version of an application transaction; None if there is none."""
        try:
            return None if table is None else self._client.version_in(self._uri, table, name)
        except OSError as error:
            # The call may still be at it.
            self._table = None
            raise SinkError(unreadable(self.describe(), error)) from error


def _is_own(entry: Entry, context: SinkContext) -> bool:
    """Whether an entry of the log is a commit of this sink."""
    commit = entry.commit
    return commit is not None and (commit.job_id, commit.sink) == (context.job_id, context.sink)
