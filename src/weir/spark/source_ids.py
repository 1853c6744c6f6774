"""Which directory below ``sources/`` belongs to which offset of a query's offset log.

The offset log has one offset for each place in the plan that reads a source, so a source that is read in several places (a
stream joined with itself; the control input in front of each channel) stands there several times. Its directory is numbered
among the distinct ones. Neither log says which is which, so the running query is asked, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def source_ids(query: StreamingQuery) -> tuple[int, ...]:
    """The number of the directory of each offset, in the order of the offset log. Call it between two batches."""
    sources = query._jsq.streamingQuery().sources()
    first_places = [int(sources.indexOf(sources.apply(index))) for index in range(sources.size())]
    distinct = sorted(set(first_places))
    return tuple(distinct.index(place) for place in first_places)
