"""What a real job reports to others: OpenLineage events, and metrics pushed to a collector.

One run reports both. The datasets are those that Spark's plan and the sinks tell; among the metrics
are those of the JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.support import ROWS_PER_FILE, Place
from tests.metrics.otlp_receiver import receiver, series_of

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


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What the run has reported, and where it ran."""

    directory: Path
    #: The OpenLineage events.
    events: Sequence[dict[str, Any]]
    #: The pushed requests.
    pushes: Sequence[Any]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("reported"))
    yield made
    made.clear()


@pytest.fixture(scope="module")
def reported(place: Place) -> Reported:
    place.land(2)
    with receiver() as (address, got):
        place.finish(
            "--conf", "weir.lineage.file=lineage.jsonl",
            "--conf", f"weir.metrics.otlp.endpoint={address}",
            "--conf", "weir.metrics.otlp.interval=500ms",
            pipeline=place.write("told.py", PIPELINE),
            environment={"NO_PROXY": "127.0.0.1"},
        )  # fmt: skip
    lines = (place.directory / "lineage.jsonl").read_text().splitlines()
    return Reported(
        directory=place.directory,
        events=[json.loads(line) for line in lines],
        pushes=[request for request, _ in got],
    )


def test_the_last_push_has_what_the_job_did(reported: Reported) -> None:
    """Rows, commits and the JVM's memory, under the names of a scrape."""
    assert len(reported.pushes) > 1
    last = {
        (name, dict(labels).get("vertex")): value
        for (name, labels), value in series_of(reported.pushes[-1]).items()
    }
    read = [value for (name, _), value in last.items() if name == "weir_task_records_in_total"]
    assert 2 * ROWS_PER_FILE in read
    assert any(name == "weir_jvm_threads" for name, _ in last)
    assert any(name == "process_resident_memory_bytes" for name, _ in last)


def test_the_datasets_of_a_job_are_those_of_its_sources_and_sinks(reported: Reported) -> None:
    """With their columns, from START to COMPLETE, and with the checkpoint at the end."""
    events = reported.events
    assert [events[0]["eventType"], events[-1]["eventType"]] == ["START", "COMPLETE"]
    for event in events:
        assert [(one["namespace"], one["name"]) for one in event["inputs"]] == [
            ("file", str(reported.directory / "in"))
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
