"""The schemas that operators and sources declare."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from weir.core.graph import GraphStep, StepKind
from weir.errors import PipelineError
from weir.spark.operators.outputs import declared_schema

STEP = GraphStep(name="count", kind=StepKind.PROCESS, inputs=("in",))
FIELDS = StructType(
    [StructField("key", StringType()), StructField("n", LongType(), nullable=False)]
)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_struct_type_and_its_ddl_declare_the_same_schema() -> None:
    """Spark people write either."""
    assert declared_schema(STEP, FIELDS) == declared_schema(STEP, "key string, n long not null")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("declared", ["", "long", "id lnog", StructType([])])
def test_a_schema_without_columns_or_with_an_unknown_type_is_refused_by_its_step(
    declared: str | StructType,
) -> None:
    """The error names the step and the schema."""
    with pytest.raises(PipelineError, match=r"(?i)step 'count'") as refused:
        declared_schema(STEP, declared)
    assert f"schema {declared!r}" in str(refused.value)
