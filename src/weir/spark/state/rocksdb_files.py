"""Lists exactly the state files of the state after a batch, from Spark's own lists (PROTOCOL P4).

With state checkpoint format 2 every file has a unique name and is never rewritten, and
``commits/b`` names the state of each partition by id. The state after batch b has version b+1. If
``<version>_<id>.zip`` exists, the state is that file and the SST and log files that its
``metadata`` names; else it is ``<version>_<id>.changelog`` and the state of the version before. So
the state is a chain that ends in a snapshot or at version 1. The ids of versions before a restore
come from the names of the restored files.

A partition may have several stores (a stream-stream join has four): then each has a directory with
its name.

**Metadata of operators** (``OperatorMetadata``). ``transformWithState`` keeps the schemas of its
state variables in files below ``state/<operator>/_stateSchema``, and refers to them by full path in
``state/<operator>/_metadata/v2/<batch>``. In a copied or restored directory these paths still point
to the old place, and the query fails if the files are gone. So the paths are rewritten; only the
part from ``state/`` on is the query's own.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec

from weir.core.types import StateKey
from weir.errors import StorageError
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.log_entries import OperatorMetadata, decode_operator, edited_operator
from weir.storage.paths import as_spark_path
from weir.storage.records import converted, decoded

#: The stores of a stream-stream join (state format 2), in the order in which ``commits/b`` lists
#: their ids.
_JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)

_VERSIONED = re.compile(
    r"(?P<store>state/.+)/(?P<version>\d+)_(?P<id>[0-9a-fA-F-]{36})\.(zip|changelog)"
)


#: The largest accepted ``metadata`` in a ``.zip``, uncompressed.
_METADATA_MAX_BYTES = 64 * 1024 * 1024

_FileName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9_.-]*\Z")]


class _Table(msgspec.Struct):
    name: _FileName = msgspec.field(name="dfsSstFileName")


class _Log(msgspec.Struct):
    name: _FileName = msgspec.field(name="dfsLogFileName")


class _SnapshotMetadata(msgspec.Struct):
    tables: list[_Table] = msgspec.field(name="sstFiles", default=[])
    logs: list[_Log] = msgspec.field(name="logFiles", default=[])


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """A ``.zip`` and the files that it names."""

    key: str
    files: tuple[str, ...]


class StateFiles:
    """Lists the state files of one query, and reads each batch's commit-log entry once."""

    def __init__(self, directory: QueryDirectory, restored: Iterable[str], position: int) -> None:
        """``restored`` has the keys of the restored files, which cover batches to ``position``."""
        self._directory = directory
        self._known = position
        #: store directory -> version -> id
        self._ids: dict[str, dict[int, str]] = {}
        #: Snapshots that have been read, by (store directory, version).
        self._snapshots: dict[tuple[str, int], _Snapshot] = {}
        for key in restored:
            match = _VERSIONED.fullmatch(key)
            if match is not None:
                self._ids.setdefault(match["store"], {})[int(match["version"])] = match["id"]

    def keys(self, position: int) -> list[str]:
        """The keys of all files of the state after the batch. Empty for a stateless query.

        Raises ``StorageError`` if the id of a version is unknown, or a commit-log entry or snapshot
        cannot be read.
        """
        for batch in range(self._known + 1, position + 1):
            self._learn(batch)
        self._known = max(self._known, position)
        keys: list[str] = []
        for store in self._ids:
            keys.extend(self._chain(store, position + 1))
        keys.extend(self._schema_files())
        return keys

    def _learn(self, batch: int) -> None:
        unique_ids = self._directory.commit_entry(batch).state_ids or {}
        for operator, partitions in unique_ids.items():
            for partition, ids in enumerate(partitions):
                base = f"state/{operator}/{partition}"
                for store, unique_id in zip(_store_directories(base, len(ids)), ids, strict=True):
                    self._ids.setdefault(store, {})[batch + 1] = unique_id

    def _chain(self, store: str, version: int) -> Iterator[str]:
        """The keys from the version back to a snapshot or version 1; forgets older ids."""
        ids = self._ids[store]
        while version > 0:
            snapshot = self._snapshot(store, version, ids)
            if snapshot is not None:
                yield snapshot.key
                yield from snapshot.files
                break
            yield f"{self._stem(store, version, ids)}.changelog"
            version -= 1
        for old in [known for known in ids if known < version]:
            del ids[old]
            self._snapshots.pop((store, old), None)

    def _snapshot(self, store: str, version: int, ids: dict[int, str]) -> _Snapshot | None:
        known = self._snapshots.get((store, version))
        if known is not None:
            return known
        key = f"{self._stem(store, version, ids)}.zip"
        fs = self._directory.fs
        if fs.status(self._directory.file(key)) is None:
            return None
        named = self._named(key)
        files = [f"{store}/SSTs/{file.name}" for file in named.tables]
        files += [f"{store}/logs/{file.name}" for file in named.logs]
        snapshot = _Snapshot(key=key, files=tuple(files))
        self._snapshots[store, version] = snapshot
        return snapshot

    def _named(self, key: str) -> _SnapshotMetadata:
        """The files that a ``.zip`` names. It is not trusted: it may have come from elsewhere."""
        path = self._directory.file(key)
        try:
            with zipfile.ZipFile(io.BytesIO(self._directory.fs.read(path))) as archive:
                if archive.getinfo("metadata").file_size > _METADATA_MAX_BYTES:
                    raise ValueError("its list of files is too long")
                text = archive.read("metadata")
            return decoded(text[text.index(b"{") :], _SnapshotMetadata)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            LookupError,
            RuntimeError,
            ValueError,
        ) as error:
            raise StorageError(
                f"{path} is not a snapshot of Spark's state ({error}): restore from another"
                " checkpoint or savepoint."
            ) from error

    def _stem(self, store: str, version: int, ids: dict[int, str]) -> str:
        unique_id = ids.get(version)
        if unique_id is None:
            raise StorageError(
                f"{self._directory.path}/{store} has no known version {version}: its state cannot"
                " be saved."
            )
        return f"{store}/{version}_{unique_id}"

    def _schema_files(self) -> Iterator[str]:
        """The keys of schemas and operator metadata, which Spark reads before any state."""
        operators = {store.split("/")[1] for store in self._ids}
        for operator in sorted(operators):
            base = f"state/{operator}"
            yield from self._below(f"{base}/_metadata")
            yield from self._below(f"{base}/_stateSchema")
        for store in self._ids:
            if store.split("/")[2] == "0":  # Spark keeps schemas in the first partition only
                yield from self._below(f"{store}/_metadata")

    def _below(self, directory: str) -> Iterator[str]:
        for status in self._directory.fs.list(self._directory.file(directory)):
            if status.name.startswith("."):
                continue
            key = f"{directory}/{status.name}"
            if status.is_directory:
                yield from self._below(key)
            else:
                yield key


