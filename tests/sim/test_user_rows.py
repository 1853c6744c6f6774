"""What the simulator gives to users' code: schemas, rows, frames, and files that crashes change."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from weir.errors import PipelineError
from weir.sim.stores.frame import Frame
from weir.sim.user.files import CrashingFiles
from weir.sim.user.rows import RowMaker
from weir.sim.user.schemas import schema_of


def test_sparks_ddl_is_read_without_spark() -> None:
    """Nested types, quoted names, NOT NULL and comments."""
    ddl = (
        "`a b` bigint NOT NULL COMMENT 'x, y', m map<string, array<decimal(5,2)>>, s struct<t:date>"
    )
    money = pa.list_(pa.decimal128(5, 2))
    assert schema_of(ddl, "step") == pa.schema(
        [
            pa.field("a b", pa.int64(), nullable=False),
            ("m", pa.map_(pa.string(), money)),
            ("s", pa.struct([("t", pa.date32())])),
        ]
    )


@pytest.mark.parametrize("ddl", ["", "id", "id nothing", "id long,", "id array<long", 7])
def test_a_schema_that_is_none_is_refused_in_one_sentence(ddl: object) -> None:
    """It names the step and the way out."""
    with pytest.raises(PipelineError, match=r"of step 'orders' is unknown to the simulator.*DDL"):
        schema_of(ddl, "orders")


def test_a_row_is_the_same_in_every_batch_and_keys_repeat() -> None:
    """Other columns have a value for each row."""
    maker, schema = RowMaker(["customer"]), "id long, customer string, at timestamp, ok boolean"
    rows = maker.source(schema, range(40), "orders").to_pylist()
    assert maker.source(schema, [17], "orders").to_pylist() == [rows[17]]
    assert len({row["id"] for row in rows}) == len({row["at"] for row in rows}) == 40
    assert len({row["customer"] for row in rows}) < 10


def test_a_transformation_keeps_the_columns_that_its_input_has() -> None:
    """The others follow from the row, whatever the batch."""
    maker = RowMaker([])
    batch = maker.source("id long, name string", range(5), "orders")
    made = maker.transformed("id long, price double", batch, "priced")
    assert made.column("id") == batch.column("id")
    assert maker.transformed("id long, price double", batch.slice(3), "priced") == made.slice(3)


def test_a_frame_gives_its_rows_and_names_what_it_lacks() -> None:
    """As a DataFrame does, without Spark."""
    frame = Frame(pa.table({"id": [1, 2], "name": ["a", "b"]}))
    [first, _] = frame.collect()
    assert (first.id, first["name"], first[0], first.asDict()) == (
        1,
        "a",
        1,
        {"id": 1, "name": "a"},
    )
    assert frame.select("name").columns == ["name"]
    assert frame.count() == 2
    with pytest.raises(PipelineError, match=r"without Spark, so frame.groupBy is not there"):
        frame.groupBy  # noqa: B018


def sync(path: Path) -> None:
    """As users do."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def crashes(tmp_path: Path, write: object) -> list[dict[str, str]]:
    """What is left of a directory after ``write`` and a crash, for some seeds."""
    left = []
    for seed in range(30):
        root, pins = tmp_path / f"run{seed}", tmp_path / f"pins{seed}"
        root.mkdir()
        pins.mkdir()
        files = CrashingFiles(root, pins)
        files.tears = Random(f"tears {seed}")
        with files.watched():
            write(root)  # type: ignore[operator]
        files.crash(Random(seed))
        left.append({path.name: path.read_text() for path in sorted(root.iterdir())})
    return left


def test_what_is_synced_survives_every_crash(tmp_path: Path) -> None:
    """A file that is synced, in a directory that is synced after it."""

    def write(root: Path) -> None:
        (root / "a").write_text("one")
        sync(root / "a")
        (root / "a").rename(root / "b")
        sync(root)

    assert crashes(tmp_path, write) == [{"b": "one"}] * 30


def test_what_is_not_synced_may_be_lost(tmp_path: Path) -> None:
    """A content, the end of it, or a name, each in some crashes and not in others."""

    def write(root: Path) -> None:
        (root / "a").write_text("one")
        sync(root / "a")
        sync(root)
        (root / "a").write_text("two")
        (root / "c").write_text("three")

    left = crashes(tmp_path, write)
    assert {one["a"] for one in left} >= {"one", "two", "t"}
    assert {one.get("c") for one in left} >= {None, "", "three", "th"}
    assert all("two".startswith(one["a"]) for one in left if one["a"] != "one")
    assert all("three".startswith(one.get("c", "")) for one in left)
