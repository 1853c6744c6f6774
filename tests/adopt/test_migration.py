"""The patterns of docs/MIGRATION.md write the same before and after, through a kill.

Each script runs on plain Spark, which reads all of the input. Each job reads half of it, is killed
before its record of a checkpoint, and goes on by the same command with the other half.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.kit.adopted_script import Output, Rows, run_without_weir
from tests.kit.place import Place

from weir.job import definition_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "MIGRATION.md").read_text().split("## Ten patterns")[1]
#: By pattern, the tables that are compared.
TABLES = {
    "Two tables from one source": ("everything", "large"),
    "foreachBatch with MERGE": ("customers",),
    "availableNow": ("copy",),
    "Update mode": ("spent",),
    "Complete mode": ("counts",),
    "applyInPandasWithState": ("totals",),
    "transformWithState": ("counted",),
    "Deduplication": ("once",),
    "A join of two streams": ("paid",),
    "Listeners": ("seen",),
}
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_ROWS_PER_FILE = 40


def scripts(pattern: str) -> tuple[str, str]:
    """The whole script before, and the pipeline after."""
    begin_before, begin_after = re.findall(r"```python\n(.*?)```", PAGE.split("### ")[0], re.DOTALL)
    section = PAGE.split(f"### {pattern}\n")[1].split("\n### ")[0]
    before, after = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    whole = "weir.Job(" in after
    return f"{begin_before}\n\n{before}", after if whole else f"{begin_after}\n\n{after}"


def land(directory: Path, half: int) -> None:
    """Half of the orders, some of which come twice, and of their payments."""
    for number in range(half * 3, half * 3 + 3):
        chance = random.Random(number)
        orders: list[dict[str, Any]] = []
        payments = []
        for id in range(number * _ROWS_PER_FILE, (number + 1) * _ROWS_PER_FILE):
            at = _FIRST + timedelta(minutes=id)
            order = {
                "id": id,
                "customer": f"customer {chance.randrange(9)}",
                "amount": chance.randrange(200),
                "at": at.isoformat(),
            }
            orders.extend([order] * chance.choice([1, 1, 2]))
            if chance.random() < 0.7:
                paid = at + timedelta(minutes=chance.randrange(30))
                payments.append({"order": id, "paid": paid.isoformat()})
        for name, rows in (("orders", orders), ("payments", payments)):
            folder = directory / "in" / name
            folder.mkdir(parents=True, exist_ok=True)
            hidden = folder / f".{number}.json"
            hidden.write_text("\n".join(map(json.dumps, rows)))
            hidden.rename(folder / f"{number}.json")


def table(directory: Path, name: str) -> Rows:
    """The rows of an output, a Delta table or Parquet files."""
    path = directory / "out" / name
    if not DeltaTable.is_deltatable(str(path)):
        return Output(directory=directory / "out", printed="").files(name)
    read: pa.Table = DeltaTable(path).to_pyarrow_table()
    return Counter(json.dumps(row, sort_keys=True, default=_text) for row in read.to_pylist())


def _text(value: Any) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


def test_every_pattern_is_compared() -> None:
    """The page has as many as the table here, and each job of it is built."""
    assert re.findall(r"^### (.*)$", PAGE, re.MULTILINE) == list(TABLES)
    for pattern, tables in TABLES.items():
        before, after = scripts(pattern)
        compile(before, "before", "exec")
        names: dict[str, Any] = {}
        exec(compile(after, "after", "exec"), names)
        sinks = definition_of(names["job"]).sinks
        assert {sink.identity().rsplit("/", 1)[1] for sink in sinks.values()} == set(tables)


@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize("pattern", TABLES)
def test_a_script_and_its_job_write_the_same(place: Place, pattern: str) -> None:
    """Rows, keys and values, by pattern."""
    before, after = scripts(pattern)
    plain = place.directory / "plain"
    plain.mkdir()
    job = place.write("after.py", after)
    land(place.directory, 0)
    place.die_at("before-the-record", 1, "--until-idle", pipeline=job)
    land(place.directory, 1)
    place.finish("--until-idle", pipeline=job)

    for half in range(2):
        land(plain, half)
    script = plain / "before.py"
    script.write_text(before)
    run_without_weir("plain_script", script, directory=plain)
    for name in TABLES[pattern]:
        expected, found = table(plain, name), table(place.directory, name)
        assert expected, f"{name} has no rows"
        assert found == expected, (name, found - expected, expected - found)
