"""Columns in the names of directories, as in ``dt=2026-03-01/part-0.parquet`` (Hive, Spark)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

import pyarrow as pa

from weir.sources.formats.names import folded
from weir.sources.formats.text_values import parsed

#: What Hive and Spark write for null.
_NULL = "__HIVE_DEFAULT_PARTITION__"


def partitions(name: str) -> dict[str, str | None]:
    """The values in the directories of a relative path, by folded name.

    Raises ``ValueError`` if a name is there twice.
    """
    found: dict[str, str | None] = {}
    for directory in name.split("/")[:-1]:
        column, equals, text = directory.partition("=")
        if equals:
            key = folded(unquote(column))
            if key in found:
                raise ValueError(f"two of its directories are called {key}=")
            found[key] = None if text == _NULL else unquote(text)
    return found


def in_directories(schema: pa.Schema, values: Mapping[str, str | None]) -> dict[int, pa.Scalar]:
    """The values of the columns of the schema that are in directories, by their places.

    Raises ``ValueError`` for a text that is not a value of its column.
    """
    found: dict[int, pa.Scalar] = {}
    for place, field in enumerate(schema):
        key = folded(field.name)
        if key in values:
            texts = pa.array([values[key]], pa.string())
            found[place] = parsed(texts, field.type, field.name)[0]
    return found
