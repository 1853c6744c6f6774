"""What Weir reads of Spark's report of a batch (without a JVM)."""

from __future__ import annotations

import pytest

from weir.spark.progress import BatchProgress


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
