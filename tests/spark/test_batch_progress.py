"""What Weir reads of Spark's report of a batch (without a JVM)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from weir.spark.query.progress import BatchProgress, decoded


@pytest.mark.parametrize(
    ("text", "watermark_ms"),
    [
        ("2024-01-01T00:00:00.000Z", 1_704_067_200_000),
        ("1970-01-01T00:00:00.000Z", None),
        ("+55970-02-01T00:00:00.000Z", None),
        ("-0044-03-15T00:00:00.000Z", None),
        ("", None),
    ],
)
def test_a_watermark_for_which_python_has_no_date_is_unknown(
    text: str, watermark_ms: int | None
) -> None:
    """One event time in the wrong unit is enough for a year beyond 9999."""
    assert BatchProgress(batch_id=0, event_time={"watermark": text}).watermark_ms == watermark_ms


#: As Spark reports a Kafka source, and a file source, which has no newest offset.
KAFKA = {
    "description": "KafkaV2[Subscribe[orders]]",
    "startOffset": {"orders": {"0": 90, "1": 40}},
    "endOffset": {"orders": {"0": 100, "1": 50}},
    "latestOffset": {"orders": {"0": 175, "1": 50}},
    "numInputRows": 20,
    "metrics": {"maxOffsetsBehindLatest": "75"},
}
FILES = {"endOffset": {"logOffset": 3}, "latestOffset": None, "numInputRows": 7}


@pytest.mark.parametrize(
    ("sources", "pending"),
    [
        ([KAFKA], 75),
        ([KAFKA, FILES, {**KAFKA, "latestOffset": {"orders": {"0": 101, "1": 51}}}], 77),
        ([{**KAFKA, "latestOffset": {"orders": {"0": 5, "1": 55}}}], 5),
        ([FILES], None),
        ([{**KAFKA, "latestOffset": {"orders": {"0": 175}}}], None),
        ([{"endOffset": {}, "latestOffset": {}}], None),
        ([{"endOffset": 12, "latestOffset": 40}], None),
        ([], None),
    ],
)
def test_the_backlog_of_sources_is_known_if_their_offsets_count_records(
    sources: list[dict[str, Any]], pending: int | None
) -> None:
    """Of the others it is unknown, not zero."""
    report = json.dumps({"batchId": 3, "sources": sources})
    assert decoded(SimpleNamespace(json=lambda: report)).pending_records == pending
