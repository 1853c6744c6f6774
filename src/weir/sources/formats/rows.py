"""Puts the columns of a file together."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.operators.conversion import null_in


def batch_of(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """The rows. Raises ``ValueError`` for a null that the schema does not allow."""
    for field, column in zip(schema, columns, strict=True):
        name = null_in(column, field)
        if name:
            raise ValueError(f"a null in {name!r}, which the schema declares as NOT NULL")
    return pa.RecordBatch.from_arrays(columns, schema=schema)