def is_uniquely_named(key: str) -> bool:
    """Whether a file of this name is never rewritten: true of state files, not of schemas."""
    return "_metadata" not in key and "_stateSchema" not in key


def _store_directories(base: str, count: int) -> tuple[str, ...]:
    if count == 1:
        return (base,)
    if count != len(_JOIN_STORES):
        raise StorageError(
            f"{base} has {count} stores, and Weir knows state with 1 or {len(_JOIN_STORES)}."
        )
    return tuple(f"{base}/{name}" for name in _JOIN_STORES)


_SCHEMA_FILE = re.compile(r".*/state/[0-9]+/(_stateSchema/.+)")


def operator_metadata(directory: QueryDirectory) -> dict[int, OperatorMetadata]:
    """The stateful operators of a query, by number.

    Spark's ``state-metadata`` reader returns the same, in a Spark job that takes a second in a new
    session.
    """
    fs = directory.fs
    found: dict[int, OperatorMetadata] = {}
    numbers = (
        int(entry.name) for entry in fs.list(directory.file("state")) if entry.name.isdigit()
    )
    for number in sorted(numbers):
        folder = f"state/{number}/_metadata"
        batches = [
            int(entry.name)
            for entry in fs.list(directory.file(f"{folder}/v2"))
            if entry.name.isdigit()
        ]
        # Version 2 has a file for each batch that started a run, version 1 a single file.
        path = directory.file(f"{folder}/v2/{max(batches)}" if batches else f"{folder}/metadata")
        found[number] = decode_operator(fs.read(path).decode())
    return found


def relocate_operator_metadata(directory: QueryDirectory) -> None:
    """Rewrite the metadata of all stateful operators to be that of this directory.

    It names the schemas in this directory, and the operator's number in it. Files that are links
    into a checkpoint are replaced, never changed in place. Raises ``StorageError`` if
    the metadata names a schema that cannot be the query's own.
    """
    fs = directory.fs
    for operator in fs.list(directory.file("state")):
        for path in _metadata_files(directory, operator.name):
            number = int(operator.name)
            try:
                entry = fs.read(path).decode()
                metadata = decode_operator(entry)
                stores = metadata.stores
                found = [
                    [_relocated(schema, directory, operator.name) for schema in store.schemas]
                    for store in stores
                ]
                edited = edited_operator(entry, number=number, schemas=found)
            except ValueError as error:
                raise StorageError(
                    f"{path} does not say where the schemas of a query's state are ({error}):"
                    " restore from another checkpoint or savepoint."
                ) from error
            if metadata.operator.number == number and found == [store.schemas for store in stores]:
                # Unchanged, it can be shared with the next incremental checkpoint.
                continue
            fs.write(path, edited.encode())


def _metadata_files(directory: QueryDirectory, operator: str) -> list[str]:
    """The paths of the metadata files of a stateful operator, of both versions."""
    if not operator.isdigit():
        return []
    folder = f"state/{operator}/_metadata"
    fs = directory.fs
    found = [
        directory.file(f"{folder}/v2/{status.name}")
        for status in fs.list(directory.file(f"{folder}/v2"))
        if status.name.isdigit()
    ]
    first = directory.file(f"{folder}/metadata")
    return found if fs.status(first) is None else [first, *found]


def _relocated(schema: str, directory: QueryDirectory, operator: str) -> str:
    match = _SCHEMA_FILE.fullmatch(schema)
    if match is None:
        raise ValueError(f"{schema!r} is not a schema of its state")
    return as_spark_path(directory.file(converted(f"state/{operator}/{match[1]}", StateKey)))
