"""What a drain says that it left unread, source by source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.ranges import Range, Ranges

import weir
from weir.job import definition_of
from weir.launch.unread import unread_lines
from weir.runtime.ports import Unread


def test_each_source_has_a_line_with_what_its_enumerator_and_its_readers_have(
    tmp_path: Path,
) -> None:
    """Splits of Weir's own readers by source, records of Spark's by query; nothing where nothing
    is left, or nobody knows."""
    job = weir.Job("lines")
    for name, source in (
        ("files", weir.sources.FileSource(str(tmp_path), format="json", schema="id long")),
        ("ranges", Ranges(Range("a", 0, 9), bounded=False)),
        ("others", Ranges(Range("a", 0, 9), bounded=False)),
    ):
        job.source(name, source).sink(f"{name}_out", weir.sinks.Files(str(tmp_path / name)))
    kafka = job.source("kafka", lambda spark: spark.readStream.load(format="kafka"))
    kafka.sink("kafka_out", weir.sinks.Files(str(tmp_path / "kafka")))
    definition = definition_of(job)
    coordinator: Any = definition.operators["files"].coordinator
    coordinator.unassigned = 1_200

    left = {
        "files": Unread(splits={"files": 34}),
        "ranges": Unread(splits={"ranges": 1}),
        "others": Unread(splits={"others": 0}),
        "kafka": Unread(records=5_000),
    }
    assert list(unread_lines(definition, left.__getitem__)) == [
        f"not read to the end: 1,234 splits of source files (FileSource at {tmp_path})",
        "not read to the end: 1 split of source ranges (Ranges)",
        "not read: 5,000 records of the sources of kafka",
    ]
