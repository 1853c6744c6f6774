"""What is asked of an attempt's DataFrames while the queries of other vertices are built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.kit.rig import Collected, frames_of

from weir.job import Job
from weir.spark.query import frames as frames_module

pytestmark = pytest.mark.spark


def test_a_vertex_is_looked_at_while_another_is_built(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries start on threads of their own: another source may appear at any moment."""
    job = Job("two")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        source = str(tmp_path / name)
        stream = job.source(
            name, lambda spark, source=source: spark.readStream.schema("id long").json(source)
        )
        stream.sink(f"{name}_out", Collected())
    frames = frames_of(spark, job)
    leaves_of = frames_module.streaming_leaves

    def build_the_other(frame: DataFrame) -> Any:
        frames.of("second")
        return leaves_of(frame)

    monkeypatch.setattr(frames_module, "streaming_leaves", build_the_other)
    try:
        assert frames.kafka_places("first") == ()
        assert frames.built("second") is not None
    finally:
        frames.release()
