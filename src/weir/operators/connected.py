"""``CoOperator``: an operator over two streams with columns of their own (MISSION B7, C).

Flink's ``CoProcessFunction`` and ``KeyedCoProcessFunction``, with ``BoundedMultiInput``.

Spark's query has the rows of both inputs in one frame, in columns of their own, beside the number
of a row's input (``weir/spark/operators/inputs.py``)::

    __weir_input | __weir_1/id | __weir_1/amount | __weir_2/id | __weir_2/limit
    1            | 7           | 20.0            | null        | null
    2            | null        | null            | 7           | 50.0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weir.operators.base import Operator
from weir.operators.output import record_batches, tagged_column

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.operators.base import Batches

#: The column with the number of a row's input.
INPUT = "__weir_input"


class CoOperator(Operator):
    """The base class of operators for ``Stream.connect``.

    Like ``Operator``, with ``process_batch1`` and ``process_batch2`` in place of ``process_batch``.
    Both work on the same state: with ``key_by``, keys of both inputs are one key space. Nothing is
    known of the order between rows of the two inputs. The watermark is the lesser of the inputs'
    watermarks (PROTOCOL P25); an input without an event time does not hold it back.

    ``output_schema`` must be declared.
    """

    def process_batch1(self, batch: pa.RecordBatch) -> Batches:
        """Process some records of the first input."""
        raise NotImplementedError(f"{type(self).__name__} has no process_batch1")

    def process_batch2(self, batch: pa.RecordBatch) -> Batches:
        """Process some records of the second input."""
        raise NotImplementedError(f"{type(self).__name__} has no process_batch2")

    def end_input_of(self, number: int) -> Batches:
        """No more records of the input ``number``, 1 or 2, will come; the other may go on.

        Called once in each attempt, so again after a restore, and for both inputs before
        ``end_input`` (MISSION E1). A stop without a drain omits it.
        """

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Pass the records of each input to its method."""
        for number, process in ((1, self.process_batch1), (2, self.process_batch2)):
            records = _records_of(batch, number)
            if records.num_rows:
                yield from record_batches(
                    process(records), f"{type(self).__name__}.process_batch{number}"
                )


def _records_of(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    import pyarrow.compute as pc

    prefix = tagged_column(str(number), "")
    names = [name for name in batch.schema.names if name.startswith(prefix)]
    records = batch.filter(pc.equal(batch[INPUT], number)).select(names)
    return records.rename_columns([name.removeprefix(prefix) for name in names])
