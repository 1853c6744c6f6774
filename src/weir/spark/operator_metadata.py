"""Spark's metadata of a stateful operator, after the query's directory has become another one.

``transformWithState`` keeps the schemas of its state variables in files below ``state/<operator>/_stateSchema``, and names
these by their full paths in ``state/<operator>/_metadata/v2/<batch>``. A query whose directory was copied or restored to
another place would look for them where they were, and fail if nothing is there any more. So the names are written anew; only
the part from ``state/`` on is the query's own.
"""

from __future__ import annotations

import json
import re

from weir.spark.hadoop import as_spark_path
from weir.spark.query_directory import QueryDirectory

_SCHEMA_FILE = re.compile(r".*/(state/\d+/_stateSchema/.+)")


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
