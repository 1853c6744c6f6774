"""Spark's metadata of the stateful operators of a query: which there are, and where their schemas lie.

``transformWithState`` keeps the schemas of its state variables in files below ``state/<operator>/_stateSchema``, and names
these by their full paths in ``state/<operator>/_metadata/v2/<batch>``. A query whose directory was copied or restored to
another place would look for them where they were, and fail if nothing is there any more. So the names are written anew; only
the part from ``state/`` on is the query's own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weir.core.types import StateKey
from weir.errors import StorageError
from weir.spark.query_directory import QueryDirectory
from weir.state.paths import as_spark_path
from weir.state.records import converted, decoded


@dataclass(frozen=True, kw_only=True)
class OperatorMetadata:
    """What Spark notes of a stateful operator of its plan."""

    #: Spark's name of its kind, such as ``stateStoreSave``.
    name: str
    #: Of ``transformWithState``: its state variables and time mode. Empty for others.
    properties: dict[str, Any] = field(default_factory=dict)


_SCHEMA_FILE = re.compile(r".*/(state/[0-9]+/_stateSchema/.+)")


class _Store(msgspec.Struct):
    schemas: list[str] = msgspec.field(name="stateSchemaFilePaths", default=[])


class _Stores(msgspec.Struct):
    stores: list[_Store] = msgspec.field(name="stateStoreInfo", default=[])


def operator_metadata(directory: QueryDirectory) -> dict[int, OperatorMetadata]:
    """The stateful operators of a query, by their numbers.

    Spark's ``state-metadata`` reader says the same, by a job that takes a second in a new session.
    """
    fs = directory.fs
    found: dict[int, OperatorMetadata] = {}
    numbers = (int(one.name) for one in fs.list(directory.file("state")) if one.name.isdigit())
    for number in sorted(numbers):
        folder = f"state/{number}/_metadata"
        batches = [int(one.name) for one in fs.list(directory.file(f"{folder}/v2")) if one.name.isdigit()]
        # The second version has a file for each batch that began a run; the first has one.
        path = directory.file(f"{folder}/v2/{max(batches)}" if batches else f"{folder}/metadata")
        fields = json.loads(fs.read(path).decode().partition("\n")[2])
        properties = json.loads(fields.get("operatorPropertiesJson") or "{}")
        found[number] = OperatorMetadata(name=fields["operatorInfo"]["operatorName"], properties=properties)
    return found


def relocate_operator_metadata(directory: QueryDirectory) -> None:
    """Let the metadata of all stateful operators name the schemas in this directory.

    Files that are links into a checkpoint are replaced, never changed. Raises ``StorageError`` if one names a schema that
    cannot be the query's own.
    """
    fs = directory.fs
    for operator in fs.list(directory.file("state")):
        versions = f"state/{operator.name}/_metadata/v2"
        for status in fs.list(directory.file(versions)):
            if not status.name.isdigit():
                continue
            path = directory.file(f"{versions}/{status.name}")
            version, _, body = fs.read(path).partition(b"\n")
            try:
                stores = decoded(body, _Stores).stores
                found = [[_relocated(schema, directory) for schema in store.schemas] for store in stores]
                text = version.decode()
            except ValueError as error:
                raise StorageError(
                    f"{path} does not say where the schemas of a query's state are ({error}): go on from another checkpoint"
                    " or savepoint."
                ) from error
            if found == [store.schemas for store in stores]:
                # Left alone, it is still the file that the next incremental checkpoint refers to.
                continue
            fields = json.loads(body)
            for store, schemas in zip(fields["stateStoreInfo"], found, strict=True):
                store["stateSchemaFilePaths"] = schemas
            fs.write(path, f"{text}\n{json.dumps(fields, separators=(',', ':'))}".encode())


def _relocated(schema: str, directory: QueryDirectory) -> str:
    match = _SCHEMA_FILE.fullmatch(schema)
    if match is None:
        raise ValueError(f"{schema!r} is no schema of its state")
    return as_spark_path(directory.file(converted(match[1], StateKey)))
