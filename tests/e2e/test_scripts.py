"""``weir run`` of a file as people write it for ``spark-submit``."""

from __future__ import annotations

import json
import zipfile

from tests.kit.place import Place

SCRIPT = '''
"""A script."""
from __future__ import annotations

import argparse
import dataclasses

import pandas as pd
from pyspark.sql import functions as F

import beside
import packed
import weir

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)


@dataclasses.dataclass
class Pair:
    a: int
    b: int = 1


@F.udf("long")
def summed(x):
    pair = Pair(beside.same(x))
    return pair.a + packed.same(pair.b)


@F.pandas_udf("long")
def doubled(x: pd.Series) -> pd.Series:
    return x * 2


UPPER = F.upper("name")
ONE = F.lit(1)


def main():
    job = weir.Job("scripted")
    rows = job.source(
        "rows",
        lambda spark: spark.readStream.schema("id long, name string").json("in"),
        bounded=True,
    )
    columns = (summed("id").alias("summed"), doubled("id").alias("doubled"), UPPER, ONE)
    out = rows.transform("out", lambda df: df.select(*columns))
    out.sink(weir.sinks.Files(parser.parse_args().out, format="json"))
    result = job.run()
    print("the script goes on:", result.status.value, result.already_finished)


if __name__ == "__main__":
    main()
'''
SAME = "def same(x):\n    return x\n"


def test_a_script_runs_as_under_spark_submit(place: Place) -> None:
    """UDFs and columns at its top, modules beside it, a sink without a name, and arguments: the
    next start says that they differ."""
    (place.directory / "jobs").mkdir()
    script = place.write("jobs/script.py", SCRIPT)
    place.write("jobs/beside.py", SAME)
    with zipfile.ZipFile(place.directory / "packed.zip", "w") as archive:
        archive.writestr("packed.py", SAME)
    (place.directory / "in").mkdir()
    place.write("in/1.json", '{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')

    first = place.finish("--py-files", "packed.zip", "--", "--out", "out", pipeline=script)
    rows = [
        json.loads(line)
        for file in (place.directory / "out").glob("*.json")
        for line in file.read_text().splitlines()
    ]
    assert sorted(list(row.values()) for row in rows) == [[2, 2, "A", 1], [3, 4, "B", 1]]
    assert "starting Spark, which" in first.errors and "script.py, line" in first.errors
    assert "not at the directory of script.py" in first.output
    assert "the script goes on: FINISHED False" in first.output

    again = ("--accept-changed-state", "out-sink", "--", "--out", "o 2", "--password", "hunter2")
    place.write("jobs/script.py", SCRIPT.replace("parse_args()", "parse_known_args()[0]"))
    second = place.finish("--py-files", "packed.zip", *again, pipeline=script)
    assert "arguments: --out 'o 2' --password ******; at the last start: --out out" in second.output
    assert "the script goes on: FINISHED True" in second.output
    records = b"".join(path.read_bytes() for path in place.log_records())
    assert b"--out out" in records and b"hunter2" not in records
