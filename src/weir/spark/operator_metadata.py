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

from weir.spark.hadoop import as_spark_path
from weir.spark.query_directory import QueryDirectory


@dataclass(frozen=True, kw_only=True)
class OperatorMetadata:
    """What Spark notes of a stateful operator of its plan."""

    #: Spark's name of its kind, such as ``stateStoreSave``.
    name: str
    #: Of ``transformWithState``: its state variables and time mode. Empty for others.
    properties: dict[str, Any] = field(default_factory=dict)


_SCHEMA_FILE = re.compile(r".*/(state/\d+/_stateSchema/.+)")


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

    Files that are links into a checkpoint are replaced, never changed.
    """
    fs = directory.fs
    for operator in fs.list(directory.file("state")):
        versions = f"state/{operator.name}/_metadata/v2"
        for status in fs.list(directory.file(versions)):
            if not status.name.isdigit():
                continue
            path = directory.file(f"{versions}/{status.name}")
            version, _, body = fs.read(path).decode().partition("\n")
            fields = json.loads(body)
            moved = False
            for store in fields.get("stateStoreInfo", []):
                before = store.get("stateSchemaFilePaths", [])
                after = [_relocated(schema, directory) for schema in before]
                if after != before:
                    store["stateSchemaFilePaths"], moved = after, True
            if not moved:
                # Left alone, it is still the file that the next incremental checkpoint refers to.
                continue
            text = f"{version}\n{json.dumps(fields, separators=(',', ':'))}"
            fs.write(path, text.encode())


def _relocated(schema: str, directory: QueryDirectory) -> str:
    match = _SCHEMA_FILE.fullmatch(schema)
    return schema if match is None else as_spark_path(directory.file(match[1]))
