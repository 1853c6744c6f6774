"""``rows_as_json``: rows as JSON texts, in Python, as Spark's ``to_json`` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

_encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def rows_as_json(batch: pa.RecordBatch) -> list[str]:
    """Each row as a JSON object, nulls included: bytes in base64, times in ISO 8601."""
    import pyarrow as pa

    maps = [
        name
        for name, kind in zip(batch.schema.names, batch.schema.types, strict=True)
        if pa.types.is_map(kind)
    ]
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        for name in maps:
            if row[name] is not None:
                row[name] = {str(key): value for key, value in row[name]}
    return [_encoder.encode(row).decode() for row in rows]
