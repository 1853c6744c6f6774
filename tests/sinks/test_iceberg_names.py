"""Names of columns in files without field ids, whose table changes before they are committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType
from tests.kit.iceberg_warehouse import Warehouse

from weir.core.types import Payload
from weir.errors import SinkMismatchError
from weir.sinks import IcebergTable
from weir.sinks.staging import encoded


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(None, tmp_path / "warehouse")


def flushed(sink: IcebergTable, position: int, names: tuple[str, str, str]) -> Payload:
    """One row with a long, a list and a struct, in a file as Spark would write it."""
    number, values, inner = names
    array = {"type": "array", "elementType": "long", "containsNull": True}
    struct = {"type": "struct", "fields": [column(inner, "long")]}
    columns = [column(number, "long"), column(values, array), column("st", struct)]
    frame: Any = Frame({"type": "struct", "fields": columns})
    sink._accept(frame.json())
    directory = f"{sink._attempts_prefix}-1"
    path = Path(sink._root, directory, str(position), "part-0.parquet")
    path.parent.mkdir(parents=True)
    row = {number: [position], values: [[position]], "st": [{inner: position}]}
    pq.write_table(pa.table(row), path)
    files = [{"path": path.name, "size": path.stat().st_size}]
    staged = encoded(sink._new_payload(frame, directory, position))
    return sink.flush([{**staged, "files": files}])[0]


class Frame:
    """Stands for a frame with this schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def json(self) -> str:
        return json.dumps(self._schema)


def column(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def test_columns_may_be_renamed_before_the_first_commit_of_lists(warehouse):
    """The mapping that it adds has both names, also of inner fields and of rows staged since."""
    sink = warehouse.opened()
    first = flushed(sink, 1, ("id", "tags", "x"))
    with warehouse.table().update_schema() as update:
        update.rename_column("id", "order_id").rename_column("tags", "labels")
        update.rename_column(("st", "x"), "y")
    again = warehouse.opened()
    second = flushed(again, 2, ("order_id", "labels", "y"))
    with warehouse.table().update_schema() as update:
        update.rename_column("labels", "words").add_column("more", LongType())
        update.add_column(("st", "z"), LongType())
    assert again.commit(1, [first, second]) == 2
    rows = sorted(warehouse.table().scan().to_arrow().to_pylist(), key=lambda row: row["order_id"])
    assert rows == [
        {"order_id": n, "words": [n], "st": {"y": n, "z": None}, "more": None} for n in (1, 2)
    ]


def test_a_column_that_is_dropped_before_the_first_commit_of_lists_does_no_harm(warehouse):
    """Its name is in the mapping, without which readers would refuse the file."""
    sink = warehouse.opened()
    payload = flushed(sink, 1, ("id", "tags", "x"))
    with warehouse.table().update_schema() as update:
        update.delete_column("id")
    assert sink.commit(1, [payload]) == 1
    assert warehouse.table().scan().to_arrow().to_pylist() == [{"tags": [1], "st": {"x": 1}}]


def test_a_name_that_another_column_has_taken_is_refused(warehouse):
    """Readers would show one column's values in the other."""
    sink = warehouse.opened()
    payload = flushed(sink, 1, ("id", "tags", "x"))
    with warehouse.table().update_schema() as update:
        update.rename_column("id", "order_id")
    with warehouse.table().update_schema() as update:
        update.add_column("id", LongType())
    with pytest.raises(SinkMismatchError, match="does not have 'id' under its id"):
        sink.commit(1, [payload])
