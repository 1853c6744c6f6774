"""What a Python operator emits, as Spark sees it: the schemas of its outputs, and one of them.

A query has one output, so all outputs of an operator share a frame. Without side outputs it has the
columns of the main output; with them (``weir/operators/output.py`` makes the rows)::

    id | ts | __weir_output | __weir_late/id | __weir_late/ts | __weir_bad/line
     7 | .. | null          | null           | null           | null
    .. | .. | 'late'        | 9              | ..             | null

Each sink and each step selects its output from it (``output_of``), from a channel too: there the
filter and the columns are pushed down into the segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weir.core.graph import MAIN_OUTPUT, GraphStep
from weir.errors import PipelineError
from weir.operators.base import Operator
from weir.operators.output import OUTPUT, tagged_column
from weir.spark.channels import EVENT_TIME
from weir.spark.failures import first_cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def output_schemas(step: GraphStep, operator: Operator, given: StructType) -> dict[str, StructType]:
    """The schemas of the operator's outputs by tag, the main one first.

    ``given`` is its input's; an event time there goes on in each output. Raises ``PipelineError``
    if a declared schema is invalid.
    """
    declared = operator.output_schema
    main = given if declared is None else declared_schema(step, declared)
    sides = {tag: declared_schema(step, one) for tag, one in operator.side_outputs.items()}
    return {
        tag: _with_event_time(schema, given) for tag, schema in {MAIN_OUTPUT: main, **sides}.items()
    }


def shared_schema(schemas: Mapping[str, StructType]) -> StructType:
    """The schema of the frame that all outputs share."""
    from pyspark.sql.types import StringType, StructField, StructType

    main = schemas[MAIN_OUTPUT]
    if len(schemas) == 1:
        return main
    fields = [StructField(one.name, one.dataType, True, one.metadata) for one in main.fields]
    fields.append(StructField(OUTPUT, StringType()))
    fields += [
        StructField(tagged_column(tag, one.name), one.dataType, True, one.metadata)
        for tag, schema in schemas.items()
        if tag != MAIN_OUTPUT
        for one in schema.fields
    ]
    return StructType(fields)


def has_side_outputs(frame: DataFrame) -> bool:
    """Whether the frame holds the rows of several outputs."""
    return OUTPUT in frame.columns


def output_of(frame: DataFrame, tag: str) -> DataFrame:
    """The rows of one output, from the frame that an operator's outputs share.

    A frame without side outputs is all main output.
    """
    from pyspark.sql import functions as F

    if not has_side_outputs(frame):
        return frame
    names = frame.columns
    if tag == MAIN_OUTPUT:
        rows = frame.filter(F.col(OUTPUT).isNull())
        return rows.select(*[F.col(_quoted(name)) for name in names[: names.index(OUTPUT)]])
    prefix = tagged_column(tag, "")
    columns = [name for name in names if name.startswith(prefix)]
    return frame.filter(F.col(OUTPUT) == tag).select(
        *[F.col(_quoted(name)).alias(name.removeprefix(prefix)) for name in columns]
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _with_event_time(schema: StructType, given: StructType) -> StructType:
    """The schema with the metadata of the input's event time on the column that goes on as it.

    Its name and type are those of the input's. So Spark keeps the watermark, which it would
    otherwise derive again from the rows (PROTOCOL P25).
    """
    from pyspark.sql.types import StructField, StructType

    timed = {one.name: one for one in given.fields if EVENT_TIME in one.metadata}
    return StructType(
        [
            StructField(one.name, one.dataType, one.nullable, timed[one.name].metadata)
            if one.name in timed and timed[one.name].dataType == one.dataType
            else one
            for one in schema.fields
        ]
    )


def declared_schema(step: GraphStep, declared: str | StructType) -> StructType:
    """The schema that an operator or a source declares, as a ``StructType`` or as Spark DDL.

    Raises ``PipelineError`` if Spark cannot read it or it has no columns.
    """
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(declared) if isinstance(declared, str) else declared
    except Exception as error:
        raise PipelineError(
            f"Step {step.name!r} has an invalid schema {declared!r}: {first_cause(error)}."
        ) from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise PipelineError(
            f"The schema {declared!r} of step {step.name!r} has no columns: write 'id long', or use"
            " a StructType with fields."
        )
    return schema
