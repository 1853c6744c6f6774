"""What an operator puts out must be what its step declares: Spark takes columns by position, and reads no other type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.core.types import OperatorId


def fitted(batch: pa.RecordBatch, schema: pa.Schema, operator_id: OperatorId) -> pa.RecordBatch:
    """The batch with the columns of ``schema``, in its order and of its types.

    Raises ``PipelineError`` if a column is missing or one too many, or if values do not fit their type.
    """
    import pyarrow as pa

    if batch.schema.names == schema.names and batch.schema.types == schema.types:
        return batch
    if sorted(batch.schema.names) != sorted(schema.names):
        raise PipelineError(
            f"Operator {operator_id!r} puts out the columns {_listed(batch.schema)}, but declares"
            f" {_listed(schema)}: let its output_schema name what it puts out."
        )
    try:
        return batch.select(schema.names).cast(pa.schema(zip(schema.names, schema.types, strict=True)))
    except (pa.ArrowException, ValueError, TypeError) as error:
        wrong = [
            f"{name} as {batch.schema.field(name).type}, not {schema.field(name).type}"
            for name in schema.names
            if batch.schema.field(name).type != schema.field(name).type
        ]
        raise PipelineError(
            f"Operator {operator_id!r} puts out {', '.join(wrong)}, which its output_schema declares, and the values"
            f" do not fit ({error}): change the one or the other."
        ) from error


def _listed(schema: pa.Schema) -> str:
    return ", ".join(schema.names)
