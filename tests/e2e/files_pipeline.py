"""Numbers read by ``FileSource`` and copied unchanged.

Drivers are killed with it in ``test_file_source.py``.
"""

from __future__ import annotations

import weir

job = weir.Job("files")
source = weir.sources.FileSource(
    "in",
    format="parquet",
    schema="id long, ts timestamp",
    discovery_interval=0.2,
    max_bytes_per_split_batch=1,
)
job.source("in", source, parallelism=2).sink("raw", weir.sinks.Files("out/raw"))
