"""What a real job reports to others as OpenLineage events.

The datasets are those that Spark's plan and the sinks report.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kit.place import Place

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = """
import weir
from weir.sinks import DeltaTable, Files
from weir.sources import FileSource


def read(spark):
    return spark.readStream.schema("id long, ts timestamp").parquet("in")


def rate(spark):
    return spark.readStream.format("rate").load()


job = weir.Job("told")
job.source("numbers", read, bounded=True).sink("out", Files("out"))
own = FileSource("in", format="parquet", schema="id long, ts timestamp", bounded=True)
job.source("own", own).transform("ids", lambda frame: frame.select("id")).sink(
    "table", DeltaTable("table")
)
"""


def test_the_datasets_of_a_job_are_those_of_its_sources_and_sinks(place: Place) -> None:
    """With their columns, from START to COMPLETE, and with the checkpoint at the end."""
    place.land(2)
    place.finish(
        "--conf", "weir.lineage.file=lineage.jsonl", pipeline=place.write("told.py", PIPELINE)
    )
    lines = (place.directory / "lineage.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [events[0]["eventType"], events[-1]["eventType"]] == ["START", "COMPLETE"]
    for event in events:
        assert [(one["namespace"], one["name"]) for one in event["inputs"]] == [
            ("file", str(place.directory / "in"))
        ] * 2
        assert [(one["namespace"], Path(one["name"]).name) for one in event["outputs"]] == [
            ("file", "out"),
            ("file", "table"),
        ]
        fields = [
            {field["name"]: field["type"] for field in one["facets"]["schema"]["fields"]}
            for one in (*event["inputs"], *event["outputs"])
        ]
        both = {"id": "bigint", "ts": "timestamp"}
        assert fields == [both, both, both, {"id": "bigint"}]
        assert event["job"]["name"] == "told"
        assert event["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    at_the_end = events[-1]["run"]["facets"]["weir_checkpoint"]
    assert at_the_end["checkpointId"] >= 1
    assert at_the_end["epoch"] == at_the_end["checkpointId"]
