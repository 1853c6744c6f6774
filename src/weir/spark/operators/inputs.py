"""What goes into a Python operator: its inputs as one frame, with partition i for subtask i.

A connected operator gets the rows of both inputs (``weir/operators/connected.py``). With
``key_by``, all rows of a key go to one subtask, whichever input they come from: each row brings its
key group as the last column, and those of a connected operator their key in columns of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weir.core.graph import GraphStep
from weir.errors import PipelineError
from weir.operators.connected import INPUT
from weir.operators.output import tagged_column
from weir.operators.state.types import KEY_GROUPS
from weir.spark.operators.worker import KEY_GROUP
from weir.subtasks.worker import key_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType


def given_schema(inputs: Sequence[DataFrame]) -> StructType:
    """The columns of all inputs, among them those with an event time."""
    from pyspark.sql.types import StructType

    return StructType([field for frame in inputs for field in frame.schema.fields])


def partitioned(
    step: GraphStep, inputs: Sequence[DataFrame], key_by: Sequence[Sequence[str]], parallelism: int
) -> DataFrame:
    """The rows of all inputs, those of subtask i in partition i.

    ``key_by`` has the names of the key's columns in each input; it is empty without a key. Raises
    ``PipelineError`` if an input lacks one of them, one is a collection, or the keys differ in
    their types.
    """
    from pyspark.sql import functions as F

    for number, names in enumerate(key_by):
        _check_columns(step, inputs[number], names)
    if len(key_by) > 1:
        _check_types(step, inputs, key_by)
    frame = inputs[0] if len(inputs) == 1 else _connected(inputs, key_by)
    if not key_by:
        return frame.repartition(parallelism)
    hashed = F.xxhash64(*[_column(name) for name in key_columns(key_by)])
    group = F.pmod(hashed, F.lit(KEY_GROUPS)).cast("int")
    subtask = F.floor(F.col(KEY_GROUP) * parallelism / KEY_GROUPS).cast("int")
    return frame.withColumn(KEY_GROUP, group).repartitionById(parallelism, subtask)


def key_types(
    inputs: Sequence[DataFrame], key_by: Sequence[Sequence[str]]
) -> list[tuple[str, str]]:
    """The names and types of the key's columns, those of the first input; none without a key.

    Both decide to which key group a key belongs.
    """
    return [
        (name, inputs[0].schema[name].dataType.simpleString())
        for names in key_by[:1]
        for name in names
    ]


def _connected(inputs: Sequence[DataFrame], key_by: Sequence[Sequence[str]]) -> DataFrame:
    """The union of the inputs: number of the input, columns of each, key."""
    from pyspark.sql import functions as F

    branches = []
    for number, frame in enumerate(inputs, start=1):
        columns = [F.lit(number).alias(INPUT)]
        for other, one in enumerate(inputs, start=1):
            for field in one.schema.fields:
                value = _column(field.name) if other == number else F.lit(None)
                column = value.cast(field.dataType) if other != number else value
                columns.append(column.alias(tagged_column(str(other), field.name)))
        if key_by:
            own = zip(key_columns(key_by), key_by[number - 1], strict=True)
            columns += [_column(name).alias(key) for key, name in own]
        branches.append(frame.select(*columns))
    return branches[0].union(branches[1])


def _check_columns(step: GraphStep, frame: DataFrame, names: Sequence[str]) -> None:
    for column in names:
        if column not in frame.columns:
            raise PipelineError(
                f"Step {step.name!r} is keyed by {column!r}, but its input has the columns"
                f" {', '.join(frame.columns)}: name some of these with key_by."
            )
        kind = frame.schema[column].dataType
        if _has_collection(kind):
            raise PipelineError(
                f"Step {step.name!r} is keyed by {column!r} of type {kind.simpleString()}, but keys"
                " cannot be or contain arrays, maps or variants: key by columns of plain types, or"
                " by a text that is made of it."
            )


def _has_collection(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, StructType):
        return any(_has_collection(field.dataType) for field in kind.fields)
    return isinstance(kind, ArrayType | MapType | VariantType)


def _check_types(
    step: GraphStep, inputs: Sequence[DataFrame], key_by: Sequence[Sequence[str]]
) -> None:
    for first, second in zip(*key_by, strict=True):
        types = [
            frame.schema[name].dataType.simpleString()
            for frame, name in zip(inputs, (first, second), strict=True)
        ]
        if types[0] != types[1]:
            raise PipelineError(
                f"Step {step.name!r} is keyed by {first!r} of type {types[0]} and {second!r} of"
                f" type {types[1]}, so no key of one input would meet one of the other: cast one"
                " of them."
            )


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")
