"""Every format, type, compression and piece size against the judges of docs/FILES.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import SparkSession
from tests.sources.reader_examples import KINDS, OF_SPARK, Example, comparable, examples

from weir.sources.formats.opening import read_file
from weir.sources.formats.records import UNREADABLE

pytestmark = pytest.mark.spark

#: What Spark makes of the rows of a file: by id, whether it takes it for corrupt, and the value.
OfSpark = dict[int, tuple[bool, Any]]


def drawn(count: int, kinds: Collection[str]) -> list[Example]:
    """Examples, all different; few are always the same, so that chance fails no run."""
    found: list[Example] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        derandomize=count < 10_000,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(examples(kinds))
    def draw(example: Example) -> None:
        found.append(example)

    draw()
    return found


def of_spark(spark: SparkSession, directory: Path, examples: list[Example]) -> list[OfSpark]:
    """What Spark's reader makes of all files of a format and type at once."""
    format, kind = examples[0].format, examples[0].kind
    directory.mkdir()
    for number, example in enumerate(examples):
        as_it_is = example.codec in OF_SPARK and example.format != "parquet"
        data = example.packed if as_it_is else example.twin
        name = example.name if as_it_is else example.format
        (directory / f"{number}.{name}").write_bytes(data or b"")
    schema = f"id bigint, v {kind}" + ("" if format == "parquet" else ", _corrupt_record string")
    frame = spark.read.schema(schema).option("header", True).option("timeZone", "UTC")
    table = (
        frame.option("columnNameOfCorruptRecord", "_corrupt_record")
        .format(format)
        .load(str(directory))
        .selectExpr("*", "_metadata.file_name file")
        .toArrow()
    )
    found: list[OfSpark] = [{} for _ in examples]
    for row in table.to_pylist():
        number = int(row["file"].split(".")[0])
        if row["id"] is not None:
            found[number][row["id"]] = (row.get("_corrupt_record") is not None, row["v"])
    return found


def read(path: Path, example: Example, bad: list[int] | None) -> dict[int, Any] | str:
    """The values of a file by id, or why there are none."""

    def on_bad(line: int, error: Exception) -> None:
        if bad is None:
            raise ValueError(f"line {line}: {error}") from error
        bad.append(line)

    schema = pa.schema([("id", pa.int64()), ("v", KINDS[example.kind])])
    try:
        batches = list(
            read_file(
                path,
                example.format,
                schema,
                on_bad,
                partitions={},
                piece_bytes=example.piece,
                rows=example.piece,
            )
        )
    except UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    return {row["id"]: row["v"] for batch in batches for row in batch.to_pylist()}


def differences(path: Path, example: Example, by_spark: OfSpark) -> tuple[list[str], bool]:
    """Where the reader differs from the judges, and whether it reads the whole file."""
    path.write_bytes(example.packed)
    strict, bad = read(path, example, None), list[int]()
    lenient = read(path, example, bad)
    may_refuse = example.is_listed or any(row.is_listed for row in example.rows)
    wrong = []
    if isinstance(strict, str):
        if not may_refuse:
            wrong.append(f"refused: {strict}")
        if not bad and not isinstance(lenient, str):
            wrong.append(f"refused, and read with on_error='reject': {strict}")
    elif strict != lenient and comparable(strict) != comparable(lenient):
        wrong.append(f"{strict}, and {lenient} with on_error='reject'")
    if isinstance(lenient, str):
        return wrong, False
    for row in example.rows:
        is_corrupt, value = (
            by_spark.get(row.id, (True, None)) if row.by_spark else (False, row.value)
        )
        if row.id not in lenient:
            if not row.is_listed:
                wrong.append(f"row {row.id} is not read")
        elif is_corrupt or comparable(lenient[row.id]) != comparable(value):
            judge = "Spark" if row.by_spark else "Python"
            wrong.append(
                f"row {row.id}: {lenient[row.id]!r}, and by {judge}: {value!r} {is_corrupt}"
            )
    if len(lenient) + len(bad) != len(example.rows):
        wrong.append(f"{len(lenient)} rows and {len(bad)} bad ones, of {len(example.rows)}")
    return wrong, not isinstance(strict, str)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("count", "kinds"),
    [
        (100, ["decimal(12,3)", "double", "timestamp", "array<date>"]),
        pytest.param(10_000, list(KINDS), marks=pytest.mark.slow),
    ],
)
def test_files_are_read_as_their_judges_read_them_or_refused(
    spark: SparkSession, tmp_path: Path, count: int, kinds: list[str]
) -> None:
    """Each row is equal to the judge's, or its refusal is one that the table lists, for both
    settings of ``on_error``; four fifths of the files are read."""
    by_type: defaultdict[tuple[str, str], list[Example]] = defaultdict(list)
    for example in drawn(count, kinds):
        by_type[example.format, example.kind].append(example)
    wrong, read_whole = list[str](), 0
    for (format, kind), files in sorted(by_type.items()):
        judged = [one for one in files if any(row.by_spark for row in one.rows)]
        folder = tmp_path / f"{format}-{list(KINDS).index(kind)}"
        found = iter(of_spark(spark, folder, judged) if judged else [])
        for number, example in enumerate(files):
            by_spark = next(found) if any(row.by_spark for row in example.rows) else {}
            path = tmp_path / f"{format}-{list(KINDS).index(kind)}-{number}.{example.name}"
            differs, is_whole = differences(path, example, by_spark)
            path.unlink()
            read_whole += is_whole
            wrong += [f"{one}\n    in {example}" for one in differs]
    some = {one.splitlines()[1][:50]: one for one in wrong}
    assert not wrong, f"{len(wrong)} differ, among them:\n" + "\n".join(some.values())
    assert read_whole >= 0.8 * sum(map(len, by_type.values()))
