"""A table in an Iceberg catalog: found, created, appended to; what goes wrong, in words.

pyiceberg knows the catalog by its name, or by properties without secrets. Secrets come
from pyiceberg's own configuration (``~/.pyiceberg.yaml``, ``PYICEBERG_CATALOG__NAME__KEY``), and no
message repeats a property's value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    WaitingForLockException,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField
from pyiceberg.utils.config import Config
from sqlalchemy.exc import InterfaceError, OperationalError

from weir.errors import SinkError, SinkMismatchError, StorageError, WeirError
from weir.sinks.iceberg.client import DurableFileIO, OneCommit
from weir.sinks.iceberg.partitions import check_spec
from weir.sinks.staging import ConflictError
from weir.storage.paths import normalize, scheme_of

#: What pass by themselves.
_PASSING = (
    OSError,
    CommitFailedException,
    CommitStateUnknownException,
    InterfaceError,
    OperationalError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    WaitingForLockException,
)
#: Properties and parameters of URIs that are, or may be, secrets. A header can be any.
_SECRET = re.compile(
    r"\A(auth|header)(\.|\Z)|api[-_.]?key|passw|secret|token|credential|authorization"
    r"|account-key|access-key|private-key|connection-str",
    re.IGNORECASE,
)
_S3 = re.compile(r"\As3n?://")
_FORMAT_VERSION = 2
_WAREHOUSE = "warehouse"
#: What pyiceberg reaches only by Hadoop's native library, which few machines have.
_HADOOP = frozenset({"hdfs", "viewfs"})


class IcebergTarget:
    """A table, which may not exist yet, in a catalog, which is asked for at the first use.

    Every method raises ``StorageError`` for what passes by itself (the outcome of a commit may then
    be unknown), and ``SinkError`` for what does not.
    """

    #: Reaches the catalog; the simulator has its own.
    _client: Callable[..., Catalog] = staticmethod(load_catalog)

    def __init__(self, catalog: str | Mapping[str, str], table: str, *, place: str) -> None:
        """``place`` is the sink, for messages."""
        self._place = place
        self._identifier = table
        if "" in table.split(".") or "." not in table:
            raise SinkError(f"{place} needs a table such as 'sales.orders': add its namespace.")
        properties = {} if isinstance(catalog, str) else dict(catalog)
        self._catalog_name = catalog if isinstance(catalog, str) else properties.pop("name", None)
        _check_properties(properties, place)
        self._properties = properties
        self._check_reached(str(properties.get(_WAREHOUSE) or self._configured(_WAREHOUSE)))
        self._catalog: Catalog | None = None

    def load(self) -> Table | None:
        """The table as it is now, or None if there is none."""
        with self._explained():
            try:
                return self._loaded_catalog().load_table(self._identifier)
            except NoSuchTableError:
                return None

    def check_creation(self) -> None:
        """Raise ``SinkError`` if the catalog lacks the namespace for a new table."""
        with self._explained():
            namespace = Catalog.namespace_from(self._identifier)
            if not self._loaded_catalog().namespace_exists(namespace):
                raise SinkError(
                    f"{self._place} cannot be created, since the catalog has no namespace"
                    f" {'.'.join(namespace)!r}: create the namespace first."
                )

    def new_table(self) -> TableMetadata:
        """What the catalog would create as a new table; nothing is created."""
        with self._explained():
            schema = Schema(NestedField(1, "id", LongType(), required=False))
            staged = self._loaded_catalog().create_table_transaction(self._identifier, schema)
            return staged.table_metadata

    def create(self, schema: Schema, spec: PartitionSpec) -> Table:
        """Create the table without rows, unless it exists; the catalog chooses the field ids."""
        with self._explained():
            catalog = self._loaded_catalog()
            try:
                return catalog.create_table(
                    self._identifier,
                    schema,
                    partition_spec=spec,
                    properties={TableProperties.FORMAT_VERSION: str(_FORMAT_VERSION)},
                )
            except TableAlreadyExistsError:
                return catalog.load_table(self._identifier)

    def transaction(self, table: Table) -> Transaction:
        """What is to be committed at once, if the table is still as it was when it was loaded."""
        # Manifests are merged by default, as Iceberg has it, but not pyiceberg. Properties that are
        # only here are not committed.
        defaults = {TableProperties.MANIFEST_MERGE_ENABLED: "true"}
        once = Table(
            table.name(),
            table.metadata.model_copy(update={"properties": {**defaults, **table.properties}}),
            table.metadata_location,
            table.io,
            OneCommit(self._loaded_catalog()),
        )
        return once.transaction()

    def append(
        self,
        transaction: Transaction,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Callable[[int, int], dict[str, str]],
    ) -> Table:
        """Commit the transaction with one more snapshot, which adds the files.

        ``properties`` gives the table properties to be set with it, from the snapshot's id and
        sequence number. Raises ``ConflictError`` if the table has changed.
        """
        with self._explained():
            update = transaction.update_snapshot(snapshot_properties=dict(summary))
            snapshot = update.merge_append()
            for file in files:
                snapshot.append_data_file(file)
            sequence = transaction.table_metadata.next_sequence_number()
            transaction.set_properties(properties(snapshot.snapshot_id, sequence))
            snapshot.commit()
            return transaction.commit_transaction()

    def had_data_location(self, table: Table, location: str) -> bool:
        """Whether the table's data once lay there, as far as its earlier metadata remain."""
        with self._explained():
            for entry in reversed(table.metadata.metadata_log):
                try:
                    earlier = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
                except FileNotFoundError:
                    continue
                if data_location(earlier) == location:
                    return True
        return False

    def check_table(self, table: Table, partition_by: Sequence[str]) -> None:
        """Raise ``SinkError`` for a table to which the sink cannot append exactly."""
        self._check_reached(table.location())
        version = table.metadata.format_version
        if version != _FORMAT_VERSION:
            raise SinkMismatchError(
                f"{self._place} has format version {version}, and only version"
                f" {_FORMAT_VERSION} is written: upgrade an older table, or write to another table."
            )
        spec, schema = table.spec(), table.schema()
        check_spec(spec, schema, place=self._place)
        names = [
            schema.find_column_name(field.source_id) if str(field.transform) == "identity" else None
            for field in spec.fields
        ]
        if partition_by and names != list(partition_by):
            shown = ", ".join(f"{field.transform} of {field.name!r}" for field in spec.fields)
            raise SinkMismatchError(
                f"{self._place} is partitioned by {shown or 'nothing'}, not by"
                f" {list(partition_by)}: leave partition_by out, which keeps to the table, or"
                " write to another table."
            )

    def _configured(self, key: str) -> object:
        """A property in pyiceberg's own configuration; None without one."""
        try:
            config = Config()
            name = self._catalog_name or config.get_default_catalog_name()
            return (config.get_catalog_config(name) or {}).get(key)
        except ValueError:
            # Loading the catalog reports it.
            return None

    def _check_reached(self, location: str) -> None:
        """Raise ``SinkError`` for a location that pyiceberg cannot write to."""
        if scheme_of(location) in _HADOOP:
            raise SinkError(
                f"{self._place} lies at {location}, but pyiceberg cannot commit to HDFS: choose a"
                " catalog whose warehouse is in an object store or on a mounted path, or write a"
                " DeltaTable, which can lie on HDFS."
            )

    def _loaded_catalog(self) -> Catalog:
        if self._catalog is None:
            catalog = self._client(self._catalog_name, **self._properties)
            catalog.properties.setdefault(
                "py-io-impl", f"{DurableFileIO.__module__}.{DurableFileIO.__name__}"
            )
            self._catalog = catalog
        return self._catalog

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (WeirError, ConflictError):
            raise
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, _PASSING):
                raise StorageError(
                    f"{self._place} does not answer now ({said}): check the catalog, the table's"
                    " files and the way to them; the job continues once they are back."
                ) from error
            raise SinkError(
                f"{self._place} refuses what Weir asks of it ({said}): check the catalog's"
                " configuration, the table, and what Weir may do there."
            ) from error


