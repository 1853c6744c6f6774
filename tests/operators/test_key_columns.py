"""Which columns a Python operator may be keyed by (weir/spark/operators/inputs.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from weir.core.graph import GraphStep, StepKind
from weir.errors import PipelineError
from weir.spark.operators.inputs import key_types, partitioned

STEP = GraphStep(name="count", kind=StepKind.PROCESS, inputs=("in",))


def frame(**columns: DataType) -> Any:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    return SimpleNamespace(schema=schema, columns=schema.names)


INTEGERS = ArrayType(IntegerType())


@pytest.mark.parametrize(
    "kind",
    [
        INTEGERS,
        MapType(StringType(), IntegerType()),
        StructType([StructField("a", DateType()), StructField("b", INTEGERS)]),
        VariantType(),
    ],
)
def test_a_collection_is_refused_as_a_key_before_a_batch_runs(kind: DataType) -> None:
    """State could not find it again, and a map has no hash."""
    with pytest.raises(PipelineError) as refused:
        partitioned(STEP, [frame(id=IntegerType(), tags=kind)], (("id", "tags"),), 2)
    says = str(refused.value)
    of = kind.simpleString()
    assert says.startswith(f"Step 'count' is keyed by 'tags' of type {of}, but keys cannot be")


def test_the_key_is_that_of_the_first_input() -> None:
    """The other one has columns of the same types."""
    inputs = [
        frame(id=IntegerType(), at=DateType()),
        frame(of=IntegerType(), on=DateType()),
    ]
    assert key_types(inputs, (("at", "id"), ("on", "of"))) == [("at", "date"), ("id", "int")]
    assert key_types(inputs[:1], ()) == []
