"""What Weir reads of Spark's report of a batch (without a JVM)."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from weir.core.types import Counted
from weir.runtime.ports import RowsOf
from weir.spark.query.counters import QueryCounters
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
    ("sources", "lags"),
    [
        ([KAFKA], {"orders": {"0": 75, "1": 0}}),
        (
            [KAFKA, FILES, {**KAFKA, "latestOffset": {"orders": {"0": 101, "1": 51}}}],
            {"orders": {"0": 76, "1": 1}},
        ),
        ([{**KAFKA, "latestOffset": {"orders": {"0": 5, "1": 55}}}], {"orders": {"0": 0, "1": 5}}),
        ([FILES], None),
        ([{**KAFKA, "latestOffset": {"orders": {"0": 175}}}], None),
        ([{"endOffset": {}, "latestOffset": {}}], None),
        ([{"endOffset": 12, "latestOffset": 40}], None),
        ([], None),
    ],
)
def test_the_backlog_of_sources_is_known_if_their_offsets_count_records(
    sources: list[dict[str, Any]], lags: dict[str, dict[str, int]] | None
) -> None:
    """By topic and partition; of the others it is unknown, not zero."""
    report = json.dumps({"batchId": 3, "sources": sources})
    assert decoded(SimpleNamespace(json=lambda: report)).lags == lags


def running(*reports: dict[str, Any]) -> Any:
    """A query that has made these reports, from batch 0 on."""
    entries = [
        SimpleNamespace(
            batchId=lambda batch=batch: batch,
            json=lambda batch=batch, report=report: json.dumps({"batchId": batch, **report}),
        )
        for batch, report in enumerate(reports)
    ]
    query = MagicMock()
    query._jsq.recentProgress.return_value = entries
    return query


def test_the_watermarks_of_channels_are_no_rows() -> None:
    """They come through an input of Weir's own, which Spark counts like any other."""
    own = {"description": "weir-control-input#2", "numInputRows": 1}
    channel = {"description": "channel clean#3", "numInputRows": 1187}
    counters = QueryCounters("sums")
    counters.count(running({"sources": [own, channel]}), 0)
    assert counters.metrics(0, {}).records_in == 1187


def test_rows_dropped_as_late_add_up_by_operator_and_are_said_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark reports them by batch, and only there; what is read twice counts once."""

    def dropped(*rows: int) -> dict[str, Any]:
        names = ("stateStoreSave", "symmetricHashJoin")
        operators = [
            {"operatorName": name, "numRowsDroppedByWatermark": number}
            for name, number in zip(names, rows, strict=True)
        ]
        return {"stateOperators": operators, "sources": [KAFKA]}

    counters = QueryCounters("sums")
    counters.count(running(dropped(0, 0)), 0)
    assert not caplog.records
    query = running(dropped(0, 0), dropped(2, 0), dropped(3, 7))
    counters.count(query, 2)
    counters.count(query, 2)
    found = counters.metrics(2, {})
    assert found.counted == {
        RowsOf(Counted.LATE, "0 stateStoreSave"): 5,
        RowsOf(Counted.LATE, "1 symmetricHashJoin"): 7,
    }
    assert (found.records_in, found.pending_records) == (80, 75)
    (said,) = caplog.records
    assert "Late rows that sums has dropped so far: 12." in said.getMessage()


def test_rows_that_are_set_aside_or_break_a_rule_are_said_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They would otherwise be dropped in silence, by whoever looks at the log only."""
    counters = QueryCounters("valid")
    counters.add(10, Counter({RowsOf(Counted.BROKEN, "valid", "has an id"): 0}))
    assert not caplog.records
    bad = Counter(
        {RowsOf(Counted.REJECTED, "price"): 2, RowsOf(Counted.BROKEN, "valid", "has an id"): 1_000}
    )
    counters.add(10, bad)
    counters.add(10, bad)
    (said,) = caplog.records
    assert said.getMessage() == (
        "Rows of valid so far: 1,000 that break 'has an id' of valid, 2 set aside by price."
    )


def test_a_checkpoint_has_the_rows_that_were_counted_since_the_completed_one_before() -> None:
    """Rows of one that was aborted belong to the next, and nothing that comes later to an older
    one."""
    broken = RowsOf(Counted.BROKEN, "valid", "has an id")
    counters = QueryCounters("valid")

    def counted(checkpoint_id: int) -> int:
        rows = counters.of_checkpoint(checkpoint_id)
        assert {(one.kind, one.by, one.rule) for one in rows} <= {broken}
        return sum(one.rows for one in rows)

    counters.add(10, Counter({broken: 3}))
    counters.snapshot_taken(1)
    counters.add(10, Counter({broken: 4}))
    assert counted(1) == 3
    counters.checkpoint_completed(1)
    counters.snapshot_taken(2)
    counters.add(10, Counter({broken: 5}))
    counters.snapshot_taken(3)
    assert (counted(2), counted(3)) == (4, 9)
    counters.checkpoint_completed(3)
    counters.snapshot_taken(4)
    assert counted(4) == 0
