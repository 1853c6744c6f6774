"""Names that no table and no column can have are refused when a sink is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weir
from weir.errors import PipelineError, SinkError
from weir.operators import Operator
from weir.sinks import DeltaTable, Files, IcebergTable, PostgresTable, Sink

ODD = "a\udcff"
CATALOG = {"name": "c", "type": "sql"}
SINKS: dict[str, Callable[[str], Sink]] = {
    "a partition of a Delta table": lambda name: DeltaTable("out", partition_by=[name]),
    "a key of a Delta table": lambda name: DeltaTable("out", mode="upsert", key=["id", name]),
    "a partition of files": lambda name: Files("out", partition_by=[name]),
    "a table of PostgreSQL": lambda name: PostgresTable("host=db", name),
    "a key of PostgreSQL": lambda name: PostgresTable("host=db", "t", "upsert", key=[name]),
    "an Iceberg table": lambda name: IcebergTable(CATALOG, f"ns.{name}"),
}


@pytest.mark.parametrize("make", SINKS.values(), ids=SINKS.keys())
@pytest.mark.parametrize("name", [ODD, "a\0b"])
def test_a_name_that_is_not_utf8_text_is_refused(make: Callable[[str], Sink], name: str) -> None:
    """A library would raise its own error, in the middle of a start or of a batch."""
    with pytest.raises(SinkError, match="is not UTF-8 text"):
        make(name)


def test_a_key_of_an_operator_that_is_not_utf8_text_is_refused() -> None:
    """Java would look for another column."""
    job = weir.Job("odd")
    rows = job.source("rows", lambda spark: spark.readStream)
    given: Any = Operator()
    with pytest.raises(PipelineError, match=r"keyed by 'a.udcff', which is not UTF-8 text"):
        rows.process("p", given, key_by=ODD)
