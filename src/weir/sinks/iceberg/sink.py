"""Exactly-once appends to an Iceberg table: Spark writes the files, pyiceberg commits them.

No JVM library is needed. How the rows of one batch become visible:

1. ``stage``: Spark writes Parquet below the table's data location, into
   ``weir-<job>-<sink>-<attempt>/<position>/``, with the field ids of the table. No snapshot names
   these files, so no reader sees them. The directory name is not hidden, so that Iceberg's removal
   of orphan files finds those that are orphaned for good. The first batch creates the table, which
   gives its columns their ids.
2. ``flush``: the files and the directories above them are synced, and their footers are read for
   the metrics by which readers skip files. Files without rows are dropped here.
3. ``commit``: one transaction adds a snapshot with all files of the epoch and sets the sink's
   property (``ledger.py``), which has the epoch. It holds only if the table's current snapshot
   is that which was loaded. So of two drivers that commit an epoch, the second meets a conflict,
   looks again, and finds the epoch (PROTOCOL P18). Whether a commit landed whose answer was lost is
   found out the same way. Iceberg does not check that the files exist, so the sink checks each of
   them first.
4. ``clean``: the property also has the highest position that was committed from each attempt. A
   dead attempt's batch is deleted if its position is above that mark, and above that which its
   own directory has (``leftovers.py``), since the table in the catalog may be another.

An epoch without rows leaves the table alone; it is on record in the job's own log (P15).

Payload::

    {"directory": "weir-0a1b2c3d-orders-1", "position": 7, "flushed": true, "after": 12,
     "owner": "5f0c..", "table": "9a7e..-..", "location": "s3://lake/orders/data",
     "schema": <Iceberg's JSON text>, "spec": <Iceberg's JSON text>,
     "files": [<files.StagedDataFile>, ..]}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from weir.core.types import Payload, Position
from weir.errors import (
    InvariantError,
    SinkError,
    SinkMismatchError,
    StorageError,
    UnsupportedEnvironmentError,
)
from weir.lineage.datasets import Dataset, file_dataset
from weir.sinks.base import Batch, Commit, SinkContext, gone_back
from weir.sinks.ddl import check_names
from weir.sinks.iceberg.payload import IcebergPayload, StagedDataFile
from weir.sinks.merging import KEPT_S, Merging, ReplacedFiles
from weir.sinks.staging import (
    FileSink,
    StagedFile,
    check_evolution,
    partition_values,
)
from weir.storage.paths import join, normalize

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame

    from weir.sinks.iceberg.ledger import Record
    from weir.sinks.iceberg.merging import AddedDataFile
    from weir.sinks.iceberg.target import IcebergTarget


@dataclass(frozen=True, kw_only=True)
class _Accepted:
    """Rows that fit the table."""

    #: What was compared: the rows' schema, and what the table has of its own.
    key: tuple[str, ...]
    rows: Schema
    spec: PartitionSpec
    #: By directory column, its SQL expression.
    groupings: dict[str, str]


class IcebergTable(FileSink[IcebergPayload, "Table"]):
    """Appends to an Apache Iceberg table, exactly once. The first batch creates the table.

    ``catalog``: the name of a catalog that pyiceberg knows, or its properties without secrets;
    among these, ``name`` is the catalog's name (else pyiceberg's default). ``table``:
    ``namespace.table``. ``partition_by``: columns by which a new table is partitioned (an existing
    table keeps to its own partitions): strings, dates, whole numbers, decimals and booleans.
    ``schema_evolution="add"``: fields that the table lacks are added to it, also in structs, and
    its columns are widened (int to long, float to double, decimals to more digits), in the
    transaction of the rows that need it; without it, such rows are refused. ``target_file_size``:
    in bytes, such as ``128 << 20``: before a commit, smaller files of one partition are merged up
    to about this size, in a Spark job beside the batches. None: files stay as the batches wrote
    them.

    Raises ``SinkError`` for what may be a secret in ``catalog`` or a table without a namespace, and
    ``UnsupportedEnvironmentError`` if pyiceberg is not installed.
    """

    _payload_type = IcebergPayload
    _file_type = StagedDataFile
    _staging_prefix = "weir-"

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        partition_by: Sequence[str] = (),
        schema_evolution: Literal["add"] | None = None,
        target_file_size: int | None = None,
    ) -> None:
        try:
            from weir.sinks.iceberg.target import IcebergTarget
        except ImportError as error:
            raise UnsupportedEnvironmentError(
                "IcebergTable needs pyiceberg, which is not installed: pip install"
                " 'weir-spark[iceberg]'."
            ) from error
        self._catalog_name: str = catalog if isinstance(catalog, str) else catalog.get("name", "")
        self._table_name = table
        #: Without reading pyiceberg's own configuration.
        self._catalog = catalog if isinstance(catalog, str) else str(sorted(catalog.items()))
        super().__init__(None, partition_by)
        check_names([table], place=self.describe())
        check_evolution(schema_evolution, self.describe())
        self._adds = schema_evolution == "add"
        self._merging: Merging[AddedDataFile] = Merging(target_file_size, place=self.describe())
        self._replaced = ReplacedFiles()
        self._iceberg = IcebergTarget(catalog, table, place=self.describe())
        #: The table as last seen; None if it does not exist yet.
        self._table: Table | None = None
        #: Where its data files lie, as its readers spell it; ``_root`` is Weir's spelling.
        self._location = ""
        #: Where they will lie if the catalog creates the table; empty if that is unknown.
        self._planned = ""
        self._accepted: _Accepted | None = None
        #: By location in a payload, whether the table's data once lay there.
        self._earlier: dict[str, bool] = {}

    def describe(self) -> str:
        """What and where, for messages."""
        catalog = f"{self._catalog_name!r}, " if self._catalog_name else ""
        return f"IcebergTable({catalog}{self._table_name!r})"

    def identity(self) -> str:
        """The table's name in its catalog, wherever the catalog is now."""
        catalog = f" in catalog {self._catalog_name}" if self._catalog_name else ""
        return f"IcebergTable {self._table_name}{catalog}"

    @property
    def target(self) -> IcebergTarget:
        """The table in its catalog, for readers."""
        return self._iceberg

    def table_path(self) -> str | None:
        """The table's location; None until the table exists."""
        return None if self._table is None else normalize(self._table.location())

    def check_not_gone_back(self, known: int) -> None:
        """Also if the table was rolled back: then it still has the property, but not the rows."""
        if (table := self._iceberg.load()) is not None:
            self._check_has_snapshot(table)
            super().check_not_gone_back(known)

    def landmark(self) -> str | None:
        """The directory of the table's metadata; None until the table exists."""
        from weir.sinks.iceberg.target import metadata_directory

        return None if self._table is None else metadata_directory(self._table.metadata)

    def destination(self) -> str | None:
        """The table in its catalog."""
        return f"iceberg {self._catalog} {self._table_name}"

    def files_at(self) -> str | None:
        """Also of a table that is to be created."""
        return super().files_at() or self._planned or None

    def dataset(self) -> Dataset | None:
        """The table's location; None until the table exists."""
        location = self.table_path()
        return None if location is None else file_dataset(location)

    def check(self, context: SinkContext) -> None:
        """Refuse a catalog that does not answer, and a table that cannot be appended to."""
        from weir.sinks.iceberg.target import data_root

        self._forget()
        self._begin_run()
        try:
            table = self._iceberg.load()
            if table is None:
                self._iceberg.check_creation()
                # Some catalogs cannot say before the table exists.
                with suppress(SinkError, StorageError):
                    self._planned = data_root(self._iceberg.new_table())
            else:
                self._iceberg.check_table(table, self._partition_by)
                self._table, self._root = table, data_root(table.metadata)
        except StorageError as error:
            raise SinkError(str(error)) from error

    def open(self, context: SinkContext) -> None:
        """Find the table and make the directory of its data files."""
        from weir.sinks.iceberg.ledger import record_of

        self._begin_attempt(context)
        if self._root:
            self._target.check(self._file_system)
        self._forget()
        table = self._iceberg.load()
        if table is None:
            self._check_not_gone([])
            return
        self._bind(table)
        record = record_of(table.metadata, context, place=self.describe())
        self._newest = max(self._newest, 0 if record is None else record.epoch)

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Write the batch's rows below the table's data location, in one Spark job.

        None if there are no rows. Raises ``SinkMismatchError`` before any row is written if the
        columns do not fit.
        """
        if batch.files == ():
            return None
        self._accept(frame.schema.json())
        return super().stage(frame, batch)

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Sync the staged files and read what a commit needs, once per payload (PROTOCOL P23)."""
        return super().flush(payloads) if payloads else []

    def staged_files(self, payload: Payload) -> list[str]:
        """Where the payload's files are, before and after their commit.

        Rows of a savepoint may go to a table that does not exist yet: it is created here.
        """
        (flushed,) = self._decode_flushed([payload])
        if self._table is None:
            self._bind(self._created_for(flushed))
        return self._paths(flushed)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """See ``FileSink``. First delete files that were replaced long ago."""
        self._replaced.delete(self._context, KEPT_S)
        return super().commit(epoch, payloads)

    def close(self) -> None:
        """Delete the staged files whose rows were committed in others."""
        self._replaced.delete(self._context, 0.0)

    def newest_committed(self) -> int | None:
        """The epoch in this sink's property of the table (PROTOCOL P21)."""
        from weir.sinks.iceberg.ledger import record_of

        table = self._iceberg.load()
        if table is None:
            return None
        record = record_of(table.metadata, self._context, place=self.describe())
        return None if record is None else record.epoch

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """The newest commit of each job and sink at the table, newest first."""
        from weir.sinks.iceberg.ledger import records

        table = self._iceberg.load()
        found = [] if table is None else records(table.properties, place=self.describe())
        return (record.commit() for record in found)

    def _left_over(self, dead: Sequence[str]) -> Iterator[tuple[str, Callable[[str], bool]]]:
        """See ``FileSink``. None below a table that has gone back: its newer state may return."""
        from weir.sinks.iceberg.ledger import record_of
        from weir.sinks.iceberg.leftovers import left_over

        table = self._iceberg.load()
        if table is None:
            return
        record = record_of(table.metadata, self._context, place=self.describe())
        if self._is_gone_back(table, record):
            return
        for directory in dead:
            mark = -1 if record is None else record.mark(int(directory.rpartition("-")[2]))
            place = join(self._root, directory)
            found = None if mark is None else left_over(self._file_system, place, mark)
            if found is not None:
                yield directory, found

    def _forget(self) -> None:
        """Forget where an earlier attempt found the table, what fitted it, and what it merged."""
        self._merging.forget()
        self._table = self._accepted = None
        self._root = self._location = ""
        self._earlier = {}

    def _bind(self, table: Table) -> None:
        """Use the table, whose data lie in one place for the whole attempt."""
        from weir.sinks.iceberg.target import data_location, data_root, metadata_directory

        root = data_root(table.metadata)
        self._context.file_system(root).make_directory(root)
        self._location, self._root = data_location(table.metadata), root
        self._target.is_known_by(metadata_directory(table.metadata))
        self._table = table

    def _location_of(self, payload: IcebergPayload) -> str:
        """Where the payload's files lie: in another place if the table's data have moved since.

        A checkpoint may be forged, so only the table itself is believed where its data lay.
        """
        given, table = payload.location, self._table
        if given is None or given == self._location or table is None:
            return self._location
        if given not in self._earlier:
            self._earlier[given] = self._iceberg.had_data_location(table, given)
        return given if self._earlier[given] else self._location

    def _root_of(self, payload: IcebergPayload) -> str:
        from weir.sinks.iceberg.target import for_hadoop

        return for_hadoop(self._location_of(payload))

    def _damage(self, payload: IcebergPayload) -> str | None:
        return super()._damage(payload) if self._root else "the table is gone"

    def _accept(self, spark_schema: str) -> None:
        """Raise ``SinkMismatchError`` if the table does not take the rows; create it if need be."""
        from weir.sinks.iceberg.evolution import evolve
        from weir.sinks.iceberg.partitions import check_columns, groupings
        from weir.sinks.iceberg.types import check_mapping, fitting_schema, has_field_ids

        place = self.describe()
        if self._table is None:
            self._bind(self._created(spark_schema))
        table = self._known_table
        schema, spec, mapping = table.schema(), table.spec(), table.metadata.name_mapping()
        key = (spark_schema, schema.model_dump_json(), spec.model_dump_json(), str(mapping))
        if self._accepted is not None and self._accepted.key == key:
            return
        self._iceberg.check_table(table, self._partition_by)
        rows = fitting_schema(spark_schema, schema, adds=self._adds, place=place)
        check_columns(spec, rows, place=place)
        # What the commit would refuse. This transaction is dropped.
        evolve(self._iceberg.transaction(table), [rows], adds=self._adds, place=place)
        if mapping is not None and not has_field_ids(rows):
            check_mapping(mapping, rows, place=place)
        self._accepted = _Accepted(
            key=key, rows=rows, spec=spec, groupings=groupings(spec, schema, place=place)
        )

    def _created(self, spark_schema: str) -> Table:
        from weir.sinks.iceberg.partitions import check_spec, new_spec
        from weir.sinks.iceberg.types import new_schema

        table = self._iceberg.load()
        if table is None:
            self._check_not_gone([])
            schema = new_schema(spark_schema, place=self.describe())
            spec = new_spec(schema, self._partition_by, place=self.describe())
            check_spec(spec, schema, place=self.describe())
            table = self._iceberg.create(schema, spec)
        return table

    def _created_for(self, payload: IcebergPayload) -> Table:
        from weir.sinks.iceberg.files import written_as
        from weir.sinks.iceberg.types import check_takes_new_ids

        table = self._iceberg.load()
        if table is None:
            self._check_not_gone([payload])
            schema, spec = written_as(payload)
            check_takes_new_ids(schema, place=self.describe())
            table = self._iceberg.create(schema, spec)
        return table

    def _check_not_gone(self, payloads: Sequence[IcebergPayload]) -> None:
        """Raise ``StorageError`` if the table that does not exist had rows of this job."""
        from weir.sinks.iceberg.target import metadata_directory

        landmark = self._context.landmark
        known = [each.after for each in payloads if self._is_known_of(each, None)]
        if max([self._newest, *known]) or (
            # Else it is that of another table, to which the job wrote before.
            landmark is not None and landmark == metadata_directory(self._iceberg.new_table())
        ):
            raise StorageError(
                f"{self.describe()} is gone, with the rows that were committed to it: register the"
                " table again (its newest metadata file names all its files), and the job"
                " continues; or continue without its rows with --accept-duplicates."
            )

    def _decode_flushed(self, payloads: Sequence[Payload]) -> list[IcebergPayload]:
        flushed = super()._decode_flushed(payloads)
        self._check_files(flushed)
        return flushed

    def _check_files(self, payloads: Sequence[IcebergPayload]) -> None:
        """Raise ``SinkMismatchError`` unless manifests can have all files of the payloads."""
        from weir.sinks.iceberg.files import data_files

        seen = set()
        for payload in payloads:
            try:
                for file in data_files(payload, self._location_of(payload), 0):
                    if file.file_path in seen:
                        raise ValueError(f"{file.file_path} is named twice")
                    seen.add(file.file_path)
            except (ValueError, KeyError, ArithmeticError) as error:
                raise SinkMismatchError(
                    f"{self.describe()} cannot commit rows whose files cannot be understood"
                    f" ({' '.join(str(error).split())}): use another checkpoint or savepoint."
                ) from error

    def _write(self, frame: DataFrame, path: str, written: Sequence[str]) -> list[StagedFile]:
        from weir.sinks.iceberg.writing import write_rows

        accepted = self._accepted_rows
        return write_rows(
            frame, accepted.rows, accepted.groupings, file_system=self._file_system, path=path
        )

    def _new_payload(self, frame: DataFrame, directory: str, position: Position) -> IcebergPayload:
        accepted = self._accepted_rows
        return IcebergPayload(
            directory=directory,
            position=position,
            flushed=False,
            owner=self._owner,
            table=str(self._known_table.metadata.table_uuid),
            location=self._location,
            schema=accepted.rows.model_dump_json(),
            spec=accepted.spec.model_dump_json(),
            files=[],
        )

    def _described(self, payload: IcebergPayload) -> list[StagedDataFile]:
        from weir.sinks.iceberg.files import described, written_as
        from weir.sinks.iceberg.partitions import texts_of

        rows, spec = written_as(payload)
        return [
            described(
                self._context.file_system(self._root_of(payload)),
                path,
                file,
                rows=rows,
                partition=texts_of(spec, partition_values(file.path)),
                properties=self._known_table.properties,
            )
            for file, path in zip(payload.files, self._paths(payload), strict=True)
        ]

    def _completed(self, payload: IcebergPayload) -> IcebergPayload:
        completed = super()._completed(payload)
        # What cannot be committed must fail before a checkpoint has it.
        self._check_files([completed])
        return completed

    def _look(self, payloads: Sequence[IcebergPayload]) -> tuple[Table, int]:
        from weir.sinks.iceberg.ledger import record_of

        table = self._iceberg.load()
        if table is None:
            table = self._created_for(payloads[0])
        if not self._root:
            self._bind(table)
        record = record_of(table.metadata, self._context, place=self.describe())
        return table, 0 if record is None else record.epoch

    def _compare(self, target: Table, committed: int, payloads: Sequence[IcebergPayload]) -> None:
        super()._compare(target, committed, payloads)
        self._check_has_snapshot(target)

    def _is_for(self, target: Table, committed: int, payload: IcebergPayload) -> bool:
        return self._is_known_of(payload, target)

    def _add(self, target: Table, epoch: int, payloads: Sequence[IcebergPayload]) -> int:
        from weir.sinks.iceberg.merging import IcebergMerger, manifest_entries, note_additions

        # What it would refuse must not be merged, and noted, at every attempt.
        transaction, rows = self._prepare(target, payloads)
        staged = self._staged_in(payloads)
        merged = self._merging.files(
            epoch,
            staged,
            IcebergMerger(self._context.file_system, target.properties, self._location),
            self._context,
            root=self._root,
            attempts=self._attempts_prefix,
        )
        # Iceberg does not look whether they are intact, but ``files`` has.
        note_additions(self._context.file_system, staged, merged.files)
        files = list(manifest_entries(merged.files, rows, target.metadata.default_spec_id))
        self._table = self._append(target, transaction, epoch, payloads, files)
        self._replaced.add(merged.originals, merged.files, self._context)
        return sum(file.rows or 0 for payload in payloads for file in payload.files)

    def _staged_in(self, payloads: Sequence[IcebergPayload]) -> list[AddedDataFile]:
        from weir.sinks.iceberg.merging import staged_data_file

        return [
            staged_data_file(
                payload,
                file,
                root=self._root_of(payload),
                path=self._staged(payload, file),
                location=self._location_of(payload),
            )
            for payload in payloads
            for file in payload.files
        ]

    def _prepare(
        self, table: Table, payloads: Sequence[IcebergPayload]
    ) -> tuple[Transaction, dict[str, Schema]]:
        """A transaction whose table takes the rows, and their schemas with its ids.

        Raises ``SinkMismatchError`` if that cannot be.
        """
        from weir.sinks.iceberg.evolution import prepare

        self._iceberg.check_table(table, self._partition_by)
        transaction = self._iceberg.transaction(table)
        rows = prepare(transaction, payloads, adds=self._adds, place=self.describe())
        return transaction, rows

    def _append(
        self,
        table: Table,
        transaction: Transaction,
        epoch: int,
        payloads: Sequence[IcebergPayload],
        files: Sequence[DataFile],
    ) -> Table:
        """Add the files in one snapshot, with the ledger's next record."""
        from weir.sinks.iceberg.ledger import as_property, key_of, next_record, record_of, summary

        record = record_of(table.metadata, self._context, place=self.describe())
        batches = [
            (int(attempt), payload.position)
            for payload in payloads
            for prefix, _, attempt in [payload.directory.rpartition("-")]
            if prefix == self._attempts_prefix
        ]

        def record_with(snapshot_id: int, sequence: int) -> Record:
            return next_record(
                self._context,
                record,
                epoch=epoch,
                snapshot_id=snapshot_id,
                sequence=sequence,
                batches=batches,
            )

        def ledger(snapshot_id: int, sequence: int) -> dict[str, str]:
            return {key_of(self._context): as_property(record_with(snapshot_id, sequence))}

        return self._iceberg.append(
            transaction, files, summary(record_with(0, 0), joins=self._context.leaves_out), ledger
        )

    def _check_has_snapshot(self, table: Table) -> None:
        """Raise ``LostRowsError`` if the table was rolled back to before this sink's commit."""
        from weir.sinks.iceberg.ledger import has_gone_back, record_of

        context = self._context
        record = record_of(table.metadata, context, place=self.describe())
        if record is None or (context.may_have_gone_back and record.attempt < context.attempt):
            return
        if has_gone_back(table.metadata, record):
            raise gone_back(self.describe(), max(record.epoch, self._newest), 0)

    def _is_gone_back(self, table: Table, record: Record | None) -> bool:
        from weir.sinks.iceberg.ledger import has_gone_back

        if record is None:
            return self._newest > 0
        return record.epoch < self._newest or has_gone_back(table.metadata, record)

    def _is_known_of(self, payload: IcebergPayload, table: Table | None) -> bool:
        """Whether what a payload says was committed before it was committed here.

        Payloads know it of the table that they were staged for. That it should be this table,
        though it is another, follows from the landmark: a savepoint that has moved to another
        catalog has none, nor has a job that accepts duplicates.
        """
        uuid = None if table is None else str(table.metadata.table_uuid)
        return payload.owner == self._owner and (
            self._context.landmark is not None or payload.table == uuid
        )

    @property
    def _owner(self) -> str:
        context = self._context
        names = [context.job_id, context.sink, self._catalog_name, self._table_name]
        return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]

    @property
    def _accepted_rows(self) -> _Accepted:
        if self._accepted is None:
            raise InvariantError(f"{self.describe()} stages rows that it has not compared")
        return self._accepted

    @property
    def _known_table(self) -> Table:
        if self._table is None:
            raise InvariantError(f"{self.describe()} was used before its table was found")
        return self._table