def data_location(metadata: TableMetadata) -> str:
    """Where a table's data files lie, as its readers spell it."""
    given = metadata.properties.get(TableProperties.WRITE_DATA_PATH)
    return (given or f"{metadata.location.removesuffix('/')}/data").removesuffix("/")


def data_root(metadata: TableMetadata) -> str:
    """Where a table's data files lie, as Weir and Spark spell it."""
    return for_hadoop(data_location(metadata))


def metadata_directory(metadata: TableMetadata) -> str:
    """Where a table's metadata files lie, as Weir spells it: they exist as long as the table."""
    given = metadata.properties.get(TableProperties.WRITE_METADATA_PATH)
    return for_hadoop(given or f"{metadata.location.removesuffix('/')}/metadata")


def for_hadoop(location: str) -> str:
    """A location in a table's metadata; Iceberg says ``s3://`` where Hadoop says ``s3a://``."""
    return normalize(_S3.sub("s3a://", location))


def _check_properties(properties: Mapping[str, object], place: str) -> None:
    """Raise ``SinkError`` for a property that may be a secret or is not a string.

    The message never repeats its value.
    """
    for key, value in properties.items():
        if _SECRET.search(key) or ("://" in str(value) and _has_secret(str(value))):
            raise SinkError(
                f"The catalog property {key!r} of {place} may be a secret, which could reach logs:"
                " remove it, and put it into ~/.pyiceberg.yaml or a variable such as"
                " PYICEBERG_CATALOG__DEFAULT__URI, under the catalog's name."
            )
        # A pipeline is not checked for types before it runs.
        if not isinstance(value, str):
            raise SinkError(
                f"The catalog property {key!r} of {place} is not a string, as pyiceberg needs it:"
                " write it in quotes, or put it into ~/.pyiceberg.yaml under the catalog's name."
            )


def _has_secret(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return parts.password is not None or any(
            _SECRET.search(name) for name, _ in parse_qsl(parts.query)
        )
    except ValueError:
        # Whatever it is, it is not repeated.
        return True
