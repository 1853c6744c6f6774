"""Executes a streaming script with plain Spark: ``python -m tests.kit.plain_script FILE``.

Where the script would wait for the end of its queries, they process what is there, and are stopped.
Nothing else differs from ``spark-submit``, and it knows nothing of Weir.
"""

from __future__ import annotations

import runpy
import sys

from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager


def _finish(query: StreamingQuery, timeout: float | None = None) -> bool:
    # A query that has ended by itself has processed what was there, or raises why not.
    query.processAllAvailable()
    query.stop()
    return True


def _finish_all(queries: StreamingQueryManager, timeout: float | None = None) -> bool:
    return all(_finish(query) for query in queries.active)


if __name__ == "__main__":
    StreamingQuery.awaitTermination = _finish  # type: ignore[method-assign, assignment]
    StreamingQueryManager.awaitAnyTermination = _finish_all  # type: ignore[method-assign, assignment]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
