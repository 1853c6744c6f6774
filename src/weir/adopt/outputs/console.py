"""Prints what is committed, as Spark's ``console`` format prints each batch."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from weir.adopt.outputs.joined_batches import JoinedBatches
from weir.adopt.outputs.lineage import ShownOnly
from weir.adopt.outputs.whole_table import WholeTable
from weir.monitoring.log_lines import nowhere
from weir.sinks.foreach.batch import BatchFunction, ForeachBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RULE = "-------------------------------------------"
#: Sinks commit on several threads, and each prints its batches whole.
_printing = threading.Lock()


def printed(rows: int, *, truncate: bool) -> BatchFunction:
    """A function for ``ForeachBatch`` that prints at most so many rows of each batch."""

    def show(frame: DataFrame, batch_id: int) -> None:
        # It is the script's output, not the job's.
        with _printing, nowhere():
            print(_RULE, f"Batch: {batch_id}", _RULE, sep="\n")
            frame.show(rows, truncate=truncate)
            sys.stdout.flush()

    return show


class ShownBatches(ShownOnly, ForeachBatch):
    """``ForeachBatch`` of a function that only shows rows."""


class ShownJoined(ShownOnly, JoinedBatches):
    """``JoinedBatches`` of a function that only shows rows."""


class ShownTable(ShownOnly, WholeTable):
    """``WholeTable`` of a function that only shows rows."""
